"""Process groups of torchft over ccl: the replicas of a job go on after a kill, and grow again.

    import torchft
    from torch_ccl.torchft import ProcessGroupCCL

    manager = torchft.Manager(pg=ProcessGroupCCL(timeout=timedelta(seconds=30)), ...)

torchft's Manager calls configure() whenever the set of replicas changes. It fails the group of the
earlier set, which ends all calls in it, also those of other threads, and creates the new one in
milliseconds. `import torch_ccl` does not import this module; it needs the package torchft.
"""

from datetime import timedelta

import torch
import torch.distributed as dist

import torch_ccl

try:
    from torchft import process_group as _torchft
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"torch_ccl.torchft needs the package torchft (pip install torchft): {error}",
        name=error.name,
    ) from None

__all__ = ["ProcessGroupBabyCCL", "ProcessGroupCCL"]


def _new_group(
    store: dist.Store, rank: int, size: int, timeout: timedelta, name: str
) -> dist.ProcessGroup:
    """A group of torch, with ccl for all devices that it serves. Collective over its ranks."""
    try:
        backend = torch_ccl.ProcessGroupCCL(store, rank, size, timeout, name=name)
    except dist.DistBackendError as error:
        if "timed out after" not in str(error):
            raise
        # The words of torch's store, which torchft's users know from Gloo.
        milliseconds = timeout // timedelta(milliseconds=1)
        raise dist.DistBackendError(f"{error} (timeout after {milliseconds}ms)") from error
    custom = dist.ProcessGroup.BackendType.CUSTOM
    group = dist.ProcessGroup(store, rank, size)
    group._set_default_backend(custom)
    for device in torch_ccl._device_types():
        group._register_backend(torch.device(device), custom, backend)
    return group


class ProcessGroupCCL(_torchft.ProcessGroupWrapper):
    """A process group that torchft's Manager configures anew when the set of replicas changes.

    `timeout` is that of configure() and of every call that passes none. A dead replica fails the
    calls that need it within milliseconds, whatever the timeout is.
    """

    _pg: dist.ProcessGroup | None

    def __init__(self, timeout: timedelta = timedelta(seconds=60)) -> None:
        super().__init__(timeout)
        self._aborted: Exception | None = None

    def _create_pg(self, store: dist.Store, rank: int, world_size: int) -> dist.ProcessGroup:
        name = "torchft" if self._quorum_id is None else f"torchft quorum {self._quorum_id}"
        try:
            group = _new_group(store, rank, world_size, self._timeout, name)
        except Exception as error:
            self._aborted = error
            raise
        self._aborted = None
        return group

    def abort(self, errored: bool = True) -> None:
        """Fail the group: calls in flight end with an error, also on the other replicas."""
        if errored:
            self._aborted = RuntimeError("ccl: the process group was aborted")
        super().abort(errored=errored)

    def shutdown(self) -> None:
        """Leave the group, after the operations in flight."""
        group = self._pg
        self._pg = None
        if group is not None:
            group.shutdown()

    def errored(self) -> Exception | None:
        """The error of an abort, or of a failed operation: the group must be configured anew."""
        group = self._pg  # another thread may abort meanwhile
        if self._aborted is None and group is not None:
            error = group._get_backend(torch.device("cpu")).get_error()
            if error.name != "SUCCESS":
                self._aborted = RuntimeError(
                    f"ccl: the process group has failed ({error.name}): all its calls are aborted"
                )
        return self._aborted

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the timeout of later calls of this group and of the next ones."""
        super().set_timeout(timeout)
        group = self._pg
        if group is not None:
            group._get_backend(torch.device("cpu"))._set_default_timeout(timeout)

    def getBackendName(self) -> str:
        return "torchft-ccl"


class ProcessGroupBabyCCL(_torchft.ProcessGroupBaby):
    """The same in a process of its own, which is killed when the group is configured anew.

    The tensors are moved to shared memory. ProcessGroupCCL does not need that: its calls end when
    it is aborted.
    """

    @classmethod
    def _create_pg(cls, store: dist.Store, rank: int, world_size: int) -> dist.ProcessGroup:
        timeout = dist.distributed_c10d.default_pg_timeout
        return _new_group(store, rank, world_size, timeout, "torchft")

    def getBackendName(self) -> str:
        return "torchft-baby-ccl"
