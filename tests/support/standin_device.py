"""Where the stand-in device is built, and what a program needs in its environment to have it.

subprocess.run([sys.executable, script], env={**os.environ, **environment()}) runs a script that can
say device "standin:1" without importing anything but torch. It must be a new interpreter: the
device is loaded at `import torch`.
"""

import os

from support.commands import ROOT

# The build folder, unless a build elsewhere is tried out.
BUILD_DIR = ROOT / os.environ.get("STANDIN_BUILD_DIR", "build/standin")


def environment(devices: int = 4, delay_ms: float = 2) -> dict[str, str]:
    """`delay_ms` is how long a copy is under way, until the program says set_delay_ms()."""
    assert any(BUILD_DIR.glob("standin/_C*.so")), f"{BUILD_DIR} is not built: make standin"
    paths = [str(BUILD_DIR), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        "PYTHONPATH": os.pathsep.join(paths),
        "STANDIN_DEVICES": str(devices),
        "STANDIN_DELAY_MS": str(delay_ms),
    }
