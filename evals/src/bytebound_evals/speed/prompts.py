"""The eight prompts that speed is measured on, and prompts of a stated length.

The kinds differ in how predictable the reply is, which decides what drafts are worth. The texts are
this project's own and shipped as package data.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING

from bytebound_evals.data import heldout_text
from bytebound_evals.errors import DataError

if TYPE_CHECKING:
    from bytebound.text.tokenizer import Tokenizer

PROMPTS_FILE = "prompts.jsonl"
NAMES = ("prose", "code", "explain", "code2", "math", "chat", "summary", "json")


@dataclass(frozen=True, slots=True)
class Prompt:
    """One message of a user."""

    name: str
    text: str


def speed_prompts(names: Sequence[str] | None = None) -> list[Prompt]:
    """The prompts of these names, by default all, in the order of the file.

    Raises:
        DataError: the file is missing or damaged, or there is no prompt of a name.
    """
    file = resources.files("bytebound_evals") / "data" / PROMPTS_FILE
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
        prompts = [Prompt(**json.loads(line)) for line in lines]
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"{PROMPTS_FILE}: {error}; reinstall bytebound-evals") from error
    for name in names or ():
        if name not in NAMES:
            raise DataError(f"there is no prompt {name!r}; there are {', '.join(NAMES)}")
    return [prompt for prompt in prompts if names is None or prompt.name in names]


def prompt_ids(prompt: Prompt, tokenizer: "Tokenizer | None") -> list[int]:
    """The prompt as a user's message, thinking off, or plain where there is no chat template.

    Without a tokenizer, as with random weights, every byte of the text stands for an id.
    """
    if tokenizer is None:
        return list(prompt.text.encode())
    if tokenizer.hf.chat_template is None:
        return tokenizer.encode(prompt.text)
    message = {"role": "user", "content": prompt.text}
    return tokenizer.apply_chat_template([message], enable_thinking=False)


def text_ids(length: int, tokenizer: "Tokenizer | None") -> list[int]:
    """``length`` ids of the held-out text, from its beginning, over again if it is short."""
    text = heldout_text()
    part = text[: 8 * length]  # no tokenizer makes so few tokens of so much text
    ids = list(part.encode()) if tokenizer is None else tokenizer.encode(part)
    return [ids[i % len(ids)] for i in range(length)]
