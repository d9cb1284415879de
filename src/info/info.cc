#include "tccl/info.h"

#include <cstdlib>

#include "config/settings.h"
#include "kernels/variants.h"
#include "planner/algorithm_selector.h"
#include "rendezvous/interface_preference.h"
#include "rendezvous/interfaces.h"

namespace tccl {

Info info() {
  const Settings settings = parse_environment();
  Info info;
  info.kernels = kernels::best_variant().name;
  info.algorithms = AlgorithmSelector(settings).rules();
  info.settings = setting_values();
  return info;
}

std::vector<SettingValue> setting_values() {
  std::vector<SettingValue> values;
  for (const SettingRow& row : setting_rows()) {
    if (row.use != SettingUse::library) continue;
    const char* set = std::getenv(row.name);
    values.push_back({row.name, set ? set : row.default_value, row.doc, set != nullptr});
  }
  return values;
}

std::vector<std::string> addresses_of_this_host() {
  const Settings settings = parse_settings({"CCL_SOCKET_IFNAME", "CCL_MNIC_NAME", "CCL_KVS_IFACE"});
  return own_addresses(/*store_host=*/"", effective_filter(settings)).usable;
}

}  // namespace tccl
