#include "monitored_barrier.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "deadline.h"
#include "errors.h"

namespace torch_ccl {
namespace {

using std::chrono::milliseconds;

// Tags of users are 31 bits.
constexpr std::uint64_t kTag = std::uint64_t{1} << 40;
enum Answer : char { failed = 0, passed = 1 };

class MonitoredBarrier {
 public:
  MonitoredBarrier(tccl::Communicator& communicator, std::uint32_t number, milliseconds timeout)
      : communicator_(communicator),
        tag_(kTag + number),
        timeout_(timeout),
        deadline_(deadline_after(timeout)) {}

  void lead(bool wait_all_ranks) {
    std::vector<Message> arrivals;
    for (int rank = 1; rank < communicator_.size(); ++rank) arrivals.push_back(receive(rank));
    std::vector<int> missing;
    for (Message& arrival : arrivals) {
      if (!arrival.comes_by(deadline_)) missing.push_back(arrival.peer);
      if (!missing.empty() && !wait_all_ranks) break;
    }
    const Answer answer = missing.empty() ? passed : failed;
    std::vector<Message> answers;
    for (const Message& arrival : arrivals)
      if (arrival.work->done()) answers.push_back(send(arrival.peer, answer));
    for (Message& sent : answers) sent.comes_by(deadline_);
    if (missing.empty()) return;
    // Zero time is never enough: then it is not the others that are late.
    TORCH_CHECK(timeout_.count() > 0, "[Rank 0]: Rank 0 timed out in monitoredBarrier after ",
                timeout_.count(), " ms: group ", communicator_.name(), " was given no time");
    TORCH_CHECK(false, "[Rank 0]: ", missing.size() > 1 ? "Ranks " : "Rank ", list_of(missing),
                " failed to pass monitoredBarrier in ", timeout_.count(), " ms (group ",
                communicator_.name(), ")");
  }

  void follow() {
    Message arrival = send(0, passed);
    Message answer = receive(0);
    const bool answered = arrival.comes_by(deadline_) && answer.comes_by(deadline_);
    if (answered && *answer.buffer == passed) return;
    TORCH_CHECK(false, "[Rank ", communicator_.rank(), "]: Rank ", communicator_.rank(),
                " successfully reached monitoredBarrier, but received errors while waiting for ",
                "send/recv from rank 0: ",
                answered ? "another rank did not come in time, rank 0 knows which"
                         : "rank 0 did not answer in time",
                " (group ", communicator_.name(), ", ", timeout_.count(), " ms)");
  }

 private:
  struct Message {
    int peer;
    std::shared_ptr<char> buffer;
    std::shared_ptr<tccl::Work> work;

    /// What has not come is withdrawn: it must do no harm to the group later. Throws only what has
    /// nothing to do with time.
    [[nodiscard]] bool comes_by(Clock::time_point deadline) {
      const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now());
      try {
        work->wait(std::max(left, milliseconds(0)));
        return true;
      } catch (const tccl::Error& error) {
        if (work->done()) throw_as_torch(error);
        return !work->cancel() && work->done();
      }
    }
    ~Message() {
      if (work) work->cancel();
    }
    Message(int rank, char content) : peer(rank), buffer(std::make_shared<char>(content)) {}
    Message(Message&&) = default;
    Message& operator=(Message&&) = default;
  };

  Message receive(int source) {
    Message message(source, failed);
    message.work =
        communicator_.start(tccl::recv(message.buffer.get(), 1, source, tag_),
                            {.timeout = milliseconds::max(), .keepalive = message.buffer});
    return message;
  }

  Message send(int destination, Answer answer) {
    Message message(destination, answer);
    message.work =
        communicator_.start(tccl::send(message.buffer.get(), 1, destination, tag_),
                            {.timeout = milliseconds::max(), .keepalive = message.buffer});
    return message;
  }

  static std::string list_of(const std::vector<int>& ranks) {
    std::string list;
    for (const int rank : ranks) list += (list.empty() ? "" : ", ") + std::to_string(rank);
    return list;
  }

  tccl::Communicator& communicator_;
  const std::uint64_t tag_;
  const milliseconds timeout_;
  const Clock::time_point deadline_;
};

}  // namespace

void monitored_barrier(tccl::Communicator& communicator, std::uint32_t number,
                       std::chrono::milliseconds timeout, bool wait_all_ranks) {
  MonitoredBarrier barrier(communicator, number, timeout);
  try {
    communicator.rank() == 0 ? barrier.lead(wait_all_ranks) : barrier.follow();
  } catch (const tccl::Error& error) {
    throw_as_torch(error);
  }
}

}  // namespace torch_ccl
