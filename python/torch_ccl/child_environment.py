"""What ranks inherit from the process that starts them: its CPUs, but not its rank in a job."""

import ctypes
import os
import re

from torch_ccl import launchers
from torch_ccl.loaded_libraries import loaded_libraries

#: Variables that a rank must not inherit: an option of `torch-ccl run`; the one that says that
#: torchrun's agent serves the store; and the rank of this process in another job.
REMOVED_VARIABLES = (
    "CCL_RSH",
    "TORCHELASTIC_USE_AGENT_STORE",
    *(name for row in launchers.LAUNCHERS for name in row[1:] if name not in launchers.ENVIRONMENT),
    *("PMI_FD", "PMIX_NAMESPACE", "PMIX_RANK"),
)


def _openmp_places() -> set[int]:
    """The CPUs of all OpenMP places; empty unless OpenMP binds threads."""
    cpus: set[int] = set()
    for path in loaded_libraries():
        if not re.search(r"/lib[a-z]*omp[^/]*\.so", path):
            continue
        openmp = ctypes.CDLL(path)
        if not hasattr(openmp, "omp_get_num_places"):
            continue  # another library with a similar name
        for place in range(openmp.omp_get_num_places()):
            numbers = (ctypes.c_int * openmp.omp_get_place_num_procs(place))()
            openmp.omp_get_place_proc_ids(place, numbers)
            cpus.update(numbers)
    return cpus


def usable_cpus() -> list[int]:
    """The CPUs that this process may use.

    With OMP_PROC_BIND, OpenMP binds the thread that loads it (torch does) to its first place. The
    union of all places is the affinity that the thread had before.
    """
    return sorted(os.sched_getaffinity(0) | _openmp_places())
