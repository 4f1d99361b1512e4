"""The gate's rows as a Markdown table, for a summary page, and for a terminal."""

from collections.abc import Iterable, Sequence

from rich import box
from rich.table import Table

from bytebound_evals.gate.compare import Comparison, Row, spread_pct
from bytebound_evals.results import Metric, Result

MARKER = "<!-- bytebound-perf-gate -->"
"""By which the comment on a pull request is found again."""
COLUMNS = (
    "metric",
    "base",
    "head",
    "unit",
    "change",
    "tolerance",
    "spread base / head",
    "% of limit",
    "verdict",
)


def cells(row: Row) -> tuple[str, ...]:
    """The row's texts, by ``COLUMNS``."""
    if row.change is None:
        moved = "-"
    else:
        low, high = (100 * (x - 1) for x in (row.change.low, row.change.high))
        moved = f"{100 * (row.change.ratio - 1):+.1f} % ({low:+.1f} to {high:+.1f})"
    spreads = [f"{spread_pct(m):.1f}" if m is not None else "-" for m in (row.base, row.head)]
    return (
        row.name,
        _median(row.base),
        _median(row.head),
        row.unit,
        moved,
        "exact" if row.tol_pct == 0 else f"{row.tol_pct:g} %",
        f"{' / '.join(spreads)} %",
        "" if row.percent_of_limit is None else f"{row.percent_of_limit:.1f}",
        f"{row.verdict}: {row.reason}" if row.reason else row.verdict,
    )


def markdown(comparison: Comparison, base: Result, head: Result) -> str:
    """The whole report; text that came from a file cannot break out of its cell."""
    machine = ", ".join(f"{key} {value}" for key, value in head.machine.items())
    lines = [
        MARKER,
        "## Performance gate",
        "",
        f"**{comparison.sentence()}.**",
        "",
        f"Base `{_escaped(base.commit)}`, head `{_escaped(head.commit)}`; {_escaped(machine)}.",
    ]
    lines += [f"- {_escaped(remark)}" for remark in comparison.remarks]
    if head.note:
        lines += ["", _escaped(head.note)]
    for title, rows in sections(comparison):
        lines += ["", f"### {title}", "", _line(COLUMNS), _line(["---"] * len(COLUMNS))]
        lines += [_line(map(_escaped, cells(row))) for row in rows]
    return "\n".join(lines) + "\n"


def terminal(title: str, rows: Sequence[Row]) -> Table:
    """One section for a terminal; what fails is bold."""
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for index, column in enumerate(COLUMNS):
        right = 0 < index < len(COLUMNS) - 1
        table.add_column(column, justify="right" if right else "left", no_wrap=index == 0)
    for row in rows:
        table.add_row(*map(_plain, cells(row)), style="bold" if row.fails else "")
    return table


def sections(comparison: Comparison) -> list[tuple[str, list[Row]]]:
    """Measurements, exactness and acceptance, each with its rows, failures first."""
    groups: dict[str, list[Row]] = {"Measurements": [], "Exactness": [], "Acceptance": []}
    for row in sorted(comparison.rows, key=lambda row: not row.fails):
        kind = (
            "Acceptance"
            if row.is_acceptance
            else "Exactness"
            if row.tol_pct == 0
            else "Measurements"
        )
        groups[kind].append(row)
    return [(title, rows) for title, rows in groups.items() if rows]


def _median(metric: Metric | None) -> str:
    if metric is None:
        return "-"
    value = metric.median
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _line(words: Iterable[str]) -> str:
    return f"| {' | '.join(words)} |"


def _escaped(text: str) -> str:
    for sign, name in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("|", "\\|"), ("`", "'")):
        text = text.replace(sign, name)
    return " ".join(text.split()).replace("@", "@\u200b")


def _plain(text: str) -> str:
    return text.replace("[", "\\[")
