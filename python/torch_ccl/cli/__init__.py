"""The command `torch-ccl`. Importing it loads typer, but neither torch nor rich."""

from typing import Annotated

import typer

from torch_ccl.cli.bench import bench
from torch_ccl.cli.compile import compile_extension
from torch_ccl.cli.doctor import doctor
from torch_ccl.cli.info import info
from torch_ccl.cli.run import run

app = typer.Typer(
    help="Collective communication for PyTorch on CPUs.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # help without rich, whose import takes longer than all else
)


def print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"torch-ccl {version('torch-ccl')}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option("--version", callback=print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    pass


# Everything after SCRIPT belongs to the script, including words that look like options.
app.command(context_settings={"allow_interspersed_args": False})(run)
app.command()(doctor)
app.command()(info)
app.command()(bench)
app.command("compile")(compile_extension)
