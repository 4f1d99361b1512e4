"""Samples and their metrics, draft words, forced acceptance, prompts, limits: no engine runs."""

from pathlib import Path

import pytest
from bytebound import Engine, SamplingParams
from bytebound.cli.errors import UsageError
from bytebound.scripted import ScriptedExecutor
from bytebound_evals.errors import DataError, ResultError
from bytebound_evals.results import write_result
from bytebound_evals.speed.drafts import DraftSpec, ForcedDraft
from bytebound_evals.speed.limits import ReadBandwidth, percent_of_limit, read_bandwidth
from bytebound_evals.speed.prompts import NAMES, Prompt, prompt_ids, speed_prompts, text_ids
from bytebound_evals.speed.samples import (
    Sample,
    decode_metrics,
    depth_label,
    geometric_mean,
    prefill_metrics,
)

from .speed_results import metric, result

PLAIN = Sample(prompt_tokens=100, completion_tokens=11, first_token_s=0.5, decode_s=2.0, steps=10)
DRAFTED = Sample(
    prompt_tokens=100,
    completion_tokens=11,
    first_token_s=0.5,
    decode_s=1.0,
    steps=4,
    drafted=16,
    accepted=6,
)


def test_the_first_token_belongs_to_the_prefill() -> None:
    assert PLAIN.tok_s == 5.0
    assert DRAFTED.accepted_per_step == 2.5
    assert DRAFTED.acceptance == 0.375
    metrics = decode_metrics("x", [PLAIN, PLAIN], {"draft": "none"})
    assert {name: m.samples for name, m in metrics.items()} == {"x.tok_s": (5.0, 5.0)}
    metrics = decode_metrics("x", [DRAFTED], {})
    assert {name: m.median for name, m in metrics.items()} == {
        "x.tok_s": 10.0,
        "x.step_ms": 250.0,
        "x.accepted_per_step": 2.5,
        "x.acceptance": 0.375,
    }


def test_random_weights_have_a_time_per_step_only() -> None:
    assert list(decode_metrics("x", [DRAFTED], {}, with_speed=False)) == ["x.step_ms"]


def test_a_reply_of_one_token_says_nothing_of_decoding() -> None:
    one = Sample(prompt_tokens=5, completion_tokens=1, first_token_s=0.1, decode_s=0.0)
    assert decode_metrics("x", [one], {}) == {}


def test_cached_prompts_are_not_mixed_with_cold_ones() -> None:
    cached = Sample(
        prompt_tokens=100, completion_tokens=11, first_token_s=0.01, decode_s=2.0, cached_tokens=96
    )
    metrics = prefill_metrics("p", [PLAIN, cached, PLAIN], {})
    assert {name: m.samples for name, m in metrics.items()} == {
        "p.tok_s": (200.0, 200.0),
        "p.first_token_ms": (500.0, 500.0),
        "p.cached.first_token_ms": (10.0,),
    }
    assert "96 of them cached" in cached.line()


def test_labels_and_means() -> None:
    assert [depth_label(n) for n in (512, 1000, 1024, 32768)] == ["512", "1000", "1k", "32k"]
    assert geometric_mean([2.0, 8.0]) == pytest.approx(4.0)


@pytest.mark.parametrize(
    ("word", "label"),
    [
        ("none", "plain"),
        ("ngram", "ngram4"),
        ("ngram:2", "ngram2"),
        ("mtp:8", "mtp8"),
        ("forced:4@0.7", "forced4@0.7"),
        ("forced:3@1", "forced3@1"),
    ],
)
def test_draft_words(word: str, label: str) -> None:
    spec = DraftSpec.parse(word)
    assert spec.label == label
    assert DraftSpec.parse(spec.word) == spec


@pytest.mark.parametrize(
    "word", ["", "mpt", "mtp:0", "mtp:9", "none:2", "forced:4", "forced:4@1.1", "forced:4@1.2.3"]
)
def test_draft_words_that_mean_nothing(word: str) -> None:
    with pytest.raises(UsageError, match="--draft"):
        DraftSpec.parse(word)


SCRIPT = [7 + (3 * i) % 40 for i in range(200)]


def forced_run(rate: float, count: int = 4, tokens: int = 200) -> tuple[list[int], int, int, int]:
    """Reply, steps, drafted and accepted of a scripted target with a forced draft."""
    draft = ForcedDraft(rate, vocab_size=50)
    engine = Engine(ScriptedExecutor([SCRIPT], vocab_size=50), draft=draft, num_draft_tokens=count)
    draft.expect(3, SCRIPT)
    params = SamplingParams(max_tokens=tokens, ignore_eos=True)
    results = [engine.generate([1, 2, 3], params) for _ in range(2)]
    assert results[0].stats.steps == results[1].stats.steps  # the same pattern every time
    stats = results[0].stats
    return results[0].token_ids, stats.steps, stats.drafted, stats.accepted


def test_forced_acceptance_is_what_was_asked_for_and_changes_no_token() -> None:
    reply, steps, drafted, accepted = forced_run(1.0)
    assert reply == SCRIPT
    assert accepted == drafted
    assert steps == 40  # 199 tokens, five a step
    reply, steps, _, accepted = forced_run(0.0)
    assert reply == SCRIPT
    assert (steps, accepted) == (199, 0)
    reply, steps, _, _ = forced_run(0.7)
    assert reply == SCRIPT
    expected = sum(0.7**i for i in range(5))  # tokens a step
    assert 199 / steps == pytest.approx(expected, rel=0.15)


def test_the_suite_has_eight_prompts_of_our_own() -> None:
    prompts = speed_prompts()
    assert tuple(prompt.name for prompt in prompts) == NAMES
    assert all(200 < len(prompt.text) < 2000 for prompt in prompts)
    assert [prompt.name for prompt in speed_prompts(["json", "prose"])] == ["prose", "json"]
    with pytest.raises(DataError, match="'poem'"):
        speed_prompts(["poem"])


def test_without_a_tokenizer_bytes_are_ids() -> None:
    assert prompt_ids(Prompt("x", "aé"), None) == [97, 195, 169]
    ids = text_ids(1000, None)
    assert len(ids) == 1000
    assert len(set(ids)) > 20
    assert text_ids(500, None) == ids[:500]


def test_a_text_shorter_than_the_depth_starts_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bytebound_evals.speed.prompts.heldout_text", lambda: "abc")
    assert text_ids(7, None) == [97, 98, 99, 97, 98, 99, 97]


def test_where_the_bandwidth_comes_from(tmp_path: Path) -> None:
    card = tmp_path / "card.json"
    write_result(card, result({"read_gb_s": metric(1600, 1700, unit="GB/s")}))
    assert read_bandwidth(2000, card, on_gpu=False) == ReadBandwidth(2000, "given")
    from_file = ReadBandwidth(1650, "card.json", (1600, 1700))
    assert read_bandwidth(None, card, on_gpu=True) == from_file
    assert read_bandwidth(None, None, on_gpu=False) is None
    for wrong in (0, -1, float("nan"), float("inf")):
        with pytest.raises(UsageError, match="--read-gb-s"):
            read_bandwidth(wrong, None, on_gpu=False)
    write_result(card, result({"other": metric(1)}))
    with pytest.raises(ResultError, match="no metric read_gb_s"):
        read_bandwidth(None, card, on_gpu=False)


def test_percent_of_the_limit() -> None:
    assert percent_of_limit(60.0, 13.5e9, ReadBandwidth(1620, "given")) == pytest.approx(50.0)
