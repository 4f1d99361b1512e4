"""E27: what start-up prepared is all that requests need; none of them records or compiles."""

import random
from collections import Counter
from collections.abc import Hashable
from itertools import product
from types import ModuleType
from typing import Any

import pytest
import torch
from bytebound import Engine, Grammar, SamplingParams
from bytebound.config import ModelConfig
from bytebound.cuda.cycle import Form
from bytebound.cuda.decoder import CudaDecoder
from bytebound.cuda.executor import CudaExecutor
from bytebound.cuda.graphs import Recordings
from bytebound.cuda.memory import GRAPH_NODE_BYTES, NODES_OF_A_LAYER, Card, CudaMemory, Stored
from bytebound.cuda.random_weights import random_weights
from bytebound.cuda.sampling import Choice
from bytebound.cuda.state import MAX_ROWS
from bytebound.drafts import Draft, NgramDraft
from bytebound.names import resolve_model

from .checkpoints import random_checkpoint
from .cuda_models import REQUESTS, SHAPE, WrongDraft, mtp_draft, some_ids
from .emulated_kernels import emulate

# A draft, how many guesses, and whether their number follows what stood.
FORMS = [
    ("none", 1, False), ("mtp", 1, False), ("mtp", 7, False), ("mtp", 4, True),
    ("ngram", 4, False), ("wrong", 7, False),
]  # fmt: skip


def triton_kernels() -> list[Any]:
    """Every kernel that is compiled when it is first launched."""
    jit = pytest.importorskip("triton.runtime.jit")
    from bytebound_kernels.prefill import _attention_kernels, _gdn_kernels

    modules: tuple[ModuleType, ...] = (_attention_kernels, _gdn_kernels)
    found = [one for module in modules for one in vars(module).values()]
    return [one for one in found if isinstance(one, jit.JITFunction) and "kernel" in one.__name__]


STEPS = set(range(1, MAX_ROWS + 1))  # through a prompt of few rows, by their rows


def forms_in_use(draft: str, count: int, adaptive: bool) -> set[tuple[str, Form]]:
    """The first token and a turn of each number of guesses that can be asked for.

    Each greedy and drawn, with logprobs and without. Drafts that the host makes may be fewer than
    asked for; those of the head are as many.
    """
    by_head, found = draft == "mtp", set[tuple[str, Form]]()
    counts = range(count + 1) if adaptive or draft in ("ngram", "wrong") else [count]
    for sampled, logprobs in product((False, True), repeat=2):
        found.add(("first", Form(Choice(0, sampled=sampled, with_logprobs=logprobs))))
        for guesses in [0] if draft == "none" else counts:
            choice = Choice(guesses, sampled, sampled and by_head, logprobs)
            most = 0 if draft == "none" else count
            found.add(("turn", Form.of(choice, most, by_head=by_head)))
    return found


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> list[Hashable]:
    """Names the work of every recording, in the order in which it is asked for."""
    asked = list[Hashable]()
    run = Recordings.run

    def noted(self: Recordings, key: Hashable) -> None:
        asked.append(key)
        run(self, key)

    monkeypatch.setattr(Recordings, "run", noted)
    return asked


@pytest.fixture
def executor(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> CudaExecutor:
    emulate(monkeypatch)
    config = ModelConfig.from_folder(random_checkpoint(tmp_path, **SHAPE).folder)
    weights = random_weights(config, dtype=torch.float16, device=torch.device("cpu"), seed=5)
    return CudaExecutor(weights, config, max_len=128, prefill_chunk=32)


def started(executor: CudaExecutor, draft: str, count: int, adaptive: bool) -> Engine:
    """An engine after start-up."""
    made: Draft | None = None
    if draft != "none":
        made = (
            mtp_draft(executor)
            if draft == "mtp"
            else {"ngram": NgramDraft, "wrong": WrongDraft}[draft]()
        )
    executor.warm_up()
    decoder = CudaDecoder(executor, made, count, adaptive_depth=adaptive)
    decoder.warm_up()
    return Engine(executor, draft=made, decoder=decoder, config=executor.config, end_ids=[3])


def send_every_kind(engine: Engine, lengths: tuple[int, ...], vocab: int) -> None:
    """Prompts cold, known in part and whole; all ways to choose, also with logprobs; any length."""
    room = engine.max_len
    for kind in ("greedy, penalties", "sampled, all"):
        chosen = {**REQUESTS[kind], "logprobs": None, "min_tokens": 0}
        for length in lengths:
            prompt = some_ids(length, seed=length + len(kind), vocab=vocab)
            for ids, logprobs in ((prompt, None), (prompt, 3), ([*prompt, 5, 6], None)):
                for tokens in (1, 7):
                    params = {**chosen, "logprobs": logprobs, "max_tokens": tokens}
                    engine.generate(ids, SamplingParams(**params))
        filling = some_ids(room - 12, vocab=vocab)
        engine.generate(filling, SamplingParams(**{**chosen, "max_tokens": 50}))


@pytest.mark.parametrize(("draft", "count", "adaptive"), FORMS)
def test_every_form_was_run_before(
    executor: CudaExecutor, keys: list[Hashable], draft: str, count: int, adaptive: bool
) -> None:
    engine = started(executor, draft, count, adaptive)
    known, forms = set(keys), forms_in_use(draft, count, adaptive)
    assert sum(key not in STEPS for key in keys) == len(forms), "a form was prepared twice"
    assert known == forms | STEPS
    keys.clear()
    send_every_kind(engine, (1, 65), SHAPE["vocab_size"])
    assert keys and not set(keys) - known, set(keys) - known
    # And nothing is prepared in vain but depths that depend on the text, and ends of answers.
    if not adaptive and draft in ("none", "mtp"):
        assert set(keys) | STEPS == known


@pytest.mark.parametrize(("draft", "count", "adaptive"), FORMS)
def test_the_plan_counts_every_recording(draft: str, count: int, adaptive: bool) -> None:
    config = ModelConfig.from_folder(resolve_model("tiny"))
    stored = Stored.of(config, None, "model.", with_mtp=True)
    guesses = 0 if draft == "none" else count
    plan = CudaMemory(config, stored, Card.nominal(), num_draft_tokens=guesses).plan(128)
    kinds = Counter(key[0] for key in forms_in_use(draft, count, adaptive))
    layers = config.num_hidden_layers
    nodes = kinds["first"] + kinds["turn"] * (layers + 2 + guesses) + len(STEPS) * (layers + 1)
    assert plan.graphs >= nodes * NODES_OF_A_LAYER * GRAPH_NODE_BYTES


def test_what_differs_between_prompts_is_no_part_of_a_compiled_kernel() -> None:
    """Triton compiles again for an integer that is 1, or a multiple of 16, unless told not to."""
    kernels = triton_kernels()
    varying = [
        (one.__name__, parameter.name, parameter.do_not_specialize)
        for one in kernels
        for parameter in one.params
        if parameter.name in ("T", "position")
    ]
    assert {name for name, *_ in varying} == {one.__name__ for one in kernels}
    assert all(unspecialized for *_, unspecialized in varying), varying


def compiled() -> dict[str, int]:
    """How many variants of each Triton kernel this process holds."""
    return {
        one.__name__: sum(len(caches[0]) for caches in one.device_caches.values())
        for one in triton_kernels()
    }


@pytest.mark.gpu
@pytest.mark.parametrize("kv_dtype", ["auto", "fp8"])
@pytest.mark.parametrize(("draft", "count", "adaptive"), FORMS)
def test_no_request_records_or_compiles(
    draft: str, count: int, adaptive: bool, kv_dtype: str
) -> None:
    for one in triton_kernels():
        one.device_caches.clear()  # what other tests have compiled
    assert not any(compiled().values())
    engine = Engine.from_pretrained(
        "tiny",
        backend="cuda",
        kv_dtype=kv_dtype,
        max_len=6000,
        draft=WrongDraft(4000) if draft == "wrong" else draft,
        num_draft_tokens=count,
        adaptive_depth=adaptive,
    )
    decoder = engine.decoder
    assert isinstance(decoder, CudaDecoder)
    executor = decoder.executor

    def recorded() -> tuple[set[Hashable], set[Hashable]]:
        return set(decoder._recordings._graphs), set(executor._recordings._graphs)

    before = compiled(), *recorded()
    # The product and the state of a prompt are of one kernel each: all but the one that only
    # PyTorch's attention needs.
    assert {name for name, variants in before[0].items() if not variants} == {"gate_kernel"}
    assert before[1:] == (forms_in_use(draft, count, adaptive), STEPS)
    send_every_kind(engine, (1, 65, 300, 5000), 4000)
    choose = random.Random(1)
    engine.score([choose.randrange(4000) for _ in range(777)])
    engine.generate([5], SamplingParams(max_tokens=20, grammar=Grammar.json_object()))
    assert (compiled(), *recorded()) == before
