"""The progress bar of `torch-ccl bench`."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

#: `with step("all_reduce, 8 B"): ...` shows the text, and counts the step when it has ended.
Step = Callable[[str], AbstractContextManager[None]]


@contextmanager
def progress_bar(steps: int) -> Iterator[Step]:
    """Shows progress on stderr, if that is a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    # Drawn at each step only: a thread that redraws would run on a rank's core.
    console = Console(stderr=True)
    with Progress(
        console=console, transient=True, auto_refresh=False, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("starting", total=steps)

        @contextmanager
        def step(text: str) -> Iterator[None]:
            bar.update(task, description=text, refresh=True)
            yield
            bar.update(task, advance=1, refresh=True)

        yield step
