"""Settings of an engine, each checked by itself before anything is read."""

import difflib
import os
import re

import torch

from bytebound.config import ModelConfig
from bytebound.drafts import Draft
from bytebound.errors import CudaUnavailableError, InvalidSettingError
from bytebound.reference.rows import MAX_VERIFY_ROWS

BACKENDS = ("auto", "reference", "cuda")
ENGINES = ("graph", "stream")  # of the CUDA backend: how a pass of a few rows runs
DRAFTS = ("none", "mtp", "ngram")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
DEFAULT_MAX_LEN = 8192
MAX_DRAFT_TOKENS = MAX_VERIFY_ROWS - 1
MAX_CUDA_DRAFT_TOKENS = 7  # a pass of the kernels takes eight rows
# Of the CUDA backend.
CUDA_DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
KV_DTYPES = {**CUDA_DTYPES, "fp8": torch.float8_e4m3fn}
# A 27B model keeps 64 KiB a position in 16 bits: 4 GiB here, 16 GiB at its longest context.
FP8_KV_ABOVE = 65_536
PACKED_CACHE_VARIABLE = "BYTEBOUND_PACKED_CACHE"
# Not by torch.device, which counts modulo 256 and takes any number for the one CPU.
_DEVICE = re.compile(r"cpu(:0)?|(?P<gpu>cuda)(:(?P<index>0|[1-9][0-9]{0,8}))?")


def check_integer(name: str, value: int, low: int, high: int) -> int:
    """A whole number within bounds, or InvalidSettingError."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidSettingError(f"{name}={value!r}: expected a whole number from {low} to {high}")
    return value


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """One of a few names, or InvalidSettingError that suggests the nearest."""
    if value in choices:
        return
    close = difflib.get_close_matches(str(value), choices, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    raise InvalidSettingError(f"{name}={value!r}: expected one of {', '.join(choices)}{hint}")


def check_max_len(max_len: int | None, config: ModelConfig) -> int:
    """The context to allocate: None is the default, cut to the model's limit."""
    limit = config.max_position_embeddings
    if max_len is None:
        return min(DEFAULT_MAX_LEN, limit)
    return check_integer("max_len", max_len, 1, limit)


def check_device(device: str | torch.device | None) -> torch.device:
    """A device that exists here, a GPU with its number; None takes the GPU if there is one.

    Raises:
        InvalidSettingError: no name of a device that this package runs on.
        CudaUnavailableError: a GPU that PyTorch does not see.
    """
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    name = str(device) if isinstance(device, (str, torch.device)) else ""
    found = _DEVICE.fullmatch(name)
    if found is None:
        raise InvalidSettingError(f"device={device!r}: expected 'cpu', 'cuda' or 'cuda:N'")
    if not found["gpu"]:
        return torch.device("cpu")
    count = torch.cuda.device_count()
    if int(found["index"] or 0) >= count:
        others = f", or 'cuda:N' with N below {count}" if count else ""
        raise CudaUnavailableError(
            f"device={device!r}: PyTorch sees {count} CUDA devices here; use 'cpu'{others}"
        )
    index = torch.cuda.current_device() if found["index"] is None else int(found["index"])
    return torch.device("cuda", index)


def check_dtype(
    dtype: str | torch.dtype | None, config: ModelConfig, device: torch.device
) -> torch.dtype:
    """The dtype to compute in; None means float32 on a CPU and the checkpoint's own on a GPU."""
    if dtype is None:
        own = "float32" if device.type == "cpu" else config.dtype
        return DTYPES.get(own or "bfloat16", torch.bfloat16)
    name = str(dtype).removeprefix("torch.")
    check_choice("dtype", name, tuple(DTYPES))
    return DTYPES[name]


def check_kv_dtype(kv_dtype: str, dtype: torch.dtype) -> None:
    """Refuse a KV dtype other than the reference backend's own."""
    if kv_dtype not in ("auto", str(dtype).removeprefix("torch.")):
        raise InvalidSettingError(
            f"kv_dtype={kv_dtype!r}: the reference backend keeps KV in its own dtype; use 'auto'"
        )


def activations_dtype(
    dtype: str | torch.dtype | None, kv_dtype: str, *, packed: bool
) -> torch.dtype:
    """What the CUDA backend computes in between its matrices; the residual is float32 always.

    By default what ``kv_dtype`` names, if it names 16 bits; else float16 where matrices are in 4
    bits, which the kernels decode fastest so, and bfloat16 where they are not.
    """
    name = str(dtype).removeprefix("torch.") if dtype is not None else kv_dtype
    return CUDA_DTYPES.get(name, torch.float16 if packed else torch.bfloat16)


def check_cuda_kv_dtype(
    kv_dtype: str, max_len: int, dtype: torch.dtype = torch.bfloat16
) -> torch.dtype:
    """What the CUDA backend keeps KV in; "auto" is fp8 above ``FP8_KV_ABOVE`` positions.

    Below it is ``dtype``, that of the activations, the only one of 16 bits that it can be.
    """
    if kv_dtype == "auto":
        return KV_DTYPES["fp8"] if max_len > FP8_KV_ABOVE else dtype
    if kv_dtype not in KV_DTYPES:
        raise InvalidSettingError(
            f"kv_dtype={kv_dtype!r}: expected one of auto, {', '.join(KV_DTYPES)} with "
            "backend='cuda'"
        )
    kind = KV_DTYPES[kv_dtype]
    if kind.itemsize > 1 and kind != dtype:
        raise InvalidSettingError(
            f"kv_dtype={kv_dtype!r} with dtype={str(dtype).removeprefix('torch.')!r}: KV in 16 "
            "bits has the dtype of the activations; use 'auto' or 'fp8'"
        )
    return kind


def use_packed_cache() -> bool:
    """Whether 4-bit folders are kept in the kernels' form: unless the environment says "0".

    Raises:
        InvalidSettingError: ``BYTEBOUND_PACKED_CACHE`` is neither "0" nor "1".
    """
    value = os.environ.get(PACKED_CACHE_VARIABLE, "1")
    if value not in ("0", "1"):
        raise InvalidSettingError(f"{PACKED_CACHE_VARIABLE}={value!r}: expected '0' or '1'")
    return value == "1"


def cuda_problem() -> str | None:
    """Say why no kernel can run here; None where one can. Asks the driver at the first call."""
    try:
        import bytebound_kernels
        import bytebound_kernels.prefill
    except ImportError as error:
        return str(error)
    problem = bytebound_kernels.cuda_problem()
    if problem is None and not torch.cuda.is_available():
        problem = "this PyTorch is built without CUDA"
    return None if problem is None else problem.rstrip(".")


def check_cuda(device: str | torch.device | None, dtype: str | torch.dtype | None) -> None:
    """Refuse the CUDA backend where it cannot run, and settings that are not its own."""
    if dtype is not None and str(dtype).removeprefix("torch.") not in CUDA_DTYPES:
        raise InvalidSettingError(
            f"dtype={dtype!r}: backend='cuda' computes in {' or '.join(CUDA_DTYPES)}; use None, "
            "or backend='reference'"
        )
    problem = cuda_problem()
    if problem is not None:
        raise CudaUnavailableError(
            f"backend='cuda': {problem}; use backend='reference', which runs everywhere"
        )
    where = check_device(device)
    if where != torch.device("cuda", torch.cuda.current_device()):
        raise InvalidSettingError(
            f"device={device!r}: backend='cuda' runs on PyTorch's current device, cuda:"
            f"{torch.cuda.current_device()}; use None, and CUDA_VISIBLE_DEVICES to choose"
        )


def check_draft(draft: str | Draft) -> None:
    """A known name, or an object with the parts of a Draft."""
    if isinstance(draft, str):
        check_choice("draft", draft, DRAFTS)
        return
    missing = [part for part in ("name", "begin", "observe", "propose") if not hasattr(draft, part)]
    if missing:
        raise InvalidSettingError(
            f"draft={draft!r}: expected one of {', '.join(DRAFTS)}, "
            f"or an object that has {', '.join(missing)} as well"
        )
