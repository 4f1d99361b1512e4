"""A bar on stderr with the time left; nothing where stderr is no terminal."""

import sys
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress


class JobProgress:
    """Counts bytes of the source; ``tick`` fits ``bytebound_quant.job.Tick``."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._progress: Progress | None = None

    def __enter__(self) -> "JobProgress":
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import (
                BarColumn,
                Progress,
                TextColumn,
                TimeElapsedColumn,
                TimeRemainingColumn,
            )

            self._progress = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=30),
                TextColumn("{task.percentage:>3.0f} %"),
                TimeElapsedColumn(),
                TextColumn("left"),
                # Units differ in speed, and one of them may take half a minute.
                TimeRemainingColumn(compact=True),
                console=Console(stderr=True),
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
                speed_estimate_period=600,
            )
            self._progress.add_task("", total=self._total)
            self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def tick(self, done: int, label: str) -> None:
        """So many bytes more are done; ``label`` is what goes on now."""
        if self._progress is not None:
            task = self._progress.task_ids[0]
            self._progress.update(task, advance=done, description=f"{label:<28}")
