"""Write the measured numbers of the documents from bench/results, and check that they are current.

Every number comes from a JSON file under bench/results (its form: bench/README.md). README.md gets
what a visitor looks for first, between `<!-- results:begin -->` and `<!-- results:end -->`;
docs/results.md gets every metric and is this tool's as a whole.

    python tools/render_results.py [--check] [--root ROOT]

Exit code 0: written, or current; 1: --check found it out of date; 2: a result file is damaged.
"""

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from bytebound_evals.errors import ResultError
from bytebound_evals.results import Result, read_result
from bytebound_evals.suite.table import COLUMNS, form_rows

BEGIN = "<!-- results:begin -->"
END = "<!-- results:end -->"
NOTHING = "Nothing measured yet: there is no file under `bench/results`."
DETAILS = "docs/results.md"
DETAILS_HEAD = (
    "# Every number\n\n"
    "Written by `tools/render_results.py` from [bench/results](../bench/README.md), where every\n"
    "sample is. What matters most stands in the [README](../README.md#measured)."
)
HEADLINES = (
    (
        "h200/decode",
        "plain_1k.tok_s",
        "27B shape, random weights: plain decoding, 1,024 positions cached",
    ),
    (
        "h200/decode",
        "plain_1k.percent_of_limit",
        "the same, of what the card's memory bandwidth allows",
    ),
    ("h200/decode", "plain_32k_over_1k", "the same at 32,768 positions, against 1,024"),
    ("h200/decode", "plain_32k_fp8_over_1k", "the same with keys and values in fp8"),
    ("h200/decode", "cycle4_all_accepted.tok_s", "four drafts a cycle, all forced to stand"),
    ("h200/decode", "cycle4_over_plain", "such a cycle, in plain steps"),
    ("h200/prefill", "prompt_2k.tok_s", "a prompt of 2,048 tokens"),
    ("h200/prefill", "prompt_8k.tok_s", "a prompt of 8,192 tokens"),
    ("h200/throughput", "prompt_32k.tok_s", "a prompt of 32,768 tokens"),
    (
        "h200/throughput",
        "suite.plain.tok_s",
        "plain decoding behind eight prompts, geometric mean",
    ),
    (
        "h200/throughput",
        "suite.forced4@0.7.tok_s",
        "the same with four guesses, each forced to be right 7 times in 10; no draft head",
    ),
    ("h200/load", "packed_27b.s", "packed weights of a 27B model from the page cache"),
    ("tiny/quality", "rtn.kl", "`tiny` rounded to 4 bits: KL from 16 bits"),
    ("tiny/quality", "gptq_mse.kl", "`tiny` in 4 bits by GPTQ: KL from 16 bits"),
)
"""File, metric, and what it is: what a visitor looks for first. Those there are become a table."""
FORMS = "tiny/suite"
"""The suite's quality of the shipped model: a table of its forms."""
EARLIER = "earlier"
"""A folder of results that others have replaced, kept for what docs/experiments.md compares."""
NOT_RESULTS = ("tiny/corpus", "tiny/training")
"""Files that lie among the results and are none: what a model was trained on, and the run's log."""


def load_results(folder: Path) -> dict[str, Result]:
    """Read every JSON file below `folder`, by its path without the suffix, sorted.

    Raises:
        ResultError: a file is not of the form that bench/README.md describes.
    """
    files = {f.relative_to(folder).with_suffix("").as_posix(): f for f in folder.rglob("*.json")}
    return {name: read_result(files[name], name) for name in sorted(files.keys() - NOT_RESULTS)}


def render_readme(results: dict[str, Result]) -> str:
    """Return the README's block, without its two markers."""
    if not results:
        return NOTHING
    shown = _without_earlier(results)
    missing = {name: one for name, one in shown.items() if one.not_measured}
    blocks: list[Iterable[str]] = [_render_headlines(shown), _render_forms(shown)]
    if len(missing) < len(shown):
        blocks.append([f"Every number, its conditions, its spread: [{DETAILS}]({DETAILS})."])
    if missing:
        blocks.append(_render_missing(missing))
    return _join(blocks)


def render_details(results: dict[str, Result]) -> str:
    """Return the text of docs/results.md: a section for each file that holds metrics."""
    shown = {name: one for name, one in _without_earlier(results).items() if not one.not_measured}
    blocks: list[Iterable[str]] = [[DETAILS_HEAD]]
    blocks += [_render_result(name, one) for name, one in shown.items()]
    earlier = sorted({name.rpartition("/")[0] for name in results if _is_earlier(name)})
    if earlier:
        folders = ", ".join(f"`bench/results/{folder}`" for folder in earlier)
        blocks.append([f"Earlier results, which `docs/experiments.md` compares with: {folders}."])
    if len(blocks) == 1:
        blocks.append([NOTHING])
    return f"{_join(blocks)}\n"


def _join(blocks: Iterable[Iterable[str]]) -> str:
    """The blocks that have lines, an empty line between them."""
    texts = ("\n".join(block) for block in blocks)
    return "\n\n".join(text for text in texts if text)


def _is_earlier(name: str) -> bool:
    return EARLIER in name.split("/")


def _without_earlier(results: dict[str, Result]) -> dict[str, Result]:
    return {name: one for name, one in results.items() if not _is_earlier(name)}


def _render_headlines(results: dict[str, Result]) -> Iterator[str]:
    """A table of the numbers that matter most; nothing where none of them was measured."""
    found = [
        (what, results[file].metrics[name], file)
        for file, name, what in HEADLINES
        if file in results and name in results[file].metrics
    ]
    if not found:
        return
    yield "| what | median | unit | file |"
    yield "| --- | --- | --- | --- |"
    for what, metric, file in found:
        link = f"[{file}](bench/results/{file}.json)"
        yield f"| {what} | {_number(metric.median)} | {metric.unit} | {link} |"


def _render_forms(results: dict[str, Result]) -> Iterator[str]:
    """The shipped model in 16 bits and in 4; nothing where it was not measured."""
    if FORMS not in results:
        return
    yield f"`tiny` in 16 bits and in 4 ([{FORMS}](bench/results/{FORMS}.json)):"
    yield ""
    yield f"| form | {' | '.join(COLUMNS)} |"
    yield f"|{' --- |' * (1 + len(COLUMNS))}"
    for form, values in form_rows(results[FORMS].metrics).items():
        cells = ("-" if value is None else _number(value) for value in values)
        yield f"| {form} | {' | '.join(cells)} |"


def _render_result(title: str, result: Result) -> Iterator[str]:
    machine = ", ".join(f"{key} {value}" for key, value in result.machine.items())
    yield f"## {title}"
    yield ""
    yield f"{_cell(machine)}; commit `{result.commit}`; `{result.command}`"
    if result.note:
        yield ""
        yield result.note
    yield ""
    yield "| metric | median | unit | lowest to highest | samples | case |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for name, metric in sorted(result.metrics.items()):
        spread = f"{_number(min(metric.samples))} to {_number(max(metric.samples))}"
        case = ", ".join(f"{key} {value}" for key, value in metric.case.items())
        cells = (
            name,
            _number(metric.median),
            metric.unit,
            spread,
            str(len(metric.samples)),
            case,
        )
        yield f"| {' | '.join(_cell(cell) for cell in cells)} |"


def _render_missing(results: dict[str, Result]) -> Iterator[str]:
    """What was not measured, why, and the command that will measure it."""
    yield "Not measured:"
    yield ""
    for title, result in results.items():
        yield f"- **{title}**: {_cell(result.not_measured or '')}; `{_cell(result.command)}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def replace_block(text: str, block: str) -> str:
    """Return `text` with `block` between the markers.

    Raises:
        ResultError: the markers are not there exactly once and in order.
    """
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise ResultError(f"README.md: expected {BEGIN} and then {END}, once each")
    head, rest = text.split(BEGIN)
    tail = rest.split(END)[1]
    return f"{head}{BEGIN}\n{block}\n{END}{tail}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Render or check; return the exit code."""
    parser = argparse.ArgumentParser(description="Render bench/results into the documents.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if out of date")
    here = Path(__file__).resolve().parent.parent
    parser.add_argument("--root", type=Path, default=here, help="default: this repository")
    options = parser.parse_args(arguments)
    root: Path = options.root
    try:
        results = load_results(root / "bench" / "results")
        readme = (root / "README.md").read_text(encoding="utf-8")
        wanted = {
            "README.md": replace_block(readme, render_readme(results)),
            DETAILS: render_details(results),
        }
        stale = [name for name, text in wanted.items() if _read(root / name) != text]
    except (OSError, ResultError) as error:
        print(f"render_results: {error}", file=sys.stderr)
        return 2
    for name in stale:
        if options.check:
            print(f"{name}: the results are out of date; run tools/render_results.py")
        else:
            (root / name).parent.mkdir(exist_ok=True)
            (root / name).write_text(wanted[name], encoding="utf-8")
    return 1 if stale and options.check else 0


def _read(file: Path) -> str | None:
    return file.read_text(encoding="utf-8") if file.exists() else None


if __name__ == "__main__":
    sys.exit(main())
