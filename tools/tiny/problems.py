"""Seeded arithmetic word problems in GSM8K's answer format, and the held-out set of 300.

Contract: `problem(rng)` is a pure function of the random state. Answers are worked steps with
calculator annotations (`12 + 7 = <<12+7=19>>19`) and end in `#### N`, N a non-negative integer.
`conversation` wraps a problem as chat messages with or without reasoning. Training draws from seeds
below HELD_OUT_SEED, the held-out set from seeds at and above it; `held_out()` is the set itself, so
a training set can be checked against its questions.

    python tools/tiny/problems.py --out evals/src/bytebound_evals/data/problems.jsonl
"""

# ruff: noqa: SIM905 -- word lists read better as sentences
from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

HELD_OUT_SEED = 1_000_000_000
HELD_OUT_COUNT = 300

NAMES = """Ada Ben Clara Dan Emma Finn Grace Hugo Ida Jack Kira Leo Mia Noah Olga Paul Rosa Sam
Tina Umar Vera Will Yara Zoe Amir Bella Carl Diana Eric Fatima George Hannah Ivan Julia Kevin Laura
Marco Nina Oscar Priya""".split()
OBJECTS = """apples pears marbles stickers coins books pencils cards shells stamps cookies buttons
balloons oranges stones toys beads tickets eggs flowers peanuts ribbons photos badges candles
crayons plums lemons""".split()
CONTAINERS = "boxes bags baskets jars crates trays packs".split()
PLACES = "shop market school library park farm kitchen garage".split()
GOODS = "notebook,pen,sandwich,ticket,cap,toy car,lamp,mug,ball,poster,cake,map".split(",")
ANIMALS = (("chickens", 2), ("cows", 4), ("spiders", 8), ("ants", 6), ("dogs", 4), ("ducks", 2))
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()


@dataclass(slots=True)
class Work:
    """The worked steps of one solution."""

    steps: list[str] = field(default_factory=list)
    plain: list[str] = field(default_factory=list)
    value: int = 0

    def do(self, lead: str, a: int, op: str, b: int, unit: str) -> int:
        """Appends `lead a op b = <<a op b=r>>r unit.` and returns r."""
        results = {"+": a + b, "-": a - b, "*": a * b, "/": a // b if b else -1}
        r = results[op]
        if r < 0 or (op == "/" and a % b):
            raise ValueError(f"not a non-negative integer: {a}{op}{b}")
        self.steps.append(f"{lead} {a} {op} {b} = <<{a}{op}{b}={r}>>{r} {unit}.")
        self.plain.append(f"{a} {op} {b} = {r}")
        self.value = r
        return r


@dataclass(frozen=True, slots=True)
class Problem:
    question: str
    answer: str
    reasoning: str


def _two_names(rng: random.Random) -> tuple[str, str]:
    a, b = rng.sample(NAMES, 2)
    return a, b


def _story(rng: random.Random, work: Work) -> str:
    """A person owns things; one to three events change the number."""
    name, other = _two_names(rng)
    things = rng.choice(OBJECTS)
    place = rng.choice(PLACES)
    now = rng.randint(5, 60)
    text = [
        rng.choice(
            (
                f"{name} has {now} {things}.",
                f"{name} starts with {now} {things}.",
                f"There are {now} {things} on the table of {name}.",
            )
        )
    ]
    for _ in range(rng.randint(1, 3)):
        event = rng.choice(("gain", "gain", "lose", "lose", "times", "split"))
        if event == "gain":
            n = rng.randint(2, 40)
            text.append(
                rng.choice(
                    (
                        f"{name} buys {n} more {things} at the {place}.",
                        f"{other} gives {name} {n} more.",
                        f"Then {name} finds {n} {things} near the {place}.",
                    )
                )
            )
            now = work.do(f"{name} now has", now, "+", n, things)
        elif event == "lose" and now > 3:
            n = rng.randint(1, now - 1)
            text.append(
                rng.choice(
                    (
                        f"{name} gives {n} of them to {other}.",
                        f"{name} loses {n} {things}.",
                        f"{name} sells {n} {things} at the {place}.",
                    )
                )
            )
            now = work.do(f"{name} has left", now, "-", n, things)
        elif event == "times" and now <= 40:
            n = rng.choice((2, 2, 3))
            word = {2: "doubles", 3: "triples"}[n]
            text.append(f"Then {name} {word} the number of {things}.")
            now = work.do(f"{name} now has", now, "*", n, things)
        elif now % 2 == 0 and now > 3:
            text.append(f"{name} gives half of the {things} to {other}.")
            now = work.do("Half of them is", now, "/", 2, things)
    if not work.steps:
        n = rng.randint(2, 30)
        text.append(f"{other} gives {name} {n} more.")
        work.do(f"{name} now has", now, "+", n, things)
    text.append(
        rng.choice(
            (
                f"How many {things} does {name} have now?",
                f"How many {things} does {name} have in the end?",
                f"How many {things} are left with {name}?",
            )
        )
    )
    return " ".join(text)


def _containers(rng: random.Random, work: Work) -> str:
    name = rng.choice(NAMES)
    things, boxes = rng.choice(OBJECTS), rng.choice(CONTAINERS)
    n, per = rng.randint(2, 9), rng.randint(2, 15)
    text = rng.choice(
        (
            f"{name} has {n} {boxes} with {per} {things} in each.",
            f"There are {n} {boxes}, and each holds {per} {things}. They belong to {name}.",
            f"{name} fills {n} {boxes} with {per} {things} each.",
        )
    )
    total = work.do(f"The {boxes} hold", n, "*", per, things)
    ending = rng.randrange(3)
    if ending == 0:
        return f"{text} How many {things} are there in all?"
    if ending == 1:
        k = rng.randint(1, total - 1)
        work.do("That leaves", total, "-", k, things)
        return f"{text} {name} takes out {k} {things}. How many {things} are left in the {boxes}?"
    k = rng.randint(1, 30)
    work.do("Together that makes", total, "+", k, things)
    return f"{text} {k} more {things} lie on the floor. How many {things} are there altogether?"


def _shopping(rng: random.Random, work: Work) -> str:
    name = rng.choice(NAMES)
    first, second = rng.sample(GOODS, 2)
    n, price = rng.randint(2, 8), rng.randint(2, 12)
    cost = work.do(f"The {first}s cost", n, "*", price, "dollars")
    text = f"A {first} costs {price} dollars. {name} buys {n} of them"
    if rng.random() < 0.5:
        other = rng.randint(2, 30)
        cost = work.do("All together it costs", cost, "+", other, "dollars")
        text += f" and a {second} for {other} dollars"
    if rng.random() < 0.5:
        paid = rng.choice([p for p in (20, 50, 100, 150, 200) if p >= cost])
        work.do("The change is", paid, "-", cost, "dollars")
        return f"{text}, and pays with {paid} dollars. How many dollars of change does {name} get?"
    return f"{text}. How many dollars does {name} pay?"


def _sharing(rng: random.Random, work: Work) -> str:
    name = rng.choice(NAMES)
    things = rng.choice(OBJECTS)
    friends, each = rng.randint(2, 9), rng.randint(2, 12)
    total = friends * each
    extra = rng.randint(0, 1) * rng.randint(1, total - 1)
    if extra:
        start = work.do(f"{name} has in all", total - extra, "+", extra, things)
        text = f"{name} has {total - extra} {things} and gets {extra} more."
    else:
        start, text = total, f"{name} has {total} {things}."
    got = work.do("Each friend gets", start, "/", friends, things)
    text += f" {name} shares them equally among {friends} friends."
    if rng.random() < 0.3:
        eaten = rng.randint(1, got)
        work.do("After that one friend has", got, "-", eaten, things)
        return f"{text} One friend gives {eaten} back. How many {things} does that friend keep?"
    return f"{text} How many {things} does each friend get?"


def _compare(rng: random.Random, work: Work) -> str:
    name, other = _two_names(rng)
    things = rng.choice(OBJECTS)
    a, d = rng.randint(3, 60), rng.randint(2, 30)
    kind = rng.randrange(4)
    if kind == 0:
        b = work.do(f"{other} has", a, "+", d, things)
        work.do("Together they have", a, "+", b, things)
        return (
            f"{name} has {a} {things}. {other} has {d} more {things} than {name}. "
            f"How many {things} do they have together?"
        )
    if kind == 1:
        a += d
        b = work.do(f"{other} has", a, "-", d, things)
        work.do("Together they have", a, "+", b, things)
        return (
            f"{name} has {a} {things}. {other} has {d} fewer {things} than {name}. "
            f"How many {things} do they have together?"
        )
    if kind == 2:
        a, n = rng.randint(2, 20), rng.randint(2, 5)
        b = work.do(f"{other} has", n, "*", a, things)
        if rng.random() < 0.5:
            work.do("The difference is", b, "-", a, things)
            return (
                f"{name} has {a} {things}. {other} has {n} times as many. "
                f"How many more {things} does {other} have than {name}?"
            )
        work.do("Together they have", a, "+", b, things)
        return (
            f"{name} has {a} {things}. {other} has {n} times as many. "
            f"How many {things} do they have together?"
        )
    work.do("The difference is", a + d, "-", a, things)
    return (
        f"{name} has {a + d} {things} and {other} has {a} {things}. "
        f"How many more {things} does {name} have?"
    )


def _rate(rng: random.Random, work: Work) -> str:
    name = rng.choice(NAMES)
    rate, time = rng.randint(2, 15), rng.randint(2, 9)
    verb, unit, span = rng.choice(
        (
            ("reads", "pages", "day"),
            ("walks", "miles", "day"),
            ("earns", "dollars", "hour"),
            ("paints", "chairs", "day"),
            ("bakes", "cakes", "hour"),
            ("writes", "letters", "week"),
            ("plants", "trees", "day"),
        )
    )
    done = work.do(f"In {time} {span}s that makes", rate, "*", time, unit)
    text = f"{name} {verb} {rate} {unit} every {span} for {time} {span}s."
    if rng.random() < 0.4:
        goal = done + rng.randint(1, 40)
        work.do("Still missing are", goal, "-", done, unit)
        return f"{text} The goal is {goal} {unit}. How many {unit} are still missing?"
    if rng.random() < 0.3:
        more = rng.randint(1, 30)
        work.do("The total is", done, "+", more, unit)
        return (
            f"{text} On the last {span}, {more} {unit} come on top. How many {unit} is that in all?"
        )
    return f"{text} How many {unit} is that in all?"


def _days(rng: random.Random, work: Work) -> str:
    name = rng.choice(NAMES)
    things = rng.choice(OBJECTS)
    days = rng.sample(DAYS, rng.randint(2, 3))
    counts = [rng.randint(2, 40) for _ in days]
    parts = [f"{n} {things} on {day}" for n, day in zip(counts, days, strict=True)]
    verb = rng.choice(("collects", "sells", "counts", "packs"))
    total = counts[0]
    for i, n in enumerate(counts[1:]):
        total = work.do(
            "After the next day the sum is" if i else "The first two days make",
            total,
            "+",
            n,
            things,
        )
    listed = ", ".join(parts[:-1]) + " and " + parts[-1]
    return f"{name} {verb} {listed}. How many {things} is that in total?"


def _legs(rng: random.Random, work: Work) -> str:
    (a, la), (b, lb) = rng.sample(ANIMALS, 2)
    n, m = rng.randint(2, 12), rng.randint(2, 12)
    x = work.do(f"The {a} have", n, "*", la, "legs")
    y = work.do(f"The {b} have", m, "*", lb, "legs")
    work.do("Together they have", x, "+", y, "legs")
    return (
        f"On a farm there are {n} {a} with {la} legs each and {m} {b} with {lb} legs each. "
        f"How many legs are there in total?"
    )


def _age(rng: random.Random, work: Work) -> str:
    name, other = _two_names(rng)
    a, d, later = rng.randint(4, 40), rng.randint(2, 25), rng.randint(2, 20)
    b = work.do(f"Today {other} is", a, "+", d, "years old")
    if rng.random() < 0.5:
        work.do(f"In {later} years {other} will be", b, "+", later, "years old")
        return (
            f"{name} is {a} years old. {other} is {d} years older. "
            f"How old will {other} be in {later} years?"
        )
    return f"{name} is {a} years old. {other} is {d} years older than {name}. How old is {other}?"


def _bare(rng: random.Random, work: Work) -> str:
    """A sum without a story."""
    op = rng.choice("+-*/")
    a, b = rng.randint(2, 99), rng.randint(2, 99)
    if op == "-":
        a, b = max(a, b), min(a, b)
    elif op == "*":
        a, b = rng.randint(2, 12), rng.randint(2, 15)
    elif op == "/":
        b = rng.randint(2, 9)
        a = b * rng.randint(2, 12)
    work.do("We compute", a, op, b, "in all")
    word = {"+": "plus", "-": "minus", "*": "times", "/": "divided by"}[op]
    shown = rng.choice((f"{a} {op} {b}", f"{a} {word} {b}"))
    return rng.choice((f"What is {shown}?", f"Compute {shown}.", f"How much is {shown}?"))


TEMPLATES: tuple[Callable[[random.Random, Work], str], ...] = (
    _story,
    _story,
    _story,
    _containers,
    _containers,
    _shopping,
    _sharing,
    _compare,
    _compare,
    _rate,
    _days,
    _legs,
    _age,
    _bare,
)


def problem(rng: random.Random) -> Problem:
    """One problem; the answer ends in `#### N`."""
    work = Work()
    question = rng.choice(TEMPLATES)(rng, work)
    answer = "\n".join(work.steps) + f"\n#### {work.value}"
    reasoning = (
        "We need these steps: " + ", then ".join(work.plain) + f". So the answer is {work.value}."
    )
    return Problem(question, answer, reasoning)


def conversation(item: Problem, thinking: bool) -> list[dict[str, str]]:
    """Chat messages; without thinking the template writes an empty think block."""
    reply = {"role": "assistant", "content": item.answer}
    if thinking:
        reply["reasoning_content"] = item.reasoning
    return [{"role": "user", "content": item.question}, reply]


def held_out() -> list[Problem]:
    """300 problems with distinct questions, from seeds that training never uses."""
    found: dict[str, Problem] = {}
    seed = HELD_OUT_SEED
    while len(found) < HELD_OUT_COUNT:
        item = problem(random.Random(seed))
        found.setdefault(item.question, item)
        seed += 1
    return list(found.values())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    rows = [json.dumps({"question": p.question, "answer": p.answer}) for p in held_out()]
    args.out.write_text("\n".join(rows) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
