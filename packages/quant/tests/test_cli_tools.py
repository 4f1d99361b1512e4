"""The commands draft-vocab, verify and inspect: output, exit codes, one line for each mistake."""

import json
from pathlib import Path

import pytest
from bytebound.names import resolve_model
from bytebound.text.tokenizer import load_tokenizer
from bytebound_quant.draft_vocab import load_draft_vocab
from safetensors.torch import load_file, save_file

from .conftest import Outcome, Run, runtime_helper
from .test_calibration import HELDOUT, story

VOCAB = 400


def one_line(outcome: Outcome) -> str:
    """Wrong use: exit code 2, nothing on stdout, one line on stderr."""
    assert outcome.code == 2, outcome
    assert outcome.out == ""
    (line,) = outcome.err.splitlines()
    assert line.startswith("bytebound-quant: error: ")
    return line


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    runtime_helper("checkpoints").random_checkpoint(folder, vocab_size=VOCAB)
    runtime_helper("conftest").write_tokenizer(folder)
    (tmp_path / "corpus.txt").write_text(story(200))
    return folder


def test_draft_vocab_beside_the_checkpoint(run: Run, model: Path, tmp_path: Path) -> None:
    corpus = f"text:{tmp_path}/corpus.txt"
    plot = tmp_path / "curve.svg"
    done = run("draft-vocab", model, "--corpus", corpus, "--size", 300, "--plot", plot)
    assert done.code == 0 and done.err == ""
    assert "300 of 400 ids" in done.out and "<- chosen" in done.out
    assert plot.read_text().lstrip().startswith("<?xml")
    ids = load_draft_vocab(
        model / "draft_vocab.safetensors", vocab_size=VOCAB, tokenizer=load_tokenizer(model)
    )
    assert len(ids) == 300
    # It breaks neither the check of the folder nor its inspection.
    assert run("verify", model).code == 0
    assert "300 of 400" in run("inspect", model).out


def test_draft_vocab_as_json(run: Run, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "ids.safetensors"
    done = run(
        "draft-vocab", model, "--corpus", f"text:{tmp_path}/corpus.txt", "--size", 300,
        "-o", out, "--plot", tmp_path / "c.png", "--json",
    )  # fmt: skip
    report = json.loads(done.out)
    assert report["file"] == str(out) and out.is_file()
    assert report["curve"][-1] == {"ids": VOCAB, "coverage": 1.0}
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")
    first = out.read_bytes()
    run("draft-vocab", model, "--corpus", f"text:{tmp_path}/corpus.txt", "--size", 300, "-o", out)
    assert out.read_bytes() == first


def test_draft_vocab_mistakes(run: Run, model: Path, tmp_path: Path) -> None:
    corpus = f"text:{tmp_path}/corpus.txt"
    (tmp_path / "corpus.md").write_text(story(200))
    cases = [
        (["--corpus", "notes.txt", "--size", 300], "not understood"),
        (["--corpus", f"{tmp_path}/corpus.md", "--size", 300], "its ending does not say"),
        (["--corpus", corpus, "--size", 3], "size is 3"),
        (["--corpus", f"text:{HELDOUT}", "--size", 300], "held-out text"),
        (["--corpus", corpus, "--size", 300, "--plot", "x.txt"], ".svg"),
        (["--corpus", corpus, "--size", 300, "-o", tmp_path / "no" / "x"], "cannot be written"),
        (["--corpus", f"{corpus}.gone", "--size", 300], "cannot be read"),
    ]
    for arguments, message in cases:
        assert message in one_line(run("draft-vocab", model, *arguments))
    assert not (model / "draft_vocab.safetensors").exists()


def test_a_corpus_by_its_bare_path(run: Run, model: Path, tmp_path: Path) -> None:
    rows = "".join(json.dumps({"text": line}) + "\n" for line in story(200).splitlines())
    (tmp_path / "corpus.jsonl").write_text(rows)
    for name, kind in (("corpus.txt", "text"), ("corpus.jsonl", "jsonl")):
        files = []
        for prefix in ("", f"{kind}:"):
            files.append(tmp_path / f"{kind}{len(prefix)}.safetensors")
            corpus = f"{prefix}{tmp_path / name}"
            done = run("draft-vocab", model, "--corpus", corpus, "--size", 300, "-o", files[-1])
            assert done.code == 0, done.err
        assert files[0].read_bytes() == files[1].read_bytes()


def test_a_vocabulary_that_does_not_match_the_model(run: Run, tmp_path: Path) -> None:
    model = tmp_path / "narrow"
    runtime_helper("checkpoints").random_checkpoint(model, vocab_size=64)
    runtime_helper("conftest").write_tokenizer(model)
    (tmp_path / "corpus.txt").write_text(story(200))
    done = run("draft-vocab", model, "--corpus", tmp_path / "corpus.txt", "--size", 60)
    assert "expected at most 63 (config.json: vocab_size 64)" in one_line(done)
    assert not list(model.glob("draft_vocab*"))


def test_an_id_beyond_the_vocabulary_that_no_text_holds(
    run: Run, model: Path, tmp_path: Path
) -> None:
    path = model / "tokenizer.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    content["model"]["vocab"]["<never>"] = 5000
    added = content["added_tokens"]
    added.append({**added[-1], "id": 5000, "content": "<never>"})
    path.write_text(json.dumps(content), encoding="utf-8")
    corpus = ("--corpus", tmp_path / "corpus.txt", "--size", 300)
    calib = ("--calib", tmp_path / "corpus.txt", "--samples", 2, "--window", 32)
    small = ("--group-size", 32, "--device", "cpu")
    for arguments in (
        ("draft-vocab", model, *corpus),
        ("rtn", model, tmp_path / "out", *small),
        ("gptq", model, tmp_path / "out", *calib, *small),
    ):
        line = one_line(run(*arguments))
        assert f"{model}: highest id of the tokenizer: got 5000 ('<never>'), " in line
        assert "expected at most 399 (config.json: vocab_size 400)" in line
    assert not list(model.glob("draft_vocab*")) and not list(tmp_path.glob("out*"))


def test_a_draft_vocabulary_of_another_tokenizer(run: Run, model: Path, tmp_path: Path) -> None:
    """E23."""
    corpus = f"text:{tmp_path}/corpus.txt"
    assert run("draft-vocab", model, "--corpus", corpus, "--size", 300).code == 0
    path = model / "tokenizer.json"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("<tool_call>", "<tool_use>"), encoding="utf-8")
    wrong = run("verify", model)
    assert wrong.code == 1
    (line,) = [one for one in wrong.out.splitlines() if one.startswith("wrong: ")]
    assert "draft_vocab.safetensors was made for another tokenizer" in line
    assert len(json.loads(run("verify", model, "--json").out)["problems"]) == 1
    seen = run("inspect", model)
    assert seen.code == 0
    (line,) = [one for one in seen.out.splitlines() if one.startswith("draft ids")]
    assert "not usable: " in line and "was made for another tokenizer" in line
    assert (
        "another tokenizer"
        in json.loads(run("inspect", model, "--json").out)["draft_vocab"]["problem"]
    )


def test_a_shipped_model_needs_a_file_to_write(run: Run, tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").write_text(story(200))
    arguments = ("draft-vocab", "tiny", "--corpus", tmp_path / "corpus.txt", "--size", 2000)
    assert "say with -o/--out which file to write" in one_line(run(*arguments))
    assert not (resolve_model("tiny") / "draft_vocab.safetensors").exists()
    assert run(*arguments, "-o", tmp_path / "ids.safetensors").code == 0
    assert (tmp_path / "ids.safetensors").is_file()


def test_draft_vocab_needs_a_tokenizer(run: Run, plain_folder: Path) -> None:
    done = run("draft-vocab", plain_folder, "--corpus", "text:x", "--size", 300)
    assert "holds no tokenizer" in one_line(done)


def test_verify_exit_codes(run: Run, packed_folder: Path, plain_folder: Path) -> None:
    """E31."""
    sound = run("verify", packed_folder, "--source", plain_folder)
    assert sound.code == 0 and "all sound" in sound.out
    path = packed_folder / "model.safetensors"
    tensors = load_file(path)
    codes = tensors["model.layers.0.linear_attn.in_proj_qkv.weight_packed"]
    codes[: len(codes) // 3] = -0x77777778
    save_file(tensors, path)
    wrong = run("verify", packed_folder)
    assert wrong.code == 1
    assert "wrong: model.layers.0.linear_attn.in_proj_qkv.weight: rows 0-" in wrong.out
    report = json.loads(run("verify", packed_folder, "--json").out)
    assert report["ok"] is False and len(report["problems"]) == 1


@pytest.mark.parametrize("command", ["verify", "inspect"])
def test_folders_that_cannot_be_read(run: Run, tmp_path: Path, command: str) -> None:
    assert "config.json" in one_line(run(command, tmp_path))
    assert "no model folder" in one_line(run(command, tmp_path / "gone"))


def test_inspect(run: Run, packed_folder: Path, plain_folder: Path) -> None:
    done = run("inspect", packed_folder)
    assert done.code == 0 and "int4 pack-quantized g32 sym" in done.out
    assert json.loads(run("inspect", packed_folder, "--json").out)["layout"] == "pack-quantized"
    assert "not quantized" in run("inspect", plain_folder).out


def test_the_shipped_model(run: Run) -> None:
    assert run("verify", "tiny").code == 0
    assert "total" in run("inspect", "tiny").out
