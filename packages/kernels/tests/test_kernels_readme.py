"""The README's example runs as it stands, with a GPU or without."""

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"


def test_the_example_runs() -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```$", README.read_text(), re.M | re.S)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(("usable: ", "not usable: "))
