// Takes values from the front of a fuzzer's input. When it is used up, numbers are zero and texts
// are empty.
//
//   Input input(data, size);
//   const auto kind = input.take<std::uint8_t>();
//   const std::string body = input.take_text();
//
// Thread safety: none.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace tccl::fuzz {

class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size)
      : rest_(reinterpret_cast<const char*>(data), size) {}

  [[nodiscard]] bool empty() const { return rest_.empty(); }
  template <class T>
  T take() {
    T value{};
    const std::string_view bytes = take_bytes(sizeof value);
    if (!bytes.empty()) std::memcpy(&value, bytes.data(), bytes.size());
    return value;
  }
  /// At most so many bytes.
  std::string_view take_bytes(std::size_t count) {
    const std::string_view bytes = rest_.substr(0, count);
    rest_.remove_prefix(bytes.size());
    return bytes;
  }
  /// Its length comes first, in two bytes.
  std::string_view take_text() { return take_bytes(take<std::uint16_t>()); }
  std::string_view take_rest() { return take_bytes(rest_.size()); }

 private:
  std::string_view rest_;
};

}  // namespace tccl::fuzz
