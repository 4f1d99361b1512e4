"""The input of one matrix inside the reference model, without a hook in the reference model.

Every product with a weight goes through ``torch.nn.functional.linear``. A mode of torch sees those
calls and ends the run at the one whose weight is the wanted tensor itself.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.nn.functional import linear
from torch.overrides import TorchFunctionMode


class _ReachedError(Exception):
    """Ends a run at the wanted product."""

    def __init__(self, value: torch.Tensor) -> None:
        super().__init__()
        self.value = value


class _StopAt(TorchFunctionMode):
    """Ends the run at ``linear(x, weight)`` for this very ``weight``."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self._weight = weight

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is linear and args[1] is self._weight:
            raise _ReachedError(args[0])
        return func(*args, **(kwargs or {}))


def input_of(weight: torch.Tensor, run: Callable[[], object]) -> torch.Tensor:
    """What ``run`` multiplies by ``weight``; nothing behind that product is computed.

    Raises:
        RuntimeError: ``run`` never used that tensor, a mistake of the caller.
    """
    try:
        with _StopAt(weight):
            run()
    except _ReachedError as reached:
        return reached.value
    raise RuntimeError("the run ended without a product by the wanted weight")
