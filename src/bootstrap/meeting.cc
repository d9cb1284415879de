#include "bootstrap/meeting.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <optional>
#include <sstream>
#include <thread>

#include "base/format.h"
#include "base/layout.h"
#include "base/log.h"
#include "base/system_error.h"
#include "base/wait.h"
#include "bootstrap/interfaces.h"
#include "bootstrap/meeting_packets.h"
#include "bootstrap/packet_socket.h"
#include "bootstrap/places.h"
#include "tccl/error.h"
#include "tccl/types.h"

namespace tccl {
namespace {

using std::chrono::milliseconds;

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

std::string contents_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file || text.str().empty())
    throw Error(Errc::invalid_argument,
                formatted("CCL_SECRET_FILE={}: it cannot be read, or is empty", path));
  return text.str();
}

constexpr std::size_t kSecretDigits = 2 * sizeof(Digest);

std::string whole_secret(const std::string& from_file, const std::string& from_store) {
  return from_file.empty() ? from_store : to_hex(hmac_sha256(from_file, from_store));
}
/// By which ranks see that theirs is the same.
std::string check_of(const std::string& secret) { return to_hex(hmac_sha256(secret, "check")); }

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

/// If what comes next is the end of the meeting, not what was expected.
void throw_if_verdict(int socket, Deadline deadline) {
  static_assert(sizeof(Verdict) != sizeof(Introduction) && sizeof(Verdict) != sizeof(Agenda),
                "the size tells them apart");
  if (length_of_next_packet(socket) == sizeof(Verdict))
    throw_if_bad(receive_packet<Verdict>(socket, deadline));
}

/// A connection to the meeting point that has not finished its handshake, or has.
struct Guest {
  Fd socket;
  Digest challenge;
  Deadline patience;  // to prove itself
  bool proved = false;
  Introduction said{};  // rank and pid, once it is proved
  std::optional<Attendee> attendee;
};

/// The side that won the race to bind the name.
class Host {
 public:
  Host(const Invitation& invitation, Fd listener)
      : invitation_(invitation), listener_(std::move(listener)) {
    self_.rank = invitation.rank;
    self_.size = invitation.size;
    self_.pid = ::getpid();
    std::strncpy(self_.host, host_name().c_str(), sizeof self_.host - 1);
  }

  void run(int memory_fd, int process_fd) {
    try {
      find_places();
      has_other_hosts() ? run_with_others(memory_fd, process_fd) : run_alone(memory_fd, process_fd);
    } catch (const Error& error) {
      give_up(bad_verdict(error));
      throw;
    } catch (...) {
      give_up(bad_verdict(Error(Errc::aborted,
                                formatted("{} was interrupted while group {} was being formed",
                                          describe(self_), invitation_.group),
                                {self_.rank})));
      throw;
    }
  }

 private:
  void run_alone(int memory_fd, int process_fd) {
    Attendance attendance = gather_introductions(/*address=*/"");
    for (const Attendee& attendee : attendance.here)
      attendance.everyone.push_back(attendee.introduction);
    hand_out_and_accept(attendance, memory_fd, process_fd);
    announce(Verdict{});
  }

  /// Whatever goes wrong on one host is told to all of them: nobody is left waiting.
  void run_with_others(int memory_fd, int process_fd) {
    const std::string address = agree_on_address();
    Attendance attendance;
    const Verdict local = verdict_of([&] { attendance = gather_introductions(address); });
    attendance.everyone = exchange_introductions(local, attendance.here);
    const Verdict accepted =
        verdict_of([&] { hand_out_and_accept(attendance, memory_fd, process_fd); });
    const Verdict common = agree_on_verdict(accepted);
    throw_if_bad(common);
    announce(common);
  }

  /// Nobody is left waiting: neither the guests nor, for what this host owes them, other hosts.
  void give_up(const Verdict& verdict) noexcept {
    announce(verdict);
    try {
      if (!layout_) leave_failure(desk(), verdict);
      if (owes_ != nullptr)
        leave_text(desk(), owes_, self_.host_number, std::string(as_bytes(verdict)));
    } catch (const std::exception&) {
      // Then they find out by themselves.
    }
  }

  template <class Action>
  static Verdict verdict_of(const Action& action) {
    try {
      action();
      return {};
    } catch (const Error& error) {
      return bad_verdict(error);
    }
  }

  // --- which ranks are here ---

  void find_places() {
    RollCall roll_call(invitation_);
    while (!roll_call.is_over()) look_after_guests(roll_call.fd());
    try {
      layout_.emplace(roll_call.result());
    } catch (const Error& error) {
      if (error.code() == Errc::timeout) throw missing_ranks();
      throw;
    }
    if (has_other_hosts()) owes_ = kAddresses;
    self_.host_number = layout_->host_of(self_.rank);
  }

  [[nodiscard]] bool has_other_hosts() const { return layout_->hosts() > 1; }
  [[nodiscard]] int ranks_here() const { return layout_->ranks_on(self_.host_number); }

  // --- guests ---

  void look_after_guests(int other_fd) {
    if (Clock::now() >= invitation_.deadline) throw missing_ranks();
    poll_interrupt(invitation_);
    poll_once(other_fd, std::min(invitation_.deadline, Clock::now() + kInterruptPeriod));
    drop_silent_strangers();
  }

  void poll_once(int other_fd, Deadline until) {
    std::vector<pollfd> entries{{.fd = listener_.get(), .events = POLLIN, .revents = 0},
                                {.fd = other_fd, .events = POLLIN, .revents = 0}};
    for (const Guest& guest : guests_)
      entries.push_back({.fd = guest.socket.get(), .events = POLLIN, .revents = 0});
    if (::poll(entries.data(), entries.size(), poll_timeout(until)) < 0) return;
    for (std::size_t i = 2; i < entries.size(); ++i)
      if (entries[i].revents != 0) advance(guests_[i - 2]);
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
    std::erase_if(guests_, [&](const Guest& g) { return !g.proved && now >= g.patience; });
    for (auto it = guests_.begin();
         guests_.size() > kMostGuests + self_.size && it != guests_.end();)
      it = it->proved ? it + 1 : guests_.erase(it);  // the oldest first
  }

  /// Takes the one packet that is there. Whoever breaks the protocol before it has proved itself is
  /// a stranger and is dropped; the meeting goes on.
  void advance(Guest& guest) {
    if (guest.proved) return take_introduction(guest);
    try {
      check_proof(guest);
    } catch (const Error& error) {
      if (guest.proved) throw;  // no stranger
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
    guest.proved = true;
    guest.said.rank = answer.rank;
    guest.said.pid = answer.pid;
    std::memcpy(guest.said.host, self_.host, sizeof guest.said.host);
    check_equal("the size of the group", self_.size, guest.said, answer.size);
    check_rank(guest);
    const Digest own_proof = host_proof(invitation_.secret, guest.challenge, answer.number);
    send_packet(guest.socket.get(), Counterproof{own_proof, self_.rank}, invitation_.deadline);
  }

  void check_rank(const Guest& guest) const {
    const int rank = guest.said.rank;
    if (rank < 0 || rank >= self_.size)
      throw Error(Errc::invalid_argument,
                  formatted("{} is not one of the {} ranks of group {}", describe(guest.said),
                            self_.size, invitation_.group),
                  {rank});
    const bool taken = rank == self_.rank || std::ranges::any_of(guests_, [&](const Guest& other) {
                         return &other != &guest && other.proved && other.said.rank == rank;
                       });
    if (taken)
      throw Error(Errc::invalid_argument,
                  formatted("two processes of group {} call themselves rank {}; one is {}",
                            invitation_.group, rank, describe(guest.said)),
                  {rank});
  }

  // --- introductions ---

  Attendance gather_introductions(const std::string& address) {
    Agenda agenda{};
    std::strncpy(agenda.address, address.c_str(), sizeof agenda.address - 1);
    for (const Guest& guest : guests_)
      if (guest.proved) send_packet(guest.socket.get(), agenda, invitation_.deadline);
    self_ = invitation_.introduce(address);
    self_.host_number = layout_->host_of(self_.rank);
    while (introduced() + 1 < ranks_here()) look_after_guests(-1);
    Attendance attendance;
    attendance.here.push_back({.introduction = self_, .memory = {}, .process = {}});
    for (Guest& guest : guests_)
      if (guest.attendee) attendance.here.push_back(std::move(*guest.attendee));
    std::ranges::sort(attendance.here, {}, [](const Attendee& a) { return a.introduction.rank; });
    for (const Attendee& attendee : attendance.here) {
      const int rank = attendee.introduction.rank;
      if (!layout_->same_host(rank, self_.rank))
        throw Error(Errc::invalid_argument,
                    formatted("two processes of group {} call themselves rank {}, on two hosts",
                              invitation_.group, rank),
                    {rank});
    }
    return attendance;
  }

  [[nodiscard]] int introduced() const {
    return static_cast<int>(
        std::ranges::count_if(guests_, [](const Guest& g) { return g.attendee.has_value(); }));
  }

  void take_introduction(Guest& guest) {
    try {
      if (guest.attendee) throw Error(Errc::peer_lost, "it closed its connection");
      std::vector<Fd> fds;
      Attendee attendee;
      receive_introduction(guest, attendee.introduction, fds);
      attendee.memory = std::move(fds[0]);
      if (fds.size() > 1) attendee.process = std::move(fds[1]);
      attendee.introduction.host_number = self_.host_number;
      guest.attendee = std::move(attendee);
    } catch (const Error& error) {
      if (error.code() != Errc::peer_lost) throw;
      throw Error(Errc::peer_lost,
                  formatted("{} went away while group {} was being formed", describe(guest.said),
                            invitation_.group),
                  {guest.said.rank});
    }
    check_agreement(guest.attendee->introduction);
  }

  /// Or the reason why it cannot introduce itself.
  static void receive_introduction(const Guest& guest, Introduction& introduction,
                                   std::vector<Fd>& fds) {
    throw_if_verdict(guest.socket.get(), Clock::now());
    introduction = receive_packet<Introduction>(guest.socket.get(), Clock::now(), &fds);
    if (fds.empty()) throw Error(Errc::system, "an introduction without memory");
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
    check_equal("CCL_STAGING_BYTES", self_.staging_bytes, other, other.staging_bytes);
    check_equal("CCL_WIRE_DTYPE", name_of(static_cast<WireFormat>(self_.wire_format)), other,
                name_of(static_cast<WireFormat>(other.wire_format)));
    check_equal("the provider of libfabric", std::string(self_.provider), other,
                std::string(other.provider));
    check_equal("FI_OFI_RXM_EAGER_LIMIT", std::string(self_.eager_limit), other,
                std::string(other.eager_limit));
    // Of groups made before, with other hosts.
    const auto family = [](const Introduction& i) {
      return is_ipv6(i.control_address) ? "IPv6" : "IPv4";
    };
    check_equal("the kind of address in use", std::string(family(self_)), other,
                std::string(family(other)));
  }

  template <class T>
  void check_equal(const char* what, const T& mine, const Introduction& other,
                   const T& theirs) const {
    if (mine == theirs) return;
    throw Error(Errc::mismatch,
                formatted("group {}: {} is {} on rank {} and {} on {}; it must be the same on all "
                          "ranks",
                          invitation_.group, what, mine, self_.rank, theirs, describe(other)),
                {self_.rank, other.rank});
  }

  // --- other hosts ---

  [[nodiscard]] Desk desk() const {
    return desk_of(invitation_, [this] {
      require_guests();
      throw_if_failed_before(desk_of(invitation_, {}));  // as guests of another host may know
    });
  }

  /// What all hosts have to say about `subject`, one after the other, through the store.
  std::vector<std::string> exchange(const char* subject, const std::string& own) {
    owes_ = subject;
    try {
      auto all = exchange_texts(desk(), subject, self_.host_number, layout_->hosts(), own);
      owes_ = nullptr;
      return all;
    } catch (const Error& error) {
      if (error.code() != Errc::timeout) throw;
      throw Error(Errc::timeout,
                  formatted("group {}: not all of the {} hosts have answered host {} in time",
                            invitation_.group, layout_->hosts(), self_.host),
                  {self_.rank});
    }
  }

  /// The same from hosts that may have a problem: then the first one is thrown on all.
  std::vector<std::string> exchange_unless_bad(const char* subject, const Verdict& local,
                                               const std::string& own) {
    std::vector<std::string> all = exchange(subject, std::string(as_bytes(local)) + own);
    for (std::string& of_host : all) {
      std::string_view rest(of_host);
      throw_if_bad(cut_packet<Verdict>(rest));
      of_host = rest;
    }
    if (all.size() != static_cast<std::size_t>(layout_->hosts()))
      throw Error(Errc::system, formatted("group {}: a host has said nothing about its {}",
                                          invitation_.group, subject));
    return all;
  }

  /// Of this host for the others.
  std::string agree_on_address() {
    AddressOffer own;
    const Verdict local = verdict_of([&] { own = invitation_.offer_addresses(); });
    std::vector<AddressOffer> offers;
    for (const std::string& offer : exchange_unless_bad(kAddresses, local, encoded(own)))
      offers.push_back(decode_offer(offer));
    owes_ = kIntroductions;
    return choose_address(offers, static_cast<std::size_t>(self_.host_number),
                          [](const std::string& to) { return source_towards(to); });
  }

  /// Of all ranks on all hosts.
  std::vector<Introduction> exchange_introductions(const Verdict& local,
                                                   const std::vector<Attendee>& here) {
    std::string own;
    for (const Attendee& attendee : here) own += as_bytes(attendee.introduction);
    std::vector<Introduction> everyone(static_cast<std::size_t>(self_.size));
    int count = 0;
    for (const std::string& of_host : exchange_unless_bad(kIntroductions, local, own)) {
      for (std::string_view rest(of_host); !rest.empty(); ++count) {
        const auto introduction = cut_packet<Introduction>(rest);
        check_sanity(introduction);
        check_agreement(introduction);
        everyone[static_cast<std::size_t>(introduction.rank)] = introduction;
      }
    }
    for (int rank = 0; rank < self_.size; ++rank)
      if (everyone[static_cast<std::size_t>(rank)].rank != rank) count = -1;  // one came twice
    if (count != self_.size)
      throw Error(Errc::system, formatted("group {}: {} introductions of {} ranks",
                                          invitation_.group, count, self_.size));
    return everyone;
  }

  /// It comes out of the store, to which others may write.
  void check_sanity(const Introduction& other) const {
    const auto ends = [](const auto& text) { return text[sizeof text - 1] == 0; };
    if (other.rank < 0 || other.rank >= self_.size || other.host_number < 0 ||
        other.host_number >= layout_->hosts() || !ends(other.host) ||
        !ends(other.control_address) || !ends(other.provider) || !ends(other.eager_limit) ||
        other.fabric_address_bytes > sizeof other.fabric_address)
      throw Error(Errc::system,
                  formatted("group {}: an introduction makes no sense", invitation_.group));
  }

  /// The first bad one, if any host has one.
  [[nodiscard]] Verdict agree_on_verdict(const Verdict& own) {
    Verdict common = own;
    for (const std::string& of_host : exchange("verdict", std::string(as_bytes(own)))) {
      std::string_view rest(of_host);
      const auto theirs = cut_packet<Verdict>(rest);
      if (common.good && !theirs.good) common = theirs;
    }
    if (self_.host_number == 0)
      for (const char* subject : {kAddresses, kIntroductions})
        remove_quietly(*invitation_.store, desk().key(subject));
    return common;
  }

  /// While the store is waited for: none of the guests may have gone.
  void require_guests() const {
    poll_interrupt(invitation_);
    for (const Guest& guest : guests_) {
      char byte;
      if (guest.proved && ::recv(guest.socket.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0)
        throw Error(Errc::peer_lost,
                    formatted("{} went away while group {} was being formed", describe(guest.said),
                              invitation_.group),
                    {guest.said.rank});
    }
  }

  // --- the end of the meeting ---

  void hand_out_and_accept(const Attendance& attendance, int memory_fd, int process_fd) {
    if (self_.host_number == 0) forget_places(desk());
    invitation_.accept(attendance);
    hand_out_to_each(attendance, memory_fd, process_fd);
  }

  /// One guest at a time: the kernel limits how many descriptors may be under way.
  void hand_out(const Guest& guest, const Attendance& attendance, int memory_fd,
                int process_fd) const {
    for (const Introduction& introduction : attendance.everyone)
      send_packet(guest.socket.get(), introduction, invitation_.deadline,
                  descriptors_of(introduction.rank, attendance.here, memory_fd, process_fd));
    throw_if_bad(receive_packet<Verdict>(guest.socket.get(), invitation_.deadline));
  }

  void hand_out_to_each(const Attendance& attendance, int memory_fd, int process_fd) const {
    for (const Guest& guest : guests_) {
      if (!guest.attendee) continue;
      try {
        hand_out(guest, attendance, memory_fd, process_fd);
      } catch (const Error& error) {
        if (!error.ranks().empty()) throw;  // it says so itself
        throw Error(error.code(),
                    formatted("{} went away while group {} was being formed: {}",
                              describe(guest.said), invitation_.group, error.what()),
                    {guest.said.rank});
      }
    }
  }

  [[nodiscard]] std::vector<int> descriptors_of(int rank, const std::vector<Attendee>& here,
                                                int memory_fd, int process_fd) const {
    const auto found = std::ranges::find(
        here, rank, [](const Attendee& attendee) { return attendee.introduction.rank; });
    if (found == here.end()) return {};
    const bool mine = rank == self_.rank;
    std::vector<int> fds{mine ? memory_fd : found->memory.get()};
    const int process = mine ? process_fd : found->process.get();
    if (process >= 0) fds.push_back(process);
    return fds;
  }

  void announce(const Verdict& verdict) const noexcept {
    for (const Guest& guest : guests_) {
      if (!guest.proved) continue;
      try {
        send_packet(guest.socket.get(), verdict, deadline_after(kHandshakeTime));
      } catch (const std::exception&) {
        // It is gone: then it needs no verdict.
      }
    }
  }

  /// Everyone leaves a key when it comes.
  [[nodiscard]] bool has_come(int rank) const {
    try {
      static_cast<void>(invitation_.store->get(rank_key(rank), milliseconds(0)));
      return true;
    } catch (const Error&) {
      return false;
    }
  }

  [[nodiscard]] Error missing_ranks() const {
    std::vector<int> ranks;
    for (int rank = 0; rank < self_.size; ++rank)
      if (!has_come(rank)) ranks.push_back(rank);
    if (ranks.empty())
      return {Errc::timeout,
              formatted("group {}: all {} ranks have come, but not all have finished meeting the "
                        "others in time",
                        invitation_.group, self_.size)};
    return {Errc::timeout,
            formatted("group {}: rank{} {} did not arrive in time; {} of {} are here",
                      invitation_.group, ranks.size() == 1 ? "" : "s", joined(ranks),
                      self_.size - static_cast<int>(ranks.size()), self_.size),
            ranks};
  }

  static constexpr milliseconds kHandshakeTime{2000};
  static constexpr std::size_t kMostGuests = 64;
  static constexpr const char* kAddresses = "addresses";
  static constexpr const char* kIntroductions = "introductions";

  const Invitation& invitation_;
  Fd listener_;
  Introduction self_;
  std::vector<Guest> guests_;
  std::optional<Layout> layout_;  // once all have said where they are
  const char* owes_ = nullptr;    // the subject on which other hosts wait for this one
  bool warned_ = false;
};

/// The rank of the host; none if it went away meanwhile: another one may take its place.
std::optional<int> prove_each_other(int socket, const Invitation& invitation) {
  try {
    await_packet(socket, invitation, invitation.deadline);
    const auto challenge = receive_packet<Challenge>(socket, invitation.deadline);
    const Digest own = random_digest();
    const Digest proof = member_proof(invitation.secret, challenge.number, own);
    send_packet(socket, Answer{own, proof, invitation.rank, invitation.size, ::getpid()},
                invitation.deadline);
    await_packet(socket, invitation, invitation.deadline);
    throw_if_verdict(socket, invitation.deadline);
    const auto counter = receive_packet<Counterproof>(socket, invitation.deadline);
    if (same_digest(counter.proof, host_proof(invitation.secret, challenge.number, own)))
      return counter.rank;
  } catch (const Error& error) {
    if (error.code() != Errc::peer_lost) throw;
    return std::nullopt;
  }
  throw Error(Errc::system, "the meeting point does not know the group's secret");
}

void tell_host_if_it_fails(int socket, Deadline deadline, const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    send_packet(socket, bad_verdict(error), deadline);
    throw;
  }
}

/// One rank of the table, or the end of the meeting.
void receive_attendee(int socket, const Invitation& invitation, Attendance& attendance,
                      Deadline deadline) {
  await_packet(socket, invitation, deadline);
  throw_if_verdict(socket, deadline);
  Attendee attendee;
  std::vector<Fd> fds;
  attendee.introduction = receive_packet<Introduction>(socket, deadline, &fds);
  attendance.everyone.push_back(attendee.introduction);
  if (fds.empty()) return;  // on another host
  attendee.memory = std::move(fds[0]);
  if (fds.size() > 1) attendee.process = std::move(fds[1]);
  attendance.here.push_back(std::move(attendee));
}

void introduce_oneself(int socket, const Invitation& invitation, int host_rank, int memory_fd,
                       int process_fd, Deadline patience) {
  Desk desk = desk_of(invitation, [&] {
    poll_interrupt(invitation);
    if (wait_readable(socket, Clock::now())) throw_if_verdict(socket, patience);
  });
  desk.deadline = patience;  // the host says who is missing
  report_place(desk, invitation, host_rank);
  await_packet(socket, invitation, patience);
  throw_if_verdict(socket, patience);
  const auto agenda = receive_packet<Agenda>(socket, patience);
  std::vector<int> fds{memory_fd};
  if (process_fd >= 0) fds.push_back(process_fd);
  tell_host_if_it_fails(socket, patience, [&] {
    send_packet(socket, invitation.introduce(agenda.address), patience, fds);
  });
}

/// Other hosts wait for what the one that went away owed them.
void leave_failure_quietly(const Invitation& invitation, const Error& reason) noexcept {
  try {
    leave_failure(desk_of(invitation, {}), bad_verdict(reason));
  } catch (const std::exception&) {
    // Then they find out by themselves.
  }
}

/// If the host said why before it went away.
void throw_last_words(int socket) {
  Introduction skipped;
  while (wait_readable(socket, Clock::now())) {
    throw_if_verdict(socket, Clock::now());
    if (length_of_next_packet(socket) != sizeof skipped) return;
    skipped = receive_packet<Introduction>(socket, Clock::now());
  }
}

void attend(const Invitation& invitation, Fd socket, int host_rank, int memory_fd, int process_fd) {
  // The host waits until the deadline for the others; allow it the time to say who is missing.
  const Deadline patience = deadline_after(time_left(invitation.deadline) + milliseconds(2000));
  try {
    introduce_oneself(socket.get(), invitation, host_rank, memory_fd, process_fd, patience);
    Attendance attendance;
    for (int i = 0; i < invitation.size; ++i)
      receive_attendee(socket.get(), invitation, attendance, patience);
    tell_host_if_it_fails(socket.get(), patience, [&] { invitation.accept(attendance); });
    send_packet(socket.get(), Verdict{}, patience);
    await_packet(socket.get(), invitation, patience);
    throw_if_bad(receive_packet<Verdict>(socket.get(), patience));
  } catch (const Error& error) {
    // A verdict names ranks; only the socket itself fails without one.
    const bool socket_failed =
        error.ranks().empty() && (error.code() == Errc::peer_lost || error.code() == Errc::timeout);
    if (!socket_failed) throw;
    throw_last_words(socket.get());
    const Error reason(error.code(),
                       formatted("group {}: rank {} (host {}), where the ranks of its host meet, "
                                 "went away: {}",
                                 invitation.group, host_rank, host_name(), error.what()),
                       {host_rank});
    leave_failure_quietly(invitation, reason);
    throw reason;
  }
}

}  // namespace

std::string host_name() {
  char name[64] = {};
  ::gethostname(name, sizeof name - 1);
  return name;
}

namespace {

std::string secret_of_rank_0(Store& store, int rank, Deadline deadline) {
  try {
    return store.get(kSecretKey, time_left(deadline));
  } catch (const Error& error) {
    if (error.code() != Errc::timeout) throw;
    throw Error(Errc::timeout,
                formatted("rank {} has waited in vain for rank 0: it has not come, or has made the "
                          "group without this process, because another one is rank {} too",
                          rank, rank),
                {0});
  }
}

}  // namespace

std::string agree_on_secret(Store& store, int rank, const std::string& secret_file,
                            Deadline deadline) {
  store.set(rank_key(rank), formatted("host {}, pid {}", host_name(), ::getpid()));
  const std::string from_file = secret_file.empty() ? "" : contents_of(secret_file);
  if (rank == 0) {
    const std::string fresh = to_hex(random_digest());
    store.set(kSecretKey, fresh + check_of(whole_secret(from_file, fresh)));
  }
  const std::string stored = secret_of_rank_0(store, rank, deadline);
  std::string secret = whole_secret(from_file, stored.substr(0, kSecretDigits));
  if (stored.substr(std::min(stored.size(), kSecretDigits)) != check_of(secret))
    throw Error(Errc::invalid_argument,
                formatted("rank {} (host {}) and rank 0 have different secrets: CCL_SECRET_FILE "
                          "must name a file with the same contents on all hosts, or none",
                          rank, host_name()),
                {rank});
  return secret;
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

void meet(const Invitation& invitation, int memory_fd, int process_fd) {
  if (invitation.size == 1) {
    Attendance alone;
    alone.here.resize(1);
    alone.here.front().introduction = invitation.introduce(/*address=*/"");
    alone.everyone.push_back(alone.here.front().introduction);
    return invitation.accept(alone);
  }
  const std::string name = socket_name(invitation.secret);
  while (Clock::now() < invitation.deadline) {
    poll_interrupt(invitation);
    if (Fd listener = listen_on(name))
      return Host(invitation, std::move(listener)).run(memory_fd, process_fd);
    if (Fd socket = connect_to(name))
      if (const auto host = prove_each_other(socket.get(), invitation))
        return attend(invitation, std::move(socket), *host, memory_fd, process_fd);
    std::this_thread::sleep_for(milliseconds(1));  // between the host's bind and its listen
  }
  throw Error(
      Errc::timeout,
      formatted("group {}: nobody answered at the meeting point of this host", invitation.group));
}

}  // namespace tccl
