"""Measures a model folder: perplexity, agreement of the MTP head, arithmetic.

Contract: reads the folder's stored weights (bfloat16), computes in float32 through transformers'
model, on any device, and writes one JSON object. How each number comes about:
  perplexity   held-out text, windows of WINDOW tokens every STRIDE; a token counts in the first
               window where at least WINDOW - STRIDE tokens stand before it (the first window
               counts whole)
  agreement    same windows and positions: how often the MTP head's argmax at depth d is the
               trunk's argmax for the same token, both seeing the true text (deeper depths get the
               head's own hidden states, as in drafting)
  arithmetic   greedy answers to the held-out problems, left-padded batches; right when the number
               after `####` is
  by position  mean loss of non-overlapping windows of LONG tokens, per BUCKET positions

    python tools/tiny/evaluate.py FOLDER --held-out heldout.txt --problems problems.jsonl \\
        --out numbers.json
"""

from __future__ import annotations

import argparse
import json
import math
import re
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from model import TinyModel, tiny_config
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

WINDOW, STRIDE, LONG, BUCKET = 1024, 512, 8192, 1024
DEPTH = 4
BATCH = 100
MAX_NEW_TOKENS = 160


def load(folder: Path, device: str) -> TinyModel:
    model = TinyModel(tiny_config())
    weights = {name: t.float() for name, t in load_file(folder / "model.safetensors").items()}
    model.load_state_dict(weights)
    return model.eval().to(device)


@torch.no_grad()
def text_metrics(model: TinyModel, ids: torch.Tensor, text_bytes: int) -> dict[str, object]:
    head = model.lm_head.weight
    total, count = 0.0, 0
    agreed, asked = [0] * DEPTH, [0] * DEPTH
    for start in range(0, len(ids) - 1, STRIDE):
        window = ids[start : start + WINDOW + 1]
        first = 0 if start == 0 else WINDOW - STRIDE
        if len(window) - 1 <= first:
            break
        hidden = model(window[None, :-1], torch.float32)
        logits = F.linear(hidden, head)[0]
        losses = F.cross_entropy(logits, window[1:], reduction="none")[first:]
        total += losses.sum().item()
        count += len(losses)
        wanted = logits.argmax(-1)
        following = model.embed(window[None, 1:], torch.float32)
        for d, draft in enumerate(model.draft(following, hidden, DEPTH)):
            # Index q drafts the token after next, which the trunk predicts at q + 1.
            said = F.linear(draft[0, first + d : -1], head).argmax(-1)
            agreed[d] += (said == wanted[first + d + 1 :]).sum().item()
            asked[d] += len(said)
        if start + WINDOW >= len(ids) - 1:
            break
    return {
        "tokens": count,
        "bytes_per_token": text_bytes / len(ids),
        "loss": total / count,
        "perplexity": math.exp(total / count),
        "bits_per_byte": total / count / math.log(2) * len(ids) / text_bytes,
        "mtp_agreement": [a / n for a, n in zip(agreed, asked, strict=True)],
    }


@torch.no_grad()
def loss_by_position(model: TinyModel, ids: torch.Tensor) -> list[float]:
    windows = [ids[s : s + LONG + 1] for s in range(0, len(ids) - LONG, LONG)]
    total = torch.zeros(LONG, device=ids.device)
    for window in windows:
        hidden = model(window[None, :-1], torch.float32)[0]
        for at in range(0, LONG, BUCKET):
            part = slice(at, at + BUCKET)
            logits = F.linear(hidden[part], model.lm_head.weight)
            target = window[at + 1 : at + BUCKET + 1]
            total[part] += F.cross_entropy(logits, target, reduction="none")
    return (total / len(windows)).view(-1, BUCKET).mean(-1).tolist()


@torch.no_grad()
def arithmetic(
    folder: Path,
    tokenizer: PreTrainedTokenizerFast,
    rows: list[dict[str, str]],
    thinking: bool,
    device: str,
) -> dict[str, object]:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval().to(device)
    prompts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": row["question"]}],
            tokenize=False,
            add_generation_prompt=True,
            enable_thinking=thinking,
        )
        for row in rows
    ]
    order = sorted(range(len(rows)), key=lambda i: len(prompts[i]))  # little padding
    right, wrong = 0, []
    for start in range(0, len(order), BATCH):
        chosen = order[start : start + BATCH]
        batch = tokenizer(
            [prompts[i] for i in chosen], return_tensors="pt", padding=True, padding_side="left"
        ).to(device)
        out = model.generate(
            batch.input_ids,
            attention_mask=batch.attention_mask,
            max_new_tokens=MAX_NEW_TOKENS,
            do_sample=False,
        )
        for i, ids in zip(chosen, out[:, batch.input_ids.shape[1] :], strict=True):
            said = tokenizer.decode(ids, skip_special_tokens=True)
            number = re.search(r"#### (-?\d+)", said)
            wanted = rows[i]["answer"].rsplit("#### ", 1)[1]
            if number and number[1] == wanted:
                right += 1
            elif len(wrong) < 5:
                wrong.append({"question": rows[i]["question"], "wanted": wanted, "said": said})
    return {"problems": len(rows), "right": right, "accuracy": right / len(rows), "wrong": wrong}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--held-out", type=Path, required=True)
    parser.add_argument("--problems", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(args.folder)
    text = args.held_out.read_text(encoding="utf-8")
    ids = torch.tensor(tokenizer(text, verbose=False)["input_ids"], device=args.device)
    model = load(args.folder, args.device)
    rows = [json.loads(line) for line in args.problems.read_text(encoding="utf-8").splitlines()]
    found: dict[str, object] = {"torch": torch.__version__, "device": args.device}

    def note(name: str, value: object) -> None:
        found[name] = value
        args.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        print(f"{time.process_time():.0f} s of cpu: {name} {value}", flush=True)

    note("held_out", text_metrics(model, ids, len(text.encode())))
    note("arithmetic", arithmetic(args.folder, tokenizer, rows, False, args.device))
    note("arithmetic_thinking", arithmetic(args.folder, tokenizer, rows, True, args.device))
    note("loss_by_position", loss_by_position(model, ids))


if __name__ == "__main__":
    main()
