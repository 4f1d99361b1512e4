"""From a folder, or a shape with random weights, to the parts of an engine on the GPU."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import bytebound_kernels as bk
import torch

from bytebound import tensor_names as names
from bytebound.checkpoint import StoredModel, output_head, read_headers
from bytebound.config import ModelConfig
from bytebound.cuda import fusion
from bytebound.cuda.assembly import Assembly
from bytebound.cuda.decoder import CudaDecoder
from bytebound.cuda.executor import CudaExecutor
from bytebound.cuda.matrices import DenseMatrix
from bytebound.cuda.memory import memory_settings
from bytebound.cuda.mtp import CudaMtpDraft, MtpHead
from bytebound.cuda.random_weights import random_weights
from bytebound.cuda.shapes import check_shape
from bytebound.cuda.weights import ModelWeights, model_weights
from bytebound.drafts.base import Draft
from bytebound.errors import InvalidSettingError
from bytebound.memory import MemoryPlan, MemorySettings, byte_budget, check_fits
from bytebound.reading import Progress, read_weights
from bytebound.shards import StoredTensor

DTYPE = torch.bfloat16  # of the activations
KV_DTYPES = {
    "auto": torch.bfloat16,
    "bfloat16": torch.bfloat16,
    "fp8": torch.float8_e4m3fn,
}


@dataclass(frozen=True, slots=True)
class CudaParts:
    """What an engine needs of this backend."""

    executor: CudaExecutor
    with_mtp: bool
    make_mtp: Callable[[], CudaMtpDraft]
    memory_plan: MemoryPlan
    bytes_per_token: float

    def make_decoder(self, draft: Draft | None, num_draft_tokens: int) -> CudaDecoder:
        """The loop on the device, with everything recorded that requests need."""
        decoder = CudaDecoder(self.executor, draft, num_draft_tokens)
        decoder.warm_up()
        return decoder


def load_cuda(
    folder: Path | None,
    config: ModelConfig,
    *,
    max_len: int,
    kv_dtype: str,
    on_progress: Progress | None = None,
) -> CudaParts:
    """Check shape and memory, load the weights, compile what prompts need.

    ``folder`` None stands for random weights.
    """
    if kv_dtype not in KV_DTYPES:
        raise InvalidSettingError(
            f"kv_dtype={kv_dtype!r}: expected one of {', '.join(KV_DTYPES)} with backend='cuda'"
        )
    check_shape(config)
    device = torch.device("cuda", torch.cuda.current_device())
    stored = None if folder is None else read_headers(folder, config)
    with_mtp = bool(config.mtp_num_hidden_layers) if stored is None else stored.with_mtp
    settings = memory_settings(
        config,
        None if stored is None else dict(stored.packed),
        names.TEXT_PREFIX if stored is None else stored.prefix,
        with_mtp=with_mtp,
        max_len=max_len,
        kv_dtype=KV_DTYPES[kv_dtype],
        product_bytes=bk.matvec_workspace_bytes(device.index)
        + bk.w4_matmul_workspace_bytes(device.index),
    )
    available = int(torch.cuda.mem_get_info(device)[0])
    plan = check_fits(config, available, max_len=max_len, settings=settings)
    if folder is None or stored is None:
        weights = random_weights(config, dtype=DTYPE, device=device)
    else:
        weights = load_weights(folder, config, stored, device=device, on_progress=on_progress)
    executor = CudaExecutor(
        weights,
        config,
        max_len=max_len,
        kv_dtype=KV_DTYPES[kv_dtype],
    )
    executor.warm_up()
    workspaces = executor.step.workspaces
    return CudaParts(
        executor,
        with_mtp,
        lambda: CudaMtpDraft(
            MtpHead.empty(
                weights, config, workspaces, max_len=max_len, kv_dtype=KV_DTYPES[kv_dtype]
            )
        ),
        plan,
        _bytes_per_token(config, settings),
    )


def load_weights(
    folder: Path,
    config: ModelConfig,
    stored: StoredModel,
    *,
    device: torch.device,
    dtype: torch.dtype = DTYPE,
    on_progress: Progress | None = None,
) -> ModelWeights:
    """Read the folder into fused matrices: packed ones in 4 bits, the rest in ``dtype``.

    Raises:
        CheckpointError: values are not what they must be.
    """

    def dtype_of(one: StoredTensor) -> torch.dtype:
        return torch.float32 if len(one.shape) == 1 else dtype

    prefix = stored.prefix
    assembly = Assembly(fusion.plan(config, prefix, with_mtp=stored.with_mtp), dtype)
    for name, weight in read_weights(
        stored.tensors, stored.packed, dtype_of=dtype_of, device=device, on_progress=on_progress
    ):
        assembly.add(name, weight)
    parts = assembly.parts
    if config.tie_word_embeddings:
        tensors = {name: one for name, one in parts.items() if isinstance(one, torch.Tensor)}
        parts[fusion.HEAD] = DenseMatrix(output_head(folder, config, tensors, prefix))
    return model_weights(config, parts, prefix, with_mtp=stored.with_mtp)


def _bytes_per_token(config: ModelConfig, settings: MemorySettings) -> float:
    return byte_budget(
        config,
        bits_per_weight=settings.bits_per_weight,
        kv_bytes=settings.kv_bytes,
        small_bytes=DTYPE.itemsize,
    ).total
