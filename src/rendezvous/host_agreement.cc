#include "rendezvous/host_agreement.h"

#include <algorithm>

#include "base/format.h"
#include "rendezvous/host_discovery.h"
#include "rendezvous/init_errors.h"
#include "rendezvous/interfaces.h"
#include "tccl/error.h"

namespace tccl {
namespace {

template <class Action>
Status status_of(const Action& action) {
  try {
    action();
    return {};
  } catch (const Error& error) {
    return failure_status(error);
  }
}

}  // namespace

std::string_view name_of(Round round) {
  switch (round) {
    case Round::addresses:
      return "addresses";
    case Round::peer_infos:
      return "peer_infos";
    case Round::status:
      return "status";
  }
  return "unknown";
}

HostAgreement::HostAgreement(const RendezvousOptions& options, const HostMap& host_map,
                             std::function<void()> while_waiting)
    : options_(options),
      host_map_(host_map),
      host_(host_map.host_of(options.rank)),
      while_waiting_(std::move(while_waiting)) {}

StoreClient HostAgreement::client() const {
  return store_client_for(options_, [this](int host) {
    while_waiting_();
    throw_if_failure_published(store_client_for(options_, {}));
    for (int rank = 0; rank < options_.size; ++rank)
      if (host_map_.host_of(rank) == host) throw_if_known_to_have_ended(options_, rank);
  });
}

/// Of a round that `missing_host` has not completed by the deadline. A coordinator that knows more
/// has published it meanwhile: one whose own rank is stalled, or one further down in the tree.
Error HostAgreement::round_timeout(Round round, int missing_host) const {
  const int levels = missing_host > host_ ? levels_below(missing_host, host_map_.hosts())
                                          : levels_below(0, host_map_.hosts()) + 1;
  if (const auto known = known_cause_of_timeout(options_, levels)) return *known;
  const std::span<const int> missing = host_map_.ranks_of(missing_host);
  return init_timeout(options_,
                      formatted("{} did not complete the exchange of {} between {} hosts; host {} "
                                "waited",
                                joined_processes_text(options_, missing), name_of(round),
                                host_map_.hosts(), host_name()),
                      {missing.begin(), missing.end()});
}

/// Calls `exchange`, which waits for other hosts in the store; its timeout names the round.
template <class Exchange>
auto HostAgreement::in_round(Round round, const Exchange& exchange) const {
  try {
    return exchange();
  } catch (const StoreTimeout& timeout) {
    throw round_timeout(round, timeout.participant);
  }
}

/// Runs this host's step, which returns its text. Returns the texts of all hosts, in order; throws
/// the error of the first host whose step failed.
std::vector<std::string> HostAgreement::exchange(Round round, FunctionRef<std::string()> step) {
  std::string own;
  const Status status = status_of([&] { own = step(); });
  std::vector<std::string> texts = in_round(round, [&] {
    return store_allgather(client(), name_of(round), host_, host_map_.hosts(),
                           std::string(as_bytes(status)) + own);
  });
  for (std::string& text : texts) {
    std::string_view rest(text);
    throw_if_failed(cut_packet<Status>(rest));
    text = rest;
  }
  if (texts.size() != static_cast<std::size_t>(host_map_.hosts()))
    throw Error(Errc::system, formatted("the store contains {} of {} hosts in round {}",
                                        texts.size(), host_map_.hosts(), name_of(round)));
  return texts;
}

std::string HostAgreement::agree_on_address() {
  const std::vector<std::string> texts =
      exchange(Round::addresses, [&] { return encoded(options_.offer_addresses()); });
  std::vector<AddressOffer> offers;
  for (const std::string& text : texts) offers.push_back(decode_offer(text));
  return choose_address(offers, static_cast<std::size_t>(host_),
                        [](const std::string& to) { return source_address_to(to); });
}

Roster HostAgreement::exchange_peer_infos(FunctionRef<std::vector<LocalPeer>()> gather) {
  Roster roster;
  const std::vector<std::string> texts = exchange(Round::peer_infos, [&] {
    roster.local = gather();
    std::string own;
    for (const LocalPeer& peer : roster.local) own += as_bytes(peer.peer_info);
    return own;
  });
  const auto self = std::ranges::find(roster.local, options_.rank,
                                      [](const LocalPeer& peer) { return peer.peer_info.rank; });
  roster.all = decode_peer_infos(texts, self->peer_info);
  return roster;
}

std::vector<PeerInfo> HostAgreement::decode_peer_infos(const std::vector<std::string>& texts,
                                                       const PeerInfo& own) const {
  std::vector<PeerInfo> all(static_cast<std::size_t>(options_.size));
  int count = 0;
  for (const std::string& text : texts) {
    for (std::string_view rest(text); !rest.empty(); ++count) {
      const auto peer_info = cut_packet<PeerInfo>(rest);
      check_valid(peer_info, options_.size, host_map_.hosts());
      check_compatible(options_.group, own, peer_info);
      all[static_cast<std::size_t>(peer_info.rank)] = peer_info;
    }
  }
  bool complete = count == options_.size;
  for (int rank = 0; rank < options_.size; ++rank)
    complete = complete && all[static_cast<std::size_t>(rank)].rank == rank;
  if (!complete)
    throw Error(Errc::system,
                formatted("the store contains {} PeerInfos, not one for each of {} ranks", count,
                          options_.size));
  return all;
}

void HostAgreement::commit(FunctionRef<void()> apply) {
  const Status own = status_of(apply);
  throw_if_failed(in_round(Round::status, [&] { return agree_on_status(own); }));
}

/// The failure of the first host that has one, the same on all hosts.
Status HostAgreement::agree_on_status(const Status& own) const {
  const StoreClient store = client();
  const std::string_view round = name_of(Round::status);
  const std::vector<std::string> texts =
      store_gather(store, round, host_, host_map_.hosts(), std::string(as_bytes(own)));
  Status common = own;
  for (const std::string& text : texts) {
    std::string_view rest(text);
    const auto theirs = cut_packet<Status>(rest);
    if (common.ok != 0 && theirs.ok == 0) common = theirs;
  }
  // Every host has contributed its status, so all have read these keys.
  if (host_ == 0)
    for (const Round earlier : {Round::addresses, Round::peer_infos})
      remove_key(*options_.store, store.key(name_of(earlier)));
  const std::string result =
      store_broadcast(store, round, host_, host_map_.hosts(), std::string(as_bytes(common)));
  std::string_view rest(result);
  return cut_packet<Status>(rest);
}

}  // namespace tccl
