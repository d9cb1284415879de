"""The command `torch-ccl`."""

import typer

from torch_ccl.cli.bench import bench
from torch_ccl.cli.info import info

app = typer.Typer(
    help="Collective communication for PyTorch on CPUs.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(bench)
app.command()(info)
