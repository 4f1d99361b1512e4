import json
import runpy
import statistics
from pathlib import Path

BENCH = Path(__file__).parents[3] / "bench" / "quant_layer.py"


def test_it_runs_on_a_small_shape(tmp_path: Path) -> None:
    main = runpy.run_path(str(BENCH))["main"]
    target = tmp_path / "new" / "layer.json"
    options = ["--device", "cpu", "--shape", "small", "--windows", "2", "--window", "33"]
    options += ["--repeats", "2"]
    assert main(["--json", str(target), *options, "--commit", "abc"]) == 0
    content = json.loads(target.read_text(encoding="utf-8"))
    assert (content["schema"], content["commit"]) == (1, "abc")
    assert set(content["metrics"]) == {
        "gptq_layer.attention.s",
        "gptq_layer.gated_delta.s",
        "gptq_layer.s",
        "gptq_peak_host_gib",
        "rtn_gb_s",
    }
    for metric in content["metrics"].values():
        assert metric["median"] == statistics.median(metric["samples"]) > 0
    assert len(content["metrics"]["gptq_layer.s"]["samples"]) == 2
    parts = content["metrics"]["gptq_layer.attention.s"]["case"]["moments + solve + forward"]
    named = [part.split()[0] for part in parts.split("; ")]
    assert named == [
        "q_proj",
        "k_proj",
        "v_proj",
        "o_proj",
        "gate_proj",
        "up_proj",
        "down_proj",
        "rest",
    ]
    slower = max(
        ("attention", "gated_delta"),
        key=lambda kind: content["metrics"][f"gptq_layer.{kind}.s"]["median"],
    )
    assert content["metrics"]["gptq_layer.s"]["case"]["layer"] == slower


def test_it_ends_in_time_with_a_whole_file(tmp_path: Path) -> None:
    main = runpy.run_path(str(BENCH))["main"]
    target = tmp_path / "layer.json"
    options = ["--device", "cpu", "--shape", "small", "--windows", "1", "--window", "8"]
    assert main(["--json", str(target), *options, "--repeats", "9", "--limit-s", "0"]) == 0
    metrics = json.loads(target.read_text(encoding="utf-8"))["metrics"]
    for label in ("attention", "gated_delta"):
        assert len(metrics[f"gptq_layer.{label}.s"]["samples"]) == 1
