#include "cases.h"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <utility>

#include "formats.h"
#include "random.h"
#include "reference.h"

namespace conformance {

using tccl::DType;
using tccl::Op;
using tccl::ReduceOp;

namespace {

constexpr int kMaxRanksCoveredInFull = 4;
constexpr std::uint64_t kCaseStream = 1;
constexpr std::uint64_t kOrderStream = 2;

constexpr std::array kPatternNames = {"none", "ring", "tags", "fifo", "any_source", "exchange"};
constexpr std::array kMembersNames = {"world", "halves", "reversed", "fresh"};
constexpr std::array kIssueNames = {"sync", "async", "mixed"};
constexpr std::array kSpreadNames = {"even", "one_only", "growing", "random", "alternating"};
constexpr std::array kFlavourNames = {"ordinary", "special", "ties"};

template <typename Names, typename Enum>
std::string text_of(const Names& names, Enum value) {
  return names.at(static_cast<std::size_t>(value));
}

Case kind_of(Op op, DType dtype = DType::uint8, ReduceOp reduction = ReduceOp::sum) {
  Case kind;
  kind.op = op;
  kind.dtype = dtype;
  kind.reduction = reduction;
  return kind;
}

void add_reductions(Op op, DType dtype, std::vector<Case>& kinds) {
  for (int r = 0; r < tccl::kReduceOpCount; ++r) {
    const auto reduction = static_cast<ReduceOp>(r);
    if (reference_supports(dtype, reduction)) kinds.push_back(kind_of(op, dtype, reduction));
  }
}

void add_collectives(std::vector<Case>& kinds) {
  for (int o = static_cast<int>(Op::broadcast); o <= static_cast<int>(Op::alltoallv); ++o) {
    const auto op = static_cast<Op>(o);
    for (int d = 0; d < tccl::kDTypeCount; ++d) {
      const auto dtype = static_cast<DType>(d);
      if (is_reduction(op)) {
        add_reductions(op, dtype, kinds);
      } else {
        kinds.push_back(kind_of(op, dtype));
      }
    }
  }
}

/// A few of each per round, as many as a collective has per reduction.
void add_others(int ranks, std::vector<Case>& kinds) {
  constexpr int kTimes = 6;
  for (int i = 0; i < kTimes; ++i) {
    kinds.push_back(kind_of(Op::barrier));
    if (ranks == 1) continue;  // no peer
    for (int p = static_cast<int>(Pattern::ring); p <= static_cast<int>(Pattern::exchange); ++p) {
      kinds.push_back(kind_of(Op::send));
      kinds.back().pattern = static_cast<Pattern>(p);
    }
  }
}

bool is_wanted(const Case& kind, const std::vector<std::string>& operations) {
  if (operations.empty()) return true;
  const std::string name = operation_name(kind);
  return std::any_of(operations.begin(), operations.end(), [&](const std::string& wanted) {
    return name == wanted || (kind.op == Op::send && wanted == "p2p");
  });
}

std::vector<Case> kinds_of_case(const CaseRequest& request) {
  std::vector<Case> kinds;
  add_collectives(kinds);
  add_others(request.ranks, kinds);
  std::erase_if(kinds, [&](const Case& kind) { return !is_wanted(kind, request.operations); });
  if (kinds.empty()) throw std::invalid_argument("no operation of that name");
  return kinds;
}

std::size_t size_t_below(Random& random, std::size_t limit) {
  return static_cast<std::size_t>(random.below(limit));
}

std::size_t small_count(Random& random, std::size_t element, std::size_t ranks) {
  const std::size_t line = 56 / element;  // fits into the flag's cache line
  const std::array choices = {
      std::size_t{0}, std::size_t{1},  std::size_t{2},  std::size_t{3},   std::size_t{5},
      std::size_t{7}, std::size_t{13}, std::size_t{31}, std::size_t{64},  std::size_t{65},
      ranks - 1,      ranks,           ranks + 1,       2 * ranks + 1,    line - 1,
      line,           line + 1,        std::size_t{97}, std::size_t{257},
  };
  return choices.at(size_t_below(random, choices.size()));
}

/// Around a limit: one below, at, one above, and past several of them.
std::size_t count_around(Random& random, std::size_t limit, Op op, std::size_t ranks) {
  const bool one_block = op == Op::allreduce || op == Op::reduce || op == Op::broadcast;
  switch (random.below(one_block ? 9 : 7)) {
    case 0:
    case 1:
      return limit - 1;
    case 2:
    case 3:
      return limit;
    case 4:
    case 5:
      return limit + 1;
    case 6:
      return 3 * limit + 5;
    case 7:
      return ranks * limit - 1;
    default:
      return ranks * limit + 1;
  }
}

/// Sizes at which an algorithm's path changes: a slot is full, or each rank's part of it.
std::vector<std::size_t> limits_of(const CaseRequest& request, Op op) {
  const std::size_t part_bytes = request.chunk_bytes / static_cast<std::size_t>(request.ranks);
  if (op == Op::send) return {request.eager_bytes, request.chunk_bytes};
  std::vector<std::size_t> limits = request.limit_bytes;
  limits.push_back(request.chunk_bytes);
  const bool shares_slots = op == Op::scatter || op == Op::scatterv || op == Op::alltoall ||
                            op == Op::alltoallv || op == Op::reduce_scatter ||
                            op == Op::reduce_scatterv;
  if (shares_slots) limits.push_back(part_bytes);
  return limits;
}

/// Sizes around large limits are rare, because they take most of the time of a run.
std::size_t choose_count(Random& random, const CaseRequest& request, const Case& one) {
  const std::size_t element = element_bytes(one.dtype);
  const auto ranks = static_cast<std::size_t>(request.ranks);
  const std::vector<std::size_t> limits = limits_of(request, one.op);
  const std::size_t limit_bytes = limits[size_t_below(random, limits.size())];
  constexpr std::size_t kCheapBytes = 16384;
  const std::uint64_t large = request.large_one_in != 0 ? request.large_one_in : 12 * ranks;
  const std::uint64_t rarity = limit_bytes <= kCheapBytes ? 2 : large;
  if (!random.one_in(rarity)) return small_count(random, element, ranks);
  return count_around(random, std::max<std::size_t>(limit_bytes / element, 1), one.op, ranks);
}

Members choose_members(Random& random) {
  const std::uint64_t draw = random.below(64);
  if (draw < 1) return Members::fresh;
  if (draw < 7) return Members::halves;
  if (draw < 13) return Members::reversed;
  return Members::world;
}

Flavour choose_flavour(Random& random) {
  const std::uint64_t draw = random.below(8);
  return draw == 0 ? Flavour::special : draw == 1 ? Flavour::ties : Flavour::ordinary;
}

bool may_be_in_place(Op op) {
  return op == Op::allreduce || op == Op::reduce || op == Op::allgather || op == Op::allgatherv ||
         op == Op::alltoall;
}

Case complete(Case one, std::uint64_t index, const CaseRequest& request) {
  Random random({request.seed, kCaseStream, static_cast<std::uint64_t>(request.ranks), index});
  one.index = index;
  one.count = choose_count(random, request, one);
  one.root_draw = random.next() >> 1;
  one.in_place = may_be_in_place(one.op) && random.one_in(3);
  one.null_if_unused = random.one_in(2);
  one.issue = static_cast<Issue>(random.below(3));
  one.members = choose_members(random);
  one.spread = static_cast<Spread>(random.below(5));
  one.flavour = choose_flavour(random);
  return one;
}

void shuffle(std::vector<Case>& kinds, Random& random) {
  for (std::size_t i = kinds.size(); i > 1; --i) {
    std::swap(kinds[i - 1], kinds[size_t_below(random, i)]);
  }
}

}  // namespace

std::vector<Case> make_cases(const CaseRequest& request) {
  std::vector<Case> kinds = kinds_of_case(request);
  Random random({request.seed, kOrderStream, static_cast<std::uint64_t>(request.ranks)});
  const bool in_full = request.ranks <= kMaxRanksCoveredInFull;
  std::vector<Case> cases;
  cases.reserve(request.cases);
  for (std::size_t index = 0; index < request.cases; ++index) {
    if (in_full && index % kinds.size() == 0) shuffle(kinds, random);
    const std::size_t which = in_full ? index % kinds.size() : size_t_below(random, kinds.size());
    cases.push_back(complete(kinds[which], index, request));
  }
  return cases;
}

bool is_reduction(Op op) {
  return op == Op::allreduce || op == Op::reduce || op == Op::reduce_scatter ||
         op == Op::reduce_scatterv;
}

bool is_rooted(Op op) {
  return op == Op::broadcast || op == Op::reduce || op == Op::gather || op == Op::gatherv ||
         op == Op::scatter || op == Op::scatterv;
}

bool same_result_everywhere(Op op) {
  return op == Op::broadcast || op == Op::allreduce || op == Op::allgather || op == Op::allgatherv;
}

std::string operation_name(const Case& one) {
  if (one.pattern != Pattern::none) return "p2p:" + text_of(kPatternNames, one.pattern);
  return std::string(name_of(one.op));
}

std::string describe(const Case& one) {
  std::string text = "case " + std::to_string(one.index) + ": " + operation_name(one);
  text += " " + std::string(name_of(one.dtype));
  if (is_reduction(one.op)) text += " " + std::string(name_of(one.reduction));
  text += " count=" + std::to_string(one.count);
  text += " group=" + text_of(kMembersNames, one.members);
  text += std::string(" in_place=") + (one.in_place ? "yes" : "no");
  text += " issue=" + text_of(kIssueNames, one.issue);
  text += " counts=" + text_of(kSpreadNames, one.spread);
  text += " data=" + text_of(kFlavourNames, one.flavour);
  return text;
}

}  // namespace conformance
