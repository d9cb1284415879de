// docs/operations.md, made from the tables of the library.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "operation/op_record.h"
#include "operation/op_traits.h"
#include "planner/algorithm_selector.h"
#include "tccl/operation.h"
#include "tccl/types.h"

namespace tccl {
namespace {

// ---- the library's own tables

std::string code(std::string_view text) { return "`" + std::string(text) + "`"; }

template <class Enum>
std::string joined(int count, bool (*included)(Enum)) {
  std::string list;
  for (int i = 0; i < count; ++i) {
    const auto value = static_cast<Enum>(i);
    if (included(value)) list += (list.empty() ? "" : ", ") + code(name_of(value));
  }
  return list;
}

std::string reductions_table() {
  std::string head = "| element type | bytes |", line = "|---|---|", rows;
  for (int r = 0; r < kReduceOpCount; ++r) {
    head += " " + code(name_of(static_cast<ReduceOp>(r))) + " |";
    line += "---|";
  }
  for (int d = 0; d < kDTypeCount; ++d) {
    const auto dtype = static_cast<DType>(d);
    rows += "| " + code(name_of(dtype)) + " | " + std::to_string(size_of(dtype)) + " |";
    for (int r = 0; r < kReduceOpCount; ++r)
      rows += supports(dtype, static_cast<ReduceOp>(r)) ? " yes |" : " - |";
    rows += "\n";
  }
  return head + "\n" + line + "\n" + rows;
}

std::string algorithms_of(Op op) {
  if (is_point_to_point(op)) return "messages, outside of the order of collectives";
  std::string list;
  for (const AlgorithmRule& row : AlgorithmSelector(Settings()).rules()) {
    if (row.op != op) continue;
    list += (list.empty() ? "" : "; ") + code(row.algorithm);
    if (row.from_bytes != 0)
      list += " from " + std::to_string(row.from_bytes >> 10) + " KiB and " +
              std::to_string(row.from_ranks) + " ranks" +
              (row.dtypes == "all" ? "" : " for " + row.dtypes);
    if (!row.applies) list += " if a setting names it";
    if (row.several_hosts) list += " over several hosts";
    list += ": " + row.doc;
  }
  return list;
}

std::string operations_table() {
  std::string table = "| operation | element types | reductions | root | algorithms |\n";
  table += "|---|---|---|---|---|\n";
  for (int i = 0; i < kOpCount; ++i) {
    const auto op = static_cast<Op>(i);
    const std::string types = op == Op::barrier ? "-" : is_point_to_point(op) ? "bytes" : "all";
    table += "| " + code(name_of(op)) + " | " + types + " | " + (reduces(op) ? "as above" : "-") +
             " | " + (has_root(op) ? "yes" : "-") + " | " + algorithms_of(op) + " |\n";
  }
  return table;
}

// ---- how torch.distributed reaches them

struct TorchCall {
  const char* call;    // a function of torch.distributed, with the case that is meant
  const char* method;  // of the backend; the profiler shows it as pg::<method>
  Op op;
};

// tests/binding/test_profiler.py makes each of these calls.
constexpr TorchCall kTorchCalls[] = {
    {"all_reduce", "allreduce", Op::allreduce},
    {"all_reduce, sparse", "allreduce_sparse", Op::allgatherv},
    {"all_reduce_coalesced", "allreduce_coalesced", Op::allreduce},
    {"broadcast", "broadcast", Op::broadcast},
    {"reduce", "reduce", Op::reduce},
    {"all_gather", "allgather", Op::allgatherv},
    {"all_gather_single", "_allgather_base", Op::allgather},
    {"all_gather_into_tensor", "_allgather_base", Op::allgather},
    {"all_gather_into_tensor, coalesced", "allgather_into_tensor_coalesced", Op::allgather},
    {"all_gather_coalesced", "allgather_coalesced", Op::allgatherv},
    {"gather", "gather", Op::gatherv},
    {"scatter", "scatter", Op::scatterv},
    {"reduce_scatter", "reduce_scatter", Op::reduce_scatterv},
    {"reduce_scatter_single", "_reduce_scatter_base", Op::reduce_scatter},
    {"reduce_scatter_tensor", "_reduce_scatter_base", Op::reduce_scatter},
    {"reduce_scatter_tensor, coalesced", "reduce_scatter_tensor_coalesced", Op::reduce_scatter},
    {"all_to_all", "alltoall", Op::alltoallv},
    {"all_to_all_single", "alltoall_base", Op::alltoallv},
    {"send", "send", Op::send},
    {"isend", "send", Op::send},
    {"recv", "recv", Op::recv},
    {"irecv", "recv", Op::recv},
    {"recv, from any", "recvAnysource", Op::recv},
    {"barrier", "barrier", Op::barrier},
};

std::string torch_table() {
  std::string table =
      "| `torch.distributed` | method of the backend | operation |\n|---|---|---|\n";
  for (const TorchCall& row : kTorchCalls) {
    const std::string call = row.call;
    const auto comma = call.find(',');
    table += "| " + code(call.substr(0, comma)) +
             (comma == std::string::npos ? "" : call.substr(comma)) + " | " + code(row.method) +
             " | " + code(name_of(row.op)) + " |\n";
  }
  return table;
}

// ---- the page

std::string page() {
  return "# Operations\n\nOperations, element types and reductions. Generated from the library's "
         "tables by `tests/unit/operations_test.cc`.\n\n"
         "## Element types and reductions\n\n"
         "For every operation that reduces: " +
         joined<Op>(kOpCount, reduces) + ". All others accept every element type.\n\n" +
         reductions_table() +
         "\n"
         "- Inputs are combined in rank order; over several hosts first those of each host. Every "
         "rank gets the same bits in every run, with every instruction set of x86-64 and aarch64; "
         "only the sign and payload of a NaN in\n  float32, float64 and complex are unspecified.\n"
         "- 16- and 8-bit floats are added in float32 and rounded once; over several hosts 16-bit "
         "floats are rounded twice. Integers wrap.\n"
         "- `min` and `max` propagate NaN. `bool`: `sum` and `max` are OR, `product` and `min` are "
         "AND.\n"
         "- `premul_sum` first multiplies each rank's input by that rank's factor.\n"
         "- `-`: the combination is undefined. It is refused before anything is sent, with a "
         "`ValueError` that names the\n  operation, the rank and the group.\n\n"
         "## Operations of the library\n\n" +
         operations_table() +
         "\nOperations that end in `v` take a size per rank. Settings override the algorithm: "
         "[settings](settings.md).\n\n"
         "## Calls of torch.distributed\n\n" +
         torch_table() +
         "\nA sparse `all_reduce` supports `sum` only. Tensors may be non-contiguous, empty, and "
         "of "
         "any shape; the sizes in a list\nmay differ from rank to rank. `batch_isend_irecv` and "
         "the "
         "object collectives (`all_gather_object` and the like) use\nthese operations. "
         "torch allows `monitored_barrier` for Gloo only; `torch_ccl.monitored_barrier` replaces "
         "it.\n";
}

/// The enumerators of a record from the network may have any value; they index tables of names.
TEST(Operations, ARecordWithAnEnumeratorOutOfRangeIsInvalid) {
  for (unsigned value = 0; value < 256; ++value) {
    OpRecord op;
    OpRecord dtype;
    OpRecord reduction;
    OpRecord wire_format;
    op.op = static_cast<Op>(value);
    dtype.dtype = static_cast<DType>(value);
    reduction.reduction = static_cast<ReduceOp>(value);
    wire_format.wire_format = static_cast<WireFormat>(value);
    EXPECT_EQ(is_valid(op), value < static_cast<unsigned>(kOpCount)) << value;
    EXPECT_EQ(is_valid(dtype), value < static_cast<unsigned>(kDTypeCount)) << value;
    EXPECT_EQ(is_valid(reduction), value < static_cast<unsigned>(kReduceOpCount)) << value;
    EXPECT_EQ(is_valid(wire_format), value <= static_cast<unsigned>(WireFormat::int8)) << value;
    for (const OpRecord& record : {op, dtype, reduction, wire_format}) {
      EXPECT_TRUE(!is_valid(record) || !describe(record, "one_shot").empty());
    }
  }
}

/// UPDATE_DOCS=1 writes the page instead of comparing it.
TEST(Operations, DocumentationIsUpToDate) {
  const std::string path = TCCL_SOURCE_DIR "/docs/operations.md";
  if (::getenv("UPDATE_DOCS") != nullptr) std::ofstream(path) << page();
  std::stringstream found;
  found << std::ifstream(path).rdbuf();
  EXPECT_EQ(found.str(), page()) << "run: UPDATE_DOCS=1 build/release/tests/operations_test";
}

}  // namespace
}  // namespace tccl
