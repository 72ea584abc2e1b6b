"""Results are said in the same words and digits everywhere."""

from __future__ import annotations

import pytest

from penstock_bench.measure.refusals import refusal
from penstock_bench.measure.rounds import Ratio
from penstock_bench.results import wording


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "1 second"), (40.4, "40 seconds"), (60.0, "1 minute"), (89.0, "1 minute"), (500.0, "8 minutes")],
)
def test_times_are_as_people_say_them(seconds: float, text: str) -> None:
    assert wording.minutes(seconds) == text


@pytest.mark.parametrize(("value", "text"), [(1596.1, "1,596"), (12.34, "12.3"), (0.4304, "0.43"), (0.0042, "0.0042")])
def test_milliseconds_have_three_digits(value: float, text: str) -> None:
    assert wording.milliseconds(value) == text


@pytest.mark.parametrize(("value", "text"), [(7016.4, "7,016"), (67.449, "67.4"), (0.654, "0.654")])
def test_numbers_have_three_digits_that_matter(value: float, text: str) -> None:
    assert wording.number(value) == text


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (Ratio(1.5, 1.4, 1.6, 5), "1.50 × (1.40 to 1.60, 5 rounds)"),
        (Ratio(86.16, 70.8, 101.51, 2), "86.2 × (70.8 to 102, 2 rounds)"),
        (Ratio(1.5, 1.5, 1.5, 1), "1.50 × (1 round: no spread)"),
        (Ratio(1.5, 1.5, 1.5, 1, pooled=True), "1.50 × (all rounds as one: no spread)"),
    ],
)
def test_a_ratio_has_its_spread_or_says_why_not(ratio: Ratio, text: str) -> None:
    assert wording.ratio(ratio) == text


def test_cpu_is_of_who_answers_of_nats_and_of_who_asks() -> None:
    assert wording.cpu_columns({"nats-server": 3.384, "generator": 0.1}) == ["", "3.38", "0.10"]
    assert wording.cpu_columns({"broker": 1.0, "disk": 0.5, "reader": 0.0}) == ["1.50", "", "0.00"]


def test_void_rounds_are_told_in_a_sentence() -> None:
    assert wording.voids("penstock", 1, 4, "no") == "penstock: 1 of 5 rounds does not count: no"
    assert wording.voids("penstock", 5, 0, "no") == "penstock: 5 of 5 rounds do not count: no"


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ('{"error":{"code":400,"description":"too large"},"seq":0}', "too large (code 400)"),
        ('not waited for: {"error":{"code":503,"description":"no room"}}', "not waited for: no room (code 503)"),
        ('{"error":{"code":400,"descr', '{"error":{"code":400,"descr'),
        ('{"seq": 1}', '{"seq": 1}'),
        ("NATS/1.0 503\r\n\r\n", "no responders: the subject has no subscriber (NATS/1.0 503)"),
        ("-ERR 'Maximum Payload'\r\n", "-ERR 'Maximum Payload'"),
        ("", ""),
    ],
)
def test_what_was_no_ack_is_told_in_words(said: str, text: str) -> None:
    assert refusal(said) == text


def test_a_goal_says_in_which_direction_it_lies() -> None:
    assert wording.goal(1.5, at_most=False, unit="×") == "≥ 1.5 ×"
    assert wording.goal(3.0, at_most=True) == "≤ 3"
    assert wording.goal(None, at_most=True) == ""
