"""Log probabilities in OpenAI's two forms, and those of a prompt.

They are of the model's own distribution: natural logarithms of the softmax of its logits, before
bias, penalties, temperature and truncation.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from bytebound.engine import Engine
from bytebound.results import TokenLogprob
from bytebound.sampling import Sampler, SamplingParams
from bytebound.server.errors import bad_request
from bytebound.text.detokenizer import Detokenizer
from bytebound.text.tokenizer import Tokenizer

# A prompt is scored in one piece: float32 logits of every position at once.
MOST_SCORE_BYTES = 4 * 2**30


def token_bytes(tokenizer: Tokenizer, token_id: int) -> bytes:
    """The bytes that a token stands for; a control token stands for its name."""
    own = tokenizer.token_bytes(token_id) if tokenizer.byte_level else b""
    return own or tokenizer.decode([token_id], skip_special_tokens=False).encode()


def token_name(tokenizer: Tokenizer, token_id: int) -> str:
    r"""A token as text; bytes that are no text by themselves are written ``bytes:\xe2\x80``."""
    raw = token_bytes(tokenizer, token_id)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def chat_entries(
    tokenizer: Tokenizer, logprobs: Iterable[TokenLogprob], top: int
) -> list[dict[str, Any]]:
    """Entries of ``choices[].logprobs.content``."""

    def entry(token_id: int, logprob: float) -> dict[str, Any]:
        raw = token_bytes(tokenizer, token_id)
        name = token_name(tokenizer, token_id)
        return {"token": name, "logprob": logprob, "bytes": list(raw)}

    return [
        {
            **entry(item.token_id, item.logprob),
            "top_logprobs": [entry(*likely) for likely in item.top[:top]],
        }
        for item in logprobs
    ]


class CompletionLogprobs:
    """Builds ``choices[].logprobs`` of a completion; ``text_offset`` counts from its ``text``."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._offset = 0
        self._detokenizer = Detokenizer(tokenizer)

    def prompt(self, ids: Sequence[int], scored: Sequence[TokenLogprob]) -> dict[str, Any]:
        """Entries of an echoed prompt: nothing stands before its first token, so it has none."""
        first = {
            "tokens": [token_name(self._tokenizer, ids[0])],
            "token_logprobs": [None],
            "top_logprobs": [None],
            "text_offset": [self._place(ids[0])],
        }
        rest = self.take(scored)
        return {name: first[name] + rest[name] for name in first}

    def take(self, logprobs: Iterable[TokenLogprob]) -> dict[str, Any]:
        """Entries of the next tokens."""
        items = list(logprobs)
        return {
            "tokens": [token_name(self._tokenizer, item.token_id) for item in items],
            "token_logprobs": [item.logprob for item in items],
            "top_logprobs": [
                {token_name(self._tokenizer, i): value for i, value in item.top} for item in items
            ],
            "text_offset": [self._place(item.token_id) for item in items],
        }

    def _place(self, token_id: int) -> int:
        place = self._offset
        self._offset += len(self._detokenizer.push([token_id]))
        return place


def check_score_size(engine: Engine, ids: Sequence[int]) -> None:
    """Refuse prompt logprobs of a prompt whose logits would not fit."""
    most = MOST_SCORE_BYTES // (4 * engine.executor.vocab_size)
    if len(ids) > most:
        raise bad_request(
            f"echo with logprobs: the prompt has {len(ids)} tokens; this model's vocabulary "
            f"allows {most}, so score it in parts",
            "prompt",
        )


def score_prompt(engine: Engine, ids: Sequence[int], top: int) -> list[TokenLogprob]:
    """Log probabilities of ``ids[1:]``, each given what stands before it."""
    if len(ids) < 2:
        return []
    logits = engine.score(list(ids))
    params = SamplingParams(logprobs=top)
    reader = Sampler(params, (), engine.executor.vocab_size, frozenset(), 0)
    return [reader.token_logprob(logits[t - 1], ids[t]) for t in range(1, len(ids))]
