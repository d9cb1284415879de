#include "rendezvous/secret.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <optional>
#include <sstream>
#include <string_view>
#include <thread>

#include "base/crypto.h"
#include "base/fd.h"
#include "base/format.h"
#include "rendezvous/host_discovery.h"
#include "rendezvous/init_errors.h"
#include "rendezvous/store_collectives.h"
#include "tccl/error.h"

namespace tccl {
namespace {

/// Value: a line with the random part in hexadecimal, followed by check_of(secret); then the lines
/// of RankZero.
constexpr const char* kSecretKey = "secret";
constexpr std::size_t kRandomDigits = 2 * sizeof(Bytes32);
constexpr std::size_t kCheckDigits = 2 * sizeof(Bytes32);

std::string read_secret_file(const std::string& path) {
  if (path.empty()) return {};
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file || text.str().empty())
    throw Error(Errc::invalid_argument,
                formatted("CCL_SECRET_FILE={}: the file cannot be read, or is empty", path));
  return text.str();
}

std::string combined(const std::string& file_content, const std::string& random_part) {
  return file_content.empty() ? random_part : to_hex(hmac_sha256(file_content, random_part));
}

/// Lets ranks compare their secrets without publishing them.
std::string check_of(const std::string& secret) { return to_hex(hmac_sha256(secret, "check")); }

std::string text_of_rank_zero(const WatchAddress& watch_address) {
  return formatted("{}\n{}\n{} {}\n", this_process_text(),
                   ProcessIdentity::of_this_process().text(), watch_address.port,
                   watch_address.host);
}

RankZero rank_zero_from(const std::string& published) {
  std::istringstream text(published);
  std::string line;
  RankZero rank_zero;
  std::getline(text, line);  // the secret
  std::getline(text, rank_zero.process);
  std::getline(text, line);
  rank_zero.identity = ProcessIdentity::from_text(line);
  text >> rank_zero.watch_address.port >> rank_zero.watch_address.host;
  return rank_zero;
}

/// In place of a secret: kFailed, the attempt, the time, a newline, a Status.
constexpr std::string_view kFailed = "failed";
/// An older failure is that of an earlier job which used the same store.
constexpr std::chrono::seconds kFailureLifetime{60};
/// A younger one may be, too: rank 0 of a new job then replaces it within this time.
constexpr std::chrono::seconds kFailureGrace{2};

std::int64_t unix_time() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

struct PublishedFailure {
  std::string attempt;
  std::int64_t time = 0;
  Status status;
};

PublishedFailure failure_from(const std::string& value) {
  const std::size_t end = value.find('\n');
  std::istringstream head(value.substr(kFailed.size(), end - kFailed.size()));
  PublishedFailure failure;
  head >> failure.attempt >> failure.time;
  std::string_view rest = std::string_view(value).substr(std::min(end, value.size() - 1) + 1);
  failure.status = cut_packet<Status>(rest);
  return failure;
}

Error no_secret(const RendezvousOptions& options) {
  return init_timeout(
      options,
      formatted("rank 0 published no secret for rank {}: rank 0 never joined, or it formed the "
                "group with another process that is rank {} too",
                options.rank, options.rank),
      {0});
}

/// Reads what rank 0 has published until that is the secret of a new attempt.
class SecretReader {
 public:
  SecretReader(RendezvousOptions& options, const std::string& file_content)
      : options_(options), file_content_(file_content) {}

  std::string read() {
    for (;;) {
      const Deadline next_poll =
          std::min(options_.deadline, Clock::now() + poll_interval_of(options_.size));
      try {
        const std::string value = published(next_poll);
        if (value.starts_with(kFailed))
          throw_unless_ignored(failure_from(value));
        else if (std::string secret = checked_secret(value); is_new(secret)) {
          options_.rank_zero = rank_zero_from(value);
          return secret;
        }
        std::this_thread::sleep_for(time_left(next_poll));
      } catch (const Error& error) {
        if (!is_unattributed_timeout(error)) throw;  // else there is no such key yet
      }
      if (Clock::now() >= options_.deadline) throw_timeout();
      if (options_.check_interrupt) options_.check_interrupt();
      throw_if_known_to_have_ended(options_, 0);
    }
  }

 private:
  [[nodiscard]] std::string published(Deadline deadline) const {
    try {
      return options_.store->get(kSecretKey, time_left(deadline));
    } catch (const Error& error) {
      if (is_unattributed_system_error(error)) throw StoreFailure(error);
      throw;
    }
  }

  [[nodiscard]] std::string checked_secret(const std::string& published) const {
    const std::string line = published.substr(0, published.find('\n'));
    if (line.size() != kRandomDigits + kCheckDigits)
      throw init_error(
          options_.group, Errc::system,
          formatted("the store has {} bytes under the key \"{}\" that are no secret of "
                    "this library: another program or another version uses it",
                    published.size(), kSecretKey),
          {options_.rank});
    std::string secret = combined(file_content_, line.substr(0, kRandomDigits));
    if (line.substr(kRandomDigits) == check_of(secret)) return secret;
    throw init_error(options_.group, Errc::invalid_argument,
                     formatted("rank {} (host {}) and rank 0 have different secrets: "
                               "CCL_SECRET_FILE must name a file with the same content on all "
                               "hosts, or be unset on all",
                               options_.rank, host_name()),
                     {options_.rank});
  }

  /// Rank 0 may not have noticed yet that the attempt in which this rank failed is over.
  [[nodiscard]] bool is_new(const std::string& secret) const {
    return options_.last_failed_attempt.empty() ||
           attempt_of(secret) != options_.last_failed_attempt;
  }

  void throw_unless_ignored(const PublishedFailure& failure) {
    if (failure.attempt == options_.last_failed_attempt ||
        unix_time() - failure.time > kFailureLifetime.count())
      return;
    if (!first_seen_) first_seen_ = Clock::now();
    failure_ = failure.status;
    if (Clock::now() - *first_seen_ < kFailureGrace) return;
    options_.last_failed_attempt = failure.attempt;
    throw_if_failed(failure.status);
  }

  /// The failure of the last attempt says more: perhaps it failed because this rank came too late.
  [[noreturn]] void throw_timeout() const {
    if (!failure_) throw_no_secret();
    try {
      throw_if_failed(*failure_);
    } catch (const Error& error) {
      throw Error(error.code(), formatted("{}; rank 0 has published no secret since", error.what()),
                  error.ranks());
    }
    throw_no_secret();
  }

  /// Rank 0 may wait for a stalled rank in another group.
  [[noreturn]] void throw_no_secret() const {
    std::vector<int> others;
    for (int rank = 0; rank < options_.size; ++rank)
      if (rank != options_.rank) others.push_back(rank);
    if (const auto stalled = stalled_members_timeout(options_, others)) throw Error(*stalled);
    throw no_secret(options_);
  }

  RendezvousOptions& options_;
  const std::string& file_content_;
  std::optional<Clock::time_point> first_seen_;  // a failure that is not ignored
  std::optional<Status> failure_;                // the last one of them
};

}  // namespace

std::string agree_on_secret(RendezvousOptions& options, const std::string& secret_file) {
  const std::string file_content = read_secret_file(secret_file);
  if (options.rank == 0) {
    const std::string random_part = to_hex(random_bytes32());
    std::string secret = combined(file_content, random_part);
    options.store->set(kSecretKey, random_part + check_of(secret) + '\n' +
                                       text_of_rank_zero(options.rank_zero.watch_address));
    return secret;
  }
  return SecretReader(options, file_content).read();
}

std::string secret_file_problem(const std::string& secret_file) {
  const Fd file(
      ::open(secret_file.c_str(), O_PATH | O_CLOEXEC));  // not stat(): it is not in old glibc
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) != 0) return {};
  if ((status.st_mode & (S_IRWXG | S_IRWXO)) == 0) return {};
  return formatted("CCL_SECRET_FILE={}: other users may access it (mode {:o}): chmod 600",
                   secret_file, status.st_mode & 0777U);
}

std::string attempt_of(const std::string& secret) {
  const Bytes32 digest = hmac_sha256(secret, "attempt");
  return to_hex(std::span(digest).first(8));
}

void remove_secret(Store& store) noexcept { remove_key(store, kSecretKey); }

void replace_secret_by_failure(const RendezvousOptions& options, const Status& failure) noexcept {
  try {
    options.store->set(kSecretKey,
                       formatted("{} {} {}\n", kFailed, attempt_of(options.secret), unix_time()) +
                           std::string(as_bytes(failure)));
  } catch (...) {
    // Ranks that come later then fail at the timeout.
  }
}

std::string rendezvous_socket_name(const std::string& secret) {
  const Bytes32 digest = hmac_sha256(secret, "rendezvous socket");
  return "tccl-" + to_hex(std::span(digest).first(16));
}

}  // namespace tccl
