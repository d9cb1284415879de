"""The command `torch-ccl`."""

import typer

from torch_ccl.cli.bench import bench

app = typer.Typer(
    help="Collective communication for PyTorch on CPUs.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(bench)


@app.callback()
def _several_commands() -> None:
    """Without it typer would drop the name of a single command."""
