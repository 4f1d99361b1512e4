"""The benchmark's result file and its behaviour without a GPU. It is never timed here."""

import ast
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import render_results
from bytebound_kernels import (
    STREAM_MAX_OPS,
    CudaError,
    DeviceInfo,
    StreamGatedDelta,
    StreamProduct,
    _native,
    bench,
)
from bytebound_kernels._tensor import TensorView
from bytebound_kernels.bench import __main__ as command_line
from bytebound_kernels.bench import small_ops, weight_stream
from bytebound_kernels.bench.__main__ import main
from bytebound_kernels.bench.groups import GROUPS, Group
from bytebound_kernels.bench.memory import BenchError, DeviceArray, _Device
from bytebound_kernels.bench.report import Metric, report, table
from bytebound_kernels.ops.weight_stream.checks import check_op
from bytebound_kernels.ops.weight_stream.order import check_order

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
    result = render_results.load_results(tmp_path)["kernels"]
    assert result.machine["gpu"] == "card 0" and result.machine["torch"] == "2.11"
    assert [metric.median for metric in result.metrics.values()] == [3000.0, 1.5]
    assert result.command == "python -m bytebound_kernels.bench --json kernels.json"


def test_the_table_sets_times_against_the_read_bandwidth() -> None:
    line = table(METRICS, read_gb_s=3000.0).splitlines()[-1]
    assert line.split() == ["rms_norm.d64.rows1.us", "1.50", "1.00", "2.00", "us", "10.0"]


def test_the_table_says_what_is_not_bound_by_the_memory() -> None:
    metrics = [
        Metric("a", "%", "higher", [81.26], 5.0),
        Metric("b", "us", "lower", [1.0], 5.0, {"bytes": 6_000_000, "l2": "warm"}),
        Metric("c", "ms", "lower", [1.0], 5.0, {"bytes": 300_000_000}),
        Metric("d", "x", "lower", [1.2], 5.0, {"bytes": 1}),
        Metric("e", "ms", "lower", [1.0], 5.0),
    ]
    lines = table(metrics, read_gb_s=3000.0).splitlines()
    ends = [
        line.partition(metric.unit)[2].strip()
        for line, metric in zip(lines[1:], metrics, strict=True)
    ]
    assert ends == ["81.3", "200.0 (from L2)", "10.0", "", ""]


def measure_well(backend: Any, samples: int) -> list[Metric]:
    return [Metric("well.us", "us", "lower", [1.0] * samples, 5.0, {"on": backend.device})]


def measure_without_triton() -> list[Metric]:
    raise ImportError("no triton")


def measure_and_crash(read_gb_s: float) -> list[Metric]:
    raise CudaError(f"illegal address at {read_gb_s}")


@pytest.fixture
def three_groups(monkeypatch: pytest.MonkeyPatch, pretend_cuda: None) -> None:
    """A benchmark of one group that works, one that lacks something and one that fails."""
    functions = {
        "well": measure_well,
        "lacking": measure_without_triton,
        "bad": measure_and_crash,
    }
    groups = tuple(Group(name, "", "", name) for name in functions)
    monkeypatch.setattr(Group, "load", lambda group: functions[group.function])
    monkeypatch.setattr(command_line, "GROUPS", groups)
    backend = SimpleNamespace(name="torch 2.11", device=0)
    monkeypatch.setattr(command_line, "find_backend", lambda: backend)
    monkeypatch.setattr(command_line, "measure_read_bandwidth", lambda *_: METRICS[0])


@pytest.mark.usefixtures("three_groups")
class TestGroups:
    def test_one_that_lacks_something_is_named_and_stops_no_other(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        file = tmp_path / "kernels.json"
        only = ["--only", "lacking", "--only", "well", "--samples", "2"]
        assert main([*only, "--json", str(file)]) == 0
        assert "skipped: lacking: ImportError: no triton" in capsys.readouterr().out
        content = json.loads(file.read_text())
        assert content["metrics"]["well.us"]["samples"] == [1.0, 1.0]
        assert content["command"].endswith(
            "--samples 2 --only lacking --only well --json kernels.json"
        )

    def test_nothing_that_can_run_is_exit_code_1(self, tmp_path: Path) -> None:
        file = tmp_path / "kernels.json"
        assert main(["--only", "lacking", "--json", str(file)]) == 1
        assert not file.exists()

    def test_one_that_fails_is_exit_code_3_and_stops_no_other(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        file = tmp_path / "kernels.json"
        assert main(["--json", str(file)]) == 3
        captured = capsys.readouterr()
        assert "failed: bad" in captured.out and "illegal address at 3000.0" in captured.err
        assert list(json.loads(file.read_text())["metrics"]) == ["read_gb_s", "well.us"]

    def test_the_card_has_a_file_of_its_own(self, tmp_path: Path) -> None:
        files = [tmp_path / name for name in ("card.json", "kernels.json")]
        main(["--card-json", str(files[0]), "--json", str(files[1])])
        metrics = [list(json.loads(file.read_text())["metrics"]) for file in files]
        assert metrics == [["read_gb_s"], ["well.us"]]

    def test_the_list_names_them(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["--list"]) == 0
        names = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
        assert names == ["read", "well", "lacking", "bad"]


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.name)
def test_each_group_has_its_function(group: Group) -> None:
    """Read, not imported: some need PyTorch or Triton."""
    file = Path(bench.__file__).parent / f"{group.module}.py"
    tree: Any = ast.parse(file.read_text())
    (function,) = (
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name == group.function
    )
    given = {"backend", "device", "samples", "read_gb_s"}
    assert {argument.arg for argument in function.args.args} <= given


W4 = ("gate_up", "down", "in_proj", "out_proj", "lm_head")
FIXED_NAMES = {
    *(f"w4.{matrix}.percent_of_read" for matrix in W4),
    *(f"w4.{matrix}.rows5_over_rows1" for matrix in W4),
    *(
        f"w4.{matrix}{dtype}.rows{r}.us"
        for matrix in W4
        for dtype in ("", ".bfloat16")
        for r in (1, 5)
    ),
    *(f"weight_stream.rows{r}.{what}" for r in (1, 5) for what in ("us", "percent_of_read")),
    *(f"w4_pack.{matrix}.us" for matrix in ("gate", "down")),
    *(f"speculative_sample.rows5.{drafts}.us" for drafts in ("all_stand", "none_stands")),
    "history_append.ids5.us",
    "gdn_step.over_state_traffic",
    "attention_32k_bf16.percent_of_read",
}


@pytest.mark.skipif(not _native.built_with_cuda, reason="this build has no CUDA code")
def test_every_group_measures_what_the_results_are_looked_up_by(
    monkeypatch: pytest.MonkeyPatch, launches: dict[str, int], fake_backend: Any
) -> None:
    """The groups with launchers that do nothing: their calls are accepted, their names are kept."""
    monkeypatch.setattr(small_ops, "_VOCAB", 1000)  # whose logits are drawn one by one
    given = {
        "backend": fake_backend,
        "device": DeviceInfo(0, "card 0", (9, 0), 132, 50 << 20, 80 << 30),
        "samples": 2,
        "read_gb_s": 3000.0,
    }
    # What is left out has tensors of PyTorch.
    groups = [group for group in GROUPS if group.name not in ("prefill", "w4_matmul")]
    metrics = [metric for group in groups for metric in group.measure(given)]
    names = [metric.name for metric in metrics]
    assert len(set(names)) == len(names)
    assert set(names) >= FIXED_NAMES
    assert all(len(metric.samples) == 2 and metric.samples[0] > 0 for metric in metrics)
    assert len(table(metrics, 3000.0).splitlines()) == 1 + len(metrics)
    left_out = {"read_bandwidth", "w4_matmul", "w4_unpack"}
    assert {name for name, count in launches.items() if count == 0} == left_out


def test_the_layers_of_the_stream_are_as_many_ops_as_a_launch_takes(fake_backend: Any) -> None:
    layers = weight_stream._Layers(fake_backend, rows=5)
    assert len(layers.ops) == STREAM_MAX_OPS
    check_order([check_op(i, op) for i, op in enumerate(layers.ops)])
    weights = [op.weight for op in layers.ops if isinstance(op, StreamProduct)]
    sizes = {(weight.n, weight.k, weight.interleaved) for weight in weights}
    assert sizes == {
        (16384, 5120, False),
        (5120, 6144, False),
        (17408, 5120, True),
        (5120, 17408, False),
    }
    for delta in (op for op in layers.ops if isinstance(op, StreamGatedDelta)):
        parts = [(x.pointer, x.shape[1]) for x in (*delta.rows, delta.z)]
        (projected, _), (gates, _) = parts[0], parts[1]
        assert parts == [
            (projected, 10240),
            (gates, 48),
            (gates + 2 * 48, 48),
            (projected + 2 * 10240, 6144),
        ]
    packed = sum(weight.data.shape[0] for weight in weights)
    assert layers.bytes == packed + 4 * (96 * 5120 * 2 + 2 * 48 * 128 * 128 * 4)


@pytest.mark.parametrize("rows", [1, 5])
def test_before_a_launch_of_the_stream_all_is_set_that_is_handed_over(
    monkeypatch: pytest.MonkeyPatch, fake_backend: Any, rows: int
) -> None:
    calls: list[Any] = []

    class Program:
        def __init__(self, ops: list[Any]) -> None:
            self.checked = [check_op(i, op) for i, op in enumerate(ops)]

        def run(self, **arguments: Any) -> None:
            assert arguments["rows"] == rows
            calls.append(self.checked)

    monkeypatch.setattr(weight_stream, "StreamProgram", Program)
    monkeypatch.setattr(fake_backend, "set_bits", lambda *given: calls.append(given))
    weight_stream._measure(fake_backend, None, rows, 1, 3000.0)
    assert len(calls) == 2 * weight_stream._LAUNCHES
    start, num_bytes, _ = calls[0]

    def inside(tensor: TensorView) -> bool:
        """Whether the rows of the launch are set; the others are none of its."""
        stride = tensor.strides[0] * tensor.itemsize
        last = tensor.pointer + (rows - 1) * stride + tensor.shape[1] * tensor.itemsize
        return start <= tensor.pointer and last <= start + num_bytes

    def apart(tensor: TensorView) -> bool:
        return tensor.pointer + tensor.span_bytes <= start or start + 8 * num_bytes // rows <= (
            tensor.pointer
        )

    handed_over = set()
    for op in calls[1]:
        for tensor in (*op.constants, *op.results[1:], *([op.state] if op.state else [])):
            assert apart(tensor), tensor
        for tensor in op.results[:1]:
            assert inside(tensor), tensor
            handed_over.add((tensor.pointer, tensor.shape))
    reads = [tensor for op in calls[1] for tensor in op.reads]
    assert [apart(tensor) for tensor in reads].count(True) == 1  # what comes from before
    assert len(handed_over) == 6 * weight_stream._LAYERS


def test_a_card_without_the_stream_is_skipped(
    monkeypatch: pytest.MonkeyPatch, fake_backend: Any
) -> None:
    monkeypatch.setattr(weight_stream, "weight_stream_slots", lambda *_, **__: 0)
    card = DeviceInfo(0, "card 0", (8, 9), 132, 50 << 20, 80 << 30)
    with pytest.raises(BenchError, match=r"card 0 \(sm_89\) has no weight stream"):
        weight_stream.measure_weight_stream(fake_backend, card, 1, 3000.0)


def test_columns_of_a_device_array() -> None:
    array = DeviceArray(1 << 12, (4, 8), "float32", _Device("cuda", 0))
    part = array.columns(2, 3)
    assert (part.data_ptr(), part.shape, part.stride()) == ((1 << 12) + 8, (4, 3), (8, 1))
    apart = array.columns(0, 8, row_stride=100)
    assert apart.stride() == (100, 1) and apart.columns(1, 2).stride() == (100, 1)
    assert apart.at(0, (3, 2)).stride() == (2, 1)


def test_a_device_array_is_contiguous_and_relocatable() -> None:
    array = DeviceArray(1 << 12, (4, 8), "float16", _Device("cuda", 0))
    assert array.stride() == (8, 1)
    moved = array.at(256, (8,))
    assert (moved.data_ptr(), moved.stride(), moved.dtype) == ((1 << 12) + 256, (1,), "float16")
