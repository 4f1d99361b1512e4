"""What gdn_keep refuses, and what it hands to the kernel: no memory is touched, no GPU needed."""

from typing import Any

import pytest
from bytebound_kernels import (
    CudaUnavailableError,
    KernelError,
    UnsupportedDeviceError,
    UnsupportedDtypeError,
    UnsupportedLayoutError,
    UnsupportedShapeError,
    UnsupportedTensorError,
    _native,
    gdn_keep,
)

R, L, C, W = 3, 2, 512, 12
NAMES = ("projected", "updates", "pending_qkv", "pending_updates", "windows", "num_accepted")
DTYPES = {
    "num_accepted": "torch.int32",
    "updates": "torch.float32",
    "pending_updates": "torch.float32",
}
DTYPE, SHAPE, LAYOUT = UnsupportedDtypeError, UnsupportedShapeError, UnsupportedLayoutError


def arguments(fake: Any, **changes: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call, each tensor in memory of its own."""
    shapes = {
        "projected": (R, L, C),
        "updates": (R, L, W),
        "pending_qkv": (8, L, C),
        "pending_updates": (8, L, W),
        "windows": (L, C, 3),
        "num_accepted": (1,),
    }
    return {
        name: fake(
            **{
                "shape": shape,
                "dtype": DTYPES.get(name, "torch.float16"),
                "pointer": i << 24,
                **changes.get(name, {}),
            }
        )
        for i, (name, shape) in enumerate(shapes.items(), start=1)
    }


def call(tensors: dict[str, Any], **keywords: Any) -> None:
    tensors = dict(tensors)
    inputs = [tensors.pop(name) for name in ("projected", "updates")]
    gdn_keep(*inputs, **tensors, **keywords)


@pytest.mark.parametrize(
    ("name", "fields", "error", "message"),
    [
        ("projected", {"dtype": "torch.float32"}, DTYPE, "projected has dtype float32"),
        ("projected", {"shape": (R, C)}, SHAPE, r"projected has shape \(3, 512\); expected \[R"),
        ("projected", {"shape": (0, L, C)}, SHAPE, "R from 1 to 8"),
        ("projected", {"shape": (9, L, C)}, SHAPE, "R from 1 to 8"),
        ("projected", {"shape": (R, 0, C)}, SHAPE, "L is 0; expected 1 to 65535"),
        ("projected", {"shape": (R, 65536, C)}, SHAPE, "L is 65536"),
        ("projected", {"strides": (L * C, C, 2)}, LAYOUT, "expected adjacent elements"),
        ("projected", {"strides": (L * C + 1, C, 1)}, LAYOUT, "at multiples of 4 bytes"),
        ("projected", {"pointer": (1 << 24) + 2}, LAYOUT, "projected starts at 0x1000002"),
        ("projected", {"strides": (-L * C, C, 1)}, LAYOUT, "projected starts at"),
        ("updates", {"dtype": "torch.bfloat16"}, DTYPE, "updates has dtype bfloat16"),
        (
            "updates",
            {"shape": (R + 1, L, W)},
            SHAPE,
            r"updates has shape .* expected \(3, 2, any\)",
        ),
        ("updates", {"shape": (R, L)}, SHAPE, "updates has shape"),
        (
            "updates",
            {"strides": (L * W + 2, W, 1)},
            LAYOUT,
            "updates starts at .* multiples of 16 bytes",
        ),
        ("pending_qkv", {"shape": (7, L, C)}, SHAPE, r"pending_qkv has .* expected \(8, 2, 512\)"),
        ("pending_qkv", {"shape": (8, L, C + 2)}, SHAPE, "pending_qkv has shape"),
        ("pending_qkv", {"dtype": "torch.bfloat16"}, DTYPE, "pending_qkv has dtype bfloat16"),
        ("pending_qkv", {"strides": (0, C, 1)}, LAYOUT, "pending_qkv .* so that rows overlap"),
        ("pending_qkv", {"strides": (C, C, 1)}, LAYOUT, "pending_qkv .* so that rows overlap"),
        ("pending_qkv", {"pointer": 1 << 24}, LAYOUT, "pending_qkv overlaps projected"),
        ("pending_updates", {"shape": (8, L, W + 2)}, SHAPE, r"pending_updates .* \(8, 2, 12\)"),
        ("pending_updates", {"strides": (W, 7 * W, 1)}, LAYOUT, "pending_updates .* rows overlap"),
        ("pending_updates", {"pointer": 3 << 24}, LAYOUT, "pending_qkv overlaps pending_updates"),
        ("windows", {"shape": (L, C, 4)}, SHAPE, r"windows has shape .* \(2, 512, 3\)"),
        ("windows", {"dtype": "torch.float32"}, DTYPE, "windows has dtype float32"),
        ("windows", {"strides": (3 * C, 1, C)}, LAYOUT, "expected a contiguous tensor"),
        ("windows", {"pointer": 1 << 24}, LAYOUT, "windows overlaps projected"),
        ("num_accepted", {"dtype": "torch.int64"}, DTYPE, "num_accepted has dtype int64"),
        ("num_accepted", {"shape": ()}, SHAPE, "num_accepted has shape"),
        ("num_accepted", {"pointer": 5 << 24}, LAYOUT, "windows overlaps num_accepted"),
    ],
)
def test_refused_on_any_machine(
    fake: Any,
    no_cuda: str,
    name: str,
    fields: dict[str, Any],
    error: type[KernelError],
    message: str,
) -> None:
    with pytest.raises(error, match=f"gdn_keep: .*{message}"):
        call(arguments(fake, **{name: fields}))


@pytest.mark.parametrize("odd", [{"C": 511}, {"W": 6}, {"W": 0}], ids=str)
def test_an_odd_or_empty_width_is_refused(fake: Any, no_cuda: str, odd: dict[str, int]) -> None:
    c, w = odd.get("C", C), odd.get("W", W)

    def rows(count: int, width: int) -> dict[str, Any]:
        return {"shape": (count, L, width), "strides": (2048, 1024, 1)}

    changes = {
        "projected": rows(R, c),
        "updates": rows(R, w),
        "pending_qkv": rows(8, c),
        "pending_updates": rows(8, w),
        "windows": {"shape": (L, c, 3)},
    }
    with pytest.raises(
        SHAPE, match=f"got {c} channels and {w} updates; expected multiples of 2 and 4"
    ):
        call(arguments(fake, **changes))


@pytest.mark.parametrize("name", NAMES)
def test_what_is_no_tensor_is_refused(fake: Any, no_cuda: str, name: str) -> None:
    with pytest.raises(UnsupportedTensorError, match=f"gdn_keep: {name} is a list"):
        call({**arguments(fake), name: [0]})


def test_sound_arguments_without_cuda_name_the_reason(fake: Any, no_cuda: str) -> None:
    with pytest.raises(CudaUnavailableError, match=f"gdn_keep: .*{no_cuda}"):
        call(arguments(fake))


@pytest.mark.usefixtures("pretend_cuda")
@pytest.mark.parametrize("name", NAMES)
def test_one_device_for_all(fake: Any, name: str) -> None:
    for device, where in (("cpu", "on the host"), ("cuda:1", "on cuda:1")):
        with pytest.raises(UnsupportedDeviceError, match=f"{name} {where}"):
            call(arguments(fake, **{name: {"device": device}}))


def test_what_the_kernel_gets(
    fake: Any, monkeypatch: pytest.MonkeyPatch, pretend_cuda: None
) -> None:
    seen: list[tuple[Any, Any]] = []
    monkeypatch.setattr(
        _native, "gdn_keep", lambda *args, **sizes: seen.append((args, sizes)), raising=False
    )
    changes = {
        "projected": {"strides": (4000, 2000, 1)},  # a slice of wider rows
        "updates": {"strides": (120, 40, 1)},
        "pending_qkv": {"strides": (C, 8 * C, 1)},  # layers outermost
        "pending_updates": {"strides": (W, 8 * W, 1)},
    }
    call(arguments(fake, **changes), stream=5)
    sizes = {
        "projected_strides": (4000, 2000),
        "updates_strides": (120, 40),
        "pending_strides": (C, 8 * C),
        "pending_updates_strides": (W, 8 * W),
        "layers": L,
        "channels": C,
        "width": W,
        "rows": R,
        "device": 0,
        "stream": 5,
    }
    assert seen == [(tuple(i << 24 for i in range(1, 7)), sizes)]
