"""One engine, several threads: a request runs alone to its end, or is told that it was ended."""

import threading
from pathlib import Path

import pytest
import torch
from bytebound import Engine, InvalidRequestError, InvalidSettingError, SamplingParams
from bytebound.reference.threads import threads_for

from .checkpoints import random_checkpoint

PARAMS = SamplingParams(max_tokens=40, ignore_eos=True)


def test_a_request_that_completes_is_right(tmp_path: Path) -> None:
    folder = random_checkpoint(tmp_path, seed=31).folder
    engine = Engine.from_pretrained(folder, device="cpu", dtype="float32", num_draft_tokens=3)
    prompts = [[1, 2, 3], [9, 8], [30, 31, 32, 33], [5]]
    expected = [engine.generate(prompt, PARAMS).token_ids for prompt in prompts]
    wrong: list[object] = []
    ended = threading.Semaphore(0)

    def ask(index: int) -> None:
        for _ in range(8):
            try:
                got = engine.generate(prompts[index], PARAMS).token_ids
            except InvalidRequestError:
                ended.release()
                continue
            if got != expected[index]:
                wrong.append((index, got))

    workers = [threading.Thread(target=ask, args=(index,)) for index in range(len(prompts))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong
    assert ended.acquire(blocking=False), "no two requests met: the test shows nothing"


def test_a_step_keeps_the_others_out(tmp_path: Path) -> None:
    """A second request that arrives within a step waits for that step, then ends the first."""
    folder = random_checkpoint(tmp_path, seed=31).folder
    engine = Engine.from_pretrained(folder, device="cpu", dtype="float32", draft="none")
    expected = engine.generate([7, 8, 9], PARAMS).token_ids
    second: list[list[int]] = []
    verify = engine.executor.verify
    started: list[threading.Thread] = []

    def interrupted(ids: list[int]) -> torch.Tensor:
        if not started:
            ask = threading.Thread(
                target=lambda: second.append(engine.generate([7, 8, 9], PARAMS).token_ids)
            )
            started.append(ask)
            ask.start()
            ask.join(timeout=0.2)  # it cannot finish: this step holds the sequence
            assert ask.is_alive()
        return verify(ids)

    engine.executor.verify = interrupted  # type: ignore[method-assign]
    with pytest.raises(InvalidRequestError, match="another request was started"):
        engine.generate([1, 2, 3], PARAMS)
    started[0].join()
    assert second == [expected]


def test_the_number_of_threads_comes_back() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        first, second = threads_for(10, rows=1), threads_for(10, rows=1)
        first.__enter__()
        second.__enter__()
        assert torch.get_num_threads() == 1
        first.__exit__(None, None, None)
        assert torch.get_num_threads() == 1
        second.__exit__(None, None, None)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_thread_that_leaves_first_gets_its_number_back() -> None:
    """It does not wait for another one, which restores nothing but its own setting."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    inside, leave = threading.Event(), threading.Event()
    numbers: list[int] = []

    def other() -> None:
        with threads_for(10, rows=1):
            inside.set()
            leave.wait()
        numbers.append(torch.get_num_threads())

    try:
        thread = threading.Thread(target=other)
        with threads_for(10, rows=1):
            torch.zeros(4).sum()  # this thread has a setting of its own
            thread.start()
            inside.wait()
        assert torch.get_num_threads() == 2
        leave.set()
        thread.join()
        assert numbers == [2]
        assert torch.get_num_threads() == 2
    finally:
        leave.set()
        torch.set_num_threads(before)


def test_a_thread_that_began_inside_gives_its_one_to_nobody() -> None:
    """Born with 1, it enters first the next time; who enters beside it keeps its own number."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    born, enter, inside, leave = (threading.Event() for _ in range(4))
    numbers: list[int] = []

    def other() -> None:
        numbers.append(torch.get_num_threads())
        born.set()
        enter.wait()
        with threads_for(10, rows=1):
            inside.set()
            leave.wait()
        numbers.append(torch.get_num_threads())

    thread = threading.Thread(target=other)
    try:
        with threads_for(10, rows=1):
            thread.start()
            born.wait()
        enter.set()
        inside.wait()
        with threads_for(10, rows=1):
            assert torch.get_num_threads() == 1
            leave.set()
            thread.join()
        assert torch.get_num_threads() == 2
        assert numbers == [1, 2]
    finally:
        for event in (enter, leave):
            event.set()
        torch.set_num_threads(before)


def test_one_thread_that_was_asked_for_stays() -> None:
    """A process told to use one CPU thread is not given more, in an old thread or a new one."""
    before = torch.get_num_threads()
    numbers: list[int] = []

    def run() -> None:
        with threads_for(10, rows=1):
            pass
        numbers.append(torch.get_num_threads())

    torch.set_num_threads(1)
    try:
        run()
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        assert numbers == [1, 1]
    finally:
        torch.set_num_threads(before)


def test_what_cannot_fit_is_refused_before_a_weight_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E43: the message names the largest context that fits."""
    folder = random_checkpoint(tmp_path, seed=31).folder
    (folder / "model.safetensors").write_bytes(b"")  # reading it would be another error
    monkeypatch.setattr("bytebound.loading.available_memory", lambda device: 3_000_000)
    with pytest.raises(InvalidSettingError, match=r"fits is \d+|no context fits"):
        Engine.from_pretrained(folder, device="cpu", dtype="float32")
