"""What the CUDA backend refuses, and what it makes of names: no GPU and no weight is needed."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import bytebound_kernels
import pytest
from bytebound import CudaUnavailableError, Engine, InvalidSettingError
from bytebound.config import ModelConfig
from bytebound.cuda import fusion
from bytebound.cuda.shapes import check_shape
from bytebound.errors import CheckpointError, UnsupportedShapeError
from bytebound.loading import find_model
from bytebound.tensor_names import head_shape, model_shapes, mtp_shapes

from .checkpoints import random_checkpoint
from .cuda_models import SHAPE


def load(model: str | Path = "tiny", **settings: Any) -> Engine:
    return Engine.from_pretrained(model, **{"backend": "cuda", **settings})


def test_without_a_gpu_it_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bytebound_kernels, "cuda_problem", lambda: "no driver.")
    with pytest.raises(CudaUnavailableError, match=r"no driver; use backend='reference'"):
        load()


def test_without_cuda_in_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bytebound_kernels, "cuda_problem", lambda: None)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(CudaUnavailableError, match="this PyTorch is built without CUDA"):
        load()


@pytest.mark.parametrize(
    ("name", "value", "way_out"),
    [
        ("num_draft_tokens", 8, "1 to 7"),
        ("dtype", "float32", "backend='reference'"),
    ],
)
def test_settings_that_are_not_its_own(name: str, value: Any, way_out: str) -> None:
    with pytest.raises(InvalidSettingError, match=rf"^{name}=.*{way_out}"):
        load(**{name: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("head_dim", 128),
        ("linear_key_head_dim", 64),
        ("linear_value_head_dim", 64),
        ("linear_conv_kernel_dim", 3),
        ("hidden_size", 96),
        ("intermediate_size", 200),
        ("linear_num_value_heads", 17),
        ("partial_rotary_factor", 24 / 256),
    ],
)
def test_a_dimension_without_a_kernel(tmp_path: Path, field: str, value: float) -> None:
    made = random_checkpoint(tmp_path, **{**SHAPE, "num_hidden_layers": 3, field: value})
    config = ModelConfig.from_folder(made.folder)
    with pytest.raises(UnsupportedShapeError, match=rf"^{field} is .*backend='reference'"):
        check_shape(config)


def test_a_vocabulary_that_no_kernel_chooses_from() -> None:
    config = find_model("random:qwen3.5-27b")[1]
    check_shape(replace(config, vocab_size=1 << 22))
    with pytest.raises(UnsupportedShapeError, match=r"^vocab_size is .*at most 4194304"):
        check_shape(replace(config, vocab_size=(1 << 22) + 64))


def test_shapes_that_run(tmp_path: Path) -> None:
    check_shape(ModelConfig.from_folder(random_checkpoint(tmp_path, **SHAPE).folder))
    for name in ("tiny", "random:qwen3.5-27b"):
        check_shape(find_model(name)[1])


def test_the_shape_of_the_flagship() -> None:
    folder, config = find_model("random:qwen3.5-27b")
    assert folder is None
    assert (config.num_linear_layers, config.num_attention_layers) == (48, 16)
    assert (config.conv_channels, config.value_dim, config.rotary_dim) == (10240, 6144, 64)


def test_names_of_random_models(tmp_path: Path) -> None:
    made = random_checkpoint(tmp_path, **SHAPE)
    for name in (made.folder, made.folder / "config.json"):
        assert find_model(f"random:{name}") == (None, ModelConfig.from_folder(made.folder))
    with pytest.raises(CheckpointError, match=r"no shape 'nope'.*qwen3\.5-27b"):
        find_model("random:nope")
    (tmp_path / "config.json").write_text(json.dumps([1]))
    with pytest.raises(CheckpointError, match="expected an object"):
        find_model(f"random:{tmp_path}")
    with pytest.raises(InvalidSettingError, match="backend='cuda' only"):
        load("random:qwen3.5-27b", backend="reference", device="cpu")


@pytest.mark.parametrize("tied", [False, True])
def test_every_matrix_is_in_one_fusion(tmp_path: Path, tied: bool) -> None:
    made = random_checkpoint(tmp_path, **SHAPE, tied=tied)
    config = ModelConfig.from_folder(made.folder)
    shapes = {**model_shapes(config), **mtp_shapes(config), **head_shape(config)}
    members = [name for one in fusion.plan(config, "model.", with_mtp=True) for name in one.members]
    matrices = {name for name, shape in shapes.items() if len(shape) == 2}
    matrices -= {"model.embed_tokens.weight", *(["lm_head.weight"] if tied else [])}
    assert len(members) == len(set(members)) and set(members) == matrices
    for one in fusion.plan(config, "model.", with_mtp=True):
        assert len({shapes[name][1] for name in one.members}) == 1
