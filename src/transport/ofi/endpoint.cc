#include "transport/ofi/endpoint.h"

#include <poll.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_tagged.h>

#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>

#include "base/environment.h"
#include "base/format.h"
#include "base/system_error.h"
#include "base/tcp_socket.h"
#include "tccl/error.h"
#include "transport/ofi/library.h"

namespace tccl::ofi {
namespace {

/// Sleep of providers without a wait object (EFA): short, because nothing wakes it.
constexpr auto kSleepWithoutWaitObject = std::chrono::microseconds(50);
constexpr std::size_t kMaxAddressBytes = 256;
/// Version of the libfabric API.
constexpr std::uint32_t kVersion = FI_VERSION(1, 17);

[[noreturn]] void fail(const char* call, ssize_t result) {
  const int error = static_cast<int>(-result);
  throw Error(Errc::system,
              formatted("libfabric: {}: {}", call,
                        error < FI_ERRNO_OFFSET ? reason_of(error) : library().strerror(error)));
}
void check(const char* call, ssize_t result) {
  if (result != 0) fail(call, result);
}

struct FreeInfo {
  void operator()(fi_info* info) const noexcept { library().freeinfo(info); }
};
using Info = std::unique_ptr<fi_info, FreeInfo>;

/// fi_getinfo() for reliable datagrams with tags; null if the provider does not have them.
Info find_provider(const std::string& provider, const std::string& address, std::uint16_t port) {
  const Info hints(library().dupinfo(nullptr));
  if (!hints) throw std::bad_alloc();
  hints->ep_attr->type = FI_EP_RDM;
  hints->caps = FI_TAGGED | FI_DIRECTED_RECV;
  hints->mode = FI_CONTEXT | FI_CONTEXT2;
  hints->domain_attr->threading = FI_THREAD_DOMAIN;            // mutex_ serialises all calls
  hints->fabric_attr->prov_name = ::strdup(provider.c_str());  // freed with the hints
  fi_info* found = nullptr;
  const std::string service = std::to_string(port);
  const int result =
      library().getinfo(kVersion, address.c_str(), port == 0 ? nullptr : service.c_str(), FI_SOURCE,
                        hints.get(), &found);
  if (result == -FI_ENODATA) return nullptr;
  check("fi_getinfo", result);
  return Info(found);
}

/// From its first fi_getinfo() on, libfabric hides all providers that are not in FI_PROVIDER, also
/// from hints that name one. Scripts set it for MPI, so the provider that is used here is added.
void allow_provider(const std::string& provider) {
  const char* list = std::getenv("FI_PROVIDER");
  if (list == nullptr || *list == '^' || *list == '\0') return;
  const std::string core = provider.substr(0, provider.find(';'));
  if (formatted(",{},", list).find(formatted(",{},", core)) == std::string::npos)
    set_environment_variable("FI_PROVIDER", formatted("{},{}", list, core));
}

/// Before libfabric 1.18, reliable datagrams over TCP are the layered provider tcp;ofi_rxm.
std::vector<std::string> full_names(const std::string& provider) {
  if (provider == "tcp") return {"tcp;ofi_rxm", "tcp"};
  return {provider};
}

Info find_provider(const std::vector<std::string>& candidates, const Endpoint::Options& options) {
  for (const std::string& name : candidates)
    if (Info info = find_provider(name, options.address, options.port)) return info;
  return nullptr;
}

Info required_provider(const std::string& provider, const Endpoint::Options& options) {
  const std::vector<std::string> candidates = full_names(provider);
  if (Info info = find_provider(candidates, options)) return info;
  std::string tried;
  for (const std::string& name : candidates)
    tried += formatted("{}\"{}\"", tried.empty() ? "" : " or ", name);
  throw Error(Errc::system,
              formatted("libfabric has no provider {} for address {} (`fi_info` lists them)", tried,
                        options.address));
}

}  // namespace

Endpoint::Endpoint(const Options& options) {
  library(options.libfabric_path);
  const std::string provider = options.provider.empty() ? "tcp" : options.provider;
  allow_provider(provider);
  if (options.provider.empty() && open_preferred(options)) return;
  open(*required_provider(provider, options));
}

Endpoint::~Endpoint() = default;

/// Opens the first of the preferred providers that can be opened: one that libfabric lists may still
/// lack permissions or memory that it may lock.
bool Endpoint::open_preferred(const Options& options) {
  for (const std::string& preferred : options.preferred_providers) {
    try {
      if (const Info info = find_provider(full_names(preferred), options)) {
        open(*info);
        return true;
      }
    } catch (const Error&) {
      close();
    }
  }
  return false;
}

void Endpoint::close() noexcept {
  guard_ = {};
  endpoint_.reset();
  completions_.reset();
  addresses_.reset();
  domain_.reset();
  fabric_.reset();
  wait_fd_ = -1;
}

void Endpoint::open(fi_info& info) {
  provider_ = info.fabric_attr->prov_name;
  fid_fabric* fabric = nullptr;
  check("fi_fabric", library().fabric(info.fabric_attr, &fabric, nullptr));
  fabric_.reset(fabric);
  fid_domain* domain = nullptr;
  check("fi_domain", ::fi_domain(fabric, &info, &domain, nullptr));
  domain_.reset(domain);
  fi_av_attr table{};
  table.type = FI_AV_TABLE;
  fid_av* addresses = nullptr;
  check("fi_av_open", ::fi_av_open(domain, &table, &addresses, nullptr));
  addresses_.reset(addresses);
  fi_cq_attr queue{};
  queue.format = FI_CQ_FORMAT_TAGGED;
  queue.wait_obj = FI_WAIT_FD;
  fid_cq* completions = nullptr;
  int result = ::fi_cq_open(domain, &queue, &completions, nullptr);
  if (result != 0) {  // some providers, such as EFA, have no wait object
    queue.wait_obj = FI_WAIT_NONE;
    result = ::fi_cq_open(domain, &queue, &completions, nullptr);
  }
  check("fi_cq_open", result);
  completions_.reset(completions);
  if (queue.wait_obj == FI_WAIT_FD)
    check("fi_control(FI_GETWAIT)", ::fi_control(&completions->fid, FI_GETWAIT, &wait_fd_));
  fid_ep* endpoint = nullptr;
  check("fi_endpoint", ::fi_endpoint(domain, &info, &endpoint, nullptr));
  endpoint_.reset(endpoint);
  check("fi_ep_bind", ::fi_ep_bind(endpoint, &addresses->fid, 0));
  check("fi_ep_bind", ::fi_ep_bind(endpoint, &completions->fid, FI_SEND | FI_RECV));
  check("fi_enable", ::fi_enable(endpoint));
  address_.resize(kMaxAddressBytes);
  std::size_t bytes = address_.size();
  check("fi_getname", ::fi_getname(&endpoint->fid, address_.data(), &bytes));
  address_.resize(bytes);
  const auto* local = reinterpret_cast<const sockaddr*>(address_.data());
  if (info.addr_format != FI_SOCKADDR_IN && info.addr_format != FI_SOCKADDR_IN6) return;
  const SocketAddress own(local, static_cast<socklen_t>(bytes));
  close_on_exec(own.port());
  // A peer of other providers need not connect from the address that it advertises.
  if (provider_.starts_with("tcp")) guard_ = ListenerGuard(own);
}

namespace {

/// None if the provider has addresses of its own.
std::optional<SocketAddress> as_socket_address(const Endpoint::RawAddress& address) {
  const auto* bytes = reinterpret_cast<const sockaddr*>(address.data());
  if (address.size() < sizeof(sockaddr_in)) return std::nullopt;
  if (bytes->sa_family != AF_INET && bytes->sa_family != AF_INET6) return std::nullopt;
  return SocketAddress(bytes, static_cast<socklen_t>(address.size()));
}

std::string text_of(const Endpoint::RawAddress& address) {
  const auto socket_address = as_socket_address(address);
  return socket_address ? socket_address->text() : std::string("an address of its provider");
}

}  // namespace

std::string Endpoint::address_text() const { return text_of(address_); }

std::string Endpoint::address_text(fi_addr_t peer) {
  const std::lock_guard lock(mutex_);
  RawAddress address(kMaxAddressBytes);
  std::size_t bytes = address.size();
  if (::fi_av_lookup(addresses_.get(), peer, address.data(), &bytes) != 0) bytes = 0;
  address.resize(std::min(bytes, address.size()));
  return text_of(address);
}

std::vector<std::string> Endpoint::connected_hosts() const {
  const auto own = as_socket_address(address_);
  return own ? hosts_connected_to(own->port()) : std::vector<std::string>();
}

fi_addr_t Endpoint::add_peer(const RawAddress& address) {
  const std::lock_guard lock(mutex_);
  fi_addr_t peer = FI_ADDR_UNSPEC;
  const int added = ::fi_av_insert(addresses_.get(), address.data(), 1, &peer, 0, nullptr);
  if (added != 1) fail("fi_av_insert", added < 0 ? added : -FI_EINVAL);
  guard_.admit(
      {reinterpret_cast<const sockaddr*>(address.data()), static_cast<socklen_t>(address.size())});
  return peer;
}

bool Endpoint::send(fi_addr_t peer, std::uint64_t tag, std::span<const std::byte> data,
                    Request& request) {
  const std::lock_guard lock(mutex_);
  prepare(request);
  if (!start(request, ::fi_tsend(endpoint_.get(), data.data(), data.size(), nullptr, peer, tag,
                                 &request.fi_context_)))
    return false;
  request.is_counted_ = true;
  in_flight_sends_.fetch_add(1, std::memory_order_relaxed);
  return true;
}

void Endpoint::stop_counting(Request& request) noexcept {
  const std::lock_guard lock(mutex_);
  uncount(request);
}

void Endpoint::uncount(Request& request) noexcept {
  if (std::exchange(request.is_counted_, false))
    in_flight_sends_.fetch_sub(1, std::memory_order_relaxed);
}

bool Endpoint::receive(fi_addr_t peer, std::uint64_t tag, std::span<std::byte> data,
                       Request& request, std::uint64_t ignored_tag_bits) {
  const std::lock_guard lock(mutex_);
  prepare(request);
  return start(request, ::fi_trecv(endpoint_.get(), data.data(), data.size(), nullptr, peer, tag,
                                   ignored_tag_bits, &request.fi_context_));
}

void Endpoint::prepare(Request& request) {
  request.done_.store(false, std::memory_order_relaxed);  // not visible to others before the post
  request.error_ = 0;                                     // of an earlier message
  request.bytes_ = 0;
}

bool Endpoint::start(Request& request, ssize_t result) {
  if (result == 0) return true;
  // relaxed: the request was not posted, so only the caller knows it
  request.done_.store(true, std::memory_order_relaxed);
  if (result == -FI_EAGAIN) return false;
  fail("posting a message", result);
}

void Endpoint::cancel(Request& request) noexcept {
  const std::lock_guard lock(mutex_);
  if (!request.done()) ::fi_cancel(&endpoint_->fid, &request.fi_context_);
}

std::size_t Endpoint::progress() {
  const std::lock_guard lock(mutex_);
  return progress_locked();
}

std::size_t Endpoint::try_progress() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  return lock ? progress_locked() : 0;
}

std::size_t Endpoint::progress_locked() {
  std::array<fi_cq_tagged_entry, 16> entries;
  std::size_t completed = 0;
  for (;;) {
    const ssize_t count = ::fi_cq_read(completions_.get(), entries.data(), entries.size());
    if (count == -FI_EAGAIN) return completed;
    if (count == -FI_EAVAIL) {
      completed += complete_failed();
      continue;
    }
    if (count < 0) fail("fi_cq_read", count);
    for (const auto& entry : std::span(entries).first(static_cast<std::size_t>(count)))
      complete(entry.op_context, entry.len, 0);
    completed += static_cast<std::size_t>(count);
    if (static_cast<std::size_t>(count) < entries.size()) return completed;
  }
}

std::size_t Endpoint::complete_failed() {
  fi_cq_err_entry entry{};
  if (::fi_cq_readerr(completions_.get(), &entry, 0) != 1) return 0;
  complete(entry.op_context, entry.len, entry.err);
  return 1;
}

void Endpoint::complete(void* fi_context, std::size_t bytes, int error) {
  if (fi_context == nullptr) return;  // an event without a request
  auto& request = *static_cast<Request*>(fi_context);
  uncount(request);
  request.error_ = error;
  request.bytes_ = bytes;
  request.done_.store(true, std::memory_order_release);  // pairs with Request::done()
}

void Endpoint::sleep(std::chrono::milliseconds timeout) {
  if (wait_fd_ < 0) {
    std::this_thread::sleep_for(std::min<Clock::duration>(timeout, kSleepWithoutWaitObject));
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    fid* queue = &completions_->fid;
    if (::fi_trywait(fabric_.get(), &queue, 1) != 0) return;  // not empty
  }
  pollfd readable{wait_fd_, POLLIN, 0};
  ::poll(&readable, 1, static_cast<int>(timeout.count()));
}

}  // namespace tccl::ofi
