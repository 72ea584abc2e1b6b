"""What the places of a config gave, setting by setting, before it is one config; and what is wrong with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from penstock.broker.settings import SETTINGS


class Given(NamedTuple):
    """The value of a setting, and the place that gave it."""

    value: Any
    origin: str


class Mistakes(list[str]):
    """What is wrong so far, and which settings have no value for it (so that nothing more is concluded from them)."""

    def __init__(self) -> None:
        super().__init__()
        self.without_value: set[str] = set()


def value_of(given: Mapping[str, Given], name: str) -> Any:
    """What the setting is, its default where nobody set it."""
    at = given.get(name)
    return SETTINGS[name].default if at is None else at.value


def origin_of(given: Mapping[str, Given], name: str) -> str:
    """Which place set it."""
    at = given.get(name)
    return f"{name} (default)" if at is None else at.origin
