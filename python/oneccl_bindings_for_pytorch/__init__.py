"""An alias of torch_ccl: the name that later releases of Intel's package had."""

from torch_ccl import *  # noqa: F403
from torch_ccl import __all__ as __all__

from . import deepspeed_hook

deepspeed_hook.install()
