"""How fast this machine's GPU reads its memory, measured: the number that the limit is made of."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

# What an engine measures with while it loads: large beside any L2 cache.
LOAD_BUFFER_BYTES = 512 << 20
BUFFER_BYTES = 8 << 30  # the larger, the less a launch costs beside it
SAMPLES = 15
_ROW = 8192  # elements that one reduction takes; whole rows keep every multiprocessor busy


def read_bandwidth_gb_s(buffer_bytes: int = BUFFER_BYTES) -> float | None:
    """GB/s of the fastest of several passes over a large buffer; None without a GPU.

    A reduction in float64 reads everything once and writes next to nothing. The fastest pass
    counts, because a limit is what the card can do when nothing disturbs it.
    """
    import torch

    if not torch.cuda.is_available():
        return None
    try:
        free, _ = torch.cuda.mem_get_info()
        rows = min(buffer_bytes, free // 2) // (8 * _ROW)
        buffer = torch.ones(max(rows, 1), _ROW, dtype=torch.float64, device="cuda")
        out = torch.empty(len(buffer), dtype=torch.float64, device="cuda")
        best_ms = min(_pass_ms(buffer, out) for _ in range(SAMPLES))
    except RuntimeError:  # the card is full, or in use by somebody who does not share
        return None
    return buffer.nbytes / best_ms / 1e6


def _pass_ms(buffer: "torch.Tensor", out: "torch.Tensor") -> float:
    import torch

    start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    start.record()
    torch.amax(buffer, 1, out=out)
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end))
