// The rendezvous socket of a host, both sides: packets of a process that knows the group's secret,
// or does not. A refused rendezvous ends with an Error.
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <future>

#include "base/log.h"
#include "base/unix_socket.h"
#include "fuzz/input.h"
#include "rendezvous/local_client.h"
#include "rendezvous/local_server.h"
#include "rendezvous/secret.h"
#include "tccl/error.h"
#include "unit/memory_store.h"

namespace tccl {
namespace {

using namespace std::chrono_literals;

const bool is_quiet = (set_log_level(LogLevel::error), true);

RendezvousOptions options_of(int rank, Store& store) {
  return {.store = &store,
          .group = "world",
          .secret = "secret of process " + std::to_string(::getpid()),
          .rank = rank,
          .size = 2,
          .timeout = 1s,
          .deadline = deadline_after(1s),
          .make_peer_info =
              [rank](const std::string&) {
                PeerInfo peer_info;
                peer_info.rank = rank;
                peer_info.size = 2;
                return peer_info;
              },
          .apply_roster = [](const Roster&) {}};
}

int any_file() {
  static const int file = ::memfd_create("fuzz", MFD_CLOEXEC);
  return file;
}

void send(const Fd& socket, std::string_view packet, std::span<const int> fds = {}) {
  if (packet.empty()) return;  // would be the end of the connection
  // Now or never: in attack_server() this thread is also the receiver.
  send_packet(socket.get(), packet.data(), packet.size(), Clock::now(), fds);
}

/// Packets of the length of PeerInfo, as only those pass the first check, or of any length.
void send_packets(const Fd& socket, fuzz::Input& input) {
  while (!input.empty()) {
    const auto kind = input.take<std::uint8_t>();
    const std::vector<int> fds(kind >> 6, any_file());
    if (kind % 4 == 0) {
      send(socket, as_bytes(input.take<Status>()), fds);
    } else if (kind % 4 == 1) {
      PeerInfo peer_info;
      peer_info.rank = input.take<std::int8_t>();
      peer_info.size = 2;
      const std::string_view changes = input.take_text();
      std::memcpy(static_cast<void*>(&peer_info), changes.data(),
                  std::min(changes.size(), sizeof peer_info));
      send(socket, as_bytes(peer_info), fds);
    } else {
      send(socket, input.take_text(), fds);
    }
  }
}

/// A process that connects to the coordinator.
void attack_server(fuzz::Input& input) {
  MemoryStore store;
  const RendezvousOptions options = options_of(0, store);
  const std::string name = rendezvous_socket_name(options.secret);
  LocalServer server(options, listen_on(name));
  Fd socket = connect_to(name);
  server.poll(/*other_fd=*/-1);
  const auto challenge = receive_packet<Challenge>(socket.get(), options.deadline);
  JoinRequest request = input.take<JoinRequest>();
  const bool knows_secret = input.take<std::uint8_t>() % 4 != 0;
  if (knows_secret) request.response = respond(options.secret, challenge, kLocalHandshake);
  send(socket, as_bytes(request));
  server.poll(/*other_fd=*/-1);
  if (server.joined_ranks().size() == 1) return;
  if (!knows_secret) std::abort();
  send_packets(socket, input);
  socket.reset();
  const HostMap host_map(std::vector{0, 0});
  Roster roster;
  roster.local = server.gather_peer_infos(host_map, "");
  for (const LocalPeer& peer : roster.local) roster.all.push_back(peer.peer_info);
  server.distribute(roster, any_file(), -1);
}

/// A process that has taken the coordinator's name.
void attack_client(fuzz::Input& input) {
  MemoryStore store;
  const RendezvousOptions options = options_of(1, store);
  const Fd listener = listen_on(rendezvous_socket_name(options.secret));
  const auto coordinator = std::async(std::launch::async, [&] {
    const Fd socket(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    const auto challenge = input.take<Challenge>();
    send(socket, as_bytes(challenge));
    const auto request = receive_packet<JoinRequest>(socket.get(), options.deadline);
    JoinReply reply = input.take<JoinReply>();
    if (input.take<std::uint8_t>() % 4 != 0)
      reply.confirmation = confirm(options.secret, challenge, request.response, kLocalHandshake);
    send(socket, as_bytes(reply));
    send(socket, as_bytes(input.take<HostAddress>()));
    send_packets(socket, input);
  });
  if (auto client = LocalClient::connect(options)) client->join(any_file(), -1);
}

}  // namespace
}  // namespace tccl

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  tccl::fuzz::Input input(data, size);
  try {
    input.take<std::uint8_t>() % 2 == 0 ? tccl::attack_server(input) : tccl::attack_client(input);
  } catch (const tccl::Error&) {
  }
  return 0;
}
