"""Pages of the host's memory: what comes back is what went in, and the budget holds."""

import pytest
import torch
from bytebound.host_pages import SLAB_BYTES, HostPages
from hypothesis import given
from hypothesis import strategies as st

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.uint8)
shapes = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 40), st.integers(1, 9)), max_size=5)


def some(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Any bits at all, NaN among them: a slice of something larger."""
    whole = (shape[0], shape[1] + 4, shape[2] * dtype.itemsize)
    bits = torch.randint(0, 256, whole, generator=torch.Generator().manual_seed(seed))
    return bits.to(torch.uint8).view(dtype)[:, 2 : 2 + shape[1]]


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8)


@given(shapes=shapes, page=st.sampled_from([1, 7, 64, 4096]), seed=st.integers(0, 99))
def test_all_comes_back_bit_for_bit(
    shapes: list[tuple[int, int, int]], page: int, seed: int
) -> None:
    store = HostPages(1 << 16, page, pinned=False)
    tensors = [some(shape, DTYPES[i % 5], seed + i) for i, shape in enumerate(shapes)]
    size = sum(tensor.nbytes for tensor in tensors)
    pages = store.write(tensors)
    assert store.used == len(pages) == store.needed(size) == -(-size // page)
    back = [torch.zeros_like(tensor) for tensor in tensors]
    around = [some(shape, DTYPES[i % 5], seed + 50 + i) for i, shape in enumerate(shapes)]
    for into in (back, around):  # contiguous, and not
        store.read(pages, into)
        for tensor, got in zip(tensors, into, strict=True):
            assert torch.equal(bits(tensor), bits(got))
    store.release(pages)
    assert store.used == 0


@pytest.mark.parametrize("budget", [0, 1, 99, 100, 1000, 1023, 5000, 3 * SLAB_BYTES + 5])
def test_no_more_is_taken_than_the_budget(budget: int) -> None:
    page = 100 if budget < SLAB_BYTES else 1 << 20
    store = HostPages(budget, page, pinned=False)
    assert store.reserved_bytes == 0  # before the first use
    assert store.capacity * page <= budget
    assert store.capacity * page >= budget * 7 / 8 - page
    held = [store.write([torch.zeros(page, dtype=torch.uint8)]) for _ in range(store.capacity)]
    assert store.available == 0
    assert store.reserved_bytes <= budget
    with pytest.raises(ValueError, match="1 pages asked for, 0 are available"):
        store.write([torch.zeros(1)])
    for pages in held:
        store.release(pages)
    assert store.available == store.capacity
    reserved = store.reserved_bytes
    if held:
        store.write([torch.zeros(page, dtype=torch.uint8)])
    assert store.reserved_bytes == reserved  # used again


def test_a_failure_gives_everything_back(monkeypatch: pytest.MonkeyPatch) -> None:
    store = HostPages(1 << 12, 64, pinned=False)
    kept = store.write([torch.arange(40)])

    class Broken(torch.Tensor):
        def contiguous(self) -> torch.Tensor:  # type: ignore[override]
            raise RuntimeError("out of memory, for the test")

    broken = torch.arange(40).as_subclass(Broken)
    with pytest.raises(RuntimeError, match="for the test"):
        store.write([torch.arange(99), broken])
    assert store.used == len(kept)
    back = torch.zeros(40, dtype=torch.int64)
    store.read(kept, [back])
    assert torch.equal(back, torch.arange(40))
