"""The definition of sampling that the kernels are tested against, in PyTorch and plain Python."""

import math
from typing import Any

__all__ = [
    "draw_reference",
    "philox_uniform_reference",
    "sample_reference",
    "weights_reference",
]

_MASK32 = 0xFFFFFFFF
_MASK64 = 0xFFFFFFFFFFFFFFFF


def philox_uniform_reference(seed: int, position: int, purpose: int) -> float:
    """Return the number in [0, 1) of one seed, position and purpose: Philox4x32-10, 53 bits."""
    seed, position = seed & _MASK64, position & _MASK64
    k0, k1 = seed & _MASK32, seed >> 32
    c0, c1, c2, c3 = position & _MASK32, position >> 32, purpose, 0
    for _ in range(10):
        a, b = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (b >> 32) ^ c1 ^ k0, b & _MASK32, (a >> 32) ^ c3 ^ k1, a & _MASK32
        k0, k1 = (k0 + 0x9E3779B9) & _MASK32, (k1 + 0xBB67AE85) & _MASK32
    return ((c0 >> 5) * 2**26 + (c1 >> 6)) / 2**53


def weights_reference(row: Any, temperature: float, top_k: int, top_p: float, min_p: float) -> Any:
    """Return what one row is drawn from, not normalised: float64 [N], 0 for ids that are dropped.

    NaN everywhere where the highest logit is NaN or infinite.
    """
    import torch

    wide = row.double()
    n = len(wide)
    highest = wide.max()
    if not math.isfinite(float(highest)):
        return torch.full_like(wide, float("nan"))
    if temperature == 0:
        first = torch.nonzero(wide == highest)[0]
        return torch.zeros_like(wide).index_fill(0, first, 1.0)
    weights = torch.exp((wide - highest) / temperature)
    order = torch.sort(wide, descending=True, stable=True).indices
    if 0 < top_k < n:
        order = order[:top_k]
    kept = weights[order]
    if top_p < 1:
        running = torch.cumsum(kept, 0)
        inside = running - kept < top_p * running[-1]
        inside[0] = True
        kept = kept * inside
    kept = torch.where(kept >= min_p, kept, 0.0)
    return torch.zeros_like(wide).index_put((order,), kept)


def draw_reference(weights: Any, uniform: float) -> int:
    """Return the id at which the running sum passes ``uniform`` of the total; -1 without one."""
    import torch

    running = torch.cumsum(weights, 0)
    total = float(running[-1])
    if not 0 < total < math.inf:
        return -1
    target = min(uniform * total, math.nextafter(total, 0.0))
    return int(torch.searchsorted(running, target, right=True))


def sample_reference(
    logits: Any, settings: Any, seed: int, position: int, purpose: int = 0
) -> tuple[list[int], Any]:
    """Return the id of each row and the weights that they were drawn from.

    Args:
        logits: [R, N], a PyTorch tensor.
        settings: float64 [4]: temperature, top_k, top_p, min_p.
        seed: of the request.
        position: of the token that row 0 chooses.
        purpose: what the numbers are for.

    Returns:
        The ids, and float64 [R, N].
    """
    import torch

    temperature, top_k, top_p, min_p = settings.tolist()
    ids, weights = [], []
    for r, row in enumerate(logits):
        weights.append(weights_reference(row, temperature, int(top_k), top_p, min_p))
        uniform = philox_uniform_reference(seed, position + r, purpose)
        ids.append(draw_reference(weights[-1], uniform))
    return ids, torch.stack(weights)
