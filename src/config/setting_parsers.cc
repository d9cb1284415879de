#include "config/setting_parsers.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <iterator>
#include <sstream>
#include <utility>
#include <vector>

#include "base/cpu_set.h"
#include "tccl/error.h"

namespace tccl {
namespace {

constexpr std::string_view kAuto = "auto";

std::size_t parse_number(std::string_view text, std::string_view* rest) {
  std::size_t value = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (problem != std::errc()) throw Error(Errc::invalid_argument, "not a number");
  *rest = text.substr(static_cast<std::size_t>(end - text.data()));
  return value;
}

std::uint16_t parse_port(std::string_view text) {
  std::string_view rest;
  const std::size_t value = parse_number(text, &rest);
  if (!rest.empty() || value == 0 || value > 65535)
    throw Error(Errc::invalid_argument, "ports must be between 1 and 65535");
  return static_cast<std::uint16_t>(value);
}

std::string lower_case(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

}  // namespace

std::size_t parse_bytes(std::string_view text) {
  std::string_view unit;
  const std::size_t value = parse_number(text, &unit);
  if (unit.empty()) return value;
  if (value > std::size_t{1} << 32) throw Error(Errc::invalid_argument, "too large");
  if (unit == "K" || unit == "k") return value << 10;
  if (unit == "M" || unit == "m") return value << 20;
  if (unit == "G" || unit == "g") return value << 30;
  throw Error(Errc::invalid_argument, "the unit must be K, M or G");
}

std::size_t parse_chunk_bytes(std::string_view text) {
  const std::size_t value = parse_bytes(text);
  if (value < 16 || value > std::size_t{16} << 20)
    throw Error(Errc::invalid_argument, "must be between 16 and 16M");
  return value;
}

void log_level_into(Settings& settings, const std::string& text) {
  // oneCCL before 2021.2 had numbers, which scripts still contain.
  constexpr std::pair<std::string_view, LogLevel> kLevels[] = {
      {"error", LogLevel::error}, {"warn", LogLevel::warn},   {"info", LogLevel::info},
      {"debug", LogLevel::debug}, {"trace", LogLevel::trace}, {"0", LogLevel::error},
      {"1", LogLevel::info},      {"2", LogLevel::debug},     {"3", LogLevel::trace}};
  const auto* const found =
      std::ranges::find(kLevels, lower_case(text), &std::pair<std::string_view, LogLevel>::first);
  if (found == std::end(kLevels))
    throw Error(Errc::invalid_argument, "must be error, warn, info, debug or trace");
  settings.log_level = found->second;
}

void shared_bytes_into(Settings& settings, const std::string& text) {
  settings.shared_bytes = parse_bytes(text);
  if (settings.shared_bytes < std::size_t{256} << 20 || settings.shared_bytes > std::size_t{1}
                                                                                    << 40)
    throw Error(Errc::invalid_argument, "must be between 256M and 1024G");
}

void worker_count_into(Settings& settings, const std::string& text) {
  if (text == kAuto) return settings.worker_count.reset();
  std::string_view rest;
  const std::size_t value = parse_number(text, &rest);
  if (!rest.empty() || value > 1024)
    throw Error(Errc::invalid_argument, "must be auto or between 0 and 1024");
  settings.worker_count = static_cast<int>(value);
}

void worker_offload_into(Settings& settings, const std::string& text) {
  if (text != "0" && text != "1") throw Error(Errc::invalid_argument, "must be 0 or 1");
  if (text == "0") settings.worker_count = 0;
}

void worker_affinity_into(Settings& settings, const std::string& text) {
  settings.worker_affinity = text;
  settings.worker_cpus = text == kAuto ? std::vector<int>() : parse_cpus(text);
}

void transport_into(Settings& /*settings*/, const std::string& text) {
  const std::string name = lower_case(text);
  if (name != "ofi" && name != "mpi") throw Error(Errc::invalid_argument, "must be ofi or mpi");
}

void provider_into(Settings& settings, const std::string& text) {
  settings.provider = text;
  settings.preferred_providers.clear();
  const char* libfabric_choice = std::getenv("FI_PROVIDER");
  if (!text.empty() || libfabric_choice == nullptr || *libfabric_choice == '^') return;
  std::istringstream list(libfabric_choice);
  for (std::string name; std::getline(list, name, ',');)
    if (!name.empty() && name != "shm") settings.preferred_providers.push_back(name);
}

void interface_filter_into(Settings& settings, const std::string& text) {
  settings.interface_filter = InterfaceFilter::parse(text);
}

void interface_preference_into(Settings& settings, const std::string& text) {
  if (text.empty() || !settings.interface_preference.text.empty()) return;
  try {
    settings.interface_preference = InterfaceFilter::parse(text);
  } catch (const Error&) {  // the name of an RDMA device need not be one that an interface may have
  }
}

void ports_into(Settings& settings, const std::string& text) {
  settings.ports = {};
  if (text.empty()) return;
  const std::size_t dash = text.find_first_of("-:");
  if (dash == std::string::npos) throw Error(Errc::invalid_argument, "must be FIRST-LAST");
  const std::string_view range(text);
  settings.ports = {parse_port(range.substr(0, dash)), parse_port(range.substr(dash + 1))};
  if (settings.ports.first > settings.ports.last)
    throw Error(Errc::invalid_argument, "the first port is greater than the last");
}

void liveness_into(Settings& settings, const std::string& text) {
  std::string_view rest;
  const std::size_t seconds = parse_number(text, &rest);
  if (!rest.empty() || seconds < 1 || seconds > 3600)
    throw Error(Errc::invalid_argument, "must be between 1 and 3600 seconds");
  settings.liveness_timeout = std::chrono::seconds(seconds);
}

void wire_format_into(Settings& settings, const std::string& text) {
  const auto format = wire_format_named(text);
  if (!format) throw Error(Errc::invalid_argument, "must be same, bf16 or int8");
  settings.wire_format = *format;
}

std::string algorithm_variable(Op op) {
  std::string name(name_of(op));
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::toupper(c); });
  return "CCL_" + name;
}

void add_algorithm(Settings& settings, AlgorithmSetting setting) {
  if (!setting.text.empty()) settings.algorithms.push_back(std::move(setting));
}

void bcast_algorithm_into(Settings& settings, const std::string& text) {
  add_algorithm(settings, {Op::broadcast, "CCL_BCAST", text});
}

}  // namespace tccl
