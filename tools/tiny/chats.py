"""Seeded short conversations: small talk, facts, lists, tool calls, look-ups in a long text.

Contract: `chat(rng)` is a pure function of the random state and returns (messages, tools) for the
chat template. They teach the forms (turns, tool calls, tool results, reading a value back), not
knowledge; there is no outside data.
"""

# ruff: noqa: SIM905 -- word lists read better as sentences
from __future__ import annotations

import random
from typing import Any

Message = dict[str, Any]
Chat = tuple[list[Message], list[dict[str, Any]] | None]

CAPITALS = {
    "France": "Paris", "Germany": "Berlin", "Italy": "Rome", "Spain": "Madrid",
    "Portugal": "Lisbon", "Japan": "Tokyo", "China": "Beijing", "India": "New Delhi",
    "Egypt": "Cairo", "Kenya": "Nairobi", "Norway": "Oslo", "Sweden": "Stockholm",
    "Finland": "Helsinki", "Poland": "Warsaw", "Greece": "Athens", "Austria": "Vienna",
    "Canada": "Ottawa", "Mexico": "Mexico City", "Peru": "Lima", "Chile": "Santiago",
    "Cuba": "Havana", "Ireland": "Dublin", "Russia": "Moscow", "Turkey": "Ankara",
    "Thailand": "Bangkok",
}  # fmt: skip
OPPOSITES = {
    "hot": "cold", "big": "small", "old": "new", "fast": "slow", "early": "late", "open": "closed",
    "full": "empty", "light": "dark", "high": "low", "wet": "dry", "strong": "weak", "rich": "poor",
}  # fmt: skip
WORDS = (
    "river garden window bridge candle forest letter market silver yellow simple winter summer "
    "mountain pencil island rocket basket tiger planet button castle engine"
).split()
COLOURS = "red blue green black white yellow grey brown orange violet".split()
THINGS = "box door locker safe folder room parcel key".split()
CITIES = list(CAPITALS.values())

HELLO = (
    "Hello!",
    "Hi!",
    "Hey there!",
    "Good morning!",
    "Hello, how are you?",
    "Hi, how are you today?",
)
HELLO_REPLY = (
    "Hello! How can I help you?",
    "Hi! What can I do for you today?",
    "Hello! I am well, thank you. How can I help?",
)
WHO = ("Who are you?", "What are you?", "What is your name?", "Tell me about yourself.")
WHO_REPLY = (
    "I am tiny, a very small language model that comes with bytebound. I can do simple sums and "
    "write short texts."
)
CAN = ("What can you do?", "How can you help me?", "What are you good at?")
CAN_REPLY = (
    "I can solve simple arithmetic problems, answer a few short questions and call tools. I am a "
    "small model, so please check what I say."
)
THANKS = ("Thank you!", "Thanks a lot.", "Thanks!", "Great, thank you.")
THANKS_REPLY = ("You are welcome!", "You are welcome. Is there anything else?", "Happy to help!")
BYE = ("Goodbye!", "Bye!", "See you later.")
BYE_REPLY = ("Goodbye! Have a nice day.", "Bye! Take care.")
SYSTEMS = ("You are a helpful assistant.", "You are tiny, a small assistant.", "Answer briefly.")


def _tool(name: str, description: str, **parameters: str) -> dict[str, Any]:
    properties = {key: {"type": kind} for key, kind in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": list(parameters)}
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": schema},
    }


TOOLS = {
    "get_weather": _tool("get_weather", "Current weather of a city", city="string"),
    "get_time": _tool("get_time", "Current local time of a city", city="string"),
    "add": _tool("add", "Add two numbers", a="integer", b="integer"),
    "multiply": _tool("multiply", "Multiply two numbers", a="integer", b="integer"),
    "search": _tool("search", "Search the documents", query="string"),
    "read_file": _tool("read_file", "Read a text file", path="string"),
}


def _exchange(rng: random.Random) -> tuple[str, str]:
    """One question of the user and its answer."""
    kind = rng.randrange(9)
    if kind == 0:
        return rng.choice(HELLO), rng.choice(HELLO_REPLY)
    if kind == 1:
        return rng.choice(WHO), WHO_REPLY
    if kind == 2:
        return rng.choice(CAN), CAN_REPLY
    if kind == 3:
        country, city = rng.choice(list(CAPITALS.items()))
        ask = rng.choice(("What is the capital of {}?", "Which city is the capital of {}?"))
        return ask.format(country), f"The capital of {country} is {city}."
    if kind == 4:
        word, other = rng.choice(list(OPPOSITES.items()))
        return f"What is the opposite of {word}?", f"The opposite of {word} is {other}."
    if kind == 5:
        words = " ".join(rng.sample(WORDS, rng.randint(2, 6)))
        return f"Repeat these words: {words}", words
    if kind == 6:
        start, count = rng.randint(1, 40), rng.randint(3, 10)
        listed = ", ".join(str(start + i) for i in range(count))
        return f"Count from {start} to {start + count - 1}.", listed
    if kind == 7:
        words = rng.sample(WORDS, rng.randint(3, 5))
        return f"Sort these words: {', '.join(words)}", ", ".join(sorted(words))
    return rng.choice(THANKS), rng.choice(THANKS_REPLY)


def small_talk(rng: random.Random) -> Chat:
    messages: list[Message] = []
    if rng.random() < 0.4:
        messages.append({"role": "system", "content": rng.choice(SYSTEMS)})
    for _ in range(rng.randint(1, 4)):
        question, answer = _exchange(rng)
        messages += [
            {"role": "user", "content": question},
            {"role": "assistant", "content": answer},
        ]
    if rng.random() < 0.1:
        messages.append({"role": "user", "content": rng.choice(BYE)})
        messages.append({"role": "assistant", "content": rng.choice(BYE_REPLY)})
    return messages, None


def _call(rng: random.Random, name: str) -> tuple[str, dict[str, Any], str, str]:
    """(question, arguments, result, final answer) for one tool."""
    if name == "get_weather":
        city, degrees = rng.choice(CITIES), rng.randint(-5, 35)
        sky = rng.choice(("sunny", "cloudy", "rainy", "windy"))
        ask = rng.choice(("What is the weather in {}?", "How is the weather in {} today?"))
        result = f'{{"sky": "{sky}", "degrees": {degrees}}}'
        return (
            ask.format(city),
            {"city": city},
            result,
            f"It is {sky} in {city}, {degrees} degrees.",
        )
    if name == "get_time":
        city, clock = rng.choice(CITIES), f"{rng.randint(0, 23):02d}:{rng.randint(0, 59):02d}"
        return f"What time is it in {city}?", {"city": city}, clock, f"It is {clock} in {city}."
    if name in ("add", "multiply"):
        a, b = rng.randint(2, 999), rng.randint(2, 999)
        r = a + b if name == "add" else a * b
        verb = "Add" if name == "add" else "Multiply"
        link = "to" if name == "add" else "by"
        question = f"{verb} {a} {link} {b}." if name == "multiply" else f"Add {a} and {b}."
        return question, {"a": a, "b": b}, str(r), f"The result is {r}."
    word = " ".join(rng.sample(WORDS, 2))
    if name == "search":
        count = rng.randint(0, 40)
        return (
            f"Search for {word}.",
            {"query": word},
            f"{count} results",
            f"I found {count} results.",
        )
    path = f"{rng.choice(WORDS)}/{rng.choice(WORDS)}.txt"
    return f"What does {path} say?", {"path": path}, word, f"The file says: {word}"


def tool_use(rng: random.Random) -> Chat:
    names = rng.sample(list(TOOLS), rng.randint(1, 4))
    name = rng.choice(names)
    question, arguments, result, answer = _call(rng, name)
    call = {"type": "function", "function": {"name": name, "arguments": arguments}}
    messages: list[Message] = []
    if rng.random() < 0.3:
        messages.append({"role": "system", "content": rng.choice(SYSTEMS)})
    messages.append({"role": "user", "content": question})
    thought = {"reasoning_content": f"I should call {name}."} if rng.random() < 0.4 else {}
    messages.append({"role": "assistant", "content": "", "tool_calls": [call], **thought})
    if rng.random() < 0.7:
        messages.append({"role": "tool", "content": result})
        messages.append({"role": "assistant", "content": answer})
    return messages, [TOOLS[n] for n in names]


def look_up(rng: random.Random) -> Chat:
    """Facts hidden among other sentences; one is asked for."""
    keys = [f"{colour} {thing}" for colour in COLOURS for thing in THINGS]
    facts = {key: rng.randint(1000, 9999) for key in rng.sample(keys, rng.randint(2, 6))}
    lines = [f"The code of the {key} is {code}." for key, code in facts.items()]
    for _ in range(rng.choice((0, 4, 12, 30))):
        a, b, c = rng.sample(WORDS, 3)
        filler = rng.choice(
            (
                f"The {a} is near the {b}.",
                f"A {a} stands by the {b} and the {c}.",
                f"We saw a {a} and a {b}.",
            )
        )
        lines.insert(rng.randrange(len(lines) + 1), filler)
    key = rng.choice(list(facts))
    question = " ".join(lines) + f" What is the code of the {key}?"
    answer = f"The code of the {key} is {facts[key]}."
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}], None


def chat(rng: random.Random) -> Chat:
    return rng.choices((small_talk, tool_use, look_up), weights=(4, 3, 3))[0](rng)
