"""The memory of one GPU: a size as people write it, a cap on this process, what is left, the peak.

A process holds memory in two places. PyTorch's allocator has the tensors, and can be capped.
Outside it are the CUDA context, the code of the kernels and the recorded graphs: nobody can cap
these, so a cap on the whole process takes them off the limit before the rest goes to the allocator.
"""

import re

import torch

from bytebound.errors import InvalidSettingError

MIB = 1 << 20
GIB = 1 << 30

NOMINAL_CONTEXT_BYTES = 512 * MIB  # where there is no card to ask
MAX_CONTEXT_BYTES = GIB  # what is beyond it belongs to other processes
# Code that is loaded after the first look at the card: kernels, libraries. On an H200 a process
# ended some 250 MiB above its first look, recordings included.
LATER_BYTES = 192 * MIB

_UNITS = {
    "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 1 << 10, "mib": MIB, "gib": GIB, "tib": 1 << 40,
}  # fmt: skip
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", re.IGNORECASE | re.ASCII)


_MOST_BYTES = 1 << 62


def parse_size(name: str, value: int | str) -> int:
    """Return bytes: a whole number, or a text such as "32GiB", "24 GB" or "1.5 TiB".

    Raises:
        InvalidSettingError: it is neither, or below one byte; ``name`` is in the message.
    """
    count = None
    if isinstance(value, int) and not isinstance(value, bool):
        count = value
    elif isinstance(value, str) and (match := _SIZE.fullmatch(value)) is not None:
        unit = _UNITS.get((match[2] or "b").lower())
        size = None if unit is None else float(match[1]) * unit
        count = None if size is None or size > _MOST_BYTES else int(size)
    if count is None or not 1 <= count <= _MOST_BYTES:
        raise InvalidSettingError(
            f"{name}={value!r}: expected a size such as '32GiB' or '24 GB', or a number of bytes"
        )
    return count


def outside_bytes(device: torch.device) -> int:
    """Bytes that this process takes, or will take, outside PyTorch's allocator.

    What the driver has given away and the allocator does not hold: the context, and whatever other
    processes take, of which at most ``MAX_CONTEXT_BYTES`` are counted.
    """
    free, total = torch.cuda.mem_get_info(device)
    held = total - free - torch.cuda.memory_reserved(device)
    return min(max(held, 0), MAX_CONTEXT_BYTES) + LATER_BYTES


def cap_process(limit_bytes: int, device: torch.device) -> None:
    """Let this process take at most ``limit_bytes`` of the card, from now until it ends.

    The cap is the allocator's: a tensor beyond it is an out-of-memory error, however much the card
    has left. ``outside_bytes`` are taken off the limit for what the allocator does not rule. A
    limit above the card's memory caps nothing.

    Raises:
        InvalidSettingError: the limit is not even enough for what is outside the allocator.
    """
    outside = outside_bytes(device)
    if limit_bytes <= outside:
        raise InvalidSettingError(
            f"vram_limit={limit_bytes}: CUDA itself takes {outside / GIB:.2f} GiB of this card; "
            "expected more than that"
        )
    total = torch.cuda.mem_get_info(device)[1]
    fraction = min(1.0, (limit_bytes - outside) / total)
    torch.cuda.set_per_process_memory_fraction(fraction, device)


def allocatable_bytes(device: torch.device) -> int:
    """Bytes that tensors can still take here: what is free, within the cap of this process."""
    free, total = torch.cuda.mem_get_info(device)
    within_cap = int(torch.cuda.get_per_process_memory_fraction(device) * total)
    room = min(free - LATER_BYTES + torch.cuda.memory_reserved(device), within_cap)
    return max(0, room - torch.cuda.memory_allocated(device))


def measured_peak(device: torch.device) -> int:
    """The most bytes of the card that this process has held at once, the context included.

    Counted since ``torch.cuda.reset_peak_memory_stats``. Other processes on the card would be
    counted too: measure on a card of its own.
    """
    free, total = torch.cuda.mem_get_info(device)
    outside = max(0, total - free - torch.cuda.memory_reserved(device))
    return int(torch.cuda.max_memory_reserved(device)) + outside
