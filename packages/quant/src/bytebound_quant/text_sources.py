"""Where calibration text comes from: a text file, a JSONL file, or a dataset of ``datasets``.

A source yields documents in file order, each a string or, with a chat template, a conversation. It
knows no tokenizer and no model. A damaged row is an error that names the row, never skipped.
"""

import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bytebound_quant.errors import CalibrationError

KINDS = ("text", "jsonl", "datasets")
DEFAULT_SPLIT = "train"
TEXT_FIELD = "text"
CHAT_FIELD = "messages"
SPEC_HELP = (
    "KIND:PATH[@[CONFIG/]SPLIT][#FIELD][=WEIGHT] with KIND text, jsonl or datasets: "
    "'text:notes.txt', 'jsonl:chat.jsonl#messages=0.7', 'datasets:wikitext@wikitext-2-raw-v1/test'"
)

_SPLIT = r"(?:@(?:(?P<config>[\w.-]+)/)?(?P<split>[\w.-]+))?"
_FIELD = r"(?:#(?P<field>[\w.-]+))?"
_WEIGHT = r"(?:=(?P<weight>[0-9.eE+-]+))?"
# Only what the kind has is looked for, so that a file may have '@' or '#' in its name.
_SPECS = {
    "text": re.compile(rf"(?P<path>.+?){_WEIGHT}", re.DOTALL),
    "jsonl": re.compile(rf"(?P<path>.+?){_FIELD}{_WEIGHT}", re.DOTALL),
    "datasets": re.compile(rf"(?P<path>.+?){_SPLIT}{_FIELD}{_WEIGHT}", re.DOTALL),
}

Document = str | list[dict[str, Any]]
Order = Callable[[int], Iterator[int]]
"""A way through ``n`` rows: every index once."""


@dataclass(frozen=True, slots=True)
class CalibrationSource:
    """One place that text comes from, and its share of the windows.

    ``field`` is the column of a JSONL file or dataset; None means ``text``, or ``messages`` when
    the chat template is asked for. ``config`` and ``split`` belong to datasets only.
    """

    kind: str
    path: str
    config: str | None = None
    split: str | None = None
    field: str | None = None
    weight: float = 1.0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise CalibrationError(
                f"calibration source {self.path!r}: kind is {self.kind!r}, expected one of "
                f"{', '.join(KINDS)}"
            )
        if not self.path:
            raise CalibrationError(f"calibration source of kind {self.kind!r}: the path is empty")
        if not (math.isfinite(self.weight) and self.weight > 0):
            raise CalibrationError(f"{self.label}: weight is {self.weight:g}, expected above 0")
        if self.kind != "datasets" and (self.config or self.split):
            raise CalibrationError(f"{self.label}: only a datasets source has a config or split")
        if self.kind == "text" and self.field:
            raise CalibrationError(f"{self.label}: a text file has no field {self.field!r}")

    @property
    def label(self) -> str:
        """What messages and reports call it: the specification without its weight."""
        split = ""
        if self.split or self.config:
            split = f"@{self.config + '/' if self.config else ''}{self.split or DEFAULT_SPLIT}"
        return f"{self.kind}:{self.path}{split}{'#' + self.field if self.field else ''}"


def parse_source(spec: str) -> CalibrationSource:
    """Read ``KIND:PATH[@[CONFIG/]SPLIT][#FIELD][=WEIGHT]``; the weight is 1 where none is given.

    A path that itself ends like one of the optional parts is given through ``CalibrationSource``.
    """
    kind, _, rest = spec.partition(":")
    found = _SPECS[kind].fullmatch(rest) if kind in KINDS else None
    if found is None:
        raise CalibrationError(f"calibration source {spec!r} is not understood; write {SPEC_HELP}")
    parts = found.groupdict()
    weight = parts.pop("weight")
    try:
        return CalibrationSource(
            kind=kind, weight=1.0 if weight is None else float(weight), **parts
        )
    except ValueError:
        raise CalibrationError(
            f"calibration source {spec!r}: weight is {weight!r}, expected a number"
        ) from None


def check_chat_sources(sources: Sequence[CalibrationSource], chat_template: bool) -> None:
    """Refuse a chat template that no source can use; text files beside such a source stay text."""
    if chat_template and all(source.kind == "text" for source in sources):
        raise CalibrationError(
            f"{sources[0].label}: a text file holds no conversations; the chat template needs a "
            "jsonl or datasets source with a field of messages"
        )


def documents(
    source: CalibrationSource, *, chat_template: bool, order: Order | None = None
) -> Iterator[Document]:
    """The source's documents, the empty ones too; a text file is one document.

    Rows of a JSONL file or dataset come in file order, or in that of ``order``.

    Raises:
        CalibrationError: the source cannot be read, or a row is not what it must be.
    """
    if source.kind == "text":
        yield _decoded(source, _bytes_of(source))
        return
    field = source.field or (CHAT_FIELD if chat_template else TEXT_FIELD)
    rows = _jsonl_rows(source) if source.kind == "jsonl" else _dataset_rows(source, field)
    for index in range(len(rows)) if order is None else order(len(rows)):
        yield _document(source, index, rows[index], field, chat_template)


def _bytes_of(source: CalibrationSource) -> bytes:
    path = Path(source.path).expanduser()
    if path.is_dir():
        raise CalibrationError(f"{source.label}: {path} is a folder, expected a file")
    try:
        return path.read_bytes()
    except OSError as error:
        raise CalibrationError(
            f"{source.label} cannot be read: {error.strerror or error}"
        ) from error


def _decoded(source: CalibrationSource, raw: bytes) -> str:
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CalibrationError(
            f"{source.label}: not UTF-8 at byte {error.start}; convert the file"
        ) from error


def _jsonl_rows(source: CalibrationSource) -> Sequence[Any]:
    rows = []
    # Not splitlines(): JSON allows U+2028 and its like inside a string.
    for number, line in enumerate(_decoded(source, _bytes_of(source)).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise CalibrationError(f"{source.label}, line {number}: not JSON ({error})") from error
        if not isinstance(row, dict):
            raise CalibrationError(
                f"{source.label}, line {number}: got a JSON {type(row).__name__}, expected an "
                "object"
            )
        rows.append(row)
    return rows


def _dataset_rows(source: CalibrationSource, field: str) -> Any:
    """The split as ``datasets`` gives it: a random-access table that stays on disk."""
    import datasets  # type: ignore[import-untyped]

    path = Path(source.path).expanduser()
    split = source.split or DEFAULT_SPLIT
    try:
        if any((path / name).is_file() for name in ("state.json", "dataset_dict.json")):
            found = datasets.load_from_disk(str(path))  # what save_to_disk() wrote
            if isinstance(found, datasets.DatasetDict):
                if split not in found:
                    raise CalibrationError(
                        f"{source.label}: no split {split!r}; it has {', '.join(map(str, found))}"
                    )
                found = found[split]
            elif source.split is not None and str(found.split) != source.split:
                raise CalibrationError(
                    f"{source.label}: the folder holds one table, of split {found.split}, not "
                    f"{source.split!r}; leave the split out to use it"
                )
        else:
            name = str(path) if path.exists() else source.path
            found = datasets.load_dataset(name, source.config, split=split)
    except CalibrationError:
        raise
    # The loader raises whatever its builders, parsers and the network raise.
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise CalibrationError(
            f"{source.label} cannot be loaded: {reason}. A dataset that is not on this disk needs "
            "a connection once; give the folder of a local copy to work without one"
        ) from error
    if field not in found.column_names:
        raise CalibrationError(
            f"{source.label}: no field {field!r}; it has {', '.join(found.column_names)}. "
            "Name one with #FIELD"
        )
    return found.select_columns([field])


def _document(
    source: CalibrationSource, index: int, row: Any, field: str, chat_template: bool
) -> Document:
    where = f"{source.label}, row {index + 1}"
    if field not in row:
        raise CalibrationError(
            f"{where}: no field {field!r}; it has {', '.join(map(str, row)) or 'none'}. "
            "Name one with #FIELD"
        )
    value = row[field]
    if chat_template:
        if value is None or value == []:
            return []
        if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
            raise CalibrationError(
                f"{where}: {field} is {type(value).__name__}, expected a list of messages"
            )
        # A table fills what a message lacks with null; a template must not see such fields.
        return [{key: item for key, item in one.items() if item is not None} for one in value]
    if value is None:
        return ""
    if not isinstance(value, str):
        hint = "; ask for the chat template to use messages" if isinstance(value, list) else ""
        raise CalibrationError(
            f"{where}: {field} is {type(value).__name__}, expected a string{hint}"
        )
    return value
