"""Calibration windows: token ids of equal length, drawn from weighted sources by a seed.

The documents of a source are joined into one row of ids, with the tokenizer's end id between two
(conversations end themselves, nothing is put between them). The row is cut into windows that do not
overlap, and the source's share of windows is drawn from them without replacement. Shares follow the
weights exactly, by largest remainder. Empty documents and repeats of an earlier one are left out
and counted. Every draw is a Philox number of the seed, so it does not vary with Python's version.

Text on which quality is measured is refused by name (``reading.py``).
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice
from typing import Any

import torch
from bytebound.philox import uniform
from bytebound.text.tokenizer import Tokenizer

from bytebound_quant.errors import CalibrationError, VocabularyMismatchError
from bytebound_quant.reading import Reading
from bytebound_quant.text_sources import CalibrationSource, check_chat_sources, parse_source

__all__ = ["Calibration", "CalibrationSource", "load_calibration", "parse_source"]

POOL = 8
"""A dataset is read, in a seeded order, until it gives this many times the windows wanted."""

# What a Philox number is for; a source adds its place in the list.
_DRAW_WINDOWS = 1_000
_DRAW_ROWS = 1_000_000
_DRAW_ORDER = 1


@dataclass(frozen=True, slots=True)
class Calibration:
    """The windows, and what they were made of."""

    windows: torch.Tensor
    """``[n, window]`` int64."""
    digest: str
    """SHA-256 over the ids and the settings: equal for equal windows in equal order."""
    summary: dict[str, Any]
    """Settings, sources and counts for the report, in JSON's types."""


def load_calibration(
    sources: Sequence[CalibrationSource],
    tokenizer: Tokenizer,
    *,
    window: int,
    samples: int,
    seed: int,
    chat_template: bool = False,
    vocab_size: int | None = None,
) -> Calibration:
    """Draw ``samples`` windows of ``window`` ids from ``sources``.

    ``vocab_size`` is the model's; ids beyond it are refused.

    Raises:
        HeldoutTextError: a source holds text on which quality is measured.
        VocabularyMismatchError: the tokenizer makes ids that the model does not have.
        CalibrationError: a source is damaged, too short, empty or all the same.
    """
    _check_settings(sources, window, samples, seed)
    check_chat_sources(sources, chat_template)
    shares = apportion(samples, [source.weight for source in sources])
    seen: set[bytes] = set()
    windows: list[list[int]] = []
    described = []
    for place, (source, share) in enumerate(zip(sources, shares, strict=True)):
        if share == 0:
            raise CalibrationError(
                f"{source.label}: its weight {source.weight:g} gives it none of {samples} windows; "
                "raise the number of samples or the weight, or leave the source out"
            )
        ids, reading = read_tokens(
            source,
            tokenizer,
            chat_template=chat_template,
            seed=seed,
            place=place,
            enough=POOL * share * window,
            seen=seen,
        )
        check_vocabulary(source, max(ids), vocab_size)
        windows += _draw(source, ids, window, share, seed, place)
        described.append(
            {
                "source": source.label,
                "weight": source.weight,
                "windows": share,
                "available_windows": len(ids) // window,
                "tokens": len(ids),
                **reading.summary(),
            }
        )
    if samples > 1 and all(one == windows[0] for one in windows):
        raise CalibrationError(
            f"all {samples} calibration windows hold the same {window} ids; give text that varies"
        )
    mixed = [windows[index] for index in permutation(samples, seed, _DRAW_ORDER)]
    settings = {
        "window": window,
        "samples": samples,
        "seed": seed,
        "chat_template": chat_template,
        "end_id": end_id_of(tokenizer),
    }
    table = torch.tensor(mixed, dtype=torch.int64)
    digest = _digest(table, settings, sources)
    summary = {"digest": digest, **settings, "tokens": table.numel(), "sources": described}
    return Calibration(table, digest, summary)


def apportion(total: int, weights: Sequence[float]) -> list[int]:
    """Split ``total`` by ``weights`` by largest remainder; among equals the first one gets more."""
    whole = sum(map(Fraction, weights))
    exact = [Fraction(weight) * total / whole for weight in weights]
    shares = [int(part) for part in exact]
    by_remainder = sorted(
        range(len(exact)), key=lambda index: (shares[index] - exact[index], index)
    )
    for index in by_remainder[: total - sum(shares)]:
        shares[index] += 1
    return shares


def permutation(count: int, seed: int, purpose: int) -> Iterator[int]:
    """Every index below ``count`` once, in an order that only seed and purpose decide.

    Fisher and Yates from the front, holding the moved indices only, so a few of many cost little.
    """
    moved: dict[int, int] = {}
    for place in range(count):
        other = place + int(uniform(seed, place, purpose) * (count - place))
        yield moved.get(other, other)
        moved[other] = moved.pop(place, place)


def read_tokens(
    source: CalibrationSource,
    tokenizer: Tokenizer,
    *,
    chat_template: bool,
    seed: int = 0,
    place: int = 0,
    enough: int | None = None,
    seen: set[bytes] | None = None,
) -> tuple[list[int], Reading]:
    """Tokenize a source into one row of ids.

    With ``enough`` a dataset is read in a seeded order until it gave so many ids. ``seen`` holds
    the hashes of earlier documents and is added to.

    Raises:
        CalibrationError: the source is damaged, empty, or one text over and over.
        HeldoutTextError: it holds text on which quality is measured.
    """
    chats = chat_template and source.kind != "text"
    reading = Reading(source, chats, set() if seen is None else seen)
    ids: list[int] = []
    end_id = None if chats else end_id_of(tokenizer)
    sampled = enough is not None and source.kind == "datasets"
    order = (lambda count: permutation(count, seed, _DRAW_ROWS + place)) if sampled else None
    for document in reading.documents(tokenizer, order):
        if ids and end_id is not None and ids[-1] != end_id:
            ids.append(end_id)
        ids += document
        if sampled and enough is not None and len(ids) >= enough:
            break
    reading.check()
    return ids, reading


def check_vocabulary(source: CalibrationSource, largest: int, vocab_size: int | None) -> None:
    """Refuse ids that the model has no row for; ``largest`` is the largest one met."""
    if vocab_size is not None and largest >= vocab_size:
        raise VocabularyMismatchError(
            f"{source.label}: the tokenizer gives id {largest}, the model's vocabulary has "
            f"{vocab_size} ids (0 to {vocab_size - 1}); use the tokenizer of this very model"
        )


def _check_settings(
    sources: Sequence[CalibrationSource], window: int, samples: int, seed: int
) -> None:
    if not sources:
        raise CalibrationError("no calibration source was given; name at least one")
    for name, value, least in (("window", window, 2), ("samples", samples, 1), ("seed", seed, 0)):
        if type(value) is not int or value < least:
            raise CalibrationError(f"calibration {name} is {value!r}, expected at least {least}")
    if len(sources) > samples:
        raise CalibrationError(
            f"{len(sources)} calibration sources share {samples} windows; ask for more samples"
        )


def _draw(
    source: CalibrationSource, ids: list[int], window: int, share: int, seed: int, place: int
) -> list[list[int]]:
    if len(ids) < window:
        raise CalibrationError(
            f"{source.label} is shorter than the window: {len(ids)} tokens, the window takes "
            f"{window}; give more text or a smaller window"
        )
    distinct: dict[tuple[int, ...], int] = {}
    for start in range(0, len(ids) - window + 1, window):
        distinct.setdefault(tuple(ids[start : start + window]), start)
    starts = list(distinct.values())
    if len(starts) < share:
        raise CalibrationError(
            f"{source.label} gives {len(starts)} different windows of {window} tokens, its share "
            f"is {share}; give more text, fewer samples or a smaller window"
        )
    chosen = islice(permutation(len(starts), seed, _DRAW_WINDOWS + place), share)
    return [ids[starts[index] : starts[index] + window] for index in chosen]


def _end_id(tokenizer: Tokenizer) -> int | None:
    return min(tokenizer.eos_ids, default=None)


def end_id_of(tokenizer: Tokenizer) -> int | None:
    """The id that stands between two documents; None where the tokenizer declares none."""
    return min(tokenizer.eos_ids, default=None)


def _digest(
    ids: torch.Tensor, settings: dict[str, Any], sources: Sequence[CalibrationSource]
) -> str:
    # Where a file lies is not part of it: the ids say what was in it.
    described = [{"kind": source.kind, "weight": source.weight} for source in sources]
    digest = hashlib.sha256()
    digest.update(json.dumps({**settings, "sources": described}, sort_keys=True).encode())
    for row in ids.tolist():
        digest.update(b"".join(value.to_bytes(8, "little") for value in row))
    return digest.hexdigest()
