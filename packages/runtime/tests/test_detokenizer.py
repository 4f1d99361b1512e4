from itertools import pairwise

import pytest
from bytebound.text.detokenizer import Detokenizer
from bytebound.text.tokenizer import Tokenizer
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

TEXTS = {
    "plain": "hello world, the quick brown fox",
    "emoji-joiners": "family 👨‍👩‍👧‍👦 and 👩🏽‍🚀!",
    "flags": "🇰🇷🇮🇱🇹🇭🏴󠁧󠁢󠁳󠁣󠁴󠁿",
    "korean": "안녕하세요, 한국어 음절이 깨지지 않습니다.",
    "hebrew": "שָׁלוֹם עוֹלָם",
    "thai": "สวัสดีชาวโลก ผู้ใหญ่",
    "astral": "𝕳𝖊𝖑𝖑𝖔 𐍈 𠜎",
}


def pieces(detokenizer, ids, size=1):
    deltas = [detokenizer.push(ids[i : i + size]) for i in range(0, len(ids), size)]
    return [*deltas, detokenizer.flush()]


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
def test_joined_deltas_are_the_text(tokenizer, text, size):
    ids = tokenizer.encode(text)
    deltas = pieces(Detokenizer(tokenizer), ids, size)
    assert "".join(deltas) == tokenizer.decode(ids)
    assert not any("\ufffd" in delta for delta in deltas)
    assert deltas[-1] == ""


@given(data=st.data())
def test_any_ids_in_any_steps(tokenizer, data):
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 5), max_size=40))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=8)))
    edges = [0, *cuts, len(ids)]
    detokenizer = Detokenizer(tokenizer)
    deltas = [detokenizer.push(ids[low:high]) for low, high in pairwise(edges)]
    assert "".join(deltas) + detokenizer.flush() == tokenizer.decode(ids)


@given(st.lists(st.integers(0, 255), max_size=24))
def test_any_bytes(tokenizer, values):
    alphabet = {tokenizer.token_bytes(i): i for i in range(tokenizer.vocab_size)}
    ids = [alphabet[bytes([value])] for value in values]
    joined = "".join(pieces(Detokenizer(tokenizer), ids))
    assert joined == tokenizer.decode(ids) == bytes(values).decode("utf-8", errors="replace")


@given(st.text(max_size=40))
def test_any_text(tokenizer, text):
    ids = tokenizer.encode(text)
    assert "".join(pieces(Detokenizer(tokenizer), ids)) == tokenizer.decode(ids)


def byte_ids(tokenizer, data):
    alphabet = {tokenizer.token_bytes(i): i for i in range(tokenizer.vocab_size)}
    return [alphabet[bytes([value])] for value in data]


def test_invalid_bytes_do_not_stall(tokenizer):
    detokenizer = Detokenizer(tokenizer)
    deltas = [detokenizer.push([i]) for i in byte_ids(tokenizer, b"\xff\xff\xff\xffa")]
    assert deltas == ["\ufffd"] * 4 + ["a"]


def test_an_unfinished_character_is_held_then_given_up(tokenizer):
    detokenizer = Detokenizer(tokenizer)
    deltas = [detokenizer.push([i]) for i in byte_ids(tokenizer, "👍".encode()[:3] + b"ok")]
    assert deltas == ["", "", "", "\ufffdo", "k"]


def test_a_stream_that_ends_mid_character_flushes_once(tokenizer):
    detokenizer = Detokenizer(tokenizer)
    deltas = [detokenizer.push([i]) for i in byte_ids(tokenizer, b"a" + "한".encode()[:2])]
    assert deltas == ["a", "", ""]
    assert detokenizer.flush() == "\ufffd"
    assert detokenizer.flush() == ""


def test_special_tokens_give_no_text_and_do_not_cut_characters(tokenizer):
    first, *rest = byte_ids(tokenizer, "é".encode())
    end = tokenizer.hf.convert_tokens_to_ids("<|im_end|>")
    ids = [first, end, *rest, end]
    assert "".join(pieces(Detokenizer(tokenizer), ids)) == tokenizer.decode(ids) == "é"


def test_tags_are_text(tokenizer):
    ids = tokenizer.encode("<think>a</think>", parse_control=True)
    assert "".join(pieces(Detokenizer(tokenizer), ids)) == "<think>a</think>"


@pytest.fixture(scope="module")
def pieced():
    """A vocabulary of SentencePiece's kind: a visible blank, bytes as fallback."""
    words = [
        "<unk>",
        "▁",
        "▁hello",
        "▁world",
        "!",
        "lo",
        "a",
        *(f"<0x{i:02X}>" for i in range(256)),
    ]
    backend = Backend(
        models.BPE(
            vocab={word: i for i, word in enumerate(words)},
            merges=[],
            unk_token="<unk>",
            byte_fallback=True,
        )
    )
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return Tokenizer(PreTrainedTokenizerFast(tokenizer_object=backend))


FALLBACK = 7


@pytest.mark.parametrize("size", [1, 2, 4])
def test_pieces_with_visible_blanks(pieced, size):
    assert not pieced.byte_level
    emoji = [FALLBACK + byte for byte in "👍한é".encode()]
    ids = [2, 3, 4, *emoji, 3, 1, 6, 2]
    deltas = pieces(Detokenizer(pieced), ids, size)
    assert "".join(deltas) == pieced.decode(ids)
    assert not any("\ufffd" in delta for delta in deltas)


@given(st.lists(st.integers(1, 6), max_size=20))
def test_any_pieces(pieced, ids):
    assert "".join(pieces(Detokenizer(pieced), ids)) == pieced.decode(ids)


def test_invalid_fallback_bytes_do_not_stall(pieced):
    detokenizer = Detokenizer(pieced)
    deltas = [detokenizer.push([FALLBACK + 0xFF]) for _ in range(8)]
    assert "".join(deltas) == "\ufffd" * 8
