"""The key-value space of a job whose launcher offers PMIx (Open MPI, `srun --mpi=pmix`).

    kvs = KeyValueSpace.of(os.environ)

Uses the launcher's libpmix through ctypes. Observed with Open MPI 4.1: a process that has
initialised PMIx and ends without finalising it counts as crashed, and the launcher kills the job.
Initialisation is counted, so MPI may initialise PMIx before or after this module.
"""

import atexit
import ctypes
import os
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from torch_ccl.loaded_libraries import loaded_libraries

LIBRARY_NAME = "libpmix.so.2"

# Constants of pmix_common.h:
SUCCESS = 0
ERR_TIMEOUT = -24
ERR_NOT_FOUND = -46
STRING = 3
GLOBAL = 3

RETRY_S = 0.05


class PmixError(RuntimeError):
    def __init__(self, text: str, status: int = SUCCESS):
        super().__init__(text)
        self.status = status


class _Process(ctypes.Structure):
    _fields_ = (("namespace", ctypes.c_char * 256), ("rank", ctypes.c_uint32))


class _Data(ctypes.Union):
    # `reserved` is as large as the largest member, which differs between versions.
    _fields_ = (("text", ctypes.c_char_p), ("reserved", ctypes.c_uint64 * 8))


class _Value(ctypes.Structure):
    _fields_ = (("type", ctypes.c_uint16), ("data", _Data))


def _library_paths() -> Iterator[str]:
    """MPI must load the same library in this process: one already loaded, the launcher's, or the
    system's."""
    yield from (path for path in loaded_libraries() if Path(path).name.startswith(LIBRARY_NAME))
    try:
        prefix = Path(f"/proc/{os.getppid()}/exe").resolve().parents[1]
    except (OSError, IndexError):
        prefix = Path("/")
    yield from (str(prefix / directory / LIBRARY_NAME) for directory in ("lib", "lib/openmpi"))
    yield LIBRARY_NAME


def _load() -> ctypes.CDLL | None:
    for path in _library_paths():
        try:
            return ctypes.CDLL(path)
        except OSError:
            continue
    return None


class KeyValueSpace:
    """Texts that rank 0 puts and the other ranks get."""

    _instance: "KeyValueSpace | None" = None

    def __init__(self, library: ctypes.CDLL):
        self._library = library
        self._process = _Process()
        self._pid = os.getpid()
        self._call("PMIx_Init", ctypes.byref(self._process), None, ctypes.c_size_t(0))
        atexit.register(self._finalize)

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> "KeyValueSpace | None":
        """The one of this process; None if the launcher offers no PMIx, or there is no libpmix."""
        offered = "PMIX_NAMESPACE" in environment and "PMIX_RANK" in environment
        if cls._instance is None and offered and (library := _load()):
            cls._instance = cls(library)
        return cls._instance

    def put(self, key: str, text: str, timeout_s: float) -> None:
        """Call it on rank 0. Does not wait for the other ranks."""
        value = _Value(STRING, _Data(text=text.encode()))
        self._call("PMIx_Put", ctypes.c_uint8(GLOBAL), key.encode(), ctypes.byref(value))
        self._call("PMIx_Commit")

    def get(self, key: str, timeout_s: float) -> str:
        """Call it on other ranks. Raises TimeoutError if rank 0 does not put the key in time."""
        results: list[str | PmixError] = []
        deadline = time.monotonic() + timeout_s

        def read() -> None:
            try:
                results.append(self._get_until(key, deadline))
            except PmixError as error:
                results.append(error)

        # In a thread: how long PMIx_Get blocks for a missing process depends on the launcher.
        reader = threading.Thread(target=read, daemon=True)
        # PMIx_Finalize would wait for the reader if this function raises.
        atexit.unregister(self._finalize)
        reader.start()
        reader.join(timeout_s)
        if not results:
            raise TimeoutError
        atexit.register(self._finalize)
        result = results[0]
        if isinstance(result, PmixError):
            raise result
        return result

    def _get_until(self, key: str, deadline: float) -> str:
        while True:
            try:
                return self._get(key)
            except PmixError as error:
                is_missing = error.status in (ERR_TIMEOUT, ERR_NOT_FOUND)
                if not is_missing or time.monotonic() > deadline:
                    raise
            time.sleep(RETRY_S)

    def _get(self, key: str) -> str:
        rank_0 = _Process(self._process.namespace, 0)
        value = ctypes.POINTER(_Value)()
        self._call(
            "PMIx_Get",
            ctypes.byref(rank_0),
            key.encode(),
            None,
            ctypes.c_size_t(0),
            ctypes.byref(value),
        )
        if value.contents.type != STRING:
            raise PmixError(f"the value of {key} is not a string")
        text: bytes | None = value.contents.data.text
        return (text or b"").decode(errors="replace")

    def _call(self, function: str, *arguments: object) -> None:
        if os.getpid() != self._pid:
            raise PmixError("a forked child cannot use its parent's connection to the launcher")
        status = getattr(self._library, function)(*arguments)
        if status != SUCCESS:
            text = self._library.PMIx_Error_string
            text.restype = ctypes.c_char_p
            raise PmixError(f"{function} failed: {text(status).decode()}", status)

    def _finalize(self) -> None:
        if os.getpid() == self._pid:
            self._call("PMIx_Finalize", None, ctypes.c_size_t(0))
