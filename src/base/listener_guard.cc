#include "base/listener_guard.h"

#include <linux/filter.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "base/format.h"
#include "base/log.h"
#include "base/system_error.h"

namespace tccl {
namespace {

/// Silent connections are handed over after this time all the same.
constexpr int kDeferSeconds = 120;

using Filter = std::vector<sock_filter>;

/// The words of an IP address, as a filter loads them.
std::vector<std::uint32_t> words_of(const SocketAddress& address) {
  std::array<std::uint32_t, 4> words{};
  std::size_t count = words.size();
  if (address.family() == AF_INET6) {
    const auto* ip = reinterpret_cast<const sockaddr_in6*>(address.get());
    std::memcpy(words.data(), &ip->sin6_addr, sizeof ip->sin6_addr);
  } else {
    words.front() = reinterpret_cast<const sockaddr_in*>(address.get())->sin_addr.s_addr;
    count = 1;
  }
  std::vector<std::uint32_t> result(words.begin(), words.begin() + static_cast<int>(count));
  for (std::uint32_t& word : result) word = ntohl(word);
  return result;
}

void accept_packet(Filter& filter) {
  filter.push_back(BPF_STMT(BPF_RET | BPF_K, std::numeric_limits<std::uint32_t>::max()));
}

/// Keeps the words of the packet's source address in the filter's memory: an instruction that reads
/// the packet becomes many when the kernel translates it, and the size of a filter is limited.
void load_source(Filter& filter, int family) {
  // The filter sees the packet from the TCP header on; the IP header is at a special offset.
  const std::uint32_t offset =
      static_cast<std::uint32_t>(SKF_NET_OFF) + (family == AF_INET6 ? 8 : 12);
  for (std::uint32_t i = 0; i < (family == AF_INET6 ? 4U : 1U); ++i) {
    filter.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offset + 4 * i));
    filter.push_back(BPF_STMT(BPF_ST, i));
  }
}

/// Accepts the packet if it comes from this host, else continues behind.
void accept_from(Filter& filter, const SocketAddress& host) {
  const std::vector<std::uint32_t> words = words_of(host);
  for (std::uint32_t i = 0; i < words.size(); ++i) {
    const auto behind = static_cast<std::uint8_t>(2 * (words.size() - i) - 1);
    filter.push_back(BPF_STMT(BPF_LD | BPF_MEM, i));
    filter.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, words[i], 0, behind));
  }
  accept_packet(filter);
}

/// Drops connection requests of other hosts. Accepted connections inherit the filter, so it ends at
/// once for all other packets.
Filter filter_for(const std::vector<SocketAddress>& hosts) {
  constexpr std::uint32_t kOffsetOfFlags = 13;
  Filter filter{BPF_STMT(BPF_LD | BPF_B | BPF_ABS, kOffsetOfFlags),
                BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, TH_SYN, 1, 0)};
  accept_packet(filter);
  if (!hosts.empty()) load_source(filter, hosts.front().family());  // all have the same
  for (const SocketAddress& host : hosts) accept_from(filter, host);
  filter.push_back(BPF_STMT(BPF_RET | BPF_K, 0));
  return filter;
}

/// Returns why the kernel does not take the filter; empty if it does.
std::string attach(int socket, Filter& filter) {
  if (filter.size() > BPF_MAXINSNS)
    return formatted("it would have more than {} instructions", BPF_MAXINSNS);
  const sock_fprog program{static_cast<unsigned short>(filter.size()), filter.data()};
  if (::setsockopt(socket, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) == 0) return {};
  return reason_of(errno);
}

}  // namespace

ListenerGuard::ListenerGuard(const SocketAddress& listener)
    : listener_(find_listener(listener)), address_(listener) {
  if (listener_ < 0) {
    warn_open("this process has no listener with that address");
    return;
  }
  ::setsockopt(listener_, IPPROTO_TCP, TCP_DEFER_ACCEPT, &kDeferSeconds, sizeof kDeferSeconds);
  update_filter();
}

void ListenerGuard::admit(const SocketAddress& host) {
  const auto is_this_host = [&](const SocketAddress& other) {
    return words_of(other) == words_of(host);
  };
  if (listener_ < 0 || host.family() != address_.family() ||
      std::ranges::any_of(admitted_, is_this_host))
    return;
  admitted_.push_back(host);
  update_filter();
}

void ListenerGuard::update_filter() {
  Filter filter = filter_for(admitted_);
  const std::string reason = attach(listener_, filter);
  is_filtering_ = reason.empty();
  if (is_filtering_) return;
  const int unused = 0;
  ::setsockopt(listener_, SOL_SOCKET, SO_DETACH_FILTER, &unused, sizeof unused);
  warn_open(formatted("the kernel takes no filter for {} hosts: {}", admitted_.size(), reason));
}

void ListenerGuard::warn_open(const std::string& reason) {
  if (std::exchange(warned_, true)) return;
  log_warning(formatted("hosts outside the job can connect to the data port {}: {}",
                        address_.text(), reason));
}

}  // namespace tccl
