"""Commands whose help is shown as it is meant.

Rules: `--help` is shown as a switch, which it is, and not as an option that takes a `<bool>`. A paragraph is as wide as
the terminal: where its lines end in the source means nothing.
"""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup

_SWITCHES = frozenset({"install_completion", "show_completion"})


class Command(TyperCommand):
    """See the module."""

    def __init__(self, *arguments: Any, help: str | None = None, **options: Any) -> None:  # noqa: A002 (Typer's name)
        super().__init__(*arguments, help=_unwrapped(help), **options)

    def get_help_option(self, ctx: Any) -> Any:
        """The option, without a name for a value."""
        return _as_switch(super().get_help_option(ctx))


class Group(TyperGroup):
    """See the module."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The options; those that install and show completion, which are Typer's own, take no value either."""
        found = super().get_params(ctx)
        for one in found:
            if one.name in _SWITCHES:
                _as_switch(one)
        return found

    def get_help_option(self, ctx: Any) -> Any:
        """The option, without a name for a value."""
        return _as_switch(super().get_help_option(ctx))


def _unwrapped(text: str | None) -> str | None:
    return None if text is None else "\n\n".join(" ".join(one.split("\n")) for one in text.split("\n\n"))


def _as_switch(option: Any) -> Any:
    if option is not None:
        option.metavar = ""
    return option
