"""Files of the installed package. Does not need torch."""

from pathlib import Path


def find(relative: str) -> Path | None:
    """In an editable installation the compiled files are not beside the Python files."""
    import torch_ccl

    paths = (Path(directory) / relative for directory in torch_ccl.__path__)
    return next((path for path in paths if path.exists()), None)
