import re
import subprocess
import sys
from pathlib import Path

import pytest
import readme_command

README = Path(__file__).resolve().parents[2] / "README.md"
TEXT = """
<!-- command: test -->

```sh
pip install uv && uv run pytest
```

<!-- command: twice -->
```sh
a
```
<!-- command: twice -->
```bash
b
```
"""


def test_finds_the_block_under_its_mark() -> None:
    assert readme_command.find_command(TEXT, "test") == "pip install uv && uv run pytest"


@pytest.mark.parametrize(("name", "count"), [("twice", 2), ("absent", 0)])
def test_anything_but_one_block_is_an_error(name: str, count: int) -> None:
    with pytest.raises(LookupError, match=f"found {count}; marked are: test, twice"):
        readme_command.find_command(TEXT, name)


def test_exit_code_of_a_missing_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert readme_command.main(["test", "--readme", str(tmp_path / "none.md")]) == 2
    assert capsys.readouterr().err.startswith("readme_command: ")


@pytest.mark.parametrize(
    ("name", "program"), [("generate", "bytebound generate"), ("test", "pytest")]
)
def test_the_readme_has_both_commands(name: str, program: str) -> None:
    command = readme_command.find_command(README.read_text(encoding="utf-8"), name)
    assert command.startswith(f"pip install uv && uv run {program}")
    assert "\n" not in command


def test_the_python_example_runs() -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```$", README.read_text("utf-8"), re.M | re.S)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "12 + 7 = " in done.stdout
    assert "19 apples" in done.stdout
