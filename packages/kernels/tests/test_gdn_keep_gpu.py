"""What moves on between two passes, bit for bit as the reference moves it, on a GPU."""

import pytest
from bytebound_kernels import gdn_keep
from bytebound_kernels.ops.gdn_keep import gdn_keep_reference

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

# L, C, W: fewer pairs than a block has threads, one more than a block, a model's own.
SHAPES = [(1, 2, 4), (3, 510, 12), (2, 512, 4), (5, 514, 516), (48, 10240, 8240)]

dtypes = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
shapes = pytest.mark.parametrize(
    ("layers", "channels", "width"), SHAPES, ids=lambda size: str(size)
)


def bits(seed, *shape, dtype):
    """Any bits at all, NaN and the word of set bits included: nothing is computed."""
    draw = torch.Generator("cuda").manual_seed(seed)
    integer = torch.int16 if dtype.itemsize == 2 else torch.int32
    low = torch.iinfo(integer).min
    words = torch.randint(low, -low, shape, generator=draw, device="cuda")
    return words.to(integer).view(dtype)


def same_bits(a, b):
    return torch.equal(a.contiguous().view(torch.int16), b.contiguous().view(torch.int16))


def case(rows, layers, channels, width, dtype, accepted):
    """The arguments: rows outermost and in wider tensors, layers outermost, as an engine has it."""
    wide = bits(0, rows, layers, channels + 40, dtype=dtype)
    wide_updates = bits(1, rows, layers, width + 8, dtype=torch.float32)
    inputs = wide[..., 2 : 2 + channels], wide_updates[..., 4 : 4 + width]
    state = {
        "pending_qkv": bits(2, layers, 8, channels, dtype=dtype).transpose(0, 1),
        "pending_updates": bits(3, layers, 8, width, dtype=torch.float32).transpose(0, 1),
        "windows": bits(4, layers, channels, 3, dtype=dtype),
    }
    return inputs, state, torch.tensor([accepted], dtype=torch.int32, device="cuda")


@pytest.mark.parametrize("accepted", [-1, 0, 1, 2, 3, 4, 8, 9])
@pytest.mark.parametrize("rows", [1, 3, 8], ids=lambda r: f"R{r}")
@shapes
@dtypes
def test_moves_the_bits_that_the_reference_moves(
    dtype, layers, channels, width, rows, accepted
) -> None:
    inputs, state, num_accepted = case(rows, layers, channels, width, dtype, accepted)
    expected = {name: tensor.clone() for name, tensor in state.items()}
    gdn_keep_reference(*inputs, **expected, num_accepted=num_accepted)
    gdn_keep(*inputs, **state, num_accepted=num_accepted)
    for name, tensor in state.items():
        assert same_bits(tensor, expected[name]), name


@dtypes
def test_nothing_else_is_written(dtype) -> None:
    layers, channels, width = 3, 514, 8
    inputs, state, num_accepted = case(5, layers, channels, width, dtype, 2)
    wide = {
        "pending_qkv": torch.full((8, layers, channels + 8), 7.0, dtype=dtype, device="cuda"),
        "pending_updates": torch.full((8, layers, width + 8), 7.0, device="cuda"),
        "windows": torch.full((layers + 2, channels, 3), 7.0, dtype=dtype, device="cuda"),
    }
    inside = {
        "pending_qkv": wide["pending_qkv"][..., 4:-4],
        "pending_updates": wide["pending_updates"][..., 4:-4],
        "windows": wide["windows"][1:-1],
    }
    for name, tensor in inside.items():
        tensor.copy_(state[name])
    before = {name: tensor.clone() for name, tensor in state.items()}
    gdn_keep(*inputs, **state, num_accepted=num_accepted)
    gdn_keep(*inputs, **inside, num_accepted=num_accepted)
    for name, tensor in inside.items():
        assert same_bits(tensor, state[name]), name
        tensor.fill_(7.0)
        assert (wide[name] == 7).all(), f"written outside of {name}"
    for name in ("pending_qkv", "pending_updates"):
        assert same_bits(state[name][5:], before[name][5:])


def test_one_graph_fits_any_count() -> None:
    inputs, state, num_accepted = case(4, 3, 514, 8, torch.float16, 0)
    start = {name: tensor.clone() for name, tensor in state.items()}
    gdn_keep(*inputs, **state, num_accepted=num_accepted)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        gdn_keep(*inputs, **state, num_accepted=num_accepted)
    for accepted in (3, 0, 8, 1):
        expected = {name: tensor.clone() for name, tensor in start.items()}
        for name, tensor in state.items():
            tensor.copy_(start[name])
        num_accepted.fill_(accepted)
        gdn_keep_reference(*inputs, **expected, num_accepted=num_accepted)
        graph.replay()
        for name, tensor in state.items():
            assert same_bits(tensor, expected[name]), f"{name} with {accepted} accepted"
