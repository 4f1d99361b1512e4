"""The server over the shipped model: the same answers as the engine's, whatever the way to them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from bytebound import Engine

from .server_runs import Served, served

ASK: list[Any] = [{"role": "user", "content": "What is 2 + 3?"}]
PROMPT = "Once upon a time there was"
DRAWN: dict[str, Any] = {"temperature": 2, "seed": 5}
END_ID = 4078
ENDED: dict[str, Any] = {"logit_bias": {str(END_ID): 99}}  # ends at once unless it must not
COLD: dict[str, Any] = {"model": "tiny", "prompt": PROMPT, "max_tokens": 12}


@pytest.fixture(scope="module")
def tiny() -> Iterator[Served]:
    engine = Engine.from_pretrained("tiny", backend="reference", device="cpu", dtype="float32")
    with served(engine, model="tiny") as found:
        yield found


def text(tiny: Served, **more: Any) -> str:
    response = tiny.post("/v1/completions", {**COLD, **more})
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["text"])


@pytest.mark.parametrize(
    "more", [{}, {"temperature": 1.2, "seed": 7, "top_p": 0.9}], ids=["greedy", "sampled"]
)
def test_chat_is_the_same_streamed_and_whole(tiny: Served, more: dict[str, Any]) -> None:
    asked: dict[str, Any] = {"model": "tiny", "messages": ASK, "max_tokens": 60, **more}
    whole = tiny.openai.chat.completions.create(**asked)
    content = reasoning = ""
    finish = None
    for chunk in tiny.openai.chat.completions.create(**asked, stream=True):
        delta = chunk.choices[0].delta
        content += delta.content or ""
        reasoning += getattr(delta, "reasoning_content", None) or ""
        finish = chunk.choices[0].finish_reason
    message = whole.choices[0].message
    assert message.content == content
    assert (message.model_extra or {}).get("reasoning_content", "") == reasoning != ""
    assert whole.choices[0].finish_reason == finish


def test_anthropic_is_the_same_streamed_and_whole(tiny: Served) -> None:
    asked: dict[str, Any] = {"model": "tiny", "messages": ASK, "max_tokens": 60}
    asked["thinking"] = {"type": "enabled", "budget_tokens": 2048}
    whole = tiny.anthropic.messages.create(**asked)
    with tiny.anthropic.messages.stream(**asked) as stream:
        rebuilt = stream.get_final_message()
    assert [block.type for block in whole.content] == ["thinking", "text"]
    for one, other in zip(whole.content, rebuilt.content, strict=True):
        assert one.model_dump(exclude={"parsed_output"}) == other.model_dump(
            exclude={"parsed_output"}
        )
    assert whole.stop_reason == rebuilt.stop_reason


def test_a_thought_keeps_its_budget(tiny: Served) -> None:
    asked: dict[str, Any] = {"model": "tiny", "messages": ASK, "max_tokens": 60}
    free = tiny.openai.chat.completions.create(**asked).choices[0].message
    bound = tiny.openai.chat.completions.create(**asked, extra_body={"thinking_budget": 5})
    message = bound.choices[0].message
    tokenizer = tiny.engine.tokenizer
    thought = (message.model_extra or {})["reasoning_content"]
    assert 0 < len(tokenizer.encode(thought)) <= 5
    assert len((free.model_extra or {})["reasoning_content"]) > len(thought)
    assert message.content


def test_thinking_is_off_where_it_is_said_so(tiny: Served) -> None:
    asked: dict[str, Any] = {"model": "tiny", "messages": ASK, "max_tokens": 30}
    off = {"chat_template_kwargs": {"enable_thinking": False}}
    for body in (off, {"reasoning_effort": "none"}):
        found = tiny.post("/v1/chat/completions", {**asked, **body}).json()
        assert "reasoning_content" not in found["choices"][0]["message"]
    switched = [{"role": "user", "content": "What is 2 + 3? /no_think"}]
    found = tiny.post("/v1/chat/completions", {**asked, "messages": switched}).json()
    assert "reasoning_content" not in found["choices"][0]["message"]
    found = tiny.post("/v1/chat/completions", asked).json()
    assert found["choices"][0]["message"]["reasoning_content"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"temperature": 1, "seed": 1}, {"temperature": 1, "seed": 2}),
        ({}, {"temperature": 2, "seed": 3}),
        ({"max_tokens": 60}, {"max_tokens": 60, "repetition_penalty": 2}),
        ({"max_tokens": 60}, {"max_tokens": 60, "presence_penalty": 2}),
        ({"max_tokens": 60}, {"max_tokens": 60, "frequency_penalty": 2}),
        ({}, {"max_tokens": 3}),
        (DRAWN, {**DRAWN, "top_k": 2}),
        (DRAWN, {**DRAWN, "top_p": 0.3}),
        (DRAWN, {**DRAWN, "min_p": 0.5}),
        ({}, {"logit_bias": {"198": 99}}),
        ({"stop": ["zzz"]}, {"stop": [" "]}),
        (ENDED, {**ENDED, "min_tokens": 4}),
    ],
)
def test_a_parameter_has_its_effect(
    tiny: Served, one: dict[str, Any], other: dict[str, Any]
) -> None:
    assert text(tiny, **one) == text(tiny, **one)
    assert text(tiny, **one) != text(tiny, **other)


def test_parameters_that_keep_one_id_are_greedy(tiny: Served) -> None:
    greedy = text(tiny)
    for kept in ({"top_k": 1}, {"top_p": 1e-9}, {"min_p": 1.0}):
        assert text(tiny, temperature=2, seed=5, **kept) == greedy
    assert text(tiny, temperature=2, seed=5) != greedy


def test_an_end_can_be_ignored(tiny: Served) -> None:
    for more, count in (({}, 1), ({"ignore_eos": True}, COLD["max_tokens"])):
        answer = tiny.post("/v1/completions", {**COLD, **ENDED, **more}).json()
        assert answer["usage"]["completion_tokens"] == count
        assert answer["choices"][0]["finish_reason"] == ("stop" if count == 1 else "length")


def test_ids_can_be_banned_and_stop(tiny: Served) -> None:
    greedy = tiny.engine.tokenizer.encode(text(tiny))
    banned = text(tiny, logit_bias={str(greedy[0]): -100})
    assert tiny.engine.tokenizer.encode(banned)[0] != greedy[0]
    word = text(tiny)[4:7]
    stopped = text(tiny, stop=[word])
    assert stopped == text(tiny)[: text(tiny).index(word)]
    assert len(text(tiny, stop_token_ids=[greedy[2]])) < len(text(tiny))


def test_echoed_logprobs_are_those_of_a_forward_pass(tiny: Served) -> None:
    engine = tiny.engine
    ids = engine.tokenizer.encode(PROMPT)
    wanted = torch.log_softmax(engine.score(ids).double(), -1)
    for max_tokens in (0, 1):
        body = {**COLD, "max_tokens": max_tokens, "echo": True, "logprobs": 2}
        choice = tiny.post("/v1/completions", body).json()["choices"][0]
        found = choice["logprobs"]
        assert len(found["tokens"]) == len(ids) + max_tokens
        assert "".join(found["tokens"]) == choice["text"]
        assert found["token_logprobs"][0] is None and found["top_logprobs"][0] is None
        for t in range(1, len(ids)):
            want = float(wanted[t - 1, ids[t]])
            assert found["token_logprobs"][t] == pytest.approx(want, abs=1e-9)
            top = found["top_logprobs"][t]
            assert max(top.values()) == pytest.approx(float(wanted[t - 1].max()), abs=1e-9)
    as_ids = {**COLD, "prompt": [ids], "max_tokens": 1, "echo": True, "logprobs": 2}
    assert tiny.post("/v1/completions", as_ids).json()["choices"][0]["logprobs"] == found


def test_logprobs_do_not_depend_on_the_temperature(tiny: Served) -> None:
    def first(**more: Any) -> dict[str, float]:
        body = {**COLD, "max_tokens": 1, "logprobs": 5, **more}
        found = tiny.post("/v1/completions", body).json()["choices"][0]["logprobs"]
        return dict(found["top_logprobs"][0])

    cold = first()
    for temperature in (0.5, 1):
        warm = first(temperature=temperature, seed=1)
        for name, value in cold.items():
            assert warm[name] == value


def test_a_longer_conversation_pays_for_what_is_new(tiny: Served) -> None:
    words = "Tell me about the sun and the moon and the stars. " * 20
    messages: list[Any] = [{"role": "user", "content": words}]
    asked: dict[str, Any] = {"model": "tiny", "max_tokens": 20}
    cold = tiny.post("/v1/chat/completions", {**asked, "messages": messages}).json()
    answer = cold["choices"][0]["message"]
    messages += [answer, {"role": "user", "content": "And the sea?"}]
    warm = tiny.post("/v1/chat/completions", {**asked, "messages": messages}).json()
    usage = warm["usage"]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    assert cached == warm["x_bytebound"]["cached_tokens"]
    assert cached > 0.6 * cold["usage"]["prompt_tokens"]
    twice = tiny.anthropic.messages.create(model="x", max_tokens=5, messages=messages[:1])
    again = tiny.anthropic.messages.create(model="x", max_tokens=5, messages=messages[:1])
    assert again.usage.cache_read_input_tokens == twice.usage.input_tokens + (
        twice.usage.cache_read_input_tokens or 0
    )
    assert again.usage.input_tokens == 0


def test_lm_eval_measures_the_same_through_http(
    tiny: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own client: prompts as ids, ``echo``, one likeliest token, one token more."""
    import bytebound
    from lm_eval.api.instance import Instance
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    folder = Path(bytebound.__file__).parent / "models" / "tiny"
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    client = LocalCompletionsAPI(
        base_url=f"{tiny.url}/v1/completions",
        model="tiny",
        tokenizer=str(folder),
        num_concurrent=1,
        max_retries=1,
    )
    pairs = [("The sun is", " bright today"), ("2 + 3 =", " 5"), ("2 + 3 =", " 17")]
    greedy_text = text(tiny, max_tokens=3)
    pairs.append((PROMPT, greedy_text))
    asked = [Instance("loglikelihood", {}, pair, i) for i, pair in enumerate(pairs)]
    encode = tiny.engine.tokenizer.encode
    for (context, more), (found, greedy) in zip(pairs, client.loglikelihood(asked), strict=True):
        start, ids = len(encode(context)), encode(context + more)
        rows = torch.log_softmax(tiny.engine.score(ids).double(), -1)
        want = [float(rows[t - 1, ids[t]]) for t in range(start, len(ids))]
        assert found == pytest.approx(sum(want), abs=1e-9)
        best = [int(rows[t - 1].argmax()) == ids[t] for t in range(start, len(ids))]
        assert greedy is all(best)
