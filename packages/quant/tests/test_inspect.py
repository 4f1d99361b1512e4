"""Inspecting a folder: what is stored how, for every layout that the runtime reads."""

import json
from pathlib import Path

import pytest
import torch
from bytebound_quant.inspection import inspect, kind_of
from safetensors.torch import save_file

from .conftest import runtime_helper

QKV = "model.layers.0.linear_attn.in_proj_qkv.weight"


def test_a_packed_folder(packed_folder: Path) -> None:
    found = inspect(packed_folder)
    assert found.layout == "pack-quantized" and found.mtp and not found.tied_head
    by_name = {one.name: one for one in found.tensors}
    qkv = by_name[QKV]
    assert (qkv.dtype, qkv.group_size, qkv.symmetric) == ("int4", 32, True)
    assert qkv.bits_per_weight == 4.5  # 16 bits of scale for 32 weights
    assert by_name["model.norm.weight"].dtype == "F32"
    stored = (packed_folder / "model.safetensors").stat().st_size
    total = found.totals()[-1]
    assert total["kind"] == "total" and 0.9 * stored < total["bytes"] <= stored
    assert total["weights"] == sum(row["weights"] for row in found.totals()[:-1])
    json.dumps(found.as_dict())


@pytest.mark.parametrize(
    ("layout", "options", "symmetric"),
    [
        ("gptq", {}, True),
        ("gptq", {"v2": True}, True),
        ("awq", {}, False),
        ("compressed", {"symmetric": False}, False),
    ],
    ids=["gptq", "gptq_v2", "awq", "asymmetric"],
)
def test_folders_of_other_layouts(
    tmp_path: Path, layout: str, options: dict[str, bool], symmetric: bool
) -> None:
    made = getattr(runtime_helper("packed"), f"{layout}_folder")(tmp_path, **options)
    found = inspect(made.folder)
    packed = [one for one in found.tensors if one.layout is not None]
    assert len(packed) == len(made.packed)
    assert {one.symmetric for one in packed} == {symmetric}
    assert all(4.5 <= one.bits_per_weight < 6 for one in packed)


def test_a_16_bit_folder(plain_folder: Path) -> None:
    found = inspect(plain_folder)
    assert found.layout is None and found.metadata == {} and len(found.files) == 2
    assert 16 <= found.totals()[-1]["bits_per_weight"] < 16.1


def test_vision_tensors_and_a_nested_config(tmp_path: Path) -> None:
    made = runtime_helper("checkpoints").random_checkpoint(tmp_path, nested=True, vision=True)
    found = inspect(made.folder)
    assert {one.name for one in found.tensors} == made.tensors.keys()
    assert found.totals()[-2]["kind"] == "vision"


def test_layers_come_in_order(tmp_path: Path) -> None:
    made = runtime_helper("checkpoints").random_checkpoint(tmp_path, num_hidden_layers=11)
    names = [one.name for one in inspect(made.folder).tensors]
    layers = [int(name.split(".")[2]) for name in names if name.startswith("model.layers.")]
    assert layers == sorted(layers)


def test_reasons_come_from_the_metadata(packed_folder: Path) -> None:
    path = packed_folder / "config.json"
    config = json.loads(path.read_text())
    exceptions = [{"name": "lm_head.weight", "reason": "asked for"}]
    config["quantization_config"]["bytebound"] = {"format_version": 1, "exceptions": exceptions}
    path.write_text(json.dumps(config))
    found = inspect(packed_folder)
    assert {one.name: one.reason for one in found.tensors if one.reason} == {
        "lm_head.weight": "asked for"
    }


def test_a_damaged_draft_vocabulary_is_said(packed_folder: Path) -> None:
    assert inspect(packed_folder).draft_vocab is None
    save_file({"ids": torch.tensor([1])}, packed_folder / "draft_vocab.safetensors")
    found = inspect(packed_folder)
    assert found.draft_vocab is not None and "format None" in found.draft_vocab["problem"]


def test_kinds() -> None:
    assert kind_of("mtp.layers.0.mlp.up_proj.weight") == "mtp"
    assert kind_of("model.language_model.layers.3.self_attn.q_proj.weight") == "attention"
    assert kind_of(QKV) == "gated delta net"
    assert kind_of("lm_head.weight") == "head"
    assert kind_of("model.layers.0.input_layernorm.weight") == "norms"
