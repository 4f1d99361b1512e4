"""Device memory and timing for the benchmark, from PyTorch or else CuPy.

The package itself allocates nothing, so the benchmark borrows a framework's allocator, events and
graphs. It shows its buffers to the ops as bare device arrays, of any dtype.
"""

import ctypes
import importlib
import random
import struct
from array import array
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Protocol

from bytebound_kernels.errors import KernelError

__all__ = [
    "Backend",
    "BenchError",
    "DeviceArray",
    "device_array",
    "find_backend",
    "random_activations",
]

# A value whose bytes, repeated, make an ordinary number of every dtype: 1.06, 0.0115, 0.0115.
_FILL_BYTE = 0x3C
_ITEMSIZES = {"float16": 2, "bfloat16": 2, "float32": 4, "int32": 4}


class BenchError(KernelError, RuntimeError):
    """The benchmark cannot run here."""


@dataclass(frozen=True, slots=True)
class _Device:
    type: str
    index: int


@dataclass(frozen=True, slots=True)
class DeviceArray:
    """An array in memory that somebody else owns; enough of a tensor for an op.

    It is contiguous, but that rows [R, N] may lie ``row_stride`` elements apart.
    """

    pointer: int
    shape: tuple[int, ...]
    dtype: str
    device: _Device
    row_stride: int | None = None

    def data_ptr(self) -> int:
        """Return the address of the first element."""
        return self.pointer

    def stride(self) -> tuple[int, ...]:
        """Return the strides in elements."""
        if self.row_stride is not None:
            return (self.row_stride, 1)
        strides, step = [], 1
        for size in reversed(self.shape):
            strides.append(step)
            step *= size
        return tuple(reversed(strides))

    def at(self, offset_bytes: int, shape: tuple[int, ...]) -> "DeviceArray":
        """Return an array of another shape within the same memory."""
        return replace(self, pointer=self.pointer + offset_bytes, shape=shape, row_stride=None)

    def columns(self, first: int, count: int, *, row_stride: int | None = None) -> "DeviceArray":
        """Return columns of rows [R, N], which lie row_stride elements apart; None: as they do."""
        itemsize = _ITEMSIZES[self.dtype]
        return replace(
            self,
            pointer=self.pointer + first * itemsize,
            shape=(self.shape[0], count),
            row_stride=self.stride()[0] if row_stride is None else row_stride,
        )


class Backend(Protocol):
    """What the benchmark needs from a framework."""

    name: str
    device: int

    def free_bytes(self) -> int:
        """Return the free device memory."""
        ...

    def allocate(self, num_bytes: int) -> int:
        """Allocate and fill device memory that lives as long as the backend; return its address."""
        ...

    def upload(self, content: bytes) -> int:
        """Allocate device memory with this content; return its address."""
        ...

    def set_bits(self, pointer: int, num_bytes: int, stream: int) -> None:
        """Enqueue the setting of every bit at the start of memory that allocate returned."""
        ...

    def time_graph(self, enqueue: Callable[[int], None], samples: int) -> list[float]:
        """Capture what enqueue(stream) launches; replay it; return the seconds of each replay."""
        ...


class TorchBackend:
    """PyTorch's allocator, events and graphs."""

    def __init__(self, torch: Any) -> None:
        self.name = f"torch {torch.__version__}"
        self.device = int(torch.cuda.current_device())
        self._torch = torch
        self._owned: dict[int, Any] = {}

    def free_bytes(self) -> int:
        """Return the free device memory."""
        return int(self._torch.cuda.mem_get_info()[0])

    def allocate(self, num_bytes: int) -> int:
        """Allocate filled memory and return its address."""
        memory = self._torch.empty(num_bytes, dtype=self._torch.uint8, device="cuda")
        return self._own(memory.fill_(_FILL_BYTE))

    def upload(self, content: bytes) -> int:
        """Allocate memory with this content and return its address."""
        host = self._torch.frombuffer(bytearray(content), dtype=self._torch.uint8)
        return self._own(host.cuda())

    def _own(self, memory: Any) -> int:
        pointer = int(memory.data_ptr())
        self._owned[pointer] = memory
        return pointer

    def set_bits(self, pointer: int, num_bytes: int, stream: int) -> None:
        """Set every bit at the start of allocated memory."""
        cuda = self._torch.cuda
        with cuda.stream(cuda.ExternalStream(stream)):
            self._owned[pointer][:num_bytes].fill_(255)

    def time_graph(self, enqueue: Callable[[int], None], samples: int) -> list[float]:
        """Capture, replay and time."""
        cuda = self._torch.cuda
        stream = cuda.Stream()
        stream.wait_stream(cuda.current_stream())
        enqueue(stream.cuda_stream)  # loads the kernels, which must not happen under capture
        stream.synchronize()
        graph = cuda.CUDAGraph()
        with cuda.graph(graph, stream=stream):
            enqueue(stream.cuda_stream)
        begin, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        seconds = []
        with cuda.stream(stream):
            graph.replay()
            for _ in range(samples):
                begin.record(stream)
                graph.replay()
                end.record(stream)
                end.synchronize()
                seconds.append(float(begin.elapsed_time(end)) * 1e-3)
        return seconds


class CupyBackend:
    """CuPy's allocator, events and graphs."""

    def __init__(self, cupy: Any) -> None:
        self.name = f"cupy {cupy.__version__}"
        self.device = int(cupy.cuda.runtime.getDevice())
        self._cupy = cupy
        self._owned: list[Any] = []

    def free_bytes(self) -> int:
        """Return the free device memory."""
        return int(self._cupy.cuda.runtime.memGetInfo()[0])

    def allocate(self, num_bytes: int) -> int:
        """Allocate filled memory and return its address."""
        memory = self._cupy.cuda.alloc(num_bytes)
        memory.memset(_FILL_BYTE, num_bytes)
        self._owned.append(memory)
        return int(memory.ptr)

    def upload(self, content: bytes) -> int:
        """Allocate memory with this content and return its address."""
        memory = self._cupy.cuda.alloc(len(content))
        host = ctypes.create_string_buffer(content, len(content))
        memory.copy_from_host(ctypes.cast(host, ctypes.c_void_p), len(content))
        self._owned.append(memory)
        return int(memory.ptr)

    def set_bits(self, pointer: int, num_bytes: int, stream: int) -> None:
        """Set every bit at the start of allocated memory."""
        self._cupy.cuda.runtime.memsetAsync(pointer, 255, num_bytes, stream)

    def time_graph(self, enqueue: Callable[[int], None], samples: int) -> list[float]:
        """Capture, replay and time."""
        cuda = self._cupy.cuda
        cuda.get_current_stream().synchronize()
        stream = cuda.Stream(non_blocking=True)
        enqueue(stream.ptr)  # loads the kernels, which must not happen under capture
        stream.synchronize()
        with stream:
            stream.begin_capture()
            enqueue(stream.ptr)
            graph = stream.end_capture()
            begin, end = cuda.Event(), cuda.Event()
            graph.launch(stream)
            seconds = []
            for _ in range(samples):
                begin.record(stream)
                graph.launch(stream)
                end.record(stream)
                end.synchronize()
                seconds.append(float(cuda.get_elapsed_time(begin, end)) * 1e-3)
        return seconds


def find_backend() -> Backend:
    """Return PyTorch's memory if it is installed, else CuPy's.

    Raises:
        BenchError: neither is installed with CUDA support.
    """
    rejected = []
    for name, backend in (("torch", TorchBackend), ("cupy", CupyBackend)):
        try:
            module = importlib.import_module(name)
        except ImportError as error:
            rejected.append(f"{name}: {error}")
            continue
        if name == "torch" and not module.cuda.is_available():
            rejected.append("torch: torch.cuda.is_available() is false")
            continue
        return backend(module)
    raise BenchError(
        f"the benchmark needs device memory from PyTorch or CuPy; got {'; '.join(rejected)}. "
        f"Install one of them with CUDA support."
    )


def device_array(backend: Backend, pointer: int, shape: tuple[int, ...], dtype: str) -> DeviceArray:
    """Show memory of a backend as an array."""
    return DeviceArray(pointer, shape, dtype, _Device("cuda", backend.device))


def random_activations(backend: Backend, shape: tuple[int, ...], dtype: str) -> DeviceArray:
    """Upload normal numbers of standard deviation 0.01, from a fixed seed, in float16 or bfloat16.

    Random bits, because a constant switches fewer of a multiplier's and draws less power; small,
    because the products with the benchmark's large weights must stay within float16.
    """
    draw = random.Random(0)
    values = [draw.gauss(0.0, 0.01) for _ in range(prod(shape))]
    if dtype == "float16":
        content = struct.pack(f"={len(values)}e", *values)
    else:  # the upper half of float32
        words = array("I", array("f", values).tobytes())
        content = array("H", (word >> 16 for word in words)).tobytes()
    return device_array(backend, backend.upload(content), shape, dtype)
