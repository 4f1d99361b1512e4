"""Rivals against a server that speaks as they do: streams, counts, caches, errors."""

import importlib.util
import json
import socket
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from bytebound.cli.errors import UsageError
from bytebound_evals.errors import RivalError
from bytebound_evals.results import read_result
from bytebound_evals.rivals.completions import (
    CHAT,
    COMPLETIONS,
    chat_body,
    completion_body,
    timed_reply,
)
from bytebound_evals.rivals.http import Server
from bytebound_evals.rivals.process import running_server
from bytebound_evals.rivals.prometheus import counters
from bytebound_evals.rivals.runner import Asked, Rival, main

from .fake_rival import FakeRival, serving

ROOT = Path(__file__).parents[2]
FAKE = Path(__file__).with_name("fake_rival.py")


@pytest.fixture
def rival() -> FakeRival:
    return FakeRival()


@pytest.fixture
def url(rival: FakeRival) -> Iterator[str]:
    with serving(rival) as address:
        yield address


def ticking() -> Any:
    """A clock of whole seconds: one goes by between two looks at it."""
    ticks = count()
    return lambda: float(next(ticks))


def chat(url: str, tokens: int = 12) -> Any:
    return timed_reply(Server(url), CHAT, chat_body("a b c", "model", tokens, {}), clock=ticking())


def test_thinking_counts_from_its_first_token_and_pieces_are_no_tokens(
    rival: FakeRival, url: str
) -> None:
    """Four pieces of three tokens, the first two thought; the role came a second earlier.

    Looks at the clock: start 0, role 1, pieces 2 to 5, finish 6, usage 7.
    """
    rival.tokens_per_piece, rival.thinking, rival.continuous = 3, 6, True
    reply = chat(url)
    assert reply.sample.first_token_s == 2.0
    assert reply.sample.decode_s == 3.0
    assert (reply.sample.prompt_tokens, reply.sample.completion_tokens) == (3, 12)
    assert reply.first_tokens_known
    assert reply.sample.first_tokens == 3
    assert reply.sample.tok_s == 3.0  # nine tokens in three seconds
    assert reply.text == "x" * 12
    assert reply.finish_reason == "length"


def test_without_counts_by_piece_the_first_piece_is_one_token(rival: FakeRival, url: str) -> None:
    reply = chat(url)
    assert not reply.first_tokens_known
    assert reply.sample.tok_s == 1.0  # eleven tokens in eleven seconds


def test_a_cached_prompt_is_seen(rival: FakeRival, url: str) -> None:
    rival.cached = 2
    assert chat(url).sample.cached_tokens == 2
    rival.cached, rival.timings = 0, {"cache_n": 3}
    assert chat(url).sample.cached_tokens == 3


def test_guesses_of_llama_cpp_come_with_its_timings(rival: FakeRival, url: str) -> None:
    rival.timings = {"draft_n": 20, "draft_n_accepted": 6}
    sample = chat(url).sample
    assert (sample.drafted, sample.accepted, sample.steps) == (20, 6, 5)
    assert sample.accepted_per_step == pytest.approx(11 / 5)


def test_what_is_sent(rival: FakeRival, url: str) -> None:
    body = completion_body([5, 6, 7], "model", 4, {"cache_prompt": False})
    reply = timed_reply(Server(url), COMPLETIONS, body)
    assert reply.sample.prompt_tokens == 3
    (request,) = rival.requests
    assert request["prompt"] == [5, 6, 7]
    assert request["temperature"] == 0
    assert request["ignore_eos"] is True
    assert request["cache_prompt"] is False
    assert request["stream_options"]["include_usage"] is True


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("status", 400, ["HTTP 400", "no such model"]),
        ("usage", False, ["include_usage"]),
        ("break_off", True, ["ended before [DONE]"]),
        ("error_event", True, ["out of memory"]),
        ("empty", True, ["the reply is empty", "length"]),
        ("tokens_per_piece", 100, ["in one piece"]),
    ],
)
def test_what_a_server_does_wrong(
    rival: FakeRival, url: str, field: str, value: Any, words: list[str]
) -> None:
    setattr(rival, field, value)
    with pytest.raises(RivalError) as caught:
        chat(url)
    for word in (*words, url):
        assert word in str(caught.value)


def test_nobody_listens() -> None:
    with pytest.raises(RivalError, match="refused"):
        Server(f"http://127.0.0.1:{free_port()}").get("/health")
    with pytest.raises(UsageError, match="http://HOST:PORT"):
        Server("localhost:8000")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def load(name: str) -> ModuleType:
    """A runner of bench/baselines."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "bench" / "baselines" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SERVERS = ("llama_cpp", "vllm_server", "sglang_server", "exllamav3_server")
QUICK = ["--model", "some/model", "--depth", "16", "--prompt", "json", "--tokens", "5"]


def run(rival: Rival, *words: object) -> int:
    return main(rival, [*QUICK, *map(str, words)])


@pytest.mark.parametrize("name", SERVERS)
def test_not_installed_is_said_and_no_error(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "result.json"
    rival = load(name).RIVAL
    assert run(rival, "--out", out, "--command", "no-such-program --serve") == 0
    said = capsys.readouterr()
    assert said.out == (
        f"{rival.name}: not measured: no-such-program is not installed here; "
        "give --command or --url\n"
    )
    result = read_result(out)
    assert result.metrics == {}
    assert "no-such-program is not installed" in (result.not_measured or "")
    assert result.command.startswith(f"bench/baselines/{rival.name}.py --model")


@pytest.mark.parametrize("name", SERVERS)
def test_how_it_is_started(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rival = load(name).RIVAL
    words = ["--out", tmp_path / "x", "--dry-run", "--port", 8099, "--extra=--one --two"]
    assert run(rival, *words) == 0
    command = capsys.readouterr().out
    assert "8099" in command
    assert "model" in command
    assert command.endswith("--one --two\n")
    assert not (tmp_path / "x").exists()
    asked = Asked("folder/model", ("prog",), 1, 1024, 3, ())
    if name == "exllamav3_server":
        with pytest.raises(UsageError, match="no MTP draft"):
            rival.command(asked)
    else:
        drafting = " ".join(rival.command(asked))
        assert "3" in drafting.removeprefix(" ".join(rival.command(asked)[:3]))


@pytest.mark.parametrize("name", SERVERS)
def test_a_running_server_is_measured(
    name: str, rival: FakeRival, url: str, tmp_path: Path
) -> None:
    out = tmp_path / "result.json"
    words = ["--url", url, "--out", out, "--tokenizer", "tiny", "--samples", 2, "--commit", "c"]
    assert run(load(name).RIVAL, *words) == 0
    result = read_result(out)
    assert {"plain_16.tok_s", "prompt_16.tok_s", "json.plain.tok_s"} <= result.metrics.keys()
    speed = result.metrics["json.plain.tok_s"]
    assert len(speed.samples) == 2
    assert speed.case["engine"] == name
    assert speed.case["draft"] == "none"
    assert len(rival.requests) == 6  # two prompts, one round to warm up
    ids = [request["prompt"] for request in rival.requests]
    if name == "exllamav3_server":
        assert all(isinstance(prompt, str) for prompt in ids)
        assert "<|im_start|>user\nTurn this order" in ids[1]
    else:
        assert len(ids[0]) == 16
        assert all(isinstance(token, int) for prompt in ids for token in prompt)
    if name == "vllm_server":
        assert result.wheel is not None
        assert result.wheel["vllm_server"] == "1.2.3"


def test_our_ids_are_those_of_our_engine(rival: FakeRival, url: str, tmp_path: Path) -> None:
    from bytebound.names import resolve_model
    from bytebound.text.tokenizer import load_tokenizer
    from bytebound_evals.speed.prompts import prompt_ids, speed_prompts

    words = ["--url", url, "--out", tmp_path / "x.json", "--tokenizer", "tiny", "--samples", 1]
    assert run(load("vllm_server").RIVAL, *words) == 0
    (prompt,) = speed_prompts(["json"])
    assert rival.requests[1]["prompt"] == prompt_ids(prompt, load_tokenizer(resolve_model("tiny")))


def test_counters_give_the_acceptance_of_vllm(rival: FakeRival, url: str, tmp_path: Path) -> None:
    """The fake counts two steps, eight guesses and three that stood for every request."""

    def text(done: int) -> str:
        names = {"drafts": 2, "draft_tokens": 8, "accepted_tokens": 3}
        return "".join(
            f'# HELP x\nvllm:spec_decode_num_{name}_total{{engine="0"}} {value * done}.0\n'
            for name, value in names.items()
        )

    rival.counters = text
    out = tmp_path / "x.json"
    words = ["--url", url, "--out", out, "--bytes", "--samples", 2, "--draft-tokens", 4]
    assert run(load("vllm_server").RIVAL, *words) == 0
    metrics = read_result(out).metrics
    assert metrics["json.mtp4.acceptance"].median == pytest.approx(3 / 8)
    assert metrics["json.mtp4.accepted_per_step"].median == 2.0
    assert "json.mtp4.step_ms" in metrics


def test_counters_of_several_labels_add_up() -> None:
    text = '# TYPE a counter\na{x="1"} 2.0\na{x="2"} 3\nb 1e3\n'
    assert counters(text) == {"a": 5.0, "b": 1000.0}


def test_a_server_that_does_not_take_ids_is_found_out(
    rival: FakeRival, url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rival.extra_prompt_tokens = 1
    out = tmp_path / "x.json"
    assert run(load("vllm_server").RIVAL, "--url", url, "--out", out, "--bytes") == 1
    assert "sent 16 ids, the server counts 17" in capsys.readouterr().err
    assert not out.exists()


def test_cached_runs_stand_apart(rival: FakeRival, url: str, tmp_path: Path) -> None:
    rival.cached = 8
    out = tmp_path / "x.json"
    assert run(load("vllm_server").RIVAL, "--url", url, "--out", out, "--bytes") == 0
    result = read_result(out)
    assert "prompt_16.tok_s" not in result.metrics
    assert "prompt_16.cached.first_token_ms" in result.metrics
    assert "answered from a cache" in (result.note or "")


FAKE_RIVAL = Rival(
    name="fake",
    program=(sys.executable, str(FAKE)),
    command=lambda asked: [*asked.program, "--port", str(asked.port), *asked.extra],
)


def test_a_rival_is_started_measured_and_ended(tmp_path: Path) -> None:
    port = free_port()
    words = ["--out", tmp_path / "x.json", "--bytes", "--port", port, "--samples", 1]
    assert run(FAKE_RIVAL, *words) == 0
    assert "json.plain.tok_s" in read_result(tmp_path / "x.json").metrics
    with pytest.raises(RivalError, match="refused"):
        Server(f"http://127.0.0.1:{port}").get("/health")


def test_a_rival_that_dies_says_its_last_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--out", tmp_path / "x.json", "--bytes", "--port", free_port(), "--extra=--die"]
    assert run(FAKE_RIVAL, *words) == 1
    error = capsys.readouterr().err
    assert "exit code 3" in error
    assert "cannot allocate" in error
    assert not (tmp_path / "x.json").exists()


def test_a_rival_that_is_never_ready(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    server = Server(f"http://127.0.0.1:{free_port()}")
    with (
        pytest.raises(RivalError, match=r"not ready after 0\.5 s"),
        running_server(command, server, "/health", log=tmp_path / "log", ready_s=0.5),
    ):
        raise AssertionError("the block must not begin")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--prompt", "poem"], "poem"),
        (["--depth", "0", "--prompt", "none"], "nothing to measure"),
        (["--url", "ftp://x"], "http://HOST:PORT"),
        (["--url", "http://127.0.0.1:9", "--samples", "0"], "--samples 0"),
        (["--url", "http://127.0.0.1:9", "--tokens", "1"], "--tokens 1"),
        (["--url", "http://127.0.0.1:9", "--tokenizer", "no-such"], "no-such"),
        (["--extra", "'"], "--extra"),
        (["--command", "'"], "--command"),
        (["--log", "/dev/null/log"], "--log /dev/null/log cannot be written"),
        (["--out", "/dev/null/x.json"], "--out /dev/null/x.json cannot be written"),
    ],
)
def test_wrong_use(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["--out", tmp_path / "x.json", "--command", sys.executable, *words]
    assert run(load("vllm_server").RIVAL, *command) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


BENCH = """
import json, sys
words = sys.argv[1:]
value = lambda name: words[words.index(name) + 1]
if "--fail" in words:
    sys.exit("no such model")
prompts = [int(n) for n in value("-p").split(",")]
depths = [int(n) for n in value("-d").split(",")] if "-d" in words else [0]
new = int(value("-n"))
print(json.dumps([
    {"n_prompt": p, "n_gen": new, "n_depth": d, "samples_ts": [100.0 + p, 102.0 + d],
     "build_commit": "abc"} for p in prompts for d in depths]))
"""


def test_llama_bench(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module = load("llama_bench")
    program = tmp_path / "llama-bench.py"
    program.write_text(BENCH)
    out = tmp_path / "bench.json"
    command = f"{sys.executable} {program}"
    words = ["--model", "x.gguf", "--out", str(out), "--command", command, "--depth", "512", "8192"]
    assert module.main(words) == 0
    result = read_result(out)
    assert result.metrics["prompt_512.tok_s"].samples == (612.0, 102.0)
    assert result.metrics["plain_8k.tok_s"].samples == (100.0, 8294.0)
    assert result.metrics["plain_8k.tok_s"].case["new_tokens"] == 128
    assert result.wheel == {"llama.cpp": "abc"}
    assert module.main([*words, "--extra=--fail"]) == 1
    assert "no such model" in capsys.readouterr().err
    assert module.main([*words[:4], "--command", "no-such-bench"]) == 0
    assert read_result(out).not_measured is not None
    for record in ({}, {"n_prompt": 5, "n_gen": 5, "n_depth": 0, "samples_ts": [1]}):
        with pytest.raises(RivalError):
            module.metrics_of([record], "x")


def test_results_of_rivals_can_be_read_by_the_readmes_tool(tmp_path: Path) -> None:
    out = tmp_path / "bench" / "results" / "cpu" / "vllm.json"
    assert run(load("vllm_server").RIVAL, "--out", out, "--command", "no-such-program") == 0
    assert json.loads(out.read_text())["metrics"] == {}
