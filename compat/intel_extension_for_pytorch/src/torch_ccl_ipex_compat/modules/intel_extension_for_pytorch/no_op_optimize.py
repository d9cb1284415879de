"""optimize(): accepts its arguments, so that scripts run, and does nothing."""

import functools
import warnings
from typing import Any


def optimize(
    model: Any,
    dtype: Any = None,
    optimizer: Any = None,
    level: str = "O1",
    inplace: bool = False,
    **options: Any,
) -> Any:
    """Return the model, or the model and the optimizer, neither copied nor changed.

    Warns once per process.
    """
    _warn()
    return model if optimizer is None else (model, optimizer)


@functools.cache
def _warn() -> None:
    warnings.warn(
        "optimize() of torch-ccl's substitute for intel_extension_for_pytorch changes nothing: "
        "it returns model and optimizer as they are and ignores all other arguments",
        stacklevel=3,
    )
