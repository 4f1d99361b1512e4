"""Engine(backend="cuda") on a GPU: drafts change no token, requests do not see each other."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from bytebound import Engine, InvalidSettingError, SamplingParams
from bytebound.cuda.decoder import CudaDecoder
from bytebound.cuda.executor import CudaExecutor
from bytebound.drafts import Draft

from .checkpoints import random_checkpoint
from .cuda_models import REQUESTS, SHAPE, KnowingDraft, Loader, WrongDraft, near_ties, symmetric

pytestmark = pytest.mark.gpu

PROMPT = "The Python standard library provides"
QUESTION = "Tom has 12 apples and buys 7 more. How many has he?"
TEXT = Path(__file__).parents[3] / "ARCHITECTURE.md"
GREEDY = SamplingParams(max_tokens=240, ignore_eos=True)
FAR = SamplingParams(max_tokens=2000, ignore_eos=True)
NEAR_TIES = 25  # of 2,000 positions; rounding alone makes 2 of a reply and 11 of our text


@pytest.fixture(scope="module")
def plain(load: Loader) -> Engine:
    return load()


@pytest.fixture(scope="module")
def prompt(plain: Engine) -> list[int]:
    return plain.tokenizer.encode(PROMPT)


@pytest.fixture(scope="module")
def expected(plain: Engine, prompt: list[int]) -> list[int]:
    return plain.generate(prompt, GREEDY).token_ids


@pytest.fixture(scope="module")
def far(plain: Engine) -> tuple[list[int], list[int]]:
    """A prompt, and 2,000 tokens that follow it without drafts: less of a loop than most."""
    ids = plain.tokenizer.apply_chat_template([{"role": "user", "content": QUESTION}])
    return ids, plain.generate(ids, FAR).token_ids


def choices(executor: CudaExecutor, prompt: list[int], text: list[int]) -> list[int]:
    """The likeliest id in the place of each of ``text``, eight rows a pass."""
    executor.reset()
    found = [int(executor.prefill(prompt).argmax())]
    for start in range(0, len(text) - 1, 8):
        rows = executor.verify(text[start : min(start + 8, len(text) - 1)])
        executor.commit(len(rows))
        found += rows.argmax(1).tolist()
    return found


def test_thousands_of_tokens_are_the_references(
    load: Loader, plain: Engine, far: tuple[list[int], list[int]]
) -> None:
    """Its greedy text by the reference's logits, then the reference's and ours: near ties apart."""
    executor, (prompt, own) = plain.executor, far
    assert isinstance(executor, CudaExecutor) and len(own) == 2000
    reference = Engine.from_pretrained(
        load.tiny, backend="reference", device="cuda", dtype="float32", draft="none"
    )
    wanted = reference.generate(prompt, FAR).token_ids
    written = plain.tokenizer.encode(TEXT.read_text(encoding="utf-8"))[:2000]
    for text, chosen in (
        (own, own),
        (wanted, choices(executor, prompt, wanted)),
        (written, choices(executor, prompt, written)),
    ):
        logits = reference.score([*prompt, *text[:-1]])[len(prompt) - 1 :]
        assert near_ties(logits, chosen) <= NEAR_TIES


@pytest.mark.parametrize("count", [1, 3, 4, 7])
@pytest.mark.parametrize("draft", ["mtp", "ngram", "wrong"])
def test_greedy_with_drafts_is_plain_greedy(
    load: Loader, prompt: list[int], expected: list[int], draft: str, count: int
) -> None:
    given: str | Draft = WrongDraft(4000) if draft == "wrong" else draft
    engine = load(draft=given, num_draft_tokens=count)
    result = engine.generate(prompt, GREEDY)
    assert result.token_ids == expected
    if draft != "wrong":
        assert result.stats.accepted >= 20


@pytest.mark.parametrize(
    ("draft", "count"),
    [*(("mtp", count) for count in range(1, 8)), ("ngram", 4), ("wrong", 4), ("knowing", 7)],
)
def test_thousands_of_tokens_are_plain_greedys(
    load: Loader, far: tuple[list[int], list[int]], draft: str, count: int
) -> None:
    prompt, wanted = far
    made = {"wrong": WrongDraft(4000), "knowing": KnowingDraft([*prompt, *wanted])}
    engine = load(draft=made.get(draft, draft), num_draft_tokens=count)
    result = engine.generate(prompt, FAR)
    assert len(wanted) == 2000 and result.token_ids == wanted
    assert (result.stats.accepted > 200) == (draft != "wrong")


def test_an_adaptive_depth_changes_no_token(
    load: Loader, prompt: list[int], expected: list[int]
) -> None:
    engine = load(draft="mtp", num_draft_tokens=7, adaptive_depth=True)
    result = engine.generate(prompt, GREEDY)
    assert result.token_ids == expected
    assert 0 < result.stats.drafted < 7 * result.stats.steps


def test_an_answer_longer_than_any_border(load: Loader, plain: Engine) -> None:
    """E26: recorded turns against eager ones, over thousands of positions; then another request."""
    params = SamplingParams(max_tokens=4200, ignore_eos=True)
    ids = plain.tokenizer.encode("import ")
    answers = []
    for recorded in (True, False):
        engine = load(max_len=5000, draft="mtp")
        decoder = engine.decoder
        assert isinstance(decoder, CudaDecoder)
        if not recorded:
            decoder._recordings._graphs.clear()
            decoder._recordings._can_record = False
        answers.append(engine.generate(ids, params).token_ids)
        answers.append(engine.generate(ids * 40, GREEDY).token_ids)
    assert len(answers[0]) == 4200 and answers[:2] == answers[2:]


@pytest.mark.parametrize("draft", ["none", "mtp", "ngram"])
@pytest.mark.parametrize("kind", REQUESTS)
def test_recordings_choose_as_the_host_does(
    load: Loader, prompt: list[int], kind: str, draft: str
) -> None:
    params = SamplingParams(**{"max_tokens": 120, "ignore_eos": True, **REQUESTS[kind]})
    engine = load(draft=draft)
    host = Engine(engine.executor, draft=engine.draft, config=engine.config)
    wanted = host.generate(prompt, params)
    for _ in range(2):
        result = engine.generate(prompt, params)
        alike = 115 if draft == "mtp" and params.temperature else 120  # see test_cuda_decoder.py
        assert result.token_ids[:alike] == wanted.token_ids[:alike]
        for got, known in list(
            zip(result.logprobs or (), wanted.logprobs or (), strict=params.logprobs is not None)
        )[:alike]:
            assert got.token_id == known.token_id
            assert got.logprob == pytest.approx(known.logprob, abs=1e-6)
            assert [token for token, _ in got.top] == [token for token, _ in known.top]


def test_mtp_drafts_are_as_good_as_the_references(load: Loader, prompt: list[int]) -> None:
    drafts: dict[str, Any] = {"draft": "mtp", "num_draft_tokens": 2}
    target = Engine.from_pretrained(load.tiny, backend="reference", device="cuda", **drafts)
    stats = (one.generate(prompt, GREEDY).stats for one in (target, load(**drafts)))
    reference, own = (one.accepted / one.drafted for one in stats)
    assert own > reference - 0.1


def test_requests_do_not_see_each_other(
    load: Loader, prompt: list[int], expected: list[int]
) -> None:
    engine = load(draft="mtp")
    sampled = SamplingParams(max_tokens=100, temperature=0.9, top_p=0.9, seed=11)
    first = engine.generate(prompt, sampled).token_ids
    engine.generate(prompt[:2], SamplingParams(max_tokens=30))
    stream = engine.stream(prompt * 3, GREEDY)
    for _ in range(5):
        next(stream)
    stream.close()
    assert engine.generate(prompt, sampled).token_ids == first
    assert engine.generate(prompt, GREEDY).token_ids == expected


@pytest.mark.parametrize("length", [1, 2, 3, 4, 900])
def test_prompts_of_any_length(load: Loader, plain: Engine, prompt: list[int], length: int) -> None:
    ids = (prompt * 300)[:length]
    params = SamplingParams(max_tokens=40, ignore_eos=True)
    wanted = plain.generate(ids, params).token_ids
    assert load(draft="mtp").generate(ids, params).token_ids == wanted


@pytest.mark.parametrize("kv_dtype", ["bfloat16", "fp8"])
def test_a_folder_in_4_bits(load: Loader, tmp_path: Path, kv_dtype: str) -> None:
    folder = symmetric(tmp_path / "model")
    params = SamplingParams(max_tokens=100, ignore_eos=True)
    results = [
        load(folder, draft=draft, kv_dtype=kv_dtype).generate([1, 2, 3, 4, 5], params).token_ids
        for draft in ("none", "mtp", "ngram")
    ]
    assert results[0] == results[1] == results[2]


def test_random_weights_of_a_shape(load: Loader, tmp_path: Path) -> None:
    shape = random_checkpoint(tmp_path, **SHAPE).folder / "config.json"
    params = SamplingParams(max_tokens=60, ignore_eos=True)
    results = []
    for draft in ("none", "mtp"):
        with pytest.warns(UserWarning, match="random"):
            engine = load(f"random:{shape}", draft=draft)
        results.append(engine.generate(list(range(50)), params).token_ids)
    assert results[0] == results[1] and len(results[0]) == 60


def test_a_context_that_cannot_fit_is_refused_before_a_weight_is_read(
    load: Loader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random_checkpoint(tmp_path, **SHAPE)
    monkeypatch.setattr("bytebound.reading.read_tensor", lambda *_: pytest.fail("data was read"))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device=None: (8 << 20, 80 << 30))
    with pytest.raises(InvalidSettingError, match=r"max_len 4096 needs .* GiB"):
        load(tmp_path, max_len=4096)


def test_settings_that_are_not_its_own(load: Loader) -> None:
    for name, value in (
        ("num_draft_tokens", 8), ("dtype", "float32"), ("kv_dtype", "int4"), ("device", "cpu"),
    ):  # fmt: skip
        with pytest.raises(InvalidSettingError, match=f"^{name}="):
            load(**{name: value})


def test_no_warning_and_no_growth(plain: Engine, prompt: list[int]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plain.generate(prompt, GREEDY)
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        plain.generate(prompt, GREEDY)
    assert torch.cuda.memory_allocated() <= before
