// libfabric, loaded when it is needed: a job on one host needs nothing installed. Thread-safe.
#pragma once

#include <rdma/fabric.h>

#include <cstdint>

namespace tccl::ofi {

/// The functions that the library exports; all others are members of the objects it makes.
struct Library {
  decltype(&::fi_getinfo) getinfo;
  decltype(&::fi_freeinfo) freeinfo;
  decltype(&::fi_dupinfo) dupinfo;
  decltype(&::fi_fabric) fabric;
  decltype(&::fi_strerror) strerror;
  decltype(&::fi_version) version;
};

/// Throws Error{system} that says what to install.
const Library& library();

}  // namespace tccl::ofi
