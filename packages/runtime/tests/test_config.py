"""The config reader: what it reads, what it refuses, and how it says so."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from bytebound import config_fields
from bytebound.config import ModelConfig
from bytebound.errors import CheckpointError, UnsupportedModelError
from bytebound.generation_defaults import GenerationDefaults

from .checkpoints import SHAPES, random_checkpoint, write_json

FLAGSHIP: dict[str, Any] = {
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "image_token_id": 248056,
    "language_model_only": False,
    "model_type": "qwen3_5",
    "eos_token_id": 248046,
    "text_config": {
        "attention_bias": False,
        "attention_dropout": 0.0,
        "attn_output_gate": True,
        "bos_token_id": None,
        "dtype": "bfloat16",
        "eos_token_id": 248044,
        "full_attention_interval": 4,
        "head_dim": 256,
        "hidden_act": "silu",
        "hidden_size": 5120,
        "initializer_range": 0.02,
        "intermediate_size": 17408,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 48,
        "linear_value_head_dim": 128,
        "mamba_ssm_dtype": "float32",
        "max_position_embeddings": 262144,
        "mlp_only_layers": [],
        "model_type": "qwen3_5_text",
        "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": False,
        "num_attention_heads": 24,
        "num_hidden_layers": 64,
        "num_key_value_heads": 4,
        "output_gate_type": "swish",
        "pad_token_id": None,
        "partial_rotary_factor": 0.25,
        "rms_norm_eps": 1e-06,
        "rope_parameters": {
            "mrope_interleaved": True,
            "mrope_section": [11, 11, 10],
            "partial_rotary_factor": 0.25,
            "rope_theta": 10000000,
            "rope_type": "default",
        },
        "rope_scaling": None,
        "tie_word_embeddings": False,
        "use_cache": True,
        "vocab_size": 248320,
    },
    "tie_word_embeddings": False,
    "transformers_version": "4.57.0.dev0",
    "video_token_id": 248057,
    "vision_config": {"depth": 27, "deepstack_visual_indexes": []},
    "vision_end_token_id": 248054,
    "vision_start_token_id": 248053,
}


def flat(**changes: Any) -> dict[str, Any]:
    """The flagship's text config alone, with fields changed; ``...`` removes one."""
    result = copy.deepcopy(FLAGSHIP["text_config"])
    for name, value in changes.items():
        if value is ...:
            result.pop(name, None)
        else:
            result[name] = value
    return result


def rope(**changes: Any) -> dict[str, Any]:
    """The flagship's text config with fields of its rope_parameters changed."""
    block = {**FLAGSHIP["text_config"]["rope_parameters"], **changes}
    return flat(rope_parameters={k: v for k, v in block.items() if v is not ...})


def test_flagship() -> None:
    config = ModelConfig.from_dict(FLAGSHIP)
    assert (config.hidden_size, config.intermediate_size, config.num_hidden_layers) == (
        5120,
        17408,
        64,
    )
    assert config.num_attention_layers == 16
    assert config.num_linear_layers == 48
    assert config.layer_types[3] == "full_attention"
    assert config.layer_types[:3] == ("linear_attention",) * 3
    assert config.rotary_dim == 64
    assert (config.key_dim, config.value_dim, config.conv_channels) == (2048, 6144, 10240)
    assert config.rope_theta == 1e7
    assert config.mtp_num_hidden_layers == 1
    assert config.dtype == "bfloat16"
    assert config.eos_token_ids == (248044, 248046)
    assert config.generation == GenerationDefaults()


def test_flat_and_nested_agree() -> None:
    """E36: the same model under both layouts."""
    nested = copy.deepcopy(FLAGSHIP)
    del nested["eos_token_id"]
    assert ModelConfig.from_dict(nested) == ModelConfig.from_dict(flat())


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("nested", [False, True])
def test_small_shapes(tmp_path: Path, name: str, nested: bool) -> None:
    made = random_checkpoint(tmp_path, nested=nested, **SHAPES[name])
    config = ModelConfig.from_folder(tmp_path)
    text = made.config["text_config"] if nested else made.config
    assert list(config.layer_types) == text["layer_types"]
    assert config.vocab_size == text["vocab_size"]


def test_what_transformers_writes(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    text = transformers.Qwen3_5TextConfig(num_hidden_layers=8, tie_word_embeddings=True)
    assert ModelConfig.from_dict(json.loads(json.dumps(text.to_dict()))).tie_word_embeddings
    text.save_pretrained(tmp_path / "flat")
    assert ModelConfig.from_folder(tmp_path / "flat").num_hidden_layers == 8
    whole = transformers.Qwen3_5Config(text_config=text.to_dict())
    assert ModelConfig.from_dict(json.loads(json.dumps(whole.to_dict()))).vocab_size == 248320
    whole.save_pretrained(tmp_path / "nested")
    assert ModelConfig.from_folder(tmp_path / "nested").num_hidden_layers == 8


def test_transformers_reads_the_same_rotary_part(tmp_path: Path) -> None:
    """E37: the partial factor holds for flat and nested alike."""
    transformers = pytest.importorskip("transformers")
    random_checkpoint(tmp_path, nested=True, **SHAPES["ratio3"])
    theirs = transformers.AutoConfig.from_pretrained(tmp_path).text_config
    ours = ModelConfig.from_folder(tmp_path)
    assert ours.rotary_dim == int(theirs.head_dim * theirs.rope_parameters["partial_rotary_factor"])
    assert ours.rotary_dim == 12
    assert ours.rope_theta == theirs.rope_parameters["rope_theta"]


def test_each_field_is_in_one_table() -> None:
    tables = (
        config_fields.READ_FIELDS,
        frozenset(config_fields.FIXED_FIELDS),
        config_fields.HARMLESS_FIELDS,
    )
    for index, table in enumerate(tables):
        for other in tables[index + 1 :]:
            assert not table & other


def test_layer_types_without_interval() -> None:
    config = ModelConfig.from_dict(flat(full_attention_interval=..., num_hidden_layers=5))
    assert config.layer_types.index("full_attention") == 3
    third = ModelConfig.from_dict(flat(full_attention_interval=3, num_hidden_layers=6))
    assert [index for index, kind in enumerate(third.layer_types) if kind == "full_attention"] == [
        2,
        5,
    ]


def test_top_level_rope() -> None:
    config = ModelConfig.from_dict(flat(rope_parameters=..., rope_theta=5e5))
    assert (config.rope_theta, config.rotary_dim) == (5e5, 64)
    without = flat(rope_parameters=..., rope_theta=5e5, partial_rotary_factor=...)
    assert ModelConfig.from_dict(without).partial_rotary_factor == 0.25


def test_tie_of_the_outer_level_decides() -> None:
    """E35: where both levels speak, the outer one holds."""
    assert ModelConfig.from_dict({**FLAGSHIP, "tie_word_embeddings": True}).tie_word_embeddings
    silent = {k: v for k, v in FLAGSHIP.items() if k != "tie_word_embeddings"}
    silent["text_config"] = flat(tie_word_embeddings=True)
    assert ModelConfig.from_dict(silent).tie_word_embeddings
    assert not ModelConfig.from_dict(flat(tie_word_embeddings=...)).tie_word_embeddings


def test_eos_is_a_union(tmp_path: Path) -> None:
    """E56: every id that any file names ends the text."""
    write_json(tmp_path / "config.json", FLAGSHIP)
    write_json(tmp_path / "generation_config.json", {"eos_token_id": [248046, 7], "top_k": 20})
    assert ModelConfig.from_folder(tmp_path).eos_token_ids == (248044, 248046, 7)


INT_FIELDS = [
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "head_dim", "linear_num_key_heads", "linear_num_value_heads",
    "linear_key_head_dim", "linear_value_head_dim", "linear_conv_kernel_dim",
    "max_position_embeddings",
]  # fmt: skip


@pytest.mark.parametrize("name", INT_FIELDS)
@pytest.mark.parametrize("value", [0, -1, 64.0, "64", True, float("nan"), 10**400, [64], None, ...])
def test_bad_integer(name: str, value: Any) -> None:
    with pytest.raises(CheckpointError, match=name):
        ModelConfig.from_dict(flat(**{name: value}))


@pytest.mark.parametrize("value", [0, -1e-6, "1e-6", True, float("nan"), 1e300, 10**400, None])
def test_bad_float(value: Any) -> None:
    with pytest.raises(CheckpointError, match="rms_norm_eps"):
        ModelConfig.from_dict(flat(rms_norm_eps=value))
    with pytest.raises(CheckpointError, match="rope_theta"):
        ModelConfig.from_dict(rope(rope_theta=value))


CONTRADICTIONS = [
    (flat(num_key_value_heads=5), "num_key_value_heads"),
    (flat(linear_num_key_heads=5), "linear_num_key_heads"),
    (flat(linear_conv_kernel_dim=1), "linear_conv_kernel_dim"),
    (flat(layer_types=["full_attention"]), "layer_types names 1 layers"),
    (flat(layer_types="full_attention"), "layer_types"),
    (flat(full_attention_interval=0), "full_attention_interval"),
    (rope(mrope_section=[16, 16]), "mrope_section"),
    (rope(mrope_section="11"), "mrope_section"),
    (rope(mrope_interleaved="yes"), "mrope_interleaved"),
    (flat(rope_theta=1e6), "rope_theta"),
    (flat(rope_parameters=...), "rope_theta is missing"),
    (flat(rope_parameters=[1]), "rope_parameters"),
    (flat(head_dim=4), "partial_rotary_factor"),
    (rope(partial_rotary_factor=1e29, mrope_section=...), "partial_rotary_factor"),
    (flat(num_hidden_layers=10**6), "num_hidden_layers"),
    (flat(tie_word_embeddings="no"), "tie_word_embeddings"),
    (flat(mtp_num_hidden_layers=True), "mtp_num_hidden_layers"),
    (flat(mtp_num_hidden_layers=-1), "mtp_num_hidden_layers"),
    (flat(eos_token_id="</s>"), "eos_token_id"),
    (flat(eos_token_id=[1, -2]), "eos_token_id"),
    ({"hidden_size": 5}, "model_type is missing"),
    ({"model_type": "qwen3_5"}, "text_config"),
    ({"model_type": "qwen3_5", "text_config": []}, "text_config"),
]


@pytest.mark.parametrize(("raw", "message"), CONTRADICTIONS)
def test_contradiction(raw: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        ModelConfig.from_dict(raw)


UNSUPPORTED = [
    (flat(model_type="llama"), "'llama'.*qwen3_5_text"),
    ({"model_type": "qwen3_5_moe"}, "'qwen3_5_moe'"),
    ({**FLAGSHIP, "text_config": flat(model_type="qwen3_5_moe_text")}, "qwen3_5_moe_text"),
    (flat(layer_types=["sliding_attention"] * 64), "sliding_attention"),
    (flat(mtp_num_hidden_layers=2), "mtp_num_hidden_layers is 2"),
    (flat(hidden_act="gelu"), "hidden_act is 'gelu'"),
    (flat(attention_bias=True), "attention_bias"),
    (flat(attn_output_gate=False), "attn_output_gate"),
    (flat(output_gate_type="sigmoid"), "output_gate_type"),
    (flat(mtp_use_dedicated_embeddings=True), "mtp_use_dedicated_embeddings"),
    (flat(mamba_ssm_dtype="bfloat16"), "mamba_ssm_dtype"),
    (flat(mlp_only_layers=[3]), "mlp_only_layers"),
    (flat(sliding_window=4096), "sliding_window"),
    (flat(dtype="float64"), "float64"),
    (flat(hiden_size=5120), "'hiden_size'.*'hidden_size'"),
    (flat(vision_config={}), "vision_config"),
    ({**FLAGSHIP, "vocab_size": 5}, "vocab_size"),
    ({**FLAGSHIP, "attention_bias": True}, "attention_bias"),
    (rope(rope_thetta=1), "'rope_thetta'.*'rope_theta'"),
]  # fmt: skip


@pytest.mark.parametrize(("raw", "message"), UNSUPPORTED)
def test_unsupported(raw: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        ModelConfig.from_dict(raw)


@pytest.mark.parametrize("level", ["outer", "text", "flat"])
@pytest.mark.parametrize("name", ["quantization_config", "compression_config", "quantization"])
def test_an_unknown_quantization_is_refused_at_every_level(level: str, name: str) -> None:
    """E36: the block is seen wherever it stands."""
    block = {"quant_method": "fp8", "activation_scheme": "dynamic"}
    raw = copy.deepcopy(FLAGSHIP)
    if level == "outer":
        raw[name] = block
    else:
        raw["text_config"][name] = block
    with pytest.raises(UnsupportedModelError, match=rf"{name}.*supported are 4-bit weights"):
        ModelConfig.from_dict(raw["text_config"] if level == "flat" else raw)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (rope(rope_type="yarn"), "'yarn'"),
        (rope(rope_type=..., type="linear"), "'linear'"),
        (rope(factor=4.0), "factor"),
        (rope(original_max_position_embeddings=32768), "original_max_position_embeddings"),
        (flat(rope_parameters=..., rope_scaling={"type": "yarn", "factor": 4.0}), "'yarn'"),
        (flat(rope_parameters=..., rope_scaling={"factor": 4.0}), "factor"),
        (flat(rope_scaling={"rope_type": "default"}), "both given"),
    ],
)
def test_context_scaling_is_refused(raw: dict[str, Any], message: str) -> None:
    """E41: scaling is never ignored in silence."""
    with pytest.raises(CheckpointError, match=message):
        ModelConfig.from_dict(raw)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not valid JSON"),
        (b'{"model_type": "qwen3_5_te', "not valid JSON"),
        (b"[1, 2]", "expected an object"),
        (b"\xff\xfe", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b'{"model_type": ' + b"9" * 5000 + b"}", "not valid JSON"),
        (None, "is empty"),
    ],
)
def test_damaged_file(tmp_path: Path, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=message) as caught:
        ModelConfig.from_folder(tmp_path)
    assert "\n" not in str(caught.value)


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such folder"):
        ModelConfig.from_folder(tmp_path / "absent")
    (tmp_path / "file").write_text("{}")
    with pytest.raises(CheckpointError, match="is a file"):
        ModelConfig.from_folder(tmp_path / "file")
    with pytest.raises(CheckpointError, match=r"holds no config\.json"):
        ModelConfig.from_folder(tmp_path)


def test_order_of_fields_is_free() -> None:
    backwards = dict(reversed(flat().items()))
    assert ModelConfig.from_dict(backwards) == ModelConfig.from_dict(flat())
