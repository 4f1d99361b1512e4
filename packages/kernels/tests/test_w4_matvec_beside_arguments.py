"""What w4_matvec refuses of a product beside its own, and what it hands to the kernel; no GPU."""

from typing import Any

import pytest
from bytebound_kernels import (
    InvalidArgumentError,
    PackedW4,
    UnsupportedDeviceError,
    UnsupportedDtypeError,
    UnsupportedLayoutError,
    UnsupportedShapeError,
    w4_matvec,
    w4_packed_bytes,
)

N, M, K, R = 96, 6, 256, 3
SCRATCH = 2 * 132 * 64 * 8 * 4
# Where each argument lies; far apart.
DATA, X, OUT, WORKSPACE, RESIDUAL, BESIDE_WEIGHT, BESIDE_OUT = (i << 30 for i in range(2, 9))


def call(fake, k: int = K, **changes: Any) -> Any:
    data = fake((w4_packed_bytes(N, k),), "torch.uint8", pointer=DATA)
    arguments = {
        "out": fake((R, N), pointer=OUT),
        "workspace": fake((SCRATCH,), "torch.uint8", pointer=WORKSPACE),
        "beside_weight": fake((M, k), pointer=BESIDE_WEIGHT),
        "beside_out": fake((R, M), pointer=BESIDE_OUT),
        **changes,
    }
    return w4_matvec(fake((R, k), pointer=X), PackedW4(data, N, k), **arguments)


BAD = [
    ("beside_weight", {"shape": (0, K)}, UnsupportedShapeError, "N from 1 to 4096"),
    ("beside_weight", {"shape": (4097, K)}, UnsupportedShapeError, r"has shape \(4097, 256\)"),
    ("beside_weight", {"shape": (M, K - 1)}, UnsupportedShapeError, r"expected \[N, 256\]"),
    ("beside_weight", {"shape": (K,)}, UnsupportedShapeError, r"expected \[N, 256\]"),
    (
        "beside_weight",
        {"shape": (M, K), "dtype": "torch.bfloat16"},
        UnsupportedDtypeError,
        "beside_weight has dtype bfloat16; expected float16",
    ),
    ("beside_weight", {"shape": (M, K), "strides": (1, M)}, UnsupportedLayoutError, "stride 1"),
    (
        "beside_weight",
        {"shape": (M, K), "strides": (K + 4, 1)},
        UnsupportedLayoutError,
        "at a distance of 520 bytes; expected multiples of 16",
    ),
    (
        "beside_weight",
        {"shape": (M, K), "pointer": BESIDE_WEIGHT + 8},
        UnsupportedLayoutError,
        "beside_weight starts at",
    ),
    (
        "beside_weight",
        {"shape": (M, K), "device": "cuda:1"},
        UnsupportedDeviceError,
        "beside_weight on cuda:1",
    ),
    (
        "beside_weight",
        {"shape": (M, K), "pointer": OUT},
        UnsupportedLayoutError,
        "out overlaps beside_weight",
    ),
    (
        "beside_weight",
        {"shape": (M, K), "pointer": WORKSPACE},
        UnsupportedLayoutError,
        "workspace overlaps beside_weight",
    ),
    ("beside_out", {"shape": (R, M + 1)}, UnsupportedShapeError, r"expected \(3, 6\)"),
    ("beside_out", {"shape": (R + 1, M)}, UnsupportedShapeError, "beside_out has shape"),
    (
        "beside_out",
        {"shape": (R, M), "dtype": "torch.float32"},
        UnsupportedDtypeError,
        "beside_out has dtype float32; expected float16, the dtype of x",
    ),
    ("beside_out", {"shape": (R, M), "strides": (M - 1, 1)}, UnsupportedLayoutError, "so they"),
    (
        "beside_out",
        {"shape": (R, M), "device": "cpu"},
        UnsupportedDeviceError,
        "beside_out on the host",
    ),
    *(
        (
            "beside_out",
            {"shape": (R, M), "pointer": pointer},
            UnsupportedLayoutError,
            f"{message} in memory",
        )
        for pointer, message in (
            (DATA, "beside_out overlaps weight.data"),
            (X, "beside_out overlaps x"),
            (OUT, "beside_out overlaps out"),
            (RESIDUAL, "beside_out overlaps residual"),
            (BESIDE_WEIGHT, "beside_out overlaps beside_weight"),
            (WORKSPACE, "workspace overlaps beside_out"),
        )
    ),
]


@pytest.fixture
def launched(pretend_cuda, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What would be launched on the two devices that appear."""
    from bytebound_kernels import _native

    seen: list[dict[str, Any]] = []
    monkeypatch.setattr(_native, "w4_matvec", lambda *_, **f: seen.append(f), raising=False)
    monkeypatch.setattr(_native, "matvec_blocks", lambda items, most: 250, raising=False)
    monkeypatch.setattr(
        _native, "beside_blocks", lambda n, blocks, most: most - blocks, raising=False
    )
    return seen


@pytest.mark.parametrize(("name", "tensor", "error", "message"), BAD)
def test_refuses(fake, launched, name, tensor, error, message) -> None:
    place = {"pointer": {"beside_weight": BESIDE_WEIGHT, "beside_out": BESIDE_OUT}[name], **tensor}
    with pytest.raises(error, match=f"w4_matvec: .*{message}"):
        call(fake, **{name: fake(**place)}, residual=fake((R, N), pointer=RESIDUAL))
    assert not launched


@pytest.mark.parametrize(
    ("missing", "given"), [("beside_out", "beside_weight"), ("beside_weight", "beside_out")]
)
def test_refuses_one_without_the_other(fake, launched, missing, given) -> None:
    with pytest.raises(InvalidArgumentError, match=f"{given} is given without {missing}; expected"):
        call(fake, **{missing: None})
    assert not launched


def test_refuses_rows_longer_than_it_has_an_order_for(fake, launched) -> None:
    with pytest.raises(UnsupportedShapeError, match=r"\(6, 8320\); expected K up to 8192"):
        call(fake, k=8320)
    assert not launched


def test_launches_with_what_was_given(fake, launched) -> None:
    small = fake((M, K), strides=(512, 1), pointer=BESIDE_WEIGHT)
    into = fake((R, M), strides=(10, 1), pointer=BESIDE_OUT)
    call(fake, beside_weight=small, beside_out=into, stream=11)
    call(fake, num_blocks=264, stream=11)
    first, second = ({k: v for k, v in one.items() if "beside" in k} for one in launched)
    assert first == {
        "beside_weight": BESIDE_WEIGHT,
        "beside_out": BESIDE_OUT,
        "beside_weight_row_stride": 512,
        "beside_out_row_stride": 10,
        "beside_n": M,
        "beside_num_blocks": 14,
    }
    assert (launched[0]["num_blocks"], launched[1]["num_blocks"]) == (250, 264)
    assert second["beside_num_blocks"] == 0, "what the native side says"
