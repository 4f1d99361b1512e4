"""Training parts -> the model folder that ships.

Contract: `export.py PARTS FOLDER` writes model.safetensors (the family's tensor names), config.json
and generation_config.json beside the tokenizer's files. Matrices and norms are bfloat16; `A_log`
and the gated norm's weight are float32 like the family's, but hold values that bfloat16 can
represent, so a loader that casts them gets the same numbers as one that does not.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from model import MAX_LENGTH, tiny_config
from safetensors.torch import load_file, save_file

FLOAT32 = ("linear_attn.A_log", "linear_attn.norm.weight")


def load_parts(folder: Path) -> dict[str, torch.Tensor]:
    weights: dict[str, torch.Tensor] = {}
    for path in sorted(folder.glob("part-*.safetensors")):
        weights |= load_file(path)
    if not weights:
        raise FileNotFoundError(f"no part-*.safetensors in {folder}")
    return weights


def stored(name: str, tensor: torch.Tensor) -> torch.Tensor:
    if not torch.isfinite(tensor).all():
        raise ValueError(f"{name} has values that are not finite")
    rounded = tensor.to(torch.bfloat16)
    return rounded.float() if name.endswith(FLOAT32) else rounded


def config_of(eos: int, pad: int) -> dict[str, object]:
    c = tiny_config()
    return {
        "architectures": ["Qwen3_5ForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "attn_output_gate": True,
        "bos_token_id": None,
        "dtype": "bfloat16",
        "eos_token_id": eos,
        "full_attention_interval": 4,
        "head_dim": c.head_dim,
        "hidden_act": "silu",
        "hidden_size": c.hidden_size,
        "initializer_range": c.initializer_range,
        "intermediate_size": c.intermediate_size,
        "layer_types": list(c.layer_types),
        "linear_conv_kernel_dim": c.linear_conv_kernel_dim,
        "linear_key_head_dim": c.linear_key_head_dim,
        "linear_num_key_heads": c.linear_num_key_heads,
        "linear_num_value_heads": c.linear_num_value_heads,
        "linear_value_head_dim": c.linear_value_head_dim,
        "mamba_ssm_dtype": "float32",
        "max_position_embeddings": MAX_LENGTH,
        "model_type": "qwen3_5_text",
        "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": False,
        "num_attention_heads": c.num_attention_heads,
        "num_hidden_layers": c.num_hidden_layers,
        "num_key_value_heads": c.num_key_value_heads,
        "pad_token_id": pad,
        "rms_norm_eps": c.rms_norm_eps,
        "rope_parameters": {
            "mrope_interleaved": True,
            "mrope_section": [11, 11, 10],
            "partial_rotary_factor": 0.25,
            "rope_theta": 10_000_000,
            "rope_type": "default",
        },
        "tie_word_embeddings": False,
        "use_cache": True,
        "vocab_size": c.vocab_size,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", type=Path)
    parser.add_argument("folder", type=Path, help="holds the tokenizer's files already")
    args = parser.parse_args()
    vocabulary = json.loads((args.folder / "tokenizer.json").read_text(encoding="utf-8"))
    ids = {token["content"]: token["id"] for token in vocabulary["added_tokens"]}
    weights = {name: stored(name, t) for name, t in load_parts(args.parts).items()}
    save_file(weights, args.folder / "model.safetensors", metadata={"format": "pt"})
    config = config_of(ids["<|im_end|>"], ids["<|endoftext|>"])
    generation = {
        "do_sample": False,
        "eos_token_id": [ids["<|im_end|>"], ids["<|endoftext|>"]],
        "pad_token_id": ids["<|endoftext|>"],
    }
    for name, content in (("config.json", config), ("generation_config.json", generation)):
        text = json.dumps(content, indent=2, sort_keys=True) + "\n"
        (args.folder / name).write_text(text, encoding="utf-8")
    total = sum(t.numel() for t in weights.values())
    print(f"{len(weights)} tensors, {total:,} parameters")


if __name__ == "__main__":
    main()
