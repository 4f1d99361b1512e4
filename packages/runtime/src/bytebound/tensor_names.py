"""Names and shapes of every tensor that a text model of a given config consists of.

The name tables map a field of the records in ``weights.py`` to the tail of the tensor's name in the
checkpoint. Shapes are as stored. Nothing here opens a file or needs torch, so the byte arithmetic
uses the same tables.
"""

from collections.abc import Mapping

from bytebound.config import LayerType, ModelConfig

Shape = tuple[int, ...]

TEXT_PREFIX = "model."
NESTED_PREFIX = "model.language_model."
VISION_PREFIX = "model.visual."
MTP_PREFIX = "mtp."

EMBEDDING = "embed_tokens.weight"
FINAL_NORM = "norm.weight"
HEAD = "lm_head.weight"

ATTENTION = {
    "q_proj": "self_attn.q_proj.weight",
    "k_proj": "self_attn.k_proj.weight",
    "v_proj": "self_attn.v_proj.weight",
    "o_proj": "self_attn.o_proj.weight",
    "q_norm": "self_attn.q_norm.weight",
    "k_norm": "self_attn.k_norm.weight",
}
GATED_DELTA = {
    "in_proj_qkv": "linear_attn.in_proj_qkv.weight",
    "in_proj_z": "linear_attn.in_proj_z.weight",
    "in_proj_b": "linear_attn.in_proj_b.weight",
    "in_proj_a": "linear_attn.in_proj_a.weight",
    "conv1d": "linear_attn.conv1d.weight",
    "dt_bias": "linear_attn.dt_bias",
    "A_log": "linear_attn.A_log",
    "norm": "linear_attn.norm.weight",
    "out_proj": "linear_attn.out_proj.weight",
}
MLP = {
    "gate_proj": "mlp.gate_proj.weight",
    "up_proj": "mlp.up_proj.weight",
    "down_proj": "mlp.down_proj.weight",
}
LAYER_NORMS = {
    "input_layernorm": "input_layernorm.weight",
    "post_attention_layernorm": "post_attention_layernorm.weight",
}
MTP = {
    "pre_fc_norm_embedding": "pre_fc_norm_embedding.weight",
    "pre_fc_norm_hidden": "pre_fc_norm_hidden.weight",
    "fc": "fc.weight",
    "norm": "norm.weight",
}

# Of Gated DeltaNet; the decay is exponential in them, so they are float32 whatever the model is.
FLOAT32_TAILS = (GATED_DELTA["dt_bias"], GATED_DELTA["A_log"])


def layer_shapes(config: ModelConfig, kind: LayerType) -> dict[str, Shape]:
    """Stored shapes of one decoder layer, by the tail of the name after ``layers.N.``."""
    width, inner = config.hidden_size, config.intermediate_size
    shapes: dict[str, Shape] = {tail: (width,) for tail in LAYER_NORMS.values()}
    shapes[MLP["gate_proj"]] = shapes[MLP["up_proj"]] = (inner, width)
    shapes[MLP["down_proj"]] = (width, inner)
    if kind == "full_attention":
        queries = config.num_attention_heads * config.head_dim
        keys = config.num_key_value_heads * config.head_dim
        shapes[ATTENTION["q_proj"]] = (2 * queries, width)
        shapes[ATTENTION["k_proj"]] = shapes[ATTENTION["v_proj"]] = (keys, width)
        shapes[ATTENTION["o_proj"]] = (width, queries)
        shapes[ATTENTION["q_norm"]] = shapes[ATTENTION["k_norm"]] = (config.head_dim,)
    else:
        heads = config.linear_num_value_heads
        shapes[GATED_DELTA["in_proj_qkv"]] = (config.conv_channels, width)
        shapes[GATED_DELTA["in_proj_z"]] = (config.value_dim, width)
        shapes[GATED_DELTA["in_proj_b"]] = shapes[GATED_DELTA["in_proj_a"]] = (heads, width)
        shapes[GATED_DELTA["conv1d"]] = (config.conv_channels, 1, config.linear_conv_kernel_dim)
        shapes[GATED_DELTA["dt_bias"]] = shapes[GATED_DELTA["A_log"]] = (heads,)
        shapes[GATED_DELTA["norm"]] = (config.linear_value_head_dim,)
        shapes[GATED_DELTA["out_proj"]] = (width, config.value_dim)
    return shapes


def mtp_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Stored shapes of the one-layer MTP head, by full name."""
    width = config.hidden_size
    shapes: dict[str, Shape] = {MTP_PREFIX + tail: (width,) for tail in MTP.values()}
    shapes[MTP_PREFIX + MTP["fc"]] = (width, 2 * width)
    for tail, shape in layer_shapes(config, "full_attention").items():
        shapes[f"{MTP_PREFIX}layers.0.{tail}"] = shape
    return shapes


def model_shapes(config: ModelConfig, *, prefix: str = TEXT_PREFIX) -> dict[str, Shape]:
    """Stored shapes of the decoder and its embedding, by full name; neither head nor MTP."""
    shapes: dict[str, Shape] = {
        prefix + EMBEDDING: (config.vocab_size, config.hidden_size),
        prefix + FINAL_NORM: (config.hidden_size,),
    }
    for index, kind in enumerate(config.layer_types):
        for tail, shape in layer_shapes(config, kind).items():
            shapes[f"{prefix}layers.{index}.{tail}"] = shape
    return shapes


def head_shape(config: ModelConfig) -> Mapping[str, Shape]:
    """Stored shape of the output head, by full name."""
    return {HEAD: (config.vocab_size, config.hidden_size)}
