"""From a name or path to a model folder."""

from pathlib import Path

import pytest
from bytebound import names
from bytebound.errors import CheckpointError
from bytebound.names import resolve_model


@pytest.mark.parametrize("name", ["plain", "with [brackets] *", "ümläut ', \" $x", "a\nb"])
def test_folder(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    assert resolve_model(folder) == folder
    assert resolve_model(str(folder)) == folder


def test_hub_id_is_explained() -> None:
    with pytest.raises(CheckpointError, match=r"download it first.*hf download Org/Some-Model"):
        resolve_model("Org/Some-Model")


def test_close_name() -> None:
    with pytest.raises(CheckpointError, match="did you mean the name 'tiny'"):
        resolve_model("Tinyy")


@pytest.mark.parametrize("given", ["", "/no/such/folder"])
def test_missing(given: str) -> None:
    with pytest.raises(CheckpointError, match="no model folder"):
        resolve_model(given)


def test_file(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.touch()
    with pytest.raises(CheckpointError, match="is a file"):
        resolve_model(file)


def test_path_beats_known_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tiny").mkdir()
    monkeypatch.chdir(tmp_path)
    assert resolve_model("./tiny") == Path("tiny")
    assert resolve_model(Path("tiny")) == Path("tiny")


def test_shipped_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names.importlib.resources, "files", lambda _: tmp_path)
    with pytest.raises(CheckpointError, match="not in this installation"):
        resolve_model("tiny")
    (tmp_path / "models" / "tiny").mkdir(parents=True)
    (tmp_path / "models" / "tiny" / "config.json").write_text("{}")
    assert resolve_model("tiny") == tmp_path / "models" / "tiny"


@pytest.mark.parametrize(
    "given",
    ["~nosuchuser/model", "x" * 300, "x" * 5000, "a\0b"],
    ids=["user", "300", "5000", "NUL"],
)
def test_paths_that_the_system_refuses(given: str) -> None:
    with pytest.raises(CheckpointError, match="no model folder"):
        resolve_model(given)


@pytest.mark.parametrize("given", [None, 5, b"tiny"])
def test_what_is_no_path(given: object) -> None:
    with pytest.raises(CheckpointError, match="expected a folder or a known name"):
        resolve_model(given)  # type: ignore[arg-type]
