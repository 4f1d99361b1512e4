import hashlib
from pathlib import Path

import pytest
from bytebound_quant.cli.report_table import show
from bytebound_quant.output import REPORT_FILE

from .small import JOBS, checkpoint, read_json, rtn_job

methods = pytest.mark.parametrize("method", JOBS)


@methods
def test_the_report_is_in_the_folder_and_complete(tmp_path: Path, method: str) -> None:
    made = checkpoint(tmp_path / "a")
    report = JOBS[method](made.folder, tmp_path / "out").run()
    assert report == read_json(tmp_path / "out" / REPORT_FILE)
    assert report["method"] == method
    assert report["scheme"] == "int4 symmetric, group 32"
    for row in report["tensors"]:
        assert 0 < row["weight_error"] < 0.25
        assert (method == "gptq") == ("output_error" in row)
    assert [one["name"] for one in report["layers"]] == [
        *(f"layer {index}" for index in range(3)),
        "head",
        "mtp",
    ]
    assert report["calibration"] is None or report["calibration"]["digest"]
    assert report["time"]["seconds"] > 0


def test_hashes_are_those_of_the_files(tmp_path: Path) -> None:
    made = checkpoint(tmp_path / "a")
    report = rtn_job(made.folder, tmp_path / "out").run()
    for part, folder in (("source", made.folder), ("output", tmp_path / "out")):
        for name, digest in report["sha256"][part].items():
            assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest
    assert len(report["sha256"]["output"]) == len(list((tmp_path / "out").glob("*.safetensors")))


def test_bits_per_weight(tmp_path: Path) -> None:
    made = checkpoint(tmp_path / "a", vocab_size=160)
    size = rtn_job(made.folder, tmp_path / "out").run()["size"]
    # 16 bytes of weight_shape per matrix come on top of 4 bits and a 16-bit scale per 32.
    assert 4.5 < size["bits_per_quantized_weight"] < 4.6
    total = sum(tensor.numel() for tensor in made.tensors.values())
    assert size["quantized_weights"] + size["kept_weights"] == total
    assert size["bits_per_weight"] == pytest.approx(8 * size["output_bytes"] / total)


@methods
def test_the_table(tmp_path: Path, method: str, capsys: pytest.CaptureFixture[str]) -> None:
    made = checkpoint(tmp_path / "a")
    report = JOBS[method](made.folder, tmp_path / "out", group=64).run()
    show(report, tmp_path / "out", every_tensor=True)
    text = capsys.readouterr().out
    assert "layer 2" in text
    assert "mtp.fc.weight" in text
    assert "96 inputs are no multiple of the group size 64" in text
    assert ("damping" in text) == (method == "gptq")
