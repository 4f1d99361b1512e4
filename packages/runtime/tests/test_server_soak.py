"""Two thousand requests of all kinds, a third of which are given up: nothing wrong, nothing left.

Each reply names the case that was asked about, so one client's text in another's answer is seen.
"""

import ctypes
import gc
import json
import os
import random
import re
import socket
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
from bytebound.scripted import ScriptedExecutor
from bytebound.server.turn import Turn
from bytebound.server.worker import Job
from bytebound.text.reply import ReplySplitter
from bytebound.text.tokenizer import Tokenizer

from .server_runs import MODEL, Served, answering, events_of, served

REQUESTS, CLIENTS = 2000, 4
GIVEN_UP = 1 / 3
PASS_S = 0.0003
MOST_BLOCKS = REQUESTS // 4
"""Blocks of Python's own that may be more after the second half: one every other request."""
MOST_NATIVE = 2 * 2**20
"""Bytes that malloc may have given out more after the second half."""

Ask = tuple[str, dict[str, Any], Callable[[dict[str, str]], bool]]


def reply(prompt: str) -> str:
    """What the model says: the case's number in its thought, its text and its calls."""
    found = re.findall(r"case (\d+)", prompt)
    if not found:
        return "hello"  # the warm-up
    case = found[-1]
    thought = f"about {case}</think>\n\n" if prompt.endswith("<think>\n") else ""
    call = f"<tool_call>\n<function=look>\n<parameter=n>\n{case}\n</parameter>\n</function>\n"
    calls = f"\n{call}</tool_call>" if '"look"' in prompt else ""
    return f"{thought}the answer to {case} is 안녕 fox{calls}"


SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}}


def openai_chat(case: int) -> Ask:
    body = {"model": MODEL, "messages": [{"role": "user", "content": f"case {case}"}]}
    want = {"thought": f"about {case}", "text": f"the answer to {case} is 안녕 fox", "call": ""}
    return "/v1/chat/completions", body, lambda got: got == want


def openai_tools(case: int) -> Ask:
    path, body, _ = openai_chat(case)
    body["tools"] = [{"type": "function", "function": {"name": "look", "parameters": SCHEMA}}]
    body["chat_template_kwargs"] = {"enable_thinking": False}
    want = {
        "thought": "",
        "text": f"the answer to {case} is 안녕 fox",
        "call": json.dumps({"n": case}, separators=(",", ":")),
    }
    return path, body, lambda got: {**got, "call": got["call"].replace(" ", "")} == want


def openai_stop(case: int) -> Ask:
    path, body, _ = openai_chat(case)
    want = {"thought": f"about {case}", "text": f"the answer to {case}", "call": ""}
    return path, {**body, "stop": " is", "logprobs": True}, lambda got: got == want


def openai_budget(case: int) -> Ask:
    """The script starts anew behind the forced end, and then says its text without a thought."""
    path, body, _ = openai_chat(case)
    ending = f"the answer to {case} is 안녕 fox"

    def right(got: dict[str, str]) -> bool:
        return f"about {case}".startswith(got["thought"]) and got["text"].endswith(ending)

    return path, {**body, "thinking_budget": 2}, right


def completion(case: int) -> Ask:
    body = {"model": MODEL, "prompt": f"case {case}", "max_tokens": 99}
    want = {"thought": "", "text": f"the answer to {case} is 안녕 fox", "call": ""}
    return "/v1/completions", body, lambda got: got == want


def messages(case: int) -> Ask:
    _, body, right = openai_chat(case)
    return "/v1/messages", {**body, "max_tokens": 99, "thinking": {"type": "adaptive"}}, right


def messages_tools(case: int) -> Ask:
    _, body, _ = openai_chat(case)
    _, _, right = openai_tools(case)
    tools = [{"name": "look", "input_schema": SCHEMA}]
    return "/v1/messages", {**body, "max_tokens": 99, "tools": tools}, right


KINDS = (
    openai_chat,
    openai_tools,
    openai_stop,
    openai_budget,
    completion,
    messages,
    messages_tools,
)
WRONG: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"model": MODEL, "prompt": "x", "temperature": -1}),
    ("/v1/chat/completions", {"model": MODEL, "messages": [{"role": "robot"}]}),
    ("/v1/messages", {"model": MODEL, "max_tokens": 5, "messages": []}),
    ("/v1/completions", {"model": MODEL, "prompt": [5] * 9000}),
]


def whole(answer: Any) -> dict[str, str]:
    """Thought, text and arguments of a reply in one piece."""
    got = {"thought": "", "text": "", "call": ""}
    if "content" in answer:
        for block in answer["content"]:
            if block["type"] == "tool_use":
                got["call"] += json.dumps(block["input"])
            else:
                kind = "thought" if block["type"] == "thinking" else "text"
                got[kind] += block[block["type"]]
        return got
    choice = answer["choices"][0]
    message = choice.get("message", {"content": choice.get("text")})
    got["thought"] = message.get("reasoning_content", "")
    got["text"] = message["content"] or ""
    for call in message.get("tool_calls", ()):
        got["call"] += call["function"]["arguments"]
    return got


def streamed(events: list[tuple[str | None, Any]]) -> dict[str, str]:
    """The same of a reply in events, which must have come to its end."""
    got = {"thought": "", "text": "", "call": ""}
    last = events[-1][1]
    assert last == "[DONE]" or last["type"] == "message_stop", last
    for _, value in events:
        if value == "[DONE]":
            continue
        if value.get("type") == "content_block_delta":
            delta = value["delta"]
            got["thought"] += delta.get("thinking", "")
            got["text"] += delta.get("text", "")
            got["call"] += delta.get("partial_json", "")
        for choice in value.get("choices", ()):
            delta = choice.get("delta", {"content": choice.get("text")})
            got["thought"] += delta.get("reasoning_content") or ""
            got["text"] += delta.get("content") or ""
            for call in delta.get("tool_calls", ()):
                got["call"] += call["function"]["arguments"]
    return got


def leave(server: Served, path: str, body: dict[str, Any], after_s: float) -> None:
    """Ask, and hang up after a while, wherever the reply is by then."""
    host, port = server.url.removeprefix("http://").split(":")
    data = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(data)}\r\n\r\n"
    )
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(head.encode() + data)
        time.sleep(after_s)


def client(server: Served, number: int, requests: int) -> dict[str, int]:
    """Ask one after the other; how many were answered, refused and given up."""
    chance = random.Random(number)
    counts = {"answered": 0, "refused": 0, "left": 0}
    with httpx.Client(base_url=server.url, timeout=60, trust_env=False) as http:
        for index in range(requests):
            case = number * 1_000_000 + index
            path, body, right = chance.choice(KINDS)(case)
            stream = chance.random() < 0.5
            if chance.random() < GIVEN_UP:
                leave(server, path, {**body, "stream": stream}, chance.random() * 0.02)
                counts["left"] += 1
            elif chance.random() < 0.05:
                path, body = chance.choice(WRONG)
                assert http.post(path, json=body).status_code == 400
                counts["refused"] += 1
            else:
                response = http.post(path, json={**body, "stream": stream})
                assert response.status_code == 200, response.text
                got = streamed(events_of(response)) if stream else whole(response.json())
                assert right(got), (path, body, got)
                counts["answered"] += 1
    return counts


class MallInfo(ctypes.Structure):
    """What glibc's ``mallinfo2`` returns."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


def in_use() -> tuple[int, int]:
    """Blocks of Python's allocator and bytes of malloc that are in use, whatever both have kept.

    Not the process's resident memory: that moves by tens of MiB with the pools both keep. The
    second is 0 where the C library does not say.
    """
    gc.collect()
    native = 0
    library = ctypes.CDLL(None)
    if hasattr(library, "mallinfo2"):
        library.mallinfo2.restype = MallInfo
        info = library.mallinfo2()
        native = info.uordblks + info.hblkhd
    return sys.getallocatedblocks(), native


def left_over() -> list[str]:
    """What belongs to a request and is still there."""
    gc.collect()
    kinds = [type(one) for one in gc.get_objects()]
    return [kind.__name__ for kind in kinds if kind in (Turn, Job, ReplySplitter)]


def gone_within(seconds: float) -> list[str]:
    """What stays: the task of a client that hung up ends shortly after its job has."""
    until = time.monotonic() + seconds
    while (left := left_over()) and time.monotonic() < until:
        time.sleep(0.05)
    return left


def test_two_thousand_requests_leave_nothing_behind(tokenizer: Tokenizer) -> None:
    engine = answering(tokenizer, reply, max_len=8192)
    assert isinstance(engine.executor, ScriptedExecutor)
    engine.executor.pass_s = PASS_S
    found: list[dict[str, int]] = []
    with served(engine, max_queue=64) as server:

        def half(first: int) -> tuple[int, int]:
            """Run half of it; threads and open files once all is quiet."""
            with ThreadPoolExecutor(CLIENTS) as pool:
                numbers = range(first, first + CLIENTS)
                each = REQUESTS // 2 // CLIENTS
                found.extend(pool.map(lambda number: client(server, number, each), numbers))
            assert server.wait_idle(5) < 1
            assert gone_within(5) == []
            return threading.active_count(), len(os.listdir("/proc/self/fd"))

        threads, files = half(1)
        blocks, native = in_use()
        more_threads, more_files = half(1 + CLIENTS)
        more_blocks, more_native = in_use()
        assert more_blocks - blocks < MOST_BLOCKS
        assert more_native - native < MOST_NATIVE
        assert more_threads <= threads + 8  # the pool that renders grows to the most at once
        assert more_files <= files + 4
        facts = server.health()
        assert (facts["running"], facts["waiting"], facts["status"]) == (0, 0, "ready")
        path, body, right = openai_chat(7)
        assert right(whole(server.post(path, body).json()))
        with server.http as http:
            metrics = http.get("/metrics").text
        assert 'status="500"' not in metrics and "in stream" not in metrics
    total = {name: sum(one[name] for one in found) for name in found[0]}
    asked = len(found) * (REQUESTS // 2 // CLIENTS)
    assert sum(total.values()) == asked
    assert total["answered"] > asked / 2 and total["left"] > asked / 4
