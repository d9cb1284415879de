"""torch's own distributed suite as a TestCase that a CPU backend can run.

The suite is part of the wheel: torch.testing._internal.distributed.distributed_test. It skips tests
by the backend's name, so a plugin would skip nearly all. load(widen=True) looks at the reason of
each skip instead, and runs every test that a CPU backend can run.
"""

import faulthandler
import functools
import importlib
import logging
import os
import re
import sys
import time
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar
from unittest import mock

sys.path.append(str(Path(__file__).resolve().parents[1]))
from support.virtual_hosts import enter_namespace

BOUND_S = 45

# A test with one of these reasons needs no GPU, or has a second skip reason.
NOT_A_REASON = re.compile(
    r"Only gloo backend supports timeouts"
    r"|GLOO Batch Send Recv CPU"
    r"|Only Gloo backend supports? sparse all reduce"
    r"|Only MPI supports (CPU )?all_to_all"
    r"|Only Nccl & Gloo backend support DistributedDataParallel"
    r"|get_future is only supported on mpi, nccl and gloo"
    r"|The \S+ backend does not support "
    r"|Test requires backend \S+ to be one of .*'gloo'"
)


#: Tests that start no operation on any rank.
WITHOUT_OPERATIONS = {
    "test_Backend_enum_class",
    "test_DistributedDataParallel_requires_grad",
    "test_all_reduce_coalesced_max_complex_unsupported",
    "test_all_reduce_complex_unsupported_ops",
    "test_destroy_full_group",
    "test_destroy_group",
    "test_dump_DDP_relevant_env_vars",
    "test_get_backend",
    "test_get_rank",
    "test_get_rank_size_full_group",
    "test_get_rank_size_group",
    "test_new_subgroups_with_group_param",
}


def load(
    backend: str, world_size: int, directory: str, widen: bool, replace: bool = False
) -> type[unittest.TestCase]:
    """Imports the suite. It reads the environment at import, so call this once per process.

    With `replace` the suite requests `backend` by name, and CCL_REPLACE substitutes ccl.
    """
    if replace:
        os.environ["CCL_REPLACE"] = backend
    os.environ.update(
        BACKEND=backend,
        WORLD_SIZE=str(world_size),
        INIT_METHOD=f"file://{directory}/init",
        DISTRIBUTED_TESTS_DEFAULT_TIMEOUT=str(BOUND_S),
        PYTORCH_PRINT_REPRO_ON_FAILURE="0",
        CUDA_VISIBLE_DEVICES="",  # the same set of tests on every machine
    )
    # Ranks share the cores; and Gloo must not depend on the host's name.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

    from torch.testing._internal import common_distributed, common_utils

    common_distributed.logger.setLevel(logging.ERROR)
    _skip_gpu_tests_early(common_distributed)
    if widen:
        _widen_skips(common_utils, common_distributed)
    suite = importlib.import_module("torch.testing._internal.distributed.distributed_test")
    common_distributed.TIMEOUT_OVERRIDE.clear()
    common_distributed.time = suite.time = _QuickPolls()
    if widen:
        _accept_in_bodies(suite, backend)
    return _test_case(suite, *_served_by(backend, replace))


def _served_by(backend: str, replace: bool) -> tuple[type, Callable[[], int] | None]:
    """The class of the groups, and the operation counter of ccl if it must increase."""
    import torch.distributed as dist
    import torch_ccl

    if replace:
        assert torch_ccl.replaced() == (backend,)
        return torch_ccl.ProcessGroupCCL, torch_ccl.operation_count
    return (dist.ProcessGroupGloo if backend == "gloo" else torch_ccl.ProcessGroupCCL), None


class _QuickPolls:
    """The module time, with shorter sleeps: torch's harness polls every 10 ms, not every 100 ms."""

    def __getattr__(self, name):
        return getattr(time, name)

    @staticmethod
    def sleep(seconds):
        time.sleep(0.01 if seconds == 0.1 else seconds)


# ---- skips


def _skip_gpu_tests_early(common_distributed):
    """Skips the same tests, but before any rank is started."""

    def skip_if_lt_x_gpu(count, *, allow_cpu=False):
        return unittest.skipUnless(allow_cpu, f"needs accelerators, at least {count}")

    if not common_distributed.HAS_ACCELERATOR:
        common_distributed.skip_if_no_gpu = unittest.skip("needs an accelerator")
        common_distributed.skip_if_lt_x_gpu = skip_if_lt_x_gpu


def _widen_skips(common_utils, common_distributed):
    skip_if = common_utils.skip_but_pass_in_sandcastle_if

    def widened_skip_if(condition, reason):
        return skip_if(condition and not NOT_A_REASON.match(reason), reason)

    def skip_if_small_worldsize(test):
        """torch requires 8 ranks, but the tests use the group [1, 2] and need 3."""

        @functools.wraps(test)
        def wrapper(*args, **kwargs):
            if int(os.environ["WORLD_SIZE"]) < 3:
                sys.exit(common_distributed.TEST_SKIPS["small_worldsize"].exit_code)
            return test(*args, **kwargs)

        return wrapper

    common_utils.skip_but_pass_in_sandcastle_if = widened_skip_if
    common_utils.skip_but_pass_in_sandcastle = lambda reason: widened_skip_if(True, reason)
    common_distributed.skip_if_small_worldsize = skip_if_small_worldsize


def _accept_in_bodies(suite, backend):
    """Patches the few tests that check the backend's name themselves."""
    for names in (suite.PROFILING_SUPPORTED_BACKENDS, suite.SEND_RECV_PROFILING_SUPPORTED_BACKENDS):
        names.append(backend)  # the tests look for rows "<backend>:<operation>"

    # It uses the name only to decide whether the model is on the CPU.
    base = suite.DistributedTest._DistTestBase
    base._test_accumulate_gradients_no_sync = mock.patch.object(suite, "BACKEND", "gloo")(
        base._test_accumulate_gradients_no_sync
    )


# ---- the test case


def _check_groups(backend_class: type) -> None:
    """All groups of this rank must use the backend under test."""
    import torch
    from torch.distributed.distributed_c10d import _ProcessGroupWrapper, _world

    assert _world.pg_map, "there is no group"
    for group in _world.pg_map:
        backend = group._get_backend(torch.device("cpu"))
        if type(backend) is _ProcessGroupWrapper:  # TORCH_DISTRIBUTED_DEBUG=DETAIL
            backend = backend.wrapped_pg
        assert type(backend) is backend_class, f"the group is served by {type(backend)}"


def _test_case(suite, backend_class: type, operations) -> type[unittest.TestCase]:
    from torch import multiprocessing

    class TorchSuite(suite.TestDistBackend, suite.DistributedTest._DistTestBase):
        def setUp(self):
            super().setUp()
            self.started.value = 0
            # Forked ranks have torch loaded: tenths of a second instead of seconds.
            self._start_processes(multiprocessing.get_context("fork").Process)

        networks: ClassVar[list[str]] = []  # by rank: the network namespace of its host
        started = multiprocessing.Value("q", 0)  # operations of ccl, by all ranks of a test

        @classmethod
        def _run(cls, rank, *args, **kwargs):
            faulthandler.dump_traceback_later(BOUND_S + 5, exit=True)  # kill the remaining ranks
            if cls.networks:
                enter_namespace(cls.networks[rank])
                os.environ["GLOO_SOCKET_IFNAME"] = "eth0"  # some tests create a Gloo group
            super()._run(rank, *args, **kwargs)

        def run_test(self, test_name, parent_pipe):
            test = getattr(self, test_name)

            def checked_test():
                _check_groups(backend_class)
                before = operations and operations()
                test()
                _check_groups(backend_class)
                if operations:
                    with self.started.get_lock():
                        self.started.value += operations() - before

            setattr(self, test_name, checked_test)
            super().run_test(test_name, parent_pipe)

        def _check_return_codes(self, fn, elapsed_time):
            super()._check_return_codes(fn, elapsed_time)  # checks only rank 0
            codes = [process.exitcode for process in self.processes]
            assert not any(codes), f"exit codes of the ranks: {codes}"
            if operations:
                must_start = self._testMethodName not in WITHOUT_OPERATIONS
                started = self.started.value
                assert bool(started) == must_start, f"{started} operations of ccl were started"

    return TorchSuite
