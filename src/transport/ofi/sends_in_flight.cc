#include "transport/ofi/sends_in_flight.h"

#include <algorithm>

#include "tccl/error.h"
#include "transport/ofi/library.h"

namespace tccl::ofi {
namespace {

/// Between two polls of close().
constexpr std::chrono::milliseconds kClosePollInterval{1};

bool no_receiver_is_alive(const MessageBuffer& buffer, const Membership& membership) {
  return std::ranges::all_of(buffer.sends(), [&](const MessageBuffer::Send& send) {
    return membership.state_of(send.to) != PeerState::alive;
  });
}

/// Of a message that was sent or failed.
std::optional<SendsInFlight::SendError> error_of(const MessageBuffer& buffer) {
  for (const auto& [to, request] : buffer.sends())
    if (request->error() != 0)
      return SendsInFlight::SendError{to, library().strerror(request->error())};
  return std::nullopt;
}

}  // namespace

std::optional<SendsInFlight::SendError> SendsInFlight::remove_completed() {
  std::optional<SendError> first_error;
  std::erase_if(buffers_, [&](const auto& buffer) {
    if (!buffer->is_idle()) return false;
    if (!first_error) first_error = error_of(*buffer);
    return true;
  });
  return first_error;
}

std::optional<SendsInFlight::SendError> SendsInFlight::remove_completed_in_order() {
  std::optional<SendError> first_error;
  while (!buffers_.empty() && buffers_.front()->is_idle()) {
    if (!first_error) first_error = error_of(*buffers_.front());
    buffers_.pop_front();
  }
  return first_error;
}

void SendsInFlight::close(Network& network, const Membership& membership, Deadline deadline,
                          FunctionRef<bool()> send_queued) noexcept {
  try {
    while ((!send_queued() || !empty()) && !membership.failed() && Clock::now() < deadline) {
      network.progress();
      std::erase_if(buffers_, [&](const auto& buffer) {
        return buffer->is_idle() || no_receiver_is_alive(*buffer, membership);
      });
      network.endpoint().sleep(empty() ? std::chrono::milliseconds(0) : kClosePollInterval);
    }
  } catch (const Error&) {
    // The network has failed: nothing more will be sent.
  }
  buffers_.clear();
}

}  // namespace tccl::ofi
