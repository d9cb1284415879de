#include "transport/ofi/library.h"

#include <dlfcn.h>

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

Library load() {
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
