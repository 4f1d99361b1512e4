"""4-bit folders that must not load: each is refused by name, before wrong numbers come of it."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from bytebound.checkpoint import load_checkpoint
from bytebound.config import ModelConfig
from bytebound.errors import UnsupportedModelError

from .checkpoints import SINGLE_FILE, random_checkpoint, write_json, write_tensors
from .damage import CPU, change_config, change_tensors, load, refused
from .packed import (
    PackedFolder,
    awq_folder,
    compressed_config,
    compressed_folder,
    gptq_config,
    gptq_folder,
    projections,
)

UP = "model.layers.0.mlp.up_proj"  # [96, 64]
Tensors = dict[str, torch.Tensor]


def drop(tail: str) -> Callable[[Tensors], object]:
    return lambda tensors: tensors.pop(f"{UP}.{tail}")


def put(tail: str, tensor: torch.Tensor) -> Callable[[Tensors], object]:
    return lambda tensors: tensors.update({f"{UP}.{tail}": tensor})


def spoil(tail: str, value: float) -> Callable[[Tensors], object]:
    return lambda tensors: tensors[f"{UP}.{tail}"][-1].fill_(value)


NAN, INFINITE = float("nan"), float("inf")
INT32 = {"dtype": torch.int32}

COMPRESSED: dict[str, tuple[Callable[[Tensors], object], tuple[str, ...]]] = {
    "plain besides": (put("weight", torch.ones(96, 64)), (f"{UP} has weight and also",)),
    "no scale": (drop("weight_scale"), (f"{UP} has", "no weight_scale")),
    "no codes": (drop("weight_packed"), ("no weight_packed", "not complete")),
    "no shape": (drop("weight_shape"), ("no weight_shape",)),
    "zero point": (put("weight_zero_point", torch.zeros(12, 2, **INT32)), ("does not ask for",)),
    "order": (put("weight_g_idx", torch.zeros(64, **INT32)), ("weight_g_idx", "does not ask")),
    "codes cut": (put("weight_packed", torch.zeros(96, 7, **INT32)), ("[96, 7]", "[96, 8]")),
    "codes turned": (put("weight_packed", torch.zeros(8, 96, **INT32)), ("[8, 96]", "[96, 8]")),
    "codes of int64": (
        put("weight_packed", torch.zeros(96, 8, dtype=torch.int64)),
        ("weight_packed", "I64", "I32"),
    ),
    "scales of another size": (
        put("weight_scale", torch.ones(96, 1)),
        ("weight_scale", "[96, 1]", "groups of 32", "[96, 2]"),
    ),
    "scales of int32": (put("weight_scale", torch.ones(96, 2, **INT32)), ("stored as I32",)),
    "another shape": (put("weight_shape", torch.tensor([64, 96])), ("[64, 96]", "[96, 64]")),
    "nan": (spoil("weight_scale", NAN), (UP, "NaN or infinite")),
    "infinite": (spoil("weight_scale", INFINITE), (UP, "NaN or infinite")),
    "another layout": (put("qweight", torch.zeros(8, 96, **INT32)), ("qweight", "no part of")),
    "unknown module": (
        lambda t: t.update(
            {"model.layers.9.mlp.up_proj.weight_packed": torch.zeros(96, 8, **INT32)}
        ),
        ("model.layers.9.mlp.up_proj",),
    ),
    "bias": (put("bias", torch.zeros(96)), (f"{UP}.bias", "no place for")),
    "matrix lost": (
        lambda t: [t.pop(name) for name in list(t) if name.startswith(UP)],
        (f"{UP}.weight missing",),
    ),
    "packed norm": (
        lambda t: t.update(
            {
                f"model.norm.{tail}": t[f"{UP}.{tail}"].clone()
                for tail in ("weight_packed", "weight_scale", "weight_shape")
            }
            | {"model.norm.weight": t.pop("model.norm.weight")}
        ),
        ("model.norm has weight and also",),
    ),
}


@pytest.mark.parametrize("fault", COMPRESSED)
def test_pack_quantized(tmp_path: Path, fault: str) -> None:
    compressed_folder(tmp_path)
    change, parts = COMPRESSED[fault]
    change_tensors(tmp_path, change)
    refused(tmp_path, *parts)


def test_asymmetric_needs_its_zero_points(tmp_path: Path) -> None:
    compressed_folder(tmp_path, symmetric=False)
    change_tensors(tmp_path, drop("weight_zero_point"))
    refused(tmp_path, UP, "no weight_zero_point")


def test_only_a_matrix_can_be_packed(tmp_path: Path) -> None:
    compressed_folder(tmp_path)

    def change(tensors: Tensors) -> None:
        del tensors["model.norm.weight"]
        for tail in ("weight_packed", "weight_scale", "weight_shape"):
            tensors[f"model.norm.{tail}"] = tensors[f"{UP}.{tail}"].clone()

    change_tensors(tmp_path, change)
    refused(tmp_path, "model.norm is stored packed", "only a matrix")


GPTQ: dict[str, tuple[Callable[[Tensors], object], tuple[str, ...]]] = {
    "no zeros": (drop("qzeros"), (UP, "no qzeros")),
    "codes": (put("qweight", torch.zeros(64, 12, **INT32)), ("[64, 12]", "[8, 96]")),
    "zeros": (put("qzeros", torch.zeros(2, 96, **INT32)), ("[2, 96]", "[2, 12]")),
    "scales": (put("scales", torch.ones(96, 2)), ("[96, 2]", "[2, 96]")),
    "group index": (put("g_idx", torch.full((64,), 2, **INT32)), (UP, "g_idx holds 2", "0 to 1")),
    "negative index": (put("g_idx", torch.full((64,), -1, **INT32)), ("g_idx holds -1",)),
    "not symmetric": (spoil("qzeros", 0), (UP, "sym true")),
    "stored 15": (spoil("qzeros", -1), (UP, "stored as 15", "gptq_v2")),
    "nan": (spoil("scales", NAN), (UP, "NaN")),
}


@pytest.mark.parametrize("fault", GPTQ)
def test_gptq(tmp_path: Path, fault: str) -> None:
    gptq_folder(tmp_path)
    change, parts = GPTQ[fault]
    change_tensors(tmp_path, change)
    refused(tmp_path, *parts)


def test_gptq_order_must_be_stored_where_there_is_one(tmp_path: Path) -> None:
    made = gptq_folder(tmp_path)
    change_tensors(tmp_path, drop("g_idx"))
    assert torch.equal(load(tmp_path).weights.layers[0].mlp.up_proj, made.weights[f"{UP}.weight"])
    change_config(tmp_path, quantization_config=gptq_config(desc_act=True))
    refused(tmp_path, UP, "no g_idx")


def test_awq_codes_turned(tmp_path: Path) -> None:
    awq_folder(tmp_path)
    change_tensors(tmp_path, put("qweight", torch.zeros(8, 96, **INT32)))
    refused(tmp_path, "[8, 96]", "[64, 12]")


@pytest.mark.parametrize(
    ("write", "shape", "parts"),
    [
        (compressed_folder, {"intermediate_size": 100}, ("down_proj", "100 inputs", "32")),
        (gptq_folder, {"intermediate_size": 100}, ("100 ", "no multiple of 8")),
        (awq_folder, {"intermediate_size": 104}, ("104 inputs", "no multiple of the group")),
    ],
)  # fmt: skip
def test_what_cannot_be_divided_is_refused(
    tmp_path: Path, write: Any, shape: dict[str, Any], parts: tuple[str, ...]
) -> None:
    """E29: never a wrong number. The shapes are given to a folder whose parts fit a sound one."""
    write(tmp_path)
    change_config(tmp_path, **shape)
    for part in parts:
        assert part in refused(tmp_path)


def test_padded_rows_and_inputs_are_right(tmp_path: Path) -> None:
    """E29: 150 outputs and 100 inputs in groups of 20, symmetric or not, pad their last words."""
    for symmetric in (True, False):
        made = compressed_folder(
            tmp_path / str(symmetric),
            group_size=20,
            symmetric=symmetric,
            pack=lambda module: module.endswith("mlp.down_proj") or module == "lm_head",
            hidden_size=60,
            vocab_size=150,
            intermediate_size=100,
        )
        got = load(made.folder).weights
        assert torch.equal(got.lm_head, made.weights["lm_head.weight"])
        down = "model.layers.1.mlp.down_proj.weight"
        assert torch.equal(got.layers[1].mlp.down_proj, made.weights[down])


def test_a_shorter_last_group_of_gptq_is_right(tmp_path: Path) -> None:
    """E29: 72 inputs in groups of 32 are two groups and a part of one."""
    made = gptq_folder(tmp_path, intermediate_size=72)
    down = "model.layers.1.mlp.down_proj"
    assert made.tensors[f"{down}.scales"].shape == (3, 64)
    got = load(tmp_path).weights.layers[1].mlp.down_proj
    assert torch.equal(got, made.weights[f"{down}.weight"])


def test_ignored_and_yet_packed(tmp_path: Path) -> None:
    """E28: the config may list less than is plain, never what is packed."""
    block = compressed_config(ignore=["lm_head", "model.layers.0.self_attn.no_such_module"])
    compressed_folder(tmp_path, block=block)
    load(tmp_path)
    change_config(tmp_path, quantization_config=compressed_config(ignore=["re:.*up_proj"]))
    refused(tmp_path, UP, "stored packed", "ignored")


def test_nothing_packed(tmp_path: Path) -> None:
    random_checkpoint(tmp_path)
    change_config(tmp_path, quantization_config=compressed_config())
    refused(tmp_path, "pack-quantized", "no tensor in the files is packed")


def test_packed_and_no_config(tmp_path: Path) -> None:
    """E36: a quantized file is never taken for an unquantized one."""
    made = compressed_folder(tmp_path)
    change_config(tmp_path, quantization_config=None)
    refused(tmp_path, made.packed[0], "no quantization_config")


def test_another_layout_than_the_config_says(tmp_path: Path) -> None:
    awq_folder(tmp_path)
    change_config(tmp_path, quantization_config=compressed_config())
    refused(tmp_path, "qweight", "no part of pack-quantized")
    # The two layouts have the same names: the shapes tell.
    change_config(tmp_path, quantization_config=gptq_config())
    refused(tmp_path, "qweight has shape")


def with_head(module: str) -> bool:
    return projections(module) or module == "lm_head"


def test_heads(tmp_path: Path) -> None:
    """E35: the head packed or plain, tied or own; never taken from another tensor in silence."""
    own = compressed_folder(tmp_path / "own", pack=with_head)
    assert torch.equal(load(own.folder).weights.lm_head, own.weights["lm_head.weight"])
    change_tensors(own.folder, lambda t: [t.pop(n) for n in list(t) if n.startswith("lm_head")])
    refused(own.folder, "lm_head.weight missing")

    tied = compressed_folder(tmp_path / "tied", tied=True)
    weights = load(tied.folder).weights
    assert weights.lm_head is weights.embed_tokens

    # A packed head beside a plain embedding cannot be the same matrix.
    both = compressed_folder(tmp_path / "both", pack=with_head)
    change_config(both.folder, tie_word_embeddings=True)
    refused(both.folder, "tie_word_embeddings true", "differs")


def test_a_packed_embedding(tmp_path: Path) -> None:
    """E35: decided by the file as for every other matrix, tied as well."""
    made = compressed_folder(
        tmp_path, tied=True, pack=lambda module: module.endswith("embed_tokens")
    )
    weights = load(made.folder).weights
    assert torch.equal(weights.embed_tokens, made.weights["model.embed_tokens.weight"])
    assert weights.lm_head is weights.embed_tokens


def sharded(folder: Path) -> PackedFolder:
    made = compressed_folder(folder)
    (folder / SINGLE_FILE).unlink()
    write_tensors(folder, made.tensors, shards=3)
    return made


def test_shards(tmp_path: Path) -> None:
    """E32, E33, E34 hold for packed folders as for plain ones."""
    made = sharded(tmp_path / "sound")
    load(made.folder)
    files = sorted(made.folder.glob("*.safetensors"))

    lost = shutil.copytree(made.folder, tmp_path / "lost")
    (lost / files[1].name).unlink()
    refused(lost, files[1].name, "not in the folder")

    cut = shutil.copytree(made.folder, tmp_path / "cut")
    whole = files[2].read_bytes()
    (cut / files[2].name).write_bytes(whole[:-100])
    refused(cut, files[2].name, "truncated")

    stray = shutil.copytree(made.folder, tmp_path / "stray")
    shutil.copy(files[0], stray / SINGLE_FILE)
    refused(stray, SINGLE_FILE, "does not name")

    stale = shutil.copytree(made.folder, tmp_path / "stale")
    index = json.loads((stale / "model.safetensors.index.json").read_text())
    del index["weight_map"][f"{UP}.weight_scale"]
    write_json(stale / "model.safetensors.index.json", index)
    refused(stale, f"{UP}.weight_scale", "does not list")


def test_mtp_lost(tmp_path: Path) -> None:
    """E15: the config says one MTP layer, the conversion dropped it."""
    compressed_folder(tmp_path)
    change_tensors(tmp_path, lambda t: [t.pop(n) for n in list(t) if n.startswith("mtp.")])
    refused(tmp_path, "mtp_num_hidden_layers 1", "no MTP tensor")


def test_shapes_are_refused_before_data_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compressed_folder(tmp_path)
    change_tensors(tmp_path, put("weight_scale", torch.ones(96, 1)))
    monkeypatch.setattr("bytebound.reading.read_tensor", lambda *_: pytest.fail("data was read"))
    refused(tmp_path, f"{UP}.weight_scale")


def test_products_beyond_float16(tmp_path: Path) -> None:
    compressed_folder(tmp_path)
    change_tensors(tmp_path, spoil("weight_scale", 60_000.0))
    config = ModelConfig.from_folder(tmp_path)
    load(tmp_path)
    with pytest.raises(Exception, match=rf"{UP}.*range of torch.float16"):
        load_checkpoint(tmp_path, config, dtype=torch.float16, device=CPU)


def test_unsupported_is_said_before_files_are_opened(tmp_path: Path) -> None:
    block = compressed_config()
    block["config_groups"]["group_0"]["weights"]["num_bits"] = 8
    compressed_folder(tmp_path, block=block)
    (tmp_path / SINGLE_FILE).unlink()
    with pytest.raises(UnsupportedModelError, match="num_bits is 8"):
        ModelConfig.from_folder(tmp_path)
