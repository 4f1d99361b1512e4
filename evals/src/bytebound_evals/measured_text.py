"""From a source of text to the windows of one model: the text through its tokenizer, cut."""

from dataclasses import dataclass

from bytebound.text.tokenizer import Tokenizer

from bytebound_evals.errors import SettingError
from bytebound_evals.texts import HELDOUT, find_text
from bytebound_evals.windows import DEFAULT_WINDOW, CutText, WindowRule, cut_text

DOCUMENT_END = "<|endoftext|>"
"""What stands between two documents in the training of this family."""


@dataclass(frozen=True, slots=True)
class TextSettings:
    """Which text, and how it is cut (``windows.py``); lengths in tokens."""

    text: str = HELDOUT
    """See ``texts.TEXT_HELP``."""
    join: str | None = None
    """Makes one document of all rows, with this between two of them."""
    window: int = DEFAULT_WINDOW
    stride: int | None = None
    prefix: str = "none"
    prefix_id: int | None = None
    """None with a prefix rule: the id of ``<|endoftext|>``, else the tokenizer's end id."""
    max_tokens: int | None = None

    def cut(self, tokenizer: Tokenizer) -> CutText:
        """Read the text and cut it.

        Raises:
            SettingError: the rule contradicts itself, or there is no id for the prefix.
            SourceError: the text cannot be read, or is too short for the window.
        """
        prefix_id = self.prefix_id
        if self.prefix != "none" and prefix_id is None:
            prefix_id = default_prefix_id(tokenizer)
        if prefix_id is not None and not 0 <= prefix_id < tokenizer.vocab_size:
            raise SettingError(
                f"prefix id is {prefix_id}, expected an id of the tokenizer, 0 to "
                f"{tokenizer.vocab_size - 1}"
            )
        rule = WindowRule(self.window, self.stride, self.prefix, prefix_id)
        found = find_text(self.text, join=self.join)
        ids = map(tokenizer.encode, found.documents())
        return cut_text(found.label, ids, rule, max_tokens=self.max_tokens)


def default_prefix_id(tokenizer: Tokenizer) -> int:
    """The id in front of a text where none is named.

    Raises:
        SettingError: the tokenizer has neither.
    """
    ids = tokenizer.encode(DOCUMENT_END, parse_control=True)
    if len(ids) == 1 and ids[0] in tokenizer.control_ids:
        return ids[0]
    if not tokenizer.eos_ids:
        raise SettingError(
            "the tokenizer names no end of text; give the prefix id, or use the prefix rule none"
        )
    return min(tokenizer.eos_ids)
