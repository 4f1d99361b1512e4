import os
import signal
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from bytebound import Engine, SamplingParams
from bytebound.errors import ByteboundError
from bytebound_quant import atomic
from bytebound_quant.errors import ResumeError
from bytebound_quant.grid import Scheme
from bytebound_quant.matrices import round_matrix
from bytebound_quant.output import REPORT_FILE
from bytebound_quant.packing import unpack
from bytebound_quant.rtn import rtn
from safetensors.torch import load_file

from .small import CPU, GROUP, JOBS, calibration, checkpoint, contents, read_json, rtn_job

both = pytest.mark.parametrize("symmetric", [True, False], ids=["sym", "asym"])
methods = pytest.mark.parametrize("method", JOBS)


def tensors_of(folder: Path) -> dict[str, torch.Tensor]:
    found = {}
    for path in folder.glob("*.safetensors"):
        found.update(load_file(path))
    return found


@both
@pytest.mark.parametrize("mse", [False, True], ids=["plain", "mse"])
def test_every_tensor_is_rounded_or_unchanged(tmp_path: Path, symmetric: bool, mse: bool) -> None:
    made = checkpoint(tmp_path / "a", nested=True, vision=True, shards=2)
    job = rtn_job(made.folder, tmp_path / "out", mse=mse, symmetric=symmetric)
    job.run()
    stored = tensors_of(tmp_path / "out")
    scheme = Scheme(symmetric=symmetric, group_size=GROUP)
    for one in job.plan.tensors():
        if not one.quantized:
            assert torch.equal(stored.pop(one.name), made.tensors[one.name])
            continue
        base = f"{one.module}."
        packed = {
            name.removeprefix(base): stored.pop(name)
            for name in list(stored)
            if name.startswith(f"{base}weight_")
        }
        expected = rtn(made.tensors[one.name], scheme, mse=mse)
        assert torch.equal(unpack(packed, scheme).dequantize(), expected.dequantize())
    assert not stored


@both
def test_blocks_of_rows_give_the_same_matrix(symmetric: bool) -> None:
    weight = torch.randn(50, 64)
    scheme = Scheme(symmetric=symmetric, group_size=32)
    whole = round_matrix([weight], scheme, mse=True, device=CPU)
    parts = round_matrix(weight.split(16), scheme, mse=True, device=CPU)
    assert whole.packed.keys() == parts.packed.keys()
    for tail, tensor in whole.packed.items():
        assert torch.equal(tensor, parts.packed[tail])
    assert whole.row == pytest.approx(parts.row)


@methods
def test_twice_gives_the_same_bytes(tmp_path: Path, method: str) -> None:
    made = checkpoint(tmp_path / "a")
    for name in ("one", "two"):
        JOBS[method](made.folder, tmp_path / name).run()
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


class Killed(BaseException):
    """Nothing in the package catches this."""


def fails_to_load(folder: Path) -> bool:
    try:
        Engine.from_pretrained(folder)
    except ByteboundError:
        return True
    return False


def die_at(rename: int, *, before: bool) -> Any:
    """A stand-in for ``os.replace`` that kills the run before or after the given call."""
    replace, calls = os.replace, 0

    def replace_or_die(source: Path, target: Path) -> None:
        nonlocal calls
        calls += 1
        if calls == rename and before:
            raise Killed
        replace(source, target)
        if calls == rename:
            raise Killed

    return replace_or_die


@pytest.mark.parametrize(("method", "stride"), [("rtn", 1), ("gptq", 4)], ids=["rtn", "gptq"])
@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_killed_at_a_rename_then_continued(
    tmp_path: Path, method: str, stride: int, before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything appears by a rename: shards, journal entries, the folder, its config."""
    made = checkpoint(tmp_path / "a", num_hidden_layers=1, layer_types=["linear_attention"])
    JOBS[method](made.folder, tmp_path / "whole").run()
    whole = contents(tmp_path / "whole")
    kills = 0
    for rename in range(1, 60, stride):
        out = tmp_path / f"out{rename}"
        with monkeypatch.context() as patch:
            patch.setattr(atomic.os, "replace", die_at(rename, before=before))
            try:
                JOBS[method](made.folder, out).run()
            except Killed:
                kills += 1
            else:
                break  # there are fewer renames than that
        if not (out / "config.json").exists():
            for folder in (out, tmp_path / f"out{rename}.partial"):
                assert not folder.exists() or fails_to_load(folder)
        elif not (out / ".journal.json").exists():
            break
        JOBS[method](made.folder, out).run()
        assert contents(out) == whole
        assert not (tmp_path / f"out{rename}.partial").exists()
    assert kills >= 14 // stride


KILLED_RUN = """
import os, signal, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
sys.path.insert(0, sys.argv[4])
from bytebound_quant import atomic
from small_run import JOBS
replace, left = os.replace, int(sys.argv[3])
def replace_or_die(*paths):
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    replace(*paths)
atomic.os.replace = replace_or_die
JOBS["gptq"](Path(sys.argv[1]), Path(sys.argv[2])).run()
"""


@pytest.mark.parametrize("renames", [5, 12])
def test_sigkill_then_continued(tmp_path: Path, renames: int) -> None:
    """A process of its own: no handler and no ``finally`` runs."""
    made = checkpoint(tmp_path / "a")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        JOBS["gptq"](made.folder, tmp_path / "whole").run()
        helper = tmp_path / "helper"
        helper.mkdir()
        text = (Path(__file__).parent / "small.py").read_text(encoding="utf-8")
        place = repr(str(Path(__file__).resolve()))
        (helper / "small_run.py").write_text(text.replace("__file__", place), encoding="utf-8")
        done = subprocess.run(
            [
                sys.executable,
                "-c",
                KILLED_RUN,
                made.folder,
                tmp_path / "out",
                str(renames),
                helper,
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert fails_to_load(tmp_path / "out.partial")
        assert not (tmp_path / "out").exists()
        JOBS["gptq"](made.folder, tmp_path / "out").run()
    finally:
        torch.set_num_threads(threads)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


@methods
def test_a_damaged_shard_is_made_again(tmp_path: Path, method: str) -> None:
    made = checkpoint(tmp_path / "a")
    JOBS[method](made.folder, tmp_path / "whole").run()
    count = 0

    def stop(done: int, label: str) -> None:
        nonlocal count
        if label == "head":
            raise Killed

    with pytest.raises(Killed):
        JOBS[method](made.folder, tmp_path / "out", tick=stop).run()
    path = next((tmp_path / "out.partial").glob("model-00003*"))
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    JOBS[method](made.folder, tmp_path / "out").run()
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def begun(folder: Path, target: Path, method: str = "rtn", **more: Any) -> None:
    def stop(done: int, label: str) -> None:
        if label == "layer 1":
            raise Killed

    with pytest.raises(Killed):
        JOBS[method](folder, target, tick=stop, **more).run()


def test_another_source_is_refused(tmp_path: Path) -> None:
    made, other = checkpoint(tmp_path / "a"), checkpoint(tmp_path / "b", seed=1)
    begun(made.folder, tmp_path / "out")
    with pytest.raises(ResumeError, match=r"differs in source model\.safetensors"):
        rtn_job(other.folder, tmp_path / "out").run()


def test_other_options_are_refused(tmp_path: Path) -> None:
    made = checkpoint(tmp_path / "a")
    begun(made.folder, tmp_path / "out")
    with pytest.raises(ResumeError, match=r"options mse \(false then, true now\)"):
        rtn_job(made.folder, tmp_path / "out", mse=True).run()
    with pytest.raises(ResumeError, match=r'options method \("rtn" then, "gptq" now\)'):
        JOBS["gptq"](made.folder, tmp_path / "out").run()


def test_other_calibration_is_refused(tmp_path: Path) -> None:
    made = checkpoint(tmp_path / "a")
    begun(made.folder, tmp_path / "out", "gptq")
    with pytest.raises(ResumeError, match="differs in calibration hash"):
        JOBS["gptq"](made.folder, tmp_path / "out", ids=calibration(151, seed=1)).run()


GREEDY = SamplingParams(max_tokens=24, ignore_eos=True)


@methods
@both
def test_drafts_from_the_4_bit_folder_change_no_token(
    tmp_path: Path, method: str, symmetric: bool
) -> None:
    made = checkpoint(tmp_path / "a")
    JOBS[method](made.folder, tmp_path / "out", symmetric=symmetric).run()
    drafting = Engine.from_pretrained(tmp_path / "out", device="cpu", draft="mtp")
    plain = Engine.from_pretrained(tmp_path / "out", device="cpu", draft="none")
    prompt = [3, 1, 4, 1, 5, 9]
    result = drafting.generate(prompt, GREEDY)
    assert result.stats.drafted > 0
    assert result.token_ids == plain.generate(prompt, GREEDY).token_ids


@both
def test_transformers_loads_it_with_the_same_logits(tmp_path: Path, symmetric: bool) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("compressed_tensors")
    made = checkpoint(tmp_path / "a")
    rtn_job(made.folder, tmp_path / "out", symmetric=symmetric).run()
    ids = calibration(151, windows=1)[0]
    ours = Engine.from_pretrained(tmp_path / "out", device="cpu").score(ids.tolist())
    more = {}
    if not symmetric:
        # Packed in memory, transformers expects unpacked zero points; it has to unpack at load.
        more["quantization_config"] = transformers.CompressedTensorsConfig(dequantize=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = transformers.AutoModelForCausalLM.from_pretrained(
            tmp_path / "out", dtype=torch.float32, **more
        )
    with torch.no_grad():
        theirs = model(ids[None]).logits[0]
    # Unpacking at load rounds the weights to the scale's float16.
    assert (ours - theirs).abs().max() < (1e-3 if symmetric else 0.05 * ours.std())


def test_tied_and_kept_heads_load(tmp_path: Path) -> None:
    tied = checkpoint(tmp_path / "tied", tied=True)
    own = checkpoint(tmp_path / "own")
    rtn_job(tied.folder, tmp_path / "one").run()
    rtn_job(own.folder, tmp_path / "two", keep_head=True, mtp_bits=16).run()
    for folder in (tmp_path / "one", tmp_path / "two"):
        engine = Engine.from_pretrained(folder, device="cpu")
        assert engine.generate([1, 2, 3], GREEDY).stats.drafted > 0


def test_the_config_says_everything(tmp_path: Path) -> None:
    made = checkpoint(tmp_path / "a", nested=True)
    rtn_job(made.folder, tmp_path / "out", group=64).run()
    config = read_json(tmp_path / "out" / "config.json")
    block = config.pop("quantization_config")
    assert config == made.config
    assert block["quant_method"] == "compressed-tensors"
    assert block["format"] == "pack-quantized"
    weights = block["config_groups"]["group_0"]["weights"]
    assert (weights["num_bits"], weights["group_size"], weights["symmetric"]) == (4, 64, True)
    assert "model.language_model.layers.0.mlp.down_proj" in block["ignore"]
    ours = block["bytebound"]
    assert (ours["format_version"], ours["method"]) == (1, "rtn")
    named = {one["name"]: one["reason"] for one in ours["exceptions"]}
    assert "multiple" in named["model.language_model.layers.0.mlp.down_proj.weight"]
    assert read_json(tmp_path / "out" / REPORT_FILE)["exceptions"] == ours["exceptions"]
