"""Whether what a command will write can be written, found out before anything is measured."""

import os
from pathlib import Path

import typer

from bytebound_evals.cli.errors import UsageError


def folder_path(word: str) -> Path:
    """Parse a folder to write into; "." must be meant, as an empty word rarely is.

    Raises:
        typer.BadParameter: the word is empty.
    """
    if not word:
        raise typer.BadParameter("'' is no folder; write . for this one")
    return Path(word)


def check_file(option: str, file: Path | None) -> None:
    """Refuse a file that cannot be written; its folders may be missing. Nothing is made.

    Raises:
        UsageError: it has no name, is a folder, or lies where nothing can be written.
    """
    if file is None:
        return
    # Path("") is Path("."), so an empty name comes here as a folder.
    if not file.name or _is_folder(option, file):
        raise UsageError(f"{option} {str(file)!r} is a folder; expected the name of a file")
    _check_parent(option, file, file.parent)


def check_folder(option: str, folder: Path) -> None:
    """Refuse a folder that cannot be written; it may be missing. Nothing is made.

    Raises:
        UsageError: it is a file, or lies where nothing can be written.
    """
    _check_parent(option, folder, folder)


def _check_parent(option: str, path: Path, folder: Path) -> None:
    """The nearest folder above that exists must take new entries."""
    while not os.path.lexists(folder) and folder != folder.parent:
        folder = folder.parent
    if not _is_folder(option, folder):
        raise UsageError(f"{option} {path} cannot be written: {folder} is no folder")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"{option} {path} cannot be written: no permission in {folder}")


def _is_folder(option: str, path: Path) -> bool:
    try:
        path.lstat()  # is_dir() keeps quiet about a name that is too long
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise UsageError(f"{option} {path} cannot be written: {error.strerror or error}") from error
    return path.is_dir()
