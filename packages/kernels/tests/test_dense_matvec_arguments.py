"""What dense_matvec refuses, and what it hands to the kernel: no memory is touched."""

import re
from typing import Any

import pytest
from bytebound_kernels import (
    CudaUnavailableError,
    InvalidArgumentError,
    KernelError,
    UnsupportedDeviceError,
    UnsupportedDtypeError,
    UnsupportedLayoutError,
    UnsupportedShapeError,
    UnsupportedTensorError,
    _native,
    dense_matvec,
    matvec_workspace_bytes,
)

R, N, K = 3, 50, 128
FAR = 1 << 24  # an address that no other fake tensor reaches
BLOCKS = 2 * 132  # what the pretended card runs at once
WORKSPACE = BLOCKS * 64 * 8 * 4
SCALE = float.fromhex("0x1.99999ap-4")  # 0.1 as float32


def arguments(fake: Any, **changes: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call with up and without a residual, unless that is changed."""
    fields: dict[str, dict[str, Any]] = {
        "x": {"shape": (R, K)},
        "weight": {"shape": (N, K), "pointer": FAR},
        "out": {"shape": (R, N), "pointer": 2 * FAR},
        "workspace": {"shape": (WORKSPACE,), "dtype": "torch.uint8", "pointer": 3 * FAR},
        "up": {"shape": (N, K), "pointer": 4 * FAR},
    }
    if "residual" in changes:
        del fields["up"]
        fields["residual"] = {"shape": (R, N), "pointer": 5 * FAR}
    return {name: fake(**{**field, **changes.get(name, {})}) for name, field in fields.items()}


def call(tensors: dict[str, Any], **keywords: Any) -> Any:
    tensors = dict(tensors)
    return dense_matvec(tensors.pop("x"), tensors.pop("weight"), **tensors, **keywords)


REFUSED: list[tuple[str, dict[str, Any], type[KernelError], str]] = [
    ("x", {"dtype": "torch.float32"}, UnsupportedDtypeError, "x has dtype float32"),
    ("x", {"shape": (K,)}, UnsupportedShapeError, r"expected \[R, 128\]"),
    ("x", {"shape": (17, K)}, UnsupportedShapeError, "R from 1 to 16"),
    ("x", {"shape": (0, K)}, UnsupportedShapeError, "R from 1 to 16"),
    ("x", {"shape": (R, K + 64)}, UnsupportedShapeError, r"expected \[R, 128\]"),
    ("x", {"strides": (1, R)}, UnsupportedLayoutError, "last dimension contiguous"),
    ("x", {"strides": (K + 4, 1)}, UnsupportedLayoutError, "expected multiples of 16"),
    ("x", {"pointer": (1 << 20) + 8}, UnsupportedLayoutError, "x starts at 0x100008"),
    ("weight", {"dtype": "torch.float32"}, UnsupportedDtypeError, "weight has dtype float32"),
    (
        "weight",
        {"dtype": "torch.bfloat16"},
        UnsupportedDtypeError,
        "weight has dtype bfloat16; expected float16, the dtype of x",
    ),
    ("weight", {"shape": (K,)}, UnsupportedShapeError, r"expected \[N, K\]"),
    ("weight", {"shape": (0, K)}, UnsupportedShapeError, "N from 1"),
    ("weight", {"shape": (N, 96)}, UnsupportedShapeError, "expected K a multiple of 64"),
    ("weight", {"shape": (N, 0)}, UnsupportedShapeError, "expected K a multiple of 64"),
    ("weight", {"strides": (1, N)}, UnsupportedLayoutError, "last dimension contiguous"),
    ("weight", {"strides": (K + 4, 1)}, UnsupportedLayoutError, "at a distance of 264 bytes"),
    ("weight", {"pointer": FAR + 2}, UnsupportedLayoutError, "weight starts at 0x1000002"),
    ("up", {"dtype": "torch.bfloat16"}, UnsupportedDtypeError, "up has dtype bfloat16"),
    ("up", {"shape": (N + 1, K)}, UnsupportedShapeError, r"up has shape \(51, 128\)"),
    ("up", {"pointer": 4 * FAR + 8}, UnsupportedLayoutError, "up starts at"),
    ("out", {"dtype": "torch.bfloat16"}, UnsupportedDtypeError, "out has dtype bfloat16"),
    ("out", {"shape": (R, N + 1)}, UnsupportedShapeError, r"expected \(3, 50\)"),
    ("out", {"strides": (N - 1, 1)}, UnsupportedLayoutError, "so they overlap"),
    ("out", {"pointer": (1 << 20) + 64}, UnsupportedLayoutError, "out overlaps x"),
    ("out", {"pointer": FAR + 64}, UnsupportedLayoutError, "out overlaps weight"),
    ("out", {"pointer": 4 * FAR + 64}, UnsupportedLayoutError, "out overlaps up"),
    ("residual", {"dtype": "torch.float32"}, UnsupportedDtypeError, "the dtype of out"),
    ("residual", {"shape": (R, N + 1)}, UnsupportedShapeError, "residual has shape"),
    ("residual", {"pointer": 2 * FAR + 2}, UnsupportedLayoutError, "out overlaps residual"),
    (
        "residual",
        {"pointer": 2 * FAR, "strides": (N + 2, 1)},
        UnsupportedLayoutError,
        "out overlaps residual",
    ),
]


@pytest.mark.parametrize(("name", "change", "error", "message"), REFUSED)
def test_refused_on_any_machine(
    fake: Any,
    no_cuda: str,
    name: str,
    change: dict[str, Any],
    error: type[KernelError],
    message: str,
) -> None:
    with pytest.raises(error, match=f"dense_matvec: .*{message}"):
        call(arguments(fake, **{name: change}))


def test_what_is_no_tensor_is_refused(fake: Any) -> None:
    with pytest.raises(UnsupportedTensorError, match="weight is a list; expected a tensor"):
        call({**arguments(fake), "weight": [0.0]})


def test_up_and_residual_exclude_each_other(fake: Any) -> None:
    residual = fake((R, N), pointer=5 * FAR)
    with pytest.raises(InvalidArgumentError, match="residual is given together with up"):
        call(arguments(fake), residual=residual)


@pytest.mark.parametrize("scale", [0, -1.0, float("nan"), float("inf"), 1e-60, 1e60, True, "2"])
def test_a_scale_that_float32_does_not_hold_above_0_is_refused(
    fake: Any, no_cuda: str, scale: Any
) -> None:
    with pytest.raises(
        InvalidArgumentError, match=re.escape(f"dense_matvec: scale is {scale!r}; expected a ")
    ):
        call(arguments(fake), scale=scale)


def test_without_cuda_the_reason_is_given(fake: Any, no_cuda: str) -> None:
    with pytest.raises(CudaUnavailableError, match=f"dense_matvec: .*{no_cuda}"):
        call(arguments(fake))


@pytest.mark.usefixtures("pretend_cuda")
def test_devices(fake: Any) -> None:
    with pytest.raises(UnsupportedDeviceError, match="weight on the host"):
        call(arguments(fake, weight={"device": "cpu"}))
    with pytest.raises(UnsupportedDeviceError, match="up on cuda:1"):
        call(arguments(fake, up={"device": "cuda:1"}))
    with pytest.raises(UnsupportedDeviceError, match="residual on the host"):
        call(arguments(fake, residual={"device": "cpu"}))
    with pytest.raises(UnsupportedDeviceError, match="workspace on cuda:1"):
        call(arguments(fake, workspace={"device": "cuda:1"}))


@pytest.mark.usefixtures("pretend_cuda")
@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"dtype": "torch.int32"}, UnsupportedDtypeError, "workspace has dtype int32"),
        ({"shape": (WORKSPACE - 1,)}, UnsupportedShapeError, f"expected {WORKSPACE} or more"),
        ({"pointer": 3 * FAR + 8}, UnsupportedLayoutError, "a multiple of 16"),
        ({"pointer": 2 * FAR}, UnsupportedLayoutError, "workspace overlaps out"),
        ({"pointer": FAR}, UnsupportedLayoutError, "workspace overlaps weight"),
    ],
)
def test_workspace(
    fake: Any, change: dict[str, Any], error: type[KernelError], message: str
) -> None:
    with pytest.raises(error, match=f"dense_matvec: .*{message}"):
        call(arguments(fake, workspace=change))


@pytest.mark.usefixtures("pretend_cuda")
@pytest.mark.parametrize("num_blocks", [0, -1, BLOCKS + 1])
def test_blocks_that_do_not_run_at_once_are_refused(fake: Any, num_blocks: int) -> None:
    with pytest.raises(InvalidArgumentError, match=f"num_blocks is {num_blocks}; expected 1 to"):
        call(arguments(fake), num_blocks=num_blocks)


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch, pretend_cuda: None) -> list[tuple[Any, Any]]:
    """Record what would reach the kernel."""
    seen: list[tuple[Any, Any]] = []
    monkeypatch.setattr(
        _native,
        "dense_matvec",
        lambda *pointers, **sizes: seen.append((pointers, sizes)),
        raising=False,
    )
    return seen


def test_what_reaches_the_kernel(fake: Any, launches: list[tuple[Any, Any]]) -> None:
    tensors = arguments(
        fake,
        x={"strides": (K + 8, 1), "dtype": "torch.bfloat16"},
        weight={"strides": (2 * K, 1), "dtype": "torch.bfloat16"},
        up={"strides": (3 * K, 1), "dtype": "torch.bfloat16"},
        out={"dtype": "torch.float32", "strides": (64, 1)},
    )
    assert call(tensors, scale=0.1, stream=5) is tensors["out"]
    sizes = {
        "weight_row_stride": 2 * K,
        "up_row_stride": 3 * K,
        "x_row_stride": K + 8,
        "out_row_stride": 64,
        "residual_row_stride": 0,
        "rows": R,
        "n": N,
        "k": K,
        "num_blocks": BLOCKS,
        "x_dtype": 1,
        "float_out": True,
        "epilogue": 2,
        "scale": SCALE,
        "device": 0,
        "stream": 5,
    }
    pointers = (FAR, 4 * FAR, 1 << 20, 2 * FAR, 0, 3 * FAR)
    assert launches == [(pointers, sizes)]


def test_a_residual_in_place(fake: Any, launches: list[tuple[Any, Any]]) -> None:
    place = {"pointer": 2 * FAR, "strides": (N + 6, 1)}
    tensors = arguments(fake, out=place, residual=place)
    call(tensors, stream=5, num_blocks=7)
    ((pointers, sizes),) = launches
    assert pointers == (FAR, 0, 1 << 20, 2 * FAR, 2 * FAR, 3 * FAR)
    assert (sizes["out_row_stride"], sizes["residual_row_stride"]) == (N + 6, N + 6)
    assert (sizes["epilogue"], sizes["num_blocks"], sizes["x_dtype"]) == (1, 7, 0)
    assert not sizes["float_out"] and sizes["up_row_stride"] == 0 and sizes["scale"] == 1


def test_one_row_may_lie_at_any_distance(fake: Any, launches: list[tuple[Any, Any]]) -> None:
    one = {"shape": (1, K), "strides": (K + 1, 1)}
    place = {"shape": (1, N), "pointer": 2 * FAR}
    call(
        arguments(fake, x=one, out=place, residual={**place, "strides": (N + 9, 1)}),
        stream=5,
    )
    assert len(launches) == 1


@pytest.mark.usefixtures("pretend_cuda")
def test_the_workspace_is_as_large_as_the_kernel_says() -> None:
    assert matvec_workspace_bytes() == WORKSPACE
    if _native.built_with_cuda:
        assert _native.matvec_workspace_bytes(BLOCKS) == WORKSPACE
