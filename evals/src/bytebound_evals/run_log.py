"""The log of a run over items: one JSON line each, from which a run that was killed goes on.

The first line holds the settings that decide what an item gives. A log is continued only by a run
with the same settings; a last line that was cut off is dropped, any other damage is an error.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from bytebound_evals.errors import RunLogError
from bytebound_evals.identity import digest

_BEGINNING = b'{"settings": '


class RunLog:
    """Finished items by their key, on the disk as soon as they are added."""

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        """Begin the log at ``path``, or continue it.

        Raises:
            RunLogError: it belongs to other settings, is damaged, or cannot be read or written.
        """
        self._path = path
        self._settings = dict(settings)
        self.done: dict[str, dict[str, Any]] = {}
        """Items that an earlier run finished."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            size = self._read(path.read_bytes()) if path.is_file() else 0
            self._file: IO[bytes] = path.open("r+b" if path.is_file() else "w+b")
            self._file.truncate(size)
            self._file.seek(size)
            if not size:
                self._write({"settings": self._settings, "key": digest(self._settings)})
        except OSError as error:
            raise RunLogError(f"{path}: {error.strerror or error}") from error

    def __enter__(self) -> "RunLog":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    def add(self, key: str, item: Mapping[str, Any]) -> None:
        """Record one finished item.

        Raises:
            RunLogError: it cannot be written.
        """
        try:
            self._write({"item": key, **item})
        except OSError as error:
            raise RunLogError(
                f"{self._path} cannot be written: {error.strerror or error}; the same command "
                "continues where it stopped"
            ) from error

    def _read(self, raw: bytes) -> int:
        """Take what is whole; the number of bytes that it has."""
        whole = raw[: raw.rfind(b"\n") + 1]
        if not whole:
            # Cut off within the first line: nothing was done yet. Anything else is no log of ours.
            if raw[: len(_BEGINNING)] != _BEGINNING[: len(raw)]:
                raise RunLogError(f"{self._path} is no log of a run; name another file")
            return 0
        for number, line in enumerate(whole.splitlines(), start=1):
            try:
                record = json.loads(line)
                if number == 1:
                    self._check_settings(record["settings"])
                else:
                    self.done[record.pop("item")] = record
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise RunLogError(
                    f"{self._path}, line {number}: no log of a run, or damaged ({error!r}); name "
                    "another file, or remove this one to start over"
                ) from error
        return len(whole)

    def _check_settings(self, begun: Mapping[str, Any]) -> None:
        now = json.loads(json.dumps(self._settings))
        names = sorted(
            name for name in {*begun, *now} if begun.get(name, ...) != now.get(name, ...)
        )
        if names:
            parts = (f"{name} {begun.get(name)!r}, now {now.get(name)!r}" for name in names)
            raise RunLogError(
                f"{self._path} was begun with other settings ({'; '.join(parts)}); name another "
                "file, or remove this one to start over"
            )

    def _write(self, record: Mapping[str, Any]) -> None:
        line = json.dumps(record, ensure_ascii=True) + "\n"
        self._file.write(line.encode("ascii"))
        self._file.flush()
        os.fsync(self._file.fileno())
