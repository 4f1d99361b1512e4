import math
from itertools import pairwise

import pytest
import torch
from bytebound.errors import ContextOverflowError, NonFiniteLogitsError
from bytebound_evals import logprobs
from bytebound_evals.cli.errors import code_of
from bytebound_evals.errors import LossOverflowError
from bytebound_evals.measured_text import TextSettings
from bytebound_evals.perplexity import measure_perplexity
from bytebound_evals.windows import CutText, WindowRule, cut_text

from .quality_engines import TableEngine, tiny

P = 2
# Probability of each of three ids after the id read last.
NEXT = {0: (0.5, 0.25, 0.25), 1: (0.1, 0.2, 0.7), P: (0.9, 0.05, 0.05)}


def by_last_id(ids: tuple[int, ...]) -> list[float]:
    return [math.log(share) for share in NEXT[ids[-1]]]


def made_up(prefix: str) -> CutText:
    rule = WindowRule(3, prefix=prefix, prefix_id=None if prefix == "none" else P)
    return cut_text("made-up", [[0, 1, 0]], rule)


@pytest.mark.parametrize(
    ("prefix", "probabilities"),
    [
        # Text 0 1 0, windows of three ids, and what each rule scores, by hand.
        ("none", [0.25, 0.1]),  # 1 after 0, 0 after 1; the first 0 is context
        ("document", [0.9, 0.25]),  # 0 after P, 1 after 0; the last 0 begins a window
        ("window", [0.9, 0.25, 0.9]),  # as above, and 0 after the P of the second window
    ],
)
def test_perplexity_is_what_hand_and_rule_say(prefix: str, probabilities: list[float]) -> None:
    found = measure_perplexity(TableEngine(by_last_id), made_up(prefix))  # type: ignore[arg-type]
    expected = math.exp(-sum(map(math.log, probabilities)) / len(probabilities))
    assert found.ppl == pytest.approx(expected, rel=1e-6)


def test_the_prefix_is_named_in_the_record() -> None:
    record = made_up("window").as_dict()
    assert (record["prefix"], record["prefix_id"], record["stride"]) == ("window", P, 2)


def test_one_window_has_no_interval_and_several_have_one_around_the_value() -> None:
    engine = TableEngine(by_last_id)
    one = measure_perplexity(engine, made_up("none"))  # type: ignore[arg-type]
    assert one.ppl_interval is None
    many = cut_text("made-up", [[0, 1, 0, 0, 1, 1, 0, 0, 0]], WindowRule(3))
    found = measure_perplexity(engine, many)  # type: ignore[arg-type]
    assert found.ppl_interval is not None
    assert found.ppl_interval[0] < found.ppl < found.ppl_interval[1]


def test_logits_that_are_not_finite_are_an_error() -> None:
    with pytest.raises(NonFiniteLogitsError, match="NaN or infinite"):
        measure_perplexity(
            TableEngine(lambda ids: [0.0, math.nan, 0.0]),  # type: ignore[arg-type]
            made_up("none"),
        )


def test_a_loss_beyond_any_perplexity_is_an_error() -> None:
    engine = TableEngine(lambda ids: [0.0, 0.0, 1e4])
    with pytest.raises(LossOverflowError, match="a loss of 10000 nat a token is beyond any"):
        measure_perplexity(engine, made_up("none"))  # type: ignore[arg-type]
    assert code_of(LossOverflowError("damaged")) == 1


def test_blocks_of_rows_do_not_change_a_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(50, 40, generator=torch.Generator().manual_seed(0)) * 10
    targets = torch.arange(50) % 40
    whole = logprobs.target_losses(logits, targets)
    monkeypatch.setattr(logprobs, "BLOCK_VALUES", 7 * 40)
    assert torch.equal(logprobs.target_losses(logits, targets), whole)
    expected = torch.nn.functional.cross_entropy(logits.double(), targets, reduction="none")
    assert torch.allclose(whole, expected, rtol=1e-12)


def test_no_block_is_larger_than_stated() -> None:
    rows = list(logprobs.blocks(2048, 248_320))
    assert (rows[0].start, rows[-1].stop) == (0, 2048)
    assert all(a.stop == b.start for a, b in pairwise(rows))
    assert max(one.stop - one.start for one in rows) * 248_320 <= logprobs.BLOCK_VALUES


def test_every_window_starts_from_an_empty_state() -> None:
    text = TextSettings(window=128, max_tokens=512).cut(tiny().tokenizer)
    forward = measure_perplexity(tiny(), text)
    backward = CutText(text.label, text.rule, text.windows[::-1], text.documents, text.tokens)
    assert measure_perplexity(tiny(), backward).window_losses == forward.window_losses[::-1]


def test_tiny_has_the_loss_of_a_direct_computation() -> None:
    engine = tiny()
    text = TextSettings(window=200, stride=100, max_tokens=300).cut(engine.tokenizer)
    ids = [*text.windows[0].ids, *text.windows[1].ids[100:]]
    first, second = engine.score(ids[:200]), engine.score(ids[100:])
    losses = [
        torch.nn.functional.cross_entropy(logits[rows].double(), torch.tensor(targets)).item()
        for logits, rows, targets in (
            (first, slice(0, 199), ids[1:200]),
            (second, slice(99, 199), ids[200:]),
        )
    ]
    found = measure_perplexity(engine, text)
    assert found.window_losses == pytest.approx(losses, rel=1e-9)
    assert found.loss == pytest.approx((199 * losses[0] + 100 * losses[1]) / 299, rel=1e-9)


def test_a_window_beyond_the_context_is_an_error() -> None:
    text = TextSettings(window=1025, max_tokens=1025).cut(tiny().tokenizer)
    with pytest.raises(ContextOverflowError, match="1025 tokens to score"):
        measure_perplexity(tiny(), text)
