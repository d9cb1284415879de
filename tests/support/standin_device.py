"""The build directory of the stand-in accelerator, and the environment of programs that use it.

subprocess.run([sys.executable, script], env={**os.environ, **environment()}) runs a script that can
use device "standin:1" and imports only torch. It must be a new interpreter: torch loads the device
at `import torch`.
"""

import os

from support.commands import ROOT

# STANDIN_BUILD_DIR selects another build.
BUILD_DIR = ROOT / os.environ.get("STANDIN_BUILD_DIR", "build/standin")


def environment(devices: int = 4, delay_ms: float = 2) -> dict[str, str]:
    """`delay_ms` is the duration of a copy until the program calls set_delay_ms()."""
    assert any(BUILD_DIR.glob("standin/_C*.so")), f"{BUILD_DIR} is not built: make standin"
    paths = [str(BUILD_DIR), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        "PYTHONPATH": os.pathsep.join(paths),
        "STANDIN_DEVICES": str(devices),
        "STANDIN_DELAY_MS": str(delay_ms),
    }
