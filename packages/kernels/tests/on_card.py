"""Tensors that say they are on a card, and kernels that note where they are launched; no GPU."""

import contextlib
from collections.abc import Iterator
from types import ModuleType

import pytest
import torch


class OnCard(torch.Tensor):
    """Memory of the host with the device of card 0."""

    device = property(lambda self: torch.device("cuda", 0))


def on_card(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.as_subclass(OnCard)


def aligned(num_bytes: int) -> torch.Tensor:
    """A workspace at a multiple of 256 bytes."""
    memory = torch.zeros(num_bytes + 256, dtype=torch.uint8)
    start = -memory.data_ptr() % 256
    return memory[start : start + num_bytes]


def launched_on(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType
) -> dict[str, torch.device | None]:
    """Replace a module's kernels; return the device that is current when each is launched."""
    current: list[torch.device | None] = [None]
    launches: dict[str, torch.device | None] = {}

    @contextlib.contextmanager
    def device(which: torch.device) -> Iterator[None]:
        current.append(which)
        yield
        current.pop()

    class Kernel:
        def __init__(self, name: str) -> None:
            self.name = name

        def __getitem__(self, grid: tuple[int, ...]) -> "Kernel":
            return self

        def __call__(self, *_: object, **__: object) -> None:
            launches[self.name] = current[-1]

    monkeypatch.setattr(torch.cuda, "device", device)
    for name in vars(module):
        if name.endswith("_kernel"):
            monkeypatch.setattr(module, name, Kernel(name))
    return launches
