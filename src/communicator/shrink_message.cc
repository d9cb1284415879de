#include "communicator/shrink_message.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

namespace tccl {
namespace {

template <class T>
void put(std::string& bytes, const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

template <class Sequence>
void put_all(std::string& bytes, const Sequence& values) {
  put(bytes, static_cast<std::uint32_t>(values.size()));
  for (const auto& value : values) put(bytes, value);
}

template <class T>
void take(std::string_view& bytes, T& value) {
  if (bytes.size() < sizeof value) throw Error(Errc::system, "a message of shrink() is truncated");
  std::memcpy(&value, bytes.data(), sizeof value);
  bytes.remove_prefix(sizeof value);
}

template <class Sequence>
void take_all(std::string_view& bytes, Sequence& values) {
  using Value = typename Sequence::value_type;
  std::uint32_t count = 0;
  take(bytes, count);
  // The count comes from another process: no more memory than it has sent.
  values.reserve(std::min<std::size_t>(count, bytes.size() / sizeof(Value)));
  for (std::uint32_t i = 0; i < count; ++i) {
    Value value{};
    take(bytes, value);
    values.push_back(value);
  }
}

}  // namespace

std::string encode(const ShrinkMessage& message) {
  std::string bytes;
  put(bytes, message.kind);
  put(bytes, message.attempt);
  put(bytes, message.sender);
  put(bytes, message.code);
  put_all(bytes, message.excluded);
  put_all(bytes, message.members);
  put_all(bytes, message.text);
  put_all(bytes, message.ranks);
  return bytes;
}

ShrinkMessage decode_shrink_message(std::string_view bytes) {
  ShrinkMessage message;
  take(bytes, message.kind);
  take(bytes, message.attempt);
  take(bytes, message.sender);
  take(bytes, message.code);
  take_all(bytes, message.excluded);
  take_all(bytes, message.members);
  take_all(bytes, message.text);
  take_all(bytes, message.ranks);
  message.kind = std::min(message.kind, ShrinkMessage::Kind::watch);
  message.code = std::min(message.code, Errc::internal);
  return message;
}

}  // namespace tccl
