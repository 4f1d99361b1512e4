import json
import shutil
import threading
import time

import pytest
from bytebound.errors import CheckpointError, InvalidRequestError
from bytebound.text.tokenizer import load_tokenizer
from hypothesis import given
from hypothesis import strategies as st

CONTROL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
)


def test_a_folder_without_tokenizer_files(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    assert load_tokenizer(tmp_path) is None


@pytest.mark.parametrize("content", ["", "{", "[]", '{"version": "1.0"}'])
def test_a_damaged_file_is_an_error(tmp_path, tokenizer_folder, content):
    shutil.copytree(tokenizer_folder, tmp_path, dirs_exist_ok=True)
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        load_tokenizer(tmp_path)


def test_a_config_without_a_vocabulary_is_an_error(tmp_path, tokenizer_folder):
    shutil.copy(tokenizer_folder / "tokenizer_config.json", tmp_path)
    with pytest.raises(CheckpointError):
        load_tokenizer(tmp_path)


def test_a_tokenizer_with_code_of_its_own_is_refused(tmp_path, tokenizer_folder):
    shutil.copytree(tokenizer_folder, tmp_path, dirs_exist_ok=True)
    (tmp_path / "tokenization_own.py").write_text("raise SystemExit('ran')\n")
    config = {"auto_map": {"AutoTokenizer": ["tokenization_own.Own", None]}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError):
        load_tokenizer(tmp_path)


@given(st.text(max_size=60))
def test_plain_text_encodes_as_usual(tokenizer, text):
    usual = tokenizer.hf(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.encode(text) == usual


def test_other_threads_run_while_a_long_text_is_encoded(tokenizer):
    """A server's streams go on while it reads somebody's long prompt."""
    turns, over = [], threading.Event()

    def take_turns():
        while not over.wait(0.001):
            turns.append(time.perf_counter())

    other = threading.Thread(target=take_turns)
    other.start()
    try:
        begun = time.perf_counter()
        assert len(tokenizer.encode("a b " * 200_000)) > 300_000
        ended = time.perf_counter()
    finally:
        over.set()
        other.join()
    assert sum(begun < turn < ended for turn in turns) >= 5


@pytest.mark.parametrize("token", CONTROL)
def test_control_tokens_in_text_stay_text(tokenizer, token):
    for text in (token, f"a{token}b", f" {token}\n{token}"):
        ids = tokenizer.encode(text)
        assert not set(ids) & tokenizer.control_ids
        assert tokenizer.decode(ids) == text
        assert set(tokenizer.encode(text, parse_control=True)) & tokenizer.control_ids


def test_ids_by_kind(tokenizer):
    to_id = tokenizer.hf.convert_tokens_to_ids
    assert tokenizer.control_ids == {to_id(token) for token in CONTROL}
    assert tokenizer.special_ids == {to_id(token) for token in CONTROL[:3]}
    assert tokenizer.eos_ids == {to_id("<|im_end|>")}
    assert tokenizer.vocab_size == max(tokenizer.control_ids) + 1


def test_decode_skips_special_tokens_only(tokenizer):
    ids = tokenizer.encode("<think>x<|im_end|>", parse_control=True)
    assert tokenizer.decode(ids) == "<think>x"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<think>x<|im_end|>"


def test_a_stored_truncation_limit_is_ignored(tmp_path, tokenizer_folder):
    shutil.copytree(tokenizer_folder, tmp_path, dirs_exist_ok=True)
    state = json.loads((tmp_path / "tokenizer.json").read_text())
    state["truncation"] = {
        "direction": "Right",
        "max_length": 2,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(state))
    loaded = load_tokenizer(tmp_path)
    text = "x1y2z3" * 20
    assert loaded.decode(loaded.encode(text)) == text
    assert loaded.decode(loaded.encode(text, parse_control=True)) == text


@pytest.mark.parametrize("text", ["\ud83d", "a\udc00b"])
def test_half_a_surrogate_pair_is_refused(tokenizer, text):
    with pytest.raises(InvalidRequestError, match="surrogate"):
        tokenizer.encode(text)


def test_text_must_be_a_string(tokenizer):
    with pytest.raises(InvalidRequestError, match="expected a string"):
        tokenizer.encode(b"bytes")
