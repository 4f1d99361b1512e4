"""``--engine``: it reaches the loader from every command, is recorded, and gated.

Here the CUDA backend runs on the kernels' plain references, and where a stream is to be measured, a
loader takes its name and loads the other engine: the weight stream itself is the runtime's affair.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bytebound.cuda import loading
from bytebound_evals.conditions import machine_record
from bytebound_evals.errors import IncomparableError
from bytebound_evals.gate.compare import compare, merged
from bytebound_evals.model_run import ModelRun
from bytebound_evals.results import Result, read_result
from bytebound_evals.speed.settings import Settings
from bytebound_evals.suite.quality import QualitySettings, measure_quality
from bytebound_evals.suite.run import Suite

from .emulation import emulate_cuda
from .evals_cli import Cli, cli, refused
from .speed_results import metric, result

__all__ = ["cli"]  # a fixture

CUT = ["--window", 64, "--max-tokens", 128]
COMMANDS: dict[str, list[Any]] = {
    "throughput": [
        "--depth",
        8,
        "--prompt",
        "none",
        "--draft",
        "none",
        "--tokens",
        2,
        "--read-gb-s",
        20,
    ],
    "ppl": CUT,
    "kl": [*CUT, "--reference", "tiny"],
    "gsm8k": ["--data", "arithmetic", "--limit", 1, "--max-tokens", 2],
    "needle": ["--lengths", 300, "--depths", "0.5", "--trials", 1, "--max-tokens", 2],
    "suite": ["--no-speed", "--make", "none", "--window", 64, "--text-tokens", 128],
}


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the engines that were loaded, with a stream that is none."""
    emulate_cuda(monkeypatch)
    load: Callable[..., Any] = loading.load_cuda
    seen: list[str] = []

    def named(*words: Any, engine: str, **more: Any) -> Any:
        seen.append(engine)
        return load(*words, engine="graph", **more)

    monkeypatch.setattr(loading, "load_cuda", named)
    monkeypatch.setattr(
        "bytebound_evals.conditions._card", lambda: {"name": "A GPU", "driver_version": "1"}
    )
    return seen


def words_of(command: str, folder: Path) -> list[Any]:
    out = folder if command == "suite" else folder / "out.json"
    return [command, "-m", "tiny", *COMMANDS[command], "--out", out]


@pytest.mark.parametrize("command", COMMANDS)
def test_the_reference_backend_has_none_and_says_so(cli: Cli, tmp_path: Path, command: str) -> None:
    words = [*words_of(command, tmp_path), "--device", "cpu", "--engine"]
    refused(cli(*words, "stream"), "engine='stream': only backend='cuda' has it", "engine='graph'")
    refused(cli(*words, "steam"), "engine='steam'", "did you mean 'stream'?")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "suite"])
def test_it_reaches_the_loader_and_the_result(
    cli: Cli, tmp_path: Path, loads: list[str], command: str
) -> None:
    for engine in ("graph", "stream"):
        loads.clear()
        words = [*words_of(command, tmp_path), "--backend", "cuda", "--engine", engine, "--json"]
        outcome = cli(*words)
        assert outcome.code in (0, 1), outcome  # two tokens answer no problem
        references = ["graph"] if command == "kl" else []  # what it is judged by
        assert loads == [*references, engine]
        if command not in ("throughput", "gsm8k"):
            assert json.loads(outcome.out)["engine"] == engine
        if outcome.code == 0:
            assert read_result(tmp_path / "out.json").machine["engine"] == engine


def test_a_stream_that_cannot_be_is_refused_by_the_runtime(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    emulate_cuda(monkeypatch)
    words = ["ppl", "-m", "tiny", *CUT, "--backend", "cuda", "--engine", "stream"]
    refused(cli(*words), "engine='stream': ", "use engine='graph'")


class TestSpeed:
    WORDS = ("throughput", "-m", "tiny", "--backend", "cuda", *COMMANDS["throughput"])

    def measured(self, cli: Cli, file: Path, *words: object) -> Result:
        outcome = cli(*self.WORDS, "--samples", 1, "--out", file, *words)
        assert outcome.code == 0, outcome
        return read_result(file)

    def test_the_gate_compares_one_engine_and_runs_it_again(
        self, cli: Cli, tmp_path: Path, loads: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        graph, stream = tmp_path / "graph.json", tmp_path / "stream.json"
        found = self.measured(cli, graph)
        assert found.machine["engine"] == "graph"
        assert "--engine" not in found.command
        found = self.measured(cli, stream, "--engine", "stream")
        assert found.machine["engine"] == "stream"
        assert "--engine stream" in found.command
        for base, head in ((graph, stream), (stream, graph)):
            outcome = cli("gate", "--baseline", base, "--head", head)
            refused(outcome, "of different engines", "'graph'", "'stream'", "--engine")
        assert cli("gate", "--baseline", stream, "--head", stream).code == 0

        ran: list[list[str]] = []

        def run(command: list[str], **more: Any) -> Any:
            ran.append(command)
            file = Path(command[command.index("--out") + 1])
            file.write_text(stream.read_text())
            return type("Done", (), {"returncode": 0})

        monkeypatch.setattr("bytebound_evals.cli.gate.subprocess.run", run)
        assert cli("gate", "--baseline", stream).code == 0
        assert ran[0][ran[0].index("--engine") + 1] == "stream"
        refused(cli("gate", "--baseline", graph), "of different engines")

    def test_the_command_says_it(self) -> None:
        assert "--engine" not in Settings("tiny").arguments()
        words = Settings("tiny", engine="stream").arguments()
        assert words[words.index("--engine") + 1] == "stream"


def test_the_gate_takes_results_that_name_none_for_graph() -> None:
    """Those of a CPU, and those older than the choice."""
    gpu = {"gpu": "Some GPU", "driver": "1"}
    metrics = {"a.tok_s": metric(1.0, 1.0)}
    old, graph, stream = (
        result(metrics, machine={**gpu, **more})
        for more in ({}, {"engine": "graph"}, {"engine": "stream"})
    )
    assert not compare(old, graph).failed
    assert not compare(graph, old).failed
    for one, other in ((old, stream), (stream, old), (graph, stream)):
        with pytest.raises(IncomparableError, match="baseline and head are of different engines"):
            compare(one, other)
        with pytest.raises(IncomparableError, match="two rounds of one side are of different eng"):
            merged([one, other])


def test_records(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ModelRun("tiny", device="cpu").record()["engine"] is None
    assert "engine" not in machine_record("cpu")
    emulate_cuda(monkeypatch)
    run = ModelRun("tiny", backend="cuda", engine="stream")
    assert run.record()["engine"] == "stream"
    assert ModelRun("tiny", backend="cuda").record()["engine"] == "graph"
    monkeypatch.setattr("bytebound_evals.conditions._card", lambda: {"name": "A GPU"})
    assert machine_record("cuda", "stream")["engine"] == "stream"
    assert "engine" not in machine_record("cuda")


def test_the_suite_judges_forms_by_16_bits_on_graph(
    loads: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bytebound_evals.measured_text import TextSettings
    from bytebound_evals.suite.forms import Form

    settings = QualitySettings(
        text=TextSettings(window=64, max_tokens=128),
        problem_limit=1,
        reply_tokens=2,
        backend="cuda",
        engine="stream",
    )
    monkeypatch.setattr("bytebound_evals.suite.quality.bits_per_weight", lambda model: 16.0)
    measure_quality("tiny", [Form("other", "tiny")], settings)
    assert loads == ["graph", "stream"]
    words = Suite("tiny", tmp_path, None, settings).arguments(settings)
    assert words[words.index("--engine") + 1] == "stream"
