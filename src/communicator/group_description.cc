#include "communicator/group_description.h"

#include <map>
#include <set>
#include <utility>
#include <vector>

#include "base/cpu_set.h"
#include "base/format.h"
#include "kernels/variants.h"
#include "operation/op_traits.h"
#include "rendezvous/rendezvous.h"

namespace tccl {
namespace {

std::string hosts_text(const Membership& group) {
  const HostMap& hosts = group.host_map();
  std::string text;
  for (int host = 0; host < hosts.hosts(); ++host) {
    const std::span<const int> ranks = hosts.ranks_of(host);
    const int first = ranks.front();
    text += formatted("{}{} {}", text.empty() ? "" : "; ",
                      group.is_local(first) ? host_name() : group.process(first)->identity().host,
                      cpus_text(ranks));
  }
  return formatted("{} rank{} on {} host{} ({})", group.size(), group.size() == 1 ? "" : "s",
                   hosts.hosts(), hosts.hosts() == 1 ? "" : "s", text);
}

std::string transport_text(ContextImpl& context, const Membership& group) {
  if (!group.over_several_hosts()) return "shared memory";
  ofi::Network& network = context.network();
  return formatted("shared memory on a host, libfabric provider {} at {} between hosts",
                   network.endpoint().provider(), network.address());
}

/// "leader_allgather, from 32768 bytes rails". `sizes`: where rules of the operation begin.
std::string algorithms_of(const AlgorithmSelector& selector, Op op,
                          const std::set<std::size_t>& sizes, const Membership& group) {
  std::string text;
  std::string_view last;
  for (const std::size_t bytes : sizes) {
    const std::string_view name =
        selector.select(op, bytes, group.size(), DType::float32, group.over_several_hosts()).name;
    if (name == last) continue;
    text += text.empty() ? std::string(name) : formatted(", from {} bytes {}", bytes, name);
    last = name;
  }
  return text;
}

/// Operations with the same algorithms together: "one_shot for barrier, broadcast; ...".
std::string algorithms_text(const AlgorithmSelector& selector, const Membership& group) {
  std::map<Op, std::set<std::size_t>> sizes;
  for (const AlgorithmRule& rule : selector.rules()) {
    sizes[rule.op].insert({0, rule.from_bytes});
    if (rule.to_bytes + 1 != 0) sizes[rule.op].insert(rule.to_bytes + 1);
  }
  std::map<std::string, std::string> operations;  // by algorithms
  for (const auto& [op, begins] : sizes) {
    std::string& names = operations[algorithms_of(selector, op, begins, group)];
    names += formatted("{}{}", names.empty() ? "" : ", ", name_of(op));
  }
  std::string text;
  for (const auto& [algorithms, names] : operations)
    text += formatted("{}{} for {}", text.empty() ? "" : "; ", algorithms, names);
  return text;
}

}  // namespace

std::string describe_group(ContextImpl& context, const Membership& group) {
  const int workers = context.workers().count();
  return formatted("{}; {}; {} worker{} per rank; kernels {}; algorithms: {}", hosts_text(group),
                   transport_text(context, group), workers, workers == 1 ? "" : "s",
                   kernels::best_variant().name, algorithms_text(context.algorithms(), group));
}

}  // namespace tccl
