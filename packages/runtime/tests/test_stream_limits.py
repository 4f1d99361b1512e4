"""Where the weight stream is refused, and what it is planned to take: before a weight is read."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import bytebound_kernels as bk
import pytest
import torch
from bytebound import Engine, InvalidSettingError
from bytebound.config import ModelConfig
from bytebound.cuda import loading
from bytebound.cuda.loading import CudaParts, load_cuda
from bytebound.cuda.memory import Card, CudaMemory, Stored, plan_for, taken
from bytebound.cuda.stream import StreamStep
from bytebound.cuda.stream_limits import stream_problem
from bytebound.loading import find_model
from bytebound.vram import GIB, MIB

from .checkpoints import random_checkpoint
from .cli_runs import Folders, Run, folders, run
from .cuda_models import FOLDERS, SHAPE, symmetric, tiny_in_4_bits
from .emulated_kernels import emulate
from .emulated_models import CPU

__all__ = ["folders", "run"]  # fixtures

HALF = torch.float16
FLAGSHIP = find_model("random:qwen3.5-27b")[1]
CARD = Card(product_bytes=2048, context_bytes=1000, stream_bytes=1024)


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> None:
    """A card that has a weight stream, on a CPU."""
    emulate(monkeypatch)
    monkeypatch.setattr(Card, "of", lambda device: CARD)
    monkeypatch.setattr(loading, "allocatable_bytes", lambda device: GIB)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))


def problem_of(folder: Path, dtype: torch.dtype = HALF) -> str | None:
    config = ModelConfig.from_folder(folder)
    memory = plan_for(folder, config, "auto")
    return stream_problem(config, memory.decoder_matrices(), dtype, None)


def test_models_that_run(tmp_path: Path) -> None:
    for kind in ("symmetric", "asymmetric"):
        assert problem_of(FOLDERS[kind](tmp_path / kind)) is None
    assert problem_of(tiny_in_4_bits(tmp_path / "tiny")) is None
    matrices = CudaMemory(
        FLAGSHIP, Stored.of(FLAGSHIP, None, "model.", with_mtp=True, random=True), CARD
    ).decoder_matrices()
    assert len(matrices) == 5 * 48 + 4 * 16 + 1
    assert stream_problem(FLAGSHIP, matrices, HALF, None) is None
    assert (
        sum(one.always_dense for one in matrices) == 48 == sum(not one.packed for one in matrices)
    )


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: random_checkpoint(path, **SHAPE).folder, r"in_proj and 12 more matrices"),
        (FOLDERS["gptq"], r"^lm_head.weight and 0 more matrices are in 16 bits; .* in 4 bits$"),
        (FOLDERS["gptq reordered"], r"matrices are in 16 bits"),
        (FOLDERS["partly"], r"more matrices are in 16 bits"),
        (lambda path: symmetric(path, tied=True), "the output head is the embedding"),
    ],
    ids=["16 bits", "head in 16 bits", "reordered", "partly", "tied"],
)
def test_models_that_do_not(tmp_path: Path, make: Any, words: str) -> None:
    found = problem_of(make(tmp_path / "model"))
    assert found is not None and re.search(words, found)


def test_bfloat16(tmp_path: Path) -> None:
    found = problem_of(symmetric(tmp_path / "model"), torch.bfloat16)
    assert found == "activations are bfloat16; a stream takes float16"


def test_matrices_with_and_without_zero_points(tmp_path: Path) -> None:
    folder = symmetric(tmp_path / "model")
    config = ModelConfig.from_folder(folder)
    first, *rest = plan_for(folder, config, "auto").decoder_matrices()
    found = stream_problem(config, [replace(first, asymmetric=True), *rest], HALF, None)
    assert found is not None and "zero points" in found


@pytest.mark.parametrize("size", [5184, 8320])
def test_a_hidden_size_without_a_stream(size: int) -> None:
    found = stream_problem(replace(FLAGSHIP, hidden_size=size), [], HALF, None)
    assert found == f"hidden_size is {size}; a stream takes a multiple of 128, at most 8192"


def test_an_old_card(monkeypatch: pytest.MonkeyPatch) -> None:
    emulate(monkeypatch)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 9))
    found = stream_problem(FLAGSHIP, [], HALF, torch.device("cuda", 0))
    assert found == "this card has compute capability 8.9; a stream takes 9.0 or more"


def test_a_card_with_little_shared_memory(monkeypatch: pytest.MonkeyPatch, card: None) -> None:
    asked = []

    def slots(rows: int, d: int, *, asymmetric: bool, device: int) -> int:
        asked.append((rows, d, asymmetric, device))
        return 0

    monkeypatch.setattr(bk, "weight_stream_slots", slots)
    found = stream_problem(FLAGSHIP, [], HALF, torch.device("cuda", 1))
    assert found is not None and "no room for 8 rows of hidden_size 5120" in found
    assert asked == [(8, 5120, False, 1)]


def load(folder: Path, **settings: Any) -> CudaParts:
    given = {"max_len": 64, "kv_dtype": "auto", "num_draft_tokens": 2, "device": CPU}
    config = ModelConfig.from_folder(folder)
    return load_cuda(folder, config, **{**given, "engine": "stream", **settings})


def test_a_stream_is_loaded_and_planned(tmp_path: Path, card: None) -> None:
    parts = load(symmetric(tmp_path / "model"))
    step = parts.executor.step
    assert isinstance(step, StreamStep)
    plan = parts.memory_plan
    ours = (step.activations.arena, step.updates, step.workspace)
    assert plan.stream == sum(taken(one.nbytes) for one in ours) > 0
    graph = load(symmetric(tmp_path / "model"), engine="graph")
    assert graph.memory_plan.stream == 0 and not isinstance(graph.executor.step, StreamStep)


@pytest.mark.parametrize("random", [False, True])
def test_it_is_refused_before_a_weight_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, card: None, random: bool
) -> None:
    folder = FOLDERS["symmetric" if random else "partly"](tmp_path / "model")
    for name in ("read_weights", "random_weights", "read_bandwidth_gb_s"):
        monkeypatch.setattr(loading, name, lambda *_, **__: pytest.fail("weights were made"))
    if random:
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    with pytest.raises(
        InvalidSettingError, match=r"^engine='stream': .*; use engine='graph'$"
    ) as caught:
        load(folder)
    assert "\n" not in str(caught.value)


def test_the_activations_of_the_flagship() -> None:
    stored = Stored.of(FLAGSHIP, None, "model.", with_mtp=True, random=True)
    memory = CudaMemory(FLAGSHIP, stored, CARD, num_draft_tokens=4)
    plan, graph = replace(memory, engine="stream").plan(8192), memory.plan(8192)
    # A row: 64 layers of 2 * 5120 in 32 bits and 17408 in 16, 48 of 16384 + 96 + 6144 in 16 and of
    # (16 + 48) * 128 + 48 in 32.
    row = 64 * (8 * 5120 + 2 * 17408) + 48 * 2 * (16384 + 96 + 6144) + 48 * 4 * (64 * 128 + 48)
    assert 8 * row <= plan.stream <= 8 * row + 4 * MIB
    assert plan.total - graph.total == plan.stream and graph.stream == 0


# Settings and commands.


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"engine": "strem"}, r"^engine='strem'.*did you mean 'stream'"),
        ({"engine": None}, r"^engine=None: expected one of graph, stream"),
        ({"engine": "stream", "backend": "reference"}, r"backend='cuda'.*'reference'.*'graph'$"),
        ({"engine": "stream", "backend": "auto", "device": "cpu"}, r"device='cpu' was asked for"),
    ],
    ids=str,
)
def test_settings(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidSettingError, match=words):
        Engine.from_pretrained("tiny", **settings)


def test_graph_is_what_the_reference_ignores() -> None:
    engine = Engine.from_pretrained("tiny", backend="reference", device="cpu", engine="graph")
    assert engine.backend == "reference"


@pytest.mark.parametrize("command", ["generate", "chat", "serve", "info"])
def test_commands_refuse_it_without_cuda(run: Run, folders: Folders, command: str) -> None:
    more = ("-p", "fox") if command == "generate" else ()
    outcome = run(
        command, "-m", folders.text, "--backend", "reference", "--engine", "stream", *more
    )
    assert (outcome.code, outcome.out) == (2, "")
    (line,) = outcome.err.splitlines()
    assert line.startswith("bytebound: error: engine='stream'") and "use engine='graph'" in line
    outcome = run(command, "-m", folders.text, "--engine", "steam", *more)
    assert outcome.code == 2 and "did you mean 'stream'" in outcome.err


def test_info_says_which_engine_runs(
    monkeypatch: pytest.MonkeyPatch, run: Run, folders: Folders
) -> None:
    def engine(*args: object) -> tuple[dict[str, Any], str]:
        outcome, shown = run("info", *args, "--json"), run("info", *args).out
        lines = [line for line in shown.splitlines() if line.split()[:1] == ["engine"]]
        return json.loads(outcome.out), " ".join(" ".join(lines).split())

    report, line = engine("-m", folders.text, "--backend", "reference")
    assert report["engine"] == {"name": None, "why_not_stream": "the reference backend runs"}
    assert line == "engine neither graph nor stream: the reference backend runs"

    # A machine with a card, as far as a plan needs one.
    monkeypatch.setattr("bytebound.backends.cuda_problem", lambda: None)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(bk, "weight_stream_slots", lambda *_, **__: 6)
    flagship = ("-m", "random:qwen3.5-27b")
    report, line = engine(*flagship)
    assert report["engine"] == {"name": "graph", "why_not_stream": "it was not asked for"}
    assert line == "engine graph, not stream: it was not asked for"
    assert report["memory_plan"]["cuda"]["stream"] == 0
    report, line = engine(*flagship, "--engine", "stream")
    assert report["engine"] == {"name": "stream", "why_not_stream": None}
    assert line == "engine stream, not graph: it was asked for"
    assert report["memory_plan"]["cuda"]["stream"] > 40 * MIB
    report, line = engine("-m", "tiny")
    assert "matrices are in 16 bits" in line or "activations are bfloat16" in line
    assert line.startswith("engine graph, not stream: ")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 6))
    assert engine(*flagship)[1].startswith("engine graph, not stream: this card has compute")
    refused = run("info", *flagship, "--engine", "stream")
    assert refused.code == 2 and "compute capability 8.6" in refused.err
