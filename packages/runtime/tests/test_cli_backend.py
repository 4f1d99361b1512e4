"""The commands say which backend runs, cap the GPU's memory, and label random weights as such."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import bytebound.cli.opening
import bytebound_kernels
import pytest
from bytebound import Engine
from bytebound.cli.output import stats_line
from bytebound.clock import RequestClock
from bytebound.loading import find_model

from .cli_runs import Folders, Run, folders, run

__all__ = ["folders", "run"]  # fixtures

RANDOM = "random:qwen3.5-27b"


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bytebound_kernels, "cuda_problem", lambda: "no driver.")


def info_json(run: Run, *args: object) -> dict[str, Any]:
    outcome = run("info", *args, "--json")
    assert (outcome.code, outcome.err) == (0, "")
    return dict(json.loads(outcome.out))


def test_info_of_random_weights(run: Run) -> None:
    report = info_json(run, "-m", RANDOM)
    assert report["folder"] is None
    assert report["weights"] == {"present": False, "random": True, "problem": None, "mtp": True}
    plan = report["memory_plan"]["cuda"]
    assert plan["random_weights"] is True and plan["kv_dtype"] == "float16"
    sizes = {name: size for name, size in plan.items() if isinstance(size, int)}
    assert plan["available"] is plan["largest_max_len"] is None
    for label in ("total", "max_len", "random_weights", "conversations"):
        sizes.pop(label)
    assert sum(sizes.values()) == plan["total"] and 16e9 < plan["total"] < 20e9
    shown = run("info", "-m", RANDOM).out
    assert "random, made in 4 bits on the GPU" in shown and "noise" in shown
    assert "cuda, float16 KV" in shown and "8,192 positions, random weights" in shown
    assert "none, not cuda: no driver" in shown


def test_info_of_the_longest_context(run: Run) -> None:
    plan = info_json(run, "-m", RANDOM, "--max-len", 262_144)["memory_plan"]["cuda"]
    assert plan["kv_dtype"] == "fp8" and plan["total"] < 32 << 30
    wide = info_json(run, "-m", RANDOM, "--max-len", 262_144, "--kv-dtype", "bfloat16")
    assert wide["memory_plan"]["cuda"]["total"] > 32 << 30


def test_info_says_what_fits_a_card(run: Run) -> None:
    report = info_json(run, "-m", RANDOM, "--vram-limit", "32GiB")["memory_plan"]["cuda"]
    assert (report["available"], report["largest_max_len"]) == (32 << 30, 262_144)
    plan = info_json(run, "-m", RANDOM, "--vram-limit", "20GiB")["memory_plan"]["cuda"]
    assert 65_536 < plan["largest_max_len"] < 150_000  # in fp8
    shown = run("info", "-m", RANDOM, "--vram-limit", "20GiB").out
    assert f"up to {plan['largest_max_len']:,} positions fit into 21.475 GB" in shown


def test_info_says_which_backend_runs_and_why(run: Run, folders: Folders) -> None:
    report = info_json(run, "-m", "tiny")
    assert report["backend"] == {"name": "reference", "why_not_cuda": "no driver"}
    assert report["memory_plan"]["cuda"]["random_weights"] is False
    assert "reference, not cuda: no driver" in run("info", "-m", "tiny").out
    asked = info_json(run, "-m", "tiny", "--backend", "reference")["backend"]
    assert asked["why_not_cuda"] == "backend='reference' was asked for"
    # A shape without kernels has no plan for them.
    assert info_json(run, "-m", folders.text)["memory_plan"]["cuda"] is None


def test_info_of_a_shape_file(run: Run, folders: Folders) -> None:
    report = info_json(run, "-m", f"random:{folders.text / 'config.json'}")
    assert report["weights"]["random"] and report["config"]["vocab_size"] == 400
    outcome = run("info", "-m", "random:nope")
    assert (outcome.code, outcome.out) == (2, "") and "no shape 'nope'" in outcome.err


@pytest.mark.parametrize(
    ("command", "value", "words"),
    [
        ("info", "32G", "expected a size"),
        ("generate", "32G", "expected a size"),
        ("generate", "8GiB", "runs on the CPU"),
        ("chat", "8GiB", "runs on the CPU"),
    ],
)
def test_a_limit_that_cannot_be(run: Run, command: str, value: str, words: str) -> None:
    prompt = ["--ids", "1"] if command == "generate" else []
    outcome = run(command, "-m", "tiny", *prompt, "--device", "cpu", "--vram-limit", value)
    assert (outcome.code, outcome.out) == (2, "")
    (line,) = outcome.err.splitlines()
    assert "vram_limit" in line and words in line


def test_a_limit_is_set_before_the_model_is_loaded(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[object] = []

    def load(*args: object, **options: object) -> Engine:
        seen.append("loaded")
        raise KeyboardInterrupt

    monkeypatch.setattr(
        "bytebound.loading.limit_vram", lambda limit, device=None: seen.append((limit, device))
    )
    monkeypatch.setattr(Engine, "from_pretrained", load)
    run("generate", "-m", "tiny", "--ids", "1", "--vram-limit", "32GiB")
    assert seen == [("32GiB", None), "loaded"]


def test_generate_labels_noise(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder, _ = find_model("tiny")
    assert folder is not None
    arguments = ("generate", "-m", "tiny", "--ids", "1 2 3", "--max-tokens", 3)
    plain = json.loads(run(*arguments, "--json", "--device", "cpu").out)
    assert (plain["weights"], plain["backend"]) == ("stored", "reference")
    assert plain["engine"] is None

    engine = Engine.from_pretrained("tiny", device="cpu", max_len=64)
    assert engine.memory_plan is not None
    engine.memory_plan = replace(engine.memory_plan, random_weights=True, backend="cuda")
    monkeypatch.setattr(bytebound.cli.opening, "open_engine", lambda *options: engine)
    noise = json.loads(run(*arguments, "--json").out)
    assert (noise["weights"], noise["backend"]) == ("random", "cuda")
    assert noise["engine"] == "graph"
    stream = json.loads(run(*arguments, "--engine", "stream", "--json").out)
    assert stream["engine"] == "stream"
    assert run(*arguments).stats.startswith("[random weights, tokens are noise | 3 tokens")


def test_the_line_of_numbers() -> None:
    stats = RequestClock().stats(prompt_tokens=1, completion_tokens=2, bytes_per_token=None)
    assert "random" not in stats_line(stats, "stop", "none")
    assert "random weights" in stats_line(stats, "stop", "none", random_weights=True)
