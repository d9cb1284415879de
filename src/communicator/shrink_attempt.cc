#include "communicator/shrink_attempt.h"

#include <algorithm>
#include <utility>

#include "base/crypto.h"
#include "base/format.h"

namespace tccl {
namespace {

std::uint64_t new_group_uid(std::uint64_t parent_uid, std::uint32_t attempt) {
  return group_uid_from(
      hmac_sha256(formatted("{:016x}", parent_uid), formatted("shrink {}", attempt)));
}

}  // namespace

ShrinkAttempt::ShrinkAttempt(ContextImpl& context, const GroupParts& parent,
                             std::vector<int> excluded, std::uint32_t attempt,
                             const Communicator::Options& options,
                             std::vector<ShrinkMessage>& early)
    : context_(context),
      parent_(parent),
      membership_(*parent.membership),
      excluded_(std::move(excluded)),
      attempt_(attempt),
      options_(options),
      early_(early),
      rank_(membership_.rank()),
      agreement_(*parent.local_group, attempt),
      deadline_(deadline_after(options.timeout)) {
  std::vector<bool> has_coordinator(static_cast<std::size_t>(membership_.host_map().hosts()));
  for (int rank = 0; rank < membership_.size(); ++rank) {
    if (contains(excluded_, rank)) continue;
    members_.push_back(rank);
    if (membership_.is_local(rank)) local_members_.push_back(rank);
    const auto host = static_cast<std::size_t>(membership_.host_map().host_of(rank));
    if (!has_coordinator[host] && !membership_.is_local(rank)) other_coordinators_.push_back(rank);
    has_coordinator[host] = true;
  }
  coordinator_ = local_members_.front();
  first_ = members_.front();
}

int ShrinkAttempt::local_rank(int rank) const { return membership_.host_map().local_rank(rank); }

Error ShrinkAttempt::error(Errc code, const std::string& text, std::vector<int> ranks) const {
  return {code, formatted("shrink of group {}: {}", membership_.name(), text), std::move(ranks)};
}

// ---- the protocol

void ShrinkAttempt::begin() {
  derived_.emplace(
      context_, parent_, members_,
      shm::GroupIdentity{options_.name, new_group_uid(membership_.group_uid(), attempt_),
                         options_.first_sequence});
  ShrinkMessage own = message_of(Kind::offer);
  own.members.push_back({rank_, derived_->own_address()});
  agreement_.offer(encode(own));
  if (is_coordinator() && !is_first()) send(first_, message_of(Kind::watch));
  if (is_first())
    for (const int rank : other_coordinators_) send(rank, message_of(Kind::watch));
}

bool ShrinkAttempt::poll() {
  // First: a rank may offer, or pass on the outcome, and then leave.
  const std::vector<int> lost = find_lost();
  if (outcome()) return true;
  if (agreement_.is_superseded()) throw superseded();
  read_local_offers();
  take_messages();
  if (const std::optional<Error> problem = find_problem(lost))
    fail(*problem);
  else if (all_local_offered() && all_agree())
    advance();
  return outcome().has_value();
}

/// All ranks of this host have offered the same.
void ShrinkAttempt::advance() {
  if (has_several_hosts() && !is_first()) {
    if (is_coordinator() && !std::exchange(has_sent_offer_, true)) send(first_, offer_of_host());
    return;
  }
  if (!all_hosts_offered()) return;
  ShrinkMessage formed = offer_of_host();
  formed.kind = Kind::formed;
  for (const auto& [sender, offer] : host_offers_)
    formed.members.insert(formed.members.end(), offer.members.begin(), offer.members.end());
  decide(formed);
}

void ShrinkAttempt::fail(const Error& reason) {
  ShrinkMessage failed = message_of(Kind::failed);
  failed.code = reason.code();
  failed.text = reason.what();
  failed.ranks = reason.ranks();
  decide(failed);
}

void ShrinkAttempt::decide(const ShrinkMessage& outcome) {
  if (agreement_.decide(encode(outcome))) announce(outcome);
}

/// To the other hosts; not what came from there.
void ShrinkAttempt::announce(const ShrinkMessage& outcome) {
  if (outcome.sender != rank_) return;
  for (const int rank : other_coordinators_) send(rank, outcome);
  for (const auto& [sender, offer] : host_offers_)  // it may exclude other ranks
    if (!contains(other_coordinators_, sender)) send(sender, outcome);
}

GroupParts ShrinkAttempt::finish() {
  const ShrinkMessage result = outcome().value();
  if (result.kind == Kind::failed) throw Error(result.code, result.text, result.ranks);
  if (result.excluded != excluded_)
    throw error(Errc::mismatch,
                formatted("rank {} excludes {}, but the others have formed the group without {}",
                          rank_, text_of_excluded(excluded_), text_of_excluded(result.excluded)),
                {rank_});
  std::vector<GroupAddress> addresses(members_.size());
  for (const ShrinkMessage::Member& member : result.members) {
    const auto found = std::ranges::find(members_, member.rank);
    if (found != members_.end())
      addresses[static_cast<std::size_t>(found - members_.begin())] = member.address;
  }
  return derived_->set_members(addresses);
}

std::optional<ShrinkMessage> ShrinkAttempt::outcome() const {
  if (const auto text = agreement_.decision()) return decode_shrink_message(*text);
  return std::nullopt;
}

// ---- offers and messages

void ShrinkAttempt::read_local_offers() {
  for (int rank = 0; rank < membership_.size(); ++rank) {
    if (!membership_.is_local(rank) || local_offers_.contains(rank)) continue;
    if (const auto text = agreement_.offer_of(local_rank(rank)))
      local_offers_[rank] = decode_shrink_message(*text);
  }
}

void ShrinkAttempt::take_messages() {
  std::vector<ShrinkMessage> messages = std::exchange(early_, {});
  for (const std::string& bytes : membership_.take_shrink_messages())
    messages.push_back(decode_shrink_message(bytes));
  for (ShrinkMessage& message : messages) {
    if (message.attempt <= attempt_)
      handle(message);
    else
      early_.push_back(std::move(message));
  }
  has_later_attempt_begun_ = !early_.empty();
}

void ShrinkAttempt::handle(const ShrinkMessage& message) {
  const bool is_late = message.attempt < attempt_;
  if (message.kind == Kind::offer && is_late) {
    ShrinkMessage failed = message_of(Kind::failed);
    failed.attempt = message.attempt;
    failed.code = Errc::mismatch;
    failed.text = error(Errc::mismatch,
                        formatted("attempt {} has failed on other ranks, which are "
                                  "at attempt {}",
                                  message.attempt, attempt_),
                        {})
                      .what();
    send(message.sender, failed);
  }
  if (is_late) return;
  if (message.kind == Kind::offer) host_offers_[message.sender] = message;
  if (message.kind == Kind::formed || message.kind == Kind::failed) decide(message);
}

void ShrinkAttempt::send(int rank, const ShrinkMessage& message) {
  const bool is_member = rank >= 0 && rank < membership_.size();
  if (is_member && !membership_.is_local(rank))
    membership_.send_shrink_message(rank, encode(message));
}

ShrinkMessage ShrinkAttempt::message_of(Kind kind) const {
  ShrinkMessage message;
  message.kind = kind;
  message.attempt = attempt_;
  message.sender = rank_;
  message.excluded = excluded_;
  return message;
}

ShrinkMessage ShrinkAttempt::offer_of_host() const {
  ShrinkMessage offer = message_of(Kind::offer);
  for (const int rank : local_members_)
    offer.members.push_back(local_offers_.at(rank).members.at(0));
  return offer;
}

bool ShrinkAttempt::all_local_offered() const {
  return std::ranges::all_of(local_members_,
                             [&](int rank) { return local_offers_.contains(rank); });
}

bool ShrinkAttempt::all_hosts_offered() const {
  return std::ranges::all_of(other_coordinators_,
                             [&](int rank) { return host_offers_.contains(rank); });
}

bool ShrinkAttempt::all_agree() const {
  const auto excludes_the_same = [&](const auto& entry) {
    return entry.second.excluded == excluded_;
  };
  return std::ranges::all_of(local_offers_, excludes_the_same) &&
         std::ranges::all_of(host_offers_, excludes_the_same);
}

}  // namespace tccl
