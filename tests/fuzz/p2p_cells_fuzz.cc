// The message protocol of sends and receives: cells of a peer, whatever their headers say.
#include <unistd.h>

#include <cstdlib>
#include <vector>

#include "communicator/p2p_protocol.h"
#include "fuzz/input.h"
#include "health/local_process.h"
#include "tccl/error.h"
#include "transport/shm/arena.h"
#include "transport/shm/shm_link.h"

namespace tccl {
namespace {

constexpr std::size_t kEagerBytes = 128;

/// Two ranks of one host in this process.
class Pair {
 public:
  Pair() {
    for (int rank : {0, 1}) groups_[rank]->set_members({member(0), member(1)}, {0, 1}, rank);
  }
  ~Pair() {
    for (const auto& group : groups_) group->close();
    for (const auto& group : groups_)
      if (!group->try_free()) std::abort();
  }
  Pair(const Pair&) = delete;
  Pair& operator=(const Pair&) = delete;

  [[nodiscard]] const std::shared_ptr<shm::LocalGroup>& group(int rank) const {
    return groups_[rank];
  }

 private:
  static shm::Arena& arena(int rank) {
    static shm::Arena arenas[2]{shm::Arena(std::size_t{256} << 20),
                                shm::Arena(std::size_t{256} << 20)};
    return arenas[rank];
  }
  static std::shared_ptr<shm::LocalGroup> make_group(int rank) {
    return std::make_shared<shm::LocalGroup>(arena(rank), shm::GroupIdentity{"world", 1, 1},
                                             shm::RegionLayout::of(2, 64));
  }
  shm::LocalMember member(int rank) {
    return {std::make_shared<LocalProcess>(arena(rank).memory(), "host", ::getpid()),
            groups_[rank]->region_offset()};
  }
  std::shared_ptr<shm::LocalGroup> groups_[2]{make_group(0), make_group(1)};
};

class Receiver {
 public:
  explicit Receiver(const Pair& pair)
      : membership_(pair.group(0), HostMap(std::vector{0, 0}), {}, nullptr),
        protocol_(*pair.group(0), membership_, nullptr, kEagerBytes) {}
  ~Receiver() { protocol_.fail_all(nullptr); }
  Receiver(const Receiver&) = delete;
  Receiver& operator=(const Receiver&) = delete;

  void start(bool is_send, std::size_t bytes, std::uint64_t tag, bool any_source) {
    // A buffer of its own: AddressSanitizer sees a byte too many.
    auto& buffer = buffers_.emplace_back(std::make_unique<std::byte[]>(bytes));
    const Operation operation = is_send
                                    ? send(buffer.get(), bytes, 1, tag)
                                    : recv(buffer.get(), bytes, any_source ? kAnySource : 1, tag);
    protocol_.start(
        std::make_shared<P2pWork>(nullptr, operation, Communicator::CallOptions(), ++sequence_));
    advance();
  }
  void advance() {
    while (protocol_.advance()) {
    }
    for (const P2pWorkPtr& work : protocol_.take_finished())
      if (work->moved_bytes > work->operation.count) std::abort();
  }

 private:
  Membership membership_;
  P2pProtocol protocol_;
  std::vector<std::unique_ptr<std::byte[]>> buffers_;  // NOLINT(modernize-avoid-c-arrays)
  std::uint64_t sequence_ = 0;
};

void post_cell(shm::ShmLink& link, fuzz::Input& input) {
  const std::string_view payload = input.take_text().substr(0, kEagerBytes);
  CellHeader header{};
  header.kind = static_cast<CellKind>(input.take<std::uint8_t>());
  header.payload_bytes = static_cast<std::uint32_t>(payload.size());
  header.tag = input.take<std::uint8_t>() % 4;
  header.message_id = input.take<std::uint8_t>() % 4;
  header.message_bytes =
      input.take<std::uint8_t>() % 2 != 0 ? payload.size() : input.take<std::uint64_t>();
  if (link.has_room()) link.post(header, payload.data());
}

}  // namespace
}  // namespace tccl

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tccl;
  fuzz::Input input(data, size);
  const Pair pair;
  Receiver receiver(pair);
  shm::ShmLink peer(*pair.group(1), 0, kEagerBytes);
  try {
    while (!input.empty()) {
      const auto action = input.take<std::uint8_t>();
      if (action % 2 == 0)
        post_cell(peer, input);
      else
        receiver.start((action & 2) != 0, input.take<std::uint16_t>() % 1024, action >> 6,
                       (action & 4) != 0);
      receiver.advance();
    }
  } catch (const Error&) {  // a malformed cell fails the group
  }
  return 0;
}
