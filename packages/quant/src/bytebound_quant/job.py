"""The frame of every method: unit by unit from source to output, journalled, finished by a rename.

Knows units, files and the order of things; how a matrix becomes 4 bits is the method's affair.
"""

import contextlib
import os
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import safe_open

from bytebound_quant import __version__
from bytebound_quant.errors import SourceError
from bytebound_quant.journal import DoneUnit, Journal, open_journal
from bytebound_quant.matrices import Packed, Quantized
from bytebound_quant.output import (
    INDEX_FILE,
    REPORT_FILE,
    Blob,
    OutputFolder,
    tensor_blob,
)
from bytebound_quant.plan import Plan, Unit
from bytebound_quant.quantization_config import quantization_config
from bytebound_quant.report import make_report
from bytebound_quant.source import Source, file_hash

Tick = Callable[[int, str], None]
"""(bytes of the source done since the last call, what is being done)"""

ReadPacked = Callable[[str], Packed]
"""Name of a quantized tensor in the source -> its stored form in the output."""

SLACK = 1.02  # of the output's size: headers, tokenizer, file system


class Method(Protocol):
    """How matrices become 4 bits."""

    name: str
    options: Mapping[str, Any]
    """Everything that decides its bits beside plan and source, in JSON's types."""
    calibration: Mapping[str, Any] | None
    """What it was calibrated on, for the report; ``digest`` identifies it."""
    device: torch.device

    def quantize(self, unit: Unit, tick: Tick) -> dict[str, Quantized]:
        """Quantize the unit's planned matrices, by name; called once per unit, in order."""

    def replay(self, unit: Unit, read: ReadPacked) -> None:
        """Catch up with a unit that an earlier run has written; called in place of the above."""


def _silent(done: int, label: str) -> None:
    """Nobody watches."""


@dataclass(frozen=True, slots=True)
class Job:
    """One run: from ``source`` by ``plan`` and ``method`` into ``destination``."""

    source: Source
    plan: Plan
    method: Method
    destination: Path
    tick: Tick = _silent

    def run(self) -> dict[str, Any]:
        """Make the folder, or finish one that was begun, and return the report.

        Raises:
            DestinationError: the folder is taken, another run's, or cannot be written.
            SourceError: the source changed or cannot be read.
        """
        self.tick(0, "hashing the source")
        hashes = self.source.hashes()
        needed = int(self.plan.output_bytes() * SLACK)
        output = OutputFolder(self.destination, needed_bytes=needed)
        with contextlib.closing(output):
            journal = open_journal(output.folder, self._identity(hashes))
            if output.finished:
                output.tidy()
            else:
                self._finish(output, self._all_units(output, journal), hashes)
            return read_report(output.final)

    def _identity(self, hashes: Mapping[str, str]) -> dict[str, dict[str, Any]]:
        calibration = self.method.calibration or {}
        return {
            "source": dict(hashes),
            "options": self.options(),
            "calibration": {"hash": calibration.get("digest")},
            "environment": environment(self.method.device),
        }

    def options(self) -> dict[str, Any]:
        """Every choice that decides the output."""
        plan = self.plan.options
        return {
            "method": self.method.name,
            "symmetric": plan.scheme.symmetric,
            "group_size": plan.scheme.group_size,
            "keep_head": plan.keep_head,
            "mtp_bits": plan.mtp_bits,
            **self.method.options,
        }

    def _all_units(self, output: OutputFolder, journal: Journal) -> Journal:
        units = self.plan.units
        sound = _sound_units(output.folder, journal)
        if sound < len(journal.units):
            journal.drop_from(sound)
        if sound == len(units):
            return journal
        for index, unit in enumerate(units):
            if index < sound:
                self.method.replay(unit, _reader(output.folder, journal.units[index]))
                self.tick(unit.source_bytes, f"{unit.name}, from the last run")
            else:
                journal.add(self._one_unit(output, index, unit))
        return journal

    def _one_unit(self, output: OutputFolder, index: int, unit: Unit) -> DoneUnit:
        begun = time.perf_counter()
        self.tick(0, unit.name)
        results = self.method.quantize(unit, self.tick)
        file_name = f"model-{index + 1:05d}-of-{len(self.plan.units):05d}.safetensors"
        blobs: list[Blob] = []
        rows = []
        for one in unit.tensors:
            if one.quantized:
                blobs += [
                    tensor_blob(f"{one.module}.{tail}", tensor)
                    for tail, tensor in results[one.name].packed.items()
                ]
                row = {"name": one.name, "unit": unit.name, "shape": list(one.stored.shape)}
                rows.append({**row, **results[one.name].row})
            else:
                stored = one.stored
                raw = self.source.raw(one.name)
                blobs.append(Blob(one.name, stored.dtype, stored.shape, stored.num_bytes, raw))
        written = output.write_shard(file_name, blobs)
        kept = sum(one.stored.num_bytes for one in unit.tensors if not one.quantized)
        self.tick(kept, unit.name)
        return DoneUnit(
            name=unit.name,
            file=file_name,
            sha256=written.sha256,
            num_bytes=written.num_bytes,
            tensor_bytes=sum(blob.num_bytes for blob in blobs),
            names=[blob.name for blob in blobs],
            tensors=rows,
            seconds=time.perf_counter() - begun,
        )

    def _finish(self, output: OutputFolder, journal: Journal, hashes: Mapping[str, str]) -> None:
        self.tick(0, "finishing")
        config = {
            **self.source.raw_config,
            "quantization_config": quantization_config(self.plan, self.method.name),
        }
        weight_map = {name: unit.file for unit in journal.units for name in unit.names}
        total = sum(unit.tensor_bytes for unit in journal.units)
        output.write_json(INDEX_FILE, {"metadata": {"total_size": total}, "weight_map": weight_map})
        output.copy_files(self.source.folder)
        report = make_report(
            plan=self.plan,
            options=self.options(),
            environment=environment(self.method.device),
            source_hashes=hashes,
            calibration=self.method.calibration,
            units=journal.units,
        )
        output.write_json(REPORT_FILE, report)
        output.finish(config)


def read_report(folder: Path) -> dict[str, Any]:
    """The report of a finished folder."""
    from bytebound.config import read_json_object

    return read_json_object(folder, REPORT_FILE)


def environment(device: torch.device) -> dict[str, Any]:
    """What else decides how sums are rounded."""
    where: dict[str, Any] = {"device": platform.machine(), "threads": torch.get_num_threads()}
    if device.type == "cuda":
        where = {"device": torch.cuda.get_device_name(device)}
    return {
        "bytebound-quant": __version__,
        "bytebound": version("bytebound"),
        "torch": torch.__version__,
        **where,
    }


def _sound_units(folder: Path, journal: Journal) -> int:
    """How many units, from the first, have their file as it was written."""
    for index, unit in enumerate(journal.units):
        path = folder / unit.file
        if not path.is_file() or os.stat(path).st_size != unit.num_bytes:
            return index
        if file_hash(path) != unit.sha256:
            return index
    return len(journal.units)


def _reader(folder: Path, unit: DoneUnit) -> ReadPacked:
    def read(name: str) -> Packed:
        module = name.removesuffix("weight")
        with safe_open(folder / unit.file, framework="pt") as file:
            found = [one for one in unit.names if one.startswith(f"{module}weight_")]
            if not found:
                raise SourceError(f"{unit.file} holds no 4-bit form of {name}")
            return {one.removeprefix(module): file.get_tensor(one) for one in found}

    return read


__all__ = ["Job", "Method", "ReadPacked", "Tick", "environment", "read_report"]
