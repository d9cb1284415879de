"""The script on the first screen of README.md."""

import re

from support.commands import ROOT

# One string, one write: the ranks share the launcher's output, and with PYTHONUNBUFFERED=1 print()
# writes each of its arguments on its own.
SHOW_GROUP = 'print(f"{dist.get_backend()} {dist.get_world_size()}\\n", end="")\n'


def python_block() -> str:
    return re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[1]


def ddp_script() -> str:
    """Each rank also prints its backend and the number of ranks: "ccl 2"."""
    return python_block() + SHOW_GROUP
