"""The draft vocabulary: which rows of the output head drafts score, chosen by token counts.

``draft_vocab.safetensors`` lies beside the checkpoint and holds

    ids      int32 [N]   ids of the full vocabulary, ascending, none twice
    counts   int64 [N]   how often the corpus held each

and metadata: ``format``, ``format_version``, ``tokenizer_sha256``, ``vocab_size``,
``corpus_sha256``, ``corpus_tokens``. Row ``i`` of a reduced head is row ``ids[i]`` of the full one;
a drafted index is mapped back through ``ids`` and never used as an id itself. A file that belongs
to another tokenizer, or names an id twice or beyond the vocabulary, is refused.
"""

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from bytebound.errors import CheckpointError
from bytebound.shards import DRAFT_VOCAB_FILE
from bytebound.text.tokenizer import Tokenizer, load_tokenizer
from safetensors import SafetensorError, safe_open

from bytebound_quant.calibration import check_vocabulary
from bytebound_quant.errors import DraftVocabError, VocabularyMismatchError
from bytebound_quant.reading import Reading
from bytebound_quant.text_sources import CalibrationSource, check_chat_sources

__all__ = ["DRAFT_VOCAB_FILE", "DraftVocab", "TokenCounts", "load_draft_vocab"]

FORMAT = "bytebound-draft-vocab"
FORMAT_VERSION = "1"


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """How often each id occurs in a corpus."""

    counts: torch.Tensor
    """int64 ``[vocab]``."""
    sha256: str
    sources: list[dict[str, Any]]

    @property
    def total(self) -> int:
        """Tokens of the corpus."""
        return int(self.counts.sum())


@dataclass(frozen=True, slots=True)
class DraftVocab:
    """The chosen ids, ascending, and what they were chosen by."""

    ids: torch.Tensor
    """int32 ``[N]``."""
    counts: torch.Tensor
    """int64 ``[N]``: the corpus count of each id."""
    kept: int
    """How many are there whatever the corpus holds."""
    vocab_size: int
    corpus_sha256: str
    corpus_tokens: int

    @property
    def coverage(self) -> float:
        """Share of the corpus's tokens that the ids cover."""
        return float(self.counts.sum()) / self.corpus_tokens


def count_tokens(
    sources: Sequence[CalibrationSource],
    tokenizer: Tokenizer,
    *,
    vocab_size: int,
    chat_template: bool = False,
) -> TokenCounts:
    """Count every id over all documents of all sources; weights of sources do not matter here.

    Raises:
        CalibrationError: a source is damaged, empty or all the same.
        VocabularyMismatchError: the tokenizer makes ids that the model does not have.
    """
    if not sources:
        raise DraftVocabError("no corpus was given; name at least one")
    check_chat_sources(sources, chat_template)
    counts = torch.zeros(vocab_size, dtype=torch.int64)
    seen: set[bytes] = set()
    described, content = [], hashlib.sha256()
    for source in sources:
        reading = Reading(source, chat_template and source.kind != "text", seen)
        for ids in reading.documents(tokenizer):
            if ids:
                check_vocabulary(source, max(ids), vocab_size)
                counts += torch.bincount(torch.tensor(ids), minlength=vocab_size)
        reading.check()
        content.update(reading.content.digest())
        described.append({"source": source.label, **reading.summary()})
    return TokenCounts(counts, content.hexdigest(), described)


def always_kept(tokenizer: Tokenizer, vocab_size: int) -> list[int]:
    """Ids that every draft vocabulary holds: control tokens, single bytes, digits. Ascending.

    A digit counts with a blank before it too. Ids beyond the model's vocabulary are left out.
    """
    kept = set(tokenizer.special_ids) | set(tokenizer.control_ids) | set(tokenizer.eos_ids)
    for token_id in range(min(tokenizer.vocab_size, vocab_size)):
        spelt = tokenizer.token_bytes(token_id)
        if len(spelt) == 1 or (len(spelt) == 2 and spelt[:1] == b" " and spelt[1:].isdigit()):
            kept.add(token_id)
    return sorted(token_id for token_id in kept if token_id < vocab_size)


def ranking(counts: TokenCounts, kept: Sequence[int]) -> list[int]:
    """All ids: the always-kept ones, then by count, the more frequent first, the lower id first."""
    chosen = set(kept)
    by_count = torch.argsort(counts.counts, descending=True, stable=True).tolist()
    return [*kept, *(token_id for token_id in by_count if token_id not in chosen)]


def choose(counts: TokenCounts, kept: Sequence[int], size: int) -> DraftVocab:
    """The first ``size`` ids of ``ranking``."""
    vocab_size = counts.counts.numel()
    if not max(1, len(kept)) <= size <= vocab_size:
        raise DraftVocabError(
            f"draft vocabulary size is {size}, expected {max(1, len(kept))} (the ids that are "
            f"always kept: control tokens, bytes, digits) to {vocab_size} (the whole vocabulary)"
        )
    ids = torch.tensor(sorted(ranking(counts, kept)[:size]), dtype=torch.int32)
    return DraftVocab(
        ids=ids,
        counts=counts.counts[ids.long()],
        kept=len(kept),
        vocab_size=vocab_size,
        corpus_sha256=counts.sha256,
        corpus_tokens=counts.total,
    )


def coverage_curve(counts: TokenCounts, kept: Sequence[int]) -> torch.Tensor:
    """Share of the corpus covered by the first n ids of ``ranking``, float64 ``[vocab]``, n - 1."""
    order = torch.tensor(ranking(counts, kept))
    return counts.counts[order].cumsum(0).double() / counts.total


def tokenizer_sha256(tokenizer: Tokenizer) -> str:
    """SHA-256 of the vocabulary: ``[[id, token], ...]`` by id, as compact ASCII JSON.

    Two tokenizers with the same hash give every id the same meaning, whatever else their files say.
    """
    table = sorted((token_id, token) for token, token_id in tokenizer.hf.get_vocab().items())
    text = json.dumps([list(one) for one in table], separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def save_draft_vocab(vocab: DraftVocab, path: Path, tokenizer: Tokenizer) -> None:
    """Write the file; it is there whole or not at all.

    Raises:
        DraftVocabError: the file cannot be written.
    """
    metadata = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "tokenizer_sha256": tokenizer_sha256(tokenizer),
        "vocab_size": str(vocab.vocab_size),
        "corpus_sha256": vocab.corpus_sha256,
        "corpus_tokens": str(vocab.corpus_tokens),
    }
    raw = _file_bytes(vocab, metadata)
    part = path.with_name(f".{path.name}.part")
    try:
        with part.open("wb") as file:
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise DraftVocabError(f"{path} cannot be written: {error.strerror or error}") from error


def load_draft_vocab(
    path: Path, *, vocab_size: int, tokenizer: Tokenizer | None = None
) -> torch.Tensor:
    """Return the ids, int64 ``[N]``, ascending; ``vocab_size`` is the model's.

    Raises:
        DraftVocabError: the file is damaged, or its ids are empty, repeated or out of range.
        VocabularyMismatchError: it was made for another tokenizer or vocabulary.
    """
    return _checked(path, vocab_size, tokenizer)[1]["ids"].long()


def describe_draft_vocab(folder: Path, vocab_size: int) -> dict[str, Any] | None:
    """What the file beside a checkpoint holds, in JSON's types; None where there is none.

    Checked like ``load_draft_vocab`` against the folder's own tokenizer; what is wrong is said as
    ``problem``, and then nothing else.
    """
    path = folder / DRAFT_VOCAB_FILE
    if not path.is_file():
        return None
    try:
        metadata, tensors = _checked(path, vocab_size, load_tokenizer(folder))
    except (DraftVocabError, VocabularyMismatchError, CheckpointError) as error:
        return {"problem": str(error)}
    total = metadata.get("corpus_tokens", "")
    covered = int(tensors["counts"].sum()) if "counts" in tensors else None
    known = covered is not None and total.isdigit() and int(total) > 0
    return {
        "ids": tensors["ids"].numel(),
        "vocab_size": vocab_size,
        "coverage": covered / int(total) if known and covered is not None else None,
        "tokenizer_sha256": metadata.get("tokenizer_sha256"),
        "corpus_sha256": metadata.get("corpus_sha256"),
    }


def _checked(
    path: Path, vocab_size: int, tokenizer: Tokenizer | None
) -> tuple[dict[str, str], dict[str, torch.Tensor]]:
    metadata, tensors = _read(path)
    if metadata.get("vocab_size") != str(vocab_size):
        raise VocabularyMismatchError(
            f"{path} was made for a vocabulary of {metadata.get('vocab_size')} ids, the model has "
            f"{vocab_size}; make it again for this model"
        )
    if tokenizer is not None and metadata.get("tokenizer_sha256") != tokenizer_sha256(tokenizer):
        raise VocabularyMismatchError(
            f"{path} was made for another tokenizer (its tokenizer_sha256 is "
            f"{metadata.get('tokenizer_sha256')}, this one's {tokenizer_sha256(tokenizer)}); "
            "make it again for this model"
        )
    check_ids(tensors["ids"], vocab_size, str(path))
    return metadata, tensors


def check_ids(ids: torch.Tensor, vocab_size: int, where: str) -> None:
    """Refuse a list of draft ids that is empty, holds one twice, or one beyond the vocabulary."""
    if ids.dim() != 1 or ids.dtype not in (torch.int32, torch.int64):
        raise DraftVocabError(
            f"{where}: ids is {ids.dtype} {list(ids.shape)}, expected int32 in one row"
        )
    if not ids.numel():
        raise DraftVocabError(f"{where}: no id in it; drafts need at least one")
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= vocab_size:
        raise DraftVocabError(
            f"{where}: id {low if low < 0 else high} is out of range, the vocabulary has "
            f"{vocab_size} ids"
        )
    values, times = torch.unique(ids, return_counts=True)
    if values.numel() != ids.numel():
        twice = int(values[times > 1][0])
        raise DraftVocabError(f"{where}: id {twice} is in it {int(times.max())} times")
    if not torch.equal(values, ids):
        raise DraftVocabError(f"{where}: the ids are not in ascending order")


def _file_bytes(vocab: DraftVocab, metadata: dict[str, str]) -> bytes:
    """The file as the format has it, metadata in a fixed order: the same choice, the same bytes."""
    header: dict[str, Any] = {"__metadata__": metadata}
    body = b""
    # The wider type first, so that both are aligned.
    for name, dtype, tensor in (("counts", "I64", vocab.counts), ("ids", "I32", vocab.ids)):
        raw = tensor.numpy().astype(f"<i{tensor.element_size()}").tobytes()
        offsets = [len(body), len(body) + len(raw)]
        header[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": offsets}
        body += raw
    text = json.dumps(header, separators=(",", ":")).encode("ascii")
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + body


def _read(path: Path) -> tuple[dict[str, str], dict[str, torch.Tensor]]:
    try:
        with safe_open(path, framework="pt") as file:
            metadata = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise DraftVocabError(f"{path} cannot be read as a draft vocabulary: {error}") from error
    if metadata.get("format") != FORMAT or metadata.get("format_version") != FORMAT_VERSION:
        raise DraftVocabError(
            f"{path}: format {metadata.get('format')!r}, version "
            f"{metadata.get('format_version')!r}; expected {FORMAT!r}, version {FORMAT_VERSION!r}"
        )
    if "ids" not in tensors:
        raise DraftVocabError(f"{path}: no tensor 'ids' in it, only {', '.join(tensors) or 'none'}")
    return metadata, tensors
