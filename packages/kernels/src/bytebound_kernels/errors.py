"""One error per thing that a caller can act on, all of them under KernelError.

Every message names the op and the argument, what was got, what was expected and what to do.
"""

__all__ = [
    "CudaError",
    "CudaUnavailableError",
    "InvalidArgumentError",
    "KernelError",
    "UnsupportedDeviceError",
    "UnsupportedDtypeError",
    "UnsupportedLayoutError",
    "UnsupportedShapeError",
    "UnsupportedTensorError",
]


class KernelError(Exception):
    """Base of every error that this package raises."""


class CudaUnavailableError(KernelError, RuntimeError):
    """No op can run here: see cuda_status() for the reason, which the message repeats."""


class CudaError(KernelError, RuntimeError):
    """The CUDA runtime refused a call.

    Attributes:
        name: the symbolic name, such as "cudaErrorIllegalAddress".
        code: the number of that cudaError_t; negative for a refusal by the launcher itself.
    """

    def __init__(self, message: str, *, name: str = "", code: int = 0) -> None:
        super().__init__(message)
        self.name = name
        self.code = code


class InvalidArgumentError(KernelError, ValueError):
    """A number or a stream has a value that the op cannot use."""


class UnsupportedTensorError(KernelError, TypeError):
    """An argument is no tensor (no pointer, no array interface), or not the record expected."""


class UnsupportedDtypeError(KernelError, TypeError):
    """An element type, or a combination of element types, has no kernel."""


class UnsupportedShapeError(KernelError, ValueError):
    """A shape does not fit the op or the other arguments."""


class UnsupportedLayoutError(KernelError, ValueError):
    """Strides or alignment that the op cannot use, or tensors that overlap. A copy helps."""


class UnsupportedDeviceError(KernelError, ValueError):
    """Host memory, tensors on different devices, or a GPU that the op is not made for."""
