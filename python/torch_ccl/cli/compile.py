"""`torch-ccl compile`: compiles the extension for the installed torch, if there is none for it."""

import typer


def compile_extension() -> None:
    """Compile the extension for the installed torch now, not at its first use.

    For images of containers, and where the first use must not take a minute. CCL_CACHE_DIR names
    the directory for it.
    """
    import torch_ccl

    try:
        typer.echo(f"torch-ccl uses {torch_ccl._C.__file__}")
    except ImportError as problem:
        typer.echo(f"torch-ccl: {problem}", err=True)
        raise typer.Exit(1) from None
