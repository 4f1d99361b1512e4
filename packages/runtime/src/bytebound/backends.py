"""Which backend runs a model: the one that was asked for, or the fastest that can."""

from dataclasses import dataclass
from typing import Literal

import torch

from bytebound.config import ModelConfig
from bytebound.cuda.shapes import check_shape, shape_problem
from bytebound.errors import InvalidSettingError
from bytebound.settings import (
    CUDA_DTYPES,
    ENGINES,
    check_choice,
    check_cuda,
    check_device,
    cuda_problem,
)


@dataclass(frozen=True, slots=True)
class Backend:
    """A backend, and why it is not the CUDA one."""

    name: Literal["reference", "cuda"]
    why_not_cuda: str | None = None


def choose_backend(
    asked: str,
    config: ModelConfig,
    device: str | torch.device | None,
    dtype: str | torch.dtype | None,
) -> Backend:
    """Return the backend for ``asked``, "auto" among them; ``device`` and ``dtype`` as given.

    "auto" is "cuda" where the kernels can be imported, a GPU can run them and the model's shape has
    kernels, unless ``device`` or ``dtype`` ask for what only the reference does.

    Raises:
        CudaUnavailableError, UnsupportedShapeError, InvalidSettingError: "cuda" was asked for and
            cannot run this.
    """
    if asked == "cuda":
        check_cuda(device, dtype)
        check_shape(config)
        return Backend("cuda")
    if asked == "reference":
        return Backend("reference", "backend='reference' was asked for")
    reason = _settings_reason(device, dtype) or cuda_problem() or shape_problem(config)
    if reason is None and device is not None:
        where = check_device(device)
        if where.index not in (None, torch.cuda.current_device()):
            reason = f"device={device!r} is not PyTorch's current device"
    return Backend("cuda") if reason is None else Backend("reference", reason)


def check_engine(engine: str, chosen: Backend) -> None:
    """Refuse an engine that ``chosen`` does not have; whether it takes the model is seen later."""
    check_choice("engine", engine, ENGINES)
    if engine == "stream" and chosen.name != "cuda":
        raise InvalidSettingError(
            f"engine='stream': only backend='cuda' has it, and {chosen.name!r} runs "
            f"({chosen.why_not_cuda}); use engine='graph'"
        )


def _settings_reason(
    device: str | torch.device | None, dtype: str | torch.dtype | None
) -> str | None:
    if device is not None and check_device(device).type != "cuda":
        return f"device={str(device)!r} was asked for"
    if dtype is not None and str(dtype).removeprefix("torch.") not in CUDA_DTYPES:
        return f"dtype={str(dtype).removeprefix('torch.')!r} was asked for"
    return None
