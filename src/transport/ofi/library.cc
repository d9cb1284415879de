#include "transport/ofi/library.h"

#include <dlfcn.h>
#include <stdlib.h>

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

/// Messages of this length, with its header, are sent at once instead of being announced first:
/// ours are never longer, and whoever gets them has asked for them or will soon. On a network of
/// 1 Gbit/s with 16 ms of data queued in it, the announcements alone cost a fifth of the time.
constexpr const char* kEagerLimit = "263000";

Library load() {
  // libfabric has no other way to be told, and reads the environment only once, soon after this.
  ::setenv("FI_OFI_RXM_EAGER_LIMIT", kEagerLimit, /*overwrite=*/0);
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
