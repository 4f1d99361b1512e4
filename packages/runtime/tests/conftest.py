"""Shared by the runtime's tests: a byte-level tokenizer with a template, engines on a GPU."""

import json
from pathlib import Path

import pytest
from bytebound.text.tokenizer import Tokenizer, load_tokenizer
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from .cuda_models import Loader, tiny_in_4_bits

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>")

WORDS = (
    "the quick brown fox jumps over the lazy dog and says hello to the world, "
    "user assistant system think tool call start end im_start im_end 한국어 안녕 שלום สวัสดี 👍 "
) * 4

SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

TEMPLATE = """
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- for tool in tools %}{{- tool | tojson }}{{- '\\n' }}{%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- set content = message.content | trim %}
    {%- if message.role not in ('system', 'user', 'assistant', 'tool') %}
        {{- raise_exception('Unexpected message role.') }}
    {%- endif %}
    {%- if message.role == 'assistant' and '</think>' in content %}
        {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' + content }}
    {%- for call in message.tool_calls or [] %}
        {{- '<tool_call>' + call.function.name + call.function.arguments | tojson }}
        {{- '</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- else %}
        {{- '<think>\\n' }}
    {%- endif %}
{%- endif %}
"""


def write_tokenizer(folder: Path) -> Path:
    """Train and save: all bytes, a few merges, special tokens, and tags that are not special."""
    backend = Backend(models.BPE())
    backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=340, initial_alphabet=alphabet, show_progress=False, min_frequency=2
    )
    backend.train_from_iterator([WORDS], trainer)
    backend.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    backend.add_tokens([AddedToken(token, normalized=False) for token in TAGS])
    folder.mkdir(parents=True, exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


@pytest.fixture(scope="session", params=["graph", "stream"])
def load(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Loader:
    """Loads engines on a GPU, of either kind."""
    if request.param == "graph":
        return Loader("graph", "tiny")
    return Loader("stream", tiny_in_4_bits(tmp_path_factory.mktemp("tiny") / "model"))


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="session")
def tokenizer(tokenizer_folder: Path) -> Tokenizer:
    loaded = load_tokenizer(tokenizer_folder)
    assert loaded is not None
    return loaded
