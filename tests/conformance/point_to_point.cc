#include "point_to_point.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "buffers.h"
#include "data.h"

namespace conformance {

namespace {

constexpr int kMessages = 3;  // per pair, where a pattern sends several
constexpr std::uint64_t kTagsPerCase = 8;

/// The messages of one rank in one case, with their buffers.
class Traffic {
 public:
  Traffic(std::uint64_t seed, const Case& one, const Group& group)
      : seed_(seed), case_(one), group_(group) {}

  [[nodiscard]] int size() const { return group_.size(); }
  [[nodiscard]] int rank() const { return group_.rank(); }
  [[nodiscard]] int next() const { return (rank() + 1) % size(); }
  [[nodiscard]] int previous() const { return (rank() + size() - 1) % size(); }
  [[nodiscard]] int root() const { return case_.root(size()); }
  [[nodiscard]] bool is_async() const { return case_.async_on(rank()); }

  void start_send(int to, int number, int tag) {
    const std::shared_ptr<Outgoing> message = add_outgoing(to, number);
    message->work = group_.communicator->start(sending(*message, to, tag), keeping(message));
  }
  void run_send(int to, int number, int tag) {
    group_.communicator->run(sending(*add_outgoing(to, number), to, tag));
  }
  void start_recv(int from, int number, int tag) {
    const std::shared_ptr<Incoming> message = add_incoming(from, number);
    message->work = group_.communicator->start(receiving(*message, tag), keeping(message));
  }
  void run_recv(int from, int number, int tag) {
    group_.communicator->run(receiving(*add_incoming(from, number), tag));
  }

  std::optional<std::string> finish();

 private:
  struct Message {
    Message(int number_, std::size_t bytes) : number(number_), buffer({bytes}, false, 1) {}
    int number;
    Blocks buffer;
    std::shared_ptr<tccl::Work> work;
  };
  using Outgoing = Message;
  struct Incoming : Message {
    Incoming(int from_, int number_, std::size_t bytes) : Message(number_, bytes), from(from_) {}
    int from;
  };

  /// Later messages of a pair are longer, so that swapped messages also differ in size. Messages
  /// for any-source receives all have one size, because any of them may match.
  [[nodiscard]] std::size_t message_bytes(int number) const {
    const bool varies = case_.pattern == Pattern::tags || case_.pattern == Pattern::fifo;
    return case_.count + (varies ? static_cast<std::size_t>(number) : 0);
  }
  [[nodiscard]] std::uint64_t full_tag(int tag) const {
    return case_.index * kTagsPerCase + static_cast<std::uint64_t>(tag);
  }
  [[nodiscard]] Bytes content(int from, int to, int number) const {
    return make_message(seed_, case_, from, to, number, message_bytes(number));
  }

  std::shared_ptr<Outgoing> add_outgoing(int to, int number) {
    auto message = std::make_shared<Outgoing>(number, message_bytes(number));
    message->buffer.write(0, content(rank(), to, number));
    message->buffer.save();
    return outgoing_.emplace_back(std::move(message));
  }
  std::shared_ptr<Incoming> add_incoming(int from, int number) {
    return incoming_.emplace_back(std::make_shared<Incoming>(from, number, message_bytes(number)));
  }
  /// After an error, messages may be in flight: their buffers must outlive this object.
  static tccl::Communicator::CallOptions keeping(std::shared_ptr<const void> message) {
    tccl::Communicator::CallOptions options;
    options.keepalive = std::move(message);
    return options;
  }
  tccl::Operation sending(Outgoing& message, int to, int tag) {
    const std::span<std::byte> bytes = message.buffer[0];
    return tccl::send(bytes.data(), bytes.size(), to, full_tag(tag));
  }
  tccl::Operation receiving(Incoming& message, int tag) {
    const std::span<std::byte> bytes = message.buffer[0];
    return tccl::recv(bytes.data(), bytes.size(), message.from, full_tag(tag));
  }

  std::optional<std::string> check(Incoming& message);

  std::uint64_t seed_;
  const Case& case_;
  const Group& group_;
  std::vector<std::shared_ptr<Outgoing>> outgoing_;
  std::vector<std::shared_ptr<Incoming>> incoming_;
  std::map<int, int> from_anyone_;  // messages so far, by source
};

std::optional<std::string> Traffic::finish() {
  for (const auto& message : incoming_) {
    if (message->work) message->work->wait();
  }
  for (const auto& message : outgoing_) {
    if (message->work) message->work->wait();
    if (!message->buffer.unchanged()) return "a sent message or bytes around it were changed";
  }
  for (const auto& message : incoming_) {
    if (auto problem = check(*message)) return problem;
  }
  return {};
}

std::optional<std::string> Traffic::check(Incoming& message) {
  int source = message.from;
  int number = message.number;
  if (source == tccl::kAnySource) {
    source = message.work->source();
    if (source < 0 || source >= size() || source == rank()) {
      return "any-source recv reports source " + std::to_string(source);
    }
    number = from_anyone_[source]++;
  } else if (message.work && message.work->source() != source) {
    return "source() is " + std::to_string(message.work->source()) + " for a recv from " +
           std::to_string(source);
  }
  if (!message.buffer.guards_intact()) return "bytes around a received message were changed";
  const auto index = first_difference(tccl::DType::uint8, content(source, rank(), number),
                                      message.buffer[0], false);
  if (!index) return {};
  return "message " + std::to_string(number) + " from group rank " + std::to_string(source) +
         " differs at byte " + std::to_string(*index) + " of " +
         std::to_string(message.buffer[0].size());
}

/// A blocking ring does not deadlock if one rank receives first.
void ring(Traffic& traffic) {
  if (traffic.is_async()) {
    traffic.start_recv(traffic.previous(), 0, 0);
    traffic.start_send(traffic.next(), 0, 0);
  } else if (traffic.rank() % 2 == 0) {
    traffic.run_send(traffic.next(), 0, 0);
    traffic.run_recv(traffic.previous(), 0, 0);
  } else {
    traffic.run_recv(traffic.previous(), 0, 0);
    traffic.run_send(traffic.next(), 0, 0);
  }
}

void tags(Traffic& traffic) {
  for (int tag = 0; tag < kMessages; ++tag) traffic.start_send(traffic.next(), tag, tag);
  for (int tag = kMessages - 1; tag >= 0; --tag) {
    if (traffic.is_async()) {
      traffic.start_recv(traffic.previous(), tag, tag);
    } else {
      traffic.run_recv(traffic.previous(), tag, tag);
    }
  }
}

void fifo(Traffic& traffic) {
  for (int number = 0; number < kMessages; ++number) {
    traffic.start_send(traffic.next(), number, 0);
  }
  for (int number = 0; number < kMessages; ++number) {
    if (traffic.is_async()) {
      traffic.start_recv(traffic.previous(), number, 0);
    } else {
      traffic.run_recv(traffic.previous(), number, 0);
    }
  }
}

/// Two messages per source, to check the order within a source.
void any_source(Traffic& traffic) {
  constexpr int kEach = 2;
  if (traffic.rank() == traffic.root()) {
    for (int i = 0; i < kEach * (traffic.size() - 1); ++i) {
      traffic.start_recv(tccl::kAnySource, 0, 0);
    }
    return;
  }
  for (int number = 0; number < kEach; ++number) {
    if (traffic.is_async()) {
      traffic.start_send(traffic.root(), number, 0);
    } else {
      traffic.run_send(traffic.root(), number, 0);
    }
  }
}

void exchange(Traffic& traffic) {
  for (int peer = 0; peer < traffic.size(); ++peer) {
    if (peer != traffic.rank()) traffic.start_send(peer, 0, 0);
  }
  for (int peer = traffic.size() - 1; peer >= 0; --peer) {
    if (peer != traffic.rank()) traffic.start_recv(peer, 0, 0);
  }
}

}  // namespace

std::optional<std::string> run_pattern(std::uint64_t seed, const Case& one, const Group& group) {
  if (group.size() == 1) return {};
  Traffic traffic(seed, one, group);
  switch (one.pattern) {
    case Pattern::ring:
      ring(traffic);
      break;
    case Pattern::tags:
      tags(traffic);
      break;
    case Pattern::fifo:
      fifo(traffic);
      break;
    case Pattern::any_source:
      any_source(traffic);
      break;
    case Pattern::exchange:
      exchange(traffic);
      break;
    case Pattern::none:
      break;
  }
  return traffic.finish();
}

}  // namespace conformance
