"""The key-value space of a job whose launcher speaks PMIx (Open MPI, `srun --mpi=pmix`).

    keys = KeySpace.of(os.environ)

PMIx is spoken by a library, libpmix, which comes with the launcher. Its rules, tried with Open MPI
4.1: a process that has initialised it and ends without finalising it is a crash, for which the
launcher ends all others; it counts how often it was initialised, so MPI may do so before and after.
"""

import atexit
import ctypes
import os
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from torch_ccl.loaded_libraries import loaded_libraries

NAME = "libpmix.so.2"

# Of pmix_common.h:
SUCCESS = 0
ERR_TIMEOUT = -24
ERR_NOT_FOUND = -46
STRING = 3
GLOBAL = 3

PERIOD_S = 0.05


class PmixError(RuntimeError):
    def __init__(self, text: str, status: int = SUCCESS):
        super().__init__(text)
        self.status = status


class _Process(ctypes.Structure):
    _fields_ = (("namespace", ctypes.c_char * 256), ("rank", ctypes.c_uint32))


class _Data(ctypes.Union):
    # Room for the largest member, which differs between versions.
    _fields_ = (("text", ctypes.c_char_p), ("room", ctypes.c_uint64 * 8))


class _Value(ctypes.Structure):
    _fields_ = (("type", ctypes.c_uint16), ("data", _Data))


def _candidates() -> Iterator[str]:
    """MPI must find the same library in this process: its own, the launcher's, or the system's."""
    yield from (path for path in loaded_libraries() if Path(path).name.startswith(NAME))
    try:
        prefix = Path(f"/proc/{os.getppid()}/exe").resolve().parents[1]
    except (OSError, IndexError):
        prefix = Path("/")
    yield from (str(prefix / directory / NAME) for directory in ("lib", "lib/openmpi"))
    yield NAME


def _load() -> ctypes.CDLL | None:
    for path in _candidates():
        try:
            return ctypes.CDLL(path)
        except OSError:
            continue
    return None


class KeySpace:
    """Texts that one process of the job publishes and the others read."""

    _ours: "KeySpace | None" = None

    def __init__(self, library: ctypes.CDLL):
        self._library = library
        self._me = _Process()
        self._pid = os.getpid()
        self._call("PMIx_Init", ctypes.byref(self._me), None, ctypes.c_size_t(0))
        atexit.register(self._finalize)

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> "KeySpace | None":
        """None if the launcher offers none, or its library is not to be found."""
        offered = "PMIX_NAMESPACE" in environment and "PMIX_RANK" in environment
        if cls._ours is None and offered and (library := _load()):
            cls._ours = cls(library)
        return cls._ours

    def publish(self, key: str, text: str, timeout_s: float) -> None:
        """Rank 0 says something. Does not wait for the others."""
        value = _Value(STRING, _Data(text=text.encode()))
        self._call("PMIx_Put", ctypes.c_uint8(GLOBAL), key.encode(), ctypes.byref(value))
        self._call("PMIx_Commit")

    def read(self, key: str, timeout_s: float) -> str:
        """What rank 0 says. Raises TimeoutError if it does not say it in time."""
        found: list[str | PmixError] = []
        end = time.monotonic() + timeout_s

        def look() -> None:
            try:
                found.append(self._get_until(key, end))
            except PmixError as error:
                found.append(error)

        # How long PMIx_Get waits for a process that has not come yet is the launcher's business.
        reader = threading.Thread(target=look, daemon=True)
        atexit.unregister(self._finalize)  # it would wait for the reader, should this be left early
        reader.start()
        reader.join(timeout_s)
        if not found:
            raise TimeoutError
        atexit.register(self._finalize)
        if isinstance(found[0], PmixError):
            raise found[0]
        return found[0]

    def _get_until(self, key: str, end: float) -> str:
        while True:
            try:
                return self._get(key)
            except PmixError as error:
                is_late = error.status in (ERR_TIMEOUT, ERR_NOT_FOUND)
                if not is_late or time.monotonic() > end:
                    raise
            time.sleep(PERIOD_S)

    def _get(self, key: str) -> str:
        first = _Process(self._me.namespace, 0)
        value = ctypes.POINTER(_Value)()
        self._call(
            "PMIx_Get",
            ctypes.byref(first),
            key.encode(),
            None,
            ctypes.c_size_t(0),
            ctypes.byref(value),
        )
        if value.contents.type != STRING:
            raise PmixError(f"{key} is no text")
        return value.contents.data.text.decode()

    def _call(self, function: str, *arguments) -> None:
        if os.getpid() != self._pid:
            raise PmixError("a forked child cannot speak to the launcher of its parent")
        status = getattr(self._library, function)(*arguments)
        if status != SUCCESS:
            text = self._library.PMIx_Error_string
            text.restype = ctypes.c_char_p
            raise PmixError(f"{function} says {text(status).decode()}", status)

    def _finalize(self) -> None:
        if os.getpid() == self._pid:
            self._call("PMIx_Finalize", None, ctypes.c_size_t(0))
