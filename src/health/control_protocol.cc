#include "health/control_protocol.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>

#include "base/format.h"
#include "tccl/error.h"

namespace tccl::control {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are sent in memory order");

struct Header {
  std::uint32_t magic;  // the last byte is the version of the protocol
  std::uint16_t kind;
  std::uint16_t body_bytes;
};
constexpr std::uint32_t kMagic = 0x6c636302;

template <class T>
void put(std::string& out, const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

constexpr std::size_t kMaxNameBytes = 255;

void put_name(std::string& out, const std::string& name) {
  const std::string_view truncated = std::string_view(name).substr(0, kMaxNameBytes);
  put(out, static_cast<std::uint8_t>(truncated.size()));
  out.append(truncated);
}

/// Reads values from the front of a body.
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

void take(Parser& parser, Challenge& challenge) { parser.take(challenge.nonce); }

void take(Parser& parser, RemoteProcess::Identity& identity) {
  std::int32_t pid = 0;
  parser.take(identity.id);
  parser.take(pid);
  parser.take(identity.port);
  parser.take_name(identity.host);
  parser.take_name(identity.address);
  identity.pid = pid;
}

void take(Parser& parser, ConnectorResponse& response) {
  parser.take(response.key);
  parser.take(response.response);
  take(parser, response.identity);
}

void take(Parser& parser, AcceptorConfirmation& confirmation) {
  parser.take(confirmation.id);
  parser.take(confirmation.confirmation);
}

void take(Parser& parser, Notice& notice) {
  parser.take(notice.group_uid);
  parser.take(notice.kind);
  notice.text = parser.take_rest();
}

}  // namespace

std::string encode(FrameKind kind, std::string_view body) {
  body = body.substr(0, kMaxBodyBytes);
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
    throw Error(Errc::system, "the peer uses another protocol or another version of it");
  if (header.body_bytes > kMaxBodyBytes)
    throw Error(Errc::system, formatted("the peer sent a frame of {} bytes", header.body_bytes));
  if (bytes_.size() < sizeof header + header.body_bytes) return std::nullopt;
  Frame frame{static_cast<FrameKind>(header.kind), bytes_.substr(sizeof header, header.body_bytes)};
  bytes_.erase(0, sizeof header + header.body_bytes);
  return frame;
}

KeyId key_id(const std::string& secret) {
  const Bytes32 digest = hmac_sha256(secret, "key");
  KeyId id;
  std::copy_n(digest.begin(), id.size(), id.begin());
  return id;
}

std::string encode(const Challenge& challenge) {
  return encode(FrameKind::challenge, as_text(challenge.nonce));
}

std::string encode(const ConnectorResponse& response) {
  std::string body;
  put(body, response.key);
  put(body, response.response);
  return encode(FrameKind::response, body + encode_identity(response.identity));
}

std::string encode(const AcceptorConfirmation& confirmation) {
  std::string body;
  put(body, confirmation.id);
  put(body, confirmation.confirmation);
  return encode(FrameKind::confirmation, body);
}

std::string encode(const Notice& notice) {
  std::string body;
  put(body, notice.group_uid);
  put(body, notice.kind);
  return encode(FrameKind::notice, body + notice.text);
}

template <class T>
T decode(std::string_view body) {
  T value;
  Parser parser(body);
  take(parser, value);
  parser.expect_end();
  return value;
}
template Challenge decode(std::string_view body);
template ConnectorResponse decode(std::string_view body);
template AcceptorConfirmation decode(std::string_view body);
template Notice decode(std::string_view body);

std::string handshake_binding_data(const Bytes32& acceptor_id,
                                   const RemoteProcess::Identity& connector) {
  std::string data = "control";
  put(data, acceptor_id);
  return data + encode_identity(connector);
}

}  // namespace tccl::control
