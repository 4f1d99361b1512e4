"""Kinds of faults (docs/faults.md) that the kernels' side could have of its own."""

from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

import pytest
import torch
from bytebound import ContextOverflowError, Engine, OutOfMemoryError, SamplingParams
from bytebound.checkpoint import read_headers
from bytebound.config import ModelConfig
from bytebound.cuda.decoder import CudaDecoder
from bytebound.cuda.executor import CudaExecutor
from bytebound.cuda.loading import load_weights
from bytebound.cuda.matrices import PackedMatrix
from bytebound.cuda.prefill import Chunk
from bytebound.cuda.random_weights import random_weights
from bytebound.cuda.weights import iter_matrices
from bytebound.decoder import HostDecoder
from bytebound.names import resolve_model
from bytebound.prompt_reader import PromptReader
from bytebound.sampling import Sampler
from bytebound.text.tokenizer import load_tokenizer

from .checkpoints import random_checkpoint
from .cuda_models import SHAPE, TOLERANCE, mtp_draft, reference, relative_error, some_ids, with_head
from .emulated_kernels import emulate
from .emulated_models import CPU, cuda_executor
from .packed import compressed_folder

ROOT = Path(__file__).parents[3]
TEXTS = (ROOT / "ARCHITECTURE.md", ROOT / "docs" / "experiments.md")
FP8_KL = 1e-3  # nats a token of the shipped model; README.md says so


@pytest.fixture(autouse=True)
def emulated(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.node.get_closest_marker("gpu") is None:
        emulate(monkeypatch)


Packs = Callable[[str], bool]
MTP_KINDS: dict[str, Packs] = {
    "trunk in 4 bits": lambda module: with_head(module) and not module.startswith("mtp"),
    "head in 4 bits": lambda module: with_head(module) and module.startswith("mtp"),
    "both": with_head,
    "neither": lambda module: False,
}


@pytest.mark.parametrize("kind", MTP_KINDS)
def test_a_draft_head_is_held_as_it_is_stored(tmp_path: Path, kind: str) -> None:
    """E16: packed or not, matrix by matrix; each of them drafts and changes no token."""
    packs, more = MTP_KINDS[kind], {"dtype": torch.bfloat16, **SHAPE}
    folder = (
        random_checkpoint(tmp_path, **more).folder
        if kind == "neither"
        else compressed_folder(tmp_path, group_size=128, pack=packs, **more).folder
    )
    executor = cuda_executor(folder, max_len=128)
    mtp = executor.weights.mtp
    assert mtp is not None
    for record, kinds in ((executor.weights.layers, "trunk in 4 bits"), (mtp, "head in 4 bits")):
        packed = any(isinstance(one, PackedMatrix) for one in iter_matrices(record))
        assert packed == (kind in (kinds, "both"))
    params = SamplingParams(max_tokens=30, ignore_eos=True)
    plain = Engine(executor, config=executor.config).generate(some_ids(20), params)
    draft = mtp_draft(executor)
    decoder = CudaDecoder(executor, draft, 3)
    own = Engine(executor, draft=draft, decoder=decoder, config=executor.config)
    result = own.generate(some_ids(20), params)
    assert result.token_ids == plain.token_ids and result.stats.drafted > 20


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_guesses_keep_to_the_draft_vocabulary_and_the_text_does_not(
    tmp_path: Path, temperature: float
) -> None:
    """E23: what is guessed is an id of the model, not a place in the subset."""
    config = ModelConfig.from_folder(random_checkpoint(tmp_path, **SHAPE).folder)
    ids = torch.arange(41, 360, 23, dtype=torch.int32)
    weights = random_weights(config, dtype=torch.float16, device=CPU, draft_ids=ids)
    executor = CudaExecutor(weights, config, max_len=128)
    params = SamplingParams(max_tokens=60, ignore_eos=True, temperature=temperature, seed=3)
    decoder = CudaDecoder(executor, mtp_draft(executor), 3)
    sampler = Sampler(params, some_ids(9), executor.vocab_size, frozenset(), 3)
    step, text, guessed = decoder.begin(some_ids(9), sampler, 60), list[int](), set[int]()
    while len(text) < 60:
        text += list(step.tokens)
        guessed |= set(step.guesses)
        step = decoder.advance(list(step.tokens))
    assert len(guessed) > 3 and guessed <= set(ids.tolist())
    assert not set(text) <= set(ids.tolist())
    if temperature == 0:
        plain = Engine(executor, config=config, decoder=HostDecoder(executor, None, 1))
        assert text[:60] == plain.generate(some_ids(9), params).token_ids


def test_the_draft_head_sees_every_position_of_a_prompt(tmp_path: Path) -> None:
    """E24: its keys and values are the same however the prompt is cut, but for rounding."""
    folder = random_checkpoint(tmp_path, **SHAPE).folder
    prompt, found = some_ids(90), []
    for chunk in (5, 32, 89, 90):
        executor = cuda_executor(folder, max_len=128, chunk=chunk)
        draft = mtp_draft(executor)
        PromptReader(executor, draft).read(prompt)
        assert draft.length == len(prompt) - 1
        kv = draft.head.kv
        found.append(torch.cat((kv.k[:, : len(prompt)], kv.v[:, : len(prompt)])).float())
        assert not found[-1][:, len(prompt) - 1].any()  # its row needs the id that comes next
        assert found[-1][:, : len(prompt) - 1].abs().amax(-1).min() > 0
    for one in found[1:]:
        rows = zip(found[0].unbind(1)[:-1], one.unbind(1)[:-1], strict=True)
        assert max(relative_error(a, b) for a, b in rows) < 5e-2


def divergence(exact: torch.Tensor, rounded: torch.Tensor) -> torch.Tensor:
    """KL of each row of logits [T, vocab], in nats."""
    p, q = exact.double().log_softmax(-1), rounded.double().log_softmax(-1)
    return (p.exp() * (p - q)).sum(-1)


def text_ids(count: int) -> list[int]:
    tokenizer = load_tokenizer(resolve_model("tiny"))
    assert tokenizer is not None
    ids = tokenizer.encode("".join(one.read_text(encoding="utf-8") for one in TEXTS))[:count]
    assert len(ids) == count
    return ids


def test_a_float8_cache_costs_next_to_nothing() -> None:
    """E38: the KL against a cache in 16 bits, which is not 0."""
    rows = [
        cuda_executor(resolve_model("tiny"), max_len=640, kv_dtype=kind, chunk=160).score(
            text_ids(600)
        )
        for kind in (None, torch.float8_e4m3fn)
    ]
    assert 0 < float(divergence(*rows).mean()) < FP8_KL


@pytest.mark.gpu
def test_a_float8_cache_costs_next_to_nothing_on_a_gpu() -> None:
    """E38: over four thousand positions, read as a prompt; it does not grow with the position."""
    ids = text_ids(4000)
    rows = [
        Engine.from_pretrained(
            "tiny", backend="cuda", draft="none", kv_dtype=kind, max_len=4096
        ).score(ids)
        for kind in ("bfloat16", "fp8")
    ]
    found = divergence(*rows)
    assert 0 < float(found.mean()) < FP8_KL
    assert float(found[3000:].mean()) < 1.5 * float(found[:1000].mean())


@pytest.mark.parametrize("after", [False, True], ids=["before the work", "behind it"])
@pytest.mark.parametrize("call", [1, 3])
@pytest.mark.parametrize("error", [KeyboardInterrupt, torch.OutOfMemoryError])
def test_a_turn_that_was_interrupted_leaves_no_trace(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: type[BaseException],
    call: int,
    after: bool,
) -> None:
    """Ctrl-C, or no memory, while a turn is launched: the next request is right."""
    config = ModelConfig.from_folder(random_checkpoint(tmp_path, **SHAPE).folder)
    weights = random_weights(config, dtype=torch.float16, device=CPU, seed=5)
    executor = CudaExecutor(weights, config, max_len=128)
    draft = mtp_draft(executor)
    decoder = CudaDecoder(executor, draft, 3)
    own = Engine(executor, draft=draft, decoder=decoder, config=config)
    params = SamplingParams(max_tokens=30, ignore_eos=True)
    expected = own.generate(some_ids(9), params).token_ids
    run, calls = decoder._recordings.run, list[object]()

    def failing(key: Hashable) -> None:
        calls.append(key)
        if len(calls) == call and not after:
            raise error
        run(key)
        if len(calls) == call:
            raise error

    monkeypatch.setattr(decoder._recordings, "run", failing)
    wanted = KeyboardInterrupt if error is KeyboardInterrupt else OutOfMemoryError
    with pytest.raises(wanted):
        own.generate(some_ids(30, seed=4), params)
    assert len(calls) == call
    assert own.generate(some_ids(9), params).token_ids == expected
    assert own.generate(some_ids(9), params).token_ids == expected


@torch.inference_mode()
def test_no_pass_of_a_prompt_is_wider_than_a_chunk(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """E07: what is alive of its rows does not grow with the prompt."""
    folder = compressed_folder(tmp_path, group_size=128, pack=with_head, **SHAPE).folder
    executor, widths, forward = cuda_executor(folder, max_len=160, chunk=32), [], Chunk.forward

    def noted(self: Chunk, ids: torch.Tensor, *rest: Any) -> torch.Tensor:
        widths.append(len(ids))
        return forward(self, ids, *rest)

    monkeypatch.setattr(Chunk, "forward", noted)
    executor.few_rows = 8
    reader = PromptReader(executor, mtp_draft(executor), turn_starts={7})
    for length in (40, 150):
        reader.read([length % 9, *some_ids(length - 1)])
        assert max(widths) <= 32 and sum(widths) >= length - executor.few_rows
        widths.clear()


@pytest.mark.parametrize(
    ("border", "device"),
    [
        (4096, "cpu"),
        *(pytest.param(border, "cuda", marks=pytest.mark.gpu) for border in (4096, 8192, 32_768)),
    ],
)
@torch.inference_mode()
def test_logits_on_both_sides_of_a_border(tmp_path: Path, border: int, device: str) -> None:
    """E40: where tables of positions used to end, and where the context does."""
    shape = {**SHAPE, "num_hidden_layers": 1, "layer_types": ["full_attention"]}
    folder = random_checkpoint(tmp_path, max_position_embeddings=border + 4, **shape).folder
    config, at = ModelConfig.from_folder(folder), torch.device(device)
    weights = load_weights(folder, config, read_headers(folder, config), device=at)
    executor = CudaExecutor(weights, config, max_len=border + 4, prefill_chunk=512)
    target, ids = reference(folder, border + 4, device), some_ids(border + 4)
    rows = []
    for one in (target, executor):
        one.prefill(ids[: border - 4])
        rows.append(one.verify(ids[border - 4 :]))
        one.commit(8)
        with pytest.raises(ContextOverflowError, match=f"context of {border + 4}"):
            one.verify([1])
    for expected, got in zip(*rows, strict=True):
        assert relative_error(expected, got) < TOLERANCE
