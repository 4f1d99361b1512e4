"""One request's growing answer: ids, text, and when it ends. No logits, no drafts."""

from bytebound.errors import TokenizerMissingError
from bytebound.sampling import SamplingParams
from bytebound.text.detokenizer import Detokenizer
from bytebound.text.stop_strings import StopStrings
from bytebound.text.tokenizer import Tokenizer


class Completion:
    """Takes tokens one at a time until one ends the answer.

    The ids hold every token up to and including the one that ended the answer. The text holds
    neither an end token nor a stop string. ``room`` is how many tokens the context still takes.
    """

    def __init__(
        self,
        params: SamplingParams,
        end_ids: frozenset[int],
        tokenizer: Tokenizer | None,
        room: int,
    ) -> None:
        if params.stop and tokenizer is None:
            raise TokenizerMissingError(
                "stop strings need a tokenizer, and the model folder holds none; use stop_token_ids"
            )
        self.params = params
        self.end_ids = end_ids
        self.limit = min(params.max_tokens, room)
        self.token_ids: list[int] = []
        self.finish_reason: str | None = "length" if self.limit == 0 else None
        self.text: str | None = None if tokenizer is None else ""
        self._detokenizer = None if tokenizer is None else Detokenizer(tokenizer)
        self._stops = StopStrings(params.stop)

    @property
    def remaining(self) -> int:
        """Tokens that may still come."""
        return self.limit - len(self.token_ids)

    def push(self, token: int) -> str:
        """Take one token; returns the text that it releases, which may lag behind."""
        self.token_ids.append(token)
        if token in self.end_ids:
            return self._finish("stop")
        delta = self._release(token)
        if self.finish_reason is None and self.remaining == 0:
            delta += self._finish("length")
        return delta

    def _release(self, token: int) -> str:
        if self._detokenizer is None or self.text is None:
            return ""
        delta = self._detokenizer.push([token])
        # As with end tokens, nothing ends an answer before min_tokens.
        active = len(self.token_ids) >= self.params.min_tokens
        delta, matched = self._stops.push(delta, active=active)
        if matched:
            self.finish_reason = "stop"
        self.text += delta
        return delta

    def _finish(self, reason: str) -> str:
        """End the answer and release the text held back."""
        self.finish_reason = reason
        if self._detokenizer is None or self.text is None:
            return ""
        delta, matched = self._stops.push(self._detokenizer.flush())
        if matched:
            self.finish_reason = "stop"
        else:
            delta += self._stops.flush()
        self.text += delta
        return delta
