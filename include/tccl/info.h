// What the library is configured to do in this process: kernels, algorithms, settings, addresses.
// Implemented by src/info/info.cc.
// Thread safety: every function may be called from any thread.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "tccl/export.h"
#include "tccl/operation.h"

namespace tccl {

/// One rule of algorithm selection: applies to `from_ranks` ranks or more and to sizes from
/// `from_bytes` to `to_bytes`. Of the rules of one operation that apply, the last one wins. An
/// algorithm without rules has an entry, too.
struct AlgorithmRule {
  Op op;
  std::string algorithm;
  std::string doc;
  std::size_t from_bytes;
  std::size_t to_bytes;
  int from_ranks;
  std::string dtypes;  // "all", or a kind such as "float8"
  bool several_hosts;  // true: for groups over several hosts; false: for groups on one host
  bool by_setting;     // from the environment, not from the library's defaults
  bool applies;        // false: the algorithm has no rule, so it runs only if a setting names it
};

struct SettingValue {
  std::string name;
  std::string value;
  std::string doc;
  bool is_set;  // in the environment
};

struct Info {
  std::string kernels;  // instruction set of the reduction kernels
  std::vector<AlgorithmRule> algorithms;
  std::vector<SettingValue> settings;
};

/// Reads the environment. Throws Error{invalid_argument} if a setting is invalid.
TCCL_API Info info();

/// Every setting with its value as written, valid or not.
TCCL_API std::vector<SettingValue> setting_values();

/// Addresses by which other hosts can reach this one, best first; CCL_SOCKET_IFNAME filters them.
TCCL_API std::vector<std::string> addresses_of_this_host();

}  // namespace tccl
