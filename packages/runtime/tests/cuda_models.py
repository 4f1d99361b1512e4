"""Small models of shapes that the kernels run, and what the tests of the CUDA backend share."""

import json
import random
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from bytebound import Engine, InvalidSettingError
from bytebound.checkpoint import load_checkpoint
from bytebound.config import ModelConfig
from bytebound.cuda.executor import CudaExecutor
from bytebound.cuda.mtp import CudaMtpDraft, MtpHead
from bytebound.cuda.state import GatedDeltaState, SequenceState
from bytebound.drafts import Proposal
from bytebound.names import resolve_model
from bytebound.reference.executor import ReferenceExecutor
from bytebound.shards import SINGLE_FILE
from safetensors.torch import load_file

from .checkpoints import RandomCheckpoint
from .packed import compressed_folder, gptq_folder

# A narrow model with every kind of layer; K of each product is a whole number of groups.
SHAPE: dict[str, Any] = {
    "vocab_size": 360,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 3,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 256,
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
}
# bfloat16 keeps 8 bits: 2^-9 of a value, rounded some ten times a layer over a few layers.
TOLERANCE = 2e-2


# Ways to choose tokens that a request may ask for.
REQUESTS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "greedy, penalties": {
        "repetition_penalty": 1.3, "frequency_penalty": 0.4, "presence_penalty": 0.2,
    },
    "greedy, bias": {"logit_bias": {5: 4.0, 17: 6.5, 40: -100.0, 41: -5.0}, "logprobs": 4},
    "sampled": {"temperature": 1.0, "seed": 3},
    "sampled, cut": {"temperature": 0.7, "top_k": 20, "top_p": 0.8, "min_p": 0.02, "seed": -7},
    "sampled, all": {
        "temperature": 1.5, "top_p": 0.95, "repetition_penalty": 1.2, "frequency_penalty": 0.6,
        "logit_bias": {9: 3.0, 11: -100.0}, "seed": 2**64 - 1, "logprobs": 0, "min_tokens": 30,
        "ignore_eos": False,
    },
}  # fmt: skip


def with_head(module: str) -> bool:
    """Pack what tools pack, and the output head."""
    return module.endswith(("proj", "mtp.fc", "in_proj_qkv", "in_proj_z", "lm_head"))


def symmetric(folder: Path, **more: Any) -> Path:
    return compressed_folder(folder, group_size=128, pack=with_head, **SHAPE, **more).folder


def asymmetric(folder: Path) -> Path:
    return symmetric(folder, symmetric=False, scale_dtype=torch.bfloat16)


def gptq(folder: Path) -> Path:
    return gptq_folder(folder, group_size=128, **SHAPE).folder


def gptq_reordered(folder: Path) -> Path:
    return gptq_folder(folder, group_size=64, shuffled=True, **SHAPE).folder


def partly(folder: Path) -> Path:
    """Fused matrices of which one part is packed and one is not."""
    kept = ("k_proj", "in_proj_z", "up_proj", "o_proj")
    return compressed_folder(
        folder, group_size=128, pack=lambda module: with_head(module) and not module.endswith(kept),
        **SHAPE,
    ).folder  # fmt: skip


FOLDERS = {
    "symmetric": symmetric,
    "asymmetric": asymmetric,
    "gptq": gptq,
    "gptq reordered": gptq_reordered,
    "partly": partly,
}


def tiny_in_4_bits(folder: Path) -> Path:
    """The shipped model as a weight stream takes it: its output head in 4 bits too."""
    source = resolve_model("tiny")
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns(SINGLE_FILE))
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    made = RandomCheckpoint(folder, config, load_file(source / SINGLE_FILE))
    return compressed_folder(folder, group_size=128, pack=with_head, made=made).folder


@dataclass(frozen=True)
class Loader:
    """Loads engines of one kind on a GPU: "graph" or "stream"."""

    engine: str
    tiny: str | Path
    """The shipped model in a form that this kind runs."""

    def __call__(self, model: str | Path | None = None, **settings: Any) -> Engine:
        """Load ``model``, by default ``tiny``; what no stream runs skips the test."""
        given = {"backend": "cuda", "engine": self.engine, "draft": "none", **settings}
        try:
            return Engine.from_pretrained(model or self.tiny, **given)
        except InvalidSettingError as error:
            if str(error).startswith("engine='stream'"):
                pytest.skip(str(error))
            raise


def near_ties(expected: torch.Tensor, chosen: Sequence[int]) -> int:
    """How many of ``chosen`` are not the likeliest by logits ``expected`` [T, vocab].

    Each of those must be within rounding of it: TOLERANCE of its row.
    """
    expected = expected.cpu()
    picked = expected.gather(1, torch.tensor(chosen)[:, None])[:, 0]
    behind = (expected.amax(1) - picked) / expected.square().mean(1).sqrt()
    wrong = (behind > TOLERANCE).nonzero()[:, 0].tolist()
    assert not wrong, wrong
    return int((behind > 0).sum())


def reference(folder: Path, max_len: int, device: str = "cpu") -> ReferenceExecutor:
    """The definition, in float32."""
    config = ModelConfig.from_folder(folder)
    loaded = load_checkpoint(folder, config, dtype=torch.float32, device=torch.device(device))
    return ReferenceExecutor(loaded.weights, config, max_len=max_len)


def some_ids(count: int, seed: int = 1, vocab: int = 350) -> list[int]:
    choose = random.Random(seed)
    return [choose.randrange(vocab) for _ in range(count)]


def relative_error(expected: torch.Tensor, got: torch.Tensor) -> float:
    """Relative root-mean-square error."""
    expected, got = expected.double().cpu(), got.double().cpu()
    assert got.isfinite().all()
    return float((expected - got).square().mean().sqrt() / expected.square().mean().sqrt())


def mtp_draft(executor: CudaExecutor, kv_dtype: torch.dtype | None = None) -> CudaMtpDraft:
    """The checkpoint's head beside its executor."""
    return CudaMtpDraft(
        MtpHead.empty(
            executor.weights,
            executor.config,
            executor.step.workspaces,
            max_len=executor.max_len,
            kv_dtype=kv_dtype or executor.weights.dtype,
        )
    )


def gated_delta_states(state: SequenceState) -> list[GatedDeltaState]:
    """The state of every Gated DeltaNet layer, in order."""
    return [one for one in state.layers if isinstance(one, GatedDeltaState)]


class WrongDraft:
    """Guesses that hardly ever stand."""

    name = "wrong"

    def __init__(self, vocab: int = 350) -> None:
        self.vocab = vocab

    def begin(self, first_id: int) -> None:
        self.choose = random.Random(first_id)

    def observe(self, next_ids: Sequence[int], hidden: torch.Tensor | None) -> None:
        pass

    def propose(self, count: int, sampler: object) -> Proposal:
        return Proposal(tuple(self.choose.randrange(self.vocab) for _ in range(count)))


class KnowingDraft(WrongDraft):
    """Knows the answer, and errs after any number of guesses: every number of rows stands."""

    name = "knowing"

    def __init__(self, ids: Sequence[int]) -> None:
        super().__init__()
        self.ids = ids

    def begin(self, first_id: int) -> None:
        super().begin(first_id)
        self.length = 1

    def observe(self, next_ids: Sequence[int], hidden: torch.Tensor | None) -> None:
        self.length += len(next_ids)

    def propose(self, count: int, sampler: object) -> Proposal:
        right = self.ids[self.length :][: self.choose.randint(0, count)]
        wrong = [self.choose.randrange(self.vocab) for _ in range(count - len(right))]
        return Proposal((*right, *wrong))
