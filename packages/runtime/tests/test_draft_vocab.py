"""The draft vocabulary: a file of another model is refused; drafts keep to it, output does not."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from bytebound import Engine, InvalidSettingError, SamplingParams
from bytebound.checkpoint import read_headers
from bytebound.config import ModelConfig
from bytebound.cuda.assembly import packable
from bytebound.cuda.draft_head import rows_of, stored_draft_head
from bytebound.cuda.loading import load_weights
from bytebound.cuda.matrices import DenseMatrix, PackedMatrix
from bytebound.cuda.random_weights import random_weights
from bytebound.cuda.weights import largest_packed
from bytebound.draft_vocab import only_ids, read_draft_vocab, spread, tokenizer_sha256
from bytebound.names import resolve_model
from bytebound.quantized import read_matrix
from bytebound.text.tokenizer import Tokenizer, load_tokenizer
from safetensors.torch import save_file

from .checkpoints import random_checkpoint
from .cuda_models import FOLDERS, SHAPE
from .emulated_kernels import emulate

CPU = torch.device("cpu")
VOCAB = 4096


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    loaded = load_tokenizer(resolve_model("tiny"))
    assert loaded is not None
    return loaded


Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path, tokenizer: Tokenizer) -> Write:
    """Write a file as ``bytebound-quant draft-vocab`` does, with some fields changed."""

    def one(ids: Any, vocab: int = VOCAB, **changes: Any) -> Path:
        metadata = {
            "format": "bytebound-draft-vocab", "format_version": "1",
            "tokenizer_sha256": tokenizer_sha256(tokenizer), "vocab_size": str(vocab),
            "corpus_sha256": "0" * 64, "corpus_tokens": "1000",
        }  # fmt: skip
        name = changes.pop("name", "ids")
        tensor = ids if isinstance(ids, torch.Tensor) else torch.tensor(ids, dtype=torch.int32)
        path = tmp_path / "draft_vocab.safetensors"
        tensors = {name: tensor, "counts": torch.ones(3, dtype=torch.int64)}
        save_file(tensors, path, {**metadata, **changes})
        return path

    return one


def test_it_gives_the_ids(write: Write, tokenizer: Tokenizer) -> None:
    path = write([3, 9, 4095])
    for given in (tokenizer, None):
        ids = read_draft_vocab(path, vocab_size=VOCAB, tokenizer=given)
        assert ids.dtype == torch.int32 and ids.tolist() == [3, 9, 4095]


@pytest.mark.parametrize(
    ("ids", "changes", "message"),
    [
        ([3, 9], {"vocab": 5000}, "made for a vocabulary of 5000 ids, the model has 4096"),
        ([3, 9], {"tokenizer_sha256": "1" * 64}, "made for another tokenizer"),
        ([3, 9], {"format": "else"}, "format 'else'"),
        ([3, 9], {"format_version": "2"}, "version '2'; expected"),
        ([3, 9], {"name": "id"}, "no tensor 'ids'"),
        ([], {}, "no id in it"),
        ([3, 3], {}, "not ascending, or one is there twice"),
        ([9, 3], {}, "not ascending"),
        ([3, 4096], {}, "holds the id 4096; expected 0 to 4095"),
        ([-1, 3], {}, "holds the id -1"),
        (torch.ones(2, 2, dtype=torch.int32), {}, r"ids torch.int32 \[2, 2\]"),
        (torch.ones(2), {}, "ids torch.float32"),
    ],
)
def test_what_does_not_fit_the_model(
    write: Write, tokenizer: Tokenizer, ids: Any, changes: dict[str, Any], message: str
) -> None:
    path = write(ids, **changes)
    with pytest.raises(InvalidSettingError, match=rf"^draft_vocab='.*': .*{message}") as caught:
        read_draft_vocab(path, vocab_size=VOCAB, tokenizer=tokenizer)
    assert "\n" not in str(caught.value)


def test_what_is_no_such_file(tmp_path: Path) -> None:
    (tmp_path / "text").write_text(json.dumps({"ids": [1]}))
    for path in (tmp_path / "text", tmp_path / "missing", tmp_path):
        with pytest.raises(
            InvalidSettingError, match=r"^draft_vocab=.*bytebound-quant draft-vocab"
        ):
            read_draft_vocab(path, vocab_size=VOCAB, tokenizer=None)


def test_only_some_ids() -> None:
    logits = torch.randn(2, 7)
    ids = torch.tensor([1, 5])
    kept = only_ids(logits, ids)
    assert torch.equal(kept, spread(logits[:, ids], ids, 7))
    assert kept[:, [1, 5]].equal(logits[:, [1, 5]])
    assert kept.isinf().sum() == 10 and kept.softmax(-1)[:, [0, 2, 3, 4, 6]].eq(0).all()


def load(path: Path | None, draft: str = "mtp", **more: Any) -> Engine:
    return Engine.from_pretrained(
        "tiny", device="cpu", draft=draft, draft_vocab=path, num_draft_tokens=3, max_len=128, **more
    )


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_the_reference_drafts_within_it(write: Write, temperature: float) -> None:
    """A vocabulary of every id changes nothing; one of few ids changes guesses, not tokens."""
    params = SamplingParams(max_tokens=30, temperature=temperature, seed=5, ignore_eos=True)
    plain = load(None)
    ids = plain.tokenizer.encode("The history of the bicycle")
    expected = plain.generate(ids, params)
    everything = load(write(list(range(VOCAB)))).generate(ids, params)
    assert everything.token_ids == expected.token_ids
    assert everything.stats.accepted == expected.stats.accepted > 0

    few = sorted(set(expected.token_ids))[::2]
    engine = load(write(few))
    guesses: list[int] = []
    assert engine.draft is not None
    propose = engine.draft.propose

    def watched(*args: Any) -> Any:
        proposal = propose(*args)
        guesses.extend(proposal.ids)
        return proposal

    engine.draft.propose = watched  # type: ignore[method-assign]
    result = engine.generate(ids, params)
    assert guesses and set(guesses) <= set(few)
    if temperature == 0:
        assert result.token_ids == expected.token_ids
    assert result.stats.accepted < expected.stats.accepted


def test_it_needs_drafts_by_the_head(write: Write) -> None:
    for draft in ("none", "ngram"):
        with pytest.raises(InvalidSettingError, match=rf"only draft='mtp' .*got '{draft}'"):
            load(write([1, 2]), draft=draft)


@pytest.mark.parametrize("kind", [*FOLDERS, "tied"])
def test_the_head_has_the_rows_of_the_models(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str
) -> None:
    kernels = emulate(monkeypatch)
    if kind == "tied":
        folder = random_checkpoint(tmp_path / "model", tied=True, **SHAPE).folder
    else:
        folder = FOLDERS[kind](tmp_path / "model")
    config = ModelConfig.from_folder(folder)
    stored = read_headers(folder, config)
    weights = load_weights(folder, config, stored, device=CPU)
    ids = torch.tensor([0, 7, 8, 9, 130, 359], dtype=torch.int32)
    head = stored_draft_head(stored, weights.lm_head, ids)
    if isinstance(weights.lm_head, PackedMatrix):
        assert isinstance(head, PackedMatrix) and head.n == 6
        assert head.weight.asymmetric == weights.lm_head.weight.asymmetric
        whole = kernels.weights(weights.lm_head.weight)
        assert torch.equal(kernels.weights(head.weight), whole[ids.long()])
    else:
        assert isinstance(head, DenseMatrix) and isinstance(weights.lm_head, DenseMatrix)
        assert torch.equal(head.weight, weights.lm_head.weight[ids.long()])
    assert (kind in ("symmetric", "asymmetric", "partly")) == isinstance(head, PackedMatrix)


def test_rows_keep_their_zero_points(tmp_path: Path) -> None:
    folder = FOLDERS["asymmetric"](tmp_path / "model")
    stored = read_headers(folder, ModelConfig.from_folder(folder))
    matrix = read_matrix(stored.packed["lm_head.weight"])
    whole = packable(matrix)
    assert whole is not None
    ids = torch.tensor([5, 6, 17, 200])
    some = rows_of(whole, ids)
    assert some.zero_point is not None and some.zero_point.shape == (1, matrix.zeros().shape[1])
    nibbles = torch.stack([some.zero_point[0] >> 4 * i & 15 for i in range(4)])
    assert torch.equal(nibbles.to(torch.uint8), matrix.zeros()[ids])


def test_random_weights_have_a_random_head(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    emulate(monkeypatch)
    config = ModelConfig.from_folder(random_checkpoint(tmp_path, **SHAPE).folder)
    ids = torch.arange(0, 320, 2, dtype=torch.int32)
    weights = random_weights(config, dtype=torch.bfloat16, device=CPU, draft_ids=ids)
    plain = random_weights(config, dtype=torch.bfloat16, device=CPU)
    assert weights.mtp is not None and plain.mtp is not None
    head = weights.mtp.draft_head
    assert isinstance(head, PackedMatrix) and head.n == 160 and plain.mtp.draft_head is None
    assert weights.mtp.draft_ids is not None and weights.mtp.draft_ids.equal(ids)
    assert torch.equal(weights.embed_tokens, plain.embed_tokens)
    # Prompts never meet it, so it takes no room for being unpacked.
    assert largest_packed(weights.mtp) == largest_packed(plain.mtp)
