"""The forms of one model that a suite compares: its 16 bits, folders given, and forms made here."""

import json
import platform
import pydoc_data.topics
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bytebound.cli.errors import UsageError

if TYPE_CHECKING:
    from bytebound_quant.text_sources import CalibrationSource

BF16 = "bf16"
MADE = ("rtn", "gptq_mse")
"""What can be made here: rounding to nearest; GPTQ with ranges searched for the least error."""
MAX_SOURCE_BYTES = 100_000
GROUP_SIZE = 128
DECODER_KINDS = ("attention", "gated delta net", "mlp")


@dataclass(frozen=True, slots=True)
class Calibration:
    """What GPTQ is calibrated on."""

    specs: tuple[str, ...] = ()
    """Sources as ``bytebound-quant gptq --calib`` takes them; none: the interpreter's library."""
    samples: int = 64
    window: int = 512

    def __post_init__(self) -> None:
        if self.samples < 1 or self.window < 1:
            raise UsageError(
                f"--calib-samples {self.samples}, --calib-window {self.window}: expected at least 1"
            )


@dataclass(frozen=True, slots=True)
class Form:
    """One way of storing the model."""

    name: str
    model: str


def given_forms(words: list[str] | None) -> list[Form]:
    """Forms that are there already, each as NAME=FOLDER.

    Raises:
        UsageError: a word is no such pair, or a name is taken.
    """
    forms: list[Form] = []
    for word in words or ():
        name, sign, folder = word.partition("=")
        if not sign or not name or not folder:
            raise UsageError(f"--form {word!r}: expected NAME=FOLDER")
        if name in (BF16, *MADE, *(form.name for form in forms)):
            raise UsageError(f"--form {word!r}: the name {name} is taken")
        forms.append(Form(name, folder))
    return forms


def made_forms(words: list[str] | None) -> tuple[str, ...]:
    """Names of the forms to make, all by default; "none" is none.

    Raises:
        UsageError: a name is none of ``MADE``.
    """
    if words == ["none"]:
        return ()
    names = tuple(dict.fromkeys(words or MADE))
    for name in names:
        if name not in MADE:
            raise UsageError(f"--make {name!r}: expected {', '.join(MADE)}, or none alone")
    return names


def form_keys(
    names: Sequence[str], model: str, calibration: Calibration, device: str | None
) -> dict[str, dict[str, Any]]:
    """By name, all that decides what a form made of ``model`` holds, for ``check_made``.

    Weights, tokenizer and calibration files count by their content, wherever they lie. Takes as
    long as reading the weights.

    Raises:
        QuantError, ByteboundError: the model, the device or a calibration source is not there.
    """
    from bytebound.names import resolve_model
    from bytebound.settings import check_device
    from bytebound.text.tokenizer import load_tokenizer

    from bytebound_evals.identity import model_digest, tokenizer_digest

    if not names:
        return {}
    where = check_device(device)
    shared = {"source": model_digest(model), "symmetric": True, "group_size": GROUP_SIZE}
    keys: dict[str, dict[str, Any]] = {}
    for name in names:
        keys[name] = {"form": name, **shared}
        if name != "rtn":
            tokenizer = load_tokenizer(resolve_model(model))
            keys[name] |= {
                "tokenizer": None if tokenizer is None else tokenizer_digest(tokenizer),
                "device": where.type,
                "calibration": calibration_key(calibration),
            }
    return keys


def calibration_key(calibration: Calibration) -> dict[str, Any]:
    """What calibration draws from and how, files by their hash.

    Raises:
        QuantError: a source is not understood, or names a file that is not there.
    """
    from bytebound_quant.cli.running import text_sources

    from bytebound_evals.identity import file_digest

    sources: list[dict[str, Any]] = []
    for source in text_sources(calibration.specs):
        file = Path(source.path).expanduser()
        content = file_digest(file) if file.is_file() else source.path
        sources.append({**asdict(source), "path": content})
    return {
        "sources": sources or f"library of Python {platform.python_version()}",
        "samples": calibration.samples,
        "window": calibration.window,
    }


def check_made(folder: Path, key: Mapping[str, Any]) -> bool:
    """Whether ``folder`` holds the finished form of this ``key``.

    Raises:
        UsageError: it holds one that was made from something else, or nobody knows from what.
    """
    name = key["form"]
    target, record = folder / name, _key_file(folder, name)
    if not target.exists():
        return False
    way_out = "remove it to make it again, or name another --out"
    try:
        found = json.loads(record.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        raise UsageError(
            f"{target} is there, but not what it was made from ({record.name}); {way_out}"
        ) from None
    if found == key:
        return True
    other = found if isinstance(found, dict) else {}
    odd = sorted(one for one in {*other, *key} if other.get(one, ...) != key.get(one, ...))
    raise UsageError(f"{target} was made with another {', '.join(odd) or 'record'}; {way_out}")


def make_form(
    key: Mapping[str, Any],
    model: str,
    folder: Path,
    calibration: Calibration,
    device: str | None,
) -> Form:
    """Quantize ``model`` into ``folder / NAME``; a finished folder of the same key is used again.

    The key (``form_keys``) is kept beside it, in ``NAME.json``.

    Raises:
        UsageError: the folder holds a form of another key, or cannot be written.
        QuantError, ByteboundError: the model is not 16 bits, or calibration text is not usable.
    """
    from bytebound.settings import check_device, check_dtype
    from bytebound_quant.calibration import load_calibration
    from bytebound_quant.errors import SourceError
    from bytebound_quant.gptq_job import CalibrationWindows, GptqMethod
    from bytebound_quant.grid import Scheme
    from bytebound_quant.job import Job, Method
    from bytebound_quant.matrices import GptqOptions
    from bytebound_quant.plan import PlanOptions, make_plan
    from bytebound_quant.rtn_job import RtnMethod
    from bytebound_quant.source import open_source

    name = key["form"]
    target = folder / name
    if check_made(folder, key):
        return Form(name, str(target))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Written first: a finished form is never without it, and the job itself refuses to go on
        # with a begun one of other settings.
        _key_file(folder, name).write_text(json.dumps(key, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{folder} cannot be written: {error.strerror or error}") from error
    where = check_device(device)
    source = open_source(model)
    plan = make_plan(source, PlanOptions(Scheme(symmetric=True, group_size=GROUP_SIZE)))
    method: Method
    if name == "rtn":
        method = RtnMethod(source, plan, mse=False, device=where)
    else:
        if source.tokenizer is None:
            raise SourceError(f"{source.folder} holds no tokenizer, which calibration needs")
        drawn = load_calibration(
            calibration_sources(calibration, folder),
            source.tokenizer,
            window=calibration.window,
            samples=calibration.samples,
            seed=0,
            vocab_size=source.config.vocab_size,
        )
        windows = CalibrationWindows(drawn.windows, drawn.summary)
        kind = check_dtype(None, source.config, where)
        options = GptqOptions(mse=True)
        method = GptqMethod(source, plan, windows, options, device=where, dtype=kind)
    Job(source, plan, method, target).run()
    return Form(name, str(target))


def _key_file(folder: Path, name: str) -> Path:
    return folder / f"{name}.json"


def calibration_sources(calibration: Calibration, folder: Path) -> "list[CalibrationSource]":
    """The sources given, else one of the interpreter's own library, written into ``folder``."""
    from bytebound_quant.cli.running import text_sources

    if calibration.specs:
        return text_sources(calibration.specs)
    file = folder / "calibration.txt"
    file.write_text(library_text(), encoding="utf-8")
    return text_sources([str(file)])


def library_text() -> str:
    """Modules of the standard library and the language reference, without held-out passages."""
    from bytebound_quant.heldout import HeldoutDetector

    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    parts = [str(topic) for topic in pydoc_data.topics.topics.values()]
    for file in files:
        if file.stat().st_size <= MAX_SOURCE_BYTES:
            parts.append(file.read_text(encoding="utf-8", errors="replace"))
    unseen = []
    for part in parts:
        detector = HeldoutDetector()
        detector.feed(part)
        if not detector.found:
            unseen.append(part)
    return "\n\n".join(unseen)


def bits_per_weight(model: str) -> float:
    """Stored bits of a weight of the decoder's layers, scales and whatever is kept in 16 bits too.

    Embedding, head and MTP head are left out: what they are stored in is another choice.
    """
    from bytebound.names import resolve_model
    from bytebound_quant.inspection import inspect

    rows = [row for row in inspect(resolve_model(model)).totals() if row["kind"] in DECODER_KINDS]
    return float(8 * sum(row["bytes"] for row in rows) / sum(row["weights"] for row in rows))
