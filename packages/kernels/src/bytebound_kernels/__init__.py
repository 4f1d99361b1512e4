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
from bytebound_kernels.ops.rms_norm import rms_norm

__all__ = [
    "ABI_VERSION",
    "CudaError",
    "CudaUnavailableError",
    "DeviceInfo",
    "InvalidArgumentError",
    "KernelError",
    "UnsupportedDeviceError",
    "UnsupportedDtypeError",
    "UnsupportedLayoutError",
    "UnsupportedShapeError",
    "UnsupportedTensorError",
    "__version__",
    "built_with_cuda",
    "compiled_archs",
    "cuda_problem",
    "cuda_status",
    "cuda_toolkit_version",
    "devices",
    "require_cuda",
    "rms_norm",
]
