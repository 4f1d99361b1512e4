"""Series, plots and documents out of result files."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from bytebound_evals.errors import ResultError
from bytebound_evals.report import plots
from bytebound_evals.report.build import read_sources, write_report
from bytebound_evals.report.document import Facts, Grid, Heading, Paragraph, to_html, to_markdown
from bytebound_evals.report.series import (
    Source,
    decode_by_context,
    kl_against_bits,
    roofs,
    speed_by_prompt,
)
from bytebound_evals.results import Metric, Result, write_result

from .evals_cli import Cli, cli, refused
from .speed_results import metric, result, scaled

__all__ = ["cli"]  # a fixture

PNG = b"\x89PNG"


def speed(engine: str = "bytebound") -> Result:
    def case(**fields: object) -> dict[str, object]:
        return {"engine": engine, "new_tokens": 64, "draft": "none", **fields}

    mtp = {"draft": "mtp", "draft_tokens": 4}
    return result(
        {
            "read_gb_s": metric(1000.0, unit="GB/s", case={}),
            "plain_8k.tok_s": metric(40, 41, 42, case=case(prompt_tokens=8192)),
            "plain_8k.bytes_per_token": metric(20e9, unit="B", case=case(prompt_tokens=8192)),
            "plain_1k.tok_s": metric(50, 51, 52, case=case(prompt_tokens=1024)),
            "plain_1k.bytes_per_token": metric(10e9, unit="B", case=case(prompt_tokens=1024)),
            "prompt_1k.tok_s": metric(9000, case={"engine": engine, "prompt_tokens": 1024}),
            "mtp4_1k.tok_s": metric(100, 90, 95, case=case(prompt_tokens=1024, **mtp)),
            "prose.plain.tok_s": metric(45, case=case(prompt="prose", prompt_tokens=9)),
            "json.plain.tok_s": metric(46, case=case(prompt="json", prompt_tokens=8)),
            "json.mtp4.tok_s": metric(99, case=case(prompt="json", prompt_tokens=8, **mtp)),
            "suite.plain.tok_s": metric(45.5, case=case(prompts="prose json")),
        },
        note="forced <acceptance>",
    )


def quality() -> Result:
    metrics = {}
    for form, kl, bits in (("rtn", 0.07, 4.125), ("gptq_mse", 0.03, 4.125), ("bf16", None, 16)):
        metrics[f"{form}.bits_per_weight"] = metric(bits, unit="bit", better="lower")
        if kl is not None:
            metrics[f"{form}.kl"] = metric(kl, unit="nat", better="lower")
    metrics["other.kl"] = metric(0.5, unit="nat", better="lower")  # without bits: no place
    return result(metrics)


def test_decode_by_context_has_depths_only_and_in_order() -> None:
    series = decode_by_context([Source("h200/decode", speed())])
    assert {name: [(p.x, p.y, p.low, p.high) for p in line] for name, line in series.items()} == {
        "bytebound plain": [(1024, 51, 50, 52), (8192, 41, 40, 42)],
        "bytebound mtp4": [(1024, 95, 90, 100)],
    }


def test_speed_by_prompt_is_by_engine_and_draft() -> None:
    sources = [Source("a", speed()), Source("b", speed("vllm"), prefix="h200: ")]
    found = speed_by_prompt(sources)
    assert {name: sorted(metrics) for name, metrics in found.items()} == {
        "bytebound plain": ["json", "prose"],
        "bytebound mtp4": ["json"],
        "h200: vllm plain": ["json", "prose"],
        "h200: vllm mtp4": ["json"],
    }


def test_kl_needs_bits() -> None:
    series = kl_against_bits([Source("q", quality())])
    assert {form: (line[0].x, line[0].y) for form, line in series.items()} == {
        "rtn": (4.125, 0.07),
        "gptq_mse": (4.125, 0.03),
    }


def test_the_roof_is_of_the_same_card() -> None:
    other = result(
        {"plain_1k.tok_s": metric(5.0), "plain_1k.bytes_per_token": metric(1e9, unit="B")},
        machine={"cpu": "some processor"},
    )
    (roof,) = roofs([Source("a", speed()), Source("b", other)])
    assert (roof.card, roof.read_gb_s) == ("Some GPU", 1000.0)
    assert [(p.x, p.y) for p in roof.points["bytebound plain"]] == [(20.0, 41), (10.0, 51)]
    assert roofs([Source("b", other)]) == []


def test_a_report_has_plots_conditions_numbers_and_what_is_missing(tmp_path: Path) -> None:
    missing = result({}, not_measured="vllm is not installed", command="run vllm.py")
    sources = [
        Source("h200/speed", speed()),
        Source("tiny/quality", quality()),
        Source("h200/vllm", missing),
    ]
    written = write_report(sources, tmp_path / "report", "A & B")
    names = [path.relative_to(tmp_path / "report").as_posix() for path in written]
    assert names == [
        "report.md",
        "report.html",
        "plots/decode_by_context.png",
        "plots/speed_by_prompt.png",
        "plots/kl_against_bits.png",
        "plots/roofline.png",
    ]
    for path in written[2:]:
        assert path.read_bytes().startswith(PNG)
    markdown = written[0].read_text()
    assert markdown.startswith("# A &amp; B\n")
    assert "![Roofline](plots/roofline.png)" in markdown
    assert "- **machine**: gpu Some GPU, driver 580.1" in markdown
    assert "- **note**: forced &lt;acceptance>" in markdown
    assert "| plain_1k.tok_s | 51 | tok/s | 50 to 52 | 3 |" in markdown
    assert "## Not measured\n\n- **h200/vllm**: vllm is not installed (run vllm.py)" in markdown
    page = written[1].read_text()
    assert page.count("data:image/png;base64,") == 4
    assert "forced &lt;acceptance&gt;" in page
    assert "<title>A &amp; B</title>" in page


def test_the_same_results_give_the_same_report(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_report([Source("h200/speed", speed())], tmp_path / name, "T")
    first, second = (
        {p.relative_to(tmp_path / name): p.read_bytes() for p in (tmp_path / name).rglob("*.*")}
        for name in ("one", "two")
    )
    assert first == second


@pytest.mark.parametrize(("factor", "scale"), [(1, "linear"), (100, "log")])
def test_a_roof_over_small_and_large_models_is_legible(
    factor: float, scale: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = []
    begin = plots._figure

    @contextmanager
    def figure(file: Path) -> Iterator[Any]:
        with begin(file) as axes:
            yield axes
            drawn.append((axes.get_xscale(), axes.get_yscale()))

    monkeypatch.setattr(plots, "_figure", figure)
    small = scaled(speed(), lambda name, i: 1 / factor if name.endswith("per_token") else 1.0)
    plots._roofline([Source("a", speed()), Source("b", small)], tmp_path)
    assert drawn == [(scale, scale)]


def test_without_data_there_is_no_plot(tmp_path: Path) -> None:
    written = write_report([Source("a", result({"x": metric(1.0)}))], tmp_path, "T")
    assert [path.name for path in written] == ["report.md", "report.html"]


def test_several_machines_are_told_apart(tmp_path: Path) -> None:
    paths = [tmp_path / "h200" / "speed.json", tmp_path / "cpu" / "speed.json"]
    write_result(paths[0], speed())
    write_result(paths[1], result({"x": Metric("s", "lower", (1.0,), {})}, machine={"cpu": "x"}))
    both = read_sources(paths)
    assert [source.title for source in both] == ["h200/speed", "cpu/speed"]
    assert [source.prefix for source in both] == ["h200: ", "cpu: "]
    assert [source.prefix for source in read_sources(paths[:1])] == [""]
    with pytest.raises(ResultError, match="two files are called h200/speed"):
        read_sources([paths[0], paths[0]])


def test_text_cannot_break_out_of_its_cell(tmp_path: Path) -> None:
    blocks = [
        Heading("a <b>", 1),
        Paragraph("x\n# y"),
        Facts([("k|", "<v>")]),
        Grid(["c"], [["a|b\nc"]]),
    ]
    assert to_markdown(blocks, tmp_path) == (
        "# a &lt;b>\n\nx # y\n\n- **k|**: &lt;v>\n\n| c |\n| --- |\n| a\\|b c |\n"
    )
    page = to_html(blocks)
    assert "<b>" not in page
    assert "&lt;v&gt;" in page


def test_the_command(cli: Cli, tmp_path: Path) -> None:
    write_result(tmp_path / "in" / "speed.json", speed())
    outcome = cli("report", tmp_path / "in", "--out", tmp_path / "out", "--title", "Mine")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.splitlines()[0] == str(tmp_path / "out" / "report.md")
    assert (tmp_path / "out" / "report.md").read_text().startswith("# Mine\n")
    (tmp_path / "empty").mkdir()
    refused(cli("report", tmp_path / "empty", "--out", tmp_path / "out"), "holds no result file")
    refused(cli("report", tmp_path / "no.json", "--out", tmp_path / "out"), "no.json")
    (tmp_path / "file").write_text("")
    refused(cli("report", tmp_path / "in", "--out", tmp_path / "file"), "cannot be written")
    refused(cli("report", tmp_path / "in"), "--out")
    for words in (["report", tmp_path / "in"], ["suite", "-m", "tiny"]):
        refused(cli(*words, "--out", ""), "--out", "is no folder")
