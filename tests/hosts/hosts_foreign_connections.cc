// Connections and messages of processes that are no ranks of the job. How to run it: ranks_on_hosts.h.
#include <sys/mman.h>
#include <sys/resource.h>

#include <deque>
#include <fstream>
#include <set>

#include "base/poll.h"
#include "base/tcp_socket.h"
#include "ranks_on_hosts.h"
#include "transport/ofi/network.h"

namespace faults {
namespace {

/// The ports on which processes of this host listen.
std::set<std::uint16_t> listening_ports() {
  std::ifstream table("/proc/thread-self/net/tcp");
  std::set<std::uint16_t> ports;
  std::string line;
  while (std::getline(table, line)) {
    std::istringstream fields(line);
    std::string number;
    std::string local;
    std::string remote;
    std::string state;
    fields >> number >> local >> remote >> state;
    if (state == "0A")
      ports.insert(
          static_cast<std::uint16_t>(std::stoul(local.substr(local.find(':') + 1), nullptr, 16)));
  }
  return ports;
}

/// For a process of host `from`.
std::set<std::uint16_t> listening_ports_of_host_0(int from) {
  enter_host(0);
  std::set<std::uint16_t> ports = listening_ports();
  enter_host(from);
  return ports;
}

std::string address_of_host(int host) { return "10.77.0." + std::to_string(host + 1); }

/// A stranger on host `from` opens many connections to each port of rank 0 and says nothing. The
/// ranks, which may open few files, form another group.
void flood_silently(int from) {
  constexpr rlim_t kLimit = 1024;
  constexpr int kConnections = 1500;
  Ranks ranks = start_on_hosts({0, 1, from}, [=](Rank& rank) {
    auto store = rank.store("meanwhile");
    if (rank.rank == 2) {
      static_cast<void>(store->get("ready", 20s));
      const std::set<std::uint16_t> ports = listening_ports_of_host_0(from);
      check(ports.size() == 2, "a control port and a data port");
      std::vector<tccl::Fd> silent;
      for (const std::uint16_t port : ports)
        for (int i = 0; i < kConnections; ++i)
          silent.push_back(
              tccl::start_connecting(tccl::SocketAddress::parse(address_of_host(0), port)));
      std::this_thread::sleep_for(300ms);  // connected, unless the requests were dropped
      store->set("flooded", "");
      static_cast<void>(store->get("done", 20s));
      return;
    }
    const rlimit limits{.rlim_cur = kLimit, .rlim_max = kLimit};
    check(::setrlimit(RLIMIT_NOFILE, &limits) == 0, "setrlimit");
    const auto create = [&](const std::string& name) {
      return tccl::Communicator::create(rank.context(), *rank.store(name), rank.rank, 2,
                                        {.name = name, .timeout = 10s});
    };
    auto first = create("first");
    expect_sum(*first);
    if (rank.rank == 0) store->set("ready", "");
    static_cast<void>(store->get("flooded", 20s));
    for (int i = 0; i < 2000; ++i) expect_sum(*first);
    const int descriptors = count_entries("/proc/self/fd");
    auto second = create("second");
    expect_sum(*second);
    check(descriptors < 400, "the data port keeps no silent connections");
    store->set("done", "");
  });
  ranks.expect_all_exit_cleanly();
}

TEST(Hosts, SilentConnectionsOfAnotherHostTakeNoDescriptors) { flood_silently(2); }
TEST(Hosts, SilentConnectionsOfAHostOfTheJobTakeNoDescriptors) { flood_silently(1); }

/// Rank 0's data port. Its control port sends a challenge to whoever connects.
std::uint16_t data_port_of_rank_0(const std::set<std::uint16_t>& ports) {
  for (const std::uint16_t port : ports) {
    const tccl::Fd socket =
        tccl::start_connecting(tccl::SocketAddress::parse(address_of_host(0), port));
    if (!tccl::wait_for_event(socket.get(), POLLIN, tccl::deadline_after(1s))) return port;
  }
  throw std::runtime_error("there is no data port");
}

/// Messages of a stranger, who uses libfabric as the ranks do, to the receives for cells of any group.
void send_as_stranger(int from, std::uint16_t port, std::size_t bytes, int count) {
  using namespace tccl::ofi;
  Endpoint endpoint({.provider = "tcp", .address = address_of_host(from)});
  const auto there = tccl::SocketAddress::parse(address_of_host(0), port);
  const auto* raw = reinterpret_cast<const std::byte*>(there.get());
  const fi_addr_t peer = endpoint.add_peer({raw, raw + there.length()});
  const std::vector<std::byte> data(bytes, std::byte{0x5a});
  std::deque<Request> requests(static_cast<std::size_t>(count));
  const auto deadline = tccl::deadline_after(3s);
  const std::uint64_t tag = tag_of(1, tccl::TrafficKind::point_to_point, 0);
  for (Request& request : requests)
    while (!endpoint.send(peer, tag, data, request) && tccl::Clock::now() < deadline)
      endpoint.progress();
  while (endpoint.in_flight_sends() != 0 && tccl::Clock::now() < deadline) endpoint.progress();
}

void exchange(tccl::Communicator& comm, std::size_t bytes) {
  std::vector<std::byte> out(bytes, std::byte(comm.rank() + 1));
  std::vector<std::byte> in(bytes);
  const auto work = comm.start(tccl::send(out.data(), bytes, 1 - comm.rank()));
  comm.run(tccl::recv(in.data(), bytes, 1 - comm.rank()));
  work->wait();
  check(in.front() == std::byte(2 - comm.rank()) && in.back() == in.front(), "the data");
}

/// Redirects the log of this process to a file. Returns its descriptor.
int redirect_log() {
  const int logged = ::memfd_create("logged", 0);
  check(::dup2(logged, 2) == 2, "dup2");
  return logged;
}

void report_lines_about_the_data_port(const Rank& rank, int logged) {
  char text[4096] = {};
  static_cast<void>(!::pread(logged, text, sizeof text - 1, 0));
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);)
    if (line.find("data port") != std::string::npos) rank.report("logged " + line);
}

/// Returns what rank 0 has logged about its data port.
std::vector<std::string> exchange_while_a_stranger_sends(int from, std::size_t bytes, int count) {
  Ranks ranks = start_on_hosts({0, 1, from}, [=](Rank& rank) {
    auto store = rank.store("meanwhile");
    if (rank.rank == 2) {
      static_cast<void>(store->get("ready", 20s));
      send_as_stranger(from, data_port_of_rank_0(listening_ports_of_host_0(from)), bytes, count);
      store->set("sent", "");
      return;
    }
    const int logged = redirect_log();
    auto comm = tccl::Communicator::create(rank.context(), *rank.store("world"), rank.rank, 2,
                                           {.name = "world", .timeout = 10s});
    exchange(*comm, 100);
    if (rank.rank == 0) store->set("ready", "");
    for (bool sent = false; !sent;) {
      try {
        static_cast<void>(store->get("sent", 0s));
        sent = true;
      } catch (const tccl::Error&) {
      }
      int stop = sent ? 1 : 0;
      comm->run(tccl::allreduce(&stop, &stop, 1, DType::int32, ReduceOp::max));
      sent = stop != 0;
      exchange(*comm, 100);
    }
    for (int i = 0; i < 100; ++i) exchange(*comm, 200'000);
    expect_sum(*comm);
    report_lines_about_the_data_port(rank, logged);
  });
  ranks.expect_all_exit_cleanly();
  std::vector<std::string> logged;
  for (const Line& line : ranks.outcomes[0].lines) logged.push_back(line.text);
  return logged;
}

TEST(Hosts, MessagesOfAnotherHostDoNotArrive) {
  EXPECT_TRUE(exchange_while_a_stranger_sends(2, 1000, 100).empty());
}

TEST(Hosts, MessagesOfAStrangerOnAHostOfTheJobAreDroppedAndLogged) {
  const std::vector<std::string> logged = exchange_while_a_stranger_sends(1, 1000, 100);
  ASSERT_EQ(logged.size(), 1U);
  for (const std::string part :
       {" warn: dropped a message that no rank sent, on the data port 10.77.0.1:",
        ": it names no group; hosts connected there: 10.77.0.2"})
    EXPECT_NE(logged.front().find(part), std::string::npos) << logged.front();
}

TEST(Hosts, LargeMessagesOfAStrangerDoNotStopTheMessagesOfRanks) {
  exchange_while_a_stranger_sends(1, 1'000'000, 100);
}

}  // namespace
}  // namespace faults
