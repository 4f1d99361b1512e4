"""The weight stream on a GPU against the single kernels: bits, tokens, recordings."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from bytebound import Engine, SamplingParams
from bytebound.checkpoint import read_headers
from bytebound.config import ModelConfig
from bytebound.cuda.decoder import CudaDecoder
from bytebound.cuda.diff import run_diff
from bytebound.cuda.executor import CudaExecutor
from bytebound.cuda.loading import load_weights
from bytebound.cuda.pairing import reference_of
from bytebound.cuda.random_weights import random_weights
from bytebound.cuda.stream import StreamStep
from bytebound.cuda.weights import ModelWeights
from bytebound.names import random_shape
from bytebound.prompt_reader import PromptReader

from .checkpoints import write_json
from .cuda_models import FOLDERS, REQUESTS, KnowingDraft, some_ids
from .test_stream import PASSES, held, same

pytestmark = pytest.mark.gpu

MAX_LEN = 2048
PROMPT = some_ids(300)


@pytest.fixture(autouse=True)
def a_card_with_a_stream() -> None:
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("the weight stream needs compute capability 9.0")


def flagship_shape(folder: Path, layers: int, *, mtp: bool) -> Path:
    """A config.json: the first layers of the 27B shape, and few ids."""
    whole = random_shape("random:qwen3.5-27b")
    assert whole is not None
    shape = json.loads(whole.read_text(encoding="utf-8"))
    shape |= {"num_hidden_layers": layers, "mtp_num_hidden_layers": int(mtp), "vocab_size": 4096}
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", shape)
    return folder / "config.json"


def flagship_weights(folder: Path) -> tuple[ModelWeights, ModelConfig]:
    path = flagship_shape(folder, 8, mtp=False)
    config = ModelConfig.from_dict(json.loads(path.read_text(encoding="utf-8")))
    gpu = torch.device("cuda", torch.cuda.current_device())
    return random_weights(config, dtype=torch.float16, device=gpu, seed=3), config


def weights_of(kind: str, folder: Path) -> tuple[ModelWeights, ModelConfig]:
    if kind == "27B":
        return flagship_weights(folder)
    made = FOLDERS[kind](folder)
    config = ModelConfig.from_folder(made)
    gpu = torch.device("cuda", torch.cuda.current_device())
    return load_weights(made, config, read_headers(made, config), device=gpu), config


@pytest.mark.parametrize("kv_dtype", [torch.float16, torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize("kind", ["27B", "symmetric", "asymmetric"])
@torch.inference_mode()
def test_rows_and_states_are_those_of_the_single_kernels(
    tmp_path: Path, kind: str, kv_dtype: torch.dtype
) -> None:
    """Pass by pass, from the same state."""
    weights, config = weights_of(kind, tmp_path / "model")
    graph, stream = (
        CudaExecutor(weights, config, max_len=MAX_LEN, kv_dtype=kv_dtype, engine=engine, few_rows=0)
        for engine in ("graph", "stream")
    )
    assert isinstance(stream.step, StreamStep)
    assert torch.equal(graph.prefill(PROMPT), stream.prefill(PROMPT))
    ids = iter(some_ids(200, seed=7))
    for number, (rows, kept) in enumerate(3 * PASSES):
        some = [next(ids) for _ in range(rows)]
        found = [one.verify(some) for one in (graph, stream)]
        assert torch.equal(*found), number
        assert found[0].isfinite().all()
        assert graph.last_hidden is not None and stream.last_hidden is not None
        assert torch.equal(graph.last_hidden, stream.last_hidden), number
        assert same(held(graph), held(stream)), number
        if kept:
            graph.commit(kept)
            stream.commit(kept)
    assert torch.equal(graph.prefill(some_ids(40)), stream.prefill(some_ids(40)))
    assert bool((stream.step.workspace == 0xFF).all())


@torch.inference_mode()
def test_a_row_has_the_same_bits_whatever_comes_with_it(tmp_path: Path) -> None:
    weights, config = flagship_weights(tmp_path)
    executor = CudaExecutor(weights, config, max_len=MAX_LEN, engine="stream")
    ids = some_ids(8, seed=2)
    executor.prefill(PROMPT)
    alone = []
    for token in ids:
        alone.append(executor.verify([token])[0])
        executor.commit(1)
    for rows in range(2, 9):
        executor.reset()
        executor.prefill(PROMPT)
        assert torch.equal(executor.verify(ids[:rows]), torch.stack(alone[:rows])), rows


@pytest.mark.parametrize("count", [1, 4, 7])
def test_greedy_with_mtp_is_plain_greedy(tmp_path: Path, count: int) -> None:
    model = f"random:{flagship_shape(tmp_path, 4, mtp=True)}"
    params = SamplingParams(max_tokens=500, ignore_eos=True)
    found = []
    for settings in ({"draft": "none"}, {"draft": "mtp", "num_draft_tokens": count}):
        with pytest.warns(UserWarning, match="weights are random"):
            engine = Engine.from_pretrained(
                model, backend="cuda", engine="stream", max_len=MAX_LEN, **settings
            )
        assert isinstance(engine.executor, CudaExecutor)
        assert isinstance(engine.executor.step, StreamStep)
        assert engine.memory_plan is not None and engine.memory_plan.stream > 0
        for _ in range(2):  # the first records what the second replays
            found.append(engine.generate(PROMPT, params).token_ids)
        del engine
        torch.cuda.empty_cache()
    assert all(one == found[0] for one in found) and len(found[0]) == 500


def test_any_number_of_guesses_may_stand(tmp_path: Path) -> None:
    weights, config = flagship_weights(tmp_path)
    executor = CudaExecutor(weights, config, max_len=MAX_LEN, engine="stream")

    def answer(draft: KnowingDraft | None, params: SamplingParams) -> Any:
        reader = PromptReader(executor, draft)
        decoder = CudaDecoder(executor, draft, 1 if draft is None else 7, reader)
        return Engine(executor, draft=draft, decoder=decoder, config=config).generate(
            PROMPT, params
        )

    params = SamplingParams(max_tokens=500, ignore_eos=True)
    plain = answer(None, params).token_ids
    result = answer(KnowingDraft([*PROMPT, *plain]), params)
    assert result.token_ids == plain
    assert result.stats.mean_accepted_len > 2.5


def test_a_seed_gives_its_answer_again(tmp_path: Path) -> None:
    model = f"random:{flagship_shape(tmp_path, 4, mtp=True)}"
    with pytest.warns(UserWarning, match="weights are random"):
        engine = Engine.from_pretrained(
            model, backend="cuda", engine="stream", max_len=MAX_LEN, conversation_bytes=1 << 28
        )
    for kind in REQUESTS.values():
        params = SamplingParams(**{"max_tokens": 60, "ignore_eos": True, **kind})
        first = engine.generate(PROMPT, params)
        engine.generate(PROMPT[:7], params)
        again = engine.generate(PROMPT, params)
        assert (again.token_ids, again.logprobs) == (first.token_ids, first.logprobs)


def test_a_diff_runs_op_by_op(tmp_path: Path) -> None:
    weights, config = flagship_weights(tmp_path)
    executor = CudaExecutor(weights, config, max_len=MAX_LEN, engine="stream")
    reference = reference_of(weights, config, max_len=MAX_LEN)
    report = run_diff(reference, executor, some_ids(100), rows=5)
    assert report.first is None and report.unseen == []
    assert isinstance(executor.step, StreamStep)
