// libfabric, loaded by dlopen() at the first use: a job on one host does not need it.
// Thread safety: may be called from any thread.
#pragma once

#include <rdma/fabric.h>

#include <cstdint>
#include <string>

namespace tccl::ofi {

/// The functions that libfabric exports. All others are inline and call through its objects.
struct Library {
  decltype(&::fi_getinfo) getinfo;
  decltype(&::fi_freeinfo) freeinfo;
  decltype(&::fi_dupinfo) dupinfo;
  decltype(&::fi_fabric) fabric;
  decltype(&::fi_strerror) strerror;
  decltype(&::fi_version) version;
};

/// Throws Error{system} with the package to install if libfabric is missing. The first call loads it
/// from `path`, by default the system's.
const Library& library(const std::string& path = {});

}  // namespace tccl::ofi
