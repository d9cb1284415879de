#include "rendezvous/secret.h"

#include <algorithm>
#include <fstream>
#include <sstream>

#include "base/crypto.h"
#include "base/format.h"
#include "rendezvous/init_errors.h"
#include "rendezvous/join_record.h"
#include "rendezvous/store_collectives.h"
#include "tccl/error.h"

namespace tccl {
namespace {

/// Value: the random part in hexadecimal, followed by check_of(secret).
constexpr const char* kSecretKey = "secret";
constexpr std::size_t kRandomDigits = 2 * sizeof(Bytes32);

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

std::string read_published_secret(const RendezvousOptions& options) {
  try {
    return options.store->get(kSecretKey, time_left(options.deadline));
  } catch (const Error& error) {
    if (error.code() != Errc::timeout) throw;
    throw init_timeout(
        options,
        formatted("rank 0 published no secret for rank {}: rank 0 never joined, or it formed the "
                  "group with another process that is rank {} too",
                  options.rank, options.rank),
        {0});
  }
}

}  // namespace

std::string agree_on_secret(const RendezvousOptions& options, const std::string& secret_file) {
  publish_joined(*options.store, options.rank);
  const std::string file_content = read_secret_file(secret_file);
  if (options.rank == 0) {
    const std::string random_part = to_hex(random_bytes32());
    options.store->set(kSecretKey, random_part + check_of(combined(file_content, random_part)));
  }
  const std::string published = read_published_secret(options);
  std::string secret = combined(file_content, published.substr(0, kRandomDigits));
  if (published.substr(std::min(published.size(), kRandomDigits)) != check_of(secret))
    throw init_error(options.group, Errc::invalid_argument,
                     formatted("rank {} (host {}) and rank 0 have different secrets: "
                               "CCL_SECRET_FILE must name a file with the same content on all "
                               "hosts, or be unset on all",
                               options.rank, host_name()),
                     {options.rank});
  return secret;
}

void remove_rendezvous_keys(Store& store, int rank) noexcept {
  remove_join_record(store, rank);
  if (rank == 0) remove_key(store, kSecretKey);
}

void remove_failed_rendezvous_keys(Store& store, int rank) noexcept {
  if (rank == 0) remove_key(store, kSecretKey);
}

std::string rendezvous_socket_name(const std::string& secret) {
  const Bytes32 digest = hmac_sha256(secret, "rendezvous socket");
  return "tccl-" + to_hex(std::span(digest).first(16));
}

}  // namespace tccl
