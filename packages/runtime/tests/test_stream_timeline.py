"""The clock of a weight stream as a table and as a picture, and the names of its ops."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from bytebound.config import ModelConfig
from bytebound.cuda.executor import CudaExecutor
from bytebound.cuda.random_weights import random_weights
from bytebound.cuda.stream import StreamStep

from .checkpoints import random_checkpoint
from .cuda_models import SHAPE
from .emulated_kernels import emulate
from .emulated_models import CPU

ROOT = Path(__file__).parents[3]
Stamps = list[list[float]]
NORM: Stamps = [[0.0] * 4, *2 * [[np.nan] * 4], [1.0] * 4]


@pytest.fixture
def timeline(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))  # type: ignore[no-untyped-call]
    yield __import__("stream_timeline")
    sys.modules.pop("stream_timeline", None)


def write(file: Path, *ops: tuple[str, Stamps]) -> Path:
    """A clock of four blocks: when each began, had its input, was done, had handed over."""
    names, stamps = zip(*ops, strict=True)
    np.savez_compressed(file, stamps=np.array(stamps, dtype=float), names=list(names), rows=1)
    return file


def product(*done: float) -> Stamps:
    """Three blocks were done with their items then; the last had none."""
    return [[2.0] * 4, [3.0] * 3 + [np.nan], [*done, 90.0], [one + 1 for one in (*done, 90.0)]]


def rows(shown: str) -> dict[str, list[float]]:
    lines = (re.split(r"\s{2,}", line.strip()) for line in shown.splitlines()[1:])
    return {name: [float(number) for number in numbers] for name, *numbers in lines}


def test_blocks_that_are_late_every_time(
    timeline: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A block without items is left out, and an op that is no product."""
    file = write(
        tmp_path / "clock.npz",
        ("norm", NORM),
        ("8 x 4", product(10, 12, 14)),
        ("4 x 8", product(21, 20, 23)),
        ("8 x 4", product(30, 32, 34)),
        ("6 x 6", product(40, 42, 44)),
        ("6 x 6", product(54, 52, 50)),
    )
    assert timeline.main(["spread", str(file)]) == 0
    deviation = round((8 / 3) ** 0.5, 2)
    assert rows(capsys.readouterr().out) == {
        "8 x 4": [2, -2, 2, deviation, deviation, 1],
        "4 x 8": [1, -1, 2, round((14 / 9) ** 0.5, 2)],
        "6 x 6": [2, -2, 2, deviation, 0, -1],
    }


def test_the_page_says_what_its_clock_says(
    timeline: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    docs = ROOT / "docs"
    assert timeline.main(["spread", str(docs / "weight-stream-timeline.npz")]) == 0
    found = rows(capsys.readouterr().out)
    table = re.findall(r"^\| (\d+ x \d+) \((.*)$", (docs / "weight-stream.md").read_text(), re.M)
    told = {name: re.findall(r"-?\d+(?:\.\d+)?", cells.split("|", 1)[1]) for name, cells in table}
    assert len(found) == 5
    assert {name: [float(one) for one in numbers] for name, numbers in told.items()} == found


def test_a_picture_has_a_bar_for_what_each_block_did(timeline: ModuleType, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    file, picture = tmp_path / "clock.npz", tmp_path / "clock.svg"
    write(file, ("norm", NORM), ("8 x 4", product(10, 12, 14)))
    assert timeline.main(["draw", str(file), "--out", str(picture)]) == 0
    svg = picture.read_text()
    ElementTree.fromstring(svg)
    bars = {label: svg.count(f"fill: {color}") for label, color in timeline.COLORS.items()}
    # Four of the op, four for each part of the product; one without length and one in the legend.
    assert bars == {"waiting": 6, "items": 6, "handing over": 6, "op": 6}
    assert "<!-- 8 x 4 -->" in svg and "<!-- norm -->" in svg


def test_every_op_of_a_program_has_a_name(
    timeline: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    emulate(monkeypatch)
    types = ["linear_attention", "full_attention", "linear_attention", "full_attention"]
    shape = {**SHAPE, "num_hidden_layers": 4, "layer_types": types}
    config = ModelConfig.from_folder(random_checkpoint(tmp_path, **shape).folder)
    weights = random_weights(config, dtype=torch.float16, device=CPU)
    step = CudaExecutor(weights, config, max_len=64, engine="stream").step
    assert isinstance(step, StreamStep)
    names = [timeline.name_of(op) for op in step.segments[1].program.ops]
    assert {"norm", "gates", "replay", "delta"} <= set(names)
    products = [name for name in names if " x " in name]
    assert products[0] == "128 x 512" and len(names) > len(products) >= 6
