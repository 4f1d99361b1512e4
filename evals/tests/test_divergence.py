import math
from collections.abc import Callable, Sequence

import pytest
import torch
from bytebound_evals import logprobs
from bytebound_evals.divergence import (
    Divergence,
    LiveReference,
    check_same_vocabulary,
    measure_divergence,
)
from bytebound_evals.errors import ReferenceMismatchError
from bytebound_evals.measured_text import TextSettings
from bytebound_evals.perplexity import measure_perplexity
from bytebound_evals.windows import CutText, WindowRule, cut_text

from .quality_engines import TableEngine, tiny

TEXT = cut_text("made-up", [[0, 1, 0, 1]], WindowRule(4))
P_ROW, Q_ROW = (0.7, 0.2, 0.1), (0.25, 0.25, 0.5)
Row = Callable[[Sequence[int]], Sequence[float]]


def always(*shares: float) -> Row:
    return lambda ids: [math.log(share) for share in shares]


def compare(reference: Row, model: Row, text: CutText = TEXT) -> Divergence:
    judge = LiveReference(TableEngine(reference), text)  # type: ignore[arg-type]
    return measure_divergence(TableEngine(model), judge, text)  # type: ignore[arg-type]


def by_hand(p: Sequence[float], q: Sequence[float]) -> float:
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))


def test_kl_is_that_of_the_reference_to_the_model_and_not_the_other_way() -> None:
    found = compare(always(*P_ROW), always(*Q_ROW))
    assert found.kl == pytest.approx(by_hand(P_ROW, Q_ROW), rel=1e-6)
    assert found.kl != pytest.approx(by_hand(Q_ROW, P_ROW), rel=1e-2)
    assert found.as_dict()["direction"] == "KL(reference || model)"


def test_both_perplexities_are_those_of_the_same_positions() -> None:
    found = compare(always(*P_ROW), always(*Q_ROW))
    assert found.reference.ppl == pytest.approx((0.2 * 0.7 * 0.2) ** (-1 / 3), rel=1e-6)
    assert found.model.ppl == pytest.approx(4, rel=1e-6)


def test_top1_counts_positions_and_takes_the_lowest_id_on_a_tie() -> None:
    def last_decides(ids: Sequence[int]) -> list[float]:
        return [0.0, 5.0, 0.0] if ids[-1] == 1 else [5.0, 0.0, 0.0]

    # After 0, 1 and 0 the model's first choices are 0, 1 and 0; the reference ties ids 0 and 1.
    assert compare(lambda ids: [3.0, 3.0, 0.0], last_decides).top1 == pytest.approx(2 / 3)


def test_what_16_bits_would_clamp_counts() -> None:
    """Logits that float16 and bfloat16 cannot tell apart differ by their exact KL."""
    one, other = [0.0, -20.0, -25.0], [0.0, -20.004, -25.0]
    narrow = [torch.tensor(row).bfloat16() for row in (one, other)]
    assert torch.equal(*narrow)
    found = compare(lambda ids: one, lambda ids: other)
    p, q = (torch.tensor(row, dtype=torch.float64).softmax(-1).tolist() for row in (one, other))
    assert found.kl == pytest.approx(by_hand(p, q), rel=1e-3)
    assert 0 < found.kl < 1e-12


def test_blocks_of_rows_do_not_change_a_divergence(monkeypatch: pytest.MonkeyPatch) -> None:
    def noisy(seed: int) -> Row:
        def row(ids: Sequence[int]) -> list[float]:
            draw = torch.Generator().manual_seed(seed * 100 + len(ids))
            return (torch.randn(3, generator=draw) * 4).tolist()

        return row

    text = cut_text("made-up", [[0, 1] * 20], WindowRule(40))
    whole = compare(noisy(1), noisy(2), text)
    monkeypatch.setattr(logprobs, "BLOCK_VALUES", 3 * 7)
    parts = compare(noisy(1), noisy(2), text)
    assert parts.kl == pytest.approx(whole.kl, rel=1e-12)
    assert (parts.top1, parts.kl_max) == (whole.top1, whole.kl_max)


def test_a_model_is_no_way_from_itself_and_further_from_a_disturbed_one() -> None:
    engine = tiny()
    text = TextSettings(window=128, max_tokens=640).cut(engine.tokenizer)
    same = measure_divergence(engine, LiveReference(engine, text), text)
    assert (same.kl, same.kl_max, same.top1) == (0, 0, 1)
    assert same.model == same.reference == measure_perplexity(engine, text)

    class Disturbed:
        def score(self, ids: Sequence[int]) -> torch.Tensor:
            logits = engine.score(ids)
            draw = torch.Generator().manual_seed(len(ids))
            return logits + 0.5 * torch.randn(logits.shape, generator=draw)

    far = measure_divergence(Disturbed(), LiveReference(engine, text), text)  # type: ignore[arg-type]
    assert far.kl_interval is not None and far.top1_interval is not None
    # Noise of variance v on every logit makes, to second order, v / 2 of what p leaves unsure.
    unsure = [
        1 - engine.score(one.ids)[one.rows].double().softmax(-1).square().sum(-1)
        for one in text.windows
    ]
    assert far.kl == pytest.approx(0.125 * float(torch.cat(unsure).mean()), rel=0.1)
    assert far.kl_interval[0] < far.kl < far.kl_interval[1]
    assert far.top1_interval[0] <= far.top1 <= far.top1_interval[1] < 1
    assert list(far.kl_quantiles.values()) == sorted(far.kl_quantiles.values())
    assert far.kl_quantiles[0.999] <= far.kl_max
    assert sum(far.window_kl) / len(far.window_kl) == pytest.approx(far.kl)


def test_kl_by_position_counts_the_ids_in_front_of_a_target() -> None:
    def drifting(ids: Sequence[int]) -> list[float]:
        return [0.0, 0.0, 2.0 if len(ids) >= 128 else 0.0]

    text = cut_text("made-up", [[0, 1] * 150], WindowRule(150))
    found = compare(lambda ids: [0.0, 0.0, 0.0], drifting, text)
    assert list(found.kl_by_position) == [0, 128]
    assert found.kl_by_position[0] == 0
    # Every target from 128 on differs alike, and two windows have 22 of them each.
    assert found.kl_by_position[128] == pytest.approx(found.kl_max)
    assert found.kl == pytest.approx(found.kl_max * 22 / 149)


def test_vocabularies_of_different_sizes_are_refused() -> None:
    with pytest.raises(ReferenceMismatchError, match="2 logits at 3 positions, the model 3 at 3"):
        compare(always(0.5, 0.5), always(*Q_ROW))


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (("b" * 64, "a" * 64, 10, 10), "the reference has another tokenizer"),
        (("a" * 64, "a" * 64, 10, 12), "a vocabulary of 10 ids, the model one of 12"),
    ],
)
def test_models_whose_ids_do_not_mean_the_same_are_refused(
    other: tuple[str, str, int, int], message: str
) -> None:
    check_same_vocabulary("a" * 64, "a" * 64, 10, 10)
    with pytest.raises(ReferenceMismatchError, match=message):
        check_same_vocabulary(*other)
