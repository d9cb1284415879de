// The text by which a process is recognised: from the store, where anyone may write.
#include <cstdlib>

#include "base/process_identity.h"
#include "fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using tccl::ProcessIdentity;
  const std::string text(tccl::fuzz::Input(data, size).take_rest());
  const ProcessIdentity identity = ProcessIdentity::from_text(text);
  // What is known of another host's process is nothing.
  if (!identity.is_local() && identity.has_ended()) std::abort();
  if (ProcessIdentity::from_text(identity.text()).is_local() != identity.is_local()) std::abort();
  return 0;
}
