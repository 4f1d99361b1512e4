"""From a folder and settings to an engine's parts. Settings are checked before a weight is read."""

import difflib
import warnings
from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import TypedDict

import torch

from bytebound.checkpoint import Checkpoint, load_checkpoint
from bytebound.config import ModelConfig
from bytebound.drafts import Draft, MtpDraft, NgramDraft
from bytebound.errors import CheckpointError, CudaUnavailableError, InvalidSettingError
from bytebound.memory import MemoryPlan, MemorySettings, byte_budget, check_fits, memory_plan
from bytebound.names import resolve_model
from bytebound.reference.executor import PREFILL_CHUNK, ReferenceExecutor
from bytebound.reference.layout import store_output_major
from bytebound.reference.rows import MAX_VERIFY_ROWS, WINDOW
from bytebound.text.tokenizer import Tokenizer, load_tokenizer

BACKENDS = ("auto", "reference", "cuda")
DRAFTS = ("none", "mtp", "ngram")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
DEFAULT_MAX_LEN = 8192
MAX_DRAFT_TOKENS = MAX_VERIFY_ROWS - 1

Progress = Callable[[int, int], None]


class EngineParts(TypedDict):
    """Keyword arguments of ``Engine``."""

    executor: ReferenceExecutor
    draft: Draft | None
    num_draft_tokens: int
    tokenizer: Tokenizer | None
    config: ModelConfig
    end_ids: tuple[int, ...]
    memory_plan: MemoryPlan
    bytes_per_token: float


def load_engine_parts(
    path_or_name: str | PathLike[str],
    *,
    backend: str,
    device: str | torch.device | None,
    dtype: str | torch.dtype | None,
    max_len: int | None,
    kv_dtype: str,
    draft: str | Draft,
    num_draft_tokens: int,
    draft_vocab: str | PathLike[str] | None,
    on_progress: Progress | None = None,
) -> EngineParts:
    """Check settings, load the folder, build the parts. See ``Engine.from_pretrained``."""
    _check_choice("backend", backend, BACKENDS)
    _check_draft(draft)
    if draft_vocab is not None:
        raise InvalidSettingError(
            f"draft_vocab={draft_vocab!r}: the reference backend drafts over the whole vocabulary; "
            "use None"
        )
    check_integer("num_draft_tokens", num_draft_tokens, 1, MAX_DRAFT_TOKENS)
    if backend == "cuda":
        raise CudaUnavailableError(
            "backend='cuda': this version has no CUDA engine; "
            "use backend='reference', which runs on a GPU too"
        )
    where = check_device(device)
    folder = resolve_model(path_or_name)
    config = ModelConfig.from_folder(folder)
    kind = check_dtype(dtype, config, where)
    if kv_dtype not in ("auto", str(kind).removeprefix("torch.")):
        raise InvalidSettingError(
            f"kv_dtype={kv_dtype!r}: the reference backend keeps KV in its own dtype; use 'auto'"
        )
    length = check_max_len(max_len, config)
    tokenizer = load_tokenizer(folder)
    if tokenizer is not None and tokenizer.vocab_size > config.vocab_size:
        raise CheckpointError(
            f"{folder}: the tokenizer has {tokenizer.vocab_size} ids, "
            f"the model only {config.vocab_size}"
        )
    _check_memory(config, length, kind, where)
    checkpoint = load_checkpoint(folder, config, dtype=kind, device=where, on_progress=on_progress)
    if where.type == "cpu" and kind == torch.float32:
        store_output_major(checkpoint.weights)
    with_mtp = checkpoint.weights.mtp is not None
    drafter = _make_draft(draft, checkpoint, config, length)
    return EngineParts(
        executor=ReferenceExecutor(checkpoint.weights, config, max_len=length),
        draft=drafter,
        num_draft_tokens=num_draft_tokens,
        tokenizer=tokenizer,
        config=config,
        end_ids=(*config.eos_token_ids, *(tokenizer.eos_ids if tokenizer else ())),
        memory_plan=plan_memory(config, length, kind, with_mtp=with_mtp),
        bytes_per_token=byte_budget(
            config,
            bits_per_weight=8.0 * kind.itemsize,
            kv_bytes=kind.itemsize,
            small_bytes=kind.itemsize,
        ).total,
    )


def plan_memory(
    config: ModelConfig, max_len: int, dtype: torch.dtype, *, with_mtp: bool
) -> MemoryPlan:
    """What the reference backend will hold: everything at its one dtype."""
    return memory_plan(config, max_len=max_len, settings=_memory_settings(dtype, with_mtp))


def _memory_settings(dtype: torch.dtype, with_mtp: bool) -> MemorySettings:
    bits = 8.0 * dtype.itemsize
    return MemorySettings(
        bits_per_weight=bits,
        embedding_bits=bits,
        mtp_bits=bits,
        small_bits=bits,
        kv_bytes=dtype.itemsize,
        activation_bytes=dtype.itemsize,
        mtp=with_mtp,
        chunk_rows=PREFILL_CHUNK,
        verify_rows=WINDOW,
        verify_keeps_states=True,
    )


def _check_memory(
    config: ModelConfig, max_len: int, dtype: torch.dtype, device: torch.device
) -> None:
    """Refuse what cannot fit before a weight is read, and name the context that would."""
    available = available_memory(device)
    if available is not None:
        settings = _memory_settings(dtype, with_mtp=bool(config.mtp_num_hidden_layers))
        check_fits(config, available, max_len=max_len, settings=settings)


def available_memory(device: torch.device) -> int | None:
    """Bytes that can still be taken on this device; None where nobody says."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    sizes = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(sizes[0]) * 1024 if sizes else None


def check_max_len(max_len: int | None, config: ModelConfig) -> int:
    """The context to allocate: None is the default, cut to the model's limit."""
    limit = config.max_position_embeddings
    if max_len is None:
        return min(DEFAULT_MAX_LEN, limit)
    return check_integer("max_len", max_len, 1, limit)


def check_device(device: str | torch.device | None) -> torch.device:
    """A device that exists here; None takes the GPU if there is one."""
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        where = torch.device(device)
    except (RuntimeError, TypeError):
        raise InvalidSettingError(
            f"device={device!r}: expected 'cpu', 'cuda' or 'cuda:N'"
        ) from None
    if where.type not in ("cpu", "cuda"):
        raise InvalidSettingError(f"device={device!r}: expected 'cpu', 'cuda' or 'cuda:N'")
    if where.type == "cuda" and (where.index or 0) >= torch.cuda.device_count():
        raise CudaUnavailableError(
            f"device={device!r}: PyTorch sees {torch.cuda.device_count()} CUDA devices here; "
            "use 'cpu'"
        )
    return where


def check_dtype(
    dtype: str | torch.dtype | None, config: ModelConfig, device: torch.device
) -> torch.dtype:
    """The dtype to compute in; None means float32 on a CPU and the checkpoint's own on a GPU."""
    if dtype is None:
        own = "float32" if device.type == "cpu" else config.dtype
        return DTYPES.get(own or "bfloat16", torch.bfloat16)
    name = str(dtype).removeprefix("torch.")
    _check_choice("dtype", name, tuple(DTYPES))
    return DTYPES[name]


def check_integer(name: str, value: int, low: int, high: int) -> int:
    """A whole number within bounds, or InvalidSettingError."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidSettingError(f"{name}={value!r}: expected a whole number from {low} to {high}")
    return value


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value in choices:
        return
    close = difflib.get_close_matches(str(value), choices, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    raise InvalidSettingError(f"{name}={value!r}: expected one of {', '.join(choices)}{hint}")


def _check_draft(draft: str | Draft) -> None:
    if isinstance(draft, str):
        _check_choice("draft", draft, DRAFTS)
        return
    missing = [part for part in ("name", "begin", "observe", "propose") if not hasattr(draft, part)]
    if missing:
        raise InvalidSettingError(
            f"draft={draft!r}: expected one of {', '.join(DRAFTS)}, "
            f"or an object that has {', '.join(missing)} as well"
        )


def _make_draft(
    draft: str | Draft, checkpoint: Checkpoint, config: ModelConfig, max_len: int
) -> Draft | None:
    if not isinstance(draft, str):
        return draft
    if draft == "ngram":
        return NgramDraft()
    if draft == "none":
        return None
    if checkpoint.weights.mtp is None:
        warnings.warn(
            "draft='mtp': this checkpoint has no MTP head, so nothing will be drafted; "
            "use draft='ngram', or draft='none' to silence this",
            stacklevel=4,
        )
        return None
    return MtpDraft(checkpoint.weights, config, max_len=max_len)
