"""Values of settings as given by the places of a config, and mistakes in them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from penstock.broker.config.settings import SETTINGS


class SourcedValue(NamedTuple):
    """The value of a setting, and the place that gave it."""

    value: Any
    origin: str


class ConfigMistakes(list[str]):
    """The mistakes so far, and the settings without a valid value, which must not cause further mistakes."""

    def __init__(self) -> None:
        super().__init__()
        self.without_value: set[str] = set()


def value_of(given: Mapping[str, SourcedValue], name: str) -> Any:
    """Return the value of a setting, or its default."""
    at = given.get(name)
    return SETTINGS[name].default if at is None else at.value


def origin_of(given: Mapping[str, SourcedValue], name: str) -> str:
    """Return the place that set it."""
    at = given.get(name)
    return f"{name} (default)" if at is None else at.origin
