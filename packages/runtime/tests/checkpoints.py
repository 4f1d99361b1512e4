"""Random checkpoints for tests: a folder with config and safetensors, as the ecosystem writes them.

The values make a model whose output is worth comparing: no activation vanishes or explodes, decays
lie between fast and slow, and the head is scaled so that the best token mostly leads by far.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"

BASE_SHAPE: dict[str, Any] = {
    "vocab_size": 151,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 4096,
}

# Overrides of BASE_SHAPE that together leave no two dimensions equal everywhere.
SHAPES: dict[str, dict[str, Any]] = {
    "base": {},
    "ratio1": {"linear_num_key_heads": 3, "linear_num_value_heads": 3},
    "ratio3": {
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 6,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 24,
        "partial_rotary_factor": 0.5,
        "vocab_size": 257,
    },
    "odd": {
        "vocab_size": 97,
        "hidden_size": 40,
        "intermediate_size": 72,
        "num_hidden_layers": 3,
        "layer_types": ["full_attention", "linear_attention", "full_attention"],
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "head_dim": 40,
        "partial_rotary_factor": 0.2,
        "linear_num_key_heads": 1,
        "linear_num_value_heads": 2,
        "linear_key_head_dim": 24,
        "linear_value_head_dim": 8,
        "linear_conv_kernel_dim": 3,
    },
    # Without use_cache=False transformers refuses a model that has no attention layer.
    "one_linear": {"num_hidden_layers": 1, "layer_types": ["linear_attention"]},
    "one_attention": {"num_hidden_layers": 1, "layer_types": ["full_attention"]},
}

HEAD_SCALE = 8.0
# What a layer adds is gated and so small; without this a tied head only echoes its input.
OUTPUT_SCALE = 4.0


@dataclass(frozen=True)
class RandomCheckpoint:
    """What was written: the parsed config, and each tensor by its name in the files."""

    folder: Path
    config: dict[str, Any]
    tensors: dict[str, torch.Tensor]


def random_checkpoint(
    folder: Path,
    *,
    seed: int = 0,
    nested: bool = False,
    tied: bool = False,
    shards: int = 1,
    mtp: bool = True,
    vision: bool = False,
    dtype: torch.dtype = torch.float32,
    **shape: Any,
) -> RandomCheckpoint:
    """Write a sound model folder; ``shape`` overrides fields of ``BASE_SHAPE``."""
    text = _text_config({**BASE_SHAPE, **shape}, tied=tied, mtp=mtp, dtype=dtype)
    tensors = random_tensors(text, seed=seed, nested=nested, tied=tied, mtp=mtp, vision=vision)
    tensors = {name: tensor.to(_stored_dtype(name, dtype)) for name, tensor in tensors.items()}
    config = _nested_config(text, tied) if nested else text
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", config)
    write_tensors(folder, tensors, shards=shards)
    return RandomCheckpoint(folder, config, tensors)


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def write_tensors(folder: Path, tensors: Mapping[str, torch.Tensor], *, shards: int = 1) -> None:
    """Write one file, or ``shards`` files of about equal counts and their index."""
    if shards == 1:
        save_file(dict(tensors), folder / SINGLE_FILE, metadata={"format": "pt"})
        return
    weight_map: dict[str, str] = {}
    for number in range(shards):
        file_name = f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
        part = dict(list(tensors.items())[number::shards])
        save_file(part, folder / file_name, metadata={"format": "pt"})
        weight_map.update(dict.fromkeys(part, file_name))
    total = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    write_json(folder / INDEX_FILE, {"metadata": {"total_size": total}, "weight_map": weight_map})


def random_tensors(
    text: Mapping[str, Any], *, seed: int, nested: bool, tied: bool, mtp: bool, vision: bool
) -> dict[str, torch.Tensor]:
    """Every tensor of the model in float32, in the order of the layers."""
    draw = _Draw(seed)
    width, vocab = text["hidden_size"], text["vocab_size"]
    prefix = "model.language_model." if nested else "model."
    head_std = HEAD_SCALE / math.sqrt(width)
    embedding_std = head_std / 2 if tied else 1.0
    tensors = {f"{prefix}embed_tokens.weight": draw.normal(vocab, width, std=embedding_std)}
    for index, kind in enumerate(text["layer_types"]):
        tensors.update(_layer(draw, text, f"{prefix}layers.{index}.", kind))
    tensors[f"{prefix}norm.weight"] = draw.normal(width, std=0.1)
    if not tied:
        tensors["lm_head.weight"] = draw.normal(vocab, width, std=head_std)
    if mtp:
        for norm in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
            tensors[f"mtp.{norm}.weight"] = draw.normal(width, std=0.1)
        tensors["mtp.fc.weight"] = draw.matrix(width, 2 * width)
        tensors.update(_layer(draw, text, "mtp.layers.0.", "full_attention"))
    if vision:
        tensors["model.visual.patch_embed.proj.weight"] = draw.normal(8, 3, 2, 4, 4, std=0.1)
        tensors["model.visual.blocks.0.attn.qkv.bias"] = draw.normal(24, std=0.1)
    return tensors


class _Draw:
    """Normal and uniform draws from one seeded stream."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int, std: float) -> torch.Tensor:
        return torch.randn(*shape, generator=self._generator) * std

    def uniform(self, *shape: int, low: float, high: float) -> torch.Tensor:
        return torch.rand(*shape, generator=self._generator) * (high - low) + low

    def matrix(self, rows: int, columns: int) -> torch.Tensor:
        return self.normal(rows, columns, std=1 / math.sqrt(columns))


def _layer(draw: _Draw, text: Mapping[str, Any], prefix: str, kind: str) -> dict[str, torch.Tensor]:
    width, inner = text["hidden_size"], text["intermediate_size"]
    tensors = {"input_layernorm.weight": draw.normal(width, std=0.1)}
    if kind == "full_attention":
        head = text["head_dim"]
        queries = text["num_attention_heads"] * head
        keys = text["num_key_value_heads"] * head
        tensors |= {
            "self_attn.q_proj.weight": draw.matrix(2 * queries, width),
            "self_attn.k_proj.weight": draw.matrix(keys, width),
            "self_attn.v_proj.weight": draw.matrix(keys, width),
            "self_attn.o_proj.weight": OUTPUT_SCALE * draw.matrix(width, queries),
            "self_attn.q_norm.weight": draw.normal(head, std=0.1),
            "self_attn.k_norm.weight": draw.normal(head, std=0.1),
        }
    else:
        heads = text["linear_num_value_heads"]
        values = heads * text["linear_value_head_dim"]
        keys = text["linear_num_key_heads"] * text["linear_key_head_dim"]
        channels = 2 * keys + values
        kernel = text["linear_conv_kernel_dim"]
        tensors |= {
            "linear_attn.in_proj_qkv.weight": draw.matrix(channels, width),
            "linear_attn.in_proj_z.weight": draw.matrix(values, width),
            "linear_attn.in_proj_b.weight": draw.matrix(heads, width),
            "linear_attn.in_proj_a.weight": draw.matrix(heads, width),
            "linear_attn.conv1d.weight": draw.normal(channels, 1, kernel, std=0.5),
            "linear_attn.dt_bias": draw.normal(heads, std=1.0) - 2.0,
            "linear_attn.A_log": draw.uniform(heads, low=0.1, high=4.0).log(),
            "linear_attn.norm.weight": 1.0 + draw.normal(text["linear_value_head_dim"], std=0.1),
            "linear_attn.out_proj.weight": OUTPUT_SCALE * draw.matrix(width, values),
        }
    tensors |= {
        "post_attention_layernorm.weight": draw.normal(width, std=0.1),
        "mlp.gate_proj.weight": draw.matrix(inner, width),
        "mlp.up_proj.weight": draw.matrix(inner, width),
        "mlp.down_proj.weight": OUTPUT_SCALE * draw.matrix(width, inner),
    }
    return {prefix + tail: tensor for tail, tensor in tensors.items()}


def _text_config(
    shape: dict[str, Any], *, tied: bool, mtp: bool, dtype: torch.dtype
) -> dict[str, Any]:
    layers = shape["num_hidden_layers"]
    rotary_factor = shape.pop("partial_rotary_factor", 0.25)
    theta = shape.pop("rope_theta", 10_000.0)
    half = int(shape["head_dim"] * rotary_factor) // 2
    defaults = {
        "layer_types": [
            "full_attention" if index % 4 == 3 else "linear_attention" for index in range(layers)
        ],
        "eos_token_id": shape["vocab_size"] - 1,
    }
    return {
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        **defaults,
        **shape,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "attn_output_gate": True,
        "mamba_ssm_dtype": "float32",
        "tie_word_embeddings": tied,
        "mtp_num_hidden_layers": int(mtp),
        "mtp_use_dedicated_embeddings": False,
        "dtype": str(dtype).removeprefix("torch."),
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": theta,
            "partial_rotary_factor": rotary_factor,
            "mrope_interleaved": True,
            # Split as unevenly as the sizes allow; text uses equal positions on all three axes.
            "mrope_section": [half - 2 * (half // 3), half // 3, half // 3],
        },
    }


def _nested_config(text: dict[str, Any], tied: bool) -> dict[str, Any]:
    inner = {name: value for name, value in text.items() if name != "architectures"}
    return {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "text_config": inner,
        "vision_config": {"model_type": "qwen3_5_vision", "depth": 1, "hidden_size": 8},
        "image_token_id": 0,
        "video_token_id": 1,
        "vision_start_token_id": 2,
        "vision_end_token_id": 3,
        "tie_word_embeddings": tied,
        "transformers_version": "5.17.0",
    }


def _stored_dtype(name: str, dtype: torch.dtype) -> torch.dtype:
    # Published checkpoints keep the decay parameter in float32.
    return torch.float32 if name.endswith("A_log") else dtype
