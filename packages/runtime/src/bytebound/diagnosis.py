"""Where NaN or infinity came from: found by computing once more, only after the failure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from bytebound.executor import Executor
from bytebound.taps import Place

_ROWS_AT_ONCE = 4096  # of the embedding


@dataclass(frozen=True, slots=True)
class Fault:
    """The first op that made a value that is not finite from values that are."""

    place: Place
    position: int  # of the row in the sequence


class FiniteWatch:
    """Looks at every product while ``executor`` takes ``ids``; ``fault`` is what came first."""

    def __init__(self, executor: Executor, ids: Sequence[int]) -> None:
        self.executor = executor
        self.ids = ids
        self.fault: Fault | None = None
        self.decoding = False
        """Whether the pass that runs is the one of the last id alone."""

    def look(self, place: Place, x: torch.Tensor, out: torch.Tensor) -> None:
        """Rows of a product: what went in, [T, K], and what came out, [T, N]."""
        if self.fault is not None:
            return
        first = self.executor.position
        if place.layer is None and not self.decoding:
            first -= 1  # the head is asked for the last row of the prompt, committed by then
        for where, values in ((place.feed(), x), (place, out)):
            wrong = (~values.isfinite()).any(-1).nonzero()
            if self.fault is None and len(wrong):
                self.fault = Fault(where, first + int(wrong[0]))

    def run(self) -> None:
        """All ids but the last as a prompt, then the last one as a decode pass; then reset."""
        self.executor.reset()
        try:
            if len(self.ids) > 1:
                self.executor.prefill(self.ids[:-1])
            if self.fault is None:
                self.decoding = True
                self.executor.verify(self.ids[-1:])
        finally:
            self.executor.reset()


def explain_non_finite(executor: Executor, ids: Sequence[int]) -> str:
    """Say which op of the model made NaN or infinity of ``ids``, and whether its weights are sound.

    Runs the sequence once more: all ids but the last as a prompt, the last as a decode pass. The
    executor is reset afterwards. An executor that has no ``explain_non_finite`` cannot say.
    """
    search = getattr(executor, "explain_non_finite", None)
    if search is None:
        return "this executor cannot say where they come from"
    try:
        return str(search(ids))
    except Exception as error:  # whatever it is, the failure that is to be explained comes first
        return f"the search for their origin failed ({type(error).__name__}: {error})"


def in_words(
    watch: FiniteWatch,
    embedding: torch.Tensor,
    weights_of: Callable[[Place], Mapping[str, torch.Tensor]],
) -> str:
    """Run ``watch``, whose executor shows it the products, and put what it saw in words.

    ``embedding`` is the table [vocab, D]; ``weights_of`` gives what an op multiplies by, by name.
    """
    used = sorted(set(watch.ids))
    for start in range(0, len(used), _ROWS_AT_ONCE):
        some = used[start : start + _ROWS_AT_ONCE]
        wrong = (~embedding[torch.tensor(some, device=embedding.device)].isfinite()).any(-1)
        if wrong.any():
            return f"embed_tokens: the row of token {some[int(wrong.nonzero()[0])]} is not finite"
    watch.run()
    fault = watch.fault
    if fault is None:
        return (
            f"the same {len(watch.ids)} tokens, computed once more, gave finite values only: "
            "neither weights nor input make them, but something that does not repeat. Check the "
            "hardware, and the kernels with 'bytebound diff'"
        )
    return (
        f"{fault.place} made them of finite values, first at position {fault.position}; "
        + _state_of(weights_of(fault.place))
    )


def _state_of(weights: Mapping[str, torch.Tensor]) -> str:
    for name, tensor in weights.items():
        rows = tensor if tensor.dim() > 1 else tensor[:, None]
        wrong = (~rows.isfinite()).any(-1).nonzero()
        if len(wrong):
            which = "row" if tensor.dim() > 1 else "element"
            return (
                f"{which} {int(wrong[0])} of its {name} is not finite, so the weights in memory "
                "are damaged: load the model again"
            )
    return "its weights are finite, so a value went beyond the range of its dtype there"
