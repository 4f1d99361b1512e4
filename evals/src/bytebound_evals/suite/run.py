"""One suite: what is measured, where it is kept, and the report over it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bytebound.cli.errors import UsageError

from bytebound_evals.conditions import (
    command_record,
    commit_record,
    machine_record,
    wheel_record,
)
from bytebound_evals.model_run import ModelRun, engine_name
from bytebound_evals.report.build import write_report
from bytebound_evals.report.series import Source
from bytebound_evals.results import Result, write_result
from bytebound_evals.speed.limits import ReadBandwidth
from bytebound_evals.speed.record import PROGRAM, speed_result
from bytebound_evals.speed.settings import Settings
from bytebound_evals.speed.throughput import Throughput
from bytebound_evals.suite.forms import Calibration, Form, check_made, form_keys, make_form
from bytebound_evals.suite.quality import QualitySettings, check_quality, measure_quality

RESULTS = "results"
FORMS = "forms"
NOTE = (
    "KL(bf16 || form) in nats over the whole vocabulary; bits per weight of the decoder's layers, "
    "scales included; word problems greedy, thinking off, a cut reply counts as wrong."
)
Say = Callable[[str], object]
FormKeys = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Suite:
    """What one run does; None leaves a half out."""

    model: str
    folder: Path
    speed: Settings | None
    quality: QualitySettings | None
    forms: tuple[Form, ...] = ()
    made: tuple[str, ...] = ()
    calibration: Calibration = field(default_factory=Calibration)
    commit: str | None = None

    def check(self) -> FormKeys:
        """Find simple mistakes before anything is loaded, made or measured.

        Returns what the forms to make are known by, for ``run``.

        Raises:
            UsageError: nothing is left to measure, or a form in the folder is another one.
            EvalError, ByteboundError, QuantError: a text, problems, a model or a setting is not
                usable.
        """
        if self.speed is None and self.quality is None:
            raise UsageError(
                "nothing to measure: leave --speed or --quality on; random weights have no quality"
            )
        if self.speed is not None:
            Throughput(self.speed).check_model()
        if self.quality is not None:
            check_quality(self.model, self.forms, self.quality)
            keys = form_keys(self.made, self.model, self.calibration, self.quality.device)
            for key in keys.values():
                check_made(self.folder / FORMS, key)
            return keys
        return {}

    def run(self, keys: FormKeys, read: ReadBandwidth | None, say: Say) -> dict[str, Result]:
        """Measure and keep ``results/speed.json`` and ``results/quality.json``.

        ``keys``: what ``check`` returned.

        Raises:
            EvalError, ByteboundError, QuantError: what a measurement refuses.
        """
        results: dict[str, Result] = {}
        if self.quality is not None:  # the shorter half first: a mistake shows early
            results["quality"] = self._quality(self.quality, keys, say)
            self._keep("quality", results)
        if self.speed is not None:
            run = Throughput(self.speed, read, lambda stem, sample: say(f"{stem}: {sample.line()}"))
            results["speed"] = speed_result(run.run(), self.speed, read, self.commit)
            self._keep("speed", results)
        return results

    def report(self, results: Mapping[str, Result], others: Sequence[Source]) -> list[Path]:
        """Write the report; returns its files.

        Raises:
            ResultError: the folder cannot be written.
        """
        ours = [Source(name, result) for name, result in results.items()]
        name = Path(self.model).name
        return write_report([*ours, *others], self.folder, f"{name}: quality and speed")

    def _quality(self, settings: QualitySettings, keys: FormKeys, say: Say) -> Result:
        forms = list(self.forms)
        for name, key in keys.items():
            say(f"making {name}")
            folder = self.folder / FORMS
            made = make_form(key, self.model, folder, self.calibration, settings.device)
            forms.append(made)
        metrics = measure_quality(self.model, forms, settings, say)
        engine = engine_name(
            self.model, settings.backend, settings.device, settings.dtype, settings.engine
        )
        on_gpu = ModelRun(self.model, settings.backend, settings.device).on_gpu
        return Result(
            machine=machine_record("cuda" if on_gpu else "cpu", engine),
            commit=commit_record(self.commit),
            command=command_record(PROGRAM, self.arguments(settings)),
            wheel=wheel_record(),
            note=NOTE,
            metrics=metrics,
        )

    def arguments(self, settings: QualitySettings) -> list[str]:
        """The command line that measures this quality again, forms without their folders."""
        words = ["suite", "--model", self.model, "--out", "FOLDER", "--no-speed"]
        words += ["--backend", settings.backend]
        words += [] if settings.engine == "graph" else ["--engine", settings.engine]
        for option, value in (
            ("--device", settings.device),
            ("--dtype", settings.dtype),
            ("--text-tokens", settings.text.max_tokens),
            ("--problem-limit", settings.problem_limit),
        ):
            words += [] if value is None else [option, str(value)]
        words += ["--text", settings.text.text, "--window", str(settings.text.window)]
        words += ["--problems", settings.problems]
        for form in self.forms:
            words += ["--form", f"{form.name}={Path(form.model).name}"]
        for name in self.made or ("none",):
            words += ["--make", name]
        for spec in self.calibration.specs:
            words += ["--calib", spec]
        words += ["--calib-samples", str(self.calibration.samples)]
        return [*words, "--calib-window", str(self.calibration.window)]

    def _keep(self, name: str, results: Mapping[str, Result]) -> None:
        write_result(self.folder / RESULTS / f"{name}.json", results[name])
