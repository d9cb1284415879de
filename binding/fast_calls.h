// Fast calls: a C function for each collective of torch.distributed that recognises the plain case and
// runs the operation at once, without torch's Python code, its dispatcher and a Work.
//
//   original = all_reduce.__wrapped__
//   fast = _C._fast_call("all_reduce", original)
//   fast(x)  # as original(x)
//
// A call is plain if nobody could notice the difference: docs/fast-calls.md lists the conditions,
// plain_case.h checks them, and tests/binding/test_fast_calls_conditions.py breaks them. Every
// other call goes to `original` with the same arguments, also one whose arguments are invalid: torch's
// function then raises.
// Thread safety: the functions need the GIL, as every function of Python, and release it while the
// operation runs.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace torch_ccl {

/// Adds to the module _fast_call(name, original): the fast function for one of torch.distributed.
void add_fast_calls(pybind11::module_& module);

/// Adds to the module _fast_functional_<name>(...): a functional collective, or None if the call is not
/// plain.
void add_fast_functional_calls(pybind11::module_& module);

}  // namespace torch_ccl
