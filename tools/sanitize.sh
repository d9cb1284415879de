#!/usr/bin/env bash
# The C++ tests under sanitizers: everything under ASan+UBSan, then under TSan the tests whose ranks are threads
# (marker `tsan`), since TSan sees nothing between processes. Then tests of the binding under both, as far as torch allows it
# (docs/dev/protocol-model.md).
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

# The binding. python and torch are not instrumented: the runtime of the sanitizer is loaded before them.
runtime() { g++ -print-file-name="$1"; }
install_package() { # install_package <preset> <sanitizers>
  .venv/bin/python -m pip install --quiet --no-build-isolation --no-deps --upgrade --target "build/$1/package" \
    -C "build-dir=build/$1" -C cmake.build-type=RelWithDebInfo -C "cmake.define.TCCL_SANITIZE=$2" .
}
# Those that measure memory or time (`serial`) fail for the cost of the sanitizers.
binding_tests=(tests/binding/test_{backend,collectives,concurrency,group_services,work,zero_copy}.py -m "not slow and not serial")
install_package asan address,undefined
LD_PRELOAD="$(runtime libasan.so) $(runtime libubsan.so) $(runtime libstdc++.so.6)" PYTHONPATH=$PWD/build/asan/package \
  ASAN_OPTIONS=detect_leaks=0:$ASAN_OPTIONS .venv/bin/pytest "${binding_tests[@]}" "$@"
install_package tsan thread
LD_PRELOAD="$(runtime libtsan.so) $(runtime libstdc++.so.6)" PYTHONPATH=$PWD/build/tsan/package \
  TSAN_OPTIONS="ignore_noninstrumented_modules=1 die_after_fork=0 exitcode=66 suppressions=$PWD/tests/binding/tsan_suppressions.txt" \
  "${no_aslr[@]}" .venv/bin/pytest "${binding_tests[@]}" "$@"
