"""A progress bar on stderr for whatever takes longer than a moment; none where nobody watches."""

import sys
import threading
from types import TracebackType
from typing import TYPE_CHECKING

from bytebound.cli.interrupts import RememberedInterrupt

if TYPE_CHECKING:
    from rich.progress import Progress

DELAY_S = 1.0  # what is over by then shows nothing


class Waiting:
    """Shows ``what`` with a moving sign, and a bar once ``advance`` was told a total.

    Works for anything that blocks, imports included: a timer starts the display. It leaves no trace
    on the screen, and shows nothing where stderr is no terminal. Ctrl-C ends it for sure.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._shown = False
        self._timer: threading.Timer | None = None
        self._progress: Progress | None = None
        self._interrupt = RememberedInterrupt()

    def __enter__(self) -> "Waiting":
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

            self._progress = Progress(
                SpinnerColumn("line"),
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=30),
                TextColumn("{task.fields[amount]}", markup=False),
                console=Console(stderr=True),
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._progress.add_task(self._what, total=None, amount="")
            self._timer = threading.Timer(DELAY_S, self._show)
            self._timer.daemon = True
            self._timer.start()
        self._interrupt.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._timer is not None and self._progress is not None:
            self._timer.cancel()
            self._timer.join()
            if self._shown:
                self._progress.stop()
        self._interrupt.__exit__(kind, error, trace)

    def check(self) -> None:
        """End here if Ctrl-C came and was swallowed."""
        self._interrupt.check()

    def advance(self, done: int, total: int) -> None:
        """Report bytes; fits ``on_progress`` of the engine."""
        self.check()
        if self._progress is not None:
            amount = f"{done / 1e9:.1f} of {total / 1e9:.1f} GB" if total >= 1e8 else ""
            self._progress.update(
                self._progress.task_ids[0], completed=done, total=total, amount=amount
            )

    def _show(self) -> None:
        if self._progress is not None:
            self._progress.start()
            self._shown = True
