"""The definition of the logit adjustments that the kernel is tested against, in PyTorch."""

from typing import Any

__all__ = ["logit_adjust_reference"]

_LOGIT_BOUND = 1e30


def logit_adjust_reference(
    logits: Any,
    settings: Any,
    *,
    seen: Any = None,
    counts: Any = None,
    generated: int = 0,
    drafts: Any = None,
    bias_ids: Any = None,
    bias_values: Any = None,
    banned_ids: Any = None,
    end_ids: Any = None,
    allow_minus_infinity: bool = False,
) -> Any:
    """Return float32 [R, N]: biased, penalised and masked logits; see logit_adjust for the rules.

    The arithmetic and its order are those of the kernel: the bias in float32, the products of
    counts and presence in float32, all else of the penalties in float64.
    """
    import torch

    repetition, presence, frequency, min_tokens = settings.tolist()
    rows, n = logits.shape
    infinity = float("inf")
    out = logits.clone()
    for r in range(rows):
        row = logits[r].float()
        allowed = row.isfinite()
        if allow_minus_infinity:
            allowed = allowed | (row == -infinity)
        row = torch.where(allowed, row, float("nan"))
        if bias_ids is not None:
            inside = (bias_ids >= 0) & (bias_ids < n)
            row = row.index_add(0, bias_ids[inside].long(), bias_values[inside])
        if repetition != 1 or presence != 0 or frequency != 0:
            row_seen = torch.zeros(n, dtype=torch.bool, device=row.device)
            row_counts = torch.zeros(n, dtype=torch.int32, device=row.device)
            row_seen = row_seen if seen is None else row_seen | (seen != 0)
            row_counts = row_counts if counts is None else row_counts + counts
            for draft in [] if drafts is None else drafts[:r].tolist():
                if 0 <= draft < n:
                    row_seen[draft] = True
                    row_counts[draft] += 1
            wide = row.double()
            # A divisor on the device: by a number of the host, CUDA multiplies with 1 / it.
            divisor = torch.tensor(repetition, dtype=torch.float64, device=row.device)
            scaled = torch.where(wide > 0, wide / divisor, wide * repetition)
            wide = torch.where(row_seen, scaled, wide) if repetition != 1 else wide
            if presence != 0 or frequency != 0:
                wide = wide - ((row_counts > 0).float() * presence).double()
                wide = wide - (row_counts.float() * frequency).double()
            row = wide.clamp(-_LOGIT_BOUND, _LOGIT_BOUND).float()
        masked = [banned_ids]
        if generated + r < min_tokens:
            masked.append(end_ids)
        for ids in masked:
            if ids is not None:
                inside = ids[(ids >= 0) & (ids < n)].long()
                row[inside] = torch.where(row[inside].isnan(), row[inside], -infinity)
        out[r] = row
    return out
