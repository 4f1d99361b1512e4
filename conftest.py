"""Shared by every test of the workspace: which need a GPU, and which package must be absent."""

import importlib.metadata
import importlib.util

import pytest


def cuda_problem() -> str | None:
    """Return why no CUDA test can run here, or None where one can.

    torch must see a device and the kernels must have code for it; the first that does not says why.
    """
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed"
    import torch

    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA"
    if not torch.cuda.is_available():
        try:
            torch.cuda.init()
        except (RuntimeError, AssertionError) as error:
            return f"torch finds no CUDA device: {str(error).partition('. ')[0]}"
        return "torch finds no CUDA device"
    if importlib.util.find_spec("bytebound_kernels") is None:
        return "bytebound-kernels is not installed"
    import bytebound_kernels

    return bytebound_kernels.cuda_problem()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what is marked `gpu` where no GPU can run it, with the reason."""
    gpu_items = [item for item in items if item.get_closest_marker("gpu")]
    problem = cuda_problem() if gpu_items else None
    if problem is not None:
        for item in gpu_items:
            item.add_marker(pytest.mark.skip(reason=f"needs a CUDA device: {problem}"))


def pytest_sessionstart(session: pytest.Session) -> None:
    """Refuse an environment in which transformers calls Triton kernels on the CPU and crashes."""
    for name in ("fla-core", "flash-linear-attention"):
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        if cuda_problem() is not None:
            raise pytest.UsageError(
                f"{name} {version} is installed and there is no GPU: transformers would run its"
                " Triton kernels on the CPU and crash; uninstall it"
            )
