// What the library would do in this process, for people who want to know. Safe from any thread.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "tccl/export.h"
#include "tccl/operation.h"

namespace tccl {

/// One rule: from `from_ranks` ranks on, for sizes from `from_bytes` to `to_bytes`. Of those for
/// one operation the last that fits is followed.
struct AlgorithmChoice {
  Op op;
  std::string algorithm;
  std::string doc;
  std::size_t from_bytes;
  std::size_t to_bytes;
  int from_ranks;
  std::string dtypes;  // "all" or a kind, such as "float8"
  bool several_hosts;  // for ranks on several hosts, or for those of one
  bool by_setting;     // the environment says so, not the library
};

struct SettingValue {
  std::string name;
  std::string value;
  std::string doc;
  bool is_set;  // in the environment
};

struct Info {
  std::string kernels;  // the instruction set of the reductions
  std::vector<AlgorithmChoice> algorithms;
  std::vector<SettingValue> settings;
};

/// Reads the environment. Throws Error{invalid_argument} if a setting makes no sense.
TCCL_API Info info();

/// By which other hosts may reach this one, the best first; CCL_SOCKET_IFNAME chooses among them.
TCCL_API std::vector<std::string> addresses_of_this_host();

}  // namespace tccl
