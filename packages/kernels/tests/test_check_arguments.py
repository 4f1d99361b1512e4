"""The checks that all ops share: addresses, numbers, records; no GPU."""

from collections.abc import Callable
from typing import Any

import bytebound_kernels as bk
import pytest
from bytebound_kernels import (
    CudaUnavailableError,
    GdnRows,
    GdnState,
    GdnWeights,
    InvalidArgumentError,
    PackedW4,
    UnsupportedDtypeError,
    UnsupportedLayoutError,
    UnsupportedShapeError,
    UnsupportedTensorError,
    _native,
    argmax,
    dense_matvec,
    embedding_gather,
    gdn_step,
    history_append,
    l2_persist,
    logprobs,
    matvec_workspace_bytes,
    require_cuda,
    rms_norm,
    w4_matmul,
    w4_matmul_workspace_bytes,
    w4_matvec,
    w4_pack,
    w4_packed_bytes,
    w4_unpack,
)
from bytebound_kernels._stream import stream_handle
from bytebound_kernels._tensor import DTYPE_CODES, view

INT, BYTE, FLOAT, DOUBLE = "torch.int32", "torch.uint8", "torch.float32", "torch.float64"
HALF = "torch.float16"
N, K = 64, 128
FAR = 1 << 30
PACKED_BYTES = w4_packed_bytes(N, K)


def packed(data: Any) -> PackedW4:
    return PackedW4(data, N, K)


# Of each op: the tensors, and a call that takes them by name.
CALLS: dict[str, tuple[dict[str, tuple[tuple[int, ...], str]], Callable[[Any], Any]]] = {
    "rms_norm": (
        {"x": ((2, K), HALF), "weight": ((K,), FLOAT), "out": ((2, K), HALF)},
        lambda t: rms_norm(t["x"], t["weight"], out=t["out"]),
    ),
    "argmax": (
        {"logits": ((1, N), FLOAT), "id_map": ((N,), INT), "out": ((1,), INT)},
        lambda t: argmax(t["logits"], out=t["out"], workspace=t["workspace"], id_map=t["id_map"]),
    ),
    "embedding_gather": (
        {"ids": ((1,), INT), "table": ((N, K), HALF), "out": ((1, K), FLOAT)},
        lambda t: embedding_gather(t["ids"], t["table"], out=t["out"]),
    ),
    "history_append": (
        {"ids": ((4,), INT), "num_ids": ((1,), INT), "counts": ((N,), INT)},
        lambda t: history_append(t["ids"], t["num_ids"], counts=t["counts"]),
    ),
    "w4_pack": (
        {"packed": ((N, K // 8), INT), "scale": ((N, 1), HALF)},
        lambda t: w4_pack(t["packed"], t["scale"], out=packed(t["data"])),
    ),
    "w4_matvec": (
        {"x": ((1, K), HALF), "out": ((1, N), FLOAT), "residual": ((1, N), FLOAT)},
        lambda t: w4_matvec(
            t["x"], packed(t["data"]), out=t["out"], workspace=None, residual=t["residual"]
        ),
    ),
    "dense_matvec": (
        {"weight": ((N, K), HALF), "x": ((1, K), HALF), "out": ((1, N), HALF)},
        lambda t: dense_matvec(t["x"], t["weight"], out=t["out"], workspace=None),
    ),
    "l2_persist": (
        {"memory": ((N,), DOUBLE)},
        lambda t: l2_persist(t["memory"], 8, stream=0),
    ),
    "logprobs": (
        {"logits": ((1, N), FLOAT), "ids": ((1,), INT)},
        lambda t: logprobs(t["logits"], t["ids"], out_values=None, out_ids=None, workspace=None),
    ),
}


@pytest.mark.usefixtures("no_cuda")
@pytest.mark.parametrize(
    ("op", "name"), [(op, name) for op, (tensors, _) in CALLS.items() for name in tensors]
)
def test_elements_lie_at_multiples_of_their_size(fake: Any, op: str, name: str) -> None:
    shapes, call = CALLS[op]
    tensors = {
        "data": fake((PACKED_BYTES,), BYTE, pointer=FAR),
        "workspace": fake((1 << 20,), BYTE, pointer=9 * FAR),
    }
    for i, (other, (shape, dtype)) in enumerate(shapes.items(), start=2):
        tensors[other] = fake(shape, dtype, pointer=i * FAR + (other == name))
    with pytest.raises(
        UnsupportedLayoutError,
        match=rf"{op}: {name} starts at {tensors[name].pointer:#x}; expected a multiple of [248]$",
    ):
        call(tensors)


@pytest.mark.parametrize("dtype", DTYPE_CODES)
def test_view_of_each_dtype(fake: Any, dtype: str) -> None:
    names = tuple(DTYPE_CODES)
    itemsize = view("op", "x", fake((4,), f"torch.{dtype}"), names).itemsize
    for offset in range(1, itemsize):
        with pytest.raises(UnsupportedLayoutError, match=f"expected a multiple of {itemsize}"):
            view("op", "x", fake((4,), f"torch.{dtype}", pointer=FAR + offset), names)


class Array:
    """A device array by its interface alone."""

    def __init__(self, **fields: Any) -> None:
        self.__cuda_array_interface__ = {
            "shape": (2, 4),
            "typestr": "<f4",
            "data": (FAR, False),
            "strides": None,
            "version": 3,
            **fields,
        }


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"typestr": ">f4"}, UnsupportedDtypeError, "op: x has the typestr >f4, big-endian"),
        ({"data": (FAR + 2, False)}, UnsupportedLayoutError, "expected a multiple of 4"),
        ({"strides": (18, 4)}, UnsupportedLayoutError, r"strides of \(18, 4\) bytes"),
    ],
)
def test_view_of_an_array_interface(fields: dict[str, Any], error: type, message: str) -> None:
    assert view("op", "x", Array()).strides == (4, 1)
    with pytest.raises(error, match=message):
        view("op", "x", Array(**fields))


def test_workspace_sizes_without_a_device(no_cuda: str) -> None:
    for size in (matvec_workspace_bytes, w4_matmul_workspace_bytes):
        with pytest.raises(CudaUnavailableError, match=f"{size.__name__}: .*{no_cuda}"):
            size()
    assert matvec_workspace_bytes(num_blocks=2) == 2 * matvec_workspace_bytes(num_blocks=1)


@pytest.mark.usefixtures("pretend_cuda")
@pytest.mark.parametrize("device", [2, -1, "0", None, [0], 1.0, True])
def test_workspace_sizes_of_no_such_device(device: Any) -> None:
    for size in (matvec_workspace_bytes, w4_matmul_workspace_bytes):
        with pytest.raises(InvalidArgumentError, match=f"{size.__name__}: device is .* 0 to 1"):
            size(device)


@pytest.mark.usefixtures("pretend_cuda")
def test_require_cuda_of_no_such_device() -> None:
    require_cuda("x", 0)
    for device in (2, 9, -1, 0.0, "0"):
        with pytest.raises(CudaUnavailableError, match=f"x: device is {device!r}; expected 0 to 1"):
            require_cuda("x", device)


@pytest.mark.parametrize("num_blocks", [0, -1, 1.5, "2", True])
@pytest.mark.usefixtures("pretend_cuda")
def test_num_blocks_is_a_count(fake: Any, num_blocks: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"num_blocks is .*; expected an integer of 1"):
        matvec_workspace_bytes(num_blocks=num_blocks)
    with pytest.raises(InvalidArgumentError, match=r"w4_matvec: num_blocks is .*; expected"):
        w4_matvec(
            fake((1, K), pointer=2 * FAR),
            packed(fake((PACKED_BYTES,), BYTE, pointer=FAR)),
            out=fake((1, N), pointer=3 * FAR),
            workspace=None,
            num_blocks=num_blocks,
        )


@pytest.mark.parametrize("first_row", ["0", 0.0, None, False])
def test_first_row_is_an_integer(fake: Any, first_row: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"w4_pack: first_row is .* an integer"):
        w4_pack(
            fake((N, K // 8), INT, pointer=2 * FAR),
            fake((N, 1), pointer=3 * FAR),
            out=packed(fake((PACKED_BYTES,), BYTE, pointer=FAR)),
            first_row=first_row,
        )


def test_first_row_of_numpy(fake: Any, launches: dict[str, int], monkeypatch: Any) -> None:
    numpy = pytest.importorskip("numpy")
    given: list[Any] = []
    monkeypatch.setattr(_native, "w4_pack", lambda *_, first_row, **__: given.append(first_row))
    w4_pack(
        fake((N, K // 8), INT, pointer=2 * FAR),
        fake((N, 1), pointer=3 * FAR),
        out=packed(fake((PACKED_BYTES,), BYTE, pointer=FAR)),
        first_row=numpy.int64(0),
    )
    assert given == [0] and type(given[0]) is int


def test_part_is_a_word(fake: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"w4_pack: part is \['gate'\]; expected None"):
        w4_pack(
            fake((N, K // 8), INT, pointer=2 * FAR),
            fake((N, 1), pointer=3 * FAR),
            out=packed(fake((PACKED_BYTES,), BYTE, pointer=FAR)),
            part=["gate"],
        )


def test_sizes_of_a_packed_matrix_are_integers(fake: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="K is '128'; expected an integer"):
        PackedW4(fake((PACKED_BYTES,), BYTE), N, "128")
    with pytest.raises(UnsupportedShapeError, match="K is 100"):
        PackedW4(fake((PACKED_BYTES,), BYTE), N, 100)


def test_sizes_of_a_packed_matrix_may_be_numpy_s(fake: Any) -> None:
    numpy = pytest.importorskip("numpy")
    weight = PackedW4(fake((PACKED_BYTES,), BYTE), numpy.uint8(200), numpy.uint8(128))
    assert (2 * weight.n, 2 * weight.k) == (400, 256)


@pytest.mark.parametrize("eps", ["1e-6", None, [1e-6], float("inf"), -1e-6, True, 10**400])
def test_eps_is_a_number(fake: Any, eps: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"rms_norm: eps is .* number of 0 or"):
        rms_norm(fake((2, K)), fake((K,), pointer=FAR), eps=eps)
    with pytest.raises(InvalidArgumentError, match=r"gdn_step: eps is .* number of 0 or"):
        gdn_step(None, None, None, None, commit=True, eps=eps)


@pytest.mark.parametrize(
    "call",
    [
        lambda x, w: w4_matvec(x, w, out=x, workspace=x),
        lambda x, w: w4_matmul(x, w, out=x, workspace=x),
        lambda x, w: w4_unpack(w, out=x),
        lambda x, w: w4_pack(x, x, out=w),
    ],
    ids=["w4_matvec", "w4_matmul", "w4_unpack", "w4_pack"],
)
def test_a_plain_tensor_is_no_packed_matrix(fake: Any, call: Any) -> None:
    with pytest.raises(
        UnsupportedTensorError, match=r"w4_\w+: (weight|out) is a FakeTensor; expected a PackedW4"
    ):
        call(fake((1, K)), fake((N, K), pointer=FAR))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("rows", "GdnRows"),
        ("weights", "GdnWeights"),
        ("state", "GdnState"),
        ("pending", "GdnPending"),
    ],
)
def test_a_plain_tensor_is_no_record(fake: Any, name: str, kind: str) -> None:
    tensor = fake((2, K))
    arguments = {
        "rows": GdnRows(tensor, tensor, tensor),
        "z": tensor,
        "weights": GdnWeights(tensor, tensor, tensor, tensor),
        "state": GdnState(tensor, tensor),
        "num_accepted": tensor if name == "pending" else None,
        name: tensor,
    }
    with pytest.raises(
        UnsupportedTensorError, match=f"gdn_step: {name} is a FakeTensor; expected a {kind}"
    ):
        gdn_step(**arguments, commit=False)


@pytest.mark.parametrize(
    ("size", "arguments"),
    [
        (bk.argmax_workspace_bytes, (-1,)),
        (bk.argmax_workspace_bytes, ("a",)),
        (bk.sample_workspace_bytes, (1, -5)),
        (bk.sample_workspace_bytes, (1.5, 5)),
        (bk.logprobs_workspace_bytes, (1, 5, -1)),
        (bk.speculative_sample_workspace_bytes, ("7",)),
        (bk.attention_decode_workspace_bytes, (1, 2, -1)),
        (bk.attention_decode_workspace_bytes, (None, 2, 1)),
        (bk.gdn_updates_width, ("a", 2)),
        (bk.gdn_updates_width, (2, 0)),
        (bk.gdn_updates_width, (2, 4.0)),
    ],
)
def test_workspace_sizes_refuse_what_is_no_count(size, arguments) -> None:
    with pytest.raises(InvalidArgumentError, match=f"{size.__name__}: .* is .*; expected"):
        size(*arguments)


@pytest.mark.parametrize(
    ("size", "arguments"),
    [
        (bk.argmax_workspace_bytes, (120,)),
        (bk.sample_workspace_bytes, (120, 100)),
        (bk.logprobs_workspace_bytes, (120, 100, 20)),
        (bk.speculative_sample_workspace_bytes, (100,)),
        (bk.attention_decode_workspace_bytes, (8, 100, 100)),
        (bk.gdn_updates_width, (16, 48)),
        (bk.w4_packed_bytes, (100, 128)),
    ],
)
def test_workspace_sizes_of_numpy_integers(size, arguments) -> None:
    """Of eight bits, in which none of the sizes fits."""
    numpy = pytest.importorskip("numpy")
    bytes_of_ints = size(*arguments)
    given = [numpy.uint8(argument) for argument in arguments]
    assert size(*given) == bytes_of_ints and type(size(*given)) is int


@pytest.mark.usefixtures("pretend_cuda")
def test_a_device_of_numpy() -> None:
    numpy = pytest.importorskip("numpy")
    for size in (matvec_workspace_bytes, w4_matmul_workspace_bytes):
        assert size(numpy.int64(1)) == size(1)
    require_cuda("x", numpy.int64(0))
    with pytest.raises(CudaUnavailableError, match="no code for card 1"):
        require_cuda("x", numpy.int64(1))


def test_a_stream_of_numpy() -> None:
    numpy = pytest.importorskip("numpy")
    handle = stream_handle("x", numpy.int64(7), None, 0)
    assert handle == 7 and type(handle) is int
    with pytest.raises(InvalidArgumentError, match=r"x: stream is .*-7"):
        stream_handle("x", numpy.int64(-7), None, 0)
