"""One request whose thought is ended when its budget is spent.

The end-of-thought token cannot be drawn on command, so the request is ended there, the token is
appended to the prompt, and a second request goes on. The numbers of the sampler are addressed by
position, and penalties count what the first request wrote, so the rest is what the model would have
continued with. What is read again is what the engine did not keep: from its last state on.
"""

from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from bytebound.completion import Completion
from bytebound.results import GenerationStats, StreamEvent, TokenLogprob
from bytebound.text.thinking_budget import ThinkingBudget

if TYPE_CHECKING:
    from bytebound.engine import Engine
    from bytebound.sampling import SamplingParams


def stream_with_budget(
    engine: "Engine",
    prompt_ids: Iterable[int],
    params: "SamplingParams | None",
    budget: ThinkingBudget,
) -> Iterator[StreamEvent]:
    """Run one request as ``engine.stream`` does, and end its thought when ``budget`` is spent.

    The events are those of ``engine.stream`` up to there; then comes one with the closing ids,
    which count as completion tokens and whose logprob is 0, since they were not drawn; then the
    rest. Checked before the first event, like ``engine.stream``.
    """
    params = engine.default_params() if params is None else params
    prompt = [int(token_id) for token_id in prompt_ids]
    return _events(engine, engine.stream(prompt, params), prompt, params, budget)


def _events(
    engine: "Engine",
    stream: Iterator[StreamEvent],
    prompt: list[int],
    params: "SamplingParams",
    budget: ThinkingBudget,
) -> Iterator[StreamEvent]:
    end_ids = frozenset(params.stop_token_ids) | (
        frozenset() if params.ignore_eos else engine.end_ids
    )
    completion = Completion(params, end_ids, engine.tokenizer, engine.max_len - len(prompt))
    taken, stats = list[int](), None
    with closing(cast("Generator[StreamEvent]", stream)) as events:
        while not budget.exhausted:
            event = next(events)
            count = _count_within(event.token_ids, budget)
            if count == len(event.token_ids):
                yield event
                if event.finish_reason is not None:
                    return
                taken += event.token_ids
                stats = event.stats
                continue
            for token_id in taken:
                completion.push(token_id)
            kept = _pushed(completion, event, count)
            taken += kept.token_ids
            stats = _joint(event.stats, None, len(prompt), len(taken))
            yield replace(kept, stats=stats)
    for token_id in taken[len(completion.token_ids) :]:
        completion.push(token_id)
    forced = budget.closing
    logprobs = tuple(TokenLogprob(i, 0.0, ((i, 0.0),)) for i in forced)
    event = _pushed(
        completion,
        StreamEvent(forced, "", None if params.logprobs is None else logprobs),
        len(forced),
    )
    yield replace(event, stats=_joint(stats, None, len(prompt), len(completion.token_ids)))
    if completion.finish_reason is not None:
        return
    rest = replace(
        params,
        max_tokens=completion.remaining,
        min_tokens=max(0, params.min_tokens - len(completion.token_ids)),
        stop=(),  # looked for in the whole text by the completion
    )
    done = list(completion.token_ids)
    stream = engine.stream(prompt + done, rest, continues=len(done))
    with closing(cast("Generator[StreamEvent]", stream)) as events:
        while completion.finish_reason is None:
            event = next(events)
            shown = _pushed(completion, event, len(event.token_ids))
            count = len(completion.token_ids)
            yield replace(shown, stats=_joint(stats, event.stats, len(prompt), count))


def _count_within(token_ids: tuple[int, ...], budget: ThinkingBudget) -> int:
    """Show the budget the ids of a step; return how many of them came before it was spent."""
    for count, token_id in enumerate(token_ids):
        if budget.exhausted:
            return count
        budget.push(token_id)
    return len(token_ids)


def _pushed(completion: Completion, event: StreamEvent, count: int) -> StreamEvent:
    """The first ``count`` tokens of an event, or less if the completion ends before, with text."""
    tokens, delta = list[int](), ""
    for token_id in event.token_ids[:count]:
        tokens.append(token_id)
        delta += completion.push(token_id)
        if completion.finish_reason is not None:
            break
    logprobs = None if event.logprobs is None else event.logprobs[: len(tokens)]
    return StreamEvent(tuple(tokens), delta, logprobs, completion.finish_reason)


def _joint(
    first: GenerationStats | None,
    second: GenerationStats | None,
    prompt_tokens: int,
    completion_tokens: int,
) -> GenerationStats | None:
    """Stats of two requests as of one: the second prompt's time is time of decoding."""
    if first is None or second is None:
        one = first or second
        return one and replace(
            one, prompt_tokens=prompt_tokens, completion_tokens=completion_tokens
        )
    decode_s = first.decode_s + second.prefill_s + second.decode_s
    steps = first.steps + second.steps
    gained = first.mean_accepted_len * first.steps + second.mean_accepted_len * second.steps
    return replace(
        first,
        completion_tokens=completion_tokens,
        decode_s=decode_s,
        tok_per_s=(completion_tokens - 1) / decode_s if decode_s > 0 else 0.0,
        steps=steps,
        drafted=first.drafted + second.drafted,
        accepted=first.accepted + second.accepted,
        mean_accepted_len=gained / steps if steps else 0.0,
        percent_of_limit=second.percent_of_limit,
    )
