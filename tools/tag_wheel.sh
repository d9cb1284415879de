#!/usr/bin/env bash
# Replaces a wheel by one with a manylinux tag, the same that torch's own wheels have:
#   tools/tag_wheel.sh dist/torch_ccl-0.1.0-py3-none-linux_x86_64.whl
# makes torch_ccl-0.1.0-py3-none-manylinux_2_28_x86_64.whl. If auditwheel finds that the libraries need more, the wheel
# stays as it is.
set -euo pipefail
wheel=$1
machine=${wheel##*-linux_}
machine=${machine%.whl}

# torch has loaded these libraries before ours: no wheel of an extension of torch contains them. With them excluded nothing
# is left to add to the wheel, so auditwheel changes the tag alone.
if output=$(auditwheel repair --plat "manylinux_2_28_$machine" --only-plat --wheel-dir "$(dirname "$wheel")" \
              --exclude libtorch_cpu.so --exclude libtorch_python.so --exclude libc10.so "$wheel" 2>&1); then
  rm "$wheel"
else
  echo "tag_wheel: $(basename "$wheel") keeps its tag: $(tail -1 <<<"$output")" >&2
fi
