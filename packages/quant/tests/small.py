"""Small checkpoints, plans and jobs for the tests of this package."""

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from bytebound_quant.gptq_job import CalibrationWindows, GptqMethod
from bytebound_quant.grid import Scheme
from bytebound_quant.job import Job
from bytebound_quant.matrices import GptqOptions
from bytebound_quant.output import REPORT_FILE
from bytebound_quant.plan import PlanOptions, make_plan
from bytebound_quant.rtn_job import RtnMethod
from bytebound_quant.source import open_source

CPU = torch.device("cpu")
GROUP = 32

_PATH = Path(__file__).parents[2] / "runtime" / "tests" / "checkpoints.py"
_SPEC = importlib.util.spec_from_file_location("runtime_test_checkpoints", _PATH)
checkpoints = importlib.util.module_from_spec(_SPEC)
# Its dataclasses look their module up by name.
sys.modules[_SPEC.name] = checkpoints
_SPEC.loader.exec_module(checkpoints)


def checkpoint(folder: Path, **options: Any) -> Any:
    """A random model with few layers, every K a multiple of 32."""
    shape = {"num_hidden_layers": 3, "layer_types": ["linear_attention", "full_attention"] * 2}
    shape["layer_types"] = shape["layer_types"][:3]
    return checkpoints.random_checkpoint(folder, **{**shape, **options})


def options(*, symmetric: bool = True, group: int = GROUP, **more: Any) -> PlanOptions:
    return PlanOptions(Scheme(symmetric=symmetric, group_size=group), **more)


def rtn_job(
    source: Path, target: Path, *, mse: bool = False, tick: Callable = lambda *_: None, **more: Any
) -> Job:
    opened = open_source(source)
    plan = make_plan(opened, options(**more))
    return Job(opened, plan, RtnMethod(opened, plan, mse=mse, device=CPU), target, tick)


def gptq_job(
    source: Path,
    target: Path,
    *,
    ids: torch.Tensor | None = None,
    tick: Callable = lambda *_: None,
    choices: GptqOptions | None = None,
    **more: Any,
) -> Job:
    opened = open_source(source)
    plan = make_plan(opened, options(**more))
    windows = calibration(opened.config.vocab_size) if ids is None else ids
    described = CalibrationWindows(windows, {"digest": f"sum {int(windows.sum())}"})
    method = GptqMethod(
        opened, plan, described, choices or GptqOptions(), device=CPU, dtype=torch.float32
    )
    return Job(opened, plan, method, target, tick)


JOBS = {"rtn": rtn_job, "gptq": gptq_job}


def calibration(vocab: int, *, windows: int = 6, length: int = 40, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(vocab, (windows, length), generator=generator)


def contents(folder: Path) -> dict[str, bytes]:
    """Every file's bytes; of the report, all but the time that the run took."""
    found = {path.name: path.read_bytes() for path in folder.iterdir()}
    report = json.loads(found[REPORT_FILE])
    del report["time"]
    found[REPORT_FILE] = json.dumps(report).encode()
    return found


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))
