#include "rendezvous/store_collectives.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <exception>
#include <utility>

#include "base/format.h"
#include "tccl/error.h"

namespace tccl {
namespace {

using Entries = std::vector<std::pair<std::uint32_t, std::string>>;  // {index, text}

std::string encode(const Entries& entries) {
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
    if (bytes.size() < sizeof header)
      throw Error(Errc::system, "a value in the store is truncated");
    std::memcpy(header, bytes.data(), sizeof header);
    bytes.remove_prefix(sizeof header);
    if (bytes.size() < header[1]) throw Error(Errc::system, "a value in the store is truncated");
    entries.emplace_back(header[0], bytes.substr(0, header[1]));
    bytes.remove_prefix(header[1]);
  }
}

std::string read_and_remove(const StoreClient& client, const std::string& key, int participant) {
  std::string value = client.read(key, participant);
  remove_key(client.store, key);
  return value;
}

/// The entries of the subtree below `index`; every participant but 0 publishes them for its parent.
Entries gather_subtree(const StoreClient& client, std::string_view round, int index, int count,
                       const std::string& text) {
  Entries entries{{static_cast<std::uint32_t>(index), text}};
  for (const int child : {2 * index + 1, 2 * index + 2})
    if (child < count)
      decode_into(entries, read_and_remove(client, client.key(round, child), child));
  if (index != 0) client.store.set(client.key(round, index), encode(entries));
  return entries;
}

std::vector<std::string> in_order(Entries entries, int count) {
  std::ranges::sort(entries, {}, &Entries::value_type::first);
  std::vector<std::string> texts;
  for (auto& [index, text] : entries) {
    if (index >= static_cast<std::uint32_t>(count))
      throw Error(Errc::system, "a value in the store has an invalid index");
    texts.push_back(std::move(text));
  }
  return texts;
}

std::string result_key(const StoreClient& client, std::string_view round, int index) {
  return client.key(formatted("{}/result", round), index);
}

}  // namespace

int levels_below(int participant, int count) {
  int levels = 0;
  for (int child = 2 * participant + 1; child < count; child = 2 * child + 1) ++levels;
  return levels;
}

std::string StoreClient::key(std::string_view round) const {
  return formatted("{}/{}", prefix, round);
}

std::string StoreClient::key(std::string_view round, int index) const {
  return formatted("{}/{}/{}", prefix, round, index);
}

std::string StoreClient::read(const std::string& key, int participant) const {
  for (;;) {
    const Deadline next_poll = std::min(deadline, Clock::now() + poll_interval);
    try {
      return store.get(key, time_left(next_poll));
    } catch (const Error& error) {
      if (error.code() != Errc::timeout) throw;
      if (Clock::now() >= deadline) throw StoreTimeout(error, participant);
    }
    if (!while_waiting) continue;
    try {
      while_waiting(participant);
    } catch (const Error&) {
      // A participant that has gone may have written the key before.
      const std::exception_ptr reason = std::current_exception();
      try {
        return store.get(key, std::chrono::milliseconds(0));
      } catch (const Error&) {
        std::rethrow_exception(reason);
      }
    }
  }
}

std::vector<std::string> store_gather(const StoreClient& client, std::string_view round, int index,
                                      int count, const std::string& text) {
  Entries entries = gather_subtree(client, round, index, count, text);
  return index == 0 ? in_order(std::move(entries), count) : std::vector<std::string>();
}

std::vector<std::string> store_allgather(const StoreClient& client, std::string_view round,
                                         int index, int count, const std::string& text) {
  Entries entries = gather_subtree(client, round, index, count, text);
  if (index == 0) {
    client.store.set(client.key(round), encode(entries));
  } else {
    entries.clear();
    decode_into(entries, client.read(client.key(round), 0));
  }
  return in_order(std::move(entries), count);
}

std::string store_broadcast(const StoreClient& client, std::string_view round, int index, int count,
                            const std::string& text) {
  if (index != 0) return read_and_remove(client, result_key(client, round, index), 0);
  for (int receiver = 1; receiver < count; ++receiver)
    client.store.set(result_key(client, round, receiver), text);
  return text;
}

void remove_key(Store& store, const std::string& key) noexcept {
  try {
    store.remove(key);
  } catch (const std::exception&) {
    // The key stays.
  }
}

}  // namespace tccl
