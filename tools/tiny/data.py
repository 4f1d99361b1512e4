"""Token streams: from train.jsonl to compressed streams, and from streams to training rows.

Contract: a stream is a flat uint16 array; bits 0-11 are the token id, bit 15 says that the token
counts fully in the loss (all text; in chats only what the assistant writes). Every document ends in
<|endoftext|>. A `Stream` on the device yields rows of any length without copies on the CPU.

    python tools/tiny/data.py WORK/train.jsonl TOKENIZER_FOLDER OUT_FOLDER
"""

from __future__ import annotations

import argparse
import json
import lzma
import multiprocessing
import os
import random
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from chats import chat
from problems import conversation, held_out, problem
from transformers import AutoTokenizer, PreTrainedTokenizerFast

ID_MASK = 0x0FFF
FULL = 0x8000
KINDS = ("prose", "docs", "code")
CHAT_SHARE = 0.12  # of the conversations; the rest are word problems


def encode_corpus(corpus: Path, tokenizer: PreTrainedTokenizerFast, out: Path) -> dict[str, int]:
    """Writes OUT/<kind>.xz: 12 bits a token, xz over it."""
    texts: dict[str, list[str]] = {kind: [] for kind in KINDS}
    with corpus.open(encoding="utf-8") as rows:
        for row in rows:
            document = json.loads(row)
            texts[document["kind"]].append(document["text"])
    end = tokenizer.convert_tokens_to_ids("<|endoftext|>")
    counts = {}
    out.mkdir(parents=True, exist_ok=True)
    for kind, documents in texts.items():
        parts = []
        for start in range(0, len(documents), 256):
            for ids in tokenizer(documents[start : start + 256], verbose=False)["input_ids"]:
                parts.append(np.array([*ids, end], dtype=np.uint16))
        stream = np.concatenate(parts)
        counts[kind] = len(stream)
        (out / f"{kind}.xz").write_bytes(lzma.compress(stream.tobytes(), preset=2))
    return counts


def load_corpus(path: Path) -> np.ndarray:
    """A stream as `encode_corpus` wrote it, with every token marked as full."""
    return np.frombuffer(lzma.decompress(path.read_bytes()), dtype=np.uint16) | FULL


def mark_assistant(ids: np.ndarray, tokenizer: PreTrainedTokenizerFast) -> np.ndarray:
    """Sets FULL on what an assistant turn writes, its <|im_end|> included."""
    start, end = tokenizer.convert_tokens_to_ids(["<|im_start|>", "<|im_end|>"])
    first = tokenizer("assistant\n")["input_ids"][0]
    opens = (ids[:-1] == start) & (ids[1:] == first)
    depth = np.zeros(len(ids), dtype=np.int8)
    turn = np.cumsum(ids == start)  # which turn a token belongs to
    is_assistant = np.zeros(turn[-1] + 1, dtype=bool)
    is_assistant[turn[:-1][opens]] = True
    depth[is_assistant[turn]] = 1
    closed = np.concatenate([[0], np.cumsum(ids == end)[:-1]]) >= turn  # past the turn's end
    return np.where((depth == 1) & ~closed, ids | FULL, ids).astype(np.uint16)


def encode_chats(folder: Path, seed: int, count: int) -> np.ndarray:
    """`count` conversations from one seed, as a stream; held-out questions are skipped."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    rng = random.Random(seed)
    forbidden = {item.question for item in held_out()}
    texts = []
    while len(texts) < count:
        tools = None
        if rng.random() < CHAT_SHARE:
            messages, tools = chat(rng)
        else:
            item = problem(rng)
            if item.question in forbidden:
                continue
            messages = conversation(item, thinking=rng.random() < 0.4)
        text = tokenizer.apply_chat_template(messages, tools=tools, tokenize=False)
        texts.append(text + "<|endoftext|>")
    parts = [np.array(ids, dtype=np.uint16) for ids in tokenizer(texts)["input_ids"]]
    return mark_assistant(np.concatenate(parts), tokenizer)


def _be_nice() -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallelism
    os.nice(19)


def encode_chats_parallel(folder: Path, seed: int, count: int, workers: int) -> np.ndarray:
    share = count // workers
    # Spawned, not forked: the parent may hold the GPU and threads.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_be_nice) as pool:
        jobs = [pool.submit(encode_chats, folder, seed + i, share) for i in range(workers)]
        return np.concatenate([job.result() for job in jobs])


@dataclass(slots=True)
class Stream:
    """One kind of text on the training device."""

    tokens: torch.Tensor  # int16 bits, [N]
    starts: torch.Tensor  # int64, first token of each document
    from_start: float  # share of rows that begin at a document's first token
    end_id: int

    @classmethod
    def load(cls, stream: np.ndarray, end_id: int, from_start: float, device: str) -> Stream:
        starts = np.concatenate([[0], np.flatnonzero((stream & ID_MASK) == end_id)[:-1] + 1])
        return cls(
            torch.from_numpy(stream.view(np.int16).copy()).to(device),
            torch.from_numpy(starts).to(device),
            from_start,
            end_id,
        )

    def rows(self, count: int, length: int) -> torch.Tensor:
        """[count, length] raw stream entries, from random places."""
        device = self.tokens.device
        at = torch.randint(len(self.tokens) - length, (count,), device=device)
        begin = self.starts[torch.randint(len(self.starts), (count,), device=device)]
        begin = begin.clamp(max=len(self.tokens) - length)
        at = torch.where(torch.rand(count, device=device) < self.from_start, begin, at)
        return self.tokens[at[:, None] + torch.arange(length, device=device)].to(torch.int64)


def split_rows(rows: torch.Tensor, light: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Raw entries -> (ids int64, loss weight float32: 1 where FULL, `light` elsewhere)."""
    full = (rows & FULL) != 0
    return rows & ID_MASK, torch.where(full, 1.0, light)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("corpus", type=Path)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(args.tokenizer)
    print(json.dumps(encode_corpus(args.corpus, tokenizer, args.out)))


if __name__ == "__main__":
    main()
