"""Local copies of public datasets in their own layout: a card with configs, parquet per split."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow
import pyarrow.parquet

Rows = Mapping[str, Sequence[object]]


def write_dataset(folder: Path, configs: Mapping[str, Mapping[str, Rows]]) -> Path:
    """Config to split to columns, as a repository of the hub holds them."""
    card = ["---", "configs:"]
    for config, splits in configs.items():
        card += [f"- config_name: {config}", "  data_files:"]
        (folder / config).mkdir(parents=True)
        for split, rows in splits.items():
            card += [f"  - split: {split}", f"    path: {config}/{split}-*"]
            table = pyarrow.table({name: list(values) for name, values in rows.items()})
            pyarrow.parquet.write_table(table, folder / config / f"{split}-00000-of-00001.parquet")
    (folder / "README.md").write_text("\n".join([*card, "---", ""]))
    return folder


# Rows of WikiText: headings and paragraphs, each with its line end, and empty ones between.
WIKI_ROWS = ("", " = Pears = \n", "", " A pear is a fruit . \n", " It grows on trees . \n", "")


def write_wikitext(folder: Path) -> Path:
    return write_dataset(
        folder,
        {
            "wikitext-2-raw-v1": {"test": {"text": WIKI_ROWS}, "train": {"text": ["train"]}},
            "wikitext-103-raw-v1": {"test": {"text": ["other"]}},
        },
    )


def write_gsm8k(folder: Path, test: int = 3, train: int = 2) -> Path:
    def rows(count: int, first: int) -> Rows:
        numbers = range(first, first + count)
        return {
            "question": [f"Ann has {n} pears and buys 2. How many?" for n in numbers],
            "answer": [f"{n} + 2 = <<{n}+2={n + 2}>>{n + 2}\n#### {n + 2}" for n in numbers],
        }

    splits = {"train": rows(train, 1000), "test": rows(test, 3)}
    return write_dataset(folder, {"main": splits, "socratic": splits})
