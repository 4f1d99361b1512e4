"""``bytebound info``: numbers of a model, with and without its weights."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from bytebound import Engine
from bytebound.bandwidth import read_bandwidth_gb_s
from bytebound.config import ModelConfig
from bytebound.memory import byte_budget

from .checkpoints import SINGLE_FILE, write_json
from .cli_runs import Folders, Run, folders, run

__all__ = ["folders", "run"]  # fixtures

FLAGSHIP = {
    "model_type": "qwen3_5_text",
    "vocab_size": 248320,
    "hidden_size": 5120,
    "intermediate_size": 17408,
    "num_hidden_layers": 64,
    "num_attention_heads": 24,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 48,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e7,
    "max_position_embeddings": 262144,
    "mtp_num_hidden_layers": 1,
    "dtype": "bfloat16",
}


def info_json(run: Run, *args: object) -> dict[str, Any]:
    outcome = run("info", *args, "--json")
    assert (outcome.code, outcome.err) == (0, "")
    return json.loads(outcome.out)


def test_weights_are_described_by_their_headers(run: Run, folders: Folders) -> None:
    report = info_json(run, "-m", folders.text)
    weights = report["weights"]
    size = (folders.text / SINGLE_FILE).stat().st_size
    assert weights["mtp"] is True
    assert weights["skipped_vision_tensors"] == 2
    assert 0.9 * size < weights["bytes"] + weights["skipped_vision_bytes"] < size
    assert weights["files"] == [SINGLE_FILE]
    assert report["text"] == {
        "tokenizer": True,
        "chat_template": True,
        "generation_config": False,
    }
    bare = info_json(run, "-m", folders.bare)
    assert not bare["text"]["tokenizer"]
    assert not info_json(run, "-m", folders.no_mtp)["weights"]["mtp"]


def test_numbers_are_those_of_the_engine(run: Run, folders: Folders) -> None:
    report = info_json(run, "-m", folders.text, "--max-len", 100, "--context", 7, "--bits", 5)
    config = ModelConfig.from_folder(folders.text)
    budget = byte_budget(config, bits_per_weight=5, context=7)
    assert report["bytes_per_token"] == {"context": 7, "at_bits": {"5": budget.as_dict()}}

    plan = dict(report["memory_plan"]["reference"])
    assert plan.pop("dtype") == "float32"
    engine = Engine.from_pretrained(folders.text, max_len=100, device="cpu")
    assert engine.memory_plan is not None
    assert plan == engine.memory_plan.as_dict()


def test_a_config_alone_gives_the_flagships_budget(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "flagship"
    folder.mkdir()
    write_json(folder / "config.json", FLAGSHIP)
    report = info_json(run, "-m", folder, "--read-gb-s", 4550)
    assert not report["weights"]["present"]
    assert list(report["bytes_per_token"]["at_bits"]) == ["16", "4.125"]
    assert report["bytes_per_token"]["at_bits"]["4.125"]["total"] == pytest.approx(
        13.59e9, rel=1e-3
    )
    assert report["card"]["limit_tokens_per_s"]["4.125"] == pytest.approx(335, rel=1e-2)

    outcome = run("info", "-m", folder)
    assert outcome.code == 0
    for text in ("13.592 GB", "48 Gated DeltaNet, 16 attention", "no safetensors", "248,320"):
        assert text in outcome.out


def test_damaged_weights_are_reported_and_fail_the_check(
    run: Run, folders: Folders, tmp_path: Path
) -> None:
    folder = tmp_path / "damaged"
    shutil.copytree(folders.text, folder)
    with (folder / SINGLE_FILE).open("r+b") as file:
        file.truncate(50_000)
    outcome = run("info", "-m", folder)
    assert outcome.code == 1
    (line,) = outcome.err.splitlines()
    assert "truncated" in line
    assert "cannot be loaded" in outcome.out
    assert "Bytes per token" in outcome.out


def test_the_card_says_why_it_cannot_be_used(
    run: Run, folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    import bytebound_kernels

    monkeypatch.setattr(bytebound_kernels, "cuda_status", lambda: "not usable: no driver")
    assert "not usable: no driver" in run("info", "-m", folders.text).out

    monkeypatch.setitem(sys.modules, "bytebound_kernels", None)
    report = info_json(run, "-m", folders.text)
    assert report["card"]["cuda"].startswith("not usable: bytebound-kernels cannot be imported")


def test_the_limit_is_measured_where_there_is_a_gpu(
    run: Run, folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bytebound.bandwidth.read_bandwidth_gb_s", lambda: 100.0)
    report = info_json(run, "-m", folders.text, "--bits", 8)
    total = report["bytes_per_token"]["at_bits"]["8"]["total"]
    assert report["card"]["read_gb_s_source"] == "measured"
    assert report["card"]["limit_tokens_per_s"]["8"] == pytest.approx(100e9 / total)
    assert "limit at 100 GB/s, measured" in run("info", "-m", folders.text).out

    given = info_json(run, "-m", folders.text, "--read-gb-s", 50)["card"]
    assert (given["read_gb_s"], given["read_gb_s_source"]) == (50, "given")


@pytest.mark.gpu
def test_a_gpu_reads_some_hundred_gigabytes_a_second() -> None:
    measured = read_bandwidth_gb_s()
    assert measured is not None
    assert 100 < measured < 20_000


def test_the_shipped_model(run: Run) -> None:
    import bytebound

    tiny = Path(bytebound.__file__).parent / "models" / "tiny"
    if not (tiny / "config.json").is_file():
        pytest.skip("the shipped model is not in this tree yet")
    report = info_json(run, "--model", "tiny")
    assert report["weights"]["mtp"] is True
    assert report["weights"]["problem"] is None
    assert report["text"]["chat_template"] is True
