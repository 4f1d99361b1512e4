"""Word problems asked one by one, greedy, and the share that is answered right.

A reply that the token limit cut off has not answered yet. Cut replies count as wrong, and a run in
which more than ``MAX_CUT_SHARE`` of them were cut measures the limit and not the model: it has no
accuracy.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bytebound import Engine, SamplingParams

from bytebound_evals.answers import THINK_START, extract_answer, show
from bytebound_evals.data import Problem
from bytebound_evals.errors import SettingError
from bytebound_evals.identity import digest, tokenizer_digest
from bytebound_evals.intervals import Interval, wilson
from bytebound_evals.problems import ProblemSet, gold
from bytebound_evals.run_log import RunLog

MODES = ("chat", "completion")
MAX_CUT_SHARE = 0.02
INSTRUCTION = "Please reason step by step, and put your final answer within \\boxed{}."
# What a base model writes once it goes on to a question of its own.
COMPLETION_STOPS = ("Question:", "\nAnswer:")


@dataclass(frozen=True, slots=True)
class AskSettings:
    """How a problem is put to the model."""

    mode: str = "chat"
    """"chat" through the model's template, or "completion" of a plain text."""
    thinking: bool = False
    """Chat only: let the template ask for a thought first."""
    max_tokens: int = 1024
    """The longest reply, its thought included."""
    instruction: str = INSTRUCTION
    """Chat only: stands behind each question; empty: nothing."""

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise SettingError(f"mode is {self.mode!r}, expected one of {', '.join(MODES)}")
        if self.thinking and self.mode != "chat":
            raise SettingError("thinking needs the mode chat: a completion has no template")
        if self.max_tokens < 1:
            raise SettingError(f"max tokens is {self.max_tokens}, expected at least 1")


@dataclass(frozen=True, slots=True)
class Reply:
    """One answered problem."""

    number: int
    text: str
    finish_reason: str
    prompt_tokens: int
    tokens: int
    answer: str | None
    gold: str | None
    right: bool

    @property
    def cut(self) -> bool:
        """Whether the reply was cut off by the limit."""
        return self.finish_reason == "length"


@dataclass(frozen=True, slots=True)
class Accuracy:
    """All replies of one run."""

    replies: tuple[Reply, ...]

    @property
    def right(self) -> int:
        """Replies that gave the right number; a cut one never did."""
        return sum(reply.right for reply in self.replies)

    @property
    def cut_share(self) -> float:
        """Share of replies that the limit cut off."""
        return sum(reply.cut for reply in self.replies) / len(self.replies)

    @property
    def valid(self) -> bool:
        """Whether the accuracy says something about the model."""
        return self.cut_share <= MAX_CUT_SHARE

    @property
    def accuracy(self) -> float | None:
        """Share of problems answered right; None where too many replies were cut."""
        return self.right / len(self.replies) if self.valid else None

    @property
    def interval(self) -> Interval | None:
        """95 % of the accuracy, by Wilson; None with it."""
        return wilson(self.right, len(self.replies)) if self.valid else None

    def as_dict(self) -> dict[str, Any]:
        """What reports show, in JSON's types."""
        return {
            "valid": self.valid,
            "accuracy": self.accuracy,
            "accuracy_interval": self.interval,
            "right": self.right,
            "problems": len(self.replies),
            "no_answer": sum(reply.answer is None for reply in self.replies),
            "cut_share": self.cut_share,
            "max_cut_share": MAX_CUT_SHARE,
            "mean_reply_tokens": sum(reply.tokens for reply in self.replies) / len(self.replies),
        }


def measure_accuracy(
    engine: Engine,
    problem_set: ProblemSet,
    settings: AskSettings,
    *,
    model: dict[str, Any] | None = None,
    log: Path | None = None,
    on_reply: Callable[[Reply], object] | None = None,
) -> Accuracy:
    """Ask every problem that ``log`` does not hold yet.

    ``model`` describes the model and how it runs: a log is continued only with the same one.

    Raises:
        RunLogError: the log belongs to a run with other settings, or is damaged.
        ContextOverflowError: a problem and its reply do not fit the engine's context.
    """
    if log is None:
        return _ask_all(engine, problem_set, settings, None, on_reply)
    described = {**asdict(settings), **run_settings(engine, problem_set), "model": model or {}}
    with RunLog(log, described) as run_log:
        return _ask_all(engine, problem_set, settings, run_log, on_reply)


def run_settings(engine: Engine, problem_set: ProblemSet) -> dict[str, Any]:
    """What decides the replies besides the settings and the model."""
    return {
        "problems": digest([asdict(problem) for problem in problem_set.problems]),
        "examples": digest([asdict(problem) for problem in problem_set.examples]),
        "tokenizer": tokenizer_digest(engine.tokenizer),
        "template": digest(engine.tokenizer.hf.chat_template),
    }


def prompt_ids(
    engine: Engine, examples: Sequence[Problem], problem: Problem, settings: AskSettings
) -> list[int]:
    """The ids that are put to the model for one problem."""
    if settings.mode == "completion":
        worked = [f"Question: {one.question}\nAnswer: {one.answer}\n\n" for one in examples]
        return engine.tokenizer.encode(f"{''.join(worked)}Question: {problem.question}\nAnswer:")
    behind = f"\n{settings.instruction}" if settings.instruction else ""
    messages = []
    for one in examples:
        messages.append({"role": "user", "content": one.question + behind})
        messages.append({"role": "assistant", "content": one.answer})
    messages.append({"role": "user", "content": problem.question + behind})
    return engine.tokenizer.apply_chat_template(messages, enable_thinking=settings.thinking)


def _ask_all(
    engine: Engine,
    problem_set: ProblemSet,
    settings: AskSettings,
    log: RunLog | None,
    on_reply: Callable[[Reply], object] | None,
) -> Accuracy:
    replies = []
    for number, problem in enumerate(problem_set.problems):
        item = None if log is None else log.done.get(str(number))
        if item is None:
            ids = prompt_ids(engine, problem_set.examples, problem, settings)
            item = _ask(engine, ids, settings)
            reply = _judge(number, item, problem, settings)
            if log is not None:
                verdict = {"answer": reply.answer, "gold": reply.gold, "right": reply.right}
                log.add(str(number), {"question": problem.question, **item, **verdict})
        else:
            reply = _judge(number, item, problem, settings)
        replies.append(reply)
        if on_reply is not None:
            on_reply(reply)
    return Accuracy(tuple(replies))


def _ask(engine: Engine, ids: list[int], settings: AskSettings) -> dict[str, Any]:
    stops = COMPLETION_STOPS if settings.mode == "completion" else ()
    params = SamplingParams(max_tokens=settings.max_tokens, temperature=0.0, stop=stops)
    result = engine.generate(ids, params)
    return {
        "reply": result.text,
        "finish_reason": result.finish_reason,
        "prompt_tokens": len(ids),
        "tokens": len(result.token_ids),
    }


def _judge(number: int, item: dict[str, Any], problem: Problem, settings: AskSettings) -> Reply:
    """Answers are read from the reply each time, so a log never holds an old way of reading."""
    # The template opens the thought, so the reply begins inside it.
    opened = THINK_START if settings.thinking else ""
    answer, right_answer = extract_answer(opened + item["reply"]), gold(problem)
    cut = item["finish_reason"] == "length"
    return Reply(
        number=number,
        text=item["reply"],
        finish_reason=item["finish_reason"],
        prompt_tokens=item["prompt_tokens"],
        tokens=item["tokens"],
        answer=None if cut else show(answer),
        gold=show(right_answer),
        right=not cut and answer == right_answer,
    )
