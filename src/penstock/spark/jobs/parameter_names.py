"""Replaces the source's option names in errors by the job's Python parameters, which the caller knows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from penstock.base.errors import ConfigError
from penstock.spark.data_loss import GO_ON, DataLossError

PARAMETER_GO_ON = "Set fail_on_data_loss to False to go on all the same"


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


@contextmanager
def loss_named(go_on: str = PARAMETER_GO_ON) -> Iterator[None]:
    """Re-raise a DataLossError with `go_on` instead of the advice that names the source's option."""
    try:
        yield
    except DataLossError as error:
        raise DataLossError(str(error).replace(GO_ON, go_on)) from error
