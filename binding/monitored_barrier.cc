#include "monitored_barrier.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "errors.h"

namespace torch_ccl {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// Tags of users are 31 bits.
constexpr std::uint64_t kTag = std::uint64_t{1} << 40;
enum Answer : char { kFailed = 0, kPassed = 1 };

class MonitoredBarrier {
 public:
  MonitoredBarrier(std::shared_ptr<tccl::Communicator> communicator, std::uint32_t number,
                   milliseconds timeout)
      : communicator_(std::move(communicator)),
        tag_(kTag + number),
        timeout_(timeout),
        deadline_(Clock::now() + timeout) {}

  void lead(bool wait_all_ranks) {
    std::vector<Message> arrivals;
    for (int rank = 1; rank < communicator_->size(); ++rank) arrivals.push_back(receive(rank));
    std::vector<int> missing;
    for (int rank = 1; rank < communicator_->size(); ++rank) {
      if (!arrives(arrivals[static_cast<std::size_t>(rank - 1)])) missing.push_back(rank);
      if (!missing.empty() && !wait_all_ranks) break;
    }
    const Answer answer = missing.empty() ? kPassed : kFailed;
    for (int rank = 1; rank < communicator_->size(); ++rank)
      answer_when_here(arrivals[static_cast<std::size_t>(rank - 1)], rank, answer);
    if (missing.empty()) return;
    // Zero time is never enough: then it is not the others that are late.
    TORCH_CHECK(timeout_.count() > 0, "[Rank 0]: Rank 0 timed out in monitoredBarrier after ",
                timeout_.count(), " ms: group ", communicator_->name(), " was given no time");
    TORCH_CHECK(false, "[Rank 0]: ", missing.size() > 1 ? "Ranks " : "Rank ", list_of(missing),
                " failed to pass monitoredBarrier in ", timeout_.count(), " ms (group ",
                communicator_->name(), ")");
  }

  void follow() {
    send(*communicator_, 0, tag_, kPassed);
    const Message answer = receive(0);
    if (arrives(answer) && *answer.buffer == kPassed) return;
    TORCH_CHECK(false, "[Rank ", communicator_->rank(), "]: Rank ", communicator_->rank(),
                " successfully reached monitoredBarrier, but received errors while waiting for ",
                "send/recv from rank 0: ",
                answer.work->done() ? "another rank did not come in time, rank 0 knows which"
                                    : "rank 0 did not answer in time",
                " (group ", communicator_->name(), ", ", timeout_.count(), " ms)");
  }

 private:
  struct Message {
    std::shared_ptr<char> buffer;
    std::shared_ptr<tccl::Work> work;
  };

  // The operations outlive the barrier if nobody answers; that must not fail the group.
  [[nodiscard]] static tccl::Communicator::CallOptions patient(const Message& message) {
    return {.timeout = milliseconds::max(), .keepalive = message.buffer};
  }

  Message receive(int source) {
    Message message{std::make_shared<char>(kFailed), nullptr};
    message.work =
        communicator_->start(tccl::recv(message.buffer.get(), 1, source, tag_), patient(message));
    return message;
  }

  static void send(tccl::Communicator& communicator, int destination, std::uint64_t tag,
                   Answer answer) {
    const Message message{std::make_shared<char>(answer), nullptr};
    communicator.start(tccl::send(message.buffer.get(), 1, destination, tag), patient(message));
  }

  // A rank that comes after the others have given up learns it at once.
  void answer_when_here(const Message& arrival, int rank, Answer answer) {
    const std::weak_ptr<tccl::Communicator> group = communicator_;
    arrival.work->on_done([group, rank, answer, tag = tag_, work = arrival.work.get()] {
      const auto communicator = group.lock();
      if (communicator && !work->error()) send(*communicator, rank, tag, answer);
    });
  }

  // Throws only what has nothing to do with time.
  [[nodiscard]] bool arrives(const Message& message) const {
    const auto left = std::chrono::ceil<milliseconds>(deadline_ - Clock::now());
    try {
      message.work->wait(std::max(left, milliseconds(0)));
      return true;
    } catch (const tccl::Error& error) {
      if (message.work->done()) throw_as_torch(error);
      return false;
    }
  }

  static std::string list_of(const std::vector<int>& ranks) {
    std::string list;
    for (const int rank : ranks) list += (list.empty() ? "" : ", ") + std::to_string(rank);
    return list;
  }

  const std::shared_ptr<tccl::Communicator> communicator_;
  const std::uint64_t tag_;
  const milliseconds timeout_;
  const Clock::time_point deadline_;
};

}  // namespace

void monitored_barrier(const std::shared_ptr<tccl::Communicator>& communicator,
                       std::uint32_t number, std::chrono::milliseconds timeout,
                       bool wait_all_ranks) {
  MonitoredBarrier barrier(communicator, number, timeout);
  try {
    communicator->rank() == 0 ? barrier.lead(wait_all_ranks) : barrier.follow();
  } catch (const tccl::Error& error) {
    throw_as_torch(error);
  }
}

}  // namespace torch_ccl
