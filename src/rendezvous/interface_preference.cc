#include "rendezvous/interface_preference.h"

#include "rendezvous/interfaces.h"
#include "tccl/error.h"

namespace tccl {

InterfaceFilter effective_filter(const Settings& settings) {
  const InterfaceFilter& preference = settings.interface_preference;
  if (!settings.interface_filter.text.empty() || preference.text.empty())
    return settings.interface_filter;
  try {
    usable_addresses(interfaces_of_this_host(), preference, /*preferred=*/{});
    return preference;
  } catch (const Error&) {  // none matches
    return settings.interface_filter;
  }
}

}  // namespace tccl
