"""From what a user calls a model to the files that hold it; nothing is ever downloaded."""

import difflib
import importlib.resources
import os
import re
from pathlib import Path

from bytebound.errors import CheckpointError

# Models that travel with the package, under ``models/<name>``.
KNOWN_NAMES = ("tiny",)

# "random:<name or config.json>" is a shape with random weights; these shapes travel with the
# package, as ``models/shapes/<name>.json``.
RANDOM = "random:"
KNOWN_SHAPES = ("qwen3.5-27b",)

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def resolve_model(path_or_name: str | os.PathLike[str]) -> Path:
    """Return the model's folder: a known name first, else the path as given.

    To use a folder that is called like a known name, write it as a path: ``./tiny``.
    """
    if not isinstance(path_or_name, (str, os.PathLike)):
        raise CheckpointError(f"the model is {path_or_name!r}; expected a folder or a known name")
    given = str(os.fspath(path_or_name))
    if isinstance(path_or_name, str) and given in KNOWN_NAMES:
        return _shipped(given)
    try:
        folder = Path(given).expanduser()
        is_folder, is_file = folder.is_dir(), folder.is_file()
    except (OSError, RuntimeError, ValueError) as error:  # too long, an unknown user, a NUL
        raise CheckpointError(f"no model folder {_short(given)!r}: {error}") from None
    if given and is_folder:
        return folder
    if is_file:
        raise CheckpointError(
            f"{given} is a file; give the folder that holds it, with config.json and safetensors"
        )
    raise CheckpointError(_not_found(given))


def random_shape(path_or_name: str | os.PathLike[str]) -> Path | None:
    """Return the config file of a ``random:`` model; None for any other model."""
    given = str(path_or_name)
    if not given.startswith(RANDOM):
        return None
    shape = given.removeprefix(RANDOM)
    if shape in KNOWN_SHAPES:
        models = importlib.resources.files("bytebound").joinpath("models", "shapes")
        return Path(str(models.joinpath(f"{shape}.json")))
    file = Path(shape).expanduser()
    if file.is_dir():
        file /= "config.json"
    if not file.is_file():
        raise CheckpointError(
            f"no shape {shape!r}: after {RANDOM!r} give the path of a config.json, or one of "
            f"{', '.join(KNOWN_SHAPES)}"
        )
    return file


def _shipped(name: str) -> Path:
    folder = Path(str(importlib.resources.files("bytebound").joinpath("models", name)))
    if not (folder / "config.json").is_file():
        raise CheckpointError(
            f"the model {name!r} is not in this installation ({folder} holds no config.json); "
            "reinstall bytebound, or give a model folder"
        )
    return folder


def _short(given: str) -> str:
    return given if len(given) <= 100 else f"{given[:100]}..."


def _not_found(given: str) -> str:
    near = difflib.get_close_matches(given.lower(), KNOWN_NAMES, n=1)
    if near:
        return f"no model folder {given!r}; did you mean the name {near[0]!r}?"
    if HUB_ID.fullmatch(given):
        return (
            f"no model folder {given!r}. If that is a Hugging Face model, download it first, for "
            f"example with 'hf download {given} --local-dir {given.split('/')[1]}', and give that "
            "folder"
        )
    known = ", ".join(repr(name) for name in KNOWN_NAMES)
    return f"no model folder {given!r}; give an existing folder, or a known name: {known}"
