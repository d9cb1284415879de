#include "monitored_barrier.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "errors.h"
#include "polling.h"

namespace torch_ccl {
namespace {

using std::chrono::milliseconds;

// The tags of users have 31 bits, so they are all smaller.
constexpr std::uint64_t kFirstTag = std::uint64_t{1} << 40;

/// The content of a message: from rank 0 the result of the barrier, to rank 0 always `passed`.
enum Result : char { failed = 0, passed = 1 };

class MonitoredBarrier {
 public:
  MonitoredBarrier(tccl::Communicator& communicator, std::uint32_t sequence, milliseconds timeout)
      : communicator_(communicator),
        tag_(kFirstTag + sequence),
        timeout_(timeout),
        deadline_(deadline_after(timeout)) {}

  void run_on_rank_0(bool wait_all_ranks) {
    std::vector<Message> arrivals;
    for (int rank = 1; rank < communicator_.size(); ++rank) arrivals.push_back(receive(rank));
    std::vector<int> missing;
    for (Message& arrival : arrivals) {
      if (!arrival.completes_by(deadline_)) missing.push_back(arrival.peer);
      if (!missing.empty() && !wait_all_ranks) break;
    }
    const Result result = missing.empty() ? passed : failed;
    std::vector<Message> replies;
    for (const Message& arrival : arrivals)
      if (arrival.work->done()) replies.push_back(send(arrival.peer, result));
    for (Message& reply : replies) static_cast<void>(reply.completes_by(deadline_));
    if (missing.empty()) return;
    // With a timeout of zero no rank can arrive in time, so naming ranks would mislead.
    TORCH_CHECK(timeout_.count() > 0, "[Rank 0]: Rank 0 timed out in monitoredBarrier after ",
                timeout_.count(), " ms: the timeout of group ", communicator_.name(), " is zero");
    TORCH_CHECK(false, "[Rank 0]: ", missing.size() > 1 ? "Ranks " : "Rank ", join(missing),
                " failed to pass monitoredBarrier in ", timeout_.count(), " ms (group ",
                communicator_.name(), ")");
  }

  void run_on_other_rank() {
    Message arrival = send(0, passed);
    Message reply = receive(0);
    const bool replied = arrival.completes_by(deadline_) && reply.completes_by(deadline_);
    if (replied && *reply.buffer == passed) return;
    TORCH_CHECK(false, "[Rank ", communicator_.rank(), "]: Rank ", communicator_.rank(),
                " successfully reached monitoredBarrier, but received errors while waiting for ",
                "send/recv from rank 0: ",
                replied ? "another rank did not arrive in time; the error of rank 0 names it"
                        : "rank 0 did not reply in time",
                " (group ", communicator_.name(), ", ", timeout_.count(), " ms)");
  }

 private:
  struct Message {
    int peer;
    std::shared_ptr<char> buffer;
    std::shared_ptr<tccl::Work> work;

    /// At the deadline the message is cancelled, so that it cannot fail the group later: a receive
    /// by wait(). Throws only errors other than this timeout.
    [[nodiscard]] bool completes_by(Deadline deadline) {
      try {
        work->wait(tccl::time_left(deadline));
        return true;
      } catch (const tccl::Error& error) {
        if (work->cancel()) return false;
        if (work->error()) throw_torch_error(error);
        return work->done();
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

  Message send(int destination, Result result) {
    Message message(destination, result);
    message.work =
        communicator_.start(tccl::send(message.buffer.get(), 1, destination, tag_),
                            {.timeout = milliseconds::max(), .keepalive = message.buffer});
    return message;
  }

  static std::string join(const std::vector<int>& ranks) {
    std::string list;
    for (const int rank : ranks) list += (list.empty() ? "" : ", ") + std::to_string(rank);
    return list;
  }

  tccl::Communicator& communicator_;
  const std::uint64_t tag_;
  const milliseconds timeout_;
  const Deadline deadline_;
};

}  // namespace

void monitored_barrier(tccl::Communicator& communicator, std::uint32_t sequence,
                       std::chrono::milliseconds timeout, bool wait_all_ranks) {
  MonitoredBarrier barrier(communicator, sequence, timeout);
  try {
    communicator.rank() == 0 ? barrier.run_on_rank_0(wait_all_ranks) : barrier.run_on_other_rank();
  } catch (const tccl::Error& error) {
    throw_torch_error(error);
  }
}

}  // namespace torch_ccl
