"""Trains the model "tiny" on one GPU, trunk and MTP head together, in a given number of minutes.

Contract: reads the streams of `data.py`, makes the conversations itself, and writes to OUT
    part-K.safetensors   float32 weights in the family's names, each part below 15 MiB
    training.json        settings, throughput, loss curve
`--resume OUT` starts from such parts (weights only; the optimiser starts anew). The schedule
follows the clock: a short warm-up, a constant rate, then linear to zero at `--minutes`. The last
`--long-share` of the time uses rows of `--long` tokens.

    python tools/tiny/train.py --data .data/corpus --tokenizer FOLDER --out OUT --minutes 8.5
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from data import KINDS, Stream, encode_chats, encode_chats_parallel, load_corpus, split_rows
from export import load_parts
from kernels import patch_backward, torch_rule
from leaves import patch_leaves
from model import TinyModel, tiny_config
from muon import optimizers
from safetensors.torch import save_file
from transformers import AutoTokenizer
from transformers.models.qwen3_5 import modeling_qwen3_5 as qwen

Compiler = Callable[[Any], Any]
PART_BYTES = 15 * 2**20
SAVE_SECONDS = 120
LOOKAHEAD = 2  # tokens a row holds beyond its inputs: the next one and the one an MTP step predicts


@dataclass(slots=True)
class Settings:
    minutes: float
    tokens_per_step: int = 65_536
    length: int = 1024
    long: int = 8192
    long_share: float = 0.10  # of the time
    chats: float = 0.22  # shares of the rows
    prose: float = 0.13
    docs: float = 0.35
    code: float = 0.30
    light: float = 0.1  # loss weight of what the assistant does not write
    muon_lr: float = 0.02
    adam_lr: float = 0.003
    warmup: float = 0.01  # of the time
    constant: float = 0.45
    mtp_first: float = 0.4  # weight of depth 1
    mtp_deeper: float = 0.15  # weight of each deeper depth
    mtp_depth: int = 4
    mtp_rows: int = 8  # rows that depths 2 and more see
    mtp_length: int = 1024
    mtp_hard: float = (
        0.2  # of the MTP loss: the true next token; the rest: the trunk's distribution
    )
    chat_count: int = 600_000
    seed: int = 1


def token_loss(
    hidden: torch.Tensor, head: torch.Tensor, target: torch.Tensor, weight: torch.Tensor
) -> torch.Tensor:
    """Weighted mean cross-entropy; hidden: [N, D]."""
    logits = F.linear(hidden, head.to(hidden.dtype)).float()
    loss = F.cross_entropy(logits, target, reduction="none")
    return (loss * weight).sum() / weight.sum()


def draft_loss(
    draft: torch.Tensor,
    teacher: torch.Tensor,
    head: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor,
    hard: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(loss, agreement of the argmax) of drafts [N, D] with the trunk's next hidden states."""
    head = head.to(draft.dtype)
    with torch.no_grad():
        wanted = F.linear(teacher, head).float()
        soft = wanted.softmax(-1)
    logits = F.linear(draft, head).float()
    logp = logits.log_softmax(-1)
    true = -logp.gather(-1, target[..., None])[..., 0]
    loss = hard * true - (1 - hard) * (soft * logp).sum(-1)
    scale = 1 / weight.sum()
    agreement = (logits.argmax(-1) == wanted.argmax(-1)).float()
    return (loss * weight).sum() * scale, (agreement * weight).sum() * scale


def leaf_compiler(wanted: bool) -> Compiler:
    if not wanted:
        return lambda function: function
    # A leaf that cannot be compiled runs as it is; row lengths and batch sizes differ a few ways.
    torch._dynamo.config.suppress_errors = True
    torch._dynamo.config.recompile_limit = 64
    return torch.compile


class Trainer:
    def __init__(
        self,
        settings: Settings,
        streams: dict[str, Stream],
        model: TinyModel,
        device: str,
        compiler: Compiler,
    ):
        self.s = settings
        self.streams = streams
        self.model = model
        self.optimizers = optimizers(model, settings.muon_lr, settings.adam_lr)
        self.base = [[g["lr"] for g in o.param_groups] for o in self.optimizers]
        self.dtype = torch.bfloat16
        self.device = device
        self.token_loss, self.draft_loss = compiler(token_loss), compiler(draft_loss)

    def batch(self, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        count = self.s.tokens_per_step // length
        shares = {kind: getattr(self.s, kind) for kind in ("chats", "prose", "docs", "code")}
        exact = {kind: share * count for kind, share in shares.items()}
        numbers = {kind: int(value) for kind, value in exact.items()}
        # What rounding leaves over goes to random kinds, in proportion to their fractions.
        fractions = torch.tensor([exact[kind] - numbers[kind] for kind in shares]) + 1e-6
        for index in torch.multinomial(
            fractions, count - sum(numbers.values()), replacement=True
        ).tolist():
            numbers[list(shares)[index]] += 1
        rows = [self.streams[kind].rows(n, length + LOOKAHEAD) for kind, n in numbers.items() if n]
        mixed = torch.cat(rows)
        # The deeper MTP depths see the first rows, so the kinds must be mixed.
        return split_rows(mixed[torch.randperm(count, device=mixed.device)], self.s.light)

    def step(self, length: int) -> dict[str, torch.Tensor]:
        s, model = self.s, self.model
        ids, weight = self.batch(length)
        with torch.autocast(self.device, dtype=torch.bfloat16):
            hidden = model(ids[:, :length], self.dtype)
            head = model.lm_head.weight
            target = slice(1, length + 1)
            trunk = self.token_loss(
                hidden.flatten(0, 1), head, ids[:, target].flatten(), weight[:, target].flatten()
            )
            following = model.embed(ids[:, 1 : length + 1], self.dtype)
            drafts = [model.draft_first(following, hidden)]
            rows, span = min(s.mtp_rows, len(ids)), min(s.mtp_length, length)
            deeper = model.draft(
                following[:rows, :span].contiguous(), hidden[:rows, :span].contiguous(), s.mtp_depth
            )
            drafts += deeper[1:]
            total, logs = trunk, {"loss": trunk.detach()}
            for d, draft in enumerate(drafts, start=1):
                # Index q drafts token q+2, which the trunk predicts at q+1; the first d-1 indices
                # mean nothing.
                n, t = draft.shape[:2]
                teacher = hidden[:n, 1:t].detach().flatten(0, 1)
                mask = weight[:n, 2 : t + 1].clone()
                mask[:, : d - 1] = 0
                true = ids[:n, 2 : t + 1].flatten()
                loss, agreement = self.draft_loss(
                    draft[:, : t - 1].flatten(0, 1), teacher, head, true, mask.flatten(), s.mtp_hard
                )
                total = total + (s.mtp_first if d == 1 else s.mtp_deeper) * loss
                logs |= {f"mtp{d}": loss.detach(), f"agree{d}": agreement.detach()}
        total.backward()
        logs["grad"] = torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return logs

    def warm(self) -> None:
        """Compiles both row lengths by one step each at rate zero."""
        self.scale_rates(0.0)
        for length in dict.fromkeys((self.s.length, self.s.long)):
            begun = time.time()
            loss = self.step(length)["loss"].item()
            print(
                f"first step of {length}: loss {loss:.3f}, {time.time() - begun:.1f} s", flush=True
            )

    def check_rule(self) -> None:
        """Compares the fast gated delta rule with transformers' slow one; falls back to it."""
        ids, _ = self.batch(512)
        ids = ids[:8]
        fast, found = qwen.torch_chunk_gated_delta_rule, []
        for rule in (fast, torch_rule()):
            qwen.torch_chunk_gated_delta_rule = rule
            with torch.autocast(self.device, dtype=self.dtype):
                hidden = self.model(ids[:, :512], self.dtype)
                loss = token_loss(
                    hidden.flatten(0, 1),
                    self.model.lm_head.weight,
                    ids[:, 1:513].flatten(),
                    torch.ones_like(ids[:, :512]).flatten(),
                )
            loss.backward()
            found.append(
                {n: p.grad.clone() for n, p in self.model.named_parameters() if p.grad is not None}
            )
            self.model.zero_grad(set_to_none=True)
        errors = {
            n: ((found[0][n] - g).norm() / (g.norm() + 1e-12)).item() for n, g in found[1].items()
        }
        whole = math.sqrt(
            sum((found[0][n] - g).square().sum().item() for n, g in found[1].items())
            / sum(g.square().sum().item() for g in found[1].values())
        )
        worst = sorted(errors.items(), key=lambda item: -item[1])[:8]
        print(f"gradient difference of the fast rule {whole:.4f}, worst {worst}", flush=True)
        matrices = max(e for n, e in errors.items() if "in_proj_qkv" in n or "out_proj" in n)
        if whole < 0.1 and matrices < 0.3:
            qwen.torch_chunk_gated_delta_rule = fast
        else:
            print("the fast rule is off: training with the slow one", flush=True)

    def set_rate(self, progress: float) -> float:
        s = self.s
        rate = min(1.0, (progress + 1e-4) / s.warmup, max(0.0, (1 - progress) / (1 - s.constant)))
        self.scale_rates(rate)
        return rate

    def scale_rates(self, rate: float) -> None:
        for optimizer, base in zip(self.optimizers, self.base, strict=True):
            for group, lr in zip(optimizer.param_groups, base, strict=True):
                group["lr"] = lr * rate


def save_parts(model: TinyModel, out: Path) -> None:
    parts: list[dict[str, torch.Tensor]] = [{}]
    size = 0
    for name, tensor in model.state_dict().items():
        tensor = tensor.detach().float().cpu().contiguous()
        if size + tensor.nbytes > PART_BYTES:
            parts.append({})
            size = 0
        parts[-1][name] = tensor
        size += tensor.nbytes
    for index, part in enumerate(parts):
        save_file(part, out / f"part-{index}.safetensors")


def load_streams(
    args: argparse.Namespace, s: Settings
) -> tuple[dict[str, Stream], Future[np.ndarray]]:
    """The streams, with a few conversations to begin with, and the promise of all of them."""
    end = AutoTokenizer.from_pretrained(args.tokenizer).convert_tokens_to_ids("<|endoftext|>")
    workers = max(1, (os.cpu_count() or 2) // 2)  # the compiler needs the cores meanwhile
    full = ThreadPoolExecutor(1).submit(
        encode_chats_parallel, args.tokenizer, s.seed * 1000, s.chat_count, workers
    )
    with ThreadPoolExecutor() as pool:
        jobs = {kind: pool.submit(load_corpus, args.data / f"{kind}.xz") for kind in KINDS}
        streams = {
            kind: Stream.load(job.result(), end, 0.25, args.device) for kind, job in jobs.items()
        }
    first = encode_chats(args.tokenizer, s.seed * 1000 - 1, min(2000, s.chat_count))
    streams["chats"] = Stream.load(first, end, 1.0, args.device)
    return streams, full


def train(args: argparse.Namespace, s: Settings) -> None:
    begun = time.time()
    torch.manual_seed(s.seed)
    torch.set_float32_matmul_precision("high")
    compiler = leaf_compiler(args.compile)
    patch_leaves(compiler)
    patch_backward(compiler)
    args.out.mkdir(parents=True, exist_ok=True)
    streams, full_chats = load_streams(args, s)
    swapped = False
    counts = {kind: len(stream.tokens) for kind, stream in streams.items()}
    print(f"streams {counts} after {time.time() - begun:.1f} s", flush=True)
    model = TinyModel(tiny_config())
    if args.resume:
        model.load_state_dict(load_parts(args.resume))
    model.to(args.device).train()
    trainer = Trainer(s, streams, model, args.device, compiler)
    if args.device == "cuda":
        trainer.warm()
        trainer.check_rule()
    budget = s.minutes * 60
    started = time.time() - begun
    curve: list[dict[str, float]] = []
    step, mark, mark_step, tokens, saved = 0, time.time(), 0, 0, time.time()
    while (elapsed := time.time() - begun) < budget and step != args.max_steps:
        progress = (elapsed - started) / (budget - started)
        if not swapped and full_chats.done():
            swapped = True
            end_id = streams["chats"].end_id
            streams["chats"] = Stream.load(full_chats.result(), end_id, 1.0, args.device)
            counts["chats"] = len(streams["chats"].tokens)
            print(f"all {counts['chats']:,} tokens of chat after {elapsed:.0f} s", flush=True)
        length = s.long if progress > 1 - s.long_share else s.length
        rate = trainer.set_rate(progress)
        logs = trainer.step(length)
        step += 1
        tokens += s.tokens_per_step
        if step % args.log_every == 0 or step <= 3:
            row = {name: round(value.item(), 4) for name, value in logs.items()}
            now = time.time()
            speed = (step - mark_step) * s.tokens_per_step / (now - mark)
            mark, mark_step = now, step
            curve.append(
                {
                    "step": step,
                    "seconds": round(now - begun, 1),
                    "length": length,
                    "rate": round(rate, 4),
                    **row,
                }
            )
            print(json.dumps(curve[-1] | {"tokens_per_second": round(speed)}), flush=True)
            if now - saved > SAVE_SECONDS:
                save_parts(model, args.out)
                saved = now
            if not math.isfinite(row["loss"]):
                raise RuntimeError("the loss is not finite")
    on_gpu = args.device == "cuda"
    if on_gpu:
        torch.cuda.synchronize()
    save_parts(model, args.out)
    record = {
        "settings": asdict(s), "steps": step, "tokens": tokens,
        "seconds": round(time.time() - begun, 1),
        "stream_tokens": counts, "parameters": sum(p.numel() for p in model.parameters()),
        "torch": torch.__version__, "device": torch.cuda.get_device_name() if on_gpu else "cpu",
        "peak_memory_gib": round(torch.cuda.max_memory_allocated() / 2**30, 1) if on_gpu else None,
        "resumed": bool(args.resume), "curve": curve,
    }  # fmt: skip
    (args.out / "training.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(f"done: {step} steps, {tokens:,} tokens, {time.time() - begun:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--resume", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--max-steps", type=int, default=-1)
    parser.add_argument("--log-every", type=int, default=50)
    parser.add_argument(
        "--set", nargs="*", default=[], metavar="NAME=VALUE", help="override a setting"
    )
    args = parser.parse_args()
    settings = Settings(minutes=args.minutes)
    for item in args.set:
        name, _, value = item.partition("=")
        setattr(settings, name, type(getattr(settings, name))(value))
    train(args, settings)


if __name__ == "__main__":
    main()
