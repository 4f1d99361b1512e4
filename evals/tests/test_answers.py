from fractions import Fraction

import pytest
from bytebound_evals.answers import extract_answer, show, without_thought

ANSWERS = {
    # the marker of the dataset
    "2 + 3 = 5\n#### 5": "5",
    "#### -1,234.50 dollars": "-1234.5",
    "#### 12 eggs out of 20": "12",
    "#### 3\nQuestion: ...\n#### 4": "4",
    "####5": "5",
    "####\nso it is 6": "6",
    "#### $18": "18",
    "#### 3 + 4 = 7": "7",
    # a box
    r"so \boxed{42}.": "42",
    r"\boxed{1{,}000}": "1000",
    r"\boxed{1\,000}": "1000",
    r"\boxed{\$42.00}": "42",
    r"\boxed{\frac{3}{4}}": "0.75",
    r"\boxed{-\dfrac{1}{2}}": "-0.5",
    r"\boxed{x = 12}": "12",
    r"\boxed{42\text{ dollars and }}": "42",
    r"\boxed{7} is right, not 9": "7",
    r"first \boxed{1}, then \boxed{2}": "2",
    r"\boxed{50\%}": "50",
    r"Step 9: the box is \boxed{\text{none}}; answer: 8": "8",
    # a phrase
    "The answer is 42 (which is 6 * 7).": "42",
    "The answer is 3 + 4 = 7.": "7",
    "**Answer: 12** and that took 3 steps": "12",
    "Final answer = 9\nThanks for 10 questions": "9",
    # the last number
    "18.": "18",
    "He pays 18 dollars.": "18",
    "It costs $1,000,000.00!": "1000000",
    "1\u202f000\u202f000 people": "1000000",
    "so 10-5 = 5": "5",
    "3 − 5 = −2": "-2",
    "it drops to -5": "-5",
    "it costs -$5": "-5",
    "(-5)": "-5",
    "x=-5": "-5",
    "a range of 2-4": "4",
    ".5": "0.5",
    "5kg": "5",
    "5 apples / 3": "3",
    "2/3": "2/3",
    "1,2,3": "3",
    "it is <<48/2=24>>24 clips": "24",
    "7 (seven)": "7",
    "120,": "120",
    "18.0000": "18",
    "0.0625": "0.0625",
    "100%": "100",
    "1/0 is no number but 1": "1",
    # thoughts
    "We need 7.\n</think>\n\nIt is 8": "8",
    "<think>\n5\n</think>\n#### 7": "7",
    # none
    "I do not know": None,
    "": None,
    "<think>so 7, #### 7": None,
    "1</think>2<think>3": None,
    "no number: " + "1" * 5000: None,
    # the power of a unit
    "The garden covers 48 m^2.": "48",
    r"\boxed{1000\text{ km}^2}": "1000",
    r"\boxed{12 \mathrm{cm}^{3}}": "12",
    "x^2 = 49, so x = 7": "7",
    "5 * 10^2 = 500": "500",
    "#### 12 #### 13": "13",
}


@pytest.mark.parametrize(("reply", "answer"), ANSWERS.items())
def test_the_answer_of_a_reply(reply: str, answer: str | None) -> None:
    assert show(extract_answer(reply)) == answer


def test_forms_of_the_same_number_are_the_same_answer() -> None:
    forms = ["42", "42.0", "42.", "$42", "42 apples", r"\boxed{42}", "#### 42", "84/2", "+42"]
    assert {extract_answer(form) for form in forms} == {Fraction(42)}


def test_a_thought_is_what_stands_before_its_last_end() -> None:
    assert without_thought("a</think>b</think>c") == "c"
    assert without_thought("no thought") == "no thought"


@pytest.mark.parametrize(
    ("answer", "shown"),
    [
        (Fraction(0), "0"),
        (Fraction(-7), "-7"),
        (Fraction(1, 4), "0.25"),
        (Fraction(-1, 1024), "-0.0009765625"),
        (Fraction(1, 3), "1/3"),
        (Fraction(1000), "1000"),
        (Fraction(1, 50), "0.02"),
    ],
)
def test_an_answer_is_shown_exactly(answer: Fraction, shown: str) -> None:
    assert show(answer) == shown
    assert Fraction(shown) == answer
