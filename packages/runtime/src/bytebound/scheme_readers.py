"""How a folder says that its matrices are stored in 4 bits: ``quantization_config``, checked.

Three layouts of the ecosystem are read: ``compressed-tensors`` (format ``pack-quantized``),
``gptq`` (AutoGPTQ and GPTQModel) and ``awq`` (the gemm version). Every field is read, known to
change nothing, or refused by name.
"""

import re
from collections.abc import Mapping
from typing import Any, Literal

from bytebound.config_fields import CONFIG_FILE
from bytebound.errors import CheckpointError, UnsupportedModelError
from bytebound.stored_scheme import FORMAT_VERSION, StoredGroup, StoredScheme

Block = Mapping[str, Any]

BLOCK_FIELDS = ("quantization_config", "compression_config")
SUPPORTED = (
    "supported are 4-bit weights as compressed-tensors 'pack-quantized', 'gptq' and 'awq' (gemm)"
)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# What calibration and the writer's own loader used; the stored numbers are complete without it.
COMPRESSED_HARMLESS = _words("global_compression_ratio version compression_version run_compressed")
WEIGHTS_HARMLESS = _words("observer observer_kwargs scale_dtype zp_dtype")
GPTQ_HARMLESS = _words(
    """
    damp_percent damp_auto_increment static_groups true_sequential model_name_or_path
    model_file_base_name meta tokenizer dataset block_name_to_quantize
    module_name_preceding_first_block batch_size pad_token_id max_input_length
    cache_block_outputs modules_in_block_to_quantize model_seqlen backend use_cuda_fp16
    use_exllama disable_exllama exllama_config act_group_aware mse is_distributed
    """
)
AWQ_HARMLESS = GPTQ_HARMLESS | _words(
    "do_fuse fuse_max_seq_len modules_to_fuse sym desc_act checkpoint_format pack_dtype"
)


def scheme_from_config(raw: Mapping[str, Any]) -> StoredScheme | None:
    """Read the block at the top level, inside ``text_config``, or at both where they agree (E36).

    None: the config does not say that anything is quantized.

    Raises:
        UnsupportedModelError: sound, but another format than the three.
        CheckpointError: blocks that contradict each other, fields that are missing or wrong.
    """
    text = raw.get("text_config")
    levels = [("", raw)]
    if isinstance(text, Mapping):
        levels.append(("text_config.", text))
    found: list[tuple[str, Any]] = []
    for prefix, level in levels:
        if level.get("quantization") is not None:
            raise UnsupportedModelError(
                f"{CONFIG_FILE}: {prefix}quantization is given, the block of another format; "
                f"{SUPPORTED}"
            )
        found += [
            (prefix + name, level[name]) for name in BLOCK_FIELDS if level.get(name) is not None
        ]
    if not found:
        return None
    name, block = found[0]
    for other, again in found[1:]:
        if again != block:
            raise CheckpointError(
                f"{CONFIG_FILE}: {name} and {other} differ; keep the one that the weights were "
                "written with"
            )
    if not isinstance(block, Mapping):
        raise CheckpointError(f"{CONFIG_FILE}: {name} is {block!r}, expected an object")
    return read_block(block, f"{CONFIG_FILE}: {name}")


def read_block(block: Block, where: str) -> StoredScheme:
    """Read a ``quantization_config``; ``where`` names it in messages."""
    method = block.get("quant_method")
    if method == "compressed-tensors":
        return _compressed_tensors(block, where)
    if method == "gptq":
        return _gptq(block, where)
    if method == "awq":
        return _awq(block, where)
    raise UnsupportedModelError(f"{where}.quant_method is {method!r}; {SUPPORTED}")


def _compressed_tensors(block: Block, where: str) -> StoredScheme:
    _only(block, "format", ("pack-quantized",), where, required=True)
    # Old writers say "frozen" of packed files too.
    _only(block, "quantization_status", ("compressed", "frozen"), where)
    for name in ("kv_cache_scheme", "sparsity_config", "transform_config", "moe_sparsity_config"):
        value = block.get(name)
        # Writers leave an empty object, or "dense", where nothing was asked for.
        if value and not (isinstance(value, Mapping) and value.get("format") == "dense"):
            raise UnsupportedModelError(f"{where}.{name} is given; {SUPPORTED}, nothing besides")
    known = _words(
        """
        quant_method format quantization_status kv_cache_scheme sparsity_config transform_config
        moe_sparsity_config config_groups ignore bytebound
        """
    )
    _refuse_unknown(block, known | COMPRESSED_HARMLESS, where)
    groups = block.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        raise CheckpointError(f"{where}.config_groups is {groups!r}, expected at least one group")
    return StoredScheme(
        layout="pack-quantized",
        groups=tuple(
            _config_group(group, f"{where}.config_groups.{name}") for name, group in groups.items()
        ),
        ignore=_strings(block, "ignore", where),
        format_version=_format_version(block, where),
    )


def _config_group(group: Any, where: str) -> StoredGroup:
    if not isinstance(group, Mapping):
        raise CheckpointError(f"{where} is {group!r}, expected an object")
    for name in ("input_activations", "output_activations"):
        if group.get(name) is not None:
            raise UnsupportedModelError(
                f"{where}.{name} asks for quantized activations; {SUPPORTED}, activations in full"
            )
    _only(group, "format", ("pack-quantized",), where)
    known = _words("targets weights input_activations output_activations format")
    _refuse_unknown(group, known, where)
    weights = group.get("weights")
    if not isinstance(weights, Mapping):
        raise CheckpointError(f"{where}.weights is {weights!r}, expected an object")
    where = f"{where}.weights"
    _only(weights, "num_bits", (4,), where, required=True)
    _only(weights, "type", ("int",), where)
    _only(weights, "dynamic", (False,), where)
    _only(weights, "actorder", (False, "weight", "static", "group", "dynamic"), where)
    _only(weights, "block_structure", (), where)
    strategy = weights.get("strategy")
    if strategy is None:  # the package's own rule
        strategy = "channel" if weights.get("group_size") == -1 else "group"
    if strategy not in ("group", "channel"):
        raise UnsupportedModelError(f"{where}.strategy is {strategy!r}; {SUPPORTED}, in groups")
    known = _words("num_bits type dynamic actorder block_structure strategy group_size symmetric")
    _refuse_unknown(weights, known | WEIGHTS_HARMLESS, where)
    size = _group_size(weights, where, whole_row=strategy == "channel")
    return StoredGroup(
        targets=_strings(group, "targets", where),
        group_size=size,
        symmetric=_flag(weights, "symmetric", where, default=True),
        reordered=weights.get("actorder") in ("group", "dynamic"),
    )


def _gptq(block: Block, where: str) -> StoredScheme:
    _only(block, "bits", (4,), where, required=True)
    _only(block, "pack_dtype", ("int32",), where)
    _only(block, "is_marlin_format", (False,), where)
    _only(block, "adapter", (), where)
    _only(block, "rotation", (), where)
    layout: Literal["gptq", "gptq_v2"] = "gptq"
    names = [block[name] for name in ("checkpoint_format", "format") if block.get(name) is not None]
    for name in names:
        if name not in ("gptq", "gptq_v2"):
            raise UnsupportedModelError(
                f"{where}: checkpoint_format is {name!r}; supported are 'gptq' and 'gptq_v2'"
            )
        if name != names[0]:
            raise CheckpointError(
                f"{where}: checkpoint_format and format differ ({names[0]!r}, {name!r})"
            )
        layout = "gptq_v2" if name == "gptq_v2" else "gptq"
    known = _words(
        """
        quant_method bits group_size desc_act sym pack_dtype is_marlin_format checkpoint_format
        format lm_head dynamic adapter rotation bytebound
        """
    )
    _refuse_unknown(block, known | GPTQ_HARMLESS, where)
    ignore = _dynamic(block.get("dynamic"), where)
    if block.get("lm_head") is False:
        ignore = (*ignore, "lm_head")
    group = StoredGroup(
        targets=(),
        group_size=_group_size(block, where),
        symmetric=_flag(block, "sym", where, default=True),
        reordered=_flag(block, "desc_act", where, default=False),
    )
    return StoredScheme(layout, (group,), ignore, _format_version(block, where))


def _dynamic(rules: Any, where: str) -> tuple[str, ...]:
    """Take GPTQModel's per-module rules: exclusions are kept, other settings are refused."""
    if not rules:
        return ()
    if not isinstance(rules, Mapping):
        raise CheckpointError(f"{where}.dynamic is {rules!r}, expected an object")
    for rule, settings in rules.items():
        if not rule.startswith("-:") and settings:
            raise UnsupportedModelError(
                f"{where}.dynamic gives {rule!r} settings of its own; supported is one group size "
                "for the whole file, and rules that exclude ('-:')"
            )
    patterns = tuple(f"re:{rule[2:]}" for rule in rules if rule.startswith("-:"))
    return _checked_patterns(patterns, f"{where}.dynamic")


def _awq(block: Block, where: str) -> StoredScheme:
    _only(block, "bits", (4,), where, required=True)
    _only(block, "zero_point", (True,), where)
    for name in ("version", "format"):
        value = block.get(name)
        if value is not None and str(value).lower() != "gemm":
            raise UnsupportedModelError(f"{where}.{name} is {value!r}; supported is 'gemm'")
    known = _words(
        "quant_method bits group_size zero_point version format modules_to_not_convert bytebound"
    )
    _refuse_unknown(block, known | AWQ_HARMLESS, where)
    # A part of a module's name is enough there.
    ignore = tuple(
        f"re:.*{re.escape(part)}" for part in _strings(block, "modules_to_not_convert", where)
    )
    group = StoredGroup(targets=(), group_size=_group_size(block, where), symmetric=False)
    return StoredScheme("awq", (group,), ignore, _format_version(block, where))


def _format_version(block: Block, where: str) -> int | None:
    own = block.get("bytebound")
    if own is None:
        return None
    version = own.get("format_version") if isinstance(own, Mapping) else None
    if type(version) is not int or version < 1:
        raise CheckpointError(
            f"{where}.bytebound.format_version is {version!r}, expected a whole number from 1"
        )
    if version > FORMAT_VERSION:
        raise UnsupportedModelError(
            f"{where}.bytebound.format_version is {version}; this version reads up to "
            f"{FORMAT_VERSION}. Use a newer bytebound"
        )
    return version


def _group_size(values: Block, where: str, *, whole_row: bool = False) -> int | None:
    size = values.get("group_size")
    if size == -1 or (whole_row and size is None):
        return None
    if type(size) is not int or size < 1 or whole_row:
        raise CheckpointError(
            f"{where}.group_size is {size!r}, expected a number of columns, or -1 for whole rows"
        )
    return size


def _flag(values: Block, name: str, where: str, *, default: bool) -> bool:
    value = values.get(name)
    if value is None:
        return default
    if type(value) is not bool:
        raise CheckpointError(f"{where}.{name} is {value!r}, expected true or false")
    return value


def _strings(values: Block, name: str, where: str) -> tuple[str, ...]:
    value = values.get(name)
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise CheckpointError(f"{where}.{name} is {value!r}, expected a list of names")
    return _checked_patterns(tuple(value), f"{where}.{name}")


def _checked_patterns(names: tuple[str, ...], where: str) -> tuple[str, ...]:
    for name in names:
        if name.startswith("re:"):
            try:
                re.compile(name[3:])
            except re.error as error:
                raise CheckpointError(f"{where}: {name!r} is no pattern ({error})") from error
    return names


def _only(
    values: Block, name: str, allowed: tuple[Any, ...], where: str, *, required: bool = False
) -> None:
    value = values.get(name)
    if value is None and not required:
        return
    # The type is compared too: 0 is not false, though they are equal.
    if any(value == one and type(value) is type(one) for one in allowed):
        return
    raise UnsupportedModelError(f"{where}.{name} is {value!r}; {SUPPORTED}")


def _refuse_unknown(values: Block, known: frozenset[str], where: str) -> None:
    # null asks for nothing, whatever it is the value of.
    unknown = [name for name, value in values.items() if name not in known and value is not None]
    if unknown:
        raise UnsupportedModelError(
            f"{where}: unknown field {unknown[0]!r}; what it asks for may be unsupported. "
            f"{SUPPORTED}"
        )
