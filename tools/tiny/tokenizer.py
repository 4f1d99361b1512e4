"""Trains the byte-level BPE tokenizer of the model "tiny" and writes its files.

Contract: `tokenizer.py train.jsonl FOLDER` writes tokenizer.json, tokenizer_config.json and
chat_template.jinja that `transformers.AutoTokenizer.from_pretrained(FOLDER)` loads. Exactly
VOCAB_SIZE ids: 256 bytes, merges, then the special tokens of Qwen's family at the end. Digits are
single tokens, so that a small model can calculate.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from pathlib import Path

from problems import problem
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    pre_tokenizers,
    processors,
    trainers,
)

VOCAB_SIZE = 4096
TEMPLATE = Path(__file__).with_name("chat_template.jinja")

# The first group is special (skipped by decode(skip_special_tokens=True)); the second is text a
# parser must see.
SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
VISIBLE = (
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
)

# Contractions | one word with the sign before it | one digit | signs with their line ends | line
# ends | spaces.
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)


def texts(path: Path, limit: int, seed: int = 0) -> Iterator[str]:
    """About `limit` characters of the corpus at random, then the language of the problems."""
    rng = random.Random(seed)
    rows = path.read_text(encoding="utf-8").splitlines()
    rng.shuffle(rows)
    total = 0
    for row in rows:
        document = json.loads(row)
        # Prose is a small part of the corpus and a large part of what people type.
        text = document["text"] if document["kind"] == "prose" else document["text"][:20_000]
        yield text
        total += len(text)
        if total > limit:
            break
    for _ in range(10_000):
        item = problem(rng)
        yield f"{item.question}\n{item.answer}\n{item.reasoning}"


def train(path: Path, limit: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(ignore_merges=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.post_processor = processors.ByteLevel(
        trim_offsets=False, add_prefix_space=False, use_regex=False
    )
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(SPECIAL) - len(VISIBLE),
        min_frequency=2,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(texts(path, limit), trainer)
    tokenizer.add_tokens(
        [AddedToken(token, special=True, normalized=False) for token in SPECIAL]
        + [AddedToken(token, special=False, normalized=False) for token in VISIBLE]
    )
    if tokenizer.get_vocab_size() != VOCAB_SIZE:
        raise RuntimeError(
            f"expected {VOCAB_SIZE} tokens, got {tokenizer.get_vocab_size()}: train on more text"
        )
    return tokenizer


def save(tokenizer: Tokenizer, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    template = TEMPLATE.read_text(encoding="utf-8")
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    added = {
        str(tokenizer.token_to_id(token)): {
            "content": token,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": token in SPECIAL,
        }
        for token in (*SPECIAL, *VISIBLE)
    }
    config = {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": added,
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "unk_token": None,
        "errors": "replace",
        "split_special_tokens": False,
        "model_max_length": 8192,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    (folder / "tokenizer_config.json").write_text(
        json.dumps(config, indent=2) + "\n", encoding="utf-8"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("corpus", type=Path, help="train.jsonl of corpus.py")
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--characters", type=int, default=30_000_000, help="size of the sample the merges come from"
    )
    args = parser.parse_args()
    save(train(args.corpus, args.characters), args.folder)


if __name__ == "__main__":
    main()
