#include "rendezvous/store_collectives.h"

#include <algorithm>
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

/// What is known at this participant of the tree; all but the first hand it on.
Entries gather(const StoreClient& store_client, std::string_view round, int index, int count,
               const std::string& text) {
  Entries entries{{static_cast<std::uint32_t>(index), text}};
  for (const int child : {2 * index + 1, 2 * index + 2}) {
    if (child >= count) continue;
    const std::string key = store_client.key(round, child);
    decode_into(entries, store_client.read(key));
    remove_key(store_client.store, key);
  }
  if (index != 0) store_client.store.set(store_client.key(round, index), encoded(entries));
  return entries;
}

std::vector<std::string> in_order(Entries entries, int count) {
  std::ranges::sort(entries, {}, &Entries::value_type::first);
  std::vector<std::string> texts;
  for (auto& [from, said] : entries) {
    if (from >= static_cast<std::uint32_t>(count))
      throw Error(Errc::system, "a key of the store makes no sense");
    texts.push_back(std::move(said));
  }
  return texts;
}

}  // namespace

std::string StoreClient::key(std::string_view round, int index) const {
  return formatted("{}/{}/{}", prefix, round, index);
}

std::string StoreClient::key(std::string_view round) const {
  return formatted("{}/{}", prefix, round);
}

std::string StoreClient::read(const std::string& key) const {
  for (;;) {
    const Deadline next_look = std::min(deadline, Clock::now() + kLookPeriod);
    try {
      return store.get(key, time_left(next_look));
    } catch (const Error& error) {
      if (error.code() != Errc::timeout || Clock::now() >= deadline) throw;
    }
    if (on_poll) on_poll();
  }
}

std::vector<std::string> store_gather(const StoreClient& store_client, std::string_view round,
                                      int index, int count, const std::string& text) {
  Entries entries = gather(store_client, round, index, count, text);
  return index == 0 ? in_order(std::move(entries), count) : std::vector<std::string>();
}

std::vector<std::string> store_allgather(const StoreClient& store_client, std::string_view round,
                                         int index, int count, const std::string& text) {
  Entries entries = gather(store_client, round, index, count, text);
  if (index == 0) {
    store_client.store.set(store_client.key(round), encoded(entries));
  } else {
    entries.clear();
    decode_into(entries, store_client.read(store_client.key(round)));
  }
  return in_order(std::move(entries), count);
}

void store_contribute(const StoreClient& store_client, std::string_view round, int index,
                      const std::string& text) {
  store_client.store.set(index == 0 ? store_client.key(round) : store_client.key(round, index),
                         encoded({{static_cast<std::uint32_t>(index), text}}));
}

void remove_key(Store& store, const std::string& key) noexcept {
  try {
    store.remove(key);
  } catch (const std::exception&) {
  }
}

}  // namespace tccl
