"""Loading a test checkpoint, changing one in place, and expecting the refusal that follows."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from bytebound.checkpoint import Checkpoint, load_checkpoint
from bytebound.config import ModelConfig
from bytebound.errors import CheckpointError
from safetensors.torch import load_file, save_file

from .checkpoints import INDEX_FILE, SINGLE_FILE, write_json

CPU = torch.device("cpu")


def load(folder: Path, dtype: torch.dtype = torch.float32) -> Checkpoint:
    return load_checkpoint(folder, ModelConfig.from_folder(folder), dtype=dtype, device=CPU)


def refused(folder: Path, *parts: str) -> str:
    """Loading fails with one line that holds every part."""
    with pytest.raises(CheckpointError) as caught:
        load(folder)
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert part in message, message
    return message


def change_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    write_json(path, {**json.loads(path.read_text()), **changes})


def change_index(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    index = json.loads((folder / INDEX_FILE).read_text())
    change(index)
    write_json(folder / INDEX_FILE, index)


def change_tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    """Rewrite the single file after a change of its tensors."""
    tensors = load_file(folder / SINGLE_FILE)
    change(tensors)
    save_file(tensors, folder / SINGLE_FILE)


def change_header(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Rewrite a file's header and leave its data alone."""
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + raw[8 + length :])
