"""From a folder, or a shape with random weights, to the parts of an engine on the GPU."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from bytebound import tensor_names as names
from bytebound.bandwidth import LOAD_BUFFER_BYTES, read_bandwidth_gb_s
from bytebound.checkpoint import StoredModel, output_head, read_headers
from bytebound.config import ModelConfig
from bytebound.cuda import fusion
from bytebound.cuda.assembly import Assembly
from bytebound.cuda.decoder import CudaDecoder
from bytebound.cuda.draft_head import stored_draft_head
from bytebound.cuda.executor import CudaExecutor
from bytebound.cuda.matrices import DenseMatrix
from bytebound.cuda.memory import Card, CudaMemory, Stored
from bytebound.cuda.mtp import CudaMtpDraft, MtpHead
from bytebound.cuda.packed_cache import PackedCache, Weights
from bytebound.cuda.packed_file import PackedFile
from bytebound.cuda.random_weights import random_weights
from bytebound.cuda.shapes import check_shape
from bytebound.cuda.stream_limits import check_stream
from bytebound.cuda.weights import ModelWeights, model_weights
from bytebound.drafts.base import Draft
from bytebound.memory import MemoryPlan
from bytebound.prompt_reader import PromptReader
from bytebound.reading import Progress, read_weights
from bytebound.settings import activations_dtype, check_cuda_kv_dtype
from bytebound.shard_hashes import stamps
from bytebound.shards import StoredTensor
from bytebound.vram import allocatable_bytes


@dataclass(frozen=True, slots=True)
class CudaParts:
    """What an engine needs of this backend."""

    executor: CudaExecutor
    with_mtp: bool
    make_mtp: Callable[[], CudaMtpDraft]
    memory_plan: MemoryPlan
    bytes_per_token: float
    read_gb_s: float | None  # measured on this card

    def make_decoder(
        self,
        draft: Draft | None,
        num_draft_tokens: int,
        reader: PromptReader,
        *,
        adaptive_depth: bool = False,
    ) -> CudaDecoder:
        """The loop on the device, with everything recorded that requests need."""
        decoder = CudaDecoder(
            self.executor, draft, num_draft_tokens, reader, adaptive_depth=adaptive_depth
        )
        decoder.warm_up()
        return decoder


def load_cuda(
    folder: Path | None,
    config: ModelConfig,
    *,
    max_len: int,
    dtype: str | torch.dtype | None = None,
    kv_dtype: str,
    num_draft_tokens: int,
    by_mtp: bool = True,
    draft_ids: torch.Tensor | None = None,
    use_packed_cache: bool = True,
    device: torch.device | None = None,
    snapshot_bytes: int | None = None,
    engine: str = "graph",
    on_progress: Progress | None = None,
) -> CudaParts:
    """Check shape and memory, load the weights, compile what prompts need.

    ``folder`` None stands for random weights. ``draft_ids`` int32 [N] is the draft vocabulary.
    ``dtype`` and ``kv_dtype`` as ``activations_dtype`` and ``check_cuda_kv_dtype`` take them.
    ``num_draft_tokens`` is 0 without drafts; ``by_mtp``: they come from the MTP head. A folder with
    4-bit matrices is kept in the kernels' form beside it, if ``use_packed_cache``, and read from
    there the next time. ``device`` None is PyTorch's current GPU. ``engine`` "stream" is refused
    where it cannot run, before a weight is read.
    """
    check_shape(config)
    device = device or torch.device("cuda", torch.cuda.current_device())
    seen = {} if folder is None else stamps(folder.glob("*.safetensors"))
    stored = None if folder is None else read_headers(folder, config)
    activations = activations_dtype(dtype, kv_dtype, packed=stored is None or bool(stored.packed))
    kind = check_cuda_kv_dtype(kv_dtype, max_len, activations)
    with_mtp = bool(config.mtp_num_hidden_layers) if stored is None else stored.with_mtp
    cache = None
    if folder is not None and stored is not None and stored.packed and use_packed_cache:
        cache = PackedCache.of(folder, config, stored, seen=seen, device=device, dtype=activations)
    found = None if cache is None else cache.find()
    memory = CudaMemory(
        config,
        Stored.of(
            config,
            None if stored is None else stored.packed,
            names.TEXT_PREFIX if stored is None else stored.prefix,
            with_mtp=with_mtp,
            random=folder is None,
            in_one_piece=found is not None,
        ),
        Card.of(device),
        kv_dtype,
        activations,
        draft_ids=0 if draft_ids is None or not with_mtp else draft_ids.numel(),
        num_draft_tokens=num_draft_tokens,
        by_mtp=by_mtp,
        snapshot_bytes=snapshot_bytes,
        engine=engine,
    )
    if engine == "stream":
        check_stream(config, memory.decoder_matrices(), activations, device)
    available = allocatable_bytes(device) + memory.card.context_bytes
    plan = memory.check_fits(available, max_len)
    read_gb_s = read_bandwidth_gb_s(LOAD_BUFFER_BYTES)
    torch.cuda.empty_cache()
    if folder is None or stored is None:
        weights = random_weights(config, dtype=activations, device=device, draft_ids=draft_ids)
    else:
        weights = load_weights(
            folder,
            config,
            stored,
            device=device,
            dtype=activations,
            cache=cache,
            found=found,
            on_progress=on_progress,
        )
        if draft_ids is not None and weights.mtp is not None:
            head = stored_draft_head(stored, weights.lm_head, draft_ids)
            ids = draft_ids.to(device)
            weights = replace(weights, mtp=replace(weights.mtp, draft_head=head, draft_ids=ids))
    torch.cuda.empty_cache()  # what the stored form took until it was packed
    executor = CudaExecutor(weights, config, max_len=max_len, kv_dtype=kind, engine=engine)
    executor.warm_up()
    workspaces = executor.step.workspaces
    return CudaParts(
        executor,
        with_mtp,
        lambda: CudaMtpDraft(
            MtpHead.empty(weights, config, workspaces, max_len=max_len, kv_dtype=kind)
        ),
        plan,
        memory.bytes_per_token(kind),
        read_gb_s,
    )


def load_weights(
    folder: Path,
    config: ModelConfig,
    stored: StoredModel,
    *,
    device: torch.device,
    dtype: torch.dtype | None = None,
    cache: PackedCache | None = None,
    found: PackedFile | None = None,
    on_progress: Progress | None = None,
) -> ModelWeights:
    """Read the folder into fused matrices: packed ones in 4 bits, the rest in ``dtype``.

    ``dtype`` None is the default of ``activations_dtype``.
    ``found`` is what ``cache`` holds of them; without it they are read from the folder, and kept in
    ``cache``.

    Raises:
        CheckpointError: values are not what they must be.
    """
    prefix = stored.prefix
    dtype = dtype or activations_dtype(None, "auto", packed=bool(stored.packed))
    parts = None
    if cache is not None and found is not None:
        parts = cache.load(found, on_progress)
    if parts is None:
        own, rest = _halves(on_progress) if cache is not None else (on_progress, None)
        parts = _read(config, stored, device, dtype, own)
        if config.tie_word_embeddings:
            tensors = {name: one for name, one in parts.items() if isinstance(one, torch.Tensor)}
            output_head(folder, config, tensors, prefix)  # a stored head must be the table
            parts.pop(fusion.HEAD, None)
        if cache is not None:
            cache.save(parts, rest)
    if config.tie_word_embeddings:
        table = parts[prefix + names.EMBEDDING]
        if isinstance(table, torch.Tensor):
            parts[fusion.HEAD] = DenseMatrix(table)
    return model_weights(config, parts, prefix, with_mtp=stored.with_mtp)


def _read(
    config: ModelConfig,
    stored: StoredModel,
    device: torch.device,
    dtype: torch.dtype,
    on_progress: Progress | None,
) -> Weights:
    """All matrices and tensors from the folder's own files, by their names."""

    def dtype_of(one: StoredTensor) -> torch.dtype:
        return torch.float32 if len(one.shape) == 1 else dtype

    assembly = Assembly(fusion.plan(config, stored.prefix, with_mtp=stored.with_mtp), dtype)
    for name, weight in read_weights(
        stored.tensors, stored.packed, dtype_of=dtype_of, device=device, on_progress=on_progress
    ):
        assembly.add(name, weight)
    return assembly.parts


def _halves(on_progress: Progress | None) -> tuple[Progress | None, Progress | None]:
    """Two jobs of about the same number of bytes, reported as one: reading, then keeping."""
    if on_progress is None:
        return None, None
    half = 0

    def first(done: int, total: int) -> None:
        nonlocal half
        half = total
        on_progress(done, 2 * total)

    def second(done: int, total: int) -> None:
        on_progress(half + half * done // total, 2 * half)

    return first, second
