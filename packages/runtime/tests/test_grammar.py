"""Scripts under a grammar: thoughts, ends, calls, refusals, and what is compiled and kept."""

import json
import threading
from typing import Any

import jsonschema
import pytest
from bytebound import (
    Engine,
    Grammar,
    InvalidRequestError,
    SamplingParams,
    TokenizerMissingError,
)
from bytebound.budgeted_stream import stream_with_budget
from bytebound.grammar_compiler import MOST_KEPT, MOST_KEPT_CHARS, GrammarCompiler
from bytebound.scripted import ScriptedExecutor
from bytebound.text.thinking_budget import ThinkingBudget
from bytebound.text.tokenizer import Tokenizer

from .grammar_runs import POINT, SHORT, scripted, under
from .grammar_walks import allowed_ids, compiler, end_of

ASK = [{"role": "user", "content": "why?"}]


@pytest.fixture(params=[1, 3], ids=["one-a-step", "three-a-step"])
def per_step(request: pytest.FixtureRequest) -> int:
    found: int = request.param
    return found


class TestThinking:
    def prompt(self, tokenizer: Tokenizer, thinking: bool | None) -> list[int]:
        return tokenizer.apply_chat_template(ASK, enable_thinking=thinking)

    def test_a_thought_is_free_and_the_grammar_begins_behind_it(
        self, tokenizer: Tokenizer, per_step: int
    ) -> None:
        text = 'no json { "here" 안녕 <tool_call> ]</think>\n\n{"x": 12, "on": true}'
        engine = scripted(tokenizer, text, per_step=per_step)
        result = engine.generate(self.prompt(tokenizer, True), under(POINT))
        assert result.text == text
        assert result.finish_reason == "stop"
        assert result.token_ids[-1] == end_of(tokenizer)

    def test_drafts_are_accepted_inside_the_thought_and_behind_it(
        self, tokenizer: Tokenizer
    ) -> None:
        text = 'the quick brown fox</think>\n\n{"x": 12, "on": true}'
        plain = scripted(tokenizer, text)
        drafted = scripted(tokenizer, text, per_step=3)
        prompt = self.prompt(tokenizer, True)
        one, other = (engine.generate(prompt, under(POINT)) for engine in (plain, drafted))
        assert one.token_ids == other.token_ids
        assert other.stats.accepted > len(one.token_ids) // 2

    def test_an_answer_cannot_end_inside_its_thought(
        self, tokenizer: Tokenizer, per_step: int
    ) -> None:
        text = 'so<|im_end|> it is</think>{"x": 1, "on": false}'
        engine = scripted(tokenizer, text, per_step=per_step)
        result = engine.generate(self.prompt(tokenizer, True), under(POINT))
        thought, _, answer = result.text.partition("</think>")
        assert thought.startswith("so")
        assert json.loads(answer) == {"x": 1, "on": False}

    def test_the_end_of_a_thought_is_told_by_its_id(self, tokenizer: Tokenizer) -> None:
        spelt = tokenizer.encode("</think>")
        assert len(spelt) > 1
        tail = [*spelt, *tokenizer.encode('free</think>{"x": 1, "on": true}', parse_control=True)]
        engine = scripted(tokenizer, "hm ", tail=tail)
        result = engine.generate(self.prompt(tokenizer, True), under(POINT))
        assert result.text == 'hm </think>free</think>{"x": 1, "on": true}'

    def test_a_thought_that_is_cut_ends_with_length(self, tokenizer: Tokenizer) -> None:
        engine = scripted(tokenizer, "the quick brown fox jumps over the lazy dog</think>{}")
        result = engine.generate(self.prompt(tokenizer, True), under({}, max_tokens=5))
        assert result.finish_reason == "length"
        assert len(result.token_ids) == 5

    def test_without_a_thought_the_first_token_is_held(self, tokenizer: Tokenizer) -> None:
        """The prompt ends behind a closed thought: neither text nor another thought may come."""
        for text in ("sure: 3", "<think>3"):
            engine = scripted(tokenizer, text)
            result = engine.generate(self.prompt(tokenizer, False), under({"type": "integer"}))
            assert isinstance(json.loads(result.text), int)
            assert "<think>" not in result.text

    def test_a_reply_may_open_its_own_thought(self, tokenizer: Tokenizer, per_step: int) -> None:
        """Where the template leaves that to the model."""
        start = tokenizer.encode("<|im_start|>assistant\n", parse_control=True)
        text = "<think>free</think>\n\n3"
        engine = scripted(tokenizer, text, per_step=per_step)
        result = engine.generate(start, under({"type": "integer"}))
        assert result.text == text
        # Not in the middle of an answer, and not in a prompt without a turn.
        engine = scripted(tokenizer, '{"<think>x')
        assert "<think>" not in engine.generate(start, under({}, max_tokens=9)).text
        engine = scripted(tokenizer, text)
        raw = tokenizer.encode("the integer: ")
        assert "<think>" not in engine.generate(raw, under({"type": "integer"})).text

    def test_a_budget_ends_the_thought_and_the_answer_is_held(self, tokenizer: Tokenizer) -> None:
        """The script starts again behind the forced end, with words that are no JSON."""
        engine = scripted(tokenizer, "the quick brown fox jumps over the lazy dog")
        prompt = self.prompt(tokenizer, True)
        params = under(SHORT, max_tokens=60)
        events = list(
            stream_with_budget(engine, prompt, params, ThinkingBudget(tokenizer, prompt, 4))
        )
        text = "".join(event.text_delta for event in events)
        assert events[-1].finish_reason == "stop"
        jsonschema.validate(json.loads(text.partition("</think>")[2]), SHORT)


class TestEnds:
    def test_a_finished_form_ends_the_answer(self, tokenizer: Tokenizer, per_step: int) -> None:
        engine = scripted(tokenizer, '{"x": 1, "on": true} and more text', per_step=per_step)
        result = engine.generate([1], under(POINT))
        assert result.text == '{"x": 1, "on": true}'
        assert result.finish_reason == "stop"
        assert result.token_ids[-1] == end_of(tokenizer)

    def test_no_end_before_the_form_is_finished(self, tokenizer: Tokenizer, per_step: int) -> None:
        engine = scripted(tokenizer, '{"x": 1<|im_end|>, "on": true}', per_step=per_step)
        result = engine.generate([1], under(POINT))
        jsonschema.validate(json.loads(result.text), POINT)

    def test_a_stop_token_may_not_cut_the_form(self, tokenizer: Tokenizer) -> None:
        (comma,) = tokenizer.encode(",")
        engine = scripted(tokenizer, "[1,2]")
        params = under({"type": "array", "maxItems": 3}, stop_token_ids=[comma])
        result = engine.generate([1], params)
        assert isinstance(json.loads(result.text), list)
        assert comma not in result.token_ids

    def test_the_limit_cuts_it_and_says_so(self, tokenizer: Tokenizer, per_step: int) -> None:
        engine = scripted(tokenizer, '{"x": 1, "on": true}', per_step=per_step)
        whole = engine.generate([1], under(POINT))
        for limit in range(1, len(whole.token_ids)):
            result = engine.generate([1], under(POINT, max_tokens=limit))
            assert result.finish_reason == "length"
            assert result.token_ids == whole.token_ids[:limit]

    def test_a_stop_string_cuts_it_as_ever(self, tokenizer: Tokenizer, per_step: int) -> None:
        engine = scripted(tokenizer, '{"x": 1, "on": true}', per_step=per_step)
        result = engine.generate([1], under(POINT, stop=[', "on']))
        assert result.text == '{"x": 1'
        assert result.finish_reason == "stop"

    def test_padding_and_control_tokens_are_no_text(self, tokenizer: Tokenizer) -> None:
        """The script wants them inside a string; ids behind the tokenizer's have no text at all."""
        ids = [tokenizer.vocab_size + 3, *sorted(tokenizer.control_ids)]
        engine = scripted(tokenizer, '"a', tail=[*ids, *tokenizer.encode('"')])
        result = engine.generate([1], under({"type": "string"}))
        assert not {*ids} - {end_of(tokenizer)} & {*result.token_ids}
        assert len(json.loads(result.text)) >= len(ids)

    def test_text_streams_as_it_comes(self, tokenizer: Tokenizer) -> None:
        text = '{"x": 12, "on": true}'
        events = list(scripted(tokenizer, text).stream([1], under(POINT)))
        assert len([event for event in events if event.text_delta]) > 5
        assert "".join(event.text_delta for event in events) == text


class TestCalls:
    def grammar(self) -> Grammar:
        return Grammar.json_schema(POINT).or_calls(["read", "st.op"])

    @pytest.mark.parametrize(
        "text",
        [
            '{"x": 3, "on": true}',
            "<tool_call>\n<function=read>\n<parameter=path>\na 안녕 {\n</parameter>\n</function>\n"
            "</tool_call>",
            "\n<tool_call>\n<function=st.op>\n</function>\n</tool_call>\n<tool_call>\n"
            '{"name": "read", "arguments": {"a": [1]}}\n</tool_call>',
        ],
        ids=["json", "tags", "two"],
    )
    def test_json_or_calls(self, tokenizer: Tokenizer, per_step: int, text: str) -> None:
        engine = scripted(tokenizer, text, per_step=per_step)
        params = SamplingParams(max_tokens=300, grammar=self.grammar())
        assert engine.generate([1], params).text == text

    def test_only_functions_on_offer_and_nothing_around_a_call(self, tokenizer: Tokenizer) -> None:
        texts = [
            "I call it: <tool_call>\n<function=read>\n</function>\n</tool_call>",
            "<tool_call>\n<function=write>\n</function>\n</tool_call>",
            "<tool_call>\n<function=read>\n</function>\n</tool_call> done",
        ]
        for text in texts:
            engine = scripted(tokenizer, text)
            params = SamplingParams(max_tokens=200, grammar=self.grammar())
            result = engine.generate([1], params)
            assert "write" not in result.text
            assert not result.text.endswith("done")
            assert result.text.lstrip()[:1] in "{<"

    def test_a_call_may_end_a_thought(self, tokenizer: Tokenizer, per_step: int) -> None:
        text = "hm<tool_call>\n<function=read>\n</function>\n</tool_call>"
        engine = scripted(tokenizer, text, per_step=per_step)
        prompt = tokenizer.apply_chat_template(ASK, enable_thinking=True)
        params = SamplingParams(max_tokens=200, grammar=self.grammar())
        assert engine.generate(prompt, params).text == text

    def test_a_name_that_is_none_is_refused(self) -> None:
        for name in ("", "a b", 'x"y', "x" * 200, 3):
            with pytest.raises(InvalidRequestError, match="tools: got the name"):
                Grammar.json_object().or_calls([name])  # type: ignore[list-item]


class TestRefusals:
    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"min_tokens": 2}, "min_tokens: got 2, expected 0 together with a grammar"),
            ({"ignore_eos": True}, "ignore_eos: got True"),
        ],
    )
    def test_what_contradicts_a_form(self, fields: dict[str, Any], message: str) -> None:
        with pytest.raises(InvalidRequestError, match=message):
            under(POINT, **fields)

    @pytest.mark.parametrize("grammar", [{"type": "object"}, "json", True])
    def test_a_grammar_is_a_grammar(self, grammar: Any) -> None:
        with pytest.raises(InvalidRequestError, match=r"grammar: got .*, expected a Grammar"):
            SamplingParams(grammar=grammar)

    def test_it_needs_a_tokenizer_and_an_end(self, tokenizer: Tokenizer) -> None:
        executor = ScriptedExecutor([[1]], tokenizer.vocab_size, end_id=3)
        with pytest.raises(TokenizerMissingError, match="grammar"):
            Engine(executor, end_ids=[3]).generate([1], under(POINT))
        with pytest.raises(InvalidRequestError, match="no end token"):
            Engine(executor, tokenizer=tokenizer).generate([1], under(POINT))

    def test_it_needs_a_vocabulary_of_bytes(
        self, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(tokenizer.__dict__, "byte_level", False)
        with pytest.raises(InvalidRequestError, match="not one of bytes"):
            compiler(tokenizer).check(Grammar.json_object())


class TestCompiler:
    def test_a_schema_is_compiled_once_and_few_are_kept(
        self, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        compiled = compiler(tokenizer)
        count = 0
        real = GrammarCompiler._compile

        def counted(self: GrammarCompiler, rules: str, *more: str) -> Any:
            nonlocal count
            count += 1
            return real(self, rules, *more)

        monkeypatch.setattr(GrammarCompiler, "_compile", counted)
        for _ in range(5):
            compiled.check(Grammar.json_schema(POINT))
            compiled.constraint(Grammar.json_schema(POINT), [1], [3])
        assert count == 1
        for number in range(2 * MOST_KEPT):
            compiled.check(Grammar.json_schema({"const": number}))
        assert len(compiled._kept) == MOST_KEPT
        for number in range(6):
            compiled.check(Grammar.json_schema({"const": str(number) * 200_000}))
        assert 800_000 < sum(map(len, compiled._kept)) <= MOST_KEPT_CHARS

    def test_requests_of_one_schema_do_not_share_their_place(self, tokenizer: Tokenizer) -> None:
        compiled, grammar = compiler(tokenizer), Grammar.json_schema(POINT)
        one, other = (compiled.constraint(grammar, [1], [end_of(tokenizer)]) for _ in range(2))
        start = allowed_ids(other)
        for token in tokenizer.encode('{"x": 1'):
            one.append(token)
        assert allowed_ids(other) == start != allowed_ids(one)

    def test_threads_may_compile_while_a_request_runs(self, tokenizer: Tokenizer) -> None:
        engine = scripted(tokenizer, '{"x": 12, "on": true}')
        failures = list[BaseException]()
        stop = threading.Event()

        def compile_many() -> None:
            number = 0
            while not stop.is_set():
                number += 1
                try:
                    engine.grammars.check(Grammar.json_schema({"const": number}))
                    engine.grammars.check(Grammar.json_schema(POINT))
                except BaseException as error:
                    failures.append(error)
                    return

        threads = [threading.Thread(target=compile_many) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(30):
                assert engine.generate([1], under(POINT)).text == '{"x": 12, "on": true}'
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert not failures
