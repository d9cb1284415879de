#!/usr/bin/env bash
# Prepares this machine: system packages that are missing, then .venv with requirements-dev.txt.
#   tools/setup.sh          what building needs
#   tools/setup.sh packages     only the system packages of the above
#   tools/setup.sh test     what testing needs on top
#   tools/setup.sh lint     what `make lint` needs on top
#   tools/setup.sh fuzz     what `make fuzz` needs on top
#   tools/setup.sh applications     what the tests in tests/applications need on top
#   tools/setup.sh docs     what `make docs` and the tests in tests/docs need on top
#   tools/setup.sh aarch64     what `make test-aarch64` needs on top
#   tools/setup.sh wheel    what `make wheel`, `make sdist` and `make release` need on top
# PYTHON names the interpreter for .venv (default python3), VENV another directory. TORCH is the version of torch to install;
# without it .venv sees the torch that PYTHON has, and gets that of requirements-torch.txt if PYTHON has none.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
venv=${VENV:-.venv}
PATH=$PATH:/usr/sbin:/sbin  # where daemons and ldconfig are, also for those who are not root

die() { echo "setup: $*" >&2; exit 1; }
has_command() { command -v "$1" >/dev/null; }
has_header() { g++ -E -x c++ -include "$1" /dev/null >/dev/null 2>&1; }
has_library() { [ -n "$(ldconfig -p | grep -F "$1 ")" ]; }
has_clang_sanitizers() { echo 'int main() {}' | clang++ -fsanitize=address,undefined -x c++ - -o /dev/null 2>/dev/null; }
# clang recommends it, but recommendations are not installed.
clang_sanitizers_package() {
  local version
  version=$(apt-cache depends clang 2>/dev/null | sed -n 's/.*Depends: clang-\([0-9]*\)$/\1/p' | head -n 1)
  echo "libclang-rt-${version:-14}-dev"
}
has_venv() { "$python" -c 'import ensurepip, venv' 2>/dev/null; }
has_python_headers() {
  "$python" -c 'import os, sys, sysconfig as s; sys.exit(not os.path.exists(s.get_path("include") + "/Python.h"))' 2>/dev/null
}

# Looks at what is usable, not at what dpkg knows: compiler, Python and libraries may come from elsewhere.
find_missing() {
  missing=()
  if [ "${1:-}" = applications ]; then
    has_command mpirun || missing+=(openmpi-bin)         # for accelerate launch
    return
  fi
  if [ "${1:-}" = docs ]; then
    has_command chromium || missing+=(chromium)          # for screenshots of the site
    return
  fi
  if [ "${1:-}" = aarch64 ]; then
    has_command aarch64-linux-gnu-g++ || missing+=(g++-aarch64-linux-gnu)
    has_command qemu-aarch64 || missing+=(qemu-user)
    return
  fi
  if [ "${1:-}" = fuzz ]; then
    has_command clang++ || missing+=(clang)
    has_clang_sanitizers || missing+=("$(clang_sanitizers_package)")
    return
  fi
  if [ "${1:-}" = lint ]; then
    has_command clang-format || missing+=(clang-format)
    has_command clang-tidy || missing+=(clang-tidy)
    return
  fi
  if [ "${1:-}" = test ]; then
    has_command ip || missing+=(iproute2)                # for virtual hosts
    has_command mpiexec.hydra || missing+=(mpich)        # launchers, from here on
    has_command mpirun.openmpi || missing+=(openmpi-bin)
    has_command slurmctld || missing+=(slurmctld)
    has_command slurmd || missing+=(slurmd)
    has_command srun || missing+=(slurm-client)
    has_command munged || missing+=(munge)
    has_library libpmix.so || missing+=(libpmix-dev)     # for srun --mpi=pmix
    return
  fi
  has_command g++ || missing+=(g++)
  has_command cmake || missing+=(cmake)
  has_command ninja || missing+=(ninja-build)
  has_command make || missing+=(make)
  has_command git || missing+=(git)
  has_header sodium.h || missing+=(libsodium-dev)
  has_header fmt/format.h || missing+=(libfmt-dev)
  has_header rdma/fabric.h || missing+=(libfabric-dev)  # with the library, which is loaded at run time
  has_header gtest/gtest.h || missing+=(libgtest-dev)
  has_command "$python" || missing+=(python3)
  has_venv || missing+=(python3-venv)
  has_python_headers || missing+=(python3-dev)
}

# The tests start their own Slurm: no package may start one.
without_services() {
  local policy=/usr/sbin/policy-rc.d made=
  [ -e $policy ] || { printf '#!/bin/sh\nexit 101\n' | as_root tee $policy >/dev/null; as_root chmod +x $policy; made=1; }
  local status=0
  "$@" || status=$?
  [ -z "$made" ] || as_root rm -f $policy
  return $status
}

# install_requirements <file> [requirement of pip]...: into .venv, unless these very ones have been installed
install_requirements() {
  local done=$venv/.${1%.txt} wanted
  wanted="$(sha256sum <"$1") ${*:2}"
  [ "$(cat "$done" 2>/dev/null)" != "$wanted" ] || return 0
  echo "setup: installing the Python packages of $1 ${*:2} into $venv"
  $venv/bin/python -m pip install --quiet --disable-pip-version-check -r "$@"
  echo "$wanted" >"$done"
}

# The directories of the packages of $python, if a torch that we serve is among them.
packages_with_torch() {
  "$python" - <<'EOF' 2>/dev/null
import importlib.metadata, re, site
found = re.match(r"2\.(\d+)", importlib.metadata.version("torch"))
if found and int(found[1]) >= 8:
    user = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    print(*user, *site.getsitepackages(), sep="\n")
EOF
}

# $venv sees the packages of $python by this file if it uses its torch.
make_environment() {
  "$python" -m venv --clear "$venv"
  [ -n "${TORCH:-}" ] || packages_with_torch >"$(echo "$venv"/lib/python3*/site-packages)/packages_of_python.pth" || true
}

torch_requirement() {
  if [[ ${TORCH:-} =~ ^[0-9]+\.[0-9]+$ ]]; then
    echo "torch==$TORCH.*"  # its newest release, as tools/fetch_torch.py
  elif [ -n "${TORCH:-}" ]; then
    echo "torch==$TORCH"
  elif ! grep -qs . "$venv"/lib/python3*/site-packages/packages_of_python.pth; then
    grep ^torch requirements-torch.txt
  fi
}

# In a directory of its own, for it brings an mpiexec.
install_intel_mpi() {
  [ ! -x $venv/intel-mpi/bin/mpiexec.hydra ] || return 0
  echo "setup: installing Intel MPI into $venv/intel-mpi"
  $venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --prefix $venv/intel-mpi impi-rt==2021.19.0
}

# In an environment of its own that sees the packages of $venv. Without dependencies, for they would bring another
# torch: the file lists them all. Nothing is isolated: DeepSpeed is built from source and its build imports torch.
install_applications() {
  local requirements=requirements-applications.txt environment=$venv/applications wanted
  wanted=$(sha256sum <$requirements)
  [ "$(cat $environment/.requirements 2>/dev/null)" != "$wanted" ] || return 0
  echo "setup: installing the Python packages of $requirements into $environment"
  $venv/bin/python -m venv --clear --without-pip $environment
  # Python does not read the .pth files of a directory that a .pth file names.
  { realpath $venv/lib/python3*/site-packages; cat $venv/lib/python3*/site-packages/packages_of_python.pth 2>/dev/null || true; } \
    >"$(echo $environment/lib/python3*/site-packages)/venv.pth"
  $environment/bin/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps -r $requirements
  # What DeepSpeed would else compile when it first makes a group, while a test is waiting.
  DS_ACCELERATOR=cpu TORCH_EXTENSIONS_DIR=$PWD/$environment/torch_extensions $environment/bin/python -W ignore -c \
    'from deepspeed.comm.torch import build_shm_op; build_shm_op()' >/dev/null
  echo "$wanted" >$environment/.requirements
}

# Packages of Debian arm64 with their dependencies, unpacked below build/. apt gets lists and a cache of its own there: the
# system gets no foreign architecture, which would make every later `apt-get update` load a second set of lists, and no
# package of which both architectures must have the same version.
unpack_aarch64_sysroot() {
  local sysroot=$PWD/build/aarch64-sysroot apt=$PWD/build/aarch64-apt package
  local packages="libsodium-dev libfmt-dev libgtest-dev libfabric-dev"
  [ "$(cat "$sysroot/.packages" 2>/dev/null)" != "$packages" ] || return 0
  has_command apt-get || die "apt-get is needed to download packages of Debian arm64"
  echo "setup: unpacking $packages of arm64 into build/aarch64-sysroot"
  rm -rf "$sysroot" "$apt"
  mkdir -p "$sysroot" "$apt"/{state,cache}
  touch "$apt/status"  # no package is installed: apt finds all dependencies
  local options=(-qq -o "Dir::State=$apt/state" -o "Dir::State::status=$apt/status" -o "Dir::Cache=$apt/cache"
                 -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o "APT::Sandbox::User=$(id -un)")
  apt-get "${options[@]}" update
  apt-get "${options[@]}" install -y --no-install-recommends --download-only $packages
  for package in "$apt"/cache/archives/*.deb; do dpkg-deb -x "$package" "$sysroot"; done
  rm -rf "$apt"
  echo "$packages" >"$sysroot/.packages"
}

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi; }
can_install() { has_command apt-get && as_root true 2>/dev/null; }

find_missing "$@"
if [ ${#missing[@]} -gt 0 ]; then
  can_install || die "missing packages: ${missing[*]} (install them: sudo apt-get install ${missing[*]})"
  has_command ccache || missing+=(ccache)  # welcome, never demanded
  echo "setup: installing ${missing[*]}"
  as_root apt-get update -qq
  without_services as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
  hash -r
  find_missing "$@"
  [ ${#missing[@]} -eq 0 ] || die "still missing after installation: ${missing[*]}"
fi
if [ "${1:-}" = test ]; then
  install_requirements requirements-test.txt
  install_requirements requirements-wheel.txt
  install_intel_mpi
fi
[ "${1:-}" != applications ] || install_applications
[ "${1:-}" != aarch64 ] || unpack_aarch64_sysroot
[ "${1:-}" != docs ] || install_requirements requirements-docs.txt
[ "${1:-}" != wheel ] || install_requirements requirements-wheel.txt
[ $# = 0 ] || exit 0  # `packages` and the others end here

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
  die "Python 3.11 or newer is needed, $python is $("$python" -V 2>&1); choose one: make build PYTHON=python3.11"

$venv/bin/python -m pip --version >/dev/null 2>&1 || make_environment
install_requirements requirements-dev.txt $(torch_requirement)
