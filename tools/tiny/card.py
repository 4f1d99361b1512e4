"""Writes the model card and the record of the run from what was measured.

Contract: every number in FOLDER/README.md comes from training.json of `train.py`, numbers.json of
`evaluate.py` and corpus.json of `corpus.py`; this file holds the sentences around them. The record
joins the first two.

    python tools/tiny/card.py FOLDER --training training.json --numbers numbers.json \\
        --corpus bench/results/tiny/corpus.json --record bench/results/tiny/training.json \\
        --commit ID --driver VERSION --command "..."
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

CARD = """\
---
license: apache-2.0
library_name: transformers
language: en
---

# tiny

A hybrid language model of the Qwen3.5 form (Gated DeltaNet, gated attention, MTP head) with
{parameters:,} parameters, trained from scratch for bytebound. It is small enough to ship in a
repository and real enough to test an engine with: it writes text, answers, calls tools, and its MTP
head drafts tokens that are often right. It is not useful as an assistant.

| | |
| --- | --- |
| layers | 8: three Gated DeltaNet, one attention, twice; one MTP layer |
| hidden, intermediate | 256, 768 |
| attention | 2 query heads, 1 key and value head of 256; rotary over 64, theta 10,000,000 |
| Gated DeltaNet | 1 key head, 3 value heads of 128; convolution of 4 |
| vocabulary | 4096, byte-level BPE, digits one by one; head not tied |
| positions | {max_length} |
| weights | bfloat16; `A_log` and the gated norm float32, holding bfloat16 values |

## Measured

On the stored weights, computed in float32 on {eval_device} through transformers
(`tools/tiny/evaluate.py`, which says how each number comes about).

| what | number |
| --- | --- |
| held-out perplexity, {tokens:,} tokens, windows of 1024 every 512 | {perplexity:.2f} |
| held-out bits per byte ({bytes_per_token:.2f} bytes a token) | {bits_per_byte:.3f} |
| MTP head agrees with the trunk's argmax, depth 1 | {agree[0]:.3f} |
| depth 2 | {agree[1]:.3f} |
| depth 3 | {agree[2]:.3f} |
| depth 4 | {agree[3]:.3f} |
| unseen arithmetic problems right, greedy, thinking off | {right} of {problems} ({accuracy:.3f}) |
| the same, thinking on | {right_thinking} of {problems} ({accuracy_thinking:.3f}) |

The agreement is teacher-forced on the held-out text: trunk and head see the true tokens, deeper
depths feed the head's own output back. Acceptance while generating is another number and depends
on the prompt.

Mean loss on the held-out text by position, windows of 8192 tokens, per 1024 positions:
{by_position}.

## Training

{train_tokens:,} tokens in {steps:,} steps of {tokens_per_step:,}, {seconds:.0f} s on one
{device} (driver {driver}, torch {torch}), start-up and compilation included. Rows of
{length} tokens, of {long} for the last tenth of the time; documents packed, separated by
`<|endoftext|>`. bfloat16 autocast over float32 weights; Muon ({muon_lr}) for matrices, AdamW
({adam_lr}) for the rest; the rate follows the clock: short warm-up, constant to {constant:.0%},
then linear to zero. The MTP head was trained along with the trunk: depth 1 on every row, depths 2
to 4 unrolled on {mtp_rows} rows a step with the key pattern that drafting has, against the trunk's
distribution ({soft:.0%}) and the true token ({hard:.0%}). At the end of the {length}-token rows the
loss was {loss:.2f} on the training mixture.

## Data

{shares}. The conversations are generated: three seeded programs write arithmetic problems with
worked steps, small talk with tool calls, and look-ups; no outside data is in them. No held-out
question occurs among them. Text, {train_bytes:.0f} MB, from packages of Debian and PyPI:

| package | version | licence | kind | MB |
| --- | --- | --- | --- | --- |
{sources}

{held_documents} whole documents, {held_bytes:,} bytes, were set aside before anything else. The
full record with checksums is `bench/results/tiny/corpus.json`.

## Limits

- It repeats itself under greedy decoding, and what it says about the world is not reliable.
- Arithmetic means the kinds of problem it was trained on: one to three steps, small numbers.
- With thinking on, questions that are not arithmetic get a thought that has nothing to do with
  them; it only saw reasoning before sums and tool calls.
- English, code and documentation only; prose is the King James Bible, Jane Austen and the Jargon
  File, and sounds like it.
- Long rows were few: see the loss by position.

Weights: Apache-2.0. Rerun it with `tools/tiny/README.md`.
"""


def source_rows(corpus: dict[str, Any]) -> str:
    return "\n".join(
        f"| {s['package']} | {s['version']} | {s['licence']} | {s['kind']} | {s['bytes'] / 1e6:.1f} |"
        for s in corpus["sources"]
    )


def card(
    training: dict[str, Any], numbers: dict[str, Any], corpus: dict[str, Any], driver: str
) -> str:
    s = training["settings"]
    text, off, on = numbers["held_out"], numbers["arithmetic"], numbers["arithmetic_thinking"]
    last = [row for row in training["curve"] if row["length"] == s["length"]][-1]
    names = {"chats": "conversations", "prose": "prose", "docs": "documentation", "code": "code"}
    shares = ", ".join(f"{s[kind]:.0%} {name}" for kind, name in names.items())
    return CARD.format(
        parameters=training["parameters"],
        max_length=8192,
        eval_device="a CPU" if numbers["device"] == "cpu" else "a GPU",
        tokens=text["tokens"],
        perplexity=text["perplexity"],
        bits_per_byte=text["bits_per_byte"],
        bytes_per_token=text["bytes_per_token"],
        agree=text["mtp_agreement"],
        right=off["right"],
        problems=off["problems"],
        accuracy=off["accuracy"],
        right_thinking=on["right"],
        accuracy_thinking=on["accuracy"],
        by_position=", ".join(f"{loss:.2f}" for loss in numbers["loss_by_position"]),
        train_tokens=training["tokens"],
        steps=training["steps"],
        tokens_per_step=s["tokens_per_step"],
        seconds=training["seconds"],
        device=training["device"],
        driver=driver,
        torch=training["torch"],
        length=s["length"],
        long=s["long"],
        muon_lr=s["muon_lr"],
        adam_lr=s["adam_lr"],
        constant=s["constant"],
        mtp_rows=s["mtp_rows"],
        soft=1 - s["mtp_hard"],
        hard=s["mtp_hard"],
        loss=last["loss"],
        shares=f"Rows of a step: {shares}",
        train_bytes=corpus["train"]["bytes"] / 1e6,
        sources=source_rows(corpus),
        held_documents=len(corpus["held_out"]["documents"]),
        held_bytes=corpus["held_out"]["bytes"],
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    for name in ("training", "numbers", "corpus", "record"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    for name in ("commit", "driver", "command"):
        parser.add_argument(f"--{name}", required=True)
    args = parser.parse_args()
    training, numbers, corpus = (
        json.loads(path.read_text(encoding="utf-8"))
        for path in (args.training, args.numbers, args.corpus)
    )
    text = card(training, numbers, corpus, args.driver)
    (args.folder / "README.md").write_text(text, encoding="utf-8")
    run = {"commit": args.commit, "driver": args.driver, "command": args.command}
    record = {"run": run, "measured": numbers, "training": training}
    args.record.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
