"""Ctrl-C that cannot get lost: some libraries catch everything while they are imported."""

import signal
import threading
from types import FrameType, TracebackType


class RememberedInterrupt:
    """Raises KeyboardInterrupt as ever, and once more at the end of the block if it was swallowed.

    Does nothing where the signal is ignored or handled by somebody else.
    """

    def __init__(self) -> None:
        self._seen = False
        self._installed = False

    def __enter__(self) -> "RememberedInterrupt":
        usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if usual and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, self._remember)
            self._installed = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._installed:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if kind is None:
            self.check()

    def check(self) -> None:
        """Raise what was swallowed."""
        if self._seen:
            raise KeyboardInterrupt

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self._seen = True
        raise KeyboardInterrupt
