"""One ``generate_until`` request: a task's arguments as sampling parameters, and the reply.

Stop strings end the answer, never the thought in front of it: a thought is full of blank lines.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bytebound import Engine, SamplingParams

from bytebound_evals.errors import SettingError

_LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "seed")
_PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty")


@dataclass(frozen=True, slots=True)
class GenerationReply:
    """What came back."""

    text: str
    cut: bool
    """Whether the token limit ended it."""


def parse_generation(given: Mapping[str, Any], default_tokens: int) -> SamplingParams:
    """A task's ``generation_kwargs``: greedy unless it samples; ``until`` becomes ``stop``.

    Raises:
        SettingError: an argument is unknown, or two of them contradict each other.
        InvalidRequestError: a value is out of range.
    """
    rest = {name: value for name, value in given.items() if value is not None}
    until = rest.pop("until", ())
    lengths = {name: int(rest.pop(name)) for name in _LENGTHS if name in rest}
    if len(set(lengths.values())) > 1:
        raise SettingError(f"generation_kwargs: {lengths} are several lengths; give one")
    penalties: dict[str, Any] = {name: float(rest.pop(name)) for name in _PENALTIES if name in rest}
    sampling = {name: rest.pop(name) for name in _SAMPLING if name in rest}
    hot = float(sampling.get("temperature", 0)) > 0
    do_sample = rest.pop("do_sample", hot)
    if do_sample and not hot:
        raise SettingError(
            "generation_kwargs: do_sample without a temperature above 0; give one, or leave "
            "do_sample out"
        )
    if rest:
        known = ", ".join(("until", "do_sample", *_LENGTHS, *_SAMPLING, *_PENALTIES))
        raise SettingError(
            f"generation_kwargs: {', '.join(map(str, rest))}: not supported; known are {known}"
        )
    return SamplingParams(
        max_tokens=next(iter(lengths.values()), default_tokens),
        stop=tuple(one for one in ([until] if isinstance(until, str) else until) if one),
        **penalties,
        # A task may name a temperature beside do_sample false: that is greedy all the same.
        **(sampling if do_sample else {}),
    )


def generate_reply(
    engine: Engine,
    ids: Sequence[int],
    params: SamplingParams,
    *,
    think_end: str | None,
    opened: bool,
) -> GenerationReply:
    """Run one request.

    With ``think_end`` the reply is what stands behind its last occurrence, and stop strings count
    from there. ``opened``: the prompt ends within a thought, so a reply without ``think_end`` has
    no answer and is empty.
    """
    if think_end is None:
        result = engine.generate(ids, params)
        return GenerationReply(result.text, result.finish_reason == "length")
    text, answer, reason = "", "", None
    for event in engine.stream(ids, replace(params, stop=())):
        text += event.text_delta
        reason = event.finish_reason
        _, end, answer = text.rpartition(think_end)
        if not end:
            answer = "" if opened else answer
            continue
        answer = answer.lstrip()
        places = [place for stop in params.stop if (place := answer.find(stop)) >= 0]
        if places:
            return GenerationReply(answer[: min(places)], cut=False)
    return GenerationReply(answer, reason == "length")
