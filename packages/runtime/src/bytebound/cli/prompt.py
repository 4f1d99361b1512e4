"""Where the prompt comes from: the command line, a file, stdin, or token ids."""

import re
import sys
from pathlib import Path

from bytebound.cli.errors import UsageError

STDIN = "-"
_ID = re.compile(r"-?[0-9]{1,18}")


def read_prompt(prompt: str | None, prompt_file: Path | None) -> str:
    """The prompt's text, to the last character: no line end is added or dropped."""
    if prompt_file is not None:
        return read_file(prompt_file, "--prompt-file")
    if prompt == STDIN:
        return decoded(sys.stdin.buffer.read(), "stdin")
    # Python keeps bytes of an argument that are no UTF-8 as halves of surrogate pairs.
    return decoded((prompt or "").encode("utf-8", "surrogateescape"), "--prompt")


def read_file(path: Path, option: str) -> str:
    """The text of the file that ``option`` names."""
    try:
        return decoded(path.read_bytes(), str(path))
    except OSError as error:
        raise UsageError(
            f"{option} {path}: {error.strerror or error}; expected a readable text file"
        ) from error


def decoded(data: bytes, where: str) -> str:
    """UTF-8 text, or an error that says where it stops being that."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{where} is not UTF-8 text: byte {error.start} is 0x{data[error.start]:02x}; "
            "convert it to UTF-8"
        ) from error


def parse_ids(text: str) -> list[int]:
    """Token ids separated by blanks or commas."""
    words = [word for word in re.split(r"[\s,]+", text) if word]
    for word in words:
        if not _ID.fullmatch(word):
            raise UsageError(f"--ids: got {word[:40]!r}, expected token ids such as '1 2 3'")
    return [int(word) for word in words]
