#include "bootstrap/places.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <sstream>

#include "base/crypto.h"
#include "base/system_error.h"

namespace tccl {
namespace {

constexpr const char* kPlaces = "places";
constexpr const char* kFailed = "failed";

Places read_places(const Desk& desk, int size) {
  std::istringstream text(desk.read(desk.key(kPlaces)));
  Places places;
  for (int host = 0; text >> host;) places.push_back(host);
  if (places.size() != static_cast<std::size_t>(size))
    throw Error(Errc::mismatch, "the ranks disagree about the size of the group");
  return places;
}

Fd open_event() {
  Fd event(::eventfd(0, EFD_CLOEXEC));
  if (!event) throw_system_error("eventfd");
  return event;
}

}  // namespace

Desk desk_of(const Invitation& invitation, std::function<void()> look_around) {
  const Digest digest = hmac_sha256(invitation.secret, "keys");
  return {*invitation.store, to_hex(std::span(digest).first(8)), invitation.deadline,
          std::move(look_around)};
}

void report_place(const Desk& desk, const Invitation& invitation, int host_rank) {
  const std::vector<std::string> all =
      gather_texts(desk, "place", invitation.rank, invitation.size, std::to_string(host_rank));
  if (invitation.rank != 0) return;
  std::string text;
  for (const std::string& place : all) text += place + " ";
  desk.store.set(desk.key(kPlaces), text);
}

void forget_places(const Desk& desk) noexcept { remove_quietly(desk.store, desk.key(kPlaces)); }

void throw_if_failed_before(const Desk& desk) {
  std::string text;
  try {
    text = desk.store.get(desk.key(kFailed), std::chrono::milliseconds(0));
  } catch (const Error&) {
    return;  // no such key
  }
  std::string_view bytes(text);
  throw_if_bad(cut_packet<Verdict>(bytes));
}

void leave_failure(const Desk& desk, const Verdict& verdict) {
  desk.store.set(desk.key(kFailed), as_bytes(verdict));
}

RollCall::RollCall(const Invitation& invitation)
    : done_(open_event()), thread_([this, &invitation] { run(invitation); }) {}

RollCall::~RollCall() {
  stopping_.store(true, std::memory_order_relaxed);
  if (thread_.joinable()) thread_.join();
}

Places RollCall::result() {
  thread_.join();
  if (problem_) std::rethrow_exception(problem_);
  return places_;
}

void RollCall::run(const Invitation& invitation) {
  try {
    Desk desk = desk_of(invitation, {});
    desk.look_around = [this, &desk] {
      if (stopping_.load(std::memory_order_relaxed)) throw Error(Errc::aborted, "stopped");
      throw_if_failed_before(desk);
    };
    report_place(desk, invitation, invitation.rank);
    places_ = read_places(desk, invitation.size);
  } catch (...) {
    problem_ = std::current_exception();
  }
  over_.store(true, std::memory_order_release);  // pairs with is_over()
  const std::uint64_t one = 1;
  static_cast<void>(!::write(done_.get(), &one, sizeof one));
}

}  // namespace tccl
