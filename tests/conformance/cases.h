// The list of cases: a pure function of (seed, ranks, cases, chunk bytes, operations), so every
// rank builds the same list. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tccl/operation.h"
#include "tccl/types.h"

namespace conformance {

/// Point-to-point traffic in one case; Op::send stands for all of them.
enum class Pattern {
  none,
  ring,        // to the next rank, from the previous one
  tags,        // several tags to the next rank, received in reverse order
  fifo,        // several messages of one tag: must arrive in order
  any_source,  // all to the root, which receives from anyone
  exchange,    // all pairs at once, sends before receives
};

/// Which communicator a case uses.
enum class Members {
  world,
  halves,    // one of the even ranks, one of the odd ranks
  reversed,  // all ranks in reverse order
  fresh,     // from a split() made for this case, with some ranks left out
};

enum class Issue {
  sync,
  async,
  mixed,  // sync on even ranks, async on odd ones
};

/// How the counts of a v-operation differ from block to block.
enum class Spread { even, one_only, growing, random, alternating };

/// The kind of data.
enum class Flavour {
  ordinary,  // mostly numbers of moderate size, a few special values
  special,   // mostly NaN, infinities, denormals, extremes
  ties,      // few values, many of them equal: 0.0, -0.0, 1, -1
};

struct Case {
  std::uint64_t index = 0;
  tccl::Op op = tccl::Op::barrier;
  Pattern pattern = Pattern::none;
  tccl::DType dtype = tccl::DType::uint8;
  tccl::ReduceOp reduction = tccl::ReduceOp::sum;
  std::size_t count = 0;
  std::uint64_t root_draw = 0;
  bool in_place = false;
  bool null_if_unused = false;  // pass null where nothing is read or written
  Issue issue = Issue::sync;
  Members members = Members::world;
  Spread spread = Spread::even;
  Flavour flavour = Flavour::ordinary;

  [[nodiscard]] int root(int size) const {
    return static_cast<int>(root_draw % static_cast<std::uint64_t>(size));
  }
  [[nodiscard]] bool async_on(int rank) const {
    return issue == Issue::async || (issue == Issue::mixed && rank % 2 == 1);
  }
};

struct CaseRequest {
  std::uint64_t seed = 1;
  int ranks = 2;
  std::size_t cases = 1000;
  std::size_t chunk_bytes = 262144;
  std::size_t eager_bytes = 8192;        // threshold between eager and rendezvous protocol
  std::vector<std::size_t> limit_bytes;  // further sizes to step around
  std::uint64_t large_one_in = 0;        // share of sizes around large limits; 0: few
  std::vector<std::string> operations;   // names; empty: all
};

/// Up to four ranks, every (collective, dtype, reduction) in turn, each time with another count;
/// above, drawn at random.
std::vector<Case> make_cases(const CaseRequest& request);

bool is_reduction(tccl::Op op);
bool is_rooted(tccl::Op op);
/// Whether all ranks end with the same output.
bool same_result_everywhere(tccl::Op op);
/// "allreduce", ..., or "p2p:ring" for point-to-point traffic.
std::string operation_name(const Case& one);
std::string describe(const Case& one);

}  // namespace conformance
