"""The shape of one Qwen3.5-family text model, read from a model folder's ``config.json``.

This file knows the fields of the config and what values they may have; it never looks at a weight
file. Each field of a config is read, known to change nothing, or refused by name
(``config_fields.py`` holds the tables): a config never means something else than what it says.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

from bytebound.config_fields import (
    CONFIG_FILE,
    check_family,
    check_fixed_values,
    check_names,
    rope_of,
)
from bytebound.errors import CheckpointError, UnsupportedModelError
from bytebound.field_reader import FieldReader
from bytebound.generation_defaults import GENERATION_FILE, GenerationDefaults
from bytebound.scheme_readers import scheme_from_config
from bytebound.stored_scheme import StoredScheme

LayerType = Literal["linear_attention", "full_attention"]

DTYPES = ("bfloat16", "float16", "float32")
MOST_LAYERS = 4096
DEFAULT_ATTENTION_INTERVAL = 4
DEFAULT_PARTIAL_ROTARY_FACTOR = 0.25


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Dimensions and constants of a model, validated; the letters are those used in the code."""

    vocab_size: int
    hidden_size: int  # D
    intermediate_size: int  # F
    num_hidden_layers: int  # L
    layer_types: tuple[LayerType, ...]
    num_attention_heads: int  # NH
    num_key_value_heads: int  # NKV
    head_dim: int  # DH
    linear_num_key_heads: int  # H
    linear_num_value_heads: int  # HV
    linear_key_head_dim: int  # K
    linear_value_head_dim: int  # V
    linear_conv_kernel_dim: int
    rms_norm_eps: float
    rope_theta: float
    partial_rotary_factor: float
    max_position_embeddings: int
    tie_word_embeddings: bool
    mtp_num_hidden_layers: int | None = None
    """None: the config does not say, the checkpoint decides."""
    dtype: str | None = None
    """The dtype that the checkpoint declares."""
    eos_token_ids: tuple[int, ...] = ()
    """Union of what config and generation config name; the tokenizer's own joins later."""
    generation: GenerationDefaults = field(default_factory=GenerationDefaults)
    quantization: StoredScheme | None = None
    """How packed matrices are to be understood; None: every weight is plain."""

    def __post_init__(self) -> None:
        _check_shape(self)

    @property
    def rotary_dim(self) -> int:
        """Leading dimensions of each attention head that the rotary embedding turns."""
        return int(self.head_dim * self.partial_rotary_factor)

    @property
    def key_dim(self) -> int:
        """Width of all Gated DeltaNet keys together, ``H * K``; queries are as wide."""
        return self.linear_num_key_heads * self.linear_key_head_dim

    @property
    def value_dim(self) -> int:
        """Width of all Gated DeltaNet values together, ``HV * V``."""
        return self.linear_num_value_heads * self.linear_value_head_dim

    @property
    def conv_channels(self) -> int:
        """``C = 2 * H * K + HV * V``: the channels that pass through the causal convolution."""
        return 2 * self.key_dim + self.value_dim

    @property
    def num_attention_layers(self) -> int:
        """Layers that keep a key-value cache (the MTP head's own is not counted)."""
        return self.layer_types.count("full_attention")

    @property
    def num_linear_layers(self) -> int:
        """Layers that keep a recurrent state and a conv window."""
        return self.layer_types.count("linear_attention")

    @classmethod
    def from_folder(cls, folder: Path) -> "ModelConfig":
        """Read ``config.json`` and, where there is one, ``generation_config.json``.

        Raises:
            UnsupportedModelError: sound, but it holds something that this package does not run.
            CheckpointError: no folder, no config, or one that is damaged or contradicts itself.
        """
        raw = read_json_object(folder, CONFIG_FILE)
        generation = None
        if (folder / GENERATION_FILE).exists():
            generation = read_json_object(folder, GENERATION_FILE)
        return cls.from_dict(raw, generation)

    @classmethod
    def from_dict(
        cls, raw: Mapping[str, Any], generation: Mapping[str, Any] | None = None
    ) -> "ModelConfig":
        """Build from a parsed config, flat (``qwen3_5_text``) or nested (``text_config``)."""
        text = check_family(raw)
        check_names(raw, text)
        check_fixed_values(text)
        outer = raw if text is not raw else {}
        read = FieldReader(text)
        num_layers = read.positive_int("num_hidden_layers", most=MOST_LAYERS)
        theta, factor, mrope_section = rope_of(text)
        _check_mrope_section(mrope_section)
        factor = DEFAULT_PARTIAL_ROTARY_FACTOR if factor is None else factor
        rope = FieldReader({"rope_theta": theta, "partial_rotary_factor": factor})
        return cls(
            vocab_size=read.positive_int("vocab_size"),
            hidden_size=read.positive_int("hidden_size"),
            intermediate_size=read.positive_int("intermediate_size"),
            num_hidden_layers=num_layers,
            layer_types=_layer_types(text, num_layers),
            num_attention_heads=read.positive_int("num_attention_heads"),
            num_key_value_heads=read.positive_int("num_key_value_heads"),
            head_dim=read.positive_int("head_dim"),
            linear_num_key_heads=read.positive_int("linear_num_key_heads"),
            linear_num_value_heads=read.positive_int("linear_num_value_heads"),
            linear_key_head_dim=read.positive_int("linear_key_head_dim"),
            linear_value_head_dim=read.positive_int("linear_value_head_dim"),
            linear_conv_kernel_dim=read.positive_int("linear_conv_kernel_dim"),
            rms_norm_eps=read.positive_float("rms_norm_eps"),
            rope_theta=rope.positive_float("rope_theta"),
            partial_rotary_factor=rope.positive_float("partial_rotary_factor"),
            max_position_embeddings=read.positive_int("max_position_embeddings"),
            tie_word_embeddings=_tied(text, outer),
            mtp_num_hidden_layers=_mtp_layers(text),
            dtype=_dtype(text, outer),
            eos_token_ids=_eos_ids(text, outer, generation or {}),
            generation=GenerationDefaults.from_dict(generation or {}),
            quantization=scheme_from_config(raw),
        )


def read_json_object(folder: Path, name: str) -> dict[str, Any]:
    """Read the object in ``folder/name``; each way to be missing or damaged has one clear line."""
    if not folder.exists():
        raise CheckpointError(f"{folder}: no such folder; give one that holds {CONFIG_FILE}")
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is a file; give the model folder that holds {CONFIG_FILE}")
    path = folder / name
    if not path.is_file():
        what = "is empty" if not any(folder.iterdir()) else f"holds no {name}"
        raise CheckpointError(f"{folder} {what}; a model folder has {CONFIG_FILE} and safetensors")
    try:
        parsed = json.loads(path.read_bytes().decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not valid JSON ({error}); fetch it again") from error
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error
    if not isinstance(parsed, dict):
        raise CheckpointError(f"{path} holds a JSON {type(parsed).__name__}, expected an object")
    return parsed


def _layer_types(text: Mapping[str, Any], num_layers: int) -> tuple[LayerType, ...]:
    names = text.get("layer_types")
    if names is None:
        interval = DEFAULT_ATTENTION_INTERVAL
        if text.get("full_attention_interval") is not None:
            interval = FieldReader(text).positive_int("full_attention_interval")
        return tuple(
            "linear_attention" if (index + 1) % interval else "full_attention"
            for index in range(num_layers)
        )
    if not isinstance(names, list):
        raise CheckpointError(f"{CONFIG_FILE}: layer_types is {names!r}, expected a list of names")
    for index, name in enumerate(names):
        if name not in ("linear_attention", "full_attention"):
            raise UnsupportedModelError(
                f"{CONFIG_FILE}: layer_types[{index}] is {name!r}; "
                "supported are 'linear_attention' and 'full_attention'"
            )
    return tuple(names)


def _tied(text: Mapping[str, Any], outer: Mapping[str, Any]) -> bool:
    # The outer field decides for a nested config, as in the family's own multimodal model; the
    # inner one is often a default that nobody set. The checkpoint is held against the result, so
    # neither choice can pass unnoticed.
    inner = FieldReader(text).optional_bool("tie_word_embeddings")
    given = FieldReader(outer).optional_bool("tie_word_embeddings")
    return (given if given is not None else inner) or False


def _mtp_layers(text: Mapping[str, Any]) -> int | None:
    count = FieldReader(text).optional_int("mtp_num_hidden_layers")
    if count is not None and count > 1:
        raise UnsupportedModelError(
            f"{CONFIG_FILE}: mtp_num_hidden_layers is {count}; supported are 0 and 1"
        )
    return count


def _dtype(text: Mapping[str, Any], outer: Mapping[str, Any]) -> str | None:
    for values in (text, outer):
        for name in ("dtype", "torch_dtype"):
            value = values.get(name)
            if value is None or value == "auto":
                continue
            if value not in DTYPES:
                raise UnsupportedModelError(
                    f"{CONFIG_FILE}: {name} is {value!r}; supported are {', '.join(DTYPES)}"
                )
            return cast("str", value)
    return None


def _eos_ids(*sources: Mapping[str, Any]) -> tuple[int, ...]:
    ids = [id_ for source in sources for id_ in FieldReader(source).token_ids("eos_token_id")]
    return tuple(dict.fromkeys(ids))


def _check_shape(config: ModelConfig) -> None:
    """Rules between fields; a config built by hand passes through here as well."""

    def require(holds: bool, message: str) -> None:
        if not holds:
            raise CheckpointError(f"{CONFIG_FILE}: {message}")

    require(
        len(config.layer_types) == config.num_hidden_layers,
        f"layer_types names {len(config.layer_types)} layers, "
        f"num_hidden_layers is {config.num_hidden_layers}; they must be equal",
    )
    require(
        config.num_attention_heads % config.num_key_value_heads == 0,
        f"num_attention_heads {config.num_attention_heads} is not a multiple of "
        f"num_key_value_heads {config.num_key_value_heads}",
    )
    require(
        config.linear_num_value_heads % config.linear_num_key_heads == 0,
        f"linear_num_value_heads {config.linear_num_value_heads} is not a multiple of "
        f"linear_num_key_heads {config.linear_num_key_heads}",
    )
    require(
        config.linear_conv_kernel_dim >= 2,
        f"linear_conv_kernel_dim is {config.linear_conv_kernel_dim}, expected at least 2",
    )
    rotary = config.rotary_dim
    require(
        rotary >= 2 and rotary % 2 == 0 and rotary <= config.head_dim,
        f"partial_rotary_factor {config.partial_rotary_factor:g} turns {rotary} dimensions, "
        f"expected an even number from 2 to head_dim {config.head_dim}",
    )


def _check_mrope_section(section: Any) -> None:
    """Its sum is not checked: it shares frequencies among three axes, which are equal for text."""
    if section is None:
        return
    sound = isinstance(section, list) and all(type(part) is int and part >= 0 for part in section)
    if not sound or len(section) != 3:
        raise CheckpointError(
            f"{CONFIG_FILE}: mrope_section is {section!r}, expected three whole numbers"
        )
