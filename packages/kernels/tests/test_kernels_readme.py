"""The README: its example runs as it stands, and its table names every op."""

import inspect
import re
import subprocess
import sys
from pathlib import Path

import bytebound_kernels

README = Path(__file__).parent.parent / "README.md"


def test_the_example_runs() -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```$", README.read_text(), re.M | re.S)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(("usable: ", "not usable: "))


def test_the_table_has_a_line_for_each_op() -> None:
    ops = {
        name
        for name in bytebound_kernels.__all__
        if inspect.isfunction(op := getattr(bytebound_kernels, name))
        and op.__module__.startswith("bytebound_kernels.ops.")
        and not name.endswith(("_bytes", "_slots", "_width"))
    }
    assert ops
    table = README.read_text().partition("## Ops")[2].partition("## Prompts")[0]
    assert set(re.findall(r"^\| `(\w+)\(", table, re.M)) == ops
