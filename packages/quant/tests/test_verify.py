"""Verifying a folder: a sound one passes, and each fault is found and named (E31)."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from bytebound.errors import CheckpointError
from bytebound_quant.blocks import constant_blocks, constant_regions
from bytebound_quant.verify import verify
from safetensors.torch import load_file, save_file

from .conftest import runtime_helper

FUSED = "model.layers.0.linear_attn.in_proj_qkv"
Tensors = dict[str, torch.Tensor]


def change(folder: Path, edit: Callable[[Tensors], object]) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    edit(tensors)
    save_file(tensors, path, {"format": "pt"})


def test_a_sound_folder_has_a_figure_for_every_tensor(
    packed_folder: Path, plain_folder: Path
) -> None:
    report = verify(packed_folder, plain_folder)
    assert report.problems == []
    assert all(one.error is not None and one.rms is not None for one in report.tensors)
    assert {one.stored for one in report.tensors} == {"4 bit pack-quantized", "F32"}
    packed = [one.error for one in report.tensors if one.stored.startswith("4")]
    assert min(packed) > 0.02 and max(packed) < 0.2
    json.dumps(report.as_dict())


def test_a_16_bit_folder(plain_folder: Path) -> None:
    assert verify(plain_folder, plain_folder).ok


@pytest.mark.parametrize("layout", ["gptq", "awq"])
def test_folders_of_other_tools(tmp_path: Path, plain_folder: Path, layout: str) -> None:
    packed = runtime_helper("packed")
    made = getattr(packed, f"{layout}_folder")(tmp_path / "other")
    assert verify(made.folder, plain_folder).problems == []


def test_a_zeroed_third_of_a_fused_projection(packed_folder: Path) -> None:
    """E31."""
    rows = load_file(packed_folder / "model.safetensors")[f"{FUSED}.weight_packed"].shape[0]
    low, high = rows // 3, 2 * rows // 3

    def zero(tensors: Tensors) -> None:
        tensors[f"{FUSED}.weight_packed"][low:high] = -0x77777778  # code 8 everywhere: zero

    change(packed_folder, zero)
    assert verify(packed_folder).problems == [
        f"{FUSED}.weight: rows {low}-{high - 1} of {rows} are all zero"
    ]


def test_constant_codes_in_some_columns(packed_folder: Path) -> None:
    """E31."""

    def fill(tensors: Tensors) -> None:
        tensors[f"{FUSED}.weight_packed"][16:32, :4] = 0x11111111

    change(packed_folder, fill)
    (problem,) = verify(packed_folder).problems
    assert f"{FUSED}.weight: rows 16-31" in problem
    assert "columns 0-31 are constant in each block" in problem


def test_every_third_row_zeroed(plain_folder: Path, packed_folder: Path) -> None:
    name = "model.layers.0.mlp.up_proj.weight_packed"
    change(packed_folder, lambda tensors: tensors[name][::3].fill_(-0x77777778))
    (problem,) = verify(packed_folder).problems
    assert "mlp.up_proj.weight: 33% of its blocks are constant" in problem
    assert any("error" in one for one in verify(packed_folder, plain_folder).problems)


def test_zero_rows_of_the_source_are_no_fault(tmp_path: Path) -> None:
    helper = runtime_helper("checkpoints")
    made = helper.random_checkpoint(tmp_path / "a")
    name = "model.layers.0.mlp.up_proj.weight"
    change(made.folder, lambda tensors: tensors[name][8:24].zero_())
    assert not verify(made.folder).ok
    assert verify(made.folder, made.folder).ok


FAULTS: dict[str, tuple[Callable[[Tensors], object], str]] = {
    "not finite": (
        lambda t: t["model.layers.1.mlp.up_proj.weight_scale"].fill_(float("nan")),
        "scales hold NaN",
    ),
    "plain not finite": (lambda t: t["model.norm.weight"][3:4].fill_(float("inf")), "1 values"),
    "zero scales": (
        lambda t: t["model.layers.1.mlp.up_proj.weight_scale"][5].zero_(),
        "2 scales are zero or negative, first in row 5",
    ),
    "wild scale": (
        lambda t: t["model.layers.1.mlp.up_proj.weight_scale"][7, 0].fill_(60000),
        "a scale of row 7",
    ),
    "missing": (lambda t: t.pop("model.layers.1.mlp.up_proj.weight_scale"), "up_proj"),
    "no MTP": (
        lambda t: [t.pop(name) for name in list(t) if name.startswith("mtp.")],
        "no MTP tensor",
    ),
    "shape": (
        lambda t: t.update({"model.norm.weight": torch.ones(3)}),
        "model.norm.weight has shape",
    ),
}


@pytest.mark.parametrize("edit,message", FAULTS.values(), ids=FAULTS.keys())
def test_faults(packed_folder: Path, edit: Callable[[Tensors], object], message: str) -> None:
    change(packed_folder, edit)
    problems = verify(packed_folder).problems
    assert len(problems) == 1 and message in problems[0]


def test_errors_against_the_source(packed_folder: Path, plain_folder: Path) -> None:
    change(
        packed_folder,
        lambda t: t[f"{FUSED}.weight_packed"][:].copy_(t[f"{FUSED}.weight_packed"].flip(0)),
    )
    assert verify(packed_folder).ok
    first, *_ = verify(packed_folder, plain_folder).problems
    assert first.startswith(f"{FUSED}.weight: error 1") and "at most 0.35" in first


def test_swapped_rows_are_named(packed_folder: Path, plain_folder: Path) -> None:
    def swap(tensors: Tensors) -> None:
        codes = tensors["model.layers.0.mlp.up_proj.weight_packed"]
        codes[:8] = codes[8:16].clone()

    change(packed_folder, swap)
    assert any(
        "rows 0-7 of 96 have error" in one for one in verify(packed_folder, plain_folder).problems
    )


def test_an_mtp_head_that_the_conversion_dropped(tmp_path: Path, plain_folder: Path) -> None:
    made = runtime_helper("packed").compressed_folder(tmp_path / "other", mtp=False)
    assert verify(made.folder).ok
    first, *_ = verify(made.folder, plain_folder).problems
    assert "MTP head" in first


def test_folders_that_cannot_be_read(tmp_path: Path, packed_folder: Path) -> None:
    with pytest.raises(CheckpointError):
        verify(tmp_path)
    path = packed_folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match="truncated"):
        verify(packed_folder)


def test_blocks_of_odd_shapes() -> None:
    weight = torch.randn(20, 70)
    weight[4:15, 32:] = 2.0
    constant = constant_blocks(weight, 32)
    assert constant.shape == (20, 2)
    (region,) = constant_regions(constant, 32, 70, 8)
    assert (region.first_row, region.last_row) == (4, 14)
    assert (region.first_column, region.last_column) == (32, 69)
    assert constant_regions(constant, 32, 70, 12) == []
    assert constant_blocks(torch.zeros(3, 4), 32).shape == (3, 1)
