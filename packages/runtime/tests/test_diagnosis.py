"""NaN in the weights: the error names the op that made it, and the row that is damaged."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from bytebound import Engine, NonFiniteLogitsError, SamplingParams
from bytebound.config import ModelConfig
from bytebound.cuda.diagnosis import explain_non_finite as explain_cuda
from bytebound.cuda.executor import CudaExecutor
from bytebound.cuda.matrices import PackedMatrix
from bytebound.diagnosis import explain_non_finite
from bytebound.reference.executor import ReferenceExecutor
from bytebound.scripted import ScriptedExecutor
from bytebound.taps import FUSED

from .checkpoints import random_checkpoint
from .cuda_models import reference, some_ids, symmetric
from .emulated_kernels import Kernels, emulate
from .emulated_models import cuda_executor

IDS = some_ids(20)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return symmetric(tmp_path_factory.mktemp("diagnosis") / "model")


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Kernels:
    return emulate(monkeypatch)


# Layers 0 and 2 are Gated DeltaNet, layer 1 is attention. What is damaged, and what must be named.
PLACES: dict[str, tuple[int, str, str]] = {
    "input_layernorm": (1, "input_layernorm", "weight"),
    "q_proj": (1, "q_proj", "weight"),
    "v_proj": (1, "v_proj", "weight"),
    "q_norm": (1, "attention", "q_norm"),
    "o_proj": (1, "o_proj", "weight"),
    "in_proj_qkv": (2, "in_proj_qkv", "weight"),
    "in_proj_b": (2, "in_proj_b", "weight"),
    "dt_bias": (2, "gated_delta_net", "dt_bias"),
    "conv1d": (2, "gated_delta_net", "conv1d"),
    "out_proj": (2, "out_proj", "weight"),
    "post_attention_layernorm": (0, "post_attention_layernorm", "weight"),
    "up_proj": (0, "up_proj", "weight"),
    "down_proj": (2, "down_proj", "weight"),
}


@pytest.mark.parametrize("field", PLACES)
def test_the_reference_names_the_op(folder: Path, field: str) -> None:
    layer, op, name = PLACES[field]
    executor = reference(folder, 64)
    record: Any = executor.weights.layers[layer]
    owner = next(one for one in (record, record.mixer, record.mlp) if hasattr(one, field))
    tensor = getattr(owner, field)
    tensor[3 % len(tensor)] = math.nan
    found = explain_non_finite(executor, IDS)
    assert found.startswith(f"layer {layer} {op} made them of finite values, first at position 0; ")
    assert f"{3 % len(tensor)} of its {name} is not finite" in found
    assert executor.position == 0


@pytest.mark.parametrize("field", PLACES)
def test_the_cuda_backend_names_the_op(folder: Path, kernels: Kernels, field: str) -> None:
    layer, op, _ = PLACES[field]
    executor = cuda_executor(folder, max_len=64)
    record: Any = executor.weights.layers[layer]
    matrix = FUSED.get(field)
    if matrix is None:
        names = {"conv1d": "conv", "A_log": "a_log"}
        owners = (record, record.mixer, getattr(record.mixer, "constants", None))
        field = names.get(field, field)
        tensor = next(getattr(one, field) for one in owners if hasattr(one, field))
        tensor[1] = math.nan
        expected = f"1 of its {field if op in ('attention', 'gated_delta_net') else 'weight'}"
    else:
        owner = next(one for one in (record.mixer, record.mlp) if hasattr(one, matrix))
        damage(getattr(owner, matrix), kernels, row=-1 if field == "up_proj" else 3)
        op, expected = matrix, f"of its {field if matrix == 'gate_up' else 'weight'}"
    found = explain_cuda(executor, IDS)
    assert found.startswith(f"layer {layer} {op} made them of finite values, first at position 0; ")
    assert f"{expected} is not finite" in found
    assert executor.position == 0


def damage(matrix: Any, kernels: Kernels, row: int) -> None:
    if isinstance(matrix, PackedMatrix):
        kernels.weights(matrix.weight)[row, 5] = math.nan  # which it keeps
    else:
        matrix.weight[row, 5] = math.nan


@pytest.mark.parametrize("backend", ["reference", "cuda"])
def test_the_rest_of_the_model(folder: Path, kernels: Kernels, backend: str) -> None:
    def fresh() -> Any:
        on_cuda = backend == "cuda"
        return cuda_executor(folder, max_len=64) if on_cuda else reference(folder, 64)

    explain: Callable[[Any, list[int]], str] = (
        explain_cuda if backend == "cuda" else explain_non_finite
    )
    executor = fresh()
    executor.weights.embed_tokens[IDS[7], 2] = math.inf
    assert explain(executor, IDS) == f"embed_tokens: the row of token {IDS[7]} is not finite"
    executor = fresh()
    executor.weights.norm[3] = math.nan
    found = explain(executor, IDS)
    assert found.startswith("norm made them of finite values, first at position 18; element 3 of")
    executor = fresh()
    if backend == "cuda":
        damage(executor.weights.lm_head, kernels, row=17)
    else:
        executor.weights.lm_head[17, 4] = math.nan
    found = explain(executor, IDS)
    assert found.startswith("lm_head made them of finite values, first at position 18; row 17 of")
    found = explain(fresh(), IDS)
    assert found.startswith("the same 20 tokens, computed once more, gave finite values only")


def test_a_decode_pass_alone(folder: Path) -> None:
    """One id: there is no prompt before it."""
    executor = reference(folder, 64)
    executor.weights.layers[1].mlp.down_proj[3, 0] = math.inf
    found = explain_non_finite(executor, IDS[:1])
    assert found.startswith("layer 1 down_proj made them of finite values, first at position 0; ")


def test_a_value_beyond_its_dtype(folder: Path) -> None:
    executor = reference(folder, 64)
    executor.weights.layers[2].mlp.up_proj.mul_(1e38)
    found = explain_non_finite(executor, IDS)
    assert "layer 2" in found and found.endswith("went beyond the range of its dtype there")


def test_the_position_of_the_first_row(folder: Path) -> None:
    """A row with a single entry is as large as a norm can make one: only it goes beyond float32."""
    executor = reference(folder, 64)
    once = next(i for i, token in enumerate(IDS) if IDS.count(token) == 1 and i > 3)
    executor.weights.embed_tokens[IDS[once]] = torch.eye(128)[5]
    executor.weights.layers[0].input_layernorm.fill_(6e37)
    found = explain_non_finite(executor, IDS)
    assert found.startswith(
        f"layer 0 input_layernorm made them of finite values, first at position {once}"
    )


def engine_of(executor: ReferenceExecutor | CudaExecutor, config: ModelConfig) -> Engine:
    return Engine(executor, config=config)


def test_a_request_ends_with_the_name(folder: Path) -> None:
    executor = reference(folder, 64)
    engine = engine_of(executor, executor.config)
    params = SamplingParams(max_tokens=8, ignore_eos=True)
    expected = engine.generate(IDS, params).token_ids
    weight = executor.weights.layers[1].mlp.down_proj
    stream = engine.stream(IDS, params)
    next(stream)
    kept = weight[3].clone()
    weight[3] = math.nan
    with pytest.raises(
        NonFiniteLogitsError, match=r"layer 1 down_proj made .* row 3 of its weight"
    ):
        list(stream)
    weight[3] = kept
    assert engine.generate(IDS, params).token_ids == expected


def test_a_search_that_fails_hides_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    executor = reference(random_checkpoint(tmp_path).folder, 64)

    def broken(ids: list[int]) -> torch.Tensor:
        raise RuntimeError("no more")

    monkeypatch.setattr(executor, "verify", broken)
    found = explain_non_finite(executor, [1, 2])
    assert found == "the search for their origin failed (RuntimeError: no more)"
    scripted = ScriptedExecutor([[1, 2]], 8)
    assert explain_non_finite(scripted, [1]) == "this executor cannot say where they come from"
