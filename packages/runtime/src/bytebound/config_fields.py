"""Which fields a Qwen3.5-family config may hold, and what each of the unread ones must say.

Every field is in exactly one table: read by ``ModelConfig``, fixed (only one value is computed
here, any other is refused), or without effect on the computation. Whatever is in none of them is
refused by name, because a field that is skipped in silence is a model that computes something else
than its authors meant.
"""

import difflib
from collections.abc import Mapping
from typing import Any

from bytebound.errors import CheckpointError, UnsupportedModelError

CONFIG_FILE = "config.json"

TEXT_MODEL = "qwen3_5_text"
NESTED_MODEL = "qwen3_5"


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


READ_FIELDS = _words(
    """
    model_type vocab_size hidden_size intermediate_size num_hidden_layers layer_types
    full_attention_interval num_attention_heads num_key_value_heads head_dim
    linear_num_key_heads linear_num_value_heads linear_key_head_dim linear_value_head_dim
    linear_conv_kernel_dim rms_norm_eps rope_parameters rope_scaling rope_theta
    partial_rotary_factor max_position_embeddings tie_word_embeddings mtp_num_hidden_layers
    dtype torch_dtype eos_token_id quantization_config compression_config quantization
    """
)

# null stands for "not given" in every one of these.
FIXED_FIELDS: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "attention_bias": (False,),
    "attn_output_gate": (True,),
    "output_gate_type": ("swish", "silu"),  # two names of one function
    "mamba_ssm_dtype": ("float32",),
    "mtp_use_dedicated_embeddings": (False,),
    "mlp_only_layers": ([],),
    "num_experts": (0,),
    "sliding_window": (),
    "use_sliding_window": (False,),
    "is_encoder_decoder": (False,),
    "add_cross_attention": (False,),
    "cross_attention_hidden_size": (),
    "tie_encoder_decoder": (False,),
    "pruned_heads": ({},),
}

# Book-keeping of the library that wrote the file, training settings, and ids that only other
# components use.
HARMLESS_FIELDS = _words(
    """
    architectures auto_map transformers_version _name_or_path name_or_path _commit_hash
    tokenizer_class _attn_implementation _attn_implementation_autoset attn_implementation
    _experts_implementation experts_implementation output_attentions output_hidden_states
    return_dict return_dict_in_generate use_cache chunk_size_feed_forward is_decoder
    problem_type id2label label2id num_labels finetuning_task prefix task_specific_params
    torchscript use_bfloat16 tf_legacy_loss initializer_range attention_dropout
    router_aux_loss_coef output_router_logits pad_token_id bos_token_id sep_token_id
    decoder_start_token_id image_token_id video_token_id audio_token_id vision_start_token_id
    vision_end_token_id unsloth_fixed unsloth_fixed_mtp unsloth_version
    """
)

# Only beside a text_config; the fields of the vision tower are its own affair, no part of it is
# loaded.
OUTER_FIELDS = _words(
    """
    model_type text_config vision_config language_model_only tie_word_embeddings dtype
    torch_dtype eos_token_id quantization_config compression_config quantization
    """
)

ROPE_FIELDS = _words(
    "rope_type type rope_theta partial_rotary_factor mrope_section mrope_interleaved"
)
ROPE_SCALING_FIELDS = _words(
    """
    factor original_max_position_embeddings attention_factor beta_fast beta_slow mscale
    mscale_all_dim short_factor long_factor low_freq_factor high_freq_factor truncate
    """
)


def check_family(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the mapping that describes the text model: ``raw`` itself, or its ``text_config``."""
    supported = f"supported are {TEXT_MODEL!r} and {NESTED_MODEL!r} (Qwen3.5, 3.6, 3.8, dense)"
    model_type = raw.get("model_type")
    if model_type is None:
        raise CheckpointError(f"{CONFIG_FILE}: model_type is missing; {supported}")
    if model_type == TEXT_MODEL:
        return raw
    if model_type != NESTED_MODEL:
        raise UnsupportedModelError(f"{CONFIG_FILE}: model_type is {model_type!r}; {supported}")
    text = raw.get("text_config")
    if not isinstance(text, dict):
        raise CheckpointError(
            f"{CONFIG_FILE}: model_type {NESTED_MODEL!r} needs text_config, an object; got {text!r}"
        )
    inner = text.get("model_type", TEXT_MODEL)
    if inner != TEXT_MODEL:
        raise UnsupportedModelError(
            f"{CONFIG_FILE}: text_config.model_type is {inner!r}; {supported}"
        )
    return text


def check_names(raw: Mapping[str, Any], text: Mapping[str, Any]) -> None:
    """Refuse every field that is in no table."""
    known = READ_FIELDS | FIXED_FIELDS.keys() | HARMLESS_FIELDS
    if text is raw:
        _refuse_unknown(raw, known, CONFIG_FILE)
        return
    _refuse_unknown(text, known, f"{CONFIG_FILE}: text_config")
    _refuse_unknown(raw, OUTER_FIELDS | HARMLESS_FIELDS | FIXED_FIELDS.keys(), CONFIG_FILE)
    check_fixed_values(raw)


def check_fixed_values(values: Mapping[str, Any]) -> None:
    """Refuse a fixed field that asks for something else than what is computed."""
    for name, allowed in FIXED_FIELDS.items():
        value = values.get(name)
        # The type is compared too: 0 is not false, though they are equal.
        if value is None or any(value == one and type(value) is type(one) for one in allowed):
            continue
        expected = " or ".join(repr(one) for one in allowed) if allowed else "null"
        raise UnsupportedModelError(f"{CONFIG_FILE}: {name} is {value!r}; supported is {expected}")


def rope_of(text: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    """Return theta, partial factor and mrope section of the rotary embedding, None if not given.

    Either place is accepted, the ``rope_parameters`` block or top-level fields; both at once must
    agree. Any kind of scaling is refused: positions beyond the native context would otherwise run
    with the wrong frequencies.
    """
    if text.get("rope_scaling") is not None and text.get("rope_parameters") is not None:
        raise CheckpointError(
            f"{CONFIG_FILE}: rope_scaling and rope_parameters are both given; keep one"
        )
    name = "rope_parameters" if text.get("rope_scaling") is None else "rope_scaling"
    block = text.get(name)
    if block is None:
        block = {}
    if not isinstance(block, dict):
        raise CheckpointError(f"{CONFIG_FILE}: {name} is {block!r}, expected an object")
    for kind in ("rope_type", "type"):
        if block.get(kind, "default") != "default":
            raise UnsupportedModelError(
                f"{CONFIG_FILE}: {name}.{kind} is {block[kind]!r}; supported is 'default' "
                "(no context scaling)"
            )
    for field in block:
        if field in ROPE_SCALING_FIELDS:
            raise UnsupportedModelError(
                f"{CONFIG_FILE}: {name}.{field} asks for context scaling, which is not supported; "
                "remove it to run at the native context"
            )
    _refuse_unknown(block, ROPE_FIELDS, f"{CONFIG_FILE}: {name}")
    if block.get("mrope_interleaved") not in (None, True, False):
        raise CheckpointError(
            f"{CONFIG_FILE}: mrope_interleaved is {block['mrope_interleaved']!r}, "
            "expected true or false"
        )
    theta = _one_value(text, block, name, "rope_theta")
    factor = _one_value(text, block, name, "partial_rotary_factor")
    return theta, factor, block.get("mrope_section")


def _one_value(text: Mapping[str, Any], block: Mapping[str, Any], where: str, name: str) -> Any:
    top, inner = text.get(name), block.get(name)
    if top is not None and inner is not None and top != inner:
        raise CheckpointError(
            f"{CONFIG_FILE}: {name} is {top!r} at the top and {inner!r} in {where}; make them equal"
        )
    return inner if inner is not None else top


def _refuse_unknown(values: Mapping[str, Any], known: frozenset[str], where: str) -> None:
    unknown = [name for name in values if name not in known]
    if not unknown:
        return
    near = difflib.get_close_matches(unknown[0], sorted(known), n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
    raise UnsupportedModelError(
        f"{where}: unknown field {unknown[0]!r}{hint}{more}; what it asks for may be unsupported. "
        "Remove it if it has no effect on the computation"
    )
