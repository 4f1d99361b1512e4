"""The draft vocabulary: counts, choice, file, and each list of ids that is refused (E23)."""

from pathlib import Path

import pytest
import torch
from bytebound.text.tokenizer import Tokenizer
from bytebound_quant.draft_vocab import (
    FORMAT,
    always_kept,
    choose,
    count_tokens,
    coverage_curve,
    load_draft_vocab,
    save_draft_vocab,
    tokenizer_sha256,
)
from bytebound_quant.errors import DraftVocabError, HeldoutTextError, VocabularyMismatchError
from bytebound_quant.text_sources import CalibrationSource
from safetensors.torch import load_file, save_file

from .conftest import runtime_helper
from .test_calibration import HELDOUT

VOCAB = 400
TEXT = "the quick brown fox says hello to the world, the lazy dog says 42 👍\n" * 3 + "안녕 end"


@pytest.fixture
def corpus(tmp_path: Path) -> CalibrationSource:
    path = tmp_path / "corpus.txt"
    path.write_text(TEXT, encoding="utf-8")
    return CalibrationSource("text", str(path))


@pytest.fixture
def saved(tokenizer: Tokenizer, corpus: CalibrationSource, tmp_path: Path) -> Path:
    counts = count_tokens([corpus], tokenizer, vocab_size=VOCAB)
    vocab = choose(counts, always_kept(tokenizer, VOCAB), 300)
    path = tmp_path / "draft_vocab.safetensors"
    save_draft_vocab(vocab, path, tokenizer)
    return path


def test_counts_are_those_of_the_text(tokenizer: Tokenizer, corpus: CalibrationSource) -> None:
    counts = count_tokens([corpus], tokenizer, vocab_size=VOCAB)
    ids = torch.tensor(tokenizer.encode(TEXT))
    assert counts.counts.equal(torch.bincount(ids, minlength=VOCAB))
    assert counts.total == len(ids)


def test_control_tokens_bytes_and_digits_are_always_kept(tokenizer: Tokenizer) -> None:
    kept = set(always_kept(tokenizer, VOCAB))
    assert tokenizer.control_ids <= kept
    single = {tokenizer.token_bytes(one) for one in kept}
    assert {bytes([value]) for value in range(256)} <= single
    assert max(always_kept(tokenizer, 64)) < 64


def test_the_most_frequent_ids_are_chosen(tokenizer: Tokenizer, corpus: CalibrationSource) -> None:
    counts = count_tokens([corpus], tokenizer, vocab_size=VOCAB)
    kept = always_kept(tokenizer, VOCAB)
    vocab = choose(counts, kept, len(kept) + 5)
    assert vocab.ids.dtype == torch.int32
    assert vocab.ids.tolist() == sorted(set(vocab.ids.tolist()))
    chosen = set(vocab.ids.tolist()) - set(kept)
    others = set(range(VOCAB)) - set(vocab.ids.tolist())
    least = min(int(counts.counts[one]) for one in chosen)
    assert least >= max(int(counts.counts[one]) for one in others)
    curve = coverage_curve(counts, kept)
    assert float(curve[len(kept) + 4]) == pytest.approx(vocab.coverage)
    assert bool((curve.diff() >= 0).all()) and float(curve[-1]) == 1.0


@pytest.mark.parametrize("size", [0, 10, VOCAB + 1])
def test_sizes_that_cannot_be(tokenizer: Tokenizer, corpus: CalibrationSource, size: int) -> None:
    counts = count_tokens([corpus], tokenizer, vocab_size=VOCAB)
    with pytest.raises(DraftVocabError, match=f"size is {size}"):
        choose(counts, always_kept(tokenizer, VOCAB), size)


def test_corpora_that_cannot_be(tokenizer: Tokenizer, corpus: CalibrationSource) -> None:
    with pytest.raises(VocabularyMismatchError):
        count_tokens([corpus], tokenizer, vocab_size=64)
    with pytest.raises(HeldoutTextError):
        count_tokens([CalibrationSource("text", str(HELDOUT))], tokenizer, vocab_size=VOCAB)
    with pytest.raises(DraftVocabError, match="no corpus"):
        count_tokens([], tokenizer, vocab_size=VOCAB)


def test_the_file_gives_the_ids_back(saved: Path, tokenizer: Tokenizer) -> None:
    ids = load_draft_vocab(saved, vocab_size=VOCAB, tokenizer=tokenizer)
    assert ids.dtype == torch.int64 and ids.shape == (300,)
    assert [one.name for one in saved.parent.glob(".*")] == []
    first = saved.read_bytes()
    assert ids.equal(load_file(saved)["ids"].long()) and first == saved.read_bytes()


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([], "no id"),
        ([1, 2, 2], "id 2 is in it 2 times"),
        ([1, VOCAB], f"id {VOCAB} is out of range"),
        ([-1, 4], "id -1 is out of range"),
        ([4, 1], "ascending"),
        ([[1, 2]], "one row"),
    ],
)
def test_ids_that_are_refused(
    saved: Path, tokenizer: Tokenizer, ids: list[int], message: str
) -> None:
    """E23."""
    metadata = {
        "format": FORMAT,
        "format_version": "1",
        "vocab_size": str(VOCAB),
        "tokenizer_sha256": tokenizer_sha256(tokenizer),
    }
    save_file({"ids": torch.tensor(ids, dtype=torch.int32)}, saved, metadata)
    with pytest.raises(DraftVocabError, match=message):
        load_draft_vocab(saved, vocab_size=VOCAB, tokenizer=tokenizer)


def test_files_that_are_refused(saved: Path, tokenizer: Tokenizer) -> None:
    """E23."""
    with pytest.raises(VocabularyMismatchError, match="400 ids, the model has 500"):
        load_draft_vocab(saved, vocab_size=500)
    other = runtime_helper("conftest").write_tokenizer(saved.parent / "other")
    text = (other / "tokenizer.json").read_text(encoding="utf-8")
    (other / "tokenizer.json").write_text(text.replace("<tool_call>", "<tool_use>"))
    from bytebound.text.tokenizer import load_tokenizer

    changed = load_tokenizer(other)
    assert changed is not None
    with pytest.raises(VocabularyMismatchError, match="another tokenizer"):
        load_draft_vocab(saved, vocab_size=VOCAB, tokenizer=changed)
    save_file({"ids": torch.tensor([1])}, saved)
    with pytest.raises(DraftVocabError, match="format None"):
        load_draft_vocab(saved, vocab_size=VOCAB)
    saved.write_bytes(b"x")
    with pytest.raises(DraftVocabError, match="cannot be read"):
        load_draft_vocab(saved, vocab_size=VOCAB)
