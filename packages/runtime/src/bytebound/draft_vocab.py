"""The draft vocabulary: the ids that drafts may guess, from ``bytebound-quant draft-vocab``.

A safetensors file with ``ids`` int32 [N], ascending, none twice, and metadata that says which
tokenizer and vocabulary they belong to. A draft over N ids reads N rows of the output head instead
of all. It changes what is guessed, never what is generated.
"""

import hashlib
import json
from os import PathLike
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from bytebound.errors import InvalidSettingError
from bytebound.text.tokenizer import Tokenizer

FORMAT = "bytebound-draft-vocab"
FORMAT_VERSION = "1"


def read_draft_vocab(
    path: str | PathLike[str], *, vocab_size: int, tokenizer: Tokenizer | None
) -> torch.Tensor:
    """Return the ids, int32 [N] in host memory, checked against the model.

    Raises:
        InvalidSettingError: the file is no draft vocabulary, is damaged, or is another model's.
    """
    where = f"draft_vocab={str(path)!r}"
    try:
        with safe_open(Path(path), framework="pt") as file:
            metadata = dict(file.metadata() or {})
            ids = file.get_tensor("ids") if "ids" in file.keys() else None  # noqa: SIM118
    except (OSError, SafetensorError, TypeError, ValueError) as error:
        raise InvalidSettingError(
            f"{where}: cannot be read as a draft vocabulary: {error}; expected a file that "
            "'bytebound-quant draft-vocab' wrote"
        ) from error
    got = (metadata.get("format"), metadata.get("format_version"))
    if got != (FORMAT, FORMAT_VERSION):
        raise InvalidSettingError(
            f"{where}: format {got[0]!r}, version {got[1]!r}; expected {FORMAT!r}, version "
            f"{FORMAT_VERSION!r}"
        )
    if metadata.get("vocab_size") != str(vocab_size):
        raise InvalidSettingError(
            f"{where}: made for a vocabulary of {metadata.get('vocab_size')} ids, the model has "
            f"{vocab_size}; make it again for this model"
        )
    if tokenizer is not None and metadata.get("tokenizer_sha256") != tokenizer_sha256(tokenizer):
        raise InvalidSettingError(
            f"{where}: made for another tokenizer; make it again for this model"
        )
    return _checked_ids(ids, vocab_size, where)


def tokenizer_sha256(tokenizer: Tokenizer) -> str:
    """SHA-256 of the vocabulary: ``[[id, token], ...]`` by id, as compact ASCII JSON."""
    table = sorted((token_id, token) for token, token_id in tokenizer.hf.get_vocab().items())
    text = json.dumps([list(one) for one in table], separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def only_ids(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Return ``logits`` [..., vocab] with minus infinity for every id that is not in ``ids``."""
    return spread(logits[..., ids], ids, logits.shape[-1])


def spread(logits: torch.Tensor, ids: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Logits [..., N] of the draft vocabulary as [..., vocab]; minus infinity for other ids."""
    result = logits.new_full((*logits.shape[:-1], vocab_size), -torch.inf)
    result[..., ids] = logits
    return result


def _checked_ids(ids: torch.Tensor | None, vocab_size: int, where: str) -> torch.Tensor:
    if ids is None or ids.dtype not in (torch.int32, torch.int64) or ids.dim() != 1:
        got = "no tensor 'ids'" if ids is None else f"ids {ids.dtype} {list(ids.shape)}"
        raise InvalidSettingError(f"{where}: {got}; expected ids as int32 in one row")
    if not ids.numel():
        raise InvalidSettingError(f"{where}: no id in it; drafts need at least one")
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= vocab_size:
        raise InvalidSettingError(
            f"{where}: holds the id {low if low < 0 else high}; expected 0 to {vocab_size - 1}"
        )
    if not bool((ids[1:] > ids[:-1]).all()):
        raise InvalidSettingError(f"{where}: the ids are not ascending, or one is there twice")
    return ids.to(torch.int32)
