// Control connections: frames from anyone who can reach the port, cut at arbitrary places, and both
// sides of the handshake.
#include <cstdlib>
#include <vector>

#include "fuzz/input.h"
#include "health/control_handshake.h"
#include "health/control_protocol.h"
#include "tccl/error.h"

namespace tccl::control {
namespace {

const std::string kSecret = "the secret of the group";

void expect(bool condition) {
  if (!condition) std::abort();
}

/// What is decoded is encoded to the same frame.
template <class T>
T decode_and_encode(const Frame& frame) {
  const T value = decode<T>(frame.body);
  if (frame.body.size() <= kMaxBodyBytes) expect(encode(value) == encode(frame.kind, frame.body));
  return value;
}

/// One connection: acceptor and connector at once, as frames of both kinds may come.
class Peer {
 public:
  void handle(const Frame& frame) {
    switch (frame.kind) {
      case FrameKind::challenge:
        connector_.respond_to(decode_and_encode<Challenge>(frame), self_, other_);
        return;
      case FrameKind::response: {
        const auto response = decode_and_encode<ConnectorResponse>(frame);
        const bool known = response.key == key_id(kSecret);
        acceptor_.check_response(response, known ? &kSecret : nullptr, other_);
        std::abort();  // nobody guesses the proof
      }
      case FrameKind::confirmation:
        connector_.check_confirmation(decode_and_encode<AcceptorConfirmation>(frame), self_,
                                      other_);
        std::abort();
      case FrameKind::notice:
        decode_and_encode<Notice>(frame);
        return;
      default:
        return;
    }
  }

 private:
  static Handshake connected() {
    Handshake handshake = Handshake::connecting(kSecret);
    handshake.set_connected();
    return handshake;
  }
  Handshake connector_ = connected();
  Handshake acceptor_ = Handshake::accepting();
  RemoteProcess::Identity self_{.host = "a", .pid = 1, .address = "10.0.0.1", .port = 1};
  Bytes32 other_{};
};

}  // namespace
}  // namespace tccl::control

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tccl::control;
  tccl::fuzz::Input input(data, size);
  FrameReader reader;
  Peer peer;
  const std::size_t piece = 1 + input.take<std::uint8_t>();
  try {
    while (!input.empty()) {
      reader.append(input.take_bytes(piece));
      while (const auto frame = reader.next()) {
        try {
          peer.handle(*frame);
        } catch (const ConnectionClosed&) {  // what the protocol forbids
        } catch (const tccl::Error&) {       // a body that does not fit its kind
        }
      }
    }
  } catch (const tccl::Error&) {  // not frames
  }
  return 0;
}
