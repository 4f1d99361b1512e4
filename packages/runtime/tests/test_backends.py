"""Which backend "auto" takes, and that it says why it is not the fast one."""

from pathlib import Path
from typing import Any

import bytebound_kernels
import pytest
import torch
from bytebound import CudaUnavailableError, Engine, InvalidSettingError
from bytebound.backends import Backend, choose_backend
from bytebound.config import ModelConfig
from bytebound.errors import UnsupportedShapeError
from bytebound.loading import find_model

from .checkpoints import random_checkpoint
from .cuda_models import SHAPE

TINY = find_model("tiny")[1]


@pytest.fixture
def a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bytebound_kernels, "cuda_problem", lambda: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bytebound_kernels, "cuda_problem", lambda: "no driver.")


@pytest.mark.parametrize(
    ("device", "dtype"),
    [(None, None), ("cuda", None), ("cuda:0", "bfloat16"), (None, torch.bfloat16)],
)
def test_auto_is_cuda_where_it_runs(a_gpu: None, device: Any, dtype: Any) -> None:
    assert choose_backend("auto", TINY, device, dtype) == Backend("cuda")


@pytest.mark.parametrize(
    ("device", "dtype", "reason"),
    [
        ("cpu", None, "device='cpu' was asked for"),
        (torch.device("cpu"), "bfloat16", "device='cpu' was asked for"),
        ("cuda:1", None, "device='cuda:1' is not PyTorch's current device"),
        (None, "float32", "dtype='float32' was asked for"),
        (None, torch.float32, "dtype='float32' was asked for"),
    ],
)
def test_auto_does_what_only_the_reference_can(
    a_gpu: None, device: Any, dtype: Any, reason: str
) -> None:
    assert choose_backend("auto", TINY, device, dtype) == Backend("reference", reason)


def test_auto_without_a_gpu(no_gpu: None) -> None:
    assert choose_backend("auto", TINY, None, None) == Backend("reference", "no driver")
    with pytest.raises(CudaUnavailableError, match="no driver"):
        choose_backend("cuda", TINY, None, None)


def test_auto_with_a_shape_that_has_no_kernel(a_gpu: None, tmp_path: Path) -> None:
    config = ModelConfig.from_folder(
        random_checkpoint(tmp_path, **{**SHAPE, "head_dim": 64}).folder
    )
    chosen = choose_backend("auto", config, None, None)
    assert chosen.name == "reference"
    assert chosen.why_not_cuda == "head_dim is 64; the kernels of backend='cuda' take 256"
    with pytest.raises(UnsupportedShapeError, match="head_dim is 64"):
        choose_backend("cuda", config, None, None)


def test_the_reference_when_it_is_asked_for(a_gpu: None) -> None:
    reason = "backend='reference' was asked for"
    assert choose_backend("reference", TINY, None, None) == Backend("reference", reason)


def test_the_plan_says_who_runs() -> None:
    plan = Engine.from_pretrained("tiny", device="cpu", max_len=64).memory_plan
    assert plan is not None
    assert (plan.backend, plan.kv_dtype, plan.random_weights) == ("reference", "float32", False)


def test_random_weights_without_a_gpu(no_gpu: None) -> None:
    with pytest.raises(CudaUnavailableError, match=r"^random:qwen3\.5-27b: .*no driver"):
        Engine.from_pretrained("random:qwen3.5-27b")
    with pytest.raises(CudaUnavailableError, match=r"device='cpu' was asked for"):
        Engine.from_pretrained("random:qwen3.5-27b", device="cpu")


def test_a_wrong_switch_of_the_packed_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    from bytebound.settings import use_packed_cache

    assert use_packed_cache()
    monkeypatch.setenv("BYTEBOUND_PACKED_CACHE", "0")
    assert not use_packed_cache()
    monkeypatch.setenv("BYTEBOUND_PACKED_CACHE", "off")
    with pytest.raises(InvalidSettingError, match=r"^BYTEBOUND_PACKED_CACHE='off'.*'0' or '1'"):
        use_packed_cache()


@pytest.mark.gpu
def test_auto_on_a_card() -> None:
    plan = Engine.from_pretrained("tiny", max_len=128).memory_plan
    assert plan is not None and plan.backend == "cuda"
