#include "health/control_protocol.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>

#include "base/format.h"
#include "tccl/error.h"

namespace tccl::control {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are sent as they lie in memory");

struct Header {
  std::uint32_t magic;  // with the version of the protocol in the last digit
  std::uint16_t kind;
  std::uint16_t body_bytes;
};
constexpr std::uint32_t kMagic = 0x6c636301;

template <class T>
void put(std::string& out, const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

constexpr std::size_t kLongestName = 255;

void put_name(std::string& out, const std::string& name) {
  const std::string_view cut = std::string_view(name).substr(0, kLongestName);
  put(out, static_cast<std::uint8_t>(cut.size()));
  out.append(cut);
}

/// Takes values off the front of a body.
class Parser {
 public:
  explicit Parser(std::string_view body) : rest_(body) {}

  template <class T>
  void take(T& value) {
    const std::string_view bytes = take_bytes(sizeof value);
    std::memcpy(&value, bytes.data(), sizeof value);
  }
  void take_name(std::string& name) {
    std::uint8_t length = 0;
    take(length);
    name = take_bytes(length);
  }
  std::string take_rest() { return std::string(take_bytes(rest_.size())); }
  void expect_end() const {
    if (!rest_.empty()) throw Error(Errc::system, "a frame is too long for its kind");
  }

 private:
  std::string_view take_bytes(std::size_t count) {
    if (rest_.size() < count) throw Error(Errc::system, "a frame is too short for its kind");
    const std::string_view bytes = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return bytes;
  }
  std::string_view rest_;
};

std::string encode_identity(const RemoteProcess::Identity& identity) {
  std::string bytes;
  put(bytes, identity.id);
  put(bytes, static_cast<std::int32_t>(identity.pid));
  put(bytes, identity.port);
  put_name(bytes, identity.host);
  put_name(bytes, identity.address);
  return bytes;
}

RemoteProcess::Identity take_identity(Parser& parser) {
  RemoteProcess::Identity identity;
  std::int32_t pid = 0;
  parser.take(identity.id);
  parser.take(pid);
  parser.take(identity.port);
  parser.take_name(identity.host);
  parser.take_name(identity.address);
  identity.pid = pid;
  return identity;
}

Digest proof_of(const std::string& secret, std::string_view role, const Challenge& challenge,
                const Answer& answer, const Digest& acceptor) {
  // All but the last part have a fixed length, so no two different sets give the same bytes.
  std::string bytes(role);
  put(bytes, challenge.number);
  put(bytes, answer.number);
  put(bytes, acceptor);
  bytes += encode_identity(answer.identity);
  return hmac_sha256(secret, bytes);
}

}  // namespace

std::string encode(Kind kind, std::string_view body) {
  body = body.substr(0, kLargestBody);
  std::string bytes;
  put(bytes,
      Header{kMagic, static_cast<std::uint16_t>(kind), static_cast<std::uint16_t>(body.size())});
  return bytes.append(body);
}

std::optional<Frame> FrameReader::next() {
  Header header;
  if (bytes_.size() < sizeof header) return std::nullopt;
  std::memcpy(&header, bytes_.data(), sizeof header);
  if (header.magic != kMagic)
    throw Error(Errc::system, "it does not speak this protocol, or another version of it");
  if (header.body_bytes > kLargestBody)
    throw Error(Errc::system, formatted("it sent a frame of {} bytes", header.body_bytes));
  if (bytes_.size() < sizeof header + header.body_bytes) return std::nullopt;
  Frame frame{static_cast<Kind>(header.kind), bytes_.substr(sizeof header, header.body_bytes)};
  bytes_.erase(0, sizeof header + header.body_bytes);
  return frame;
}

KeyId key_id(const std::string& secret) {
  const Digest digest = hmac_sha256(secret, "key");
  KeyId id;
  std::copy_n(digest.begin(), id.size(), id.begin());
  return id;
}

std::string encode(const Challenge& challenge) {
  return encode(Kind::challenge, as_text(challenge.number));
}

std::string encode(const Answer& answer) {
  std::string body;
  put(body, answer.key);
  put(body, answer.number);
  put(body, answer.proof);
  return encode(Kind::answer, body + encode_identity(answer.identity));
}

std::string encode(const Proof& proof) {
  std::string body;
  put(body, proof.id);
  put(body, proof.proof);
  return encode(Kind::proof, body);
}

std::string encode(const Notice& notice) {
  std::string body;
  put(body, notice.group);
  put(body, notice.kind);
  return encode(Kind::notice, body + notice.text);
}

Challenge decode_challenge(std::string_view body) {
  Challenge challenge;
  Parser parser(body);
  parser.take(challenge.number);
  parser.expect_end();
  return challenge;
}

Answer decode_answer(std::string_view body) {
  Answer answer;
  Parser parser(body);
  parser.take(answer.key);
  parser.take(answer.number);
  parser.take(answer.proof);
  answer.identity = take_identity(parser);
  parser.expect_end();
  return answer;
}

Proof decode_proof(std::string_view body) {
  Proof proof;
  Parser parser(body);
  parser.take(proof.id);
  parser.take(proof.proof);
  parser.expect_end();
  return proof;
}

Notice decode_notice(std::string_view body) {
  Notice notice;
  Parser parser(body);
  parser.take(notice.group);
  parser.take(notice.kind);
  notice.text = parser.take_rest();
  return notice;
}

Digest connector_proof(const std::string& secret, const Challenge& challenge, const Answer& answer,
                       const Digest& acceptor) {
  return proof_of(secret, "connector", challenge, answer, acceptor);
}

Digest acceptor_proof(const std::string& secret, const Challenge& challenge, const Answer& answer,
                      const Digest& acceptor) {
  return proof_of(secret, "acceptor ", challenge, answer, acceptor);
}

}  // namespace tccl::control
