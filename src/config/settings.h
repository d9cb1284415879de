// Everything that a user can set, in one table (settings.cc): name, default, meaning, parser.
// Read from the environment once, when a Context is created.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/tcp_socket.h"
#include "config/interface_filter.h"
#include "tccl/operation.h"

namespace tccl {

struct Settings {
  std::size_t chunk_bytes = 0;
  std::size_t shared_bytes = 0;
  std::size_t eager_bytes = 0;
  std::size_t staging_bytes = 0;
  std::optional<int> worker_count;  // none: from the cores
  std::string worker_affinity;
  std::vector<int> worker_cores;                // the same, parsed; empty: auto
  std::array<std::string, kOpCount> algorithm;  // by Op; empty: the library chooses
  // --- between hosts ---
  std::string provider;  // of libfabric; empty: tcp
  InterfaceFilter interface_filter;
  PortRange ports;
  std::chrono::milliseconds liveness_timeout{0};
  std::string secret_file;
  WireFormat wire_format = WireFormat::same;
};

struct SettingRow {
  const char* name;
  const char* default_value;
  const char* doc;
  void (*parse)(Settings&, const std::string& text);  // throws Error{invalid_argument}
};

std::span<const SettingRow> setting_rows();

/// Variables CCL_* of the Python package and the command torch-ccl. The library ignores them.
std::span<const std::string_view> package_variables();

/// Defaults overridden by the environment. A value that cannot be parsed is an error that names it.
Settings parse_environment();

/// The same, with one warning for each name that starts with CCL_ and is in neither table.
Settings settings_from_environment();

}  // namespace tccl
