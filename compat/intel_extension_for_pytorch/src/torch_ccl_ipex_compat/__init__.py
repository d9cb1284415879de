"""Lets `import intel_extension_for_pytorch` find a stand-in where there is no real one.

A real one always wins, whichever is installed first, and no file of it is touched:

    this distribution has another name     pip never takes it for the real one, to replace it
    its files lie below this directory     none has the path of one of the real package
    the finder below is asked last         after everything that sys.path leads to

torch_ccl_ipex_compat.pth, which Python reads when it starts, imports this module. So it loads
nothing else before it is asked for the name.
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

        behind = sys.meta_path[sys.meta_path.index(cls) + 1 :]  # added after us
        found = (finder.find_spec(name, path, target) for finder in behind)
        ours = [str(Path(__file__).parent / "modules")]
        return next(filter(None, found), None) or PathFinder.find_spec(name, ours)


if LastFinder not in sys.meta_path:
    sys.meta_path.append(LastFinder)
