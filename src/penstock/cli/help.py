"""Commands whose `--help` is shown as a switch, which it is, and not as an option that takes a `<bool>`."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup


class Command(TyperCommand):
    """See the module."""

    def get_help_option(self, ctx: Any) -> Any:
        """The option, without a name for a value."""
        return _as_switch(super().get_help_option(ctx))


class Group(TyperGroup):
    """See the module."""

    def get_help_option(self, ctx: Any) -> Any:
        """The option, without a name for a value."""
        return _as_switch(super().get_help_option(ctx))


def _as_switch(option: Any) -> Any:
    if option is not None:
        option.metavar = ""
    return option
