"""Prompts of few rows: recorded steps in place of a wide pass, with the bits of decoding."""

from collections.abc import Hashable, Sequence
from pathlib import Path

import pytest
import torch
from bytebound import Engine, SamplingParams
from bytebound.checkpoint import read_headers
from bytebound.config import ModelConfig
from bytebound.cuda.decoder import CudaDecoder
from bytebound.cuda.executor import FEW_ROWS, CudaExecutor
from bytebound.cuda.graphs import Recordings
from bytebound.cuda.loading import load_weights
from bytebound.cuda.step import settle
from bytebound.cuda.taps import tapping
from bytebound.errors import ContextOverflowError
from bytebound.names import resolve_model
from bytebound.prompt_reader import PromptReader

from .cuda_models import FOLDERS, TOLERANCE, mtp_draft, relative_error, some_ids
from .emulated_kernels import emulate

IDS = some_ids(120)
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
MAX_LEN = 160


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> torch.device:
    if request.param == "cpu":
        emulate(monkeypatch)
    return torch.device(request.param)


@pytest.fixture(params=["tiny", "symmetric"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    if request.param == "tiny":
        return resolve_model("tiny")
    return FOLDERS[request.param](tmp_path / "model")


def build(
    folder: Path, device: torch.device, few_rows: int | None = None, engine: str = "graph"
) -> CudaExecutor:
    config = ModelConfig.from_folder(folder)
    weights = load_weights(folder, config, read_headers(folder, config), device=device)
    return CudaExecutor(weights, config, max_len=MAX_LEN, few_rows=few_rows, engine=engine)


@pytest.fixture
def executor(folder: Path, device: torch.device) -> CudaExecutor:
    return build(folder, device, few_rows=30)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[Hashable]:
    """Rows of the steps through prompts, in their order."""
    found, run = list[Hashable](), Recordings.run

    def noted(self: Recordings, key: Hashable) -> None:
        if isinstance(key, int):
            found.append(key)
        run(self, key)

    monkeypatch.setattr(Recordings, "run", noted)
    return found


class Seen:
    """Keeps what an observer is given."""

    def __init__(self) -> None:
        self.ids = list[int]()
        self.hidden = list[torch.Tensor]()

    def observe(self, next_ids: Sequence[int], hidden: torch.Tensor | None) -> None:
        assert hidden is not None and len(next_ids) == len(hidden)
        self.ids += next_ids
        self.hidden += hidden.clone()


def held(executor: CudaExecutor) -> list[torch.Tensor]:
    """Everything that a prompt leaves; behind what is committed caches hold anything."""
    place = executor.position
    kept = [one.clone() for one in executor.state.kept()]
    caches = [one[:, :place].view(torch.uint8).clone() for one in executor.state.caches]
    return [*kept, *caches, executor.state.position.clone(), executor.state.num_accepted.clone()]


def same(one: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("count", [1, 2, 7, 8, 9, 16, 30])
@torch.inference_mode()
def test_rows_have_the_bits_of_decoding(executor: CudaExecutor, count: int) -> None:
    """Behind a wide pass: logits, hidden rows, states and caches."""
    ids = IDS[40 : 40 + count]
    executor.prefill(IDS[:40])
    rows, hidden = [], []
    for token in ids:
        rows.append(executor.verify([token])[0])
        hidden.append(executor.last_hidden)
        executor.commit(1)
    settle(executor.weights, executor.state, executor.config)
    expected = held(executor)
    seen = Seen()
    executor.reset()
    executor.prefill(IDS[:40])
    assert torch.equal(executor.prefill(ids, seen), rows[-1])
    assert same(held(executor), expected) and executor.position == 40 + count
    assert executor.last_hidden is not None
    assert torch.equal(executor.last_hidden, hidden[-1])
    assert seen.ids == ids[1:]
    assert same(seen.hidden, [one[0] for one in hidden[:-1]])


@torch.inference_mode()
def test_a_prompt_goes_on_behind_guesses(executor: CudaExecutor) -> None:
    """Rows that wait are taken in first; those that fell leave no trace."""
    executor.prefill(IDS[:20])
    executor.verify([*IDS[20:23], 7, 7])
    executor.commit(3)
    row, left = executor.prefill(IDS[23:35]), held(executor)
    executor.verify([5, 6])  # never committed
    again = executor.verify(IDS[35:38])
    executor.reset()
    executor.prefill(IDS[:20])
    assert torch.equal(executor.prefill(IDS[20:35]), row)
    assert same(held(executor), left)
    assert torch.equal(executor.verify(IDS[35:38]), again)


@torch.inference_mode()
def test_a_wide_pass_is_close(folder: Path, device: torch.device) -> None:
    found = []
    for few_rows in (0, 30):
        executor = build(folder, device, few_rows)
        found.append((executor.prefill(IDS[:30]), executor.verify(IDS[30:34])))
    for wide, narrow in zip(*found, strict=True):
        assert relative_error(wide, narrow) < TOLERANCE


@pytest.mark.parametrize("kind", ["tiny", "symmetric"])
def test_how_many_rows_are_few(
    device: torch.device, steps: list[Hashable], tmp_path: Path, kind: str
) -> None:
    """A matrix in 16 bits is no faster eight rows at a time than all at once."""
    own = resolve_model("tiny") if kind == "tiny" else FOLDERS[kind](tmp_path / "model")
    executor = build(own, device)
    most = 8 if kind == "tiny" else FEW_ROWS
    executor.prefill(IDS[: most + 1])
    assert steps == []
    executor.prefill(IDS[:most])
    assert steps == most // 8 * [8]
    executor.prefill(IDS[:11])
    assert steps[most // 8 :] == ([] if kind == "tiny" else [8, 3])


def test_products_are_seen_whole(executor: CudaExecutor, steps: list[Hashable]) -> None:
    rows = set[int]()
    with tapping(executor, lambda one: rows.add(len(one.x))):
        executor.prefill(IDS[:20])
    assert rows == {20, 1} and steps == []  # the head sees the last one
    executor.prefill(IDS[:20])
    assert steps == [8, 8, 4]


def test_a_prompt_that_is_too_long_moves_nothing(executor: CudaExecutor) -> None:
    for start in range(0, 120, 40):
        executor.prefill(IDS[start : start + 40])
    executor.prefill(IDS[:30])
    before = held(executor)
    with pytest.raises(ContextOverflowError, match="11 more tokens after 150"):
        executor.prefill(IDS[:11])
    assert same(held(executor), before) and executor.position == 150


@torch.inference_mode()
def test_a_stream_takes_the_same_steps(device: torch.device, tmp_path: Path) -> None:
    folder = FOLDERS["symmetric"](tmp_path / "model")
    if device.type == "cuda" and torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("the weight stream needs compute capability 9.0")
    found = []
    for engine in ("graph", "stream"):
        executor = build(folder, device, engine=engine)
        found.append([executor.prefill(IDS[:20]), *held(executor)])
        executor.verify(IDS[20:23])
        executor.commit(2)
        executor.reset()
        found[-1] += [executor.prefill(IDS[:20]), *held(executor)]
    assert same(*found)


@pytest.mark.parametrize("draft", ["none", "mtp"])
def test_a_conversation_of_short_turns(folder: Path, device: torch.device, draft: str) -> None:
    """Warm answers are those of an engine that keeps nothing; turns are read both ways."""
    engines = []
    for budget in (None, 0):
        executor = build(folder, device, few_rows=12)
        executor.prefill_chunk, executor.prefill_floor = 24, 6
        head = mtp_draft(executor) if draft == "mtp" else None
        reader = PromptReader(executor, head, turn_starts={3}, snapshot_bytes=budget)
        decoder = CudaDecoder(executor, head, 3, reader)
        engines.append(Engine(executor, draft=head, decoder=decoder, config=executor.config))
    talk, more, cached = IDS[:26], iter(IDS[26:]), 0
    params = SamplingParams(max_tokens=6, ignore_eos=True, logprobs=1)
    for count in (1, 4, 9, 12, 2):
        warm, cold = (engine.generate(talk, params) for engine in engines)
        assert (warm.token_ids, warm.logprobs) == (cold.token_ids, cold.logprobs)
        assert cold.stats.cached_tokens == 0
        cached += warm.stats.cached_tokens
        talk += [*warm.token_ids, 3, *(next(more) for _ in range(count))]
    assert cached > 80
