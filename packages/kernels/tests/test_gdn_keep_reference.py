"""The reference of gdn_keep against a window that is moved input by input."""

import pytest

torch = pytest.importorskip("torch")

from bytebound_kernels.ops.gdn_keep import gdn_keep_reference  # noqa: E402


@pytest.mark.parametrize("rows", [1, 3, 8], ids=lambda r: f"R{r}")
@pytest.mark.parametrize("accepted", [-2, 0, 1, 2, 3, 4, 8, 100])
def test_moves_the_window_input_by_input(accepted, rows) -> None:
    draw = torch.Generator().manual_seed(0)

    def numbers(*shape):
        return torch.randn(shape, generator=draw).to(torch.float16)

    layers, channels = 2, 6
    projected, updates = numbers(rows, layers, channels), numbers(rows, layers, 4).float()
    pending, pending_updates = numbers(8, layers, channels), numbers(8, layers, 4).float()
    windows = numbers(layers, channels, 3)
    expected = windows.clone()
    for i in range(min(max(accepted, 0), 8)):
        expected = torch.stack((expected[..., 1], expected[..., 2], pending[i]), dim=-1)
    old, old_updates = pending.clone(), pending_updates.clone()
    gdn_keep_reference(
        projected,
        updates,
        pending_qkv=pending,
        pending_updates=pending_updates,
        windows=windows,
        num_accepted=torch.tensor([accepted], dtype=torch.int32),
    )
    assert torch.equal(windows, expected)
    for kept, new, before in ((pending, projected, old), (pending_updates, updates, old_updates)):
        assert torch.equal(kept[:rows], new)
        assert torch.equal(kept[rows:], before[rows:])
