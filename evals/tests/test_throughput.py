"""What ``throughput`` makes of an engine, a scripted one: exactness, random weights, limits."""

from types import SimpleNamespace
from typing import Any

import pytest
from bytebound import Engine
from bytebound.cli.errors import UsageError
from bytebound.errors import InvalidSettingError
from bytebound.memory import MemoryPlan
from bytebound.scripted import ScriptedDraft, ScriptedExecutor
from bytebound_evals.speed import throughput
from bytebound_evals.speed.drafts import DraftSpec
from bytebound_evals.speed.limits import ReadBandwidth
from bytebound_evals.speed.prompts import speed_prompts
from bytebound_evals.speed.record import note_of
from bytebound_evals.speed.settings import Settings
from bytebound_evals.speed.throughput import Measured, Throughput

STEPS = [[5], [7, 8, 9], [10, 11, 12], [13, 14, 15], [16, 17, 18]]
PLAN = MemoryPlan(1000, 0, 0, 0, 2_000_000, 0, 0, 0, 0, 0)  # 2,000 bytes of KV a position
VOCAB = 300


class Loader:
    """Stands for ``Engine.from_pretrained``: remembers what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.wrong_from: int | None = None
        self.with_mtp = True

    def __call__(self, model: str, **settings: Any) -> Engine:
        self.asked.append({"model": model, **settings})
        name = settings["draft"]
        script = [list(step) for step in STEPS]
        if name == "mtp" and self.wrong_from is not None:
            script[self.wrong_from][0] += 100
        draft = {
            "none": None,
            "mtp": ScriptedDraft(script) if self.with_mtp else None,
        }.get(name if isinstance(name, str) else "", name)
        return Engine(
            ScriptedExecutor(script, VOCAB, end_id=4, max_len=settings["max_len"] or 8192),
            draft=draft,
            num_draft_tokens=settings["num_draft_tokens"],
            config=SimpleNamespace(dtype="bfloat16"),  # type: ignore[arg-type]
            memory_plan=PLAN,
            bytes_per_token=1e9,
        )


@pytest.fixture
def loader(monkeypatch: pytest.MonkeyPatch) -> Loader:
    made = Loader()
    monkeypatch.setattr(Engine, "from_pretrained", made)
    reference = SimpleNamespace(name="reference")
    monkeypatch.setattr(throughput, "choose_backend", lambda *_: reference)
    return made


def measure(*drafts: str, **settings: Any) -> Measured:
    given: dict[str, Any] = {"depths": (100,), "new_tokens": 13, "samples": 2, **settings}
    asked = Settings(
        "random:shape", device="cpu", drafts=tuple(map(DraftSpec.parse, drafts)), **given
    )
    return Throughput(asked, ReadBandwidth(1000, "given")).run()


def test_random_weights_have_plain_speed_and_a_time_per_step(loader: Loader) -> None:
    measured = measure("none", "mtp:2", prompts=tuple(speed_prompts(["json"])))
    assert set(measured.metrics) == {
        "plain_100.tok_s",
        "plain_100.bytes_per_token",
        "plain_100.percent_of_limit",
        "prompt_100.tok_s",
        "prompt_100.first_token_ms",
        "json.plain.tok_s",
        "json.plain.first_token_ms",
        "mtp2_100.step_ms",
        "mtp2_100.same_tokens",
        "json.mtp2.step_ms",
        "json.mtp2.same_tokens",
    }
    assert measured.metrics["plain_100.tok_s"].case["ids"] == "bytes"


def test_forced_acceptance_replays_the_plain_reply(loader: Loader) -> None:
    measured = measure("none", "forced:2@1")
    metrics = measured.metrics
    assert metrics["forced2@1_100.same_tokens"].median == 1
    assert metrics["forced2@1_100.acceptance"].median == 1
    assert metrics["forced2@1_100.accepted_per_step"].median == 3
    assert metrics["forced2@1_100.tok_s"].case["forced_rate"] == 1
    note = note_of(measured, Settings("random:shape", drafts=(DraftSpec("forced", 2, 1.0),)))
    assert "Forced acceptance" in note
    assert "Random weights" in note


def test_a_draft_that_changes_the_text_is_found_out(loader: Loader) -> None:
    loader.wrong_from = 2
    same = measure("none", "mtp:2").metrics["mtp2_100.same_tokens"]
    assert same.median == pytest.approx(4 / 13)  # the fifth token is another one
    assert same.tol_pct == 0


def test_bytes_grow_with_the_context(loader: Loader) -> None:
    """1e9 bytes at 1,024 positions, 2,000 more a position; half way through 13 tokens."""
    metrics = measure("none", depths=(100, 2048)).metrics
    assert metrics["plain_100.bytes_per_token"].median == 1e9 + 2000 * (106.5 - 1024)
    assert metrics["plain_2k.bytes_per_token"].median == 1e9 + 2000 * (2054.5 - 1024)
    speed, percent = (metrics[f"plain_2k.{n}"] for n in ("tok_s", "percent_of_limit"))
    expected = [100 * s * (1e9 + 2000 * 1030.5) / 1000e9 for s in speed.samples]
    assert list(percent.samples) == pytest.approx(expected)


def test_every_engine_is_loaded_as_asked_and_reads_whole_prompts(loader: Loader) -> None:
    measure("none", "mtp:3", "forced:2@0.5", depths=(9000,), new_tokens=13)
    assert [asked["num_draft_tokens"] for asked in loader.asked] == [4, 3, 2]
    assert all(asked["snapshot_bytes"] == 0 for asked in loader.asked)
    assert all(asked["max_len"] == 9013 for asked in loader.asked)
    assert [asked["draft"] for asked in loader.asked[:2]] == ["none", "mtp"]
    assert loader.asked[2]["draft"].name == "forced"


def test_rates_of_a_forced_draft_share_an_engine(loader: Loader) -> None:
    metrics = measure("none", "forced:2@1", "forced:2@0", "forced:3@1").metrics
    assert [asked["num_draft_tokens"] for asked in loader.asked] == [4, 2, 3]
    assert metrics["forced2@1_100.acceptance"].median == 1
    assert metrics["forced2@0_100.acceptance"].median == 0
    assert metrics["forced2@0_100.same_tokens"].median == 1


def test_drafts_may_leave_depths_out(loader: Loader) -> None:
    depths = {"depths": (100, 200), "draft_depths": (100,)}
    metrics = measure("none", "forced:2@1", **depths).metrics
    assert {"plain_100.tok_s", "plain_200.tok_s", "forced2@1_100.tok_s"} <= metrics.keys()
    assert not any(name.startswith("forced2@1_200") for name in metrics)
    with pytest.raises(UsageError, match="--draft-depth 300: expected one of the depths"):
        measure("none", "forced:2@1", depths=(100, 200), draft_depths=(300,))


def test_the_case_says_what_kv_is_kept_in(loader: Loader) -> None:
    (case,) = {str(one.case["kv_dtype"]) for one in measure("none").metrics.values()}
    assert case == "auto"  # of a plan that does not say


def test_no_mtp_head_is_an_error_and_not_plain_decoding(loader: Loader) -> None:
    loader.with_mtp = False
    with pytest.raises(InvalidSettingError, match="no MTP head"):
        measure("none", "mtp:2")


def test_a_reply_that_would_be_cut_is_refused(loader: Loader) -> None:
    with pytest.raises(UsageError, match=r"plain_100: 100 prompt and 13 new tokens .* of 110"):
        measure("none", max_len=110)


def test_not_enough_memory(loader: Loader, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(Engine, "from_pretrained", fail)
    with pytest.raises(UsageError, match="not enough memory for random:shape"):
        measure("none")


def test_replies_that_ended_early_are_named() -> None:
    ended = note_of(Measured(ended={"math": 9, "json": 10}), Settings("tiny"))
    assert ended.endswith("came to their own end: math after 9, json after 10 tokens.")
    assert "own end" not in note_of(Measured(), Settings("tiny"))


def test_a_model_is_called_without_its_folder() -> None:
    for model, name in (
        ("tiny", "tiny"),
        ("/data/models/m-4bit/", "m-4bit"),
        ("random:qwen3.5-27b", "random:qwen3.5-27b"),
        ("random:/data/shape/config.json", "random:config.json"),
    ):
        assert Settings(model).name == name


def test_the_recorded_command_says_the_same() -> None:
    settings = Settings(
        "some/folder/m/",
        backend="cuda",
        kv_dtype="fp8",
        drafts=(DraftSpec("none"), DraftSpec("forced", 3, 0.25)),
        draft_depths=(),
        prompts=tuple(speed_prompts(["chat"])),
        stop_at_end=True,
    )
    words = "--model m --backend cuda --kv-dtype fp8 --draft none --draft forced:3@0.25 --depth 0"
    words += " --draft-depth 0 --prompt chat --tokens 128 --samples 5 --stop-at-end"
    assert settings.arguments() == ["throughput", *words.split()]
