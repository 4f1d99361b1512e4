"""cuda_status() names the one thing that is wrong, and what to do about it."""

import bytebound_kernels
import pytest
from bytebound_kernels import CudaUnavailableError, _device, cuda_problem, cuda_status, require_cuda

ARCHS = ("sm_80", "sm_90", "sm_120", "compute_120")


def device(index: int, name: str, capability: tuple[int, int]) -> dict[str, object]:
    return {
        "index": index,
        "name": name,
        "capability": capability,
        "num_sms": 100,
        "l2_bytes": 1 << 25,
        "memory_bytes": 1 << 34,
    }


def probe(error: str = "ok", driver: int = 13000, *devices: dict[str, object]) -> dict[str, object]:
    return {
        "error": error,
        "error_text": f"text of {error}",
        "driver_version": driver,
        "devices": list(devices),
    }


@pytest.mark.parametrize(
    ("compiled", "capability", "expected"),
    [
        pytest.param("sm_90", (9, 0), True, id="same"),
        pytest.param("sm_80", (8, 9), True, id="later-minor"),
        pytest.param("sm_89", (8, 6), False, id="earlier-minor"),
        pytest.param("sm_90", (10, 0), False, id="other-major"),
        pytest.param("sm_90a", (9, 0), True, id="specific"),
        pytest.param("sm_100a", (10, 3), False, id="specific-has-no-later-minor"),
        pytest.param("sm_100f", (10, 3), True, id="family"),
        pytest.param("sm_100f", (12, 0), False, id="other-family"),
        pytest.param("compute_90", (12, 0), True, id="ptx-forward"),
        pytest.param("compute_120", (9, 0), False, id="ptx-not-backward"),
        pytest.param("compute_120f", (12, 1), True, id="ptx-family"),
        pytest.param("compute_90a", (10, 0), False, id="ptx-specific"),
    ],
)
def test_what_code_runs_where(compiled: str, capability: tuple[int, int], expected: bool) -> None:
    assert _device.covers([compiled], capability) is expected


@pytest.mark.parametrize(
    ("found", "visible", "words"),
    [
        pytest.param(
            probe("cudaErrorInsufficientDriver", 0),
            None,
            ["no CUDA driver is installed"],
            id="none",
        ),
        pytest.param(
            probe("cudaErrorInsufficientDriver", 12040),
            None,
            ["too old", "CUDA 12.4"],
            id="old-driver",
        ),
        pytest.param(
            probe("cudaErrorNoDevice"),
            "",
            ["no CUDA device is visible", "CUDA_VISIBLE_DEVICES is ''"],
            id="hidden",
        ),
        pytest.param(probe("ok"), None, ["no CUDA device is visible"], id="no-device"),
        pytest.param(
            probe("cudaErrorInitializationError"), None, ["forked", "spawn"], id="after-fork"
        ),
        pytest.param(
            probe("ok", 13000, device(0, "NVIDIA T4", (7, 5))),
            None,
            ["no code for this GPU's architecture", "NVIDIA T4 (sm_75)", "sm_80, sm_90", "75-real"],
            id="architecture",
        ),
        pytest.param(
            probe("cudaErrorSystemNotReady"), None, ["cannot be listed", "NotReady"], id="other"
        ),
    ],
)
def test_reason(
    found: dict[str, object],
    visible: str | None,
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    problem = _device._judge(found, ARCHS).problem
    assert [word for word in words if word not in problem] == []


def test_one_covered_device_is_enough_and_the_other_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = probe("ok", 13000, device(0, "NVIDIA H200", (9, 0)), device(1, "Tesla V100", (7, 0)))
    answer = _device._judge(found, ARCHS)
    monkeypatch.setattr(_device, "_availability", lambda: answer)
    assert cuda_problem() is None
    assert cuda_status().startswith("usable: NVIDIA H200 (sm_90); built with CUDA")
    require_cuda("op")
    require_cuda("op", 0)
    with pytest.raises(CudaUnavailableError, match=r"op: .*Tesla V100 \(sm_70\)"):
        require_cuda("op", 1)


def test_unusable_everywhere(no_cuda: str) -> None:
    assert cuda_status() == f"not usable: {no_cuda}"
    assert cuda_problem() == no_cuda
    assert bytebound_kernels.devices() == ()
    with pytest.raises(CudaUnavailableError, match=f"op: CUDA is not usable: {no_cuda}"):
        require_cuda("op")


@pytest.mark.skipif(bytebound_kernels.built_with_cuda, reason="this build has CUDA code")
def test_a_build_without_cuda_code_says_so() -> None:
    assert "has no CUDA code" in cuda_status()
    assert "BYTEBOUND_CUDA" in cuda_status()
