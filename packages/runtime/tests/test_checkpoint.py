"""Loading sound folders in every form, and refusing wrong tensors."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from bytebound.checkpoint import load_checkpoint
from bytebound.config import ModelConfig
from bytebound.errors import CheckpointError, InvalidSettingError
from bytebound.weights import AttentionWeights, GatedDeltaWeights, iter_tensors

from .checkpoints import SHAPES, random_checkpoint
from .damage import CPU, change_config, change_tensors, load, refused

# Sound folders


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("tied", [False, True])
def test_every_value_arrives(tmp_path: Path, name: str, tied: bool) -> None:
    made = random_checkpoint(tmp_path, tied=tied, **SHAPES[name])
    weights = load(tmp_path).weights
    config = ModelConfig.from_folder(tmp_path)
    for index, kind in enumerate(config.layer_types):
        layer, prefix = weights.layers[index], f"model.layers.{index}."
        if kind == "full_attention":
            assert isinstance(layer.mixer, AttentionWeights)
            assert torch.equal(layer.mixer.q_proj, made.tensors[prefix + "self_attn.q_proj.weight"])
        else:
            assert isinstance(layer.mixer, GatedDeltaWeights)
            stored = made.tensors[prefix + "linear_attn.conv1d.weight"]
            assert torch.equal(layer.mixer.conv1d, stored[:, 0, :])
    # Each stored tensor is somewhere, and nothing is there that was not stored.
    values = sorted(t.double().sum().item() for t in made.tensors.values())
    seen = {t.data_ptr(): t for _, t in iter_tensors(weights)}
    assert sorted(t.double().sum().item() for t in seen.values()) == values
    assert (weights.lm_head is weights.embed_tokens) == tied
    assert weights.mtp is not None
    assert torch.equal(weights.mtp.fc, made.tensors["mtp.fc.weight"])


def test_flat_nested_and_sharded_are_one_model(tmp_path: Path) -> None:
    """E36: same weights in every layout; the vision tower is reported and never read."""
    random_checkpoint(tmp_path / "flat")
    random_checkpoint(tmp_path / "nested", nested=True, vision=True, shards=3)
    flat, nested = load(tmp_path / "flat"), load(tmp_path / "nested")
    for (path, one), (_, other) in zip(
        iter_tensors(flat.weights), iter_tensors(nested.weights), strict=True
    ):
        assert torch.equal(one, other), path
    assert nested.skipped == (
        "model.visual.blocks.0.attn.qkv.bias",
        "model.visual.patch_embed.proj.weight",
    )
    assert flat.skipped == ()
    assert flat.bytes_read == nested.bytes_read
    assert len(nested.files) == 3


def test_nested_names_without_vision(tmp_path: Path) -> None:
    random_checkpoint(tmp_path, nested=True)
    assert load(tmp_path).skipped == ()


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("nested", [False, True])
def test_transformers_loads_the_same_folder(tmp_path: Path, tied: bool, nested: bool) -> None:
    transformers = pytest.importorskip("transformers")
    random_checkpoint(tmp_path, tied=tied, nested=nested, vision=nested, shards=2)
    model, info = transformers.Qwen3_5ForCausalLM.from_pretrained(
        tmp_path,
        config=transformers.AutoConfig.from_pretrained(tmp_path).get_text_config(),
        dtype=torch.float32,
        output_loading_info=True,
    )
    assert not any(info.values())
    weights = load(tmp_path).weights
    theirs = model.state_dict()
    assert torch.equal(theirs["lm_head.weight"], weights.lm_head)
    assert torch.equal(
        theirs["model.layers.2.mlp.down_proj.weight"], weights.layers[2].mlp.down_proj
    )


def test_what_transformers_saves(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    random_checkpoint(tmp_path / "ours", mtp=False)
    model = transformers.Qwen3_5ForCausalLM.from_pretrained(tmp_path / "ours", dtype=torch.float32)
    model.save_pretrained(tmp_path / "theirs")
    for (path, one), (_, other) in zip(
        iter_tensors(load(tmp_path / "ours").weights),
        iter_tensors(load(tmp_path / "theirs").weights),
        strict=True,
    ):
        assert torch.equal(one, other), path


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("wanted", [torch.bfloat16, torch.float16, torch.float32])
def test_dtypes(tmp_path: Path, stored: torch.dtype, wanted: torch.dtype) -> None:
    made = random_checkpoint(tmp_path, dtype=stored)
    for path, tensor in iter_tensors(load(tmp_path, wanted).weights):
        keeps_float32 = path.endswith(("dt_bias", "A_log"))
        assert tensor.dtype == (torch.float32 if keeps_float32 else wanted), path
    layer = load(tmp_path, wanted).weights.layers[0].mixer
    assert isinstance(layer, GatedDeltaWeights)
    name = "model.layers.0.linear_attn."
    assert torch.equal(layer.A_log, made.tensors[name + "A_log"])
    assert torch.equal(layer.dt_bias, made.tensors[name + "dt_bias"].float())


def test_norms_are_not_shifted(tmp_path: Path) -> None:
    """E11: whether MTP tensors are there or not, no norm weight changes."""
    with_mtp = random_checkpoint(tmp_path / "a", mtp=True)
    random_checkpoint(tmp_path / "b", mtp=False)
    norm = with_mtp.tensors["model.norm.weight"]
    assert torch.equal(load(tmp_path / "a").weights.norm, norm)
    assert torch.equal(load(tmp_path / "b").weights.norm, norm)
    mtp = load(tmp_path / "a").weights.mtp
    assert mtp is not None
    assert torch.equal(mtp.norm, with_mtp.tensors["mtp.norm.weight"])


def test_odd_paths_and_links(tmp_path: Path) -> None:
    folder = tmp_path / "mödel [x] * ' \" $HOME\n%20"
    random_checkpoint(folder, shards=2)
    load(folder)
    linked = tmp_path / "linked"
    linked.mkdir()
    for path in folder.iterdir():
        (linked / path.name).symlink_to(path)
    load(linked)


def test_hidden_files_are_ignored(tmp_path: Path) -> None:
    random_checkpoint(tmp_path)
    (tmp_path / "._model.safetensors").write_bytes(b"resource fork")
    load(tmp_path)


def test_progress(tmp_path: Path) -> None:
    random_checkpoint(tmp_path, nested=True, vision=True)
    config = ModelConfig.from_folder(tmp_path)
    seen: list[tuple[int, int]] = []
    result = load_checkpoint(
        tmp_path,
        config,
        dtype=torch.float32,
        device=CPU,
        on_progress=lambda done, total: seen.append((done, total)),
    )
    assert seen[-1] == (result.bytes_read, result.bytes_read)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_unknown_dtype_is_a_setting_error(tmp_path: Path) -> None:
    random_checkpoint(tmp_path)
    with pytest.raises(InvalidSettingError, match=r"float64.*bfloat16"):
        load(tmp_path, torch.float64)


# Head and tie


def test_tied_with_an_identical_head(tmp_path: Path) -> None:
    """E35."""
    made = random_checkpoint(tmp_path, tied=True)
    embedding = made.tensors["model.embed_tokens.weight"]
    change_tensors(tmp_path, lambda t: t.update({"lm_head.weight": embedding.clone()}))
    weights = load(tmp_path).weights
    assert weights.lm_head is weights.embed_tokens


def test_tied_with_another_head(tmp_path: Path) -> None:
    """E35."""
    random_checkpoint(tmp_path, tied=False)
    change_config(tmp_path, tie_word_embeddings=True)
    refused(tmp_path, "tie_word_embeddings", "lm_head.weight", "differs")


def test_tied_with_a_head_of_another_shape(tmp_path: Path) -> None:
    """E35."""
    random_checkpoint(tmp_path, tied=True)
    change_tensors(tmp_path, lambda t: t.update({"lm_head.weight": torch.ones(3, 3)}))
    refused(tmp_path, "lm_head.weight")


def test_untied_without_head(tmp_path: Path) -> None:
    """E35."""
    random_checkpoint(tmp_path, tied=True)
    change_config(tmp_path, tie_word_embeddings=False)
    refused(tmp_path, "lm_head.weight", "missing")


# MTP


def test_config_silent_about_mtp(tmp_path: Path) -> None:
    """E14: where the config does not say, the files decide."""
    for name, mtp in (("with", True), ("without", False)):
        random_checkpoint(tmp_path / name, mtp=mtp)
        change_config(tmp_path / name, mtp_num_hidden_layers=None)
        assert (load(tmp_path / name).weights.mtp is not None) == mtp


def test_mtp_lost_in_conversion(tmp_path: Path) -> None:
    """E15."""
    random_checkpoint(tmp_path, mtp=False)
    change_config(tmp_path, mtp_num_hidden_layers=1)
    refused(tmp_path, "mtp.fc.weight", "mtp_num_hidden_layers", "set it to 0")


@pytest.mark.parametrize("count", [1, None])
def test_mtp_lost_in_part(tmp_path: Path, count: int | None) -> None:
    """E15."""
    random_checkpoint(tmp_path)
    change_config(tmp_path, mtp_num_hidden_layers=count)
    change_tensors(tmp_path, lambda t: t.pop("mtp.layers.0.self_attn.q_norm.weight"))
    refused(tmp_path, "mtp.layers.0.self_attn.q_norm.weight", "missing")


def test_mtp_denied_by_the_config(tmp_path: Path) -> None:
    """E15."""
    random_checkpoint(tmp_path)
    change_config(tmp_path, mtp_num_hidden_layers=0)
    refused(tmp_path, "mtp_num_hidden_layers 0", "mtp.")


# Names, shapes, values

TENSOR_FAULTS: dict[str, tuple[Callable[[dict[str, torch.Tensor]], object], tuple[str, ...]]] = {
    "missing": (
        lambda t: t.pop("model.layers.1.mlp.up_proj.weight"),
        ("model.layers.1.mlp.up_proj.weight", "missing"),
    ),
    "unknown": (
        lambda t: t.update({"model.layers.1.mlp.up_proj.bias": torch.ones(96)}),
        ("model.layers.1.mlp.up_proj.bias",),
    ),
    "layer beyond the config": (
        lambda t: t.update({"model.layers.4.input_layernorm.weight": torch.ones(64)}),
        ("model.layers.4.input_layernorm.weight",),
    ),
    "both prefixes": (
        lambda t: t.update({"model.language_model.norm.weight": torch.ones(64)}),
        ("model.language_model.", "missing"),
    ),
    "many unknown": (
        lambda t: t.update({f"extra.{n}": torch.ones(1) for n in range(9)}),
        ("extra.0, extra.1, extra.2, extra.3, extra.4 and 4 more",),
    ),
    "transposed": (
        lambda t: t.update(
            {"model.layers.0.mlp.up_proj.weight": torch.ones(64, 96)},
        ),
        ("model.layers.0.mlp.up_proj.weight", "[64, 96]", "[96, 64]"),
    ),
    "flat convolution": (
        lambda t: t.update({"model.layers.0.linear_attn.conv1d.weight": torch.ones(128, 4)}),
        ("model.layers.0.linear_attn.conv1d.weight", "[128, 4]", "[128, 1, 4]"),
    ),
    "vocabulary": (
        lambda t: t.update({"model.embed_tokens.weight": torch.ones(150, 64)}),
        ("model.embed_tokens.weight", "[150, 64]", "[151, 64]"),
    ),
    "float64": (
        lambda t: t.update({"model.norm.weight": torch.ones(64, dtype=torch.float64)}),
        ("model.norm.weight", "F64"),
    ),
    "int8": (
        lambda t: t.update({"model.norm.weight": torch.ones(64, dtype=torch.int8)}),
        ("model.norm.weight", "I8", "quantized"),
    ),
    "nan": (
        lambda t: t["model.layers.2.mlp.down_proj.weight"][5].fill_(float("nan")),
        ("model.layers.2.mlp.down_proj.weight", "NaN"),
    ),
    "infinity": (
        lambda t: t["model.layers.2.linear_attn.A_log"][1].fill_(-float("inf")),
        ("model.layers.2.linear_attn.A_log", "infinite"),
    ),
}


@pytest.mark.parametrize("fault", TENSOR_FAULTS)
def test_wrong_tensor(tmp_path: Path, fault: str) -> None:
    random_checkpoint(tmp_path)
    change, parts = TENSOR_FAULTS[fault]
    change_tensors(tmp_path, change)
    refused(tmp_path, *parts)


def test_values_beyond_float16(tmp_path: Path) -> None:
    random_checkpoint(tmp_path)
    change_tensors(tmp_path, lambda t: t["model.norm.weight"].mul_(1e6))
    load(tmp_path, torch.bfloat16)
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight.*range of torch\.float16"):
        load(tmp_path, torch.float16)


def test_shapes_are_refused_before_data_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random_checkpoint(tmp_path)
    change_config(tmp_path, intermediate_size=97)
    monkeypatch.setattr("bytebound.reading.read_tensor", lambda *_: pytest.fail("data was read"))
    refused(tmp_path, "model.layers.0.mlp.gate_proj.weight", "[96, 64]", "[97, 64]")
