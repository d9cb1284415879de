"""The command `torch-ccl`."""

import typer

from torch_ccl.cli.bench import bench
from torch_ccl.cli.doctor import doctor
from torch_ccl.cli.info import info
from torch_ccl.cli.run import run

app = typer.Typer(
    help="Collective communication for PyTorch on CPUs.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
# What comes behind the script is the script's, also if it looks like an option.
app.command(context_settings={"allow_interspersed_args": False})(run)
app.command()(doctor)
app.command()(info)
app.command()(bench)
