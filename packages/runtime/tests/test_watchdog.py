"""The watchdog against events of a clock that the test moves."""

import threading
import time
from typing import Any

import pytest
import torch
from bytebound import Engine, InvalidSettingError, SamplingParams, StepTimeoutError
from bytebound.cuda.decoder import CudaDecoder
from bytebound.cuda.watchdog import LIMIT_S, SPIN_S, VARIABLE, Watchdog, limit_from_environment
from bytebound.scripted import ScriptedExecutor


class FakeTime:
    """A clock that a question to an event moves by 2 microseconds, and a nap by its length."""

    def __init__(self) -> None:
        self.now = 100.0
        self.naps: list[float] = []

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.naps.append(seconds)
        self.now += seconds + 60e-6  # what an operating system adds


class FakeEvent:
    """Done ``after`` seconds from its creation, or from when it was last recorded."""

    def __init__(self, time: FakeTime, after: float) -> None:
        self.time = time
        self.after = after
        self.questions = 0
        self.record()

    def record(self) -> None:
        self.done_at = self.time.now + self.after

    def query(self) -> bool:
        self.questions += 1
        self.time.now += 2e-6
        return self.time.now >= self.done_at


def watchdog(time: FakeTime, limit_s: float = LIMIT_S) -> Watchdog:
    return Watchdog(limit_s, clock=time.clock, sleep=time.sleep)


@pytest.mark.parametrize("after", [0.0, 1e-5, 3e-3, 0.019])
def test_a_usual_pass_is_noticed_at_once_and_without_a_nap(after: float) -> None:
    time = FakeTime()
    event = FakeEvent(time, after)
    watchdog(time).wait(event)
    assert not time.naps
    assert time.now - event.done_at < 10e-6


@pytest.mark.parametrize("after", [0.05, 1.0, 30.0])
def test_a_long_wait_costs_little_and_is_noticed_soon(after: float) -> None:
    time = FakeTime()
    event = FakeEvent(time, after)
    watchdog(time).wait(event)
    assert time.now - event.done_at <= 2e-3 * after + 200e-6
    assert max(time.naps) <= 5e-3
    spun = SPIN_S / 2e-6
    assert event.questions < spun + 6000 + 250 * after


def test_a_hang_is_an_error_and_stays_one() -> None:
    time = FakeTime()
    dog = watchdog(time, limit_s=2.0)
    start = time.now
    with pytest.raises(StepTimeoutError, match=r"not finished a pass in 2 s.*end it.*nvidia-smi"):
        dog.wait(FakeEvent(time, float("inf")))
    assert 2.0 < time.now - start < 2.1
    asked_at = time.now
    finished = FakeEvent(time, 0.0)
    with pytest.raises(StepTimeoutError):
        dog.wait(finished)
    with pytest.raises(StepTimeoutError):
        dog.check()
    assert finished.questions == 0 and time.now == asked_at


def test_many_passes_may_take_longer() -> None:
    time = FakeTime()
    dog = watchdog(time, limit_s=1.0)
    dog.wait(FakeEvent(time, 7.9), passes=8)
    dog.check()
    with pytest.raises(StepTimeoutError):
        dog.wait(FakeEvent(time, 8.1), passes=8)


def test_the_real_clock() -> None:
    class Event:
        def __init__(self) -> None:
            self.done_at = time.perf_counter() + 0.05

        def query(self) -> bool:
            return time.perf_counter() >= self.done_at

    event = Event()
    Watchdog(limit_s=5.0).wait(event)
    assert time.perf_counter() >= event.done_at
    event.done_at += 3600
    with pytest.raises(StepTimeoutError):
        Watchdog(limit_s=0.05).wait(event)


def test_the_limit_can_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert limit_from_environment() == 60.0
    for text, value in (("7.5", 7.5), ("inf", float("inf"))):
        monkeypatch.setenv(VARIABLE, text)
        assert limit_from_environment() == value
    for text in ("0", "-1", "nan", "soon", ""):
        monkeypatch.setenv(VARIABLE, text)
        with pytest.raises(InvalidSettingError, match=rf"{VARIABLE}='{text}': .*above 0"):
            limit_from_environment()


def test_an_engine_whose_device_hangs_answers_with_the_same_error() -> None:
    """E25: no later call enters the device, where it would stay."""
    engine = Engine(ScriptedExecutor([[1, 2, 3, 4]], 8))
    calls: list[str] = []

    def hanging(ids: list[int]) -> None:
        calls.append("verify")
        raise StepTimeoutError("the GPU has not finished a pass")

    engine.executor.verify = hanging  # type: ignore[method-assign, assignment]
    params = SamplingParams(max_tokens=3)
    for _ in range(3):
        with pytest.raises(StepTimeoutError, match="has not finished a pass"):
            engine.generate([5], params)
    with pytest.raises(StepTimeoutError, match="has not finished a pass"):
        engine.score([1, 2])
    assert calls == ["verify"]
    other: list[type[BaseException]] = []

    def ask() -> None:
        try:
            engine.generate([5], params)
        except StepTimeoutError as error:
            other.append(type(error))

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join(timeout=30)
    assert other == [StepTimeoutError]


SECOND = 2_000_000_000  # cycles of a GPU, about


@pytest.mark.gpu
def test_a_kernel_that_takes_too_long() -> None:
    dog, event = Watchdog(0.3), torch.cuda.Event()
    torch.cuda._sleep(2 * SECOND)
    event.record()
    with pytest.raises(StepTimeoutError):
        dog.wait(event)
    assert not event.query()
    torch.cuda.synchronize()


@pytest.mark.gpu
def test_an_engine_on_a_gpu_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine.from_pretrained("tiny", backend="cuda", draft="none")
    executor = engine.executor
    monkeypatch.setattr(executor, "watchdog", Watchdog(0.3))
    prefill = executor.prefill

    def slow(*args: Any) -> torch.Tensor:
        torch.cuda._sleep(3 * SECOND)
        return prefill(*args)

    monkeypatch.setattr(executor, "prefill", slow)
    start = time.perf_counter()
    for _ in range(3):
        with pytest.raises(StepTimeoutError, match="not finished a pass"):
            engine.generate([1, 2, 3], SamplingParams(max_tokens=3))
    assert time.perf_counter() - start < 1.0
    torch.cuda.synchronize()


@pytest.mark.gpu
@pytest.mark.parametrize("draft", ["none", "mtp"])
def test_a_turn_on_a_gpu_that_hangs(monkeypatch: pytest.MonkeyPatch, draft: str) -> None:
    """E25: a recorded turn; the answer ends with the error, and so do later calls at once."""
    engine = Engine.from_pretrained("tiny", backend="cuda", draft=draft)
    decoder, params = engine.decoder, SamplingParams(max_tokens=40, ignore_eos=True)
    assert isinstance(decoder, CudaDecoder)
    wanted = engine.generate([1, 2, 3], params).token_ids
    monkeypatch.setattr(decoder.executor, "watchdog", Watchdog(0.3))  # of which a turn has three
    stream = engine.stream([1, 2, 3], params)
    seen = list(next(stream).token_ids)
    run = decoder._run

    def slow(*args: Any) -> None:
        torch.cuda._sleep(2 * SECOND)
        run(*args)

    monkeypatch.setattr(decoder, "_run", slow)
    with pytest.raises(StepTimeoutError, match=rf"not finished a pass.*{VARIABLE}"):
        for event in stream:
            seen += event.token_ids
    assert not torch.cuda.current_stream().query()  # nobody waited for its end
    assert seen == wanted[: len(seen)]
    start = time.perf_counter()
    for _ in range(2):
        with pytest.raises(StepTimeoutError, match="not finished a pass"):
            engine.generate([1, 2, 3], params)
        with pytest.raises(StepTimeoutError, match="not finished a pass"):
            engine.score([1, 2, 3])
    assert time.perf_counter() - start < 0.5
    torch.cuda.synchronize()
