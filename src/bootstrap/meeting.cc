#include "bootstrap/meeting.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <optional>
#include <thread>

#include "base/format.h"
#include "base/log.h"
#include "base/system_error.h"
#include "base/wait.h"
#include "bootstrap/packet_socket.h"
#include "tccl/error.h"

namespace tccl {
namespace {

using std::chrono::milliseconds;

struct Challenge {
  Digest number;
};
struct Answer {
  Digest number;
  Digest proof;
};
struct Counterproof {
  Digest proof;
};
/// How a meeting ended, for everyone alike.
struct Verdict {
  Errc code = Errc::internal;
  bool good = true;
  std::int32_t rank = -1;
  char text[256] = {};
};

Digest member_proof(const std::string& secret, const Digest& host, const Digest& member) {
  return hmac_sha256(secret, formatted("member{}{}", as_text(host), as_text(member)));
}
Digest host_proof(const std::string& secret, const Digest& host, const Digest& member) {
  return hmac_sha256(secret, formatted("host{}{}", as_text(member), as_text(host)));
}

std::string socket_name(const std::string& secret) {
  const Digest digest = hmac_sha256(secret, "meeting point");
  return "tccl-" + to_hex(std::span(digest).first(16));
}

constexpr const char* kSecretKey = "secret";
std::string rank_key(int rank) { return formatted("rank/{}", rank); }

/// Not every store can remove keys; then it serves one group only.
void remove_quietly(Store& store, const std::string& key) noexcept {
  try {
    store.remove(key);
  } catch (const std::exception&) {
  }
}

/// Differs between hosts and between network namespaces of one host.
std::string place() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  struct stat info {};
  const bool known = ::stat("/proc/self/ns/net", &info) == 0;
  return formatted("{}/{}", boot, known ? info.st_ino : 0);
}

Verdict bad_verdict(const Error& error) {
  Verdict verdict{.code = error.code(), .good = false};
  verdict.rank = error.ranks().empty() ? -1 : error.ranks().front();
  std::strncpy(verdict.text, error.what(), sizeof verdict.text - 1);
  return verdict;
}

void throw_if_bad(const Verdict& verdict) {
  if (verdict.good) return;
  throw Error(verdict.code, verdict.text,
              verdict.rank < 0 ? std::vector<int>{} : std::vector<int>{verdict.rank});
}

void poll_interrupt(const Invitation& invitation) {
  if (invitation.poll_interrupt) invitation.poll_interrupt();
}

/// Throws Error{timeout} if nothing arrives before the deadline.
void await_packet(int socket, const Invitation& invitation, Deadline deadline) {
  while (!wait_readable(socket, std::min(deadline, Clock::now() + kInterruptPeriod))) {
    poll_interrupt(invitation);
    if (Clock::now() >= deadline) throw Error(Errc::timeout, "no answer");
  }
}

/// A connection to the meeting point that has not finished its handshake, or has.
struct Guest {
  Fd socket;
  Digest challenge;
  Deadline patience;  // to prove itself and to introduce itself
  bool proved = false;
  std::optional<Attendee> attendee;
};

/// The side that won the race to bind the name.
class Host {
 public:
  Host(const Invitation& invitation, Fd listener, const Introduction& self)
      : invitation_(invitation), listener_(std::move(listener)), self_(self) {}

  void run(int memory_fd, int process_fd) {
    try {
      gather_guests();
      const std::vector<Attendee> everyone = seat_everyone();
      invitation_.accept(everyone);
      for (const Guest& guest : guests_)
        if (guest.attendee) hand_out(guest, everyone, memory_fd, process_fd);
      announce(Verdict{});
    } catch (const Error& error) {
      announce(bad_verdict(error));
      throw;
    }
  }

 private:
  void gather_guests() {
    auto next_look = Clock::now() + std::chrono::seconds(1);
    while (introduced() + 1 < self_.size) {
      if (Clock::now() >= invitation_.deadline) throw missing_ranks();
      poll_interrupt(invitation_);
      poll_once(std::min({next_look, invitation_.deadline, Clock::now() + kInterruptPeriod}));
      drop_silent_strangers();
      if (Clock::now() < next_look) continue;
      look_for_other_hosts();
      next_look = Clock::now() + std::chrono::seconds(1);
    }
  }

  [[nodiscard]] int introduced() const {
    return static_cast<int>(
        std::ranges::count_if(guests_, [](const Guest& g) { return g.attendee.has_value(); }));
  }

  void poll_once(Deadline until) {
    std::vector<pollfd> entries{{.fd = listener_.get(), .events = POLLIN, .revents = 0}};
    for (const Guest& guest : guests_)
      entries.push_back({.fd = guest.socket.get(), .events = POLLIN, .revents = 0});
    if (::poll(entries.data(), entries.size(), poll_timeout(until)) < 0) return;
    for (std::size_t i = 1; i < entries.size(); ++i)
      if (entries[i].revents != 0) advance(guests_[i - 1]);
    std::erase_if(guests_, [](const Guest& guest) { return !guest.socket; });
    if (entries[0].revents != 0) welcome();
  }

  void welcome() {
    Fd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!socket) {
      std::this_thread::sleep_for(milliseconds(10));  // out of descriptors: strangers will time out
      return;
    }
    Guest guest{.socket = std::move(socket),
                .challenge = random_digest(),
                .patience = deadline_after(kHandshakeTime),
                .attendee = {}};
    try {
      send_packet(guest.socket.get(), Challenge{guest.challenge}, guest.patience);
      guests_.push_back(std::move(guest));
    } catch (const Error&) {
      // It has gone again; whoever it was, it can come back.
    }
  }

  /// Abstract sockets are open to every user of the machine: one that says nothing, or opens very
  /// many connections, must not keep the ranks out.
  void drop_silent_strangers() {
    const auto now = Clock::now();
    std::erase_if(guests_, [&](const Guest& g) { return !g.attendee && now >= g.patience; });
    for (auto it = guests_.begin();
         guests_.size() > kMostGuests + self_.size && it != guests_.end();)
      it = it->proved ? it + 1 : guests_.erase(it);  // the oldest first
  }

  /// Takes the one packet that is there. Whoever breaks the protocol before it has introduced
  /// itself is a stranger and is dropped; the meeting goes on.
  void advance(Guest& guest) {
    if (guest.attendee)
      throw Error(Errc::peer_lost,
                  formatted("{} went away while group {} was being formed",
                            describe(guest.attendee->introduction), invitation_.group),
                  {guest.attendee->introduction.rank});
    try {
      guest.proved ? take_introduction(guest) : check_proof(guest);
    } catch (const Error& error) {
      if (guest.attendee) throw;  // no stranger
      if (!std::exchange(warned_, true))
        log_warning(formatted("a stranger at the meeting point was dropped: {}", error.what()),
                    self_.rank);
      guest.socket.reset();
    }
  }

  void check_proof(Guest& guest) {
    const auto answer = receive_packet<Answer>(guest.socket.get(), Clock::now());
    if (!same_digest(answer.proof,
                     member_proof(invitation_.secret, guest.challenge, answer.number)))
      throw Error(Errc::system, "it does not know the group's secret");
    const Digest own_proof = host_proof(invitation_.secret, guest.challenge, answer.number);
    send_packet(guest.socket.get(), Counterproof{own_proof}, guest.patience);
    guest.proved = true;
    guest.patience = deadline_after(kHandshakeTime);
  }

  void take_introduction(Guest& guest) {
    std::vector<Fd> fds;
    Attendee attendee;
    attendee.introduction = receive_packet<Introduction>(guest.socket.get(), Clock::now(), &fds);
    if (fds.empty()) throw Error(Errc::system, "an introduction without memory");
    attendee.memory = std::move(fds[0]);
    if (fds.size() > 1) attendee.process = std::move(fds[1]);
    guest.attendee = std::move(attendee);
    check_agreement(guest.attendee->introduction);
  }

  std::vector<Attendee> seat_everyone() {
    std::vector<Attendee> seats(static_cast<std::size_t>(self_.size));
    std::vector<bool> taken(seats.size());
    const auto seat = [&](const Introduction& introduction) -> Attendee& {
      const auto rank = static_cast<std::size_t>(introduction.rank);
      if (rank >= seats.size())
        throw Error(Errc::invalid_argument,
                    formatted("{} is not one of the {} ranks of group {}", describe(introduction),
                              seats.size(), invitation_.group),
                    {introduction.rank});
      if (taken[rank])
        throw Error(Errc::invalid_argument,
                    formatted("two processes of group {} call themselves rank {}; one is {}",
                              invitation_.group, introduction.rank, describe(introduction)),
                    {introduction.rank});
      taken[rank] = true;
      seats[rank].introduction = introduction;
      return seats[rank];
    };
    seat(self_);
    for (Guest& guest : guests_) {
      if (!guest.attendee) continue;
      Attendee& own = seat(guest.attendee->introduction);
      own.memory = std::move(guest.attendee->memory);
      own.process = std::move(guest.attendee->process);
    }
    return seats;
  }

  void check_agreement(const Introduction& other) const {
    if (other.format != self_.format)
      throw Error(Errc::mismatch,
                  formatted("rank {} and {} run different builds of this library", self_.rank,
                            describe(other)),
                  {self_.rank, other.rank});
    check_equal("the size of the group", self_.size, other, other.size);
    check_equal("the first sequence number", self_.first_sequence, other, other.first_sequence);
    check_equal("CCL_CHUNK_BYTES", self_.chunk_bytes, other, other.chunk_bytes);
    check_equal("CCL_EAGER_BYTES", self_.eager_bytes, other, other.eager_bytes);
  }

  template <class T>
  void check_equal(const char* what, T mine, const Introduction& other, T theirs) const {
    if (mine == theirs) return;
    throw Error(Errc::mismatch,
                formatted("group {}: {} is {} on rank {} and {} on {}; it must be the same on all "
                          "ranks",
                          invitation_.group, what, mine, self_.rank, theirs, describe(other)),
                {self_.rank, other.rank});
  }

  /// One guest at a time: the kernel limits how many descriptors may be under way.
  void hand_out(const Guest& guest, const std::vector<Attendee>& everyone, int memory_fd,
                int process_fd) const {
    for (const Attendee& other : everyone) {
      const bool mine = other.introduction.rank == self_.rank;
      std::vector<int> fds{mine ? memory_fd : other.memory.get()};
      const int process = mine ? process_fd : other.process.get();
      if (process >= 0) fds.push_back(process);
      send_packet(guest.socket.get(), other.introduction, invitation_.deadline, fds);
    }
    const auto verdict = receive_packet<Verdict>(guest.socket.get(), invitation_.deadline);
    throw_if_bad(verdict);
  }

  void announce(const Verdict& verdict) const noexcept {
    for (const Guest& guest : guests_) {
      if (!guest.attendee) continue;
      try {
        send_packet(guest.socket.get(), verdict, deadline_after(kHandshakeTime));
      } catch (const std::exception&) {
        // It is gone: then it needs no verdict.
      }
    }
  }

  [[nodiscard]] std::vector<int> absent() const {
    std::vector<int> ranks;
    for (int rank = 0; rank < self_.size; ++rank) {
      const bool here = rank == self_.rank || std::ranges::any_of(guests_, [&](const Guest& guest) {
                          return guest.attendee && guest.attendee->introduction.rank == rank;
                        });
      if (!here) ranks.push_back(rank);
    }
    return ranks;
  }

  [[nodiscard]] std::optional<std::string> seen_in_store(int rank) const {
    try {
      return invitation_.store->get(rank_key(rank), milliseconds(10));
    } catch (const Error&) {
      return std::nullopt;
    }
  }

  /// A rank that has written to the store from another place will never come here.
  void look_for_other_hosts() const {
    for (const int rank : absent()) {
      const auto seen = seen_in_store(rank);
      if (!seen || seen->ends_with(" " + place())) continue;
      const std::string where = seen->substr(0, seen->rfind(' '));
      throw Error(
          Errc::invalid_argument,
          formatted("rank {} of group {} runs elsewhere ({}) than rank {} (host {}): groups "
                    "over several hosts are not supported by this version",
                    rank, invitation_.group, where, self_.rank, self_.host),
          {rank});
    }
  }

  [[nodiscard]] Error missing_ranks() const {
    const std::vector<int> ranks = absent();
    return Error(Errc::timeout,
                 formatted("group {}: rank{} {} did not arrive in time; {} of {} are here",
                           invitation_.group, ranks.size() == 1 ? "" : "s", joined(ranks),
                           introduced() + 1, self_.size),
                 ranks);
  }

  static constexpr milliseconds kHandshakeTime{2000};
  static constexpr std::size_t kMostGuests = 64;

  const Invitation& invitation_;
  Fd listener_;
  Introduction self_;
  std::vector<Guest> guests_;
  bool warned_ = false;
};

/// False if the host went away meanwhile: another one may take its place.
bool prove_each_other(int socket, const Invitation& invitation) {
  try {
    await_packet(socket, invitation, invitation.deadline);
    const auto challenge = receive_packet<Challenge>(socket, invitation.deadline);
    const Digest own = random_digest();
    const Digest proof = member_proof(invitation.secret, challenge.number, own);
    send_packet(socket, Answer{own, proof}, invitation.deadline);
    await_packet(socket, invitation, invitation.deadline);
    const auto counter = receive_packet<Counterproof>(socket, invitation.deadline);
    if (same_digest(counter.proof, host_proof(invitation.secret, challenge.number, own)))
      return true;
  } catch (const Error& error) {
    if (error.code() != Errc::peer_lost) throw;
    return false;
  }
  throw Error(Errc::system, "the meeting point does not know the group's secret");
}

/// The table arrives as one Introduction per rank, unless the meeting failed before.
Attendee receive_attendee(int socket, const Invitation& invitation, Deadline deadline) {
  static_assert(sizeof(Verdict) != sizeof(Introduction), "the size tells them apart");
  await_packet(socket, invitation, deadline);
  char probe[1];
  if (::recv(socket, probe, sizeof probe, MSG_PEEK | MSG_TRUNC) == sizeof(Verdict))
    throw_if_bad(receive_packet<Verdict>(socket, deadline));
  Attendee attendee;
  std::vector<Fd> fds;
  attendee.introduction = receive_packet<Introduction>(socket, deadline, &fds);
  if (!fds.empty()) attendee.memory = std::move(fds[0]);
  if (fds.size() > 1) attendee.process = std::move(fds[1]);
  return attendee;
}

void accept_or_complain(int socket, const Invitation& invitation,
                        const std::vector<Attendee>& everyone, Deadline deadline) {
  try {
    invitation.accept(everyone);
  } catch (const Error& error) {
    send_packet(socket, bad_verdict(error), deadline);
    throw;
  }
  send_packet(socket, Verdict{}, deadline);
}

void attend(const Invitation& invitation, Fd socket, const Introduction& self, int memory_fd,
            int process_fd) {
  // The host waits until the deadline for the others; allow it the time to say who is missing.
  const Deadline patience = deadline_after(time_left(invitation.deadline) + milliseconds(2000));
  try {
    std::vector<int> fds{memory_fd};
    if (process_fd >= 0) fds.push_back(process_fd);
    send_packet(socket.get(), self, invitation.deadline, fds);
    std::vector<Attendee> everyone;
    for (int i = 0; i < self.size; ++i)
      everyone.push_back(receive_attendee(socket.get(), invitation, patience));
    accept_or_complain(socket.get(), invitation, everyone, patience);
    await_packet(socket.get(), invitation, patience);
    throw_if_bad(receive_packet<Verdict>(socket.get(), patience));
  } catch (const Error& error) {
    // A verdict names ranks; only the socket itself fails without one.
    const bool socket_failed =
        error.ranks().empty() && (error.code() == Errc::peer_lost || error.code() == Errc::timeout);
    if (!socket_failed) throw;
    throw Error(error.code(), formatted("group {}: the rank that hosted the meeting went away: {}",
                                        invitation.group, error.what()));
  }
}

}  // namespace

std::string host_name() {
  char name[64] = {};
  ::gethostname(name, sizeof name - 1);
  return name;
}

std::string agree_on_secret(Store& store, int rank, Deadline deadline) {
  store.set(rank_key(rank), formatted("host {}, pid {} {}", host_name(), ::getpid(), place()));
  if (rank == 0) {
    const Digest fresh = random_digest();
    store.set(kSecretKey, to_hex(fresh));
  }
  return store.get(kSecretKey, time_left(deadline));
}

void forget_keys(Store& store, int rank) noexcept {
  remove_quietly(store, rank_key(rank));
  if (rank == 0) remove_quietly(store, kSecretKey);
}

void forget_failed_meeting(Store& store, int rank) noexcept {
  // The ranks' own keys stay: they tell others why the meeting failed.
  if (rank == 0) remove_quietly(store, kSecretKey);
}

std::string describe(const Introduction& introduction) {
  return formatted("rank {} (host {}, pid {})", introduction.rank, introduction.host,
                   introduction.pid);
}

void meet(const Invitation& invitation, const Introduction& self, int memory_fd, int process_fd) {
  if (self.size == 1) {
    std::vector<Attendee> alone(1);
    alone.front().introduction = self;
    return invitation.accept(alone);
  }
  const std::string name = socket_name(invitation.secret);
  while (Clock::now() < invitation.deadline) {
    poll_interrupt(invitation);
    if (Fd listener = listen_on(name))
      return Host(invitation, std::move(listener), self).run(memory_fd, process_fd);
    if (Fd socket = connect_to(name); socket && prove_each_other(socket.get(), invitation))
      return attend(invitation, std::move(socket), self, memory_fd, process_fd);
    std::this_thread::sleep_for(milliseconds(1));  // between the host's bind and its listen
  }
  throw Error(
      Errc::timeout,
      formatted("group {}: nobody answered at the meeting point of this host", invitation.group));
}

}  // namespace tccl
