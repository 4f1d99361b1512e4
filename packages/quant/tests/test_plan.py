from pathlib import Path
from typing import Any

import pytest
from bytebound_quant import plan as planning
from bytebound_quant.errors import SettingError
from bytebound_quant.plan import Plan, make_plan
from bytebound_quant.source import open_source

from .small import checkpoint, options


def plan_of(folder: Path, *, checkpoint_options: dict[str, Any] | None = None, **more: Any) -> Plan:
    return make_plan(
        open_source(checkpoint(folder, **(checkpoint_options or {})).folder), options(**more)
    )


def reasons(plan: Plan) -> dict[str, str]:
    return {one["name"]: one["reason"] for one in plan.exceptions()}


def test_units_hold_every_tensor_once_in_order(tmp_path: Path) -> None:
    made = checkpoint(tmp_path / "a", vision=True, nested=True, shards=2)
    plan = make_plan(open_source(made.folder), options())
    names = [unit.name for unit in plan.units]
    assert names == ["embedding", "layer 0", "layer 1", "layer 2", "head", "mtp", "vision"]
    listed = [one.name for one in plan.tensors()]
    assert sorted(listed) == sorted(made.tensors)


def test_what_stays_16_bit_and_why(tmp_path: Path) -> None:
    found = reasons(plan_of(tmp_path / "a"))
    gdn = "model.layers.0.linear_attn."
    assert found["model.embed_tokens.weight"] == planning.EMBEDDING_REASON
    assert found[f"{gdn}in_proj_a.weight"] == planning.SMALL_REASON
    assert found[f"{gdn}in_proj_b.weight"] == planning.SMALL_REASON
    assert found[f"{gdn}conv1d.weight"] == planning.CONV_REASON
    assert found[f"{gdn}A_log"] == found[f"{gdn}dt_bias"] == planning.GATE_REASON
    assert found[f"{gdn}norm.weight"] == planning.NORM_REASON
    assert found["model.layers.1.self_attn.q_norm.weight"] == planning.NORM_REASON
    assert found["mtp.pre_fc_norm_hidden.weight"] == planning.NORM_REASON


def test_every_large_matrix_is_quantized(tmp_path: Path) -> None:
    quantized = {one.name for one in plan_of(tmp_path / "a").tensors() if one.quantized}
    assert {"lm_head.weight", "mtp.fc.weight", "mtp.layers.0.mlp.down_proj.weight"} <= quantized
    for tail in ("in_proj_qkv", "in_proj_z", "out_proj"):
        assert f"model.layers.0.linear_attn.{tail}.weight" in quantized
    for tail in ("q_proj", "k_proj", "v_proj", "o_proj"):
        assert f"model.layers.1.self_attn.{tail}.weight" in quantized


def test_the_head_can_be_kept(tmp_path: Path) -> None:
    plan = plan_of(tmp_path / "a", keep_head=True)
    assert reasons(plan)["lm_head.weight"] == planning.KEEP_HEAD_REASON
    assert "lm_head" in plan.ignore()


def test_a_tied_head_stays_with_the_embedding(tmp_path: Path) -> None:
    plan = plan_of(tmp_path / "a", checkpoint_options={"tied": True})
    assert reasons(plan)["lm_head.weight"] == planning.TIED_REASON
    assert "lm_head" in plan.ignore()
    assert "lm_head.weight" not in [one.name for one in plan.tensors()]


def test_the_mtp_head_can_be_kept_and_is_never_dropped(tmp_path: Path) -> None:
    plan = plan_of(tmp_path / "a", mtp_bits=16)
    mtp = [one for one in plan.tensors() if one.name.startswith("mtp.")]
    assert len(mtp) == 15
    assert {one.reason for one in mtp} == {planning.KEEP_MTP_REASON}
    assert "mtp.fc" in plan.ignore()


def test_a_matrix_that_no_group_divides_stays_and_is_named(tmp_path: Path) -> None:
    found = reasons(plan_of(tmp_path / "a", group=64))  # the MLP is 96 wide
    name = "model.layers.0.mlp.down_proj.weight"
    assert found[name] == "96 inputs are no multiple of the group size 64"
    assert "model.layers.0.mlp.up_proj.weight" not in found


def test_no_matrix_fits(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"--group-size 256: no matrix .* 64, 96, 128"):
        plan_of(tmp_path / "a", group=256)


def test_mtp_bits_out_of_range(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="--mtp-bits 8: expected 4 or 16"):
        plan_of(tmp_path / "a", mtp_bits=8)


def test_vision_is_copied_and_ignored(tmp_path: Path) -> None:
    plan = plan_of(tmp_path / "a", checkpoint_options={"vision": True, "nested": True})
    vision = [one for one in plan.tensors() if "visual" in one.name]
    assert [one.reason for one in vision] == [planning.VISION_REASON] * len(vision)
    assert len(vision) == 2
