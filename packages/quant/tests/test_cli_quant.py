import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from bytebound import Engine
from bytebound.names import resolve_model
from bytebound_quant.cli import main

from .small import checkpoint, contents, read_json
from .test_output import full_disk

TEXT = "\n".join(f"Line {i} counts {i * i} and {i * 7919 % 1000} sheep." for i in range(600))


def run(*arguments: Any) -> int:
    return main([str(one) for one in arguments])


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A random model with the shipped model's tokenizer."""
    made = checkpoint(tmp_path / "source", vocab_size=4096)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(resolve_model("tiny") / name, made.folder / name)
    (tmp_path / "calibration.txt").write_text(TEXT, encoding="utf-8")
    return made.folder


GPTQ = ("--samples", 4, "--window", 64, "--device", "cpu", "--group-size", 32)


def test_rtn(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    options = ("--mse", "--asymmetric", "--keep-head", "--mtp-bits", 16, "--group-size", 32)
    assert run("rtn", source, out, *options, "--json") == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    report = json.loads(captured.out)
    assert report["options"] == {
        "method": "rtn",
        "symmetric": False,
        "group_size": 32,
        "keep_head": True,
        "mtp_bits": 16,
        "mse": True,
    }
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (out / name).read_bytes() == (source / name).read_bytes()
    assert Engine.from_pretrained(out, device="cpu").tokenizer is not None


def test_gptq_twice(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "calibration.txt"
    for name, spec in (("one", text), ("two", f"text:{text}")):
        assert run("gptq", source, tmp_path / name, "--calib", spec, *GPTQ) == 0
    assert "Errors per layer" in capsys.readouterr().out
    assert contents(tmp_path / "one").keys() == contents(tmp_path / "two").keys()
    for name, data in contents(tmp_path / "one").items():
        assert data == contents(tmp_path / "two")[name]
    report = read_json(tmp_path / "one" / "quantization_report.json")
    assert report["calibration"]["samples"] == 4
    assert report["options"]["act_order"] is False


def test_calibration_by_a_bare_path(source: Path, tmp_path: Path) -> None:
    rows = "".join(json.dumps({"text": line}) + "\n" for line in TEXT.splitlines())
    (tmp_path / "calibration.jsonl").write_text(rows, encoding="utf-8")
    path = tmp_path / "calibration.jsonl"
    for name, spec in (("one", path), ("two", f"jsonl:{path}")):
        assert run("gptq", source, tmp_path / name, "--calib", spec, *GPTQ) == 0
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_a_disk_that_fills_up_midway(
    source: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    command = ("gptq", source, tmp_path / "out", "--calib", tmp_path / "calibration.txt", *GPTQ)
    assert run(*command[:2], tmp_path / "whole", *command[3:]) == 0
    capsys.readouterr()
    first = min((tmp_path / "whole").glob("model-*"))
    with monkeypatch.context() as patch:
        full_disk(patch, first.stat().st_size + 10_000)
        assert run(*command) == 2
    # The bar may have drawn before the message.
    assert "no space left on the disk" in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "out").exists()
    assert list((tmp_path / "out.partial").glob("model-*"))
    assert run("inspect", tmp_path / "out.partial") == 2
    assert run(*command) == 0
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("bytebound-quant: error: ")
    return captured.err


def test_a_quantized_source(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("rtn", source, tmp_path / "out", "--group-size", 32) == 0
    capsys.readouterr()
    assert run("rtn", tmp_path / "out", tmp_path / "again") == 2
    assert "is quantized already (compressed-tensors, pack-quantized" in one_line(capsys)
    assert not (tmp_path / "again").exists()


def test_a_destination_that_is_taken(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "x").write_text("mine")
    assert run("rtn", source, tmp_path / "out", "--group-size", 32) == 2
    assert "exists and is not empty" in one_line(capsys)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--group-size", 0), "group_size: got 0"),
        (("--group-size", 96_000), "--group-size 96000: no matrix"),
        (("--mtp-bits", 8), "--mtp-bits 8: expected 4 or 16"),
        (("--device", "tpu"), "device='tpu'"),
        (("--bits", 3), "No such option"),
    ],
    ids=lambda value: str(value[0]) if isinstance(value, tuple) else "",
)
def test_wrong_options(
    source: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    options: tuple[Any, ...],
    named: str,
) -> None:
    assert run("rtn", source, tmp_path / "out", *options) == 2
    assert named in one_line(capsys)
    assert not list(tmp_path.glob("out*"))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--window", 100_000), "shorter than the window"),
        (("--damping", -1.0), "damping"),
        (("--dtype", "float8"), "--dtype 'float8': expected one of"),
        (("--calib", Path(__file__)), "its ending does not say what it holds; write text:"),
        (("--calib", "nothing.txt"), "'nothing.txt' is not understood: there is no such file"),
    ],
    ids=lambda value: str(value[0]) if isinstance(value, tuple) else "",
)
def test_wrong_gptq_options(
    source: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    options: tuple[Any, ...],
    named: str,
) -> None:
    given = ("--calib", tmp_path / "calibration.txt", *GPTQ, *options)
    assert run("gptq", source, tmp_path / "out", *given) == 2
    assert named in one_line(capsys)
    assert not (tmp_path / "out").exists()


def test_gptq_without_a_tokenizer(
    tmp_path: Path, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in source.glob("tokenizer*"):
        path.unlink()
    given = ("--calib", tmp_path / "calibration.txt", *GPTQ)
    assert run("gptq", source, tmp_path / "out", *given) == 2
    assert "holds no tokenizer" in one_line(capsys)


def test_ctrl_c_says_how_to_go_on(
    source: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("bytebound_quant.rtn_job.round_matrix", interrupt)
        assert run("rtn", source, tmp_path / "out", "--group-size", 32) == 130
    assert "the same command continues" in capsys.readouterr().err
    assert run("rtn", source, tmp_path / "out", "--group-size", 32) == 0


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--version") == 0
    assert capsys.readouterr().out.startswith("bytebound-quant ")
    for command in ("rtn", "gptq"):
        assert run(command, "--help") == 0
    assert "DST.partial" in capsys.readouterr().out
