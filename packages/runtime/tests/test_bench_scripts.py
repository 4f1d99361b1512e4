"""The benchmark scripts of the engine on a CPU: what they run, force and write, not how fast."""

import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import bytebound_kernels as bk
import pytest
import torch
from bytebound.backends import Backend
from bytebound.cuda import loading as cuda_loading
from bytebound.cuda.graphs import Recordings
from bytebound.cuda.memory import Card
from bytebound_kernels.bench import cases, memory

from .checkpoints import random_checkpoint
from .cuda_models import SHAPE
from .emulated_kernels import emulate
from .emulated_models import CPU

BENCH = Path(__file__).parents[3] / "bench"
Script = Callable[[str], ModuleType]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[Script]:
    """Imports a script by its name, on a machine that seems to have a card."""
    pytest.importorskip("bytebound_evals")
    emulate(monkeypatch)
    load_cuda = cuda_loading.load_cuda
    for where, name, value in (
        (cuda_loading, "load_cuda", lambda *args, **more: load_cuda(*args, **more, device=CPU)),
        (cuda_loading, "allocatable_bytes", lambda device: 200 << 30),
        (cuda_loading, "read_bandwidth_gb_s", lambda num_bytes: 4000.0),
        (Card, "of", lambda device: Card.nominal()),
        (cases, "measure_read_bandwidth", lambda *_: SimpleNamespace(median=4000.0)),
        (memory, "find_backend", lambda: None),
        (bk, "devices", lambda: [SimpleNamespace(name="a card", l2_bytes=50 << 20)]),
        (torch.cuda, "current_device", lambda: 0),
        (torch.cuda, "get_device_name", lambda *_: "a card"),
        (torch.cuda, "mem_get_info", lambda *_: (100 << 30, 140 << 30)),
        *((torch.cuda, name, lambda *_: None)
          for name in ("synchronize", "empty_cache", "reset_peak_memory_stats")),
        *((torch.cuda, name, lambda *_: 1 << 30)
          for name in ("memory_reserved", "max_memory_reserved")),
    ):  # fmt: skip
        monkeypatch.setattr(where, name, value)
    monkeypatch.setattr("bytebound.loading.choose_backend", lambda *_: Backend("cuda"))
    monkeypatch.setattr("bytebound.loading.limit_vram", lambda *_: None)
    monkeypatch.syspath_prepend(str(BENCH))  # type: ignore[no-untyped-call]
    names = (
        *("decode", "quant_layer", "long_context", "adaptive_depth", "draft_in_l2"),
        *("block_counts", "builds", "step_parts", "short_prompts"),
    )
    known = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    yield lambda name: __import__(name)
    for name in names:
        sys.modules.pop(name, None)
    sys.modules.update(known)


def run(made: ModuleType, file: Path, *words: object) -> dict[str, Any]:
    """Metrics by name of one run, from the file that it has written."""
    from bytebound_evals.results import read_result

    assert made.main(["--json", str(file), "--commit", "abc", *map(str, words)]) == 0
    result = read_result(file)
    assert result.commit == "abc" and result.machine["gpu"]
    assert str(file.parent) not in result.command and file.name in result.command
    return dict(result.metrics)


@pytest.mark.parametrize("fill", [60, 420])
def test_far_into_a_context(script: Script, tmp_path: Path, fill: int) -> None:
    """Every turn has the guesses that were to stand, or the script itself fails."""
    metrics = run(
        script("long_context"), tmp_path / "long.json", "--model", "tiny", "--max-len", 200,
        "--at", 100, 420, "--fill", fill, "--tokens", 4, "--samples", 1,
    )  # fmt: skip
    assert set(metrics) >= {
        "prompt_to_100.tok_s", "plain_100.tok_s", "plain_420.tok_s", "plain_420.percent_of_limit",
        "cycle4_accept4_100.tok_s", "cycle4_accept2_420.tok_s", "peak_vram.gib",
        "peak_vram_over_plan", "peak_vram_over_limit",
    }  # fmt: skip
    assert ("prompt_to_420.tok_s" in metrics) == (fill == 420)
    far = metrics["plain_420.tok_s"].case
    assert far["prompt_tokens"] == 180  # what leaves room for the tokens behind it
    says = {420: "180 ids read", 60: "60 ids read, the position set to 180 over noise"}
    assert far["context"] == says[fill]
    assert metrics["cycle4_accept2_420.tok_s"].case["new_tokens"] == 12


def test_noise_is_behind_what_was_read(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of ordinary size, and never beyond a float8: some versions of PyTorch make NaN of that."""
    made, randn, copy = script("long_context"), torch.randn, torch.Tensor.copy_

    def with_outliers(*shape: Any, **options: Any) -> torch.Tensor:
        noise: torch.Tensor = randn(*shape, **options)
        noise.view(-1)[:2] = torch.tensor([5.6, -5.6])
        return noise

    def checked(to: torch.Tensor, source: torch.Tensor, *rest: Any) -> torch.Tensor:
        assert to.dtype != torch.float8_e4m3fn or source.abs().max() <= 448
        return copy(to, source, *rest)

    monkeypatch.setattr(torch, "randn", with_outliers)
    monkeypatch.setattr(torch.Tensor, "copy_", checked)
    for dtype in (torch.float16, torch.float8_e4m3fn):
        config = made.Engine.from_pretrained("tiny", backend="cuda", max_len=64).config
        cache = made.KvCache.empty(config, 64, dtype, CPU)
        made.write_noise([cache], 40)
        for stored, scale in ((cache.k, cache.k_scale), (cache.v, cache.v_scale)):
            values = stored.float() * (1 if scale is None else scale[..., None])
            assert not values[:, :40].any()
            assert values.isfinite().all() and 0.9 < values[:, 40:].std() < 1.1


def test_depths_against_an_adaptive_one(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = script("adaptive_depth")
    monkeypatch.setattr(made, "DEPTHS", range(3))
    monkeypatch.setattr(made, "turn_times", lambda file: [5.0, 6.0, 7.0])
    monkeypatch.setattr("bytebound.loading.check_max_len", lambda *_: 400)
    metrics = run(
        made, tmp_path / "depth.json", "--tokens", 9, "--samples", 2, "--prompt", "code",
    )  # fmt: skip
    labels = ("depth0", "depth1", "depth2", "adaptive")
    for label in labels:
        kept = metrics[f"code.{label}.tok_s"]
        assert len(kept.samples) == 2
        turns = {int(depth): count for depth, count in kept.case["turns_by_guesses"].items()}
        assert kept.case["tokens_per_turn"] == pytest.approx(8 / sum(turns.values()))
        computed = metrics[f"computed_27b.code.{label}.tok_s"]
        milliseconds = sum((5 + depth) * count for depth, count in turns.items())
        assert computed.samples == pytest.approx((8e3 / milliseconds,))
        assert computed.case["computed_from"] == "decode.json"
        assert metrics[f"suite.{label}.tok_s"].samples == pytest.approx(kept.samples)
    assert set(metrics["code.depth0.tok_s"].case["turns_by_guesses"]) == {"0"}
    assert metrics["computed_27b.suite.depth0.tok_s"].samples == pytest.approx((200.0,))
    best = metrics["computed_27b.suite.adaptive_over_best_fixed"]
    assert best.case["best_fixed"] in (0, 1, 2)


def test_turn_times_are_those_of_a_result_file(script: Script) -> None:
    made = script("adaptive_depth")
    times = made.turn_times(made.COSTS)
    assert len(times) == 8 and all(a < b for a, b in pairwise(times))


def test_a_draft_head_in_the_cache(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is set aside is given back before the turns of the other variants."""
    made = script("draft_in_l2")
    windows, aside = list[tuple[int, float]](), list[int]()

    def persist(head: torch.Tensor, num_bytes: int, *, stream: int, hit_ratio: float = 1.0) -> int:
        windows.append((num_bytes, hit_ratio))
        return 3000

    monkeypatch.setattr(bk, "l2_persist", persist)
    monkeypatch.setattr(Recordings, "_stream", 7, raising=False)
    monkeypatch.setattr(made, "set_aside", aside.append)
    monkeypatch.setattr(made, "PROMPT", 12)
    monkeypatch.setattr(made, "TURNS", 1)
    shape = random_checkpoint(tmp_path, **SHAPE).folder / "config.json"
    metrics = run(
        made, tmp_path / "l2.json", "--model", f"random:{shape}", "--ids", 64, "--samples", 1
    )
    case = metrics["cycle4_64_ids.kept_over_none"].case
    size = case["head_bytes"]
    assert size > 3000 and case["share_that_stays"] == pytest.approx(3000 / size)
    assert windows == [(size, 1.0), (size, pytest.approx(3000 / size))]
    assert aside == [0, *2 * [0, 3000, 3000], 0]
    assert {f"cycle4_64_ids.{name}.ms" for name in ("none", "aside", "kept")} <= set(metrics)


def test_grids_of_a_product(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every grid that is written was launched, for its matrix alone; the best come together."""
    made = script("block_counts")
    launched, original = set[tuple[object, int | None]](), bk.w4_matvec

    def noted(x: torch.Tensor, weight: Any, **options: Any) -> torch.Tensor:
        launched.add((made.kind_of(weight), options.get("num_blocks")))
        result: torch.Tensor = original(x, weight, **options)
        return result

    monkeypatch.setattr(bk, "w4_matvec", noted)
    monkeypatch.setattr(sys.modules["step_parts"], "TURNS", 1)
    monkeypatch.setattr(sys.modules["step_parts"], "ROUNDS", 2)
    monkeypatch.setattr(made, "LEAST_GAIN", -1e9)  # so that each kind has a best one
    folder = random_checkpoint(tmp_path / "model", **SHAPE).folder
    metrics = run(
        made, tmp_path / "counts.json", "--model", f"random:{folder}", "--position", 20,
        "--rows", 1, 3, "--most", 3, "--try", "512x128x5",
    )  # fmt: skip
    for rows in (1, 3):
        names = {name for name in metrics if name.startswith(f"rows{rows}.")}
        assert {f"rows{rows}.{name}.us" for name in ("default", "default_again", "best")} <= names
        assert len(names) > 3
        best = metrics[f"rows{rows}.best.us"].case["blocks"]
        assert best and set(best.values()) <= {grid for _, grid in launched}
    tried = {
        (tuple(map(int, kind.split("x"))), grid)
        for one in metrics.values()
        for kind, grid in one.case["blocks"].items()
    }
    assert tried == {one for one in launched if one[1] is not None}


def test_short_prompts(script: Script, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made, report = script("short_prompts"), tmp_path / "profile" / "new.txt"
    folder = random_checkpoint(tmp_path / "model", **{**SHAPE, "vocab_size": 2048}).folder
    metrics = run(
        made, tmp_path / "short.json", "--model", f"random:{folder}", "--prompt-tokens", 300,
        "--new", 1, 9, 60, "--samples", 2, "--profile", report, "--profile-new", 5,
    )  # fmt: skip
    ways = {1: ("steps", "wide"), 9: ("steps", "wide"), 60: ("wide", "steps")}
    for count, (own, other) in ways.items():
        total, engine = (metrics[f"new_{count}.{name}"] for name in ("ms", "engine_ms"))
        assert engine.case["new_tokens"] == count and engine.case["cached_tokens"] == 300
        assert len(total.samples) == 2 and all(map(float.__gt__, total.samples, engine.samples))
        assert engine.case["way"] == own
        assert metrics[f"new_{count}.other_way.engine_ms"].case["way"] == other
    shown, profiled = capsys.readouterr().out, report.read_text()
    for kind in ("steps", "wide"):
        assert all(f"5 new ids behind 300, {kind}: " in text for text in (shown, profiled))
    for part in ("by CUDA time", "by CPU time, of its own", "Python's functions"):
        assert part in profiled
    assert "aten::" in profiled and "emulated_kernels.py" in profiled


def test_time_that_spans_share_is_counted_once(script: Script) -> None:
    busy = script("short_prompts").busy_us
    assert busy([]) == 0 and busy([(5, 7), (0, 2), (1, 4), (6, 6.5)]) == 6


def test_builds_against_each_other(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ops of each build are called while its turn is recorded, and those of no other."""
    from bytebound_kernels.ops.argmax import op as argmax

    made = script("builds")
    installed, files = argmax._native, [tmp_path / "old.so", tmp_path / "new.so"]
    for file in files:
        file.touch()
    builds = {path: ModuleType(path.stem) for path in files}
    recorded, original = list[object](), bk.argmax

    def noted(*args: Any, **options: Any) -> Any:
        recorded.append(argmax._native)
        return original(*args, **options)

    monkeypatch.setattr(bk, "argmax", noted)
    monkeypatch.setattr(made, "load", lambda name, path: builds[path])
    monkeypatch.setattr(sys.modules["step_parts"], "TURNS", 1)
    monkeypatch.setattr(sys.modules["step_parts"], "ROUNDS", 2)
    folder = random_checkpoint(tmp_path / "model", **SHAPE).folder
    words = [f"{name}={path}" for name, path in zip(("a", "b"), files, strict=True)]
    metrics = run(
        made, tmp_path / "builds.json", *words, "--model", f"random:{folder}", "--position", 20,
        "--rows", 1, 3,
    )  # fmt: skip
    assert set(metrics) == {f"rows{rows}.{name}.us" for rows in (1, 3) for name in ("a", "b")}
    assert all(len(one.samples) == 2 for one in metrics.values())
    first, second = builds.values()
    assert [one for one in recorded if one is not installed] == [first, second] * 2
    assert argmax._native is installed


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([""], "is no NAME=EXTENSION with a file behind it"),
        (["name"], "is no NAME=EXTENSION with a file behind it"),
        (["=FILE"], "is no NAME=EXTENSION with a file behind it"),
        (["name=nowhere.so"], "is no NAME=EXTENSION with a file behind it"),
        (["name=FILE"], "file.so"),
        (["name=FILE", "name=FILE"], "two builds have the same name"),
        (["name=FILE", "--position", "0"], "--position 0: expected 1 or more"),
    ],
)
def test_what_is_no_build(
    script: Script,
    tmp_path: Path,
    words: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "file.so"
    file.touch()
    with pytest.raises(SystemExit) as stopped:
        script("builds").main(
            [*(word.replace("FILE", str(file)) for word in words), "--json", "x.json"]
        )
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("kind", "grids"),
    [((16384, 5120), [160, 256]), ((5120, 6144), [160, 240]), ((5120, 17408), [136, 170])],
)
def test_even_grids(script: Script, kind: tuple[int, int], grids: list[int]) -> None:
    """Of a card of 132 multiprocessors: in_proj, out_proj and down of the 27B shape."""
    assert script("block_counts").even_grids(kind, 264) == grids
