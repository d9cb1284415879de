"""The entry point of the command `torch-ccl`.

`import torch_ccl` imports torch and registers the backend, which takes seconds. Most of the command
needs neither. So main() sets `defer_backend`: torch_ccl then loads torch and its extension when
one of its public names is used for the first time.

A package of its own, because Python runs torch_ccl/__init__.py before any module below torch_ccl.
"""

#: Read by torch_ccl/__init__.py. Processes that this one spawns import torch_ccl in full.
defer_backend = False


def main() -> None:
    global defer_backend
    defer_backend = True
    from torch_ccl.cli import app

    app()
