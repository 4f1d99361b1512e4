"""CUDA kernels for batch-1 language model inference behind a torch-free binding.

Imports on any machine; an op raises CudaUnavailableError where CUDA cannot be used, and
cuda_status() says why. Ops take any tensor that shows a pointer, a shape, strides and a dtype.
"""

from bytebound_kernels._device import (
    DeviceInfo,
    cuda_problem,
    cuda_status,
    devices,
    require_cuda,
)
from bytebound_kernels._matvec import matvec_workspace_bytes
from bytebound_kernels._native import (
    ABI_VERSION,
    built_with_cuda,
    compiled_archs,
    cuda_toolkit_version,
)
from bytebound_kernels._native import version as __version__
from bytebound_kernels.errors import (
    CudaError,
    CudaUnavailableError,
    InvalidArgumentError,
    KernelError,
    UnsupportedDeviceError,
    UnsupportedDtypeError,
    UnsupportedLayoutError,
    UnsupportedShapeError,
    UnsupportedTensorError,
)
from bytebound_kernels.l2 import l2_persist, l2_persist_reset
from bytebound_kernels.ops.argmax import argmax, argmax_workspace_bytes
from bytebound_kernels.ops.attention_decode import (
    attention_decode,
    attention_decode_workspace_bytes,
)
from bytebound_kernels.ops.dense_matvec import dense_matvec
from bytebound_kernels.ops.embedding_gather import embedding_gather
from bytebound_kernels.ops.gdn_keep import gdn_keep
from bytebound_kernels.ops.gdn_step import (
    GdnPending,
    GdnRows,
    GdnState,
    GdnWeights,
    gdn_step,
    gdn_updates_width,
)
from bytebound_kernels.ops.history_append import history_append
from bytebound_kernels.ops.logit_adjust import logit_adjust
from bytebound_kernels.ops.logprobs import logprobs, logprobs_workspace_bytes
from bytebound_kernels.ops.rms_norm import rms_norm
from bytebound_kernels.ops.rms_norm_project import rms_norm_project
from bytebound_kernels.ops.sample import Purpose, sample, sample_workspace_bytes
from bytebound_kernels.ops.speculative_accept import (
    CYCLE_HEADER,
    CYCLE_NEXT_TOKEN,
    CYCLE_NUM_ACCEPTED,
    CYCLE_NUM_EMITTED,
    CYCLE_POSITION,
    CYCLE_TOTAL_EMITTED,
    MAX_CYCLE_ROWS,
    speculative_accept,
)
from bytebound_kernels.ops.speculative_sample import (
    speculative_sample,
    speculative_sample_workspace_bytes,
)
from bytebound_kernels.ops.w4_matmul import w4_matmul, w4_matmul_workspace_bytes
from bytebound_kernels.ops.w4_matvec import PackedW4, w4_matvec, w4_pack, w4_packed_bytes
from bytebound_kernels.ops.w4_unpack import w4_unpack
from bytebound_kernels.ops.weight_stream import (
    STREAM_MAX_OPS,
    StreamAttention,
    StreamEmbedding,
    StreamGatedDelta,
    StreamGates,
    StreamNorm,
    StreamOp,
    StreamProduct,
    StreamProgram,
    StreamReplay,
    weight_stream,
    weight_stream_slots,
    weight_stream_table_bytes,
    weight_stream_workspace_bytes,
)

__all__ = [
    "ABI_VERSION",
    "CYCLE_HEADER",
    "CYCLE_NEXT_TOKEN",
    "CYCLE_NUM_ACCEPTED",
    "CYCLE_NUM_EMITTED",
    "CYCLE_POSITION",
    "CYCLE_TOTAL_EMITTED",
    "MAX_CYCLE_ROWS",
    "STREAM_MAX_OPS",
    "CudaError",
    "CudaUnavailableError",
    "DeviceInfo",
    "GdnPending",
    "GdnRows",
    "GdnState",
    "GdnWeights",
    "InvalidArgumentError",
    "KernelError",
    "PackedW4",
    "Purpose",
    "StreamAttention",
    "StreamEmbedding",
    "StreamGatedDelta",
    "StreamGates",
    "StreamNorm",
    "StreamOp",
    "StreamProduct",
    "StreamProgram",
    "StreamReplay",
    "UnsupportedDeviceError",
    "UnsupportedDtypeError",
    "UnsupportedLayoutError",
    "UnsupportedShapeError",
    "UnsupportedTensorError",
    "__version__",
    "argmax",
    "argmax_workspace_bytes",
    "attention_decode",
    "attention_decode_workspace_bytes",
    "built_with_cuda",
    "compiled_archs",
    "cuda_problem",
    "cuda_status",
    "cuda_toolkit_version",
    "dense_matvec",
    "devices",
    "embedding_gather",
    "gdn_keep",
    "gdn_step",
    "gdn_updates_width",
    "history_append",
    "l2_persist",
    "l2_persist_reset",
    "logit_adjust",
    "logprobs",
    "logprobs_workspace_bytes",
    "matvec_workspace_bytes",
    "require_cuda",
    "rms_norm",
    "rms_norm_project",
    "sample",
    "sample_workspace_bytes",
    "speculative_accept",
    "speculative_sample",
    "speculative_sample_workspace_bytes",
    "w4_matmul",
    "w4_matmul_workspace_bytes",
    "w4_matvec",
    "w4_pack",
    "w4_packed_bytes",
    "w4_unpack",
    "weight_stream",
    "weight_stream_slots",
    "weight_stream_table_bytes",
    "weight_stream_workspace_bytes",
]
