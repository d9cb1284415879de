#include "bootstrap/gathering.h"

#include <cstdint>
#include <cstring>
#include <utility>

#include "base/format.h"
#include "tccl/error.h"

namespace tccl {
namespace {

constexpr std::chrono::milliseconds kLookPeriod{100};

using Entries = std::vector<std::pair<std::uint32_t, std::string>>;

std::string encoded(const Entries& entries) {
  std::string bytes;
  for (const auto& [index, text] : entries) {
    const std::uint32_t header[2] = {index, static_cast<std::uint32_t>(text.size())};
    bytes.append(reinterpret_cast<const char*>(header), sizeof header);
    bytes += text;
  }
  return bytes;
}

void decode_into(Entries& entries, std::string_view bytes) {
  std::uint32_t header[2];
  while (!bytes.empty()) {
    if (bytes.size() < sizeof header) throw Error(Errc::system, "a key of the store is cut off");
    std::memcpy(header, bytes.data(), sizeof header);
    bytes.remove_prefix(sizeof header);
    if (bytes.size() < header[1]) throw Error(Errc::system, "a key of the store is cut off");
    entries.emplace_back(header[0], bytes.substr(0, header[1]));
    bytes.remove_prefix(header[1]);
  }
}

void remove_quietly(Store& store, const std::string& key) noexcept {
  try {
    store.remove(key);
  } catch (const std::exception&) {  // not every store can remove keys
  }
}

}  // namespace

std::string Desk::key(std::string_view subject, int index) const {
  return formatted("{}/{}/{}", prefix, subject, index);
}

std::string Desk::read(const std::string& key) const {
  for (;;) {
    const Deadline next_look = std::min(deadline, Clock::now() + kLookPeriod);
    try {
      return store.get(key, time_left(next_look));
    } catch (const Error& error) {
      if (error.code() != Errc::timeout || Clock::now() >= deadline) throw;
    }
    if (look_around) look_around();
  }
}

std::vector<std::string> gather_texts(const Desk& desk, std::string_view subject, int index,
                                      int count, const std::string& text) {
  Entries entries{{static_cast<std::uint32_t>(index), text}};
  for (const int child : {2 * index + 1, 2 * index + 2}) {
    if (child >= count) continue;
    const std::string key = desk.key(subject, child);
    decode_into(entries, desk.read(key));
    remove_quietly(desk.store, key);
  }
  if (index != 0) {
    desk.store.set(desk.key(subject, index), encoded(entries));
    return {};
  }
  std::vector<std::string> texts(static_cast<std::size_t>(count));
  for (auto& [from, said] : entries) {
    if (from >= texts.size()) throw Error(Errc::system, "a key of the store makes no sense");
    texts[from] = std::move(said);
  }
  return texts;
}

void put_text(const Desk& desk, std::string_view subject, int index, const std::string& text) {
  desk.store.set(desk.key(subject, index), encoded({{static_cast<std::uint32_t>(index), text}}));
}

std::string share_text(const Desk& desk, const std::string& subject, bool is_first,
                       const std::string& text) {
  const std::string key = formatted("{}/{}", desk.prefix, subject);
  if (!is_first) return desk.read(key);
  desk.store.set(key, text);
  return text;
}

}  // namespace tccl
