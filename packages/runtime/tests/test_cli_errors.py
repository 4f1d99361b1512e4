"""Wrong use of the commands: exit code 2, one line on stderr, nothing on stdout or on disk."""

import shutil
from pathlib import Path

import pytest
from bytebound.cli.errors import one_line

from .checkpoints import SINGLE_FILE, write_json
from .cli_runs import Folders, Outcome, Run, folders, run

__all__ = ["folders", "run"]  # fixtures


def refused(outcome: Outcome, *words: str) -> None:
    assert outcome.code == 2
    assert outcome.out == ""
    (line,) = outcome.err.splitlines()
    assert line.startswith("bytebound: error: ")
    for word in words:
        assert word in line


WRONG_OPTIONS = {
    "nan": (["--temperature", "nan"], ["temperature", "nan"]),
    "infinite": (["--temperature", "inf"], ["temperature", "inf"]),
    "negative count": (["--max-tokens", "-3"], ["max_tokens", "-3"]),
    "negative top-k": (["--top-k", "-1"], ["top_k"]),
    "zero top-p": (["--top-p", "0"], ["top_p"]),
    "negative logprobs": (["--logprobs", "-1"], ["logprobs"]),
    "too many logprobs": (["--logprobs", "401"], ["logprobs", "400"]),
    "empty stop": (["--stop", ""], ["stop"]),
    "draft": (["--draft", "ngrm"], ["ngrm", "did you mean 'ngram'"]),
    "draft count": (["--num-draft-tokens", "9"], ["num_draft_tokens", "1 to 8"]),
    "backend": (["--backend", "referense"], ["reference"]),
    "cuda backend": (["--backend", "cuda"], ["reference"]),
    "device": (["--device", "tpu"], ["tpu", "cpu"]),
    "dtype": (["--dtype", "float8"], ["float8", "bfloat16"]),
    "kv dtype": (["--kv-dtype", "int4"], ["kv_dtype", "int4", "auto"]),
    "draft vocabulary": (["--draft-vocab", "nope"], ["draft_vocab", "nope", "bytebound-quant"]),
    "adaptive depth": (["--adaptive-depth"], ["adaptive_depth", "cuda", "reference"]),
    "max_len": (["--max-len", "0"], ["--max-len", "0"]),
    "beyond the model": (["--max-len", "5000"], ["5000", "4096"]),
    "default beyond the model": (["--max-len", "8192"], ["8192", "4096"]),
    "no number": (["--max-tokens", "many"], ["--max-tokens", "bytebound generate --help"]),
    "unknown option": (["--prmpt", "x"], ["--prmpt", "--prompt"]),
    "stray word": (["word"], ["word"]),
    "two prompts": (["--ids", "1"], ["--prompt and --ids", "exactly one"]),
    "system without chat": (["--system", "x"], ["--system", "--chat"]),
    "thinking without chat": (["--no-thinking"], ["--thinking/--no-thinking", "--chat"]),
}


@pytest.mark.parametrize(("args", "words"), WRONG_OPTIONS.values(), ids=WRONG_OPTIONS)
def test_wrong_options(run: Run, folders: Folders, args: list[str], words: list[str]) -> None:
    refused(run("generate", "-m", folders.text, "-p", "fox", *args), *words)


def test_prompts_that_cannot_be(run: Run, folders: Folders, tmp_path: Path) -> None:
    def refuse(*args: object, words: list[str]) -> None:
        refused(run("generate", "-m", folders.text, *args), *words)

    latin = tmp_path / "latin.txt"
    latin.write_bytes("prêt".encode("latin-1"))
    refuse(words=["--prompt", "exactly one"])
    refuse("-p", "", words=["empty"])
    refuse("-p", "a\udcff", words=["--prompt is not UTF-8", "byte 1 is 0xff"])
    refuse("-p", "fox " * 5000, words=["4096", "max_len"])
    refuse("-p", "fox " * 50, "--max-len", 20, words=["20"])
    refuse("--ids", "1 two", words=["'two'"])
    refuse("--ids", "400", words=["400", "399"])
    refuse("--ids", "-1", words=["-1"])
    refuse("--ids", "9" * 5000, words=["--ids"])
    refuse("--ids", "1", "--chat", words=["--chat"])
    refuse("--prompt-file", tmp_path / "none.txt", words=["none.txt", "No such file"])
    refuse("--prompt-file", tmp_path, words=["directory"])
    refuse("--prompt-file", latin, words=["latin.txt", "UTF-8", "byte 2"])


def test_what_the_folder_does_not_have(run: Run, folders: Folders) -> None:
    refused(run("generate", "-m", folders.bare, "-p", "fox"), "tokenizer")
    refused(run("generate", "-m", folders.bare, "--ids", "1", "--stop", "x"), "tokenizer")
    refused(run("generate", "-m", folders.no_mtp, "-p", "x", "--draft", "mtp"), "no MTP head")
    refused(run("chat", "-m", folders.bare), "tokenizer")


def test_folders_that_are_no_model(run: Run, folders: Folders, tmp_path: Path) -> None:
    truncated = tmp_path / "truncated"
    shutil.copytree(folders.text, truncated)
    with (truncated / SINGLE_FILE).open("r+b") as file:
        file.truncate(50_000)
    half = tmp_path / "half"
    half.mkdir()
    shutil.copy(folders.text / "config.json", half)
    empty = tmp_path / "empty"
    empty.mkdir()
    other = tmp_path / "other"
    other.mkdir()
    write_json(other / "config.json", {"model_type": "llama"})
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "config.json").write_text('{"model_type": ')

    for folder, word in (
        (truncated, "truncated"),
        (half, "no weights"),
        (empty, "empty"),
        (other, "llama"),
        (broken, "JSON"),
        (tmp_path / "missing", "no model folder"),
        (truncated / SINGLE_FILE, "is a file"),
        ("tinny", "did you mean"),
        ("", "model folder"),
    ):
        for command in (("generate", "-p", "fox"), ("chat",)):
            refused(run(*command, "-m", folder), word)
    for folder, word in ((empty, "empty"), (other, "llama"), (broken, "JSON")):
        refused(run("info", "-m", folder), word)


def test_a_path_with_a_line_end_stays_on_one_line(run: Run, tmp_path: Path) -> None:
    refused(run("generate", "-m", tmp_path / "two\nlines\x1b[31m", "-p", "fox"), r"two\nlines\x1b")
    assert one_line("a\tb\u2028c\r") == "a\\tb\\u2028c\\r"


def test_wrong_use_of_info(run: Run, folders: Folders) -> None:
    for args, word in (
        (("--bits", "0"), "--bits"),
        (("--bits", "nan"), "--bits"),
        (("--read-gb-s", "-5"), "--read-gb-s"),
        (("--read-gb-s", "nan"), "--read-gb-s"),
        (("--context", "-1"), "--context"),
        (("--max-len", "1000000"), "4096"),
        (("--dtype", "int4"), "int4"),
    ):
        refused(run("info", "-m", folders.text, *args), word)


def test_wrong_commands(run: Run) -> None:
    refused(run("generat"), "generat", "bytebound --help")
    refused(run("serve"), "serve")
    refused(run("generate"), "--model")
    refused(run("--verson"), "--verson")


def test_a_bare_command_shows_the_help(run: Run) -> None:
    outcome = run()
    assert (outcome.code, outcome.out) == (2, "")
    for command in ("generate", "chat", "info", "diff"):
        assert command in outcome.err
    refused(run("--"), "command", "bytebound --help")


@pytest.mark.parametrize("command", ["generate", "chat", "info", "diff"])
def test_help_and_version(run: Run, command: str) -> None:
    outcome = run(command, "--help")
    assert outcome.code == 0
    assert "--json" in outcome.out
    from bytebound import __version__

    assert run("--version").out == f"bytebound {__version__}\n"
