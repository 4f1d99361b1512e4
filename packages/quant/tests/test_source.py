import dataclasses
import json
from pathlib import Path

import pytest
import torch
from bytebound.errors import CheckpointError
from bytebound_quant.errors import SourceError
from bytebound_quant.source import open_source

from .small import checkpoint, checkpoints


def test_reads_what_is_stored(tmp_path: Path) -> None:
    made = checkpoint(tmp_path / "a", shards=3, dtype=torch.bfloat16, vision=True)
    source = open_source(made.folder)
    for name, tensor in made.tensors.items():
        raw = b"".join(source.raw(name))
        assert raw == tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        if name not in source.stored.skipped:
            assert torch.equal(source.read(name), tensor)


@pytest.mark.parametrize("rows", [1, 8, 64, 150, 151, 1000])
def test_rows_are_the_matrix(tmp_path: Path, rows: int) -> None:
    made = checkpoint(tmp_path / "a")
    blocks = list(open_source(made.folder).rows("lm_head.weight", rows))
    assert torch.equal(torch.cat(blocks), made.tensors["lm_head.weight"])
    assert all(len(block) == rows for block in blocks[:-1])


@pytest.mark.parametrize("nested", [False, True], ids=["flat", "nested"])
def test_a_quantized_source_is_refused_by_name(tmp_path: Path, nested: bool) -> None:
    made = checkpoint(tmp_path / "a", nested=nested)
    config = dict(made.config)
    block = {"quant_method": "gptq", "bits": 4}
    if nested:
        config["text_config"] = {**config["text_config"], "quantization_config": block}
    else:
        config["quantization_config"] = block
    checkpoints.write_json(made.folder / "config.json", config)
    with pytest.raises(SourceError, match=r"quantized already \(gptq; config.json: quantiz"):
        open_source(made.folder)


def test_packed_tensors_without_a_word_in_the_config(tmp_path: Path) -> None:
    made = checkpoint(tmp_path / "a")
    made.tensors["model.layers.0.mlp.up_proj.weight_packed"] = torch.zeros(2, 2).int()
    checkpoints.write_tensors(made.folder, made.tensors)
    with pytest.raises(SourceError, match=r"up_proj\.weight_packed, though its config"):
        open_source(made.folder)


def test_a_missing_shard_is_refused(tmp_path: Path) -> None:
    made = checkpoint(tmp_path / "a", shards=3)
    (made.folder / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(CheckpointError, match="model-00002-of-00003"):
        open_source(made.folder)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("how", ["read", "rows", "raw"])
def test_values_that_are_not_finite(tmp_path: Path, value: float, how: str) -> None:
    made = checkpoint(tmp_path / "a")
    made.tensors["lm_head.weight"][5, 3] = value
    checkpoints.write_tensors(made.folder, made.tensors)
    source = open_source(made.folder)
    with pytest.raises(SourceError, match=r"lm_head\.weight holds NaN or infinite"):
        if how == "read":
            source.read("lm_head.weight")
        elif how == "rows":
            list(source.rows("lm_head.weight", 4))
        else:
            list(source.raw("lm_head.weight"))


def test_a_file_that_became_shorter(tmp_path: Path) -> None:
    made = checkpoint(tmp_path / "a")
    source = open_source(made.folder)
    path = made.folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises((SourceError, CheckpointError), match="became shorter"):
        list(source.raw("mtp.fc.weight"))


def test_hashes_follow_the_content(tmp_path: Path) -> None:
    made = checkpoint(tmp_path / "a", shards=2)
    before = open_source(made.folder).hashes()
    assert set(before) == {
        "config.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    }
    config = json.loads((made.folder / "config.json").read_text())
    checkpoints.write_json(made.folder / "config.json", {**config, "use_cache": True})
    after = open_source(made.folder).hashes()
    assert {name for name in before if before[name] != after[name]} == {"config.json"}


def test_source_is_immutable(tmp_path: Path) -> None:
    source = open_source(checkpoint(tmp_path / "a").folder)
    with pytest.raises(dataclasses.FrozenInstanceError):
        source.folder = tmp_path  # type: ignore[misc]
