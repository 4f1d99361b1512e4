"""What an op needs to know of a tensor, whoever made it.

Two ways in: data_ptr() with stride() (PyTorch), or an array interface (__cuda_array_interface__ as
CuPy and Numba show it; NumPy's __array_interface__ for arrays that turn out to be in host memory).
No framework is imported here. A pass describes some thousand tensors, so each must cost little.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

from bytebound_kernels import _native
from bytebound_kernels.errors import (
    UnsupportedDtypeError,
    UnsupportedLayoutError,
    UnsupportedTensorError,
)

__all__ = ["DTYPE_CODES", "FLOATS", "HOST", "TensorView", "new_like", "view"]

# The numbers of DType in csrc/dtype.h.
DTYPE_CODES = {
    "float16": 0,
    "bfloat16": 1,
    "float32": 2,
    "int32": 3,
    "int64": 4,
    "uint8": 5,
    "float8_e4m3fn": 6,
    "float64": 7,
}

# What most ops compute on.
FLOATS = ("float16", "bfloat16", "float32")

# As the device of a tensor in host memory.
HOST = -1

_ITEMSIZES = {
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "int32": 4,
    "int64": 8,
    "uint8": 1,
    "float8_e4m3fn": 1,
    "float64": 8,
}
_TYPESTR_NAMES = {
    "f2": "float16",
    "f4": "float32",
    "f8": "float64",
    "i4": "int32",
    "i8": "int64",
    "u1": "uint8",
}


@dataclass(slots=True)  # not frozen, which would double the cost of making one
class TensorView:
    """Where a tensor lies. Does not keep the memory alive, and is never changed."""

    name: str  # of the argument, for messages
    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in elements
    dtype: str  # "float16"
    itemsize: int  # in bytes
    device: int | None  # ordinal; HOST; None: ask the driver

    @property
    def span_bytes(self) -> int:
        """Bytes from the first element to the end of the last one, for strides of 0 and up."""
        last = 0
        for n, stride in zip(self.shape, self.strides, strict=True):
            if n == 0:
                return 0
            last += (n - 1) * stride
        return (last + 1) * self.itemsize

    def resolve_device(self) -> int:
        """Return the ordinal of the device, or HOST."""
        if self.device is None:
            return _native.pointer_device(self.pointer)
        return self.device


def _check_dtype(op: str, name: str, dtype: str, dtypes: tuple[str, ...]) -> None:
    if dtype not in dtypes:
        raise UnsupportedDtypeError(f"{op}: {name} has dtype {dtype}; expected {', '.join(dtypes)}")


def _view_torch(op: str, name: str, tensor: Any, dtypes: tuple[str, ...]) -> TensorView:
    dtype = _torch_name(tensor.dtype)
    _check_dtype(op, name, dtype, dtypes)
    where = tensor.device
    device = HOST
    if where.type == "cuda":
        device = 0 if where.index is None else int(where.index)
    shape, strides = tuple(tensor.shape), tuple(tensor.stride())
    pointer = int(tensor.data_ptr())
    return TensorView(name, pointer, shape, strides, dtype, _ITEMSIZES[dtype], device)


@cache
def _torch_name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _view_interface(
    op: str,
    name: str,
    tensor: Any,
    interface: Mapping[str, Any],
    on_host: bool,
    dtypes: tuple[str, ...],
) -> TensorView:
    # A dtype object says more than the interface, which has no spelling for bfloat16.
    order, typestr = str(interface["typestr"])[:1], str(interface["typestr"])[1:]
    if order == ">":
        raise UnsupportedDtypeError(
            f"{op}: {name} has the typestr {interface['typestr']}, big-endian; expected "
            f"little-endian elements"
        )
    dtype = str(getattr(tensor, "dtype", _TYPESTR_NAMES.get(typestr, typestr)))
    _check_dtype(op, name, dtype, dtypes)
    itemsize = _ITEMSIZES[dtype]
    shape = tuple(int(n) for n in interface["shape"])
    strides_bytes = interface.get("strides")
    if strides_bytes is None:
        strides = tuple(prod(shape[i + 1 :]) for i in range(len(shape)))
    else:
        if any(int(s) % itemsize for s in strides_bytes):
            raise UnsupportedLayoutError(
                f"{op}: {name} has strides of {tuple(strides_bytes)} bytes; expected multiples of "
                f"{itemsize}"
            )
        strides = tuple(int(s) // itemsize for s in strides_bytes)
    device: int | None = HOST
    if not on_host:
        # CuPy tells the device; otherwise the driver knows whose pointer it is.
        ordinal = getattr(getattr(tensor, "device", None), "id", None)
        device = None if ordinal is None else int(ordinal)
    return TensorView(name, int(interface["data"][0]), shape, strides, dtype, itemsize, device)


def view(op: str, name: str, tensor: Any, dtypes: tuple[str, ...] = FLOATS) -> TensorView:
    """Describe a tensor argument of an op whose element type is one of ``dtypes``.

    Raises:
        UnsupportedTensorError: it shows neither a pointer nor an array interface.
        UnsupportedDtypeError: its element type is another one.
        UnsupportedLayoutError: its elements do not lie at multiples of their size.
    """
    described = _describe(op, name, tensor, dtypes)
    if described.pointer % described.itemsize:
        raise UnsupportedLayoutError(
            f"{op}: {name} starts at {described.pointer:#x}; expected a multiple of "
            f"{described.itemsize}"
        )
    return described


def _describe(op: str, name: str, tensor: Any, dtypes: tuple[str, ...]) -> TensorView:
    if hasattr(tensor, "data_ptr") and hasattr(tensor, "stride"):
        return _view_torch(op, name, tensor, dtypes)
    for attribute, on_host in (("__cuda_array_interface__", False), ("__array_interface__", True)):
        interface = getattr(tensor, attribute, None)
        if interface is not None:
            return _view_interface(op, name, tensor, interface, on_host, dtypes)
    raise UnsupportedTensorError(
        f"{op}: {name} is a {type(tensor).__qualname__}; expected a tensor with data_ptr() and "
        f"stride(), or with __cuda_array_interface__"
    )


def new_like(op: str, tensor: Any) -> Any:
    """Let the tensor's own framework allocate a contiguous tensor like it, unfilled.

    Raises:
        UnsupportedTensorError: the framework is not one whose allocation is known here.
    """
    if hasattr(tensor, "new_empty"):  # PyTorch
        return tensor.new_empty(tensor.shape)
    if type(tensor).__module__.partition(".")[0] == "cupy":
        return type(tensor)(tensor.shape, dtype=tensor.dtype)
    raise UnsupportedTensorError(
        f"{op}: cannot allocate a {type(tensor).__qualname__} for the result; pass out="
    )
