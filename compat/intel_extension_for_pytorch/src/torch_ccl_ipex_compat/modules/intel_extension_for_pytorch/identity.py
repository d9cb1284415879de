"""optimize(): accepted, so that scripts run, but nothing is done."""

import functools
import warnings


def optimize(model, dtype=None, optimizer=None, level="O1", inplace=False, **options):
    """The model, or the model and the optimizer, as they are: neither copied nor changed.

    A warning says so, once in a process.
    """
    _warn()
    return model if optimizer is None else (model, optimizer)


@functools.cache
def _warn() -> None:
    warnings.warn(
        "optimize() of torch-ccl's stand-in for intel_extension_for_pytorch changes nothing: "
        "model and optimizer stay as they are, dtype and all other arguments are ignored",
        stacklevel=3,
    )
