"""bench/fixed_point.py: it rounds what it says, and nothing else."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from bytebound_evals.model_run import ModelRun
from bytebound_evals.results import read_result
from torch.nn.functional import linear

SCRIPT = Path(__file__).parents[2] / "bench" / "fixed_point.py"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("fixed_point", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


def test_only_products_with_these_matrices_are_rounded(script: ModuleType) -> None:
    x = torch.randn(3, 128, generator=torch.Generator().manual_seed(0))
    matrix, other = torch.eye(128), torch.eye(128)
    for form, bits in (("bfloat16", 8), ("float16", 11)):
        with script.Rounded([matrix], form) as mode:
            rounded, kept = linear(x, matrix), linear(x, other)
        assert torch.equal(kept, x) and mode.num_products == 1
        error = ((rounded - x) / x).abs().max()
        assert 2.0 ** -(bits + 2) < error <= 2.0**-bits
    with script.Rounded([matrix], "fixed_point"):
        rounded = linear(x, matrix)
    assert 0 < (rounded - x.half()).abs().max() <= 2.0**-15 * x.abs().max() * 1.01


def test_an_engine_that_makes_no_product(script: ModuleType) -> None:
    engine = ModelRun("tiny", device="cpu", dtype="float32").open()
    with pytest.raises(RuntimeError, match="no product"), script.rounded(engine, "float16"):
        pass


def test_a_run(script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "out.json"
    words = ["fixed_point.py", "--work", str(tmp_path / "work"), "--json", str(file)]
    monkeypatch.setattr(sys, "argv", [*words, "--tokens", "1100"])
    assert script.main() == 0
    metrics = read_result(file).metrics
    assert str(tmp_path) not in read_result(file).command
    kl = {form: metrics[f"{form}.kl"].median for form in script.FORMATS}
    assert 0 < kl["float16"] < kl["bfloat16"] and 0 < kl["fixed_point"] < kl["bfloat16"]
