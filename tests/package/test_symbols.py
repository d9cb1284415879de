"""What the installed libraries need of the system, and what they export.

On x86-64 they load with glibc 2.28 and the libstdc++ of GCC 8, like PyTorch's own wheels, whatever
system built them: see src/base/old_libraries.cc and cmake/old_glibc."""

import importlib.util
import platform
import re
from pathlib import Path

import pytest
from support.commands import shell

PACKAGE = Path(importlib.util.find_spec("torch_ccl").origin).parent
LIBTCCL = PACKAGE / "lib/libtccl.so"
EXTENSIONS = sorted(PACKAGE.rglob("_C.*.so"))
LIBRARIES = [
    pytest.param(path, id=str(path.relative_to(PACKAGE))) for path in (LIBTCCL, *EXTENSIONS)
]

#: The newest version of each that a wheel for manylinux_2_28 may need (PEP 600).
NEWEST = {"GLIBC": (2, 28), "GLIBCXX": (3, 4, 24), "CXXABI": (1, 3, 11), "GCC": (7, 0, 0)}
GLIBC = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "ld-linux-x86-64.so.2"}
COMPILER = {"libstdc++.so.6", "libgcc_s.so.1"}
TORCH = {"libtorch_cpu.so", "libtorch_python.so", "libc10.so"}

only_x86_64 = pytest.mark.skipif(
    platform.machine() != "x86_64", reason="other processors need what the building system has"
)


def versioned_symbols(library: Path) -> dict[str, str]:
    """The version of each symbol that the library needs from another one."""
    table = shell('nm --dynamic --undefined-only --with-symbol-versions "$1"', library)
    return dict(re.findall(r"(?m) (\S+?)@+(\S+)$", table))


def is_allowed(version: str) -> bool:
    name, _, number = version.partition("_")
    return name in NEWEST and tuple(int(part) for part in number.split(".")) <= NEWEST[name]


def exports(library: Path) -> list[tuple[str, str]]:
    """(type, demangled name) of each symbol that the library exports; types are those of nm."""
    table = shell('nm --dynamic --demangle --defined-only "$1"', library)
    return [tuple(line.split(maxsplit=2)[1:]) for line in table.splitlines()]


def test_package_has_both_kinds_of_libraries():
    assert LIBTCCL.is_file()
    assert EXTENSIONS


@only_x86_64
@pytest.mark.parametrize("library", LIBRARIES)
def test_glibc_and_libstdcxx_versions(library):
    symbols = versioned_symbols(library)
    assert "GLIBC_2.2.5" in symbols.values(), symbols
    assert {name: version for name, version in symbols.items() if not is_allowed(version)} == {}


@only_x86_64
@pytest.mark.parametrize("library", LIBRARIES)
def test_needed_libraries(library):
    """Neither libcrypto nor libsodium nor libfabric nor fmt."""
    table = shell('readelf --dynamic "$1"', library)
    needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", table))
    others = set() if library == LIBTCCL else {"libtccl.so", *TORCH}
    assert needed - GLIBC - COMPILER == others


def test_libtccl_exports_only_tccl():
    ours = re.compile("((typeinfo|typeinfo name|vtable) for )?tccl::|tccl_")
    names = [name for _, name in exports(LIBTCCL)]
    assert names
    assert [name for name in names if not ours.match(name)] == []


@pytest.mark.parametrize("extension", EXTENSIONS, ids=lambda path: path.name)
def test_extension_exports_only_its_module(extension):
    """Besides inline functions, type information and inline variables of C++ headers, which every
    C++ library exports as weak or unique symbols. An exported function of glibc or libstdc++ would
    replace that function in the whole process."""
    of_linker = {"_edata", "_end", "__bss_start"}
    strong = {name for kind, name in exports(extension) if kind not in "VWu"}
    assert strong - of_linker == {"PyInit__C"}
