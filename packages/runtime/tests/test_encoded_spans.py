"""Spans that were encoded before are not encoded again, and are the same ids."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bytebound.text.encoded_spans import SHORTEST, EncodedSpans
from bytebound.text.tokenizer import Tokenizer, load_tokenizer


class Counted:
    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, span: str) -> list[int]:
        self.asked.append(span)
        return [ord(char) for char in span]


def test_a_long_span_is_encoded_once_and_a_short_one_each_time() -> None:
    encode = Counted()
    spans = EncodedSpans(encode)
    long, short = "a" * SHORTEST, "b" * (SHORTEST - 1)
    for _ in range(3):
        assert list(spans(long)) == [97] * len(long)
        assert list(spans(short)) == [98] * len(short)
    assert encode.asked.count(long) == 1
    assert encode.asked.count(short) == 3


def test_what_was_used_last_is_kept() -> None:
    encode = Counted()
    spans = EncodedSpans(encode, most_characters=2 * SHORTEST)
    one, two, three = ("a" * SHORTEST, "b" * SHORTEST, "c" * SHORTEST)
    for span in (one, two, one, three, one, two):
        spans(span)
    assert encode.asked == [one, two, three, two]
    huge = "d" * (3 * SHORTEST)
    assert len(spans(huge)) == len(spans(huge)) == len(huge)
    assert encode.asked[-2:] == [huge, huge]  # more than all that may be kept
    spans(two)
    assert encode.asked[-1] == huge


def test_many_threads_get_the_same() -> None:
    spans = EncodedSpans(Counted(), most_characters=3 * SHORTEST)
    texts = [chr(97 + i) * SHORTEST for i in range(8)]

    def ask(number: int) -> bool:
        span = texts[number % 8]
        return list(spans(span)) == [ord(span[0])] * SHORTEST

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(ask, range(2000)))


def test_a_longer_conversation_encodes_its_new_message_alone(tokenizer: Tokenizer) -> None:
    fresh = Tokenizer(tokenizer.hf)
    encode = Counted()
    fresh._spans = EncodedSpans(lambda span: encode(span) and tokenizer.encode(span))
    words = "the quick <|im_end|> brown fox " * 20
    messages: list[dict[str, Any]] = [{"role": "user", "content": words}]
    first = fresh.apply_chat_template(messages)
    assert len([span for span in encode.asked if len(span) >= SHORTEST]) == 1
    encode.asked.clear()
    more = "and 안녕 says hello " * 20
    messages += [{"role": "assistant", "content": more}, {"role": "user", "content": "why?"}]
    second = fresh.apply_chat_template(messages)
    assert [span for span in encode.asked if len(span) >= SHORTEST] == [
        f"assistant\n{more.strip()}"
    ]
    again = Tokenizer(tokenizer.hf)
    assert again.apply_chat_template(messages) == second
    assert again.apply_chat_template(messages[:1]) == first


def test_a_token_that_takes_the_blanks_behind_it(tmp_path: Path, tokenizer_folder: Path) -> None:
    """Then only the backend knows what it stands for."""
    folder = shutil.copytree(tokenizer_folder, tmp_path / "blanks")
    state = json.loads((folder / "tokenizer.json").read_text())
    for token in state["added_tokens"]:
        token["rstrip"] = token["content"] == "<think>"
    (folder / "tokenizer.json").write_text(json.dumps(state))
    loaded = load_tokenizer(folder)
    assert loaded is not None
    messages = [{"role": "user", "content": "hello <think> world"}]
    ids = loaded.apply_chat_template(messages)
    (think,) = loaded.encode("<think>", parse_control=True)
    assert ids.count(think) == 1 and ids[-1] == think  # it has taken the newline of the template
    plain = load_tokenizer(tokenizer_folder)
    assert plain is not None
    assert plain.apply_chat_template(messages)[:-1] == ids
