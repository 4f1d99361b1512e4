"""From a folder and settings to an engine's parts. Settings are checked before a weight is read."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Protocol, TypedDict

import torch

from bytebound.backends import Backend, check_engine, choose_backend
from bytebound.checkpoint import load_checkpoint
from bytebound.config import ModelConfig, read_json_object
from bytebound.decoder import Decoder, HostDecoder
from bytebound.draft_vocab import read_draft_vocab
from bytebound.drafts import Draft, MtpDraft, NgramDraft
from bytebound.errors import CheckpointError, CudaUnavailableError, InvalidSettingError
from bytebound.executor import Executor
from bytebound.memory import (
    FLOAT32_BYTES,
    MemoryPlan,
    MemorySettings,
    byte_budget,
    check_fits,
    memory_plan,
    state_bytes,
)
from bytebound.names import random_shape, resolve_model
from bytebound.prompt_reader import PromptReader
from bytebound.reading import Progress
from bytebound.reference.executor import PREFILL_CHUNK, ReferenceExecutor
from bytebound.reference.layout import store_output_major
from bytebound.reference.reduced_mtp import ReducedMtpDraft
from bytebound.reference.rows import WINDOW
from bytebound.settings import (
    BACKENDS,
    MAX_CUDA_DRAFT_TOKENS,
    MAX_DRAFT_TOKENS,
    check_choice,
    check_device,
    check_draft,
    check_dtype,
    check_integer,
    check_kv_dtype,
    check_max_len,
    use_packed_cache,
)
from bytebound.snapshots import snapshot_budget, with_conversations
from bytebound.text.tokenizer import Tokenizer, load_tokenizer
from bytebound.vram import allocatable_bytes, cap_process, parse_size


class EngineParts(TypedDict):
    """Keyword arguments of ``Engine``."""

    executor: Executor
    draft: Draft | None
    num_draft_tokens: int
    decoder: Decoder
    tokenizer: Tokenizer | None
    config: ModelConfig
    end_ids: tuple[int, ...]
    memory_plan: MemoryPlan
    bytes_per_token: float
    read_gb_s: float | None


class _Backend(Protocol):
    """What a backend makes of a folder."""

    @property
    def executor(self) -> Executor: ...
    @property
    def with_mtp(self) -> bool: ...
    @property
    def make_mtp(self) -> Callable[[], Draft]: ...
    @property
    def memory_plan(self) -> MemoryPlan: ...
    @property
    def bytes_per_token(self) -> float: ...
    @property
    def read_gb_s(self) -> float | None: ...
    def make_decoder(
        self,
        draft: Draft | None,
        num_draft_tokens: int,
        reader: PromptReader,
        *,
        adaptive_depth: bool,
    ) -> Decoder: ...


@dataclass(frozen=True, slots=True)
class _ReferenceParts:
    executor: ReferenceExecutor
    with_mtp: bool
    make_mtp: Callable[[], MtpDraft]
    memory_plan: MemoryPlan
    bytes_per_token: float
    read_gb_s: float | None = None  # what limits it is not the memory

    def make_decoder(
        self,
        draft: Draft | None,
        num_draft_tokens: int,
        reader: PromptReader,
        *,
        adaptive_depth: bool,
    ) -> HostDecoder:
        return HostDecoder(self.executor, draft, num_draft_tokens, reader)


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
    vram_limit: int | str | None = None,
    snapshot_bytes: int | str | None = None,
    conversation_bytes: int | str | None = 0,
    adaptive_depth: bool = False,
    engine: str = "graph",
    on_progress: Progress | None = None,
) -> EngineParts:
    """Check settings, load the folder, build the parts. See ``Engine.from_pretrained``.

    ``vram_limit``, bytes or a text such as "32GiB", caps what this process takes of the GPU, from
    now until it ends (``vram.cap_process``).
    """
    check_choice("backend", backend, BACKENDS)
    check_draft(draft)
    if draft_vocab is not None and draft != "mtp":
        raise InvalidSettingError(
            f"draft_vocab={str(draft_vocab)!r}: only draft='mtp' has a use for it, got {draft!r}; "
            "use None"
        )
    if vram_limit is not None:
        parse_size("vram_limit", vram_limit)
    snapshots = _parse_budget("snapshot_bytes", snapshot_bytes)
    parked = _check_host_memory(_parse_budget("conversation_bytes", conversation_bytes))
    most = MAX_CUDA_DRAFT_TOKENS if backend == "cuda" else MAX_DRAFT_TOKENS
    check_integer("num_draft_tokens", num_draft_tokens, 1, most)
    where = check_device(device)
    folder, config = find_model(path_or_name)
    length = check_max_len(max_len, config)
    chosen = choose_backend(backend, config, device, dtype)
    if folder is None:
        _check_random(path_or_name, backend, chosen)
    tokenizer = None if folder is None else load_tokenizer(folder)
    if tokenizer is not None and tokenizer.vocab_size > config.vocab_size:
        raise CheckpointError(
            f"{folder}: the tokenizer has {tokenizer.vocab_size} ids, "
            f"the model only {config.vocab_size}"
        )
    if not isinstance(adaptive_depth, bool):
        raise InvalidSettingError(f"adaptive_depth={adaptive_depth!r}: expected True or False")
    if adaptive_depth and (chosen.name != "cuda" or draft != "mtp"):
        raise InvalidSettingError(
            f"adaptive_depth=True: the depth adapts with backend='cuda' and draft='mtp'; got "
            f"{chosen.name!r} and {draft!r}"
        )
    check_engine(engine, chosen)
    draft_ids = None
    if draft_vocab is not None:
        vocab = config.vocab_size
        draft_ids = read_draft_vocab(draft_vocab, vocab_size=vocab, tokenizer=tokenizer)
    if folder is None or chosen.name == "cuda":
        check_integer("num_draft_tokens", num_draft_tokens, 1, MAX_CUDA_DRAFT_TOKENS)
    if vram_limit is not None:
        limit_vram(vram_limit, where)
    parts: _Backend
    if folder is None or chosen.name == "cuda":
        from bytebound.cuda.loading import load_cuda

        parts = load_cuda(
            folder,
            config,
            max_len=length,
            dtype=dtype,
            kv_dtype=kv_dtype,
            num_draft_tokens=0 if draft == "none" else num_draft_tokens,
            by_mtp=draft == "mtp",
            draft_ids=draft_ids,
            use_packed_cache=use_packed_cache(),
            snapshot_bytes=snapshots,
            engine=engine,
            on_progress=on_progress,
        )
    else:
        kind = check_dtype(dtype, config, where)
        check_kv_dtype(kv_dtype, kind)
        plan = _fitting_plan(config, length, kind, where, snapshots)
        parts = _load_reference(folder, config, plan, kind, where, draft_ids, on_progress)
    if folder is None:
        warnings.warn(
            f"{path_or_name}: the weights are random, so every token is noise; only its speed "
            "means something",
            stacklevel=3,
        )
    drafts = _make_draft(draft, parts)
    plan = with_conversations(parts.memory_plan, parked, available_memory(torch.device("cpu")))
    reader = PromptReader(
        parts.executor,
        drafts,
        turn_starts=() if tokenizer is None else tokenizer.turn_start_ids,
        snapshot_bytes=plan.snapshots,
        conversation_bytes=plan.conversations,
    )
    return EngineParts(
        executor=parts.executor,
        draft=drafts,
        num_draft_tokens=num_draft_tokens,
        decoder=parts.make_decoder(drafts, num_draft_tokens, reader, adaptive_depth=adaptive_depth),
        tokenizer=tokenizer,
        config=config,
        end_ids=(*config.eos_token_ids, *(tokenizer.eos_ids if tokenizer else ())),
        memory_plan=plan,
        bytes_per_token=parts.bytes_per_token,
        read_gb_s=parts.read_gb_s,
    )


def find_model(path_or_name: str | PathLike[str]) -> tuple[Path | None, ModelConfig]:
    """Return the model's folder and config; no folder where its weights are to be random."""
    shape = random_shape(path_or_name)
    if shape is not None:
        return None, ModelConfig.from_dict(read_json_object(shape.parent, shape.name))
    folder = resolve_model(path_or_name)
    return folder, ModelConfig.from_folder(folder)


def _parse_budget(name: str, value: int | str | None) -> int | None:
    """A size as ``parse_size`` reads it, or 0; None stays None."""
    if value is None or value == "0" or (type(value) is int and value == 0):
        return None if value is None else 0
    return parse_size(name, value)


def _check_host_memory(conversation_bytes: int | None) -> int | None:
    """Refuse a budget that the host's memory does not have."""
    available = available_memory(torch.device("cpu"))
    if conversation_bytes and available is not None and conversation_bytes > available:
        raise InvalidSettingError(
            f"conversation_bytes={conversation_bytes}: {available} bytes of the host's memory are "
            "available; expected less, or 0 to park no conversation"
        )
    return conversation_bytes


def _check_random(path_or_name: str | PathLike[str], asked: str, chosen: Backend) -> None:
    """Refuse random weights without the backend that makes them."""
    if chosen.name == "cuda":
        return
    if asked == "reference":
        raise InvalidSettingError(
            f"{path_or_name}: random weights are made by backend='cuda' only; got {asked!r}"
        )
    raise CudaUnavailableError(
        f"{path_or_name}: random weights are made by backend='cuda' only, which cannot run this: "
        f"{chosen.why_not_cuda}"
    )


def limit_vram(vram_limit: int | str, device: str | torch.device | None = None) -> None:
    """Cap what this process takes of the GPU, from now until it ends: see ``vram.cap_process``.

    Raises:
        InvalidSettingError: no size, one that is too small, or a device that is no GPU.
    """
    limit, where = parse_size("vram_limit", vram_limit), check_device(device)
    if where.type != "cuda":
        raise InvalidSettingError(
            f"vram_limit={vram_limit!r}: the model runs on the CPU, whose memory is not capped; "
            "use None"
        )
    cap_process(limit, where)


def _load_reference(
    folder: Path,
    config: ModelConfig,
    plan: MemoryPlan,
    dtype: torch.dtype,
    device: torch.device,
    draft_ids: torch.Tensor | None,
    on_progress: Progress | None,
) -> _ReferenceParts:
    max_len = plan.max_len
    checkpoint = load_checkpoint(
        folder, config, dtype=dtype, device=device, on_progress=on_progress
    )
    weights = checkpoint.weights
    if device.type == "cpu" and dtype == torch.float32:
        store_output_major(weights)
    with_mtp = weights.mtp is not None

    def make_mtp() -> MtpDraft:
        if draft_ids is None:
            return MtpDraft(weights, config, max_len=max_len)
        return ReducedMtpDraft(weights, config, draft_ids, max_len=max_len)

    return _ReferenceParts(
        ReferenceExecutor(weights, config, max_len=max_len),
        with_mtp,
        make_mtp,
        plan_memory(config, max_len, dtype, with_mtp=with_mtp, snapshot_bytes=plan.snapshots),
        byte_budget(
            config,
            bits_per_weight=8.0 * dtype.itemsize,
            kv_bytes=dtype.itemsize,
            small_bytes=dtype.itemsize,
        ).total,
    )


def plan_memory(
    config: ModelConfig,
    max_len: int,
    dtype: torch.dtype,
    *,
    with_mtp: bool,
    snapshot_bytes: int | None = None,
) -> MemoryPlan:
    """What the reference backend will hold: everything at its one dtype.

    Raises:
        InvalidSettingError: ``max_len`` is impossible, or ``snapshot_bytes`` keeps nothing.
    """
    plan = memory_plan(config, max_len=max_len, settings=_memory_settings(dtype, with_mtp))
    size = state_bytes(config, FLOAT32_BYTES) + config.hidden_size * dtype.itemsize
    snapshots = snapshot_budget(snapshot_bytes, size)
    return replace(plan, snapshots=snapshots, kv_dtype=str(dtype).removeprefix("torch."))


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


def _fitting_plan(
    config: ModelConfig,
    max_len: int,
    dtype: torch.dtype,
    device: torch.device,
    snapshot_bytes: int | None,
) -> MemoryPlan:
    """Refuse what cannot fit before a weight is read, and name the context that would."""

    def plan_of(length: int) -> MemoryPlan:
        with_mtp = bool(config.mtp_num_hidden_layers)
        return plan_memory(config, length, dtype, with_mtp=with_mtp, snapshot_bytes=snapshot_bytes)

    available = available_memory(device)
    if available is None:
        return plan_of(max_len)
    longest = config.max_position_embeddings
    return check_fits(plan_of, available, max_len=max_len, longest=longest)


def available_memory(device: torch.device) -> int | None:
    """Bytes that can still be taken on this device; None where nobody says."""
    if device.type == "cuda":
        return allocatable_bytes(device)
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    sizes = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(sizes[0]) * 1024 if sizes else None


def _make_draft(draft: str | Draft, parts: _Backend) -> Draft | None:
    if not isinstance(draft, str):
        return draft
    if draft == "ngram":
        return NgramDraft()
    if draft == "none":
        return None
    if not parts.with_mtp:
        warnings.warn(
            "draft='mtp': this checkpoint has no MTP head, so nothing will be drafted; "
            "use draft='ngram', or draft='none' to silence this",
            stacklevel=4,
        )
        return None
    return parts.make_mtp()
