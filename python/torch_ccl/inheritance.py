"""What ranks inherit from the process that starts them: its CPUs, but not its place in a job."""

import ctypes
import os
import re

from torch_ccl import launchers
from torch_ccl.loaded_libraries import loaded_libraries

#: What a rank must not inherit: ours; what would tell it that somebody else serves the store; and
#: the place of this process in a job around it, which importing our package may have completed.
UNSET = (
    "CCL_RSH",
    "TORCHELASTIC_USE_AGENT_STORE",
    *(name for row in launchers.LAUNCHERS for name in row[1:] if row is not launchers.ENVIRONMENT),
    *("PMI_FD", "PMIX_NAMESPACE", "PMIX_RANK"),
)


def _places_of_openmp() -> set[int]:
    """The CPUs of all its places; none unless it was told to bind threads."""
    cpus: set[int] = set()
    for path in loaded_libraries():
        if not re.search(r"/lib[a-z]*omp[^/]*\.so", path):
            continue
        openmp = ctypes.CDLL(path)
        if not hasattr(openmp, "omp_get_num_places"):
            continue  # of another kind, whose name is like it
        for place in range(openmp.omp_get_num_places()):
            numbers = (ctypes.c_int * openmp.omp_get_place_num_procs(place))()
            openmp.omp_get_place_proc_ids(place, numbers)
            cpus.update(numbers)
    return cpus


def cpus_of_this_process() -> list[int]:
    """Those it may use. With OMP_PROC_BIND, OpenMP binds the thread that loads it to its first
    place, and torch has loaded it: then the places say what the thread may have had before."""
    return sorted(os.sched_getaffinity(0) | _places_of_openmp())
