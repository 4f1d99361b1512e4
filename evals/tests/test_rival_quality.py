"""Prompt logprobs of other servers, and llama.cpp's file of logits."""

import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bytebound_evals.errors import DataError, RivalError
from bytebound_evals.results import read_result
from bytebound_evals.rivals.http import Server
from bytebound_evals.rivals.logits_file import open_logits_file
from bytebound_evals.rivals.prompt_logprobs import DIALECTS
from bytebound_evals.rivals.quality import served_perplexity
from bytebound_evals.windows import CutText, Window, WindowRule

from .fake_rival import FakeRival, serving
from .test_rivals import load

IDS = [11, 12, 13]


def vllm(*values: float | None) -> Any:
    rows = [
        None if value is None else {"99": {"logprob": -9.0}, str(token): {"logprob": value}}
        for token, value in zip([*IDS, 14], values, strict=False)
    ]
    return {"choices": [{"text": "x", "prompt_logprobs": rows}]}


def echo(*values: float | None) -> Any:
    return {"choices": [{"text": "abcx", "logprobs": {"token_logprobs": list(values)}}]}


def sglang(*values: float | None) -> Any:
    rows = [[value, token, None] for token, value in zip([*IDS, 14], values, strict=False)]
    return {"text": "x", "meta_info": {"input_token_logprobs": rows}}


FORMS = {"vllm": vllm, "echo": echo, "sglang": sglang}


def score(dialect: str, answer: Any) -> tuple[list[float], dict[str, Any]]:
    rival = FakeRival()
    rival.scores = answer
    with serving(rival) as url:
        found = DIALECTS[dialect](Server(url), "model", IDS)
    return found, rival.requests[0]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_id_but_the_first_has_its_value(dialect: str) -> None:
    values, request = score(dialect, FORMS[dialect](None, -1.5, -0.25))
    assert values == [-1.5, -0.25]
    assert request.get("prompt", request.get("input_ids")) == IDS


def test_the_new_token_of_an_echo_is_left_out() -> None:
    assert score("echo", echo(None, -1.5, -0.25, -7.0))[0] == [-1.5, -0.25]


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(
    ("values", "words"),
    [
        ((None, -1.5), "2 values for 3 ids"),
        ((-2.0, -1.5, -0.25), "first id"),
        ((None, 0.0, 0.0), "every value is 0"),
        ((None, 0.5, -1.0), "value 1 is 0.5"),
        ((None, None, -1.0), "value 1 is None"),
    ],
)
def test_values_that_cannot_be_right(
    dialect: str, values: tuple[float | None, ...], words: str
) -> None:
    with pytest.raises(RivalError, match=words):
        score(dialect, FORMS[dialect](*values))


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_server_that_ignores_the_field(dialect: str) -> None:
    with pytest.raises(RivalError, match="does not score prompts"):
        score(dialect, {"choices": [{"text": "x"}], "meta_info": {}})


def test_values_of_other_ids() -> None:
    answer = sglang(None, -1.0, -1.0)
    answer["meta_info"]["input_token_logprobs"][1][1] = 77
    with pytest.raises(RivalError, match="scored id 77 where 12 was sent"):
        score("sglang", answer)


def test_a_servers_perplexity_is_over_our_windows_and_targets() -> None:
    """Two windows of four ids, two of them scored in the second: the rest is context."""
    windows = (Window(0, (1, 2, 3, 4), 1), Window(0, (3, 4, 5, 6), 2))
    text = CutText("made up", WindowRule(4, 2), windows, 1, 6)
    rival = FakeRival()
    rival.scores = {"choices": [{"logprobs": {"token_logprobs": [None, -1.0, -2.0, -4.0]}}]}
    with serving(rival) as url:
        found = served_perplexity(Server(url), "model", "echo", text)
    assert [request["prompt"] for request in rival.requests] == [[1, 2, 3, 4], [3, 4, 5, 6]]
    assert found.loss == pytest.approx((7 + 6) / 5)
    assert found.ppl == pytest.approx(math.exp(13 / 5))


def test_the_runner_of_quality(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module = load("quality")
    out = tmp_path / "q.json"
    write_logits(tmp_path / "kld")
    words = ["--name", "llama_cpp", "--out", str(out)]
    assert module.main([*words, "--logits-file", str(tmp_path / "kld")]) == 0
    metric = read_result(out).metrics["llama_cpp.ppl"]
    losses = [8 - 0.001 * (1000 * row + token) for row, token in enumerate([4, 0, 0, 1])]
    assert metric.median == pytest.approx(math.exp(sum(losses) / 4), rel=1e-4)
    assert metric.case["scored"] == 4
    assert "second half" in metric.case["rule"]
    assert module.main(words) == 2
    assert "expected --logits-file, or --url" in capsys.readouterr().err
    rival = FakeRival()
    rival.scores = {"choices": [{"text": "x"}]}
    with serving(rival) as url:
        served = [*words, "--url", url, "--tokenizer", "tiny", "--window", "16"]
        assert module.main([*served, "--max-tokens", "32"]) == 1
    assert "does not score prompts" in capsys.readouterr().err


CONTEXT, VOCAB, CHUNKS = 6, 5, 2


def write_logits(path: Path, *, cut: int = 0, magic: bytes = b"_logits_") -> None:
    """Two chunks of six ids; rows for positions 3 and 4."""
    tokens = [i % VOCAB for i in range(CONTEXT * CHUNKS)]
    content = magic + struct.pack("<3i", CONTEXT, VOCAB, CHUNKS)
    content += struct.pack(f"<{len(tokens)}i", *tokens)
    for row in range(2 * CHUNKS):
        values = [1000 * row + i for i in range(VOCAB)] + [0]
        content += struct.pack("<2f", 0.001, -8.0) + struct.pack(f"<{VOCAB + 1}H", *values)
    path.write_bytes(content[: len(content) - cut])


def test_a_logits_file(tmp_path: Path) -> None:
    write_logits(tmp_path / "kld")
    found = open_logits_file(tmp_path / "kld")
    assert (found.context, found.vocab_size, found.rows_per_chunk) == (6, 5, 2)
    assert found.tokens.tolist() == [[0, 1, 2, 3, 4, 0], [1, 2, 3, 4, 0, 1]]
    rows = list(found.rows())
    assert [(chunk, position) for chunk, position, _ in rows] == [(0, 3), (0, 4), (1, 3), (1, 4)]
    np.testing.assert_allclose(rows[2][2], -8.0 + 0.001 * (2000 + np.arange(5)), rtol=1e-6)
    # The ids after positions 3 and 4 are 4 and 0, then 0 and 1.
    expected = [-8 + 0.001 * (1000 * row + token) for row, token in enumerate([4, 0, 0, 1])]
    assert list(found.target_logprobs()) == pytest.approx(expected, rel=1e-5)


def test_a_logits_file_that_is_damaged(tmp_path: Path) -> None:
    file = tmp_path / "kld"
    for cut in (2, 40, 90):
        write_logits(file, cut=cut)
        with pytest.raises(DataError, match="cut short"):
            open_logits_file(file)
    write_logits(file, magic=b"_other__")
    with pytest.raises(DataError, match="expected a file of llama-perplexity"):
        open_logits_file(file)
    file.write_bytes(b"_lo")
    with pytest.raises(DataError, match="expected a file of llama-perplexity"):
        open_logits_file(file)
    with pytest.raises(DataError, match="No such file"):
        open_logits_file(tmp_path / "none")
