"""Builds of the kernels against each other: whole turns, by turns, in one process.

    python bench/builds.py --json FILE NAME=EXTENSION NAME=EXTENSION ... [--rows 1 5]
        [--model random:qwen3.5-27b] [--position 1024]

An EXTENSION is the compiled ``_native`` module of a build, whose functions take what the installed
Python around it passes. A turn is recorded with the ops of each build, and the recordings are timed
by turns: a machine that warms up, or a clock that moves, meets all of them alike. Says nothing of
their results: the tests of the kernels do.
"""

import argparse
import importlib.util
import statistics
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

from bytebound import Engine, SamplingParams
from bytebound.cuda.cycle import Form
from bytebound.cuda.sampling import Choice
from decode import some_prompt, write
from step_parts import TURNS, turn_times

PACKAGE, MODULE = "bytebound_kernels", "_native"
MARGIN = 10 * 8 * TURNS  # positions that the turns take


def named(word: str) -> tuple[str, Path]:
    """``NAME=EXTENSION`` of the command line."""
    name, _, path = word.partition("=")
    if not name or not Path(path).is_file():
        raise argparse.ArgumentTypeError(f"{word!r} is no NAME=EXTENSION with a file behind it")
    return name, Path(path)


def load(name: str, path: Path) -> ModuleType:
    """The extension at ``path``, beside the one that is loaded already.

    Raises:
        ImportError: it is none, or is the same module again.
    """
    # Under a name of its own: pybind11 gives a name that it has seen the module it made then.
    loader = ExtensionFileLoader(f"build_{name}.{MODULE}", str(path))
    spec = importlib.util.spec_from_file_location(loader.name, path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    if module is sys.modules[f"{PACKAGE}.{MODULE}"]:
        raise ImportError(f"{path} came as the module that is installed")
    return module


def users() -> list[ModuleType]:
    """The modules whose ops call into the extension."""
    return [
        module
        for name, module in list(sys.modules.items())
        if name.startswith(f"{PACKAGE}.") and isinstance(getattr(module, MODULE, None), ModuleType)
    ]


@contextmanager
def ops_of(build: ModuleType) -> Iterator[None]:
    """Within, every op is that of the build."""
    with ExitStack() as stack:
        for module in users():
            stack.enter_context(patch.object(module, MODULE, build))
        yield


def measure(builds: dict[str, ModuleType], arguments: argparse.Namespace) -> dict[str, Any]:
    """All metrics by name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        engine = Engine.from_pretrained(
            arguments.model, backend="cuda", draft="none", max_len=arguments.position + MARGIN
        )
    engine.generate(some_prompt(arguments.position), SamplingParams(max_tokens=1))
    variants = {name: partial(ops_of, build) for name, build in builds.items()}
    metrics: dict[str, Any] = {}
    for rows in arguments.rows:
        form = Form.of(Choice(rows - 1), rows - 1)
        for name, values in turn_times(engine, form, arguments.position, variants).items():
            metrics[f"rows{rows}.{name}.us"] = {
                "unit": "us", "better": "lower", "median": statistics.median(values),
                "samples": values, "case": {"rows": rows, "position": arguments.position},
            }  # fmt: skip
    return metrics


def main(argv: list[str] | None = None) -> int:
    """Measure, write the file, print the medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("builds", type=named, nargs="+", metavar="NAME=EXTENSION")
    parser.add_argument("--json", type=Path, required=True, metavar="FILE")
    parser.add_argument("--model", default="random:qwen3.5-27b")
    parser.add_argument("--position", type=int, default=1024)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 5], choices=range(1, 9))
    parser.add_argument("--commit", help="what is measured, where there is no repository")
    arguments = parser.parse_args(argv)
    if len(dict(arguments.builds)) < len(arguments.builds):
        parser.error("two builds have the same name")
    if arguments.position < 1:
        parser.error(f"--position {arguments.position}: expected 1 or more")
    try:
        builds = {name: load(name, path) for name, path in arguments.builds}
    except ImportError as error:
        parser.error(str(error))
    write(arguments.json, "builds", measure(builds, arguments), arguments.commit, argv)
    return 0


if __name__ == "__main__":
    sys.exit(main())
