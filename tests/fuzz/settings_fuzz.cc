// Every setting of the table, with any text: the variables of a job may come from other people's
// scripts.
#include "config/settings.h"
#include "fuzz/input.h"
#include "planner/algorithm_selector.h"
#include "tccl/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tccl;
  fuzz::Input input(data, size);
  Settings settings;
  while (!input.empty()) {
    const auto rows = setting_rows();
    const SettingRow& row = rows[input.take<std::uint8_t>() % rows.size()];
    if (row.parse == nullptr) continue;
    // A variable of the environment ends at the first NUL.
    std::string text(input.take_text());
    text.resize(std::min(text.size(), text.find('\0')));
    try {
      row.parse(settings, text);
    } catch (const Error& error) {
      if (error.code() != Errc::invalid_argument) throw;
    }
  }
  try {
    static_cast<void>(AlgorithmSelector(settings).rules());
    static_cast<void>(settings.interface_filter.excludes("eth0"));
    static_cast<void>(find_row(settings.provider));
  } catch (const Error& error) {
    if (error.code() != Errc::invalid_argument) throw;
  }
  return 0;
}
