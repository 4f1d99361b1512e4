"""4-bit matrices: hand-computed packing, folders of other tools, and what loading them gives."""

from pathlib import Path
from typing import Any

import pytest
import torch
from bytebound import Engine, SamplingParams
from bytebound.checkpoint import read_headers
from bytebound.config import ModelConfig
from bytebound.packing import dequantize, unpack, unpack_awq
from bytebound.quantized import MatrixScheme, StoredMatrix, read_matrix
from bytebound.weights import iter_tensors
from compressed_tensors.compressors import ModelCompressor, PackedQuantizationCompressor
from compressed_tensors.quantization import (
    QuantizationArgs,
    QuantizationConfig,
    QuantizationScheme,
    apply_quantization_config,
)
from compressed_tensors.quantization.utils import calculate_qparams
from transformers import CompressedTensorsConfig, Qwen3_5ForCausalLM

from .checkpoints import SHAPES, random_checkpoint, write_json, write_tensors
from .damage import load
from .packed import (
    GROUP,
    PackedFolder,
    Rounded,
    awq,
    awq_folder,
    compressed_config,
    compressed_folder,
    gptq,
    gptq_folder,
    pack_quantized,
    projections,
    quantize,
)
from .test_reference import oracle, prompt, reference

LOW_FIRST = [[0x76543210, 0x0000BA98]]  # nibble i of word j is code 8 * j + i


def words(rows: list[list[int]]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.int64).to(torch.int32)


def test_unpack_by_hand() -> None:
    assert unpack(words(LOW_FIRST), 12).tolist() == [list(range(12))]
    # The highest nibble sets the sign of the word.
    assert unpack(torch.tensor([[-1], [-(2**31)]], dtype=torch.int32), 8).tolist() == [
        [15] * 8,
        [0] * 7 + [8],
    ]


def test_unpack_awq_by_hand() -> None:
    """A word holds, from its low end, columns 0 2 4 6 1 3 5 7."""
    assert unpack_awq(words([[0x75316420]])).tolist() == [list(range(8))]


def test_dequantize_by_hand() -> None:
    got = dequantize(
        torch.tensor([[0, 15, 8, 3]], dtype=torch.uint8),
        torch.tensor([[0.5, 2.0]]),
        torch.tensor([[8, 5]], dtype=torch.uint8),
        torch.tensor([0, 0, 1, 1]),
    )
    assert got.tolist() == [[-4.0, 3.5, 6.0, -4.0]]


def test_dequantize_in_blocks_is_dequantize_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rounded = quantize(torch.randn(13, 64), symmetric=False)
    args = (rounded.codes, rounded.scales, rounded.zeros, rounded.groups)
    whole = dequantize(*args)
    monkeypatch.setattr("bytebound.packing._BLOCK_ELEMENTS", 200)
    assert torch.equal(dequantize(*args), whole)
    assert torch.equal(whole, rounded.weight)


def test_pack_quantized_by_hand() -> None:
    """Two rows, ten inputs in groups of five; zero points run down a column of the matrix."""
    matrix = StoredMatrix(
        "w",
        MatrixScheme("pack-quantized", 5, symmetric=False),
        (2, 10),
        {
            "weight_packed": words([[0x76543210, 0x98], [0x11111111, 0xF0]]),
            "weight_scale": torch.tensor([[1.0, 2.0], [0.5, 4.0]]),
            "weight_shape": torch.tensor([2, 10]),
            "weight_zero_point": words([[0x41, 0x03]]),
        },
    )
    matrix.check()
    assert matrix.zeros().tolist() == [[1, 3], [4, 0]]
    assert matrix.dequantize().tolist() == [
        [-1, 0, 1, 2, 3, 4, 6, 8, 10, 12],
        [-1.5] * 5 + [4, 4, 4, 0, 60],
    ]


def test_gptq_by_hand() -> None:
    """Eight inputs and outputs, two groups; v1 stores 7 for a zero point of 8."""
    parts = {
        "qweight": words([[0x76543210] * 7 + [0xFFFFFFFF]]),
        "qzeros": words([[0x77777777], [0x77777776]]),
        "scales": torch.ones(2, 8),
        "g_idx": torch.tensor([1, 0, 1, 0, 1, 0, 1, 0], dtype=torch.int32),
    }
    scheme = MatrixScheme("gptq", 4, symmetric=False, reordered=True)
    got = StoredMatrix("w", scheme, (8, 8), parts).dequantize()
    assert got[0].tolist() == [0 - 7, 1 - 8, 2 - 7, 3 - 8, 4 - 7, 5 - 8, 6 - 7, 7 - 8]
    assert got[1].tolist() == [code - 8 for code in range(8)]
    assert got[7].tolist() == [15 - 8] * 8
    second = MatrixScheme("gptq_v2", 4, symmetric=False, reordered=True)
    assert torch.equal(StoredMatrix("w", second, (8, 8), parts).dequantize()[1:] - 1, got[1:])


def test_awq_by_hand() -> None:
    matrix = StoredMatrix(
        "w",
        MatrixScheme("awq", 2, symmetric=False),
        (8, 2),
        {
            "qweight": words([[0x75316420], [0xFFFFFFFF]]),
            "qzeros": words([[0x10000000]]),  # output 7 alone
            "scales": torch.arange(1.0, 9.0)[None],
        },
    )
    assert matrix.dequantize()[:, 0].tolist() == [n * (n + 1) for n in range(7)] + [6 * 8]
    assert matrix.dequantize()[:, 1].tolist() == [15 * (n + 1) for n in range(7)] + [14 * 8]


def scheme_of(symmetric: bool, group_size: int = GROUP) -> QuantizationScheme:
    weights = QuantizationArgs(
        num_bits=4, group_size=group_size, strategy="group", symmetric=symmetric
    )
    return QuantizationScheme(targets=["Linear"], weights=weights)


@pytest.mark.parametrize("rows", [9, 13, 48, 96, 130])  # up to 8 the package fails on its own
@pytest.mark.parametrize("columns", [12, 64, 192, 640])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_the_packages_own_compressor(
    rows: int, columns: int, symmetric: bool, dtype: torch.dtype
) -> None:
    """E29: rows that are no multiple of 8, inputs of 12: padding never becomes a number."""
    size = 4 if columns == 12 else 64
    weight = torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows)).to(dtype)
    rounded = quantize(weight.float(), size, symmetric=symmetric, scale_dtype=dtype)
    state = {
        "weight": weight,
        "weight_scale": rounded.scales,
        "weight_zero_point": (rounded.zeros.int() - 8).to(torch.int8),
    }
    scheme = scheme_of(symmetric, size)
    stored = PackedQuantizationCompressor.compress(state, scheme)
    own = MatrixScheme("pack-quantized", size, symmetric)
    matrix = StoredMatrix("w", own, (rows, columns), stored)
    matrix.check()
    theirs = PackedQuantizationCompressor.decompress(stored, scheme)["weight"]
    assert torch.equal(matrix.dequantize(theirs.dtype), theirs)


@pytest.mark.parametrize("symmetric", [True, False])
def test_logits_of_a_folder_that_transformers_saved(tmp_path: Path, symmetric: bool) -> None:
    """Interchange: quantized and written by transformers and compressed-tensors alone."""
    plain = random_checkpoint(tmp_path / "plain", seed=1, mtp=False).folder
    model = oracle(plain)
    config = QuantizationConfig(
        config_groups={"group_0": scheme_of(symmetric)},
        format="pack-quantized",
        ignore=["lm_head", "re:.*in_proj_[ab]$"],
    )
    apply_quantization_config(model, config)
    for module in model.modules():
        scheme = getattr(module, "quantization_scheme", None)
        if scheme is not None:
            grouped = module.weight.data.unflatten(-1, (-1, GROUP))
            scale, zero = calculate_qparams(grouped.amin(-1), grouped.amax(-1), scheme.weights)
            module.weight_scale.data.copy_(scale)
            if not symmetric:
                module.weight_zero_point.data.copy_(zero)
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    folder = tmp_path / "saved"
    model.save_pretrained(folder)
    compressor.update_config(folder)

    checkpoint = load(folder)
    assert len(checkpoint.packed) == 25
    same_as_transformers(folder)


def same_as_transformers(folder: Path, tolerance: float = 1e-3) -> None:
    engine = reference(folder)
    ids = prompt(engine.config.vocab_size, 90)
    config = CompressedTensorsConfig(dequantize=True)
    theirs = Qwen3_5ForCausalLM.from_pretrained(
        folder, dtype=torch.float32, quantization_config=config
    )
    with torch.no_grad():
        expected = theirs.eval()(torch.tensor([ids])).logits[0]
    spread = expected.std()
    torch.testing.assert_close(
        engine.score(ids) / spread, expected / spread, atol=tolerance, rtol=0
    )


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("shape", ["base", "ratio3"])
def test_our_own_packing_as_transformers_reads_it(
    tmp_path: Path, shape: str, symmetric: bool
) -> None:
    """The builder of these tests against transformers, MTP head and packed output head included."""
    made = compressed_folder(
        tmp_path,
        group_size=16,
        symmetric=symmetric,
        scale_dtype=torch.float32,
        pack=lambda module: projections(module) or module == "lm_head",
        **SHAPES[shape],
    )
    assert "lm_head" in made.packed
    same_as_transformers(made.folder)


FOLDERS = {
    "symmetric": lambda folder, **more: compressed_folder(folder, **more),
    "asymmetric": lambda folder, **more: compressed_folder(folder, symmetric=False, **more),
    "bfloat16 scales": lambda folder, **more: compressed_folder(
        folder, scale_dtype=torch.bfloat16, **more
    ),
    "gptq": lambda folder, **more: gptq_folder(folder, **more),
    "gptq asymmetric": lambda folder, **more: gptq_folder(folder, symmetric=False, **more),
    "gptq v2": lambda folder, **more: gptq_folder(folder, v2=True, symmetric=False, **more),
    "gptq desc_act": lambda folder, **more: gptq_folder(folder, shuffled=True, **more),
    "awq": lambda folder, **more: awq_folder(folder, **more),
}


@pytest.mark.parametrize("kind", FOLDERS)
def test_a_packed_folder_is_the_plain_one(tmp_path: Path, kind: str) -> None:
    """Every weight exactly, in float32 and rounded once to bfloat16."""
    made: PackedFolder = FOLDERS[kind](tmp_path / "packed", seed=2)
    twin = made.plain_twin(tmp_path / "plain")
    for dtype in (torch.float32, torch.bfloat16):
        got, expected = load(made.folder, dtype), load(twin, dtype)
        for (name, one), (_, other) in zip(
            iter_tensors(got.weights), iter_tensors(expected.weights), strict=True
        ):
            assert one.dtype == other.dtype and torch.equal(one, other), name
        assert set(got.packed) == {f"{module}.weight" for module in made.packed}
        assert expected.packed == ()


@pytest.mark.parametrize("kind", ["gptq desc_act", "awq"])
def test_one_matrix_is_read_alone(tmp_path: Path, kind: str) -> None:
    made: PackedFolder = FOLDERS[kind](tmp_path, seed=3)
    config = ModelConfig.from_folder(made.folder)
    packed = read_headers(made.folder, config).packed
    assert len(packed) == len(made.packed)
    for name, one in packed.items():
        matrix = read_matrix(one)
        assert (matrix.name, matrix.shape) == (name, tuple(made.weights[name].shape))
        assert torch.equal(matrix.dequantize(), made.weights[name])
        assert matrix.codes().shape == matrix.shape
        assert matrix.scales().shape == matrix.zeros().shape


MTP_KINDS = {
    "trunk int4, MTP bf16": lambda module: projections(module) and not module.startswith("mtp"),
    "trunk int4, MTP int4": projections,
    "trunk bf16, MTP int4": lambda module: projections(module) and module.startswith("mtp"),
}


@pytest.mark.parametrize("kind", MTP_KINDS)
def test_mtp_is_read_as_it_is_stored(tmp_path: Path, kind: str) -> None:
    """E16: module by module from the files, with the same config; all of them draft."""
    made = compressed_folder(tmp_path, pack=MTP_KINDS[kind], seed=4, dtype=torch.bfloat16)
    assert {module.startswith("mtp") for module in made.packed} == {
        "MTP int4" in kind,
        "trunk bf16" in kind,
    }
    assert_drafts(made.folder)


def test_all_plain_drafts(tmp_path: Path) -> None:
    """E16: the third of its folders."""
    assert_drafts(random_checkpoint(tmp_path, seed=4, dtype=torch.bfloat16).folder)


def assert_drafts(folder: Path) -> None:
    engine = Engine.from_pretrained(folder, device="cpu", draft="mtp", max_len=128)
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    ids = prompt(engine.config.vocab_size, 20)
    result = engine.generate(ids, params)
    assert result.stats.drafted > 0
    plain = Engine.from_pretrained(folder, device="cpu", draft="none", max_len=128)
    assert result.token_ids == plain.generate(ids, params).token_ids


def test_nested_and_flat_are_one_model(tmp_path: Path) -> None:
    """E36: at the top, inside text_config or at both, with vision tensors left in the file."""
    flat = compressed_folder(tmp_path / "flat", seed=5)
    logits = reference(flat.folder).score(list(range(40)))
    block = compressed_config()
    for name, levels in {"top": (1, 0), "inner": (0, 1), "both": (1, 1)}.items():
        made = compressed_folder(tmp_path / name, seed=5, nested=True, vision=True)
        config: dict[str, Any] = dict(made.config)
        del config["quantization_config"]
        if levels[0]:
            config["quantization_config"] = block
        if levels[1]:
            config["text_config"] = {**config["text_config"], "quantization_config": block}
        write_json(made.folder / "config.json", config)
        checkpoint = load(made.folder)
        assert len(checkpoint.skipped) == 2
        assert torch.equal(reference(made.folder).score(list(range(40))), logits)


def test_parts_may_lie_in_any_shard(tmp_path: Path) -> None:
    made = compressed_folder(tmp_path / "one", seed=6)
    several = tmp_path / "several"
    several.mkdir()
    write_json(several / "config.json", made.config)
    write_tensors(several, made.tensors, shards=5)
    one, other = load(made.folder), load(several)
    assert one.bytes_read == other.bytes_read
    pairs = zip(iter_tensors(one.weights), iter_tensors(other.weights), strict=True)
    assert all(torch.equal(left, right) for (_, left), (_, right) in pairs)


def test_a_whole_row_may_be_a_group(tmp_path: Path) -> None:
    block = compressed_config(-1)
    block["config_groups"]["group_0"]["weights"]["strategy"] = "channel"
    made = compressed_folder(tmp_path, group_size=1 << 20, block=block, seed=7)
    twin = made.plain_twin(tmp_path / "plain")
    ids = prompt(151, 30)
    assert torch.equal(reference(made.folder).score(ids), reference(twin).score(ids))


def test_old_activation_order_of_compressed_tensors(tmp_path: Path) -> None:
    """Versions before 0.15 wrote weight_g_idx for actorder 'group'."""
    made = compressed_folder(tmp_path, seed=8)
    name = "model.layers.0.mlp.up_proj"
    rounded = quantize(torch.randn(96, 64), shuffled=True)
    block = compressed_config()
    block["config_groups"]["reordered"] = {
        "targets": [name],
        "weights": {**block["config_groups"]["group_0"]["weights"], "actorder": "group"},
    }
    parts = pack_quantized(rounded, ordered=False)
    made.tensors.update({f"{name}.{tail}": part for tail, part in parts.items()})
    made.config["quantization_config"] = block
    made.write()
    assert torch.equal(load(made.folder).weights.layers[0].mlp.up_proj, rounded.weight)


def test_stored_bits_are_counted(tmp_path: Path) -> None:
    """Groups of 128 with scales of 16 bits: 4.125; zero points add 4 bits a group."""
    shape: dict[str, Any] = {
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 1,
        "layer_types": ["full_attention"],
        "mtp": False,
        "group_size": 128,
    }
    for symmetric, bits in ((True, 4.125), (False, 4.15625)):
        made = compressed_folder(tmp_path / str(symmetric), symmetric=symmetric, **shape)
        stored = read_headers(made.folder, ModelConfig.from_folder(made.folder))
        assert stored.packed_bits_per_weight == bits
        assert {one.bits_per_weight for one in stored.packed.values()} == {bits}
        assert stored.parameters == sum(one.numel() for one in made.weights.values())
        total = sum(one.numel() * one.element_size() for one in made.tensors.values())
        assert stored.bits_per_weight == 8 * total / stored.parameters
        assert load(made.folder).bits_per_weight == stored.bits_per_weight


def test_the_packers_of_these_tests_agree() -> None:
    """One matrix in all three layouts is one matrix."""
    rounded: Rounded = quantize(torch.randn(16, 64), symmetric=False)
    kinds = {
        "pack-quantized": pack_quantized(rounded, symmetric=False),
        "gptq": gptq(rounded),
        "gptq_v2": gptq(rounded, v2=True),
        "awq": awq(rounded),
    }
    for layout, parts in kinds.items():
        matrix = StoredMatrix("w", MatrixScheme(layout, GROUP, symmetric=False), (16, 64), parts)
        assert torch.equal(matrix.codes(), rounded.codes), layout
        assert torch.equal(matrix.zeros(), rounded.zeros), layout
        assert torch.equal(matrix.dequantize(), rounded.weight), layout
