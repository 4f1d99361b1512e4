"""The diff tool on a CPU: it passes what is right, and names the one op that is made wrong."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bytebound_kernels as bk
import pytest
import torch
from bytebound import Engine, InvalidSettingError
from bytebound.comparison import positions_needed
from bytebound.config import ModelConfig
from bytebound.cuda.diff import DiffReport, run_diff
from bytebound.cuda.executor import CudaExecutor
from bytebound.cuda.pairing import load_pair, load_reference, reference_of
from bytebound.cuda.random_weights import random_weights
from bytebound.loading import find_model
from bytebound.names import random_shape, resolve_model
from bytebound.reference.executor import ReferenceExecutor
from bytebound.reference.taps import AtProducts
from bytebound.taps import FEEDS, PARTS, Place
from bytebound_kernels import prefill as many

from .checkpoints import random_checkpoint, write_json
from .cli_runs import Outcome, Run, run
from .cuda_models import FOLDERS, SHAPE, some_ids
from .emulated_kernels import emulate
from .emulated_models import CPU, cuda_executor

__all__ = ["run"]  # fixture

IDS = some_ids(40)
MAX_LEN = 128
STATES = (None, torch.float8_e4m3fn)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return FOLDERS["partly"](tmp_path_factory.mktemp("diff") / "model")


def pair(
    folder: Path, kv_dtype: torch.dtype | None = None
) -> tuple[ReferenceExecutor, CudaExecutor]:
    config = ModelConfig.from_folder(folder)
    executor = cuda_executor(folder, max_len=MAX_LEN, kv_dtype=kv_dtype)
    dtype = executor.weights.dtype
    return load_reference(folder, config, max_len=MAX_LEN, device=CPU, dtype=dtype), executor


@pytest.fixture
def sound(monkeypatch: pytest.MonkeyPatch, folder: Path) -> tuple[ReferenceExecutor, CudaExecutor]:
    emulate(monkeypatch)
    return pair(folder)


def ops_of(report: DiffReport) -> set[str]:
    return {one.place.op for one in report.differences}


@pytest.mark.parametrize("kv_dtype", STATES, ids=str)
@pytest.mark.parametrize("apart", [True, False])
def test_what_is_right_passes(
    monkeypatch: pytest.MonkeyPatch, folder: Path, kv_dtype: torch.dtype | None, apart: bool
) -> None:
    emulate(monkeypatch)
    reference, executor = pair(folder, kv_dtype)
    report = run_diff(reference, executor, IDS, rows=3, apart=apart)
    assert report.first is None
    assert report.unseen == []
    products = {part for parts in PARTS.values() for part in parts} - {"gate_proj", "up_proj"}
    assert ops_of(report) == products | set(FEEDS.values()) | {"embed_tokens", "residual"}
    runs = list(dict.fromkeys(one.run for one in report.differences))
    assert runs == [
        "prompt at 0, 32 rows", "prompt at 32, 8 rows", "step at 40, 3 rows", "step at 41, 3 rows",
        "step at 43, 3 rows", "prompt at 46, 16 rows",
    ]  # fmt: skip
    assert all(0 <= one.worst_position < positions_needed(40, 3) for one in report.differences)
    # Rounding, and so really two computations.
    assert 1e-4 < max(one.error for one in report.differences if one.place.op == "q_proj") < 1e-1
    assert reference.position == executor.position == 0


def test_apart_errors_do_not_add_up(sound: tuple[ReferenceExecutor, CudaExecutor]) -> None:
    apart, together = (run_diff(*sound, IDS, apart=apart) for apart in (True, False))

    def error(report: DiffReport) -> float:
        return max(one.error for one in report.differences if one.place.op == "lm_head")

    assert 3 * error(apart) < error(together) < 0.1


@pytest.mark.parametrize("kind", ["tiny", "symmetric", "asymmetric", "gptq reordered"])
def test_other_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str) -> None:
    emulate(monkeypatch)
    monkeypatch.setattr("bytebound.cuda.matrices.UNPACK_ROWS", 20)
    folder = resolve_model("tiny") if kind == "tiny" else FOLDERS[kind](tmp_path / "model")
    report = run_diff(*pair(folder), IDS[:28])
    assert report.first is None and report.unseen == []


def test_looking_on_changes_nothing(sound: tuple[ReferenceExecutor, CudaExecutor]) -> None:
    """The taps leave both executors' bits as they are."""
    reference, executor = sound
    expected = [one.prefill(IDS) for one in sound]
    run_diff(reference, executor, IDS)
    assert all(torch.equal(one.prefill(IDS), row) for one, row in zip(sound, expected, strict=True))
    reference.reset()
    seen: list[Place] = []

    def look(place: Place, x: torch.Tensor, multiply: Callable[..., torch.Tensor]) -> torch.Tensor:
        seen.append(place)
        return multiply(x)

    with AtProducts(reference.weights, look):
        assert torch.equal(reference.prefill(IDS), expected[0])
    # The embedding, one layer of attention with 7 matrices, two others with 8, and the head.
    assert len(seen) == len(set(seen)) == 1 + 7 + 2 * 8 + 1


# An op that is made wrong in its third use in a pass of one kind or the other, and what that is.
Change = Callable[[torch.Tensor], None]


def spoil(monkeypatch: pytest.MonkeyPatch, owner: Any, op: str, use: int, change: Change) -> None:
    """Let ``change`` alter the (last) output of one use of an op, as a wrong kernel would."""
    real = getattr(owner, op)
    uses = iter(range(1_000_000))

    def wrong(*args: Any, **options: Any) -> Any:
        out = real(*args, **options)
        if next(uses) == use:
            change(out[-1] if isinstance(out, tuple) else out)
        return out

    monkeypatch.setattr(owner, op, wrong)


def one_row(out: torch.Tensor) -> None:
    """A head of the last row is that of the row before, or twice as large."""
    out[-1, : out.shape[1] // 2] *= 2


# The prompt is one chunk of 32 and one of 8 rows; then come steps of 2 rows. Norms: two a layer and
# the last one, but a step makes a Gated DeltaNet layer's first one with the gates, in one op.
# Layers 0 and 2 are Gated DeltaNet, layer 1 is attention.
FAULTS: dict[str, tuple[Any, str, int, str, str]] = {
    "norm of a prompt": (bk, "rms_norm", 3, "layer 1 post_attention_layernorm", "prompt at 0"),
    "norm of a step": (bk, "rms_norm", 14 + 1, "layer 1 input_layernorm", "step at 40"),
    "last norm": (bk, "rms_norm", 14 + 4, "norm", "step at 40"),
    "gates of a step": (bk, "rms_norm_project", 1, "layer 2 in_proj_a", "step at 40"),
    "attention of a prompt": (many, "attention_prefill", 1, "layer 1 attention", "prompt at 32"),
    "attention of a step": (bk, "attention_decode", 1, "layer 1 attention", "step at 41"),
    "gdn of a prompt": (many, "gdn_prefill", 1, "layer 2 gated_delta_net", "prompt at 0"),
    "gdn of a step": (bk, "gdn_step", 3, "layer 2 gated_delta_net", "step at 41"),
    "embedding": (bk, "embedding_gather", 2, "embed_tokens", "step at 40"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_op_is_the_one_that_is_named(
    monkeypatch: pytest.MonkeyPatch, sound: tuple[ReferenceExecutor, CudaExecutor], fault: str
) -> None:
    owner, op, use, place, where = FAULTS[fault]
    spoil(monkeypatch, owner, op, use, one_row)
    report = run_diff(*sound, IDS, rows=2)
    beyond = [one for one in report.differences if not one.within]
    assert [str(one.place) for one in beyond] == [place]
    assert report.first is beyond[0] and beyond[0].run.startswith(where)
    start, rows = beyond[0].run.removesuffix(" rows").split(" at ")[1].split(", ")
    assert beyond[0].worst_position == int(start) + int(rows) - 1


@pytest.mark.parametrize("method", ["matvec", "matmul"])
@pytest.mark.parametrize(
    ("matrix", "column", "named"),
    [
        ("qkv", 0, "q_proj"), ("qkv", -1, "v_proj"), ("o_proj", 3, "o_proj"),
        ("in_proj", 5, "in_proj_qkv"), ("in_proj", -1, "in_proj_z"), ("gates", 0, "in_proj_a"),
        ("gates", -1, "in_proj_b"), ("out_proj", 9, "out_proj"), ("gate_up", 7, "gate_up"),
        ("down_proj", 100, "down_proj"),
    ],
)  # fmt: skip
def test_a_wrong_product_is_the_one_that_is_named(
    monkeypatch: pytest.MonkeyPatch,
    sound: tuple[ReferenceExecutor, CudaExecutor],
    matrix: str,
    column: int,
    named: str,
    method: str,
) -> None:
    reference, executor = sound
    layer = 1 if matrix in ("qkv", "o_proj") else 2
    record: Any = executor.weights.layers[layer]
    owner = record.mlp if hasattr(record.mlp, matrix) else record.mixer
    real = getattr(owner, matrix)
    # As a step multiplies them.
    method = {
        ("gates", "matvec"): "norm_matvec",
        ("in_proj", "matvec"): "norm_matvec_beside",
    }.get((matrix, method), method)

    class Wrong:
        n, num_bytes = real.n, real.num_bytes
        matvec, matmul = staticmethod(real.matvec), staticmethod(real.matmul)
        norm_matvec = staticmethod(real.norm_matvec)
        norm_matvec_beside = staticmethod(real.norm_matvec_beside)

    def wrong(*args: Any, **options: Any) -> None:
        getattr(real, method)(*args, **options)
        out = args[1] if method in ("matvec", "matmul") else args[3]
        out[0, column] += 3 * float(out[0].abs().max())

    monkeypatch.setattr(Wrong, method, staticmethod(wrong))
    object.__setattr__(owner, matrix, Wrong())
    report = run_diff(reference, executor, IDS, rows=2)
    assert {str(one.place) for one in report.differences if not one.within} == {
        f"layer {layer} {named}"
    }
    assert report.first is not None
    assert report.first.run.startswith("prompt at 0" if method == "matmul" else "step at 40")


@pytest.mark.parametrize(("result", "named"), [("out", "in_proj_qkv"), ("beside_out", "in_proj_a")])
def test_of_two_products_in_one_launch_the_wrong_one_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, result: str, named: str
) -> None:
    emulate(monkeypatch)
    both = pair(FOLDERS["symmetric"](tmp_path / "model"))
    real, uses = bk.w4_matvec, iter(range(1_000_000))

    def wrong(*args: Any, **options: Any) -> Any:
        out = real(*args, **options)
        if options["beside_out"] is not None and next(uses) == 1:
            one_row(options[result])
        return out

    monkeypatch.setattr(bk, "w4_matvec", wrong)
    report = run_diff(*both, IDS, rows=2)
    assert [str(one.place) for one in report.differences if not one.within] == [f"layer 2 {named}"]
    assert report.first is not None and report.first.run.startswith("step at 40")


def test_a_state_that_goes_wrong_is_seen_where_it_is_read(
    monkeypatch: pytest.MonkeyPatch, sound: tuple[ReferenceExecutor, CudaExecutor]
) -> None:
    """E12: replaying one row too many spoils the Gated DeltaNet layers of the next pass alone."""
    real = bk.gdn_step

    def replays_more(*args: Any, num_accepted: torch.Tensor, **options: Any) -> Any:
        more = num_accepted + (int(num_accepted) == 1)
        return real(*args, num_accepted=more, **options)

    monkeypatch.setattr(bk, "gdn_step", replays_more)
    report = run_diff(*sound, IDS, rows=3)
    beyond = [one for one in report.differences if not one.within]
    assert report.first is not None
    assert (str(report.first.place), report.first.run) == (
        "layer 0 gated_delta_net",
        "step at 41, 3 rows",
    )
    assert {one.place.op for one in beyond} == {"gated_delta_net"}


def test_nan_is_a_difference(
    monkeypatch: pytest.MonkeyPatch, sound: tuple[ReferenceExecutor, CudaExecutor]
) -> None:
    spoil(monkeypatch, many, "gdn_prefill", 0, lambda out: out[4, 4].fill_(math.nan))
    first = run_diff(*sound, IDS).first
    assert first is not None and str(first.place) == "layer 0 gated_delta_net"
    assert first.worst_error == math.inf and first.worst_position == 4


def test_random_weights(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A shape without a folder: the reference gets what the packed matrices stand for."""
    emulate(monkeypatch)
    config = ModelConfig.from_folder(random_checkpoint(tmp_path, **SHAPE).folder)
    weights = random_weights(config, dtype=torch.float16, device=CPU)
    reference = reference_of(weights, config, max_len=MAX_LEN)
    executor = CudaExecutor(weights, config, max_len=MAX_LEN)
    report = run_diff(reference, executor, IDS, rows=2)
    assert report.first is None and report.unseen == []


def test_settings_that_cannot_be(sound: tuple[ReferenceExecutor, CudaExecutor]) -> None:
    for rows in (0, 9):
        with pytest.raises(InvalidSettingError, match=rf"rows={rows}: expected 1 to 8"):
            run_diff(*sound, IDS, rows=rows)
    with pytest.raises(InvalidSettingError, match=r"max_len=128: a prompt of 120 ids .* fewer"):
        run_diff(*sound, some_ids(120), rows=8)


WRONG_USE = (
    (("--ids", "1", "--prompt", "x"), "give one or none"),
    (("--ids", "360"), "0 to 359"),
    (("--ids", "1 two"), "'two'"),
    (("--ids", ""), "no id"),
    (("--prompt", "fox"), "--ids"),
    (("--prompt-file", "no such file"), "No such file"),
    (("--rows", 0), "1 to 8"),
    (("--rows", 9), "1 to 8"),
    (("--rows", "two"), "--rows"),
    (("--bound", 0), "above 0"),
    (("--bound", "nan"), "above 0"),
    (("--bound", "inf"), "above 0"),
    (("--backend", "reference"), "expected cuda"),
    (("--kv-dtype", "int4"), "int4"),
    (("--device", "tpu"), "tpu"),
    (("--device", "cpu:5"), "cpu:5"),
    (("--ids", "1 " * 5000), "5026 positions; this model has 4096"),
    (("-m", "no such model"), "no such model"),
    (("-m", "random:nope"), "nope"),
)


@pytest.fixture
def command(run: Run, monkeypatch: pytest.MonkeyPatch, folder: Path) -> Callable[..., Outcome]:
    """``bytebound diff`` on emulated kernels."""
    emulate(monkeypatch)
    monkeypatch.setattr("bytebound.backends.choose_backend", lambda *settings: None)
    monkeypatch.setattr("bytebound.cli.diff._gpu", lambda: CPU)
    return lambda *args: run("diff", "-m", folder, *args)


def test_the_command(
    command: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    outcome = command("--rows", 2)
    assert outcome.code == 0 and outcome.err == ""
    lines = outcome.out.splitlines()
    assert lines[-1].startswith("no op differs by more than rounding, of ")
    assert any(line.startswith("gated_delta_net") and "layer " in line for line in lines)

    outcome = command("--json", "--ids", " ".join(map(str, IDS)), "--rows", 2)
    report = json.loads(outcome.out)
    assert outcome.code == 0 and report["first"] is None and report["prompt_ids"] == IDS
    assert all(one["within"] for one in report["differences"])

    spoil(monkeypatch, bk, "attention_decode", 0, one_row)
    outcome = command("--ids", "5 6 7", "--rows", 1)
    assert outcome.code == 1
    assert outcome.out.splitlines()[-1].startswith("first: layer 1 attention differs by ")
    spoil(monkeypatch, bk, "attention_decode", 0, one_row)
    outcome = command("--ids", "5 6 7", "--rows", 1, "--json", "--kv-dtype", "fp8")
    first = json.loads(outcome.out)["first"]
    assert outcome.code == 1
    assert (first["layer"], first["op"], first["within"]) == (1, "attention", False)
    assert first["pass"] == "step at 3, 1 rows"
    assert command("--ids", "5 6", "--together", "--bound", "1e-7").code == 1


@pytest.mark.parametrize(("args", "word"), WRONG_USE, ids=lambda part: str(part)[:40])
def test_wrong_use_is_said_before_a_gpu_is_needed(
    run: Run, monkeypatch: pytest.MonkeyPatch, folder: Path, args: tuple[object, ...], word: str
) -> None:
    monkeypatch.setattr(bk, "cuda_problem", lambda: pytest.fail("the driver was asked"))
    outcome = run("diff", "-m", folder, *args)
    assert (outcome.code, outcome.out) == (2, "")
    (line,) = outcome.err.splitlines()
    assert line.startswith("bytebound: error: ") and word in line, line


def test_without_a_gpu_it_says_why(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bk, "cuda_problem", lambda: "no driver.")
    outcome = run("diff", "-m", "tiny")
    assert outcome.code == 2 and "no driver" in outcome.err


@pytest.mark.gpu
@pytest.mark.parametrize("kv_dtype", ["auto", "fp8"])
@pytest.mark.parametrize("kind", ["tiny", *FOLDERS])
def test_the_kernels(tmp_path: Path, kind: str, kv_dtype: str) -> None:
    folder = resolve_model("tiny") if kind == "tiny" else FOLDERS[kind](tmp_path / "model")
    config = ModelConfig.from_folder(folder)
    gpu = torch.device("cuda", 0)
    made = load_pair(
        folder, config, max_len=512, kv_dtype=kv_dtype, device=gpu, reference_device=gpu
    )
    for rows in (1, 5, 8):
        report = run_diff(*made, some_ids(300), rows=rows)
        assert report.first is None and report.unseen == [], (rows, report.first)


def layers_of_the_flagship(folder: Path) -> Path:
    """A config.json: the first four layers of the 27B shape, of both kinds, and few ids."""
    whole = random_shape("random:qwen3.5-27b")
    assert whole is not None
    shape = json.loads(whole.read_text(encoding="utf-8"))
    shape |= {"num_hidden_layers": 4, "mtp_num_hidden_layers": 0, "vocab_size": 2048}
    write_json(folder / "config.json", shape)
    return folder / "config.json"


def test_what_stands_for_the_flagship(tmp_path: Path) -> None:
    folder, config = find_model(f"random:{layers_of_the_flagship(tmp_path)}")
    known = find_model("random:qwen3.5-27b")[1]
    assert folder is None and config.layer_types == known.layer_types[:4]
    assert set(config.layer_types) == {"linear_attention", "full_attention"}
    assert (config.hidden_size, config.vocab_size) == (known.hidden_size, 2048)


@pytest.mark.gpu
@pytest.mark.parametrize("kv_dtype", ["auto", "fp8"])
def test_layers_of_the_flagship(tmp_path: Path, kv_dtype: str) -> None:
    """The 27B shape against the reference in float32, op by op, in 4 bits."""
    _, config = find_model(f"random:{layers_of_the_flagship(tmp_path)}")
    gpu = torch.device("cuda", 0)
    made = load_pair(None, config, max_len=512, kv_dtype=kv_dtype, device=gpu, reference_device=gpu)
    for rows in (1, 5, 8):
        report = run_diff(*made, some_ids(300, vocab=2048), rows=rows)
        assert report.first is None and report.unseen == [], (rows, report.first)


@pytest.mark.gpu
def test_a_request_after_a_diff_is_the_same() -> None:
    engine = Engine.from_pretrained("tiny", backend="cuda", draft="none")
    executor = engine.executor
    assert isinstance(executor, CudaExecutor)
    expected = engine.generate(IDS).token_ids
    reference = load_reference(
        resolve_model("tiny"), engine.config, max_len=512, device=torch.device("cuda", 0)
    )
    assert run_diff(reference, executor, IDS, rows=4).first is None
    assert engine.generate(IDS).token_ids == expected
