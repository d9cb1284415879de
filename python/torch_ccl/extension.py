"""Loads torch_ccl._C, the extension for the installed torch.

torch has no stable C++ interface, so an extension serves one minor version of torch and one version
of Python. The wheel has one for each of several versions of torch, in extensions/torch2.13/ and so
on. For any other torch or Python the extension is compiled when it is first needed, from sources
in the wheel, and kept in the user's cache (extension_build.py).
"""

import importlib.util
import re
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import ModuleType

import torch

from torch_ccl import installed_files, libtccl

NAME = "torch_ccl._C"
OLDEST_TORCH = (2, 8)


def load() -> ModuleType:
    """Return the module; raises ImportError with advice if there is none for this torch."""
    if NAME in sys.modules:
        return sys.modules[NAME]
    check_torch_version(torch.__version__)
    try:
        return _load_prebuilt_or_compile()
    except libtccl.LoadError as problem:  # no other extension would help
        raise ImportError(str(problem)) from None


def _load_prebuilt_or_compile() -> ModuleType:
    reason = None
    if path := prebuilt():
        try:
            return _import(path)
        except ImportError as problem:  # a patch release of torch may lack a symbol
            reason = problem
    from torch_ccl import extension_build  # it and sysconfig take 4 ms

    try:
        return extension_build.load_or_compile(_import)
    except ImportError as problem:
        raise problem from reason


def check_torch_version(version: str) -> None:
    found = re.match(r"(\d+)\.(\d+)", version)
    if found and OLDEST_TORCH <= (int(found[1]), int(found[2])) < (3, 0):
        return
    raise ImportError(f"torch-ccl needs torch 2.8 or a later 2.x, but torch {version} is installed")


def prebuilt() -> Path | None:
    """The extension in the package for this torch and this Python, if there is one.

    That of a release serves all its patches and builds; a pre-release or a build from source may
    differ from the release, so its extension has the whole version in its name.
    """
    release = re.fullmatch(r"(\d+\.\d+)\.\d+(\+(cpu|cu\d+|rocm[\d.]+|xpu))?", torch.__version__)
    version = release[1] if release else torch.__version__
    return installed_files.find(f"extensions/torch{version}/_C{EXTENSION_SUFFIXES[0]}")


def _import(path: Path) -> ModuleType:
    libtccl.load()  # which the extension needs: once ours is loaded, no other one is searched for
    spec = importlib.util.spec_from_file_location(NAME, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[NAME] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[NAME]
        raise
    return module
