"""The CUDA executor of a folder on a CPU; ``emulated_kernels.emulate`` must be in force."""

from pathlib import Path

import torch
from bytebound.checkpoint import read_headers
from bytebound.config import ModelConfig
from bytebound.cuda.executor import CudaExecutor
from bytebound.cuda.loading import load_weights

CPU = torch.device("cpu")


def cuda_executor(
    folder: Path,
    *,
    max_len: int,
    kv_dtype: torch.dtype | None = None,
    chunk: int = 32,
    engine: str = "graph",
) -> CudaExecutor:
    config = ModelConfig.from_folder(folder)
    weights = load_weights(folder, config, read_headers(folder, config), device=CPU)
    return CudaExecutor(
        weights, config, max_len=max_len, kv_dtype=kv_dtype, prefill_chunk=chunk, engine=engine
    )
