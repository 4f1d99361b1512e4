"""The compiled module: pointers and streams are integers, nothing is checked here."""

from typing import TypedDict

version: str
ABI_VERSION: int
built_with_cuda: bool
cuda_toolkit_version: str | None
compiled_archs: tuple[str, ...]
no_cuda_reason: str

class DeviceRecord(TypedDict):
    index: int
    name: str
    capability: tuple[int, int]
    num_sms: int
    l2_bytes: int
    memory_bytes: int

class ProbeRecord(TypedDict):
    error: str  # "ok" or the name of a cudaError_t
    error_text: str
    driver_version: int  # 13000 for CUDA 13.0; 0: no driver
    devices: list[DeviceRecord]

def probe() -> ProbeRecord: ...
def pointer_device(pointer: int) -> int: ...

# The functions below exist only where built_with_cuda is true.

def rms_norm(
    x: int,
    weight: int,
    out: int,
    *,
    rows: int,
    d: int,
    x_row_stride: int,
    out_row_stride: int,
    x_dtype: int,
    weight_dtype: int,
    eps: float,
    device: int,
    stream: int,
) -> None: ...
def read_bandwidth(memory: int, sink: int, *, num_bytes: int, device: int, stream: int) -> None: ...
