"""``bytebound info`` and ``generate`` on a 4-bit folder: what is stored, and what is held."""

import json
from pathlib import Path

from .checkpoints import SINGLE_FILE
from .cli_runs import Run, run
from .damage import change_tensors
from .packed import compressed_folder, projections

__all__ = ["run"]  # fixture

SHAPE = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 1}
KINDS = {"layer_types": ["full_attention"]}


def test_info_says_what_is_stored(run: Run, tmp_path: Path) -> None:
    made = compressed_folder(
        tmp_path / "model",
        group_size=128,
        symmetric=False,
        pack=lambda module: projections(module) and not module.startswith("mtp."),
        **SHAPE,
        **KINDS,
    )
    report = json.loads(run("info", "-m", made.folder, "--device", "cpu", "--json").out)
    weights = report["weights"]
    assert weights["problem"] is None
    assert weights["packed"] == {
        "matrices": 7,
        "layouts": ["pack-quantized"],
        "group_sizes": [128],
        "symmetric": False,
        "bits_per_weight": 4.15625,
        "head": False,
        "mtp": False,
    }
    assert weights["parameters"] == sum(one.numel() for one in made.weights.values())
    assert weights["bytes"] == sum(
        one.numel() * one.element_size() for one in made.tensors.values()
    )
    assert weights["bits_per_weight"] == 8 * weights["bytes"] / weights["parameters"]
    assert list(report["bytes_per_token"]["at_bits"]) == ["16", "4.1562"]
    # The reference engine holds weights of its own dtype, whatever they were stored as.
    twin = made.plain_twin(tmp_path / "twin")
    plain = json.loads(run("info", "-m", twin, "--device", "cpu", "--json").out)
    assert report["memory_plan"]["reference"] == plain["memory_plan"]["reference"]
    assert plain["weights"]["packed"] is None

    shown = run("info", "-m", made.folder, "--device", "cpu").out
    assert "7 matrices as pack-quantized, asymmetric, groups of 128: 4.156 bits a weight" in shown
    assert "not packed: head, mtp" in shown


def test_info_reports_what_does_not_load(run: Run, tmp_path: Path) -> None:
    folder = compressed_folder(tmp_path / "model").folder
    change_tensors(folder, lambda t: t.pop("model.layers.0.mlp.up_proj.weight_scale"))
    outcome = run("info", "-m", folder, "--device", "cpu")
    assert outcome.code == 1
    assert "model.layers.0.mlp.up_proj" in outcome.err and "no weight_scale" in outcome.err


def test_generate_from_a_packed_folder(run: Run, tmp_path: Path) -> None:
    made = compressed_folder(tmp_path / "model")
    assert (made.folder / SINGLE_FILE).is_file()
    options = ("--device", "cpu", "--ids", "1 2 3", "--max-tokens", "4", "--temperature", "0")
    got = run("generate", "-m", made.folder, *options)
    twin = run("generate", "-m", made.plain_twin(tmp_path / "twin"), *options)
    assert (got.code, got.out) == (0, twin.out)
