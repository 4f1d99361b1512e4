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
    projected, gates = numbers(rows, layers, channels), numbers(rows, layers, 4)
    pending, pending_gates = numbers(8, layers, channels), numbers(8, layers, 4)
    windows = numbers(layers, channels, 3)
    expected = windows.clone()
    for i in range(min(max(accepted, 0), 8)):
        expected = torch.stack((expected[..., 1], expected[..., 2], pending[i]), dim=-1)
    old, old_gates = pending.clone(), pending_gates.clone()
    gdn_keep_reference(
        projected,
        gates,
        pending_qkv=pending,
        pending_gates=pending_gates,
        windows=windows,
        num_accepted=torch.tensor([accepted], dtype=torch.int32),
    )
    assert torch.equal(windows, expected)
    for kept, new, before in ((pending, projected, old), (pending_gates, gates, old_gates)):
        assert torch.equal(kept[:rows], new)
        assert torch.equal(kept[rows:], before[rows:])
