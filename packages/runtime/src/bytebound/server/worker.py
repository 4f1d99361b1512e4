"""The one stream: requests wait in order, and a single thread runs the engine.

The event loop never waits for the engine, and the engine never for a client: a job's updates pass
through a queue of its own. A job ends early when it is cancelled or past its deadline; the thread
then leaves it after the pass of the model that runs, also in the middle of a prompt.
"""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import suppress
from typing import Any, Generic, TypeVar

from bytebound.engine import Engine
from bytebound.errors import ByteboundError, StepTimeoutError
from bytebound.server.errors import queue_full, timed_out, unavailable

log = logging.getLogger("bytebound.server")

T = TypeVar("T")
Work = Callable[[Engine], Iterator[T]]


class UnwantedError(Exception):
    """Nobody waits for the rest of the job that runs."""


class Job(Generic[T]):
    """One request at the engine: what it has given so far, and the way to end it."""

    def __init__(self, work: Work[T], deadline: float, allowed_s: float) -> None:
        self.work = work
        self.position = 0
        """Requests before this one when it came."""
        self.queued_s = 0.0
        """Seconds from its arrival to its start."""
        self.arrived = time.monotonic()
        self.cancelled = threading.Event()
        self._deadline = deadline
        self._allowed_s = allowed_s
        self._loop = asyncio.get_running_loop()
        self._updates: asyncio.Queue[tuple[T | None, BaseException | None]] = asyncio.Queue()

    async def results(self) -> AsyncGenerator[T, None]:
        """What the work yields, as it comes.

        Raises RequestFailure when the deadline passes, and whatever the work raised. Leaving the
        iteration early cancels the job.
        """
        try:
            while True:
                try:
                    async with asyncio.timeout(self._deadline - time.monotonic()):
                        value, error = await self._updates.get()
                except TimeoutError:
                    raise timed_out(self._allowed_s) from None
                if error is not None:
                    raise error
                if value is None:
                    return
                yield value
                if not self._updates.empty():
                    await asyncio.sleep(0)  # let others see, say, that the client has gone
        finally:
            self.cancel()

    def cancel(self) -> None:
        """Let the engine leave this job; one that has ended is not disturbed."""
        self.cancelled.set()

    @property
    def unwanted(self) -> bool:
        """Whether nobody waits for the rest."""
        return self.cancelled.is_set() or time.monotonic() >= self._deadline

    def check(self) -> None:
        """Raise UnwantedError if nobody waits for the rest."""
        if self.unwanted:
            raise UnwantedError

    def put(self, value: T | None, error: BaseException | None = None) -> None:
        """Hand one update to the event loop, from the engine's thread; None ends the job."""
        with suppress(RuntimeError):  # the loop is closed: the server has stopped
            self._loop.call_soon_threadsafe(self._updates.put_nowait, (value, error))


class EngineWorker:
    """Runs jobs on an engine, one after the other, in the order in which they came."""

    def __init__(self, engine: Engine, *, max_queue: int, timeout_s: float) -> None:
        self.engine = engine
        self.lost: str | None = None
        """Why the engine is of no more use, or None."""
        self._max_queue = max_queue
        self._timeout_s = timeout_s
        self._waiting: deque[Job[Any]] = deque()
        self._running: Job[Any] | None = None
        self._changed = threading.Condition()
        self._stopping = False
        self._last_s = 1.0  # how long the last job ran, for Retry-After
        self._thread = threading.Thread(target=self._run, name="bytebound-engine", daemon=True)

    @property
    def depth(self) -> int:
        """Requests that wait."""
        with self._changed:
            return sum(not job.cancelled.is_set() for job in self._waiting)

    @property
    def busy(self) -> bool:
        """Whether a request runs."""
        return self._running is not None

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def submit(self, work: Work[T], *, deadline: float | None = None) -> Job[T]:
        """Put a request at the end of the queue; to be called on the event loop.

        Raises RequestFailure: 429 when the queue is full, 503 when the worker has stopped.
        """
        allowed = self._timeout_s
        job = Job(work, time.monotonic() + allowed if deadline is None else deadline, allowed)
        with self._changed:
            job.position = self._check_place()
            self._waiting.append(job)
            self._changed.notify()
        return job

    def check_place(self) -> None:
        """Raise what ``submit`` would raise now: before anything is spent on a request."""
        with self._changed:
            self._check_place()

    def _check_place(self) -> int:
        """How many requests a new one would come after, or RequestFailure."""
        if self.lost is not None:
            raise unavailable(self.lost)
        if self._stopping:
            raise unavailable("the server is shutting down")
        for job in [job for job in self._waiting if job.cancelled.is_set()]:
            self._waiting.remove(job)
        before = len(self._waiting) + (self._running is not None)
        if before > self._max_queue:
            raise queue_full(len(self._waiting), max(1, round(self._last_s)))
        return before

    def place_of(self, job: Job[Any]) -> int:
        """Requests before this one now; 0 once it runs."""
        with self._changed:
            if job not in self._waiting:
                return 0
            ahead = list(self._waiting)[: self._waiting.index(job)]
            running = self._running is not None
            return sum(not other.cancelled.is_set() for other in ahead) + running

    def end_requests(self) -> int:
        """Fail everything that runs or waits, and take no more; return how many were cut."""
        with self._changed:
            self._stopping = True
            running = [] if self._running is None else [self._running]
            cut = [job for job in [*running, *self._waiting] if not job.cancelled.is_set()]
            for job in cut:
                job.put(None, unavailable("the server is shutting down, and the reply was cut"))
                job.cancel()
            self._changed.notify()
        return len(cut)

    def stop(self, timeout_s: float = 10.0) -> None:
        """End everything, and wait for the thread to end."""
        self.end_requests()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while self._run_next():
            pass

    def _run_next(self) -> bool:
        """Run a job; False at the end. Nothing of it is held while the next one is waited for."""
        job = self._next()
        if job is None:
            return False
        started = time.monotonic()
        job.queued_s = started - job.arrived
        self._work_on(job)
        with self._changed:
            self._last_s = time.monotonic() - started
            self._running = None
        return True

    def _next(self) -> Job[Any] | None:
        with self._changed:
            while not self._waiting:
                if self._stopping:
                    return None
                self._changed.wait()
            self._running = self._waiting.popleft()
            return self._running

    def _work_on(self, job: Job[Any]) -> None:
        if job.unwanted:
            job.put(None, unavailable("the request was ended before it began"))
            return
        if self.lost is not None:
            job.put(None, unavailable(self.lost))
            return
        try:
            self._results_of(job)
        except UnwantedError:
            job.put(None, unavailable("the request was ended by the server"))
        except ByteboundError as error:
            if isinstance(error, StepTimeoutError):
                self.lost = str(error)
            job.put(None, error)
        except Exception as error:  # a bug costs one request, not the thread
            log_bug(error)
            job.put(None, error)
        else:
            job.put(None)

    def _results_of(self, job: Job[Any]) -> None:
        """Hand over what the job yields; the engine has forgotten it when this returns."""
        reader = self.engine.reader
        reader.before_pass = job.check
        try:
            results = job.work(self.engine)
            try:
                for value in results:
                    job.put(value)
                    job.check()
            finally:
                close = getattr(results, "close", None)
                if close is not None:
                    close()
        finally:
            reader.before_pass = None


def log_bug(error: BaseException) -> None:
    """Log the kind and the place of an exception; its message may hold a prompt or a path."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = "an unknown place"
    if trace is not None:
        code = trace.tb_frame.f_code
        module = trace.tb_frame.f_globals.get("__name__", "?")
        place = f"{module}.{code.co_qualname}, line {trace.tb_lineno}"
    log.error("internal error: %s in %s", type(error).__name__, place)
    log.debug("details", exc_info=error)
