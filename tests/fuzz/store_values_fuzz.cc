// What ranks read from the store while a group is formed: any process that reaches the store may
// have written it. A rendezvous that cannot go on ends with an Error.
#include "fuzz/input.h"
#include "rendezvous/host_agreement.h"
#include "rendezvous/host_discovery.h"
#include "rendezvous/join_record.h"
#include "rendezvous/secret.h"
#include "tccl/error.h"
#include "topology/host_map.h"

namespace tccl {
namespace {

/// Every get() returns the next text of the input.
class FuzzedStore final : public Store {
 public:
  explicit FuzzedStore(fuzz::Input& input) : input_(input) {}
  void set(const std::string& /*key*/, std::string_view /*value*/) override {}
  std::string get(const std::string& key, std::chrono::milliseconds /*timeout*/) override {
    if (input_.empty()) throw Error(Errc::timeout, "no key " + key);
    return std::string(input_.take_text());
  }
  void remove(const std::string& /*key*/) override {}

 private:
  fuzz::Input& input_;
};

constexpr int kHosts = 3;

RendezvousOptions options_of(int rank, Store& store) {
  return {.store = &store,
          .group = "world",
          .secret = "secret",
          .rank = rank,
          .size = kHosts,
          .timeout = std::chrono::milliseconds(0),
          .deadline = Clock::now(),
          .offer_addresses = [rank] {
            return AddressOffer{"h", {"10.0.0." + std::to_string(rank + 1)}};
          }};
}

std::vector<LocalPeer> one_rank(int rank) {
  std::vector<LocalPeer> local(1);
  local.front().peer_info.rank = rank;
  local.front().peer_info.size = kHosts;
  local.front().peer_info.host_index = rank;
  return local;
}

void agree(const RendezvousOptions& options) {
  const HostMap host_map(std::vector{0, 1, 2});
  HostAgreement hosts(options, host_map, [] {});
  static_cast<void>(hosts.agree_on_address());
  static_cast<void>(hosts.exchange_peer_infos([&] { return one_rank(options.rank); }));
  hosts.commit([] {});
}

void read_values(std::uint8_t what, fuzz::Input& input) {
  FuzzedStore store(input);
  RendezvousOptions options = options_of(what % kHosts, store);
  const StoreClient client = store_client_for(options, {});
  switch (what / kHosts % 5) {
    case 0:
      return agree(options);
    case 1: {
      HostDiscovery discovery(options);
      const HostMap host_map(discovery.result());
      return;
    }
    case 2:
      static_cast<void>(read_join_record(client, 1).identity.has_ended());
      return;
    case 3:
      options.secret = agree_on_secret(options, "");
      static_cast<void>(options.rank_zero.identity.has_ended());
      return;
    default:
      return throw_if_failure_published(client);
  }
}

}  // namespace
}  // namespace tccl

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  tccl::fuzz::Input input(data, size);
  const auto what = input.take<std::uint8_t>();
  try {
    tccl::read_values(what, input);
  } catch (const tccl::Error&) {
  }
  return 0;
}
