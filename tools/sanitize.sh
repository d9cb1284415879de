#!/usr/bin/env bash
# The C++ tests under sanitizers: everything under ASan+UBSan, then under TSan the tests whose ranks are threads
# (marker `tsan`), since TSan sees nothing between processes.
set -euo pipefail
cd "$(dirname "$0")/.."

for preset in asan tsan; do
  cmake --preset $preset --log-level=WARNING
  cmake --build --preset $preset
done

# LimitsProcess leaves no descriptors or address space, which the sanitizers' own runtime needs.
export ASAN_OPTIONS=detect_stack_use_after_return=1 UBSAN_OPTIONS=print_stacktrace=1
TCCL_BUILD_DIR=build/asan .venv/bin/pytest tests/unit tests/conformance tests/fuzz \
  tests/hosts/test_faults.py tests/hosts/test_conformance_hosts.py -m "not slow" -k "not LimitsProcess" "$@"

# Some kernels randomise addresses more widely than TSan's shadow memory allows.
no_aslr=()
if setarch "$(uname -m)" -R true 2>/dev/null; then no_aslr=(setarch "$(uname -m)" -R); fi
export TSAN_OPTIONS="halt_on_error=1 second_deadlock_stack=1"
TCCL_BUILD_DIR=build/tsan "${no_aslr[@]}" .venv/bin/pytest tests/unit tests/conformance -m "tsan and not slow" "$@"
