import itertools
import sysconfig
from collections.abc import Callable
from pathlib import Path

import import_check
import pytest

Install = Callable[..., str]
_numbers = itertools.count()


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Put a made-up distribution into a made-up site-packages; return its name."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sysconfig, "get_path", lambda key: str(tmp_path))

    def build(
        init: str = '__version__ = "1.0"', *, typed: bool = True, licence: bool = True
    ) -> str:
        name = f"made-up-{next(_numbers)}"  # a new name each time: imports are cached
        package = tmp_path / name.replace("-", "_")
        package.mkdir()
        (package / "__init__.py").write_text(init)
        if typed:
            (package / "py.typed").touch()
        info = tmp_path / f"{package.name}-1.0.dist-info"
        (info / "licenses").mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.4\nName: {name}\nVersion: 1.0\n")
        (info / "licenses" / "LICENSE").touch()
        record = f"{info.name}/licenses/LICENSE,,\n" if licence else f"{info.name}/METADATA,,\n"
        (info / "RECORD").write_text(record)
        return name

    return build


def problems(name: str) -> list[str]:
    return [problem.removeprefix(f"{name}: ") for problem in import_check.find_problems(name)]


def test_a_sound_package(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    name = install()
    assert import_check.main([name]) == 0
    assert capsys.readouterr().out == f"{name} 1.0: imports\n"


def test_what_is_not_installed(capsys: pytest.CaptureFixture[str]) -> None:
    assert import_check.main(["no-such-distribution"]) == 1
    assert capsys.readouterr().out == "no-such-distribution: not installed\n"


def test_a_package_that_does_not_import(install: Install) -> None:
    name = install("1 / 0")
    package = name.replace("-", "_")
    assert problems(name) == [f"import {package}: ZeroDivisionError: division by zero"]


@pytest.mark.parametrize("needed", ["no-such-part>=1; extra == 'more'", "no-such-part>=1"])
def test_a_module_may_need_an_extra(install: Install, tmp_path: Path, needed: str) -> None:
    name = install()
    package = name.replace("-", "_")
    (tmp_path / package / "part.py").write_text("import no_such_part.inside")
    with (tmp_path / f"{package}-1.0.dist-info" / "METADATA").open("a") as metadata:
        metadata.write(f"Requires-Dist: {needed}\n")
    found = problems(name)
    if "extra" in needed:
        assert found == []
    else:
        missing = "ModuleNotFoundError: No module named 'no_such_part'"
        assert found == [f"import {package}.part: {missing}"]


def test_a_wrong_version(install: Install) -> None:
    name = install('__version__ = "2"')
    assert problems(name) == ["__version__ is not the distribution's 1.0"]


def test_missing_types(install: Install) -> None:
    assert problems(install(typed=False)) == ["py.typed is not installed"]


def test_missing_licence(install: Install) -> None:
    assert problems(install(licence=False)) == ["the licence is not installed"]


def test_a_module_that_does_not_import(install: Install, tmp_path: Path) -> None:
    name = install()
    package = name.replace("-", "_")
    (tmp_path / package / "part.py").write_text("import no_such_module_at_all")
    (tmp_path / package / "__main__.py").write_text("raise SystemExit(3)")
    expected = f"import {package}.part: ModuleNotFoundError: No module named"
    assert [problem.startswith(expected) for problem in problems(name)] == [True]


def test_a_source_tree_instead_of_the_environment(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = install()
    monkeypatch.setattr(sysconfig, "get_path", lambda key: str(tmp_path / "elsewhere"))
    assert [problem.startswith("imported from ") for problem in problems(name)] == [True]
