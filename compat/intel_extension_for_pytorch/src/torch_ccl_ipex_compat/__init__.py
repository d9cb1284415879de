"""Lets `import intel_extension_for_pytorch` find a substitute where the real package is missing.

The real package always takes precedence, whichever is installed first, and none of its files is
touched:

    this distribution has another name           pip never replaces the real one by it
    its modules are below this directory         no file has the path of a file of the real package
    the finder below is the last on meta_path    it runs after everything on sys.path

Python imports this module at start-up, through torch_ccl_ipex_compat.pth. So it loads nothing else
until the name is imported.
"""

import sys

NAME = "intel_extension_for_pytorch"


class LastFinder:
    """An entry of sys.meta_path."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name != NAME:
            return None
        from importlib.machinery import PathFinder
        from pathlib import Path

        later = sys.meta_path[sys.meta_path.index(cls) + 1 :]  # finders added after this one
        found = (finder.find_spec(name, path, target) for finder in later)
        ours = [str(Path(__file__).parent / "modules")]
        return next(filter(None, found), None) or PathFinder.find_spec(name, ours)


if LastFinder not in sys.meta_path:
    sys.meta_path.append(LastFinder)
