"""Waiting for the device, but not for ever: a hang becomes an error.

An event is asked again and again instead of being waited for, since a wait inside the driver could
never be left. For as long as a pass usually takes that costs a core, as the driver's own wait does,
and notices the end within microseconds. From then on it sleeps between two questions, a thousandth
of the time waited so far: a long wait is noticed late by that little, and costs little.
"""

import os
import time
from collections.abc import Callable
from typing import Protocol

from bytebound.errors import InvalidSettingError, StepTimeoutError

VARIABLE = "BYTEBOUND_STEP_TIMEOUT"
LIMIT_S = 60.0  # far above any pass, so that a slow card or a debugger is not taken for a hang
SPIN_S = 0.02  # longer than a pass of one token takes on any card in use
_NAP_OF_WAITED = 1e-3
_LONGEST_NAP_S = 5e-3


class Event(Protocol):
    """What is needed of ``torch.cuda.Event``."""

    def query(self) -> bool:
        """Whether all work before it is done."""


class Watchdog:
    """Waits at most ``limit_s`` seconds for each pass.

    After one that was too long the device cannot be trusted to come back: every later ``wait`` and
    ``check`` raises the same error at once.
    """

    def __init__(
        self,
        limit_s: float = LIMIT_S,
        *,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.limit_s = limit_s
        self._clock = clock
        self._sleep = sleep
        self._failure: str | None = None

    def wait(self, event: Event, passes: int = 1) -> None:
        """Return when ``event`` is done, with ``passes`` passes of the model enqueued before it.

        Raises:
            StepTimeoutError: it was not done in ``passes * limit_s`` seconds, or an earlier one
                was not done in time.
        """
        self.check()
        if event.query():
            return
        start = self._clock()
        while not event.query():
            waited = self._clock() - start
            if waited > passes * self.limit_s:
                self._failure = _explanation(waited)
                self.check()
            if waited > SPIN_S:
                self._sleep(min(waited * _NAP_OF_WAITED, _LONGEST_NAP_S))

    def check(self) -> None:
        """Raise what an earlier ``wait`` ended with; to be called before new work is enqueued."""
        if self._failure is not None:
            raise StepTimeoutError(self._failure)


def limit_from_environment() -> float:
    """Seconds that a pass may take: ``BYTEBOUND_STEP_TIMEOUT``, by default 60.

    Raises:
        InvalidSettingError: the variable is no number above 0.
    """
    given = os.environ.get(VARIABLE)
    if given is None:
        return LIMIT_S
    try:
        limit_s = float(given)
    except ValueError:
        limit_s = 0.0
    if not limit_s > 0:
        raise InvalidSettingError(
            f"{VARIABLE}={given!r}: expected the seconds that one pass may take, a number above 0; "
            f"without it, {LIMIT_S:g}"
        )
    return limit_s


def _explanation(waited: float) -> str:
    return (
        f"the GPU has not finished a pass in {waited:.0f} s, which takes far less than a second: a "
        "kernel hangs, or something else holds the card. Nothing on this GPU will answer in this "
        "process any more, so end it and start again; 'nvidia-smi' shows what else runs there. "
        f"{VARIABLE}=<seconds> allows a pass more time"
    )
