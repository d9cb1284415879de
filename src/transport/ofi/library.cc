#include "transport/ofi/library.h"

#include <dlfcn.h>
#include <stdlib.h>

#include <utility>

#include "base/environment.h"
#include "base/format.h"
#include "tccl/error.h"

namespace tccl::ofi {
namespace {

template <class Function>
void resolve(void* handle, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(::dlsym(handle, name));
  if (function == nullptr)
    throw Error(Errc::system, formatted("libfabric is too old: it has no {}", name));
}

/// What libfabric offers through variables of the environment only: neither the hints of fi_getinfo()
/// nor fi_setopt() have it. It reads them when it is initialised and when an endpoint is opened.
/// Variables that the user has set are kept.
void set_defaults() {
  constexpr std::pair<const char*, const char*> kDefaults[] = {
      // Eager instead of rendezvous protocol for all our messages (kMaxMessageBytes and headers):
      // their receives are posted already or will be soon. With the rendezvous protocol an
      // allreduce of 16 MiB over 4 hosts took 258 ms instead of 218.
      {"FI_OFI_RXM_EAGER_LIMIT", "132000"},
      // Receive buffers of that length: libfabric's default of 128 takes 34 MB and is no faster.
      {"FI_OFI_RXM_MSG_RX_SIZE", "32"},
      // Initial number of peers: with the default of 256 the completion queue has 13 MB, which are
      // touched little by little and look like a leak.
      {"FI_UNIVERSE_SIZE", "16"}};
  for (const auto& [name, value] : kDefaults)
    if (::getenv(name) == nullptr) set_environment_variable(name, value);
}

Library load(const std::string& path) {
  set_defaults();
  void* handle = ::dlopen(path.empty() ? "libfabric.so.1" : path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr && !path.empty())
    throw Error(Errc::system, formatted("CCL_OFI_LIBRARY_PATH={}: {}", path, ::dlerror()));
  if (handle == nullptr)
    throw Error(Errc::system,
                formatted("ranks on several hosts need libfabric (Debian, Ubuntu: apt install "
                          "libfabric1; Fedora, RHEL: dnf install libfabric): {}",
                          ::dlerror()));
  Library library{};
  resolve(handle, "fi_getinfo", library.getinfo);
  resolve(handle, "fi_freeinfo", library.freeinfo);
  resolve(handle, "fi_dupinfo", library.dupinfo);
  resolve(handle, "fi_fabric", library.fabric);
  resolve(handle, "fi_strerror", library.strerror);
  resolve(handle, "fi_version", library.version);
  return library;
}

}  // namespace

const Library& library(const std::string& path) {
  static const Library library =
      load(path);  // never unloaded: libfabric has threads and exit handlers
  return library;
}

}  // namespace tccl::ofi
