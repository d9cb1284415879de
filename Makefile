# Every target sets up what it needs: system packages, .venv, torch, our package.
# ARGS is passed on:  make test ARGS="-k barrier"      PYTHON chooses the interpreter:  make build PYTHON=python3.12
# TORCH chooses the torch:  make build TORCH=2.15.0    Without it: the torch that PYTHON has, else that of requirements-torch.txt.

PYTHON ?= python3
DIST ?= dist
# make's default is g++. Every build directory has the same compiler, so ccache compiles the library only once.
export CXX
# A torch that is named has an environment and build directories of its own, beside those of the default.
# `make wheel`, `make test-wheel` and `make release` read TORCH as a list.
SUFFIX := $(if $(filter-out wheel sdist test-wheel release,$(MAKECMDGOALS)),$(TORCH:%=-torch%))
export VENV := .venv$(SUFFIX)
VENV_PYTHON := $(VENV)/bin/python
STANDIN := build/standin$(SUFFIX)
# Directories are in the list too: their times change when a file is added or removed.
PACKAGE_SOURCES := $(shell find CMakeLists.txt pyproject.toml requirements-dev.txt requirements-torch.txt README.md LICENSE \
                     licenses cmake env include src binding python -name __pycache__ -prune -o -print 2>/dev/null)

.PHONY: help packages setup setup-tests setup-wheel build wheel sdist library standin test-setup demo test test-torch test-aarch64 test-wheel release applications test-all lint docs sanitize fuzz mutants soak faults bench bench-hosts compat clean

help:
	@echo "make demo       two ranks train a small model over our backend"
	@echo "make test       build and test (about 10 minutes after the build on 2 cores)"
	@echo "make test-all   the same with the slow tests (up to an hour)"
	@echo "make test-torch TORCH=2.15.0   the tests of the binding with another torch: conformance, stack, torch's own suite"
	@echo "make test-aarch64   the library and its C++ tests for 64-bit Arm, under qemu"
	@echo "make build      .venv with the package installed; TORCH=2.15.0: .venv-torch2.15.0"
	@echo "make library    the C++ library and its tests in build/release, without torch"
	@echo "make wheel      torch_ccl and the small packages of compat/ as wheels in dist/; TORCH=\"2.12 2.15\": for these torches"
	@echo "make sdist      the sources of torch_ccl for pip, in dist/"
	@echo "make test-wheel TORCH=\"2.12.1 2.15.0\"   one wheel (WHEEL=<file>) with each of these torches"
	@echo "make release    wheels, sources, checksums and notes from the tag of this version, in dist/v<version>"
	@echo "make lint       clang-format, clang-tidy, include graph, ruff, mypy"
	@echo "make docs       the documentation site in build/site"
	@echo "make sanitize   tests under ASan+UBSan and TSan"
	@echo "make fuzz       libFuzzer on all that parses bytes of others, 10 minutes for each parser"
	@echo "make soak       random operations for 5 minutes, checked"
	@echo "make faults     300 random faults, 60 of them over virtual hosts: what the other ranks report, and how fast"
	@echo "make bench      compare with Gloo, with goals: collectives, whole programs, memory, waiting, start-up"
	@echo "make bench-hosts   compare with Gloo on virtual hosts, with goals"
	@echo "make mutants    planted faults, each of which the tests must catch"
	@echo "make applications   programs from PyPI with Gloo and with ccl: steps per second, loss"
	@echo "make compat DOCS=<directory>   the scripts of the documents in it, as they stand there"
	@echo "make clean      remove what was built (.venv stays)"

packages:
	@PYTHON="$(PYTHON)" tools/setup.sh packages

setup: packages
	@PYTHON="$(PYTHON)" TORCH="$(if $(SUFFIX),$(TORCH))" tools/setup.sh

setup-tests: setup
	@tools/setup.sh test

setup-wheel: setup
	@tools/setup.sh wheel

# With -j: `library` builds in the same directory, and setup-tests also installs into .venv.
BEFORE_PACKAGE := $(if $(filter library lint test-torch faults,$(MAKECMDGOALS)),library) \
                  $(if $(filter setup-tests compat bench-hosts,$(MAKECMDGOALS)),setup-tests)
$(VENV)/.package: $(PACKAGE_SOURCES) | setup $(BEFORE_PACKAGE)
	@echo "building the Python package"
	@touch $@.started  # a source that changes meanwhile is newer
	$(VENV_PYTHON) -m pip install --quiet --no-build-isolation --no-deps -C build-dir=build/$(if $(SUFFIX),package$(SUFFIX),release) .
	@mv $@.started $@

build: $(VENV)/.package

# Without TORCH the extension is that of .venv's torch, and build/release is shared with `build`. With TORCH="2.12 2.15"
# the wheel has one extension for each of them, and is built in a directory of its own.
wheel: setup-wheel
	@echo "building wheels in $(DIST)"
	@rm -f "$(DIST)"/torch_ccl-*.whl
	@torches=; [ -z "$(TORCH)" ] || torches=$$($(VENV_PYTHON) tools/fetch_torch.py $(TORCH)) || exit; \
	$(VENV_PYTHON) -m pip wheel --quiet --no-build-isolation --no-deps --wheel-dir "$(DIST)" \
	  -C build-dir=build/$(if $(TORCH),wheel,release) -C cmake.define.TCCL_TORCH="$$torches" .
	@PATH="$(abspath $(VENV))/bin:$$PATH" tools/tag_wheel.sh "$(DIST)"/torch_ccl-*-linux_*.whl
	$(VENV_PYTHON) -m pip wheel --quiet --no-build-isolation --no-deps --wheel-dir "$(DIST)" ./compat/oneccl_bind_pt ./compat/intel_extension_for_pytorch

sdist: setup-wheel
	$(VENV_PYTHON) -m build --quiet --sdist --no-isolation --outdir "$(DIST)" .

# The C++ library and its tests, without torch. `build` leaves the binding configured in build/release: not without .venv.
library: packages
	cmake --preset release --log-level=WARNING $(if $(wildcard .venv/bin/python),,-DTCCL_BUILD_BINDING=OFF)
	cmake --build --preset release

# The accelerator of the tests, against the torch of .venv.
standin: setup
	cmake -S tests/standin -B $(STANDIN) -G Ninja -DPython_EXECUTABLE=$(CURDIR)/$(VENV_PYTHON) --log-level=WARNING
	cmake --build $(STANDIN)

demo: build
	$(VENV_PYTHON) examples/demo.py $(ARGS)

# In a fresh clone the C++ library and its tests compile while pip installs torch.
test-setup: packages
	@$(MAKE) --no-print-directory $(if $(wildcard $(VENV) build/release),,-j2) setup library
	@$(MAKE) --no-print-directory -j3 build standin setup-tests

test test-all: export STANDIN_BUILD_DIR := $(STANDIN)
test: test-setup
	$(VENV_PYTHON) tools/run_tests.py -m "not slow" $(ARGS)

test-all: test-setup
	@tools/setup.sh applications
	@tools/setup.sh docs
	$(VENV_PYTHON) tools/run_tests.py $(ARGS)

# What depends on the version of torch. The rest is `make test TORCH=...`.
TORCH_TESTS := tests/binding tests/stack tests/conformance tests/torch_suite tests/package/test_extension.py
test-torch: library build
	@tools/setup.sh test
	$(VENV_PYTHON) tools/run_tests.py $(TORCH_TESTS) $(ARGS)

# Cross-compiled, under qemu-user: the C++ tests whose ranks are threads of one process. Limits of both: docs/dev/packaging.md.
# 600: some suites take minutes there.
test-aarch64: setup
	@tools/setup.sh aarch64
	cmake --preset aarch64 --log-level=WARNING
	cmake --build --preset aarch64
	TCCL_BUILD_DIR=build/aarch64 $(VENV_PYTHON) tools/run_tests.py tests/unit tests/conformance -m "tsan and not slow" --timeout 600 $(ARGS)

# One wheel, in an empty environment with each of the torches.
test-wheel: setup
	@for torch in $(TORCH); do PYTHON="$(PYTHON)" VENV=.venv-torch$$torch TORCH=$$torch tools/setup.sh || exit; done
	WHEEL="$(WHEEL)" TORCH_ENVIRONMENTS="$(TORCH:%=.venv-torch%)" $(VENV_PYTHON) -m pytest -rP tests/package/test_torches.py $(ARGS)

# The torches with an extension in the wheels of a release; each needs 6 GB of disk for its test.
RELEASE_TORCH := $(or $(TORCH),2.11 2.12 2.13 2.14 2.15)
release: setup-wheel
	$(VENV_PYTHON) tools/release.py "$(DIST)" "$(RELEASE_TORCH)"

lint: library build standin
	@tools/setup.sh lint
	tools/lint.sh

docs: setup
	@tools/setup.sh docs
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --quiet
	@echo "built: build/site/index.html"

sanitize: setup setup-tests
	tools/sanitize.sh $(ARGS)

fuzz: setup
	@tools/setup.sh fuzz
	cmake --preset fuzz --log-level=WARNING
	cmake --build --preset fuzz
	$(VENV_PYTHON) tests/fuzz/run.py $(ARGS)

soak: build
	$(VENV_PYTHON) tests/soak/soak.py --seconds 300 $(ARGS)

faults: library build
	$(VENV_PYTHON) tests/soak/faults.py --trials 240 $(ARGS)
	$(VENV_PYTHON) tests/soak/faults.py --hosts --trials 60 $(ARGS)

bench: build
	$(VENV)/bin/torch-ccl bench --goals --json build/bench.json --plot build/bench.svg $(ARGS)
	$(VENV)/bin/torch-ccl bench --goals --programs decode,ddp_step,fsdp2_step --json build/programs.json $(ARGS)
	$(VENV)/bin/torch-ccl bench --goals --footprint --json build/footprint.json $(ARGS)

bench-hosts: build setup-tests
	$(VENV_PYTHON) tests/hosts/bench.py --json build/bench-hosts.json $(ARGS)

mutants: setup
	$(VENV_PYTHON) tests/mutants/run.py $(ARGS)

applications: build
	@tools/setup.sh applications
	$(VENV_PYTHON) tests/applications/run.py $(ARGS)

compat: build standin setup-tests
	$(VENV_PYTHON) tests/compat/run.py $(DOCS) $(ARGS)

clean:
	rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .venv*/.package
