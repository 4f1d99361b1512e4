"""What an unfinished output already holds, and of which run: the memory of a job that was killed.

One JSON file in the work folder, replaced whole after each finished unit. It names the run by
everything that decides the result's bits (source hashes, options, calibration, environment) and
refuses to continue another run, saying which of these differs.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bytebound_quant.atomic import write_file
from bytebound_quant.errors import ResumeError

JOURNAL_FILE = ".journal.json"  # hidden: loaders do not look at it
JOURNAL_VERSION = 1

Identity = Mapping[str, Mapping[str, Any]]
"""Part of the run ("source", "options", ...) -> name -> JSON value."""


@dataclass(frozen=True, slots=True)
class DoneUnit:
    """One unit whose file is complete on the disk."""

    name: str
    file: str
    sha256: str
    num_bytes: int
    tensor_bytes: int
    names: list[str]  # of the tensors in the file
    tensors: list[dict[str, Any]]  # the report's rows of the quantized ones
    seconds: float


@dataclass(slots=True)
class Journal:
    """The finished units of one run, in order."""

    path: Path
    identity: Identity
    units: list[DoneUnit] = field(default_factory=list)

    def add(self, unit: DoneUnit) -> None:
        """Record a unit whose file is on the disk."""
        self.units.append(unit)
        self.save()

    def drop_from(self, index: int) -> None:
        """Forget units from ``index``: their files are not what was written."""
        del self.units[index:]
        self.save()

    def save(self) -> None:
        """Replace the file."""
        content = {
            "version": JOURNAL_VERSION,
            "identity": self.identity,
            "units": [asdict(unit) for unit in self.units],
        }
        write_file(self.path, [json.dumps(content).encode()])


def open_journal(folder: Path, identity: Identity) -> Journal:
    """The folder's journal, or a new one if it has none.

    Raises:
        ResumeError: the folder holds another run, or a journal that cannot be read.
    """
    path = folder / JOURNAL_FILE
    if not path.exists():
        journal = Journal(path, identity)
        journal.save()
        return journal
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        version, begun = content["version"], content["identity"]
        units = [DoneUnit(**unit) for unit in content["units"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ResumeError(
            f"{path} cannot be read ({error}); remove {folder} and start again"
        ) from error
    if version != JOURNAL_VERSION:
        raise ResumeError(
            f"{folder} was begun by another version of bytebound-quant (journal {version}, this "
            f"one writes {JOURNAL_VERSION}); remove it and start again"
        )
    different = differences(begun, json.loads(json.dumps(identity)))
    if different and not units:  # nothing would be lost
        journal = Journal(path, identity)
        journal.save()
        return journal
    if different:
        raise ResumeError(
            f"{folder} was begun by a run that differs in {'; '.join(different)}. Give the same "
            "again to continue it, or remove the folder to start anew"
        )
    return Journal(path, identity, units)


def differences(begun: Identity, now: Identity) -> list[str]:
    """One phrase for each thing in which two runs differ."""
    found = []
    for part in dict.fromkeys([*begun, *now]):
        before, after = begun.get(part, {}), now.get(part, {})
        for name in dict.fromkeys([*before, *after]):
            one, other = before.get(name), after.get(name)
            if one != other:
                found.append(f"{part} {name} ({_short(one)} then, {_short(other)} now)")
    return found


def _short(value: Any) -> str:
    text = json.dumps(value)
    # Hashes are told apart by their beginning.
    return f"{text[:17]}..." if len(text) > 40 else text
