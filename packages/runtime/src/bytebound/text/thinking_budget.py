"""When a thought has had all the tokens that a request grants it, and the ids that then end it."""

from collections.abc import Sequence

from bytebound.errors import InvalidRequestError
from bytebound.text.thinking import CLOSE, OPEN, begins_thinking, control_id
from bytebound.text.tokenizer import Tokenizer
from bytebound.text.tool_calls import OPEN as CALL_OPEN

# As the templates of this family write the end of a thought.
_BEFORE, _AFTER = "\n", "\n\n"


class ThinkingBudget:
    """Counts the tokens of one reply's thought.

    ``limit`` is how many tokens may stand between the prompt, or the model's own opening tag, and
    the end-of-thought token; a newline in front of that token is one of them. ``calls`` is whether
    the request offers tools: a tool call then ends a thought. Raises InvalidRequestError for a
    ``limit`` that is no whole number of 0 or more.
    """

    def __init__(
        self, tokenizer: Tokenizer, prompt_ids: Sequence[int], limit: int, *, calls: bool = False
    ) -> None:
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 0:
            raise InvalidRequestError(
                f"thinking budget: got {limit!r}, expected a whole number of tokens, 0 or more"
            )
        self.limit = limit
        self.used = 0
        """Tokens of the thought so far."""
        self.thinking = begins_thinking(tokenizer, prompt_ids)
        """Whether the reply is inside a thought."""
        self._tokenizer = tokenizer
        self._opening = control_id(tokenizer, OPEN)
        self._end = control_id(tokenizer, CLOSE)
        self._ends = {self._end, control_id(tokenizer, CALL_OPEN) if calls else None}
        self._at_start = not self.thinking
        self._before = tuple(tokenizer.encode(_BEFORE))
        self._after = tuple(tokenizer.encode(_AFTER))
        self._on_new_line = True

    @property
    def exhausted(self) -> bool:
        """Whether the next ids must be ``closing``."""
        return self.thinking and self.used >= self.limit - len(self._before)

    @property
    def closing(self) -> tuple[int, ...]:
        """The ids that end the thought here: the end-of-thought token with its white space."""
        if self._end is None:
            return ()
        before = () if self._on_new_line or self.limit < len(self._before) else self._before
        return (*before, self._end, *self._after)

    def push(self, token_id: int) -> None:
        """Take the next id of the reply."""
        if self.thinking:
            self.thinking = token_id not in self._ends
            self.used += self.thinking
            self._on_new_line = self._tokenizer.decode([token_id]).endswith("\n")
        elif self._at_start and token_id == self._opening:
            self.thinking, self._at_start = True, False
        elif self._at_start:
            self._at_start = not self._tokenizer.decode([token_id]).strip()
