"""Which names of devices are taken, and that any other is refused in one line before all else."""

from typing import Any

import pytest
import torch
from bytebound import CudaUnavailableError, InvalidSettingError
from bytebound.loading import load_engine_parts
from bytebound.settings import check_device

from .cli_runs import Folders, Run, folders, run

__all__ = ["folders", "run"]  # fixtures


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        ("cpu", "cpu"), ("cpu:0", "cpu"), (torch.device("cpu"), "cpu"), ("cuda:0", "cuda:0"),
        ("cuda", "cuda:1"), (torch.device("cuda"), "cuda:1"), (torch.device("cuda", 0), "cuda:0"),
        (None, "cuda:1"),
    ],
    ids=repr,
)  # fmt: skip
def test_what_is_taken(two_gpus: None, device: Any, expected: str) -> None:
    assert check_device(device) == torch.device(expected)


def test_without_a_gpu_the_default_is_the_cpu(no_gpu: None) -> None:
    assert check_device(None) == torch.device("cpu")
    for device in ("cuda", "cuda:0"):
        with pytest.raises(CudaUnavailableError, match=r"sees 0 CUDA devices here; use 'cpu'$"):
            check_device(device)


# torch.device takes the first six, and makes cuda:0 of cuda:256.
NO_DEVICE = (
    "cpu:5", "cpu:256", "mps", "meta", b"cpu", 0, torch.device("cpu", 5), "", "gpu", "CPU", " cpu",
    "cpu\n", "cuda:", "cuda:-1", "cuda:01", "cuda:0x1", "cuda:1e0", "cuda:" + "9" * 5000, True, [0],
)  # fmt: skip


@pytest.mark.parametrize("device", NO_DEVICE, ids=lambda device: repr(device)[:30])
def test_what_is_no_device(two_gpus: None, device: Any) -> None:
    with pytest.raises(InvalidSettingError, match=r"^device=.*: expected 'cpu', 'cuda' or 'cuda:N"):
        check_device(device)


@pytest.mark.parametrize("number", [2, 99, 128, 256, 65_536, 999_999_999])
def test_a_gpu_that_is_not_here(two_gpus: None, number: int) -> None:
    expected = f"^device='cuda:{number}': PyTorch sees 2 CUDA devices here; .* with N below 2$"
    with pytest.raises(CudaUnavailableError, match=expected):
        check_device(f"cuda:{number}")


@pytest.mark.parametrize("backend", ["auto", "reference", "cuda"])
def test_an_engine_says_so_before_it_looks_for_the_model(backend: str) -> None:
    settings: dict[str, Any] = {
        "dtype": None, "max_len": None, "kv_dtype": "auto", "draft": "none", "draft_vocab": None,
        "num_draft_tokens": 4, "backend": backend,
    }  # fmt: skip
    with pytest.raises(InvalidSettingError, match="device='cpu:5': expected"):
        load_engine_parts("no such model", device="cpu:5", **settings)


@pytest.mark.parametrize("device", ["cpu:5", "cuda:256", "mps", "gpu\n0"])
def test_every_command_refuses_it(run: Run, folders: Folders, no_gpu: None, device: str) -> None:
    for command in (("generate", "--ids", "1"), ("chat",), ("info",), ("diff", "--ids", "1")):
        outcome = run(*command, "-m", folders.text, "--device", device)
        assert (outcome.code, outcome.out) == (2, ""), command
        (line,) = outcome.err.splitlines()
        assert line.startswith("bytebound: error: device="), line
        assert "use 'cpu'" in line or "expected 'cpu', 'cuda' or 'cuda:N'" in line
