"""``quantization_config``: what it may say, where it may stand, what is refused (E36)."""

import copy
from typing import Any

import pytest
from bytebound.errors import CheckpointError, UnsupportedModelError
from bytebound.quantized import StoredGroup, StoredScheme, scheme_from_config

from .packed import awq_config, compressed_config, gptq_config


def read(block: Any) -> StoredScheme:
    scheme = scheme_from_config({"quantization_config": block})
    assert scheme is not None
    return scheme


def changed(**changes: Any) -> dict[str, Any]:
    """A pack-quantized block with fields of its group's weights changed."""
    block = compressed_config()
    block["config_groups"]["group_0"]["weights"].update(changes)
    return block


def test_what_each_layout_says() -> None:
    assert read(compressed_config(128)) == StoredScheme(
        "pack-quantized", (StoredGroup(("Linear",), 128, symmetric=True),)
    )
    assert read(gptq_config(64, desc_act=True, lm_head=None)) == StoredScheme(
        "gptq", (StoredGroup((), 64, symmetric=True, reordered=True),)
    )
    assert read(gptq_config(checkpoint_format="gptq_v2")).layout == "gptq_v2"
    assert read(gptq_config(checkpoint_format=None, format="gptq")).layout == "gptq"
    assert read(gptq_config(-1)).groups[0].group_size is None
    assert read(awq_config(128)) == StoredScheme("awq", (StoredGroup((), 128, symmetric=False),))
    assert read(awq_config(version="GEMM")).layout == "awq"
    assert scheme_from_config({"quantization_config": None}) is None
    assert scheme_from_config({"text_config": {"hidden_size": 1}}) is None


def test_what_writers_add_without_effect() -> None:
    block = changed(observer="minmax", observer_kwargs={}, actorder="weight", block_structure=None)
    block["sparsity_config"] = {"format": "dense"}
    block["config_groups"]["group_0"]["format"] = None
    assert read(block).groups[0].reordered is False
    read(gptq_config(static_groups=False, model_seqlen=2048, dynamic={}, mse=0.0, format=None))
    read(awq_config(do_fuse=False, backend="auto", exllama_config=None))


def test_our_own_metadata() -> None:
    block = compressed_config(bytebound={"format_version": 1, "method": "gptq", "exceptions": []})
    assert read(block).format_version == 1
    block["bytebound"]["format_version"] = 2
    with pytest.raises(UnsupportedModelError, match=r"format_version is 2.*newer bytebound"):
        read(block)
    for wrong in ({}, {"format_version": "1"}, {"format_version": 0}, [1]):
        with pytest.raises(CheckpointError, match="format_version"):
            read(compressed_config(bytebound=wrong))


@pytest.mark.parametrize("name", ["quantization_config", "compression_config"])
def test_levels(name: str) -> None:
    """E36: at the top or in the text part; at both they must agree."""
    block = compressed_config()
    expected = read(block)
    assert scheme_from_config({name: block}) == expected
    assert scheme_from_config({"text_config": {name: block}}) == expected
    both = {"quantization_config": block, "text_config": {name: copy.deepcopy(block)}}
    assert scheme_from_config(both) == expected
    both["text_config"][name]["config_groups"]["group_0"]["weights"]["group_size"] = 64
    with pytest.raises(CheckpointError, match=rf"text_config\.{name} differ"):
        scheme_from_config(both)


def test_names_patterns_and_classes() -> None:
    """E28: a name wins over a pattern, a pattern over a class; one group alone needs no match."""
    block = compressed_config(ignore=["lm_head", r"re:.*linear_attn\.in_proj_[ab]$"])
    first = block["config_groups"]["group_0"]
    for index, (target, size) in enumerate(
        [("re:.*mlp", 16), ("model.layers.0.mlp.up_proj", 8), ("Embedding", 64)]
    ):
        weights = {**first["weights"], "group_size": size}
        block["config_groups"][f"more_{index}"] = {"targets": [target], "weights": weights}
    scheme = read(block)
    sizes = {
        "model.layers.0.mlp.up_proj": 8,
        "model.layers.1.mlp.up_proj": 16,
        "model.layers.3.self_attn.q_proj": 32,
        "model.embed_tokens": 64,
    }
    for module, size in sizes.items():
        assert scheme.group_of(module).group_size == size
    assert scheme.ignores("lm_head")
    assert scheme.ignores("model.layers.0.linear_attn.in_proj_a")
    assert not scheme.ignores("model.layers.0.linear_attn.in_proj_qkv")
    del block["config_groups"]["group_0"]
    with pytest.raises(CheckpointError, match=r"q_proj.*no target of config_groups"):
        read(block).group_of("model.layers.3.self_attn.q_proj")
    single = compressed_config()
    single["config_groups"]["group_0"]["targets"] = ["re:.*qkv_proj"]
    assert read(single).group_of("model.layers.3.self_attn.q_proj").group_size == 32


def test_exclusions_of_other_tools() -> None:
    scheme = read(gptq_config(dynamic={r"-:.*mtp\.": {}, r"+:.*mlp": {}}))
    assert scheme.ignores("lm_head") and scheme.ignores("mtp.fc")
    assert not scheme.ignores("model.layers.0.mlp.up_proj")
    scheme = read(awq_config(modules_to_not_convert=["linear_attn.", "lm_head"]))
    assert scheme.ignores("model.layers.0.linear_attn.out_proj")
    assert not scheme.ignores("model.layers.0_linear_attnX.out_proj")


ACTIVATIONS = compressed_config()
ACTIVATIONS["config_groups"]["group_0"]["input_activations"] = {"num_bits": 8}
OWN_FORMAT = compressed_config()
OWN_FORMAT["config_groups"]["group_0"]["format"] = "nvfp4-pack-quantized"

UNSUPPORTED: list[tuple[dict[str, Any], str]] = [
    ({"quant_method": "fp8"}, "quant_method is 'fp8'"),
    ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "'bitsandbytes'"),
    ({}, "quant_method is None"),
    (compressed_config(format="float-quantized"), "format is 'float-quantized'"),
    (compressed_config(format="marlin-24"), "format is 'marlin-24'"),
    (compressed_config(format="mixed-precision"), "format is 'mixed-precision'"),
    (compressed_config(quantization_status="calibration"), "quantization_status"),
    (compressed_config(kv_cache_scheme={"num_bits": 8}), "kv_cache_scheme is given"),
    (compressed_config(sparsity_config={"format": "sparse-24-bitmask"}), "sparsity_config"),
    (compressed_config(transform_config={"config_groups": {"a": 1}}), "transform_config"),
    (compressed_config(rotation="hadamard"), "unknown field 'rotation'"),
    (ACTIVATIONS, "input_activations"),
    (OWN_FORMAT, "group_0.format is 'nvfp4"),
    (changed(num_bits=8), "num_bits is 8"),
    (changed(num_bits=4.0), "num_bits is 4.0"),
    (changed(type="float"), "type is 'float'"),
    (changed(strategy="tensor"), "strategy is 'tensor'"),
    (changed(strategy="block", block_structure=[128, 128]), "block_structure"),
    (changed(dynamic=True), "dynamic is True"),
    (changed(actorder="other"), "actorder"),
    (changed(global_scale=2), "unknown field 'global_scale'"),
    (gptq_config(bits=8), "bits is 8"),
    (gptq_config(bits=None), "bits is None"),
    (gptq_config(checkpoint_format="marlin"), "checkpoint_format is 'marlin'"),
    (gptq_config(is_marlin_format=True), "is_marlin_format"),
    (gptq_config(pack_dtype="int64"), "pack_dtype"),
    (gptq_config(adapter={"lora": 1}), "adapter"),
    (gptq_config(dynamic={"+:.*mlp": {"bits": 8}}), r"dynamic gives '\+:"),
    (gptq_config(unheard_of=1), "unknown field 'unheard_of'"),
    (awq_config(bits=3), "bits is 3"),
    (awq_config(version="gemv"), "version is 'gemv'"),
    (awq_config(version="marlin"), "version is 'marlin'"),
    (awq_config(zero_point=False), "zero_point is False"),
]  # fmt: skip


@pytest.mark.parametrize(("block", "message"), UNSUPPORTED)
def test_unsupported_is_named(block: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message) as caught:
        read(block)
    assert "supported" in str(caught.value)
    assert "\n" not in str(caught.value)


DAMAGED: list[tuple[Any, str]] = [
    ("gptq", "expected an object"),
    (compressed_config(config_groups={}), "at least one group"),
    (compressed_config(config_groups={"W4A16": ["Linear"]}), "W4A16 is"),
    (compressed_config(config_groups={"a": {"targets": ["Linear"]}}), "weights is None"),
    (compressed_config(ignore="lm_head"), "ignore is 'lm_head'"),
    (compressed_config(ignore=["re:("]), "no pattern"),
    (changed(group_size=0), "group_size is 0"),
    (changed(group_size="128"), "group_size is '128'"),
    (changed(group_size=None), "group_size is None"),
    (changed(strategy="channel", group_size=32), "group_size is 32"),
    (changed(symmetric=1), "symmetric is 1"),
    (gptq_config(group_size=None), "group_size is None"),
    (gptq_config(format="gptq_v2"), "differ"),
    (gptq_config(desc_act="yes"), "desc_act"),
    (gptq_config(dynamic=["a"]), "dynamic"),
    (gptq_config(dynamic={"-:(": {}}), "no pattern"),
    (awq_config(group_size=True), "group_size is True"),
    (awq_config(modules_to_not_convert="lm_head"), "modules_to_not_convert"),
]


@pytest.mark.parametrize(("block", "message"), DAMAGED)
def test_damaged(block: Any, message: str) -> None:
    with pytest.raises(CheckpointError, match=message) as caught:
        read(block)
    assert not isinstance(caught.value, UnsupportedModelError)
