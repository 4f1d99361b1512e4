"""What ``rtn`` and ``gptq`` do alike: run the job behind a bar, then show its report."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from bytebound.cli.output import emit_json, remark

from bytebound_quant.calibration import CalibrationSource, parse_source
from bytebound_quant.cli.errors import INTERRUPTED, OK
from bytebound_quant.cli.progress import JobProgress
from bytebound_quant.cli.report_table import show
from bytebound_quant.errors import CalibrationError
from bytebound_quant.job import Job
from bytebound_quant.text_sources import SPEC_HELP


def run_job(job: Job, *, json_: bool, every_tensor: bool) -> int:
    """Run to the end and print the report."""
    try:
        with JobProgress(sum(unit.source_bytes for unit in job.plan.units)) as progress:
            report = dataclasses.replace(job, tick=progress.tick).run()
    except KeyboardInterrupt:
        remark("interrupted; the same command continues where it stopped")
        return INTERRUPTED
    if json_:
        emit_json(report)
    else:
        show(report, job.destination, every_tensor=every_tensor)
    return OK


KIND_OF = {".txt": "text", ".jsonl": "jsonl"}  # what the ending of a bare path says


def text_sources(specs: Sequence[str]) -> list[CalibrationSource]:
    """Sources as given; the bare path of a file is one too, of the kind that its ending says."""
    sources = []
    for spec in specs:
        kind = KIND_OF.get(Path(spec).suffix.lower())
        if not Path(spec).expanduser().is_file():
            if ":" not in spec:
                raise CalibrationError(
                    f"text source {spec!r} is not understood: there is no such file; "
                    f"for anything else write {SPEC_HELP}"
                )
            sources.append(parse_source(spec))
        elif kind is None:
            raise CalibrationError(
                f"text source {spec!r}: its ending does not say what it holds; "
                f"write text:{spec} or jsonl:{spec}"
            )
        else:
            sources.append(CalibrationSource(kind=kind, path=spec))
    return sources
