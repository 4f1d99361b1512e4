"""Builds the training corpus and the held-out text from free packages of Debian and PyPI.

Contract: `corpus.py WORK` fetches every package of `sources.SOURCES` with its ordinary client,
reads it with `extract.READERS`, and writes
    WORK/train.jsonl        one {"source", "kind", "text"} per document
    --held-out FILE         whole documents, chosen by hash before anything else, never in
    train.jsonl --manifest FILE         package, version, licence, sha256 and bytes of every source
The choice of documents depends only on their names and contents: the same packages give the same
files. Needs `apt-get download`, `dpkg`, `pip`, and Debian's `bible-kjv` for the King James text.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tarfile
import zipfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from extract import READERS, clean
from sources import SOURCES, Source

MIN_DOCUMENT = 400  # characters; shorter pages are stubs and redirects
HELD_OUT_SIZES = range(2_500, 26_000)  # characters of a document that may be held out
COMMON_LINE = 5  # documents
LONG_LINE = 60  # characters from which a line shared by two documents means copied text


@dataclass(frozen=True, slots=True)
class Document:
    source: str
    kind: str
    name: str
    text: str

    @property
    def order(self) -> str:
        """A stable shuffle key."""
        return hashlib.sha256(f"{self.source}/{self.name}".encode()).hexdigest()

    @property
    def size(self) -> int:
        return len(self.text.encode())


def fetch(source: Source, work: Path) -> tuple[Path, str]:
    """Downloads the package once. Returns (archive, version)."""
    folder = work / "archives" / f"{source.client}-{source.package}"
    if not folder.exists():
        folder.mkdir(parents=True)
        if source.client == "deb":
            command = ["apt-get", "download", "-q", source.package]
        else:
            form = "--only-binary=:all:" if source.client == "wheel" else "--no-binary=:all:"
            command = [
                sys.executable,
                "-m",
                "pip",
                "download",
                "-q",
                "--no-deps",
                form,
                "-d",
                ".",
                source.package,
            ]
        subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    (archive,) = (p for p in folder.iterdir() if p.is_file())
    if source.client == "deb":
        run = subprocess.run(
            ["dpkg-deb", "-f", archive, "Version"], capture_output=True, text=True, check=True
        )
        return archive, run.stdout.strip()
    stem = archive.name.removesuffix(".tar.gz")
    return archive, stem.split("-")[1]


def unpack(archive: Path, root: Path) -> Path:
    if not root.exists():
        root.mkdir(parents=True)
        if archive.suffix == ".deb":
            subprocess.run(["dpkg", "-x", archive, root], check=True)
        elif archive.suffix == ".whl":
            zipfile.ZipFile(archive).extractall(root)
        else:
            with tarfile.open(archive) as tar:
                tar.extractall(root, filter="data")
    return root


def documents_of(source: Source, root: Path) -> list[Document]:
    """The source's documents in shuffled order."""
    found: list[Document] = []
    paths = sorted({p for pattern in source.files for p in root.glob(pattern)})
    for path in paths:
        name = path.relative_to(root).as_posix()
        if (
            not path.is_file()
            or path.is_symlink()
            or any(part in f"/{name}" for part in source.skip)
        ):
            continue
        try:
            texts = list(READERS[source.reader](path))
        except UnicodeDecodeError:
            continue
        for suffix, raw in texts:
            text = clean(raw)
            if len(text) >= MIN_DOCUMENT:
                found.append(Document(source.package, source.kind, f"{name}#{suffix}", text))
    return sorted(found, key=lambda document: document.order)


def hold_out(documents: list[Document], wanted: int) -> list[Document]:
    """The first whole documents of middling size, about `wanted` bytes of them."""
    chosen: list[Document] = []
    total = 0
    for document in documents:
        if total >= wanted:
            break
        if len(document.text) in HELD_OUT_SIZES:
            chosen.append(document)
            total += document.size
    return chosen


def long_lines(text: str) -> list[str]:
    return [line.strip() for line in text.split("\n") if len(line.strip()) >= LONG_LINE]


def is_copy_of_held_out(document: Document, held_lines: set[str]) -> bool:
    """True where a tenth of the long lines (three at least) stand in the held-out text too."""
    lines = long_lines(document.text)
    shared = sum(line in held_lines for line in lines)
    return shared >= 3 and shared >= 0.1 * len(lines)


def build(work: Path) -> tuple[list[Document], list[Document], list[dict[str, object]]]:
    everything: list[tuple[Source, list[Document]]] = []
    held: list[Document] = []
    rows: list[dict[str, object]] = []
    for source in SOURCES:
        archive, version = fetch(source, work)
        root = unpack(archive, work / "unpacked" / f"{source.client}-{source.package}")
        documents = documents_of(source, root)
        chosen = hold_out(documents, source.held_out_bytes)
        names = {document.name for document in chosen}
        held += chosen
        everything.append((source, [d for d in documents if d.name not in names]))
        rows.append(
            {
                "package": source.package,
                "client": source.client,
                "version": version,
                "licence": source.licence,
                "kind": source.kind,
                "archive_sha256": hashlib.sha256(archive.read_bytes()).hexdigest(),
                "held_out_documents": len(chosen),
                "held_out_bytes": sum(d.size for d in chosen),
            }
        )
        print(
            f"{source.package:24} {len(documents):6} documents "
            f"{sum(d.size for d in documents):>11,} bytes",
            flush=True,
        )

    # A line that many documents share is a page's furniture or a licence header, not a copied
    # passage.
    spread = Counter(
        line for _, documents in everything for d in documents for line in set(long_lines(d.text))
    )
    held_lines = {line for d in held for line in long_lines(d.text) if spread[line] <= COMMON_LINE}
    seen: set[str] = set()
    train: list[Document] = []
    for (source, documents), row in zip(everything, rows, strict=True):
        total, copies, digest = 0, 0, hashlib.sha256()
        kept = []
        for document in documents:
            key = hashlib.sha256(document.text.encode()).hexdigest()
            if key in seen:
                continue
            seen.add(key)
            if is_copy_of_held_out(document, held_lines):
                copies += 1
                continue
            if total + document.size > source.max_bytes:
                continue
            total += document.size
            digest.update(document.text.encode())
            kept.append(document)
        train += kept
        row |= {
            "documents": len(kept),
            "bytes": total,
            "text_sha256": digest.hexdigest(),
            "dropped_as_copies_of_held_out": copies,
        }
    return train, held, rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("work", type=Path)
    parser.add_argument("--held-out", type=Path, required=True)
    parser.add_argument("--manifest", type=Path, required=True)
    args = parser.parse_args()
    train, held, rows = build(args.work)
    train.sort(key=lambda document: document.order)
    held.sort(key=lambda document: document.order)
    with (args.work / "train.jsonl").open("w", encoding="utf-8") as out:
        for document in train:
            row = {"source": document.source, "kind": document.kind, "text": document.text}
            out.write(json.dumps(row, ensure_ascii=False) + "\n")
    held_text = "\n".join(document.text for document in held)
    args.held_out.parent.mkdir(parents=True, exist_ok=True)
    args.held_out.write_text(held_text, encoding="utf-8")
    kinds: Counter[str] = Counter()
    for document in train:
        kinds[document.kind] += document.size
    manifest = {
        "train": {
            "documents": len(train),
            "bytes": sum(kinds.values()),
            "bytes_by_kind": dict(sorted(kinds.items())),
        },
        "held_out": {
            "bytes": len(held_text.encode()),
            "sha256": hashlib.sha256(held_text.encode()).hexdigest(),
            "documents": [
                {"source": d.source, "kind": d.kind, "name": d.name, "bytes": d.size} for d in held
            ],
        },
        "sources": rows,
    }
    args.manifest.parent.mkdir(parents=True, exist_ok=True)
    args.manifest.write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(manifest["train"]), json.dumps(kinds))


if __name__ == "__main__":
    main()
