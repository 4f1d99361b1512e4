"""The whole set on the shipped model, as small as it can be."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from bytebound import Engine
from bytebound.cli.errors import UsageError
from bytebound.names import resolve_model
from bytebound_evals.model_run import ModelRun
from bytebound_evals.results import read_result
from bytebound_evals.suite.forms import (
    Calibration,
    bits_per_weight,
    calibration_sources,
    check_made,
    form_keys,
    given_forms,
    library_text,
    made_forms,
)

from .evals_cli import Cli, cli, refused

__all__ = ["cli"]  # a fixture

SMALL = ["-m", "tiny", "--device", "cpu", "--window", 64, "--text-tokens", 128]
SMALL += ["--problem-limit", 1, "--calib-samples", 2, "--calib-window", 64]
SMALL += ["--tokens", 4, "--samples", 1, "--depth", 16, "--draft", "none", "--draft", "mtp:2"]
SMALL += ["--prompt", "prose", "--prompt", "json"]


def test_one_command_measures_and_reports(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = tmp_path / "calibration.txt"
    text.write_text("\n".join(f"line {i} of a text about {i * i} things" for i in range(400)))
    opened: list[str] = []
    really = ModelRun.open

    def counted(run: ModelRun) -> Engine:
        opened.append(Path(run.model).name)
        return really(run)

    monkeypatch.setattr(ModelRun, "open", counted)
    words = ["suite", *SMALL, "--calib", text, "--out", tmp_path / "out", "--read-gb-s", 20]
    outcome = cli(*words)
    assert outcome.code == 0, outcome
    assert opened == ["tiny", "rtn", "gptq_mse"]  # the 16 bits are their own reference
    quality = read_result(tmp_path / "out" / "results" / "quality.json")
    for form in ("rtn", "gptq_mse"):
        assert {f"{form}.{field}" for field in ("kl", "top1", "ppl", "bits_per_weight")} <= set(
            quality.metrics
        )
        assert quality.metrics[f"{form}.kl"].median > 0
        assert 4 < quality.metrics[f"{form}.bits_per_weight"].median < 5
    assert quality.metrics["bf16.bits_per_weight"].median > 15
    assert "arithmetic.bf16.cut_share" in quality.metrics
    for part in (
        "bytebound-evals suite --model tiny --out FOLDER --no-speed --backend auto --device cpu",
        "--make rtn --make gptq_mse --calib calibration.txt --calib-samples 2 --calib-window 64",
    ):
        assert part in quality.command
    speed = read_result(tmp_path / "out" / "results" / "speed.json")
    assert {"plain_16.tok_s", "prose.mtp2.tok_s", "suite.plain.tok_s"} <= speed.metrics.keys()
    page = (tmp_path / "out" / "report.html").read_text()
    assert page.count("data:image/png;base64,") == 4
    assert "gptq_mse.kl" in page
    assert "form" in outcome.out and "KL, nat" in outcome.out

    # Forms that are there are used again; another result joins the report; JSON alone on stdout.
    monkeypatch.setattr("bytebound_evals.suite.forms.calibration_sources", None)
    shutil.move(text, text.with_name("moved.txt"))
    words[words.index(text)] = text.with_name("moved.txt")
    again = cli(*words, "--no-speed", "--json", "--result", tmp_path / "out/results/speed.json")
    assert again.code == 0, again
    assert json.loads(again.out)["results"].keys() == {"quality"}
    assert "## results/speed" in (tmp_path / "out" / "report.md").read_text()

    # Of other weights or settings they are not.
    monkeypatch.setattr("bytebound_evals.suite.run.make_form", None)
    monkeypatch.setattr("bytebound_evals.suite.run.measure_quality", None)
    refused(cli(*words, "--calib-samples", 3), "gptq_mse was made with another calibration")
    other = tmp_path / "other"
    shutil.copytree(resolve_model("tiny"), other)
    weights = next(other.glob("*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    refused(cli(*words, "-m", other), "rtn was made with another source", "another --out")
    (tmp_path / "out" / "forms" / "rtn.json").unlink()
    refused(cli(*words), "rtn is there, but not what it was made from")


def test_quality_alone_needs_no_gpu_and_no_device(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    words = [word for word in SMALL if word not in ("--device", "cpu")]
    outcome = cli("suite", *words, "--no-speed", "--make", "none", "--out", tmp_path)
    assert outcome.code == 0, outcome
    assert "cpu" in read_result(tmp_path / "results" / "quality.json").machine


def test_forms_that_are_given_and_made() -> None:
    (one,) = given_forms(["mine=some/folder"])
    assert (one.name, one.model) == ("mine", "some/folder")
    for words in (["mine"], ["=x"], ["x="], ["rtn=x"], ["a=x", "a=y"]):
        with pytest.raises(UsageError, match="--form"):
            given_forms(words)
    assert made_forms(None) == ("rtn", "gptq_mse")
    assert made_forms(["none"]) == ()
    assert made_forms(["rtn", "rtn"]) == ("rtn",)
    with pytest.raises(UsageError, match="--make"):
        made_forms(["awq"])


def test_a_form_is_known_by_content_and_settings(tmp_path: Path) -> None:
    text = tmp_path / "a.txt"
    text.write_text("one")

    def key(*specs: str, **fields: int) -> Mapping[str, Any]:
        return form_keys(["gptq_mse"], "tiny", Calibration(specs, **fields), "cpu")["gptq_mse"]

    first = key(str(text))
    copy = tmp_path / "b.txt"
    copy.write_text("one")
    assert key(str(copy)) == key(f"text:{copy}") == first == json.loads(json.dumps(first))
    copy.write_text("two")
    others = [key(str(copy)), key(f"text:{text}=2"), key(), key(str(text), window=64)]
    assert first not in others
    assert not check_made(tmp_path, first)
    (tmp_path / "gptq_mse").mkdir()
    for record in ("[" * 200_000, "5", "{}"):
        (tmp_path / "gptq_mse.json").write_text(record)
        with pytest.raises(UsageError, match="remove it to make it again"):
            check_made(tmp_path, first)
    (tmp_path / "gptq_mse.json").write_text(json.dumps(first))
    assert check_made(tmp_path, first)


def test_calibration_text_of_the_interpreter_holds_nothing_held_out(tmp_path: Path) -> None:
    from bytebound_quant.heldout import HeldoutDetector

    text = library_text()
    assert len(text) > 1_000_000
    detector = HeldoutDetector()
    detector.feed(text)
    assert not detector.is_copy
    (source,) = calibration_sources(Calibration(), tmp_path)
    assert Path(source.path).read_text(encoding="utf-8") == text


def test_bits_of_the_16_bit_model() -> None:
    assert 16 <= bits_per_weight("tiny") < 16.5


WRONG = {
    "nothing": (["--no-speed", "--no-quality"], ["nothing to measure"]),
    "form": (["--form", "x"], ["NAME=FOLDER"]),
    "made": (["--make", "awq"], ["--make", "rtn, gptq_mse, or none alone"]),
    "window": (["--window", 1_000_000, "--text-tokens", 10], ["1000000"]),
    "problems": (["--problems", "none.jsonl"], ["none.jsonl"]),
    "result": (["--result", "none.json"], ["none.json"]),
    "model": (["-m", "no-such-model"], ["no-such-model"]),
    "text": (["--text", "none.txt"], ["none.txt"]),
    "limit": (["--problem-limit", 0], ["limit 0"]),
    "form's folder": (["--form", "mine=no-such-form"], ["no-such-form"]),
    "calibration": (["--make", "gptq_mse", "--calib", "none.txt"], ["none.txt"]),
    "samples": (["--make", "gptq_mse", "--calib-samples", 0], ["--calib-samples 0"]),
    "backend": (["--backend", "gpu"], ["gpu"]),
    "reply": (["--speed", "--tokens", 1], ["--tokens 1"]),
    "depth": (["--speed", "--depth", 100_000], ["max_len=100004", "8192"]),
    "device": (["--speed", "--device", "tpu"], ["device='tpu'"]),
    "out": (["--out", "a-file/out"], ["--out a-file/out cannot be written"]),
}


@pytest.mark.parametrize(("words", "said"), WRONG.values(), ids=WRONG)
def test_wrong_use_is_found_before_anything_is_loaded(
    cli: Cli,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: list[object],
    said: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a-file").write_text("")
    for loads in ("make_form", "measure_quality"):
        monkeypatch.setattr(f"bytebound_evals.suite.run.{loads}", None)
    make = [] if "--make" in words else ["--make", "none"]
    options = [*SMALL, *make, "--no-speed", "--out", tmp_path / "out", *words]
    refused(cli("suite", *options), *said)
    assert not (tmp_path / "out").exists()
