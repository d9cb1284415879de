#include "info/info_json.h"

#include <exception>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/format.h"
#include "config/settings.h"
#include "tccl/info.h"

namespace tccl {
namespace {

std::string to_json(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\')
      quoted += {'\\', c};
    else if (static_cast<unsigned char>(c) < 0x20)
      quoted += formatted("\\u{:04x}", static_cast<int>(c));
    else
      quoted += c;
  }
  return quoted + '"';
}

std::string to_json(bool value) { return value ? "true" : "false"; }
std::string to_json(std::size_t value) { return std::to_string(value); }
std::string to_json(int value) { return std::to_string(value); }

std::string member(std::string_view name, const std::string& json) {
  return to_json(name) + ": " + json;
}

std::string enclosed(char open, std::span<const std::string> items, char close) {
  std::string text(1, open);
  for (const std::string& item : items) {
    if (text.size() > 1) text += ", ";
    text += item;
  }
  return text + close;
}

std::string object(const std::vector<std::string>& members) { return enclosed('{', members, '}'); }

template <typename Items, typename ToJson>
std::string array(const Items& items, ToJson item_to_json) {
  std::vector<std::string> texts;
  for (const auto& item : items) texts.push_back(item_to_json(item));
  return enclosed('[', texts, ']');
}

std::string setting_json(const SettingValue& row) {
  return object({member("name", to_json(row.name)), member("value", to_json(row.value)),
                 member("doc", to_json(row.doc)), member("is_set", to_json(row.is_set))});
}

std::string algorithm_json(const AlgorithmRule& row) {
  return object(
      {member("operation", to_json(std::string_view(name_of(row.op)))),
       member("algorithm", to_json(row.algorithm)), member("doc", to_json(row.doc)),
       member("from_bytes", to_json(row.from_bytes)), member("to_bytes", to_json(row.to_bytes)),
       member("from_ranks", to_json(row.from_ranks)), member("dtypes", to_json(row.dtypes)),
       member("several_hosts", to_json(row.several_hosts)),
       member("by_setting", to_json(row.by_setting)), member("applies", to_json(row.applies))});
}

std::string other_variable_json(const SettingRow& row) {
  return object({member("name", to_json(std::string_view(row.name))),
                 member("default", to_json(std::string_view(row.default_value))),
                 member("doc", to_json(std::string_view(row.doc))),
                 member("is_ignored", to_json(row.use == SettingUse::ignored))});
}

std::string settings_json() {
  std::vector<SettingRow> others;
  for (const SettingRow& row : setting_rows())
    if (row.use != SettingUse::library) others.push_back(row);
  return object({member("settings", array(setting_values(), setting_json)),
                 member("other_variables", array(others, other_variable_json))});
}

std::string info_json() {
  const Info found = info();
  return object({member("kernels", to_json(found.kernels)),
                 member("algorithms", array(found.algorithms, algorithm_json)),
                 member("settings", array(found.settings, setting_json))});
}

std::string addresses_json() {
  const auto text_json = [](const std::string& text) { return to_json(std::string_view(text)); };
  return object({member("addresses", array(addresses_of_this_host(), text_json))});
}

/// No exception may leave a C function.
template <typename Function>
const char* result_of(Function function) noexcept {
  static thread_local std::string text;
  try {
    text = function();
  } catch (const std::exception& problem) {
    text = object({member("error", to_json(std::string_view(problem.what())))});
  }
  return text.c_str();
}

}  // namespace
}  // namespace tccl

const char* tccl_settings_json() { return tccl::result_of(tccl::settings_json); }
const char* tccl_info_json() { return tccl::result_of(tccl::info_json); }
const char* tccl_host_addresses_json() { return tccl::result_of(tccl::addresses_json); }
