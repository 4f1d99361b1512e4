"""The model folder's tokenizer: text to ids and back, from local files only.

Control tokens are the tokenizer's added tokens (turn markers, think and tool tags). Text never
turns into them: only a chat template's own markup does. Runs no code from the folder and opens no
connection.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend
from transformers import AutoTokenizer

from bytebound.errors import CheckpointError, InvalidRequestError
from bytebound.text import chat
from bytebound.text.encoded_spans import EncodedSpans

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "tokenizer_config.json",
)

TURN_START = "<|im_start|>"


def load_tokenizer(folder: str | Path) -> "Tokenizer | None":
    """Return the tokenizer in ``folder``, or None where the folder holds no tokenizer file.

    Raises CheckpointError when the files are there and cannot be used.
    """
    folder = Path(folder)
    present = [name for name in TOKENIZER_FILES if (folder / name).is_file()]
    if not present:
        return None
    try:
        loaded = AutoTokenizer.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False, use_fast=True
        )
    # The loader raises whatever its parsers raise, down to the bare Exception of the Rust side.
    except Exception as error:
        raise CheckpointError(
            f"{folder}: the tokenizer cannot be loaded from {', '.join(present)}: {error}. "
            "Download the tokenizer files again, or remove them to work with ids alone"
        ) from error
    if not getattr(loaded, "is_fast", False):
        raise CheckpointError(
            f"{folder}: got a {type(loaded).__name__} without a fast form, expected tokenizer.json"
        )
    return Tokenizer(loaded)


class Tokenizer:
    """A fast Hugging Face tokenizer; ``hf`` is the wrapped object, for libraries that want it."""

    def __init__(self, hf: Any) -> None:
        self.hf = hf
        self._backend: Backend = hf.backend_tokenizer
        # A stored truncation limit would cut prompts without a word.
        self._backend.no_truncation()
        self._backend.no_padding()
        added = self._backend.get_added_tokens_decoder()
        self.special_ids = frozenset(i for i, token in added.items() if token.special)
        """Ids that decoding skips: turn markers and end tokens, but not think or tool tags."""
        self.control_ids = frozenset(i for i, token in added.items() if token.content.strip())
        """Ids that text never encodes to: all added tokens but runs of blanks."""
        self.turn_start_ids = frozenset(
            i for i in self.special_ids if added[i].content == TURN_START
        )
        """Ids that begin a turn of a conversation; none in a vocabulary of another family."""
        self.vocab_size: int = max(
            self._backend.get_vocab_size(with_added_tokens=True), max(added, default=-1) + 1
        )
        self._opening_chars = frozenset(added[i].content[0] for i in self.control_ids)
        self._control_id = {added[i].content: i for i in self.control_ids}
        # Matched as the backend does: the leftmost, and of those the longest.
        names = sorted(self._control_id, key=len, reverse=True)
        self._control_pattern = re.compile("|".join(map(re.escape, names)) or r"(?!)")
        self._literal_control = all(_is_literal(added[i]) for i in self.control_ids)
        self._spans = EncodedSpans(self.encode)
        self._token_bytes: dict[int, bytes] = {}

    @property
    def eos_ids(self) -> frozenset[int]:
        """End-of-sequence ids that the tokenizer itself declares; the configs may name more."""
        eos = self.hf.eos_token_id
        return frozenset() if eos is None else frozenset({int(eos)})

    def encode(self, text: str, *, parse_control: bool = False) -> list[int]:
        """Return the ids of ``text``, nothing added at either end.

        A control token spelt in the text becomes ordinary pieces, unless ``parse_control`` is set:
        that is for text that a template produced, never for text that a user wrote.
        """
        if not isinstance(text, str):
            raise InvalidRequestError(f"text: got {type(text).__name__}, expected a string")
        _check_unicode("text", text)
        backend = self._backend if parse_control else self._plain
        # Unlike ``encode``, which keeps all other threads waiting, this computes no offsets either.
        (encoding,) = backend.encode_batch_fast([text], add_special_tokens=False)
        return list(encoding.ids)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of ``ids``; bytes that are no UTF-8 become U+FFFD."""
        return self._backend.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def token_bytes(self, token_id: int) -> bytes:
        """Return what one id adds to the text of a byte-level vocabulary: empty for special ids."""
        cached = self._token_bytes.get(token_id)
        if cached is None:
            cached = self._token_bytes[token_id] = self._bytes_of(token_id)
        return cached

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        enable_thinking: bool | None = None,
        add_generation_prompt: bool = True,
        **kwargs: Any,
    ) -> list[int]:
        """Return the ids of a conversation in the model's own format.

        Markup of the template becomes control tokens; everything that came with the request stays
        text. ``kwargs`` are variables of the template; one that it does not use is refused.
        """
        if enable_thinking is not None:
            kwargs["enable_thinking"] = enable_thinking
        rendered = chat.render(
            self.hf, messages, tools, add_generation_prompt, kwargs, self._opening_chars
        )
        return self._encode_marked(rendered.text, rendered.mark)

    def _encode_marked(self, text: str, mark: str) -> list[int]:
        """Encode template output in which ``mark`` follows each untrusted opening character."""
        _check_unicode("messages", text)
        ids: list[int] = []
        start = 0
        # Control tokens cut the text; what lies between is encoded as if it stood alone, as always.
        for token_id, low, high in self._control_tokens(text):
            # A mark right behind a token means a one-character token that the request spelt.
            if not text.startswith(mark, high):
                ids += self._spans(text[start:low].replace(mark, ""))
                ids.append(token_id)
                start = high
        ids += self._spans(text[start:].replace(mark, ""))
        return ids

    def _control_tokens(self, text: str) -> Iterator[tuple[int, int, int]]:
        """Id, start and end of each control token in ``text``."""
        if self._literal_control:
            for match in self._control_pattern.finditer(text):
                yield self._control_id[match[0]], match.start(), match.end()
            return
        encoding = self._backend.encode(text, add_special_tokens=False)
        for token_id, (low, high) in zip(encoding.ids, encoding.offsets, strict=True):
            if token_id in self.control_ids:
                yield token_id, low, high

    @cached_property
    def _plain(self) -> Backend:
        """A copy in which every control token counts as special and specials are not looked for."""
        state = json.loads(self._backend.to_str())
        for token in state["added_tokens"]:
            token["special"] = token["id"] in self.control_ids
        plain = Backend.from_str(json.dumps(state))
        plain.encode_special_tokens = True
        return plain

    @cached_property
    def byte_level(self) -> bool:
        """Whether each token is a run of bytes, so that decoding is joining."""
        decoder = self._backend.decoder
        if decoder is None:
            return False
        state = json.loads(decoder.__getstate__())
        parts = state["decoders"] if state["type"] == "Sequence" else [state]
        kinds = [part["type"] for part in parts]
        return kinds[0] == "ByteLevel" and set(kinds[1:]) <= {"Fuse"}

    def _bytes_of(self, token_id: int) -> bytes:
        token = None if token_id in self.special_ids else self._backend.id_to_token(token_id)
        if token is None:
            return b""
        # An added token may hold characters outside the byte alphabet: then it stands for itself.
        if all(char in _BYTE_OF_CHAR for char in token):
            return bytes(_BYTE_OF_CHAR[char] for char in token)
        return token.encode("utf-8")


def _is_literal(token: AddedToken) -> bool:
    """Whether just the token's own characters stand for it, whatever is around them."""
    text: str = token.content
    taken = token.lstrip or token.rstrip or token.single_word or token.normalized
    return not taken and text == text.strip()


def _check_unicode(field: str, text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidRequestError(
            f"{field}: got half of a surrogate pair at character {error.start}, "
            "expected valid Unicode"
        ) from error


def _byte_alphabet() -> dict[str, int]:
    """Character that stands for each byte in byte-level vocabularies: itself where printable."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    rest = [byte for byte in range(256) if byte not in set(printable)]
    return alphabet | {chr(0x100 + index): byte for index, byte in enumerate(rest)}


_BYTE_OF_CHAR = _byte_alphabet()
