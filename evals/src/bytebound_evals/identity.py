"""What a measurement depends on, as hashes: a model folder, a tokenizer, a text, settings.

Equal hashes mean equal content, wherever it lies and whatever it is called.
"""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bytebound import CheckpointError
from bytebound.names import random_shape, resolve_model
from bytebound.text.tokenizer import Tokenizer

from bytebound_evals.windows import CutText

_WEIGHT_FILES = ("config.json", "*.safetensors", "*.safetensors.index.json")


def digest(value: Any) -> str:
    """SHA-256 of a JSON value, however its keys are ordered."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def model_digest(path_or_name: str) -> str:
    """SHA-256 over the config and every byte of the weights, so it takes as long as reading them.

    A model with random weights is known by its config.

    Raises:
        CheckpointError: there is no such model, or a file cannot be read.
    """
    shape = random_shape(path_or_name)
    if shape is not None:
        return digest(["random", file_digest(shape)])
    folder = resolve_model(path_or_name)
    files = sorted({file for pattern in _WEIGHT_FILES for file in folder.glob(pattern)})
    return digest([[file.name, file_digest(file)] for file in files])


def tokenizer_digest(tokenizer: Tokenizer) -> str:
    """SHA-256 over all that decides which ids a text gets."""
    state: str = tokenizer.hf.backend_tokenizer.to_str()
    return hashlib.sha256(state.encode()).hexdigest()


def text_digest(text: CutText) -> str:
    """SHA-256 over the ids of every window and which of them are scored."""
    hashed = hashlib.sha256()
    for window in text.windows:
        hashed.update(_packed([window.document, window.first, len(window.ids), *window.ids]))
    return hashed.hexdigest()


def file_digest(path: Path) -> str:
    """SHA-256 of one file.

    Raises:
        CheckpointError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error


def _packed(numbers: Iterable[int]) -> bytes:
    return b"".join(number.to_bytes(8, "little") for number in numbers)
