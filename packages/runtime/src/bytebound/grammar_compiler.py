"""Grammars compiled for one vocabulary, and kept: the same schema comes with every request."""

import re
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from bytebound.constraint import Constraint, Tags
from bytebound.errors import InvalidRequestError
from bytebound.grammar import LONGEST_LEAD, Grammar
from bytebound.text.tokenizer import Tokenizer

MOST_KEPT = 64
MOST_KEPT_CHARS = 1024 * 1024
# A state takes one or two kilobytes. A schema that needs more is refused, or its answer ends.
MOST_STATES = 50_000
STEP_FUEL = 4_000_000  # of a token: a string of 512 characters at least takes tenths of a second
MOST_ITEMS = 10_000  # of a parser's row: an object of 2,000 optional properties


class GrammarCompiler:
    """Compiles grammars for a tokenizer and the model's vocabulary; any thread may call it.

    ``vocab_size`` is the model's: ids that the tokenizer does not have are never allowed.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, end_ids: Iterable[int]) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._end_ids = sorted(i for i in end_ids if 0 <= i < vocab_size)
        self._vocabulary: LLTokenizer | None = None
        self._kept = OrderedDict[str, LLMatcher]()
        self._lock = threading.Lock()

    @cached_property
    def _tags(self) -> Tags:
        return Tags.of(self._tokenizer)

    def check(self, grammar: Grammar) -> None:
        """Compile ``grammar``, so that a request with it begins at once.

        Raises:
            InvalidRequestError: it has no valid answer, is too large, holds a pattern or a form
                that is not supported, or the model has no end token or no vocabulary of bytes.
        """
        with self._lock:
            self._compiled(grammar)

    def constraint(
        self, grammar: Grammar, prompt: Sequence[int], end_ids: Iterable[int]
    ) -> Constraint:
        """The state of one request: at its start, behind ``prompt``. Raises as ``check`` does."""
        with self._lock:
            matcher = self._compiled(grammar).deep_copy()
        phase = self._tags.phase_behind(self._tokenizer, prompt)
        calls = grammar.calls is not None and self._tags.call_close is not None
        return Constraint(matcher, self._vocab_size, end_ids, self._tags, phase, calls=calls)

    def _compiled(self, grammar: Grammar) -> LLMatcher:
        if grammar.calls is not None and grammar.schema is not None:
            self._compiled(replace(grammar, calls=None))  # the schema has an answer of its own
        rules = grammar.rules(self._tags.call_open, self._tags.call_close)
        matcher = self._kept.pop(rules, None)
        if matcher is None or _is_spent(matcher):
            for name, part in grammar.calls.parts if grammar.calls is not None else ():
                self._compile(part, f"tools: {name}", lead="")
            matcher = self._compile(rules, "tools" if grammar.schema is None else "schema")
        self._kept[rules] = matcher
        while len(self._kept) > 1 and (
            len(self._kept) > MOST_KEPT or sum(map(len, self._kept)) > MOST_KEPT_CHARS
        ):
            self._kept.popitem(last=False)
        return matcher

    def _compile(self, rules: str, what: str = "schema", lead: str = LONGEST_LEAD) -> LLMatcher:
        if self._vocabulary is None:
            self._vocabulary = self._read_vocabulary()
        limits = LLParserLimits(
            step_lexer_fuel=STEP_FUEL,
            max_lexer_states=MOST_STATES,
            max_items_in_row=MOST_ITEMS,
            verbose_errors=False,
        )
        source = LLMatcher.grammar_from_lark(rules)
        matcher = LLMatcher(self._vocabulary, source, log_level=0, limits=limits)
        # Behind the white space that may lead, a value must begin.
        start = matcher.deep_copy()
        begins = start.consume_tokens(self._tokenizer.encode(lead)) and any(start.compute_bitmask())
        if not begins or start.is_error():
            raise InvalidRequestError(f"{what}: {_reason(start.get_error())}")
        return matcher

    def _read_vocabulary(self) -> LLTokenizer:
        tokenizer = self._tokenizer
        if not tokenizer.byte_level:
            raise InvalidRequestError(
                "grammar: the model's vocabulary is not one of bytes, so its tokens cannot be "
                "held to a grammar; ask without one"
            )
        if not self._end_ids:
            raise InvalidRequestError(
                "grammar: the model has no end token, so an answer could not end behind its JSON; "
                "ask without one"
            )
        return LLTokenizer(
            TokenizerWrapper(_Vocabulary(tokenizer, self._vocab_size, self._end_ids[0])),
            n_vocab=self._vocab_size,
            eos_token=self._end_ids,
            slices=LLTokenizer.json_slices(),
        )


class _Vocabulary:
    """A tokenizer as the library asks for it; ids without bytes, and padding, match nothing."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, end_id: int) -> None:
        self.eos_token_id = end_id
        self.bos_token_id = None
        self.special_token_ids = sorted(i for i in tokenizer.control_ids if i < vocab_size)
        known = min(vocab_size, tokenizer.vocab_size)
        self.tokens = [self._bytes_of(tokenizer, i) for i in range(known)]
        self.tokens += [b""] * (vocab_size - known)
        self._tokenizer = tokenizer

    def __call__(self, text: bytes | str) -> list[int]:
        """Ids of a text; the library asks where it looks for ids that must come."""
        return self._tokenizer.encode(text if isinstance(text, str) else text.decode())

    def _bytes_of(self, tokenizer: Tokenizer, token_id: int) -> bytes:
        if token_id in tokenizer.control_ids:
            return tokenizer.decode([token_id], skip_special_tokens=False).encode()
        return tokenizer.token_bytes(token_id)


def _is_spent(matcher: LLMatcher) -> bool:
    """Whether an answer came to a limit: copies share their states, so all of them end there."""
    start = matcher.deep_copy()
    start.compute_bitmask()
    return bool(start.is_error())


def _reason(error: str) -> str:
    """The library's message in one line, without the grammar's text that it quotes."""
    lines = [line.strip() for line in error.splitlines()]
    kept = [line for line in lines if line and line[0] not in "<^" and "|" not in line]
    text = re.sub(r"^at \d+\(\d+\): |failed to compile JSON schema: ", "", " ".join(kept))
    if not text or text.startswith("NoExtension"):
        text = "no value is valid"
    return f"it cannot be enforced: {text[:300]}; change the schema"
