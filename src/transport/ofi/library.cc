#include "transport/ofi/library.h"

#include <dlfcn.h>
#include <stdlib.h>

#include <utility>

#include "base/format.h"
#include "tccl/error.h"

namespace tccl::ofi {
namespace {

template <class Function>
void find(void* handle, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(::dlsym(handle, name));
  if (function == nullptr)
    throw Error(Errc::system, formatted("libfabric.so.1 has no {}: it is too old", name));
}

/// libfabric has no other way to be told, and reads the environment only once, soon after loading.
/// What the user has set stays.
void set_defaults() {
  constexpr std::pair<const char*, const char*> kDefaults[] = {
      // Messages of this length, with its header, are sent at once instead of being announced
      // first: ours are never longer, and whoever gets them has asked for them or will soon. On a
      // network of 1 Gbit/s with 16 ms of data queued in it, the announcements alone cost a fifth
      // of the time.
      {"FI_OFI_RXM_EAGER_LIMIT", "132000"},
      // Buffers of that length for messages from anyone: 128 would be no faster, but 34 MB.
      {"FI_OFI_RXM_MSG_RX_SIZE", "32"},
      // Processes to have room for at first: 256 would give a ring of completions of 13 MB, which
      // comes into use little by little, as if memory leaked.
      {"FI_UNIVERSE_SIZE", "16"}};
  for (const auto& [name, value] : kDefaults) ::setenv(name, value, /*overwrite=*/0);
}

Library load() {
  set_defaults();
  void* handle = ::dlopen("libfabric.so.1", RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr)
    throw Error(Errc::system,
                formatted("ranks on several hosts need libfabric (Debian, Ubuntu: apt install "
                          "libfabric1; Fedora, RHEL: dnf install libfabric): {}",
                          ::dlerror()));
  Library library{};
  find(handle, "fi_getinfo", library.getinfo);
  find(handle, "fi_freeinfo", library.freeinfo);
  find(handle, "fi_dupinfo", library.dupinfo);
  find(handle, "fi_fabric", library.fabric);
  find(handle, "fi_strerror", library.strerror);
  find(handle, "fi_version", library.version);
  return library;
}

}  // namespace

const Library& library() {
  static const Library library = load();  // never unloaded: it has threads and exit handlers
  return library;
}

}  // namespace tccl::ofi
