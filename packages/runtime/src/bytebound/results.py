"""What a generation hands back: plain records per token, step and request; no behaviour."""

from dataclasses import asdict, dataclass, field
from typing import Any

from bytebound.errors import TokenizerMissingError


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Natural-log probability of one emitted token under the model's own distribution."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]
    """(id, logprob) of the ``n`` likeliest tokens, likeliest first, equal values by id.

    The emitted token follows as entry ``n + 1`` when it is not among them.
    """


@dataclass(frozen=True, slots=True)
class GenerationStats:
    """Counts and times of one request."""

    prompt_tokens: int
    cached_tokens: int
    """Tokens of the prompt that an earlier request had left processed."""
    completion_tokens: int
    prefill_s: float
    decode_s: float
    tok_per_s: float
    """Tokens after the first per second of decoding: the first one belongs to the prefill."""
    steps: int
    """Passes of the model after the prefill."""
    drafted: int
    accepted: int
    mean_accepted_len: float
    """Tokens gained per step, the target's own one included; 1.0 without drafts."""
    bytes_per_token: float | None = None
    """Bytes that a plain decode step moves at 1,024 cached positions; None where nobody counts."""
    percent_of_limit: float | None = None
    """Share of the device's memory-bandwidth limit reached; None on a CPU."""

    def as_dict(self) -> dict[str, Any]:
        """Return the fields by name, ready for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """What one step added, and the request's stats up to it; the last one says why it ended."""

    token_ids: tuple[int, ...]
    text_delta: str
    logprobs: tuple[TokenLogprob, ...] | None = None
    finish_reason: str | None = None
    stats: GenerationStats | None = None


@dataclass(slots=True)
class GenerationResult:
    """One finished request."""

    token_ids: list[int]
    logprobs: list[TokenLogprob] | None
    finish_reason: str
    stats: GenerationStats
    prompt_ids: list[int] | None = field(default=None, repr=False)
    _text: str | None = None

    @property
    def text(self) -> str:
        """The completion as text; TokenizerMissingError when the folder had no tokenizer."""
        if self._text is None:
            raise TokenizerMissingError(
                "the result has no text: the model folder holds no tokenizer. "
                "Read .token_ids, or add tokenizer.json to the folder"
            )
        return self._text
