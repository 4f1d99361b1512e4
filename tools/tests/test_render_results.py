import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import render_results

RESULT: dict[str, Any] = {
    "schema": 1,
    "machine": {"gpu": "Some GPU", "driver": "580.1"},
    "commit": "abc123",
    "command": "bytebound-evals throughput | tee log",
    "metrics": {
        "plain_1k.tok_s": {
            "unit": "tok/s",
            "better": "higher",
            "median": 12.5,
            "samples": [12.0, 13.0],
            "case": {"prompt_tokens": 1024, "draft": "none"},
        },
        "a.count": {
            "unit": "tokens",
            "better": "lower",
            "median": 123456,
            "samples": [123456],
            "case": {},
        },
    },
}
README = f"# Title\n\n{render_results.BEGIN}\nold\n{render_results.END}\n\nEnd.\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "README.md").write_text(README)
    return tmp_path


def put(root: Path, record: object, name: str = "h200/decode") -> None:
    file = root / "bench" / "results" / f"{name}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(record))


def run(root: Path, *flags: str) -> int:
    return render_results.main([*flags, "--root", str(root)])


def details(root: Path) -> str:
    return (root / render_results.DETAILS).read_text()


def test_without_results_it_says_so(root: Path) -> None:
    assert run(root) == 0
    text = (root / "README.md").read_text()
    assert text == README.replace("old", render_results.NOTHING)
    assert details(root).endswith(f"\n\n{render_results.NOTHING}\n")


def test_the_readme_has_what_matters_most_and_leads_to_the_rest(root: Path) -> None:
    put(root, RESULT)
    assert run(root) == 0
    block = (root / "README.md").read_text().split(render_results.BEGIN)[1]
    lines = block.split(render_results.END)[0].strip().split("\n")
    assert lines == [
        "| what | median | unit | file |",
        "| --- | --- | --- | --- |",
        "| 27B shape, random weights: plain decoding, 1,024 positions cached | 12.5 | tok/s "
        "| [h200/decode](bench/results/h200/decode.json) |",
        "",
        "Every number, its conditions, its spread: [docs/results.md](docs/results.md).",
    ]


def test_a_result_is_a_table_with_its_conditions(root: Path) -> None:
    put(root, {**RESULT, "note": "Acceptance was forced."})
    assert run(root) == 0
    assert details(root).removeprefix(render_results.DETAILS_HEAD).split("\n") == [
        "",
        "",
        "## h200/decode",
        "",
        "gpu Some GPU, driver 580.1; commit `abc123`; `bytebound-evals throughput | tee log`",
        "",
        "Acceptance was forced.",
        "",
        "| metric | median | unit | lowest to highest | samples | case |",
        "| --- | --- | --- | --- | --- | --- |",
        "| a.count | 123,456 | tokens | 123,456 to 123,456 | 1 |  |",
        "| plain_1k.tok_s | 12.5 | tok/s | 12 to 13 | 2 | prompt_tokens 1024, draft none |",
        "",
    ]


def test_check_writes_nothing_and_fails_until_rendered(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(root, RESULT)
    assert run(root, "--check") == 1
    assert (root / "README.md").read_text() == README
    assert not (root / render_results.DETAILS).exists()
    printed = capsys.readouterr().out
    assert "README.md: the results are out of date" in printed
    assert "docs/results.md: the results are out of date" in printed
    assert run(root) == 0
    assert run(root, "--check") == 0
    put(root, RESULT, name="rtx5090/decode")  # a file without a headline
    assert run(root, "--check") == 1
    assert "README.md" not in capsys.readouterr().out


def test_the_list_of_training_data_is_no_result(root: Path) -> None:
    put(root, {"train": {}}, name="tiny/corpus")
    assert run(root) == 0
    assert render_results.NOTHING in (root / "README.md").read_text()


def test_earlier_results_are_named_but_not_shown(root: Path) -> None:
    put(root, RESULT)
    put(root, RESULT, "h200/earlier/decode")
    assert run(root) == 0
    assert details(root).count("## h200/") == 1
    assert "compares with: `bench/results/h200/earlier`." in details(root)
    put(root, {**RESULT, "schema": 2}, "h200/earlier/decode")
    assert run(root) != 0


def test_what_was_not_measured_stands_at_the_end_with_its_command(root: Path) -> None:
    put(root, RESULT)
    missing = {**RESULT, "metrics": {}, "not_measured": "no | GPU here", "command": "run it"}
    put(root, missing, name="a/first")
    assert run(root) == 0
    block = (root / "README.md").read_text().split(render_results.END)[0]
    assert block.strip().endswith("Not measured:\n\n- **a/first**: no \\| GPU here; `run it`")
    assert "a/first" not in details(root)
    put(root, {**missing, "not_measured": " "}, name="a/first")
    assert run(root) == 2


def changed(path: str, value: object) -> dict[str, Any]:
    record = copy.deepcopy(RESULT)
    *parents, last = path.split("/")
    target = record
    for parent in parents:
        target = target[parent]
    if value is None:
        del target[last]
    else:
        target[last] = value
    return record


METRIC = "metrics/plain_1k.tok_s"


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ([], "expected an object, got list"),
        (changed("schema", 2), "schema is 2, expected 1"),
        (changed("commit", None), "missing: commit; unknown: none"),
        (changed("command", " "), "command must be a non-empty string"),
        (changed("extra", 1), "missing: none; unknown: extra"),
        (changed("machine", {"driver": "1"}), "names its gpu or its cpu"),
        (changed("metrics", {}), "at least one metric"),
        (changed(METRIC, 5), "plain_1k.tok_s: expected an object, got int"),
        (changed(f"{METRIC}/samples", None), "missing: samples"),
        (changed(f"{METRIC}/samples", []), "samples must be"),
        (changed(f"{METRIC}/samples", [float("nan")]), "samples must be"),
        (changed(f"{METRIC}/samples", [True]), "samples must be"),
        (changed(f"{METRIC}/median", 13.0), "median is 13.0, but that of the samples is 12.5"),
        (changed(f"{METRIC}/better", "faster"), "expected higher or lower"),
        (changed(f"{METRIC}/case", "x"), "case an object"),
    ],
)
def test_a_damaged_result_is_refused_by_name(
    root: Path, record: object, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    put(root, record)
    assert run(root) == 2
    error = capsys.readouterr().err
    assert error.startswith("render_results: h200/decode: ")
    assert message in error
    assert (root / "README.md").read_text() == README


def test_a_file_that_is_not_json(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(root, RESULT)
    (root / "bench/results/h200/decode.json").write_text('{"schema": 1')
    assert run(root, "--check") == 2
    assert "h200/decode: not JSON" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text",
    [
        "no markers",
        render_results.BEGIN,
        f"{render_results.END}{render_results.BEGIN}",
        README + README,
    ],
    ids=["none", "one", "order", "twice"],
)
def test_markers_must_be_there_once(
    root: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "README.md").write_text(text)
    assert run(root) == 2
    assert "README.md: expected" in capsys.readouterr().err


def test_no_readme_is_wrong_use(tmp_path: Path) -> None:
    assert run(tmp_path) == 2


def test_this_repository_passes() -> None:
    repository = Path(__file__).resolve().parents[2]
    script = repository / "tools" / "render_results.py"
    done = subprocess.run(
        [sys.executable, str(script), "--check"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout


def test_the_forms_of_the_shipped_model_are_a_table(root: Path) -> None:
    def one(value: float) -> dict[str, Any]:
        return {"unit": "x", "better": "lower", "median": value, "samples": [value], "case": {}}

    metrics = {"bf16.bits_per_weight": one(16.0), "bf16.ppl": one(13.5)}
    metrics |= {"rtn.bits_per_weight": one(4.166), "rtn.ppl": one(14.25), "rtn.kl": one(0.0704)}
    metrics |= {"rtn.top1": one(0.8462), "arithmetic.rtn.accuracy": one(0.92)}
    put(root, {**RESULT, "metrics": metrics}, render_results.FORMS)
    assert run(root) == 0
    lines = (root / "README.md").read_text().splitlines()
    assert "| form | bits per weight | perplexity | KL, nat | top-1 | problems right |" in lines
    assert "| bf16 | 16 | 13.5 | - | - | - |" in lines
    assert "| rtn | 4.166 | 14.25 | 0.0704 | 0.8462 | 0.92 |" in lines
