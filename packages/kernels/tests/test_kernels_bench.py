"""The benchmark's result file and its behaviour without a GPU. It is never timed here."""

import json
from pathlib import Path

import pytest
import render_results
from bytebound_kernels import DeviceInfo
from bytebound_kernels.bench.__main__ import main
from bytebound_kernels.bench.memory import DeviceArray, _Device
from bytebound_kernels.bench.report import Metric, report, table

METRICS = [
    Metric("read_gb_s", "GB/s", "higher", [3000.0, 3100.0, 2900.0], 3.0, {"bytes": 1 << 30}),
    Metric("rms_norm.d64.rows1.us", "us", "lower", [2.0, 1.5, 1.0], 5.0, {"bytes": 450_000}),
]


@pytest.mark.usefixtures("no_cuda")
def test_says_why_it_cannot_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 1
    assert "error: bench: CUDA is not usable" in capsys.readouterr().err


def test_wrong_use_is_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--samples", "0"])
    assert stop.value.code == 2
    assert "expected 1 or more" in capsys.readouterr().err


def test_the_result_file_is_one_that_the_renderer_accepts(tmp_path: Path) -> None:
    device = DeviceInfo(0, "card 0", (9, 0), 132, 50 << 20, 80 << 30)
    content = report(device, "torch 2.11", ["--json", "kernels.json"], METRICS)
    (tmp_path / "kernels.json").write_text(json.dumps(content))
    (result,) = render_results.load_results(tmp_path)
    assert result.machine["gpu"] == "card 0" and result.machine["torch"] == "2.11"
    assert [metric.median for metric in result.metrics] == [3000.0, 1.5]
    assert result.command == "python -m bytebound_kernels.bench --json kernels.json"


def test_the_table_sets_times_against_the_read_bandwidth() -> None:
    line = table(METRICS, read_gb_s=3000.0).splitlines()[-1]
    assert line.split() == ["rms_norm.d64.rows1.us", "1.50", "1.00", "2.00", "us", "10.0"]


def test_a_device_array_is_contiguous_and_relocatable() -> None:
    array = DeviceArray(1 << 12, (4, 8), "float16", _Device("cuda", 0))
    assert array.stride() == (8, 1)
    moved = array.at(256, (8,))
    assert (moved.data_ptr(), moved.stride(), moved.dtype) == ((1 << 12) + 256, (1,), "float16")
