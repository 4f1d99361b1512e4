"""Random answers under a grammar of calls, and what the server's reader makes of them."""

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
from bytebound.constraint import Constraint
from bytebound.grammar import Grammar, ToolForm
from bytebound.grammar_compiler import GrammarCompiler
from bytebound.server.replies import Reply, ToolCall
from bytebound.text.reply import ReplySplitter
from bytebound.text.tokenizer import Tokenizer

from .grammar_walks import end_of

NEXT, LAST = "\n</parameter>\n<parameter=", "\n</parameter>\n</function>\n"
# Begun now and then, and gone on with while the grammar allows it: what closes a value, and what
# the reader could take for something else.
PLANS = [
    *(NEXT, LAST, NEXT, LAST, LAST, LAST, '"', '"}', '"]', "}", "]", ": ", "null", "true", "12"),
    *("</parameter>", "</parameter> <parameter=a>", "</parameter></function>", "\n", " ", '", "'),
    *(
        "</function>",
        "None",
        "-3.5e2",
        '{"a": 1}',
        "[",
        "{",
        "<tool_call>",
        "</tool_call>",
        "é👍\\",
    ),
]


def random_reply(
    compiled: GrammarCompiler,
    tokenizer: Tokenizer,
    grammar: Grammar,
    seed: int,
    prompt: Sequence[int] = (0,),
    limit: int = 3000,
) -> list[int]:
    """Ids of an answer without its end token, each drawn from what is allowed."""
    end = end_of(tokenizer)
    constraint = compiled.constraint(grammar, prompt, [end])
    choose = random.Random(seed)
    eager = choose.choice([0.1, 0.5])
    ids: list[int] = []
    plan: list[int] = []
    for _ in range(limit):
        allowed = allowed_array(constraint)
        assert allowed.any()
        if not plan and choose.random() < eager:
            plan = tokenizer.encode(choose.choice(PLANS))
        if allowed[end] and choose.random() < 0.5:
            constraint.append(end)
            assert constraint.allowed() is None
            return ids
        if plan and allowed[plan[0]]:
            token = plan.pop(0)
        else:
            plan = []
            found = np.flatnonzero(allowed)
            token = int(found[choose.randrange(len(found))])
        assert token < tokenizer.vocab_size
        constraint.append(token)
        if token == end:
            return ids
        ids.append(token)
    raise AssertionError(f"no end: {tokenizer.decode(ids, skip_special_tokens=False)[:300]}")


def allowed_array(constraint: Constraint) -> Any:
    bits = constraint.allowed()
    assert bits is not None
    return np.unpackbits(bits.numpy(), bitorder="little").astype(bool)


def read_reply(
    tokenizer: Tokenizer, ids: Sequence[int], tools: Sequence[ToolForm], step: int = 1
) -> Reply:
    """What the server's splitter makes of a reply that comes ``step`` ids at a time."""
    split = ReplySplitter(tokenizer, [0], {tool.name: tool.parameters for tool in tools})
    reply = Reply()
    shown = 0
    for place in range(0, len(ids), step):
        # The text of whole characters so far: as the engine has it, behind the ids by a few bytes.
        text = tokenizer.decode(ids[: place + step], skip_special_tokens=False)
        last = place + step >= len(ids)
        settled = len(text) if last else len(text.rstrip("\ufffd"))
        reply.take(split.push(ids[place : place + step], text[shown:settled]))
        shown = max(shown, settled)
    reply.take(split.finish("stop"))
    return reply


def only_calls(reply: Reply) -> list[ToolCall]:
    """The calls of a reply that holds nothing else, all of them whole."""
    assert not reply.text.strip()
    assert all(call.complete for call in reply.calls)
    return reply.calls


def written(name: str, **values: str) -> str:
    """A call as a template writes it."""
    parameters = "".join(
        f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items()
    )
    return f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>"


def closed(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required}


def strict(required: list[str], **properties: Any) -> ToolForm:
    return ToolForm("f", closed(required, **properties), strict=True)


def takes(compiled: GrammarCompiler, tokenizer: Tokenizer, grammar: Grammar, text: str) -> bool:
    """Whether an answer may be ``text`` and end there."""
    end = end_of(tokenizer)
    constraint = compiled.constraint(grammar, [0], [end])
    ids = [*tokenizer.encode(text, parse_control=True), end]
    return constraint.admitted(ids) == len(ids)
