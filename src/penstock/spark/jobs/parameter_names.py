"""Replaces the source's option names in errors by the job's Python parameters, which the caller knows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from penstock.base.errors import ConfigError


@contextmanager
def options_named(names: Mapping[str, str]) -> Iterator[None]:
    """Re-raise a ConfigError with the job's parameters instead of the source's options."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError([_renamed(one, names) for one in error.mistakes]) from None


def _renamed(mistake: str, names: Mapping[str, str]) -> str:
    option, sign, text = mistake.partition(": ")
    return f"{names[option]}{sign}{text}" if option in names else mistake
