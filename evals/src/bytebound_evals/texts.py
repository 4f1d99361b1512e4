"""Where a text to measure on comes from: the shipped one, a file, or a dataset of ``datasets``.

A text is a sequence of documents; a model starts each of them from an empty state. Rows of a table
are documents of their own unless they are joined. Knows no tokenizer and no model.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from bytebound_quant.errors import CalibrationError
from bytebound_quant.text_sources import KINDS, CalibrationSource, documents, parse_source

from bytebound_evals.data import heldout_text
from bytebound_evals.errors import SourceError

HELDOUT = "heldout"
TEXT_HELP = (
    "heldout (shipped with this package); wikitext2 or wikitext103, also wikitext2:FOLDER for a "
    "local copy; a text or .jsonl file; or KIND:PATH[@[CONFIG/]SPLIT][#COLUMN] with KIND "
    "text, jsonl or datasets"
)


@dataclass(frozen=True, slots=True)
class KnownText:
    """A dataset that is measured on so often that it has a name."""

    path: str
    config: str
    split: str
    column: str
    join: str | None
    """What stands between two rows that are parts of one text; None: each row is a document."""


# The rows of WikiText are paragraphs of articles, many of them empty; the literature on
# quantization joins them like this.
KNOWN_TEXTS = {
    "wikitext2": KnownText("Salesforce/wikitext", "wikitext-2-raw-v1", "test", "text", "\n\n"),
    "wikitext103": KnownText("Salesforce/wikitext", "wikitext-103-raw-v1", "test", "text", "\n\n"),
}


@dataclass(frozen=True, slots=True)
class Text:
    """Documents, read when they are asked for."""

    label: str
    """What messages and reports call it, without the folders of one machine."""
    join: str | None = None
    source: CalibrationSource | None = None
    """None: the held-out text of this package."""

    def documents(self) -> Iterator[str]:
        """Every document in order, the empty ones too.

        Raises:
            SourceError: the source cannot be read, lacks the column, or a row holds no text.
        """
        if self.source is None:
            yield heldout_text()
            return
        rows = column(self.source)
        if self.join is None:
            yield from rows
        else:
            yield self.join.join(rows)


def find_text(spec: str, *, join: str | None = None) -> Text:
    """The text that ``spec`` names (``TEXT_HELP``); ``join`` makes one document of all rows.

    Nothing is read yet.

    Raises:
        SourceError: the specification is not understood, or names a file that is not there.
    """
    if spec == HELDOUT:
        return Text(spec)
    name, colon, copy = spec.partition(":")
    known = KNOWN_TEXTS.get(name)
    if known is not None and (copy or not colon):
        path = local_copy(copy) if colon else known.path
        source = CalibrationSource("datasets", path, known.config, known.split, known.column)
        return Text(name, known.join if join is None else join, source)
    source = find_rows(spec, TEXT_HELP)
    if source.kind == "text" and join is not None:
        raise SourceError(f"{spec}: a text file is one document, there are no rows to join")
    file = Path(source.path).expanduser()
    named = replace(source, path=file.name) if file.exists() else source
    return Text(named.label, join, source)


def local_copy(folder: str) -> str:
    """A dataset's folder, which must be there: a name would be asked for on the network.

    Raises:
        SourceError: it is no folder.
    """
    if not Path(folder).expanduser().is_dir():
        raise SourceError(f"{folder!r} is no folder; expected that of a local copy of the dataset")
    return folder


def find_rows(spec: str, help_: str) -> CalibrationSource:
    """The file or dataset that ``spec`` names; the bare path of a file is one too.

    Raises:
        SourceError: the specification is not understood, or names a file that is not there.
    """
    path = Path(spec).expanduser()
    if path.is_file():
        if path.suffix.lower() == ".parquet":
            raise SourceError(f"{spec} is one file of a table; give its folder: datasets:FOLDER")
        return CalibrationSource("jsonl" if path.suffix.lower() == ".jsonl" else "text", spec)
    if spec.partition(":")[0] not in KINDS:
        raise SourceError(f"{spec!r} is no file and no known text; expected {help_}")
    try:
        source = parse_source(spec)
    except CalibrationError as error:
        raise SourceError(f"{spec!r} is not understood; expected {help_}") from error
    if source.weight != 1:
        raise SourceError(f"{spec!r}: a text that is measured on has no weight; leave '=' out")
    return source


def column(source: CalibrationSource, field: str | None = None) -> Iterator[str]:
    """One column of the source, row by row; ``field`` wins over the source's own.

    Raises:
        SourceError: the source cannot be read, lacks the column, or a row holds no text.
    """
    try:
        if field is not None:
            source = CalibrationSource(source.kind, source.path, source.config, source.split, field)
        rows: Iterable[object] = documents(source, chat_template=False)
        for row in rows:
            yield str(row)
    except CalibrationError as error:
        raise SourceError(str(error)) from error
