"""Typer command and group classes that fix help output and usage errors.

Rules: examples follow the first paragraph of the help. The options that say which broker is asked, and as whom, take
one line of a command's help; `penstock --help` explains them. A switch such as `--help` has no metavar `<bool>`.
Paragraphs are wrapped to the terminal, not at the line breaks of the source. A command that contacts no broker rejects
`--server` and `--tls-…`.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Container, Iterator
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from penstock.cli.terminal.connection_options import CONNECTION_PANEL

_UsageError: Any = typer.BadParameter.__base__  # UsageError of Typer's own copy of Click

_CALLED_HERE: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("rm", "remove", "del"), ("delete",)),
    **dict.fromkeys(("info", "get", "describe"), ("show", "status")),
    **dict.fromkeys(("add", "new", "make", "create"), ("create", "add", "new")),
    **dict.fromkeys(("edit", "update", "set"), ("alter",)),
    **dict.fromkeys(("sub", "subscribe", "consume", "cat"), ("read",)),
    **dict.fromkeys(("pub", "produce"), ("publish",)),
    **dict.fromkeys(("ls", "list"), ("list", "stream list")),
    "streams": ("stream list",),
    "groups": ("group list",),
}
"""Names that other programs give to a command → ours, of which the first that exists is meant."""


_SHOWN = ("info", "describe")
"""Names of `status` that show a stream if they are given one."""


def called_here(args: list[str], commands: Container[str]) -> list[str]:
    """Return the arguments with our name of the command, if the first is a name that other programs give to it."""
    if args and args[0] not in commands:
        if args[0] in _SHOWN and len(args) > 1 and not args[1].startswith("-") and "stream" in commands:
            return ["stream", "show", *args[1:]]
        for meant in _CALLED_HERE.get(args[0], ()):
            if (words := meant.split())[0] in commands:
                return [*words, *args[1:]]
    return args


_OF_EVERY_COMMAND = ("server", "credentials", "tls_ca", "tls_cert", "tls_key", "timeout", "debug")
"""Parameters that most commands have, and that their help only names."""


class _Help:
    """Mixin that orders the help, and shows switches without a metavar."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help of a copy whose examples are paragraphs, and which lacks the options of every command."""
        shown: Any = copy.copy(self)
        first, *further = (shown.help or "").split("\n\n")
        shown.help = "\n\n".join(one for one in (first, _together(shown.epilog), *further) if one)
        shown.epilog = None
        if ctx.parent is not None:
            in_panel = [one for one in shown.params if getattr(one, "rich_help_panel", None) == CONNECTION_PANEL]
            common = [one for one in in_panel if one.name in _OF_EVERY_COMMAND]
            shown.params = [one for one in shown.params if one not in common]
            shown.epilog = _named(common)
        super(_Help, shown).format_help(ctx, formatter)  # type: ignore[misc]

    def get_help_option(self, ctx: Any) -> Any:
        """Return the option `--help` without a metavar."""
        return _as_switch(super().get_help_option(ctx))  # type: ignore[misc]

    def get_params(self, ctx: Any) -> list[Any]:
        """Return all parameters, including those that Typer adds."""
        found: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for one in found:
            if getattr(one, "is_flag", False):
                _as_switch(one)
        return found


class Command(_Help, TyperCommand):
    def __init__(self, *arguments: Any, help: str | None = None, **options: Any) -> None:  # noqa: A002 (Typer's name)
        super().__init__(*arguments, help=_unwrapped(help), **options)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Reject `--server` before a command that does not contact that broker: its result would mislead the user."""
        from penstock.cli.terminal.options import Globals

        found = ctx.find_object(Globals)
        is_asked = any(one.name == "server" for one in self.params) or ctx.resilient_parsing
        if found is not None and found.server and not is_asked and not {"-h", "--help"} & {*args}:
            text = f"--server and --tls-… say which broker is asked, and {ctx.command_path!r} takes neither"
            raise typer.BadParameter(f"{text}: leave them out", ctx=ctx)
        with _said_plainly(ctx):
            return super().parse_args(ctx, args)


class Group(_Help, TyperGroup):
    """A command group that also takes the names of other programs, such as `rm`: no help or completion lists them."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the named command, and its own name, which errors then show. Raise UsageError if there is none."""
        args = called_here(args, self.commands)
        groups = [name for name, one in self.commands.items() if args and args[0] in getattr(one, "commands", ())]
        if groups and args[0] not in self.commands:
            meant = " or ".join(f"'{ctx.command_path} {name} {args[0]}'" for name in groups)
            raise _UsageError(f"No such command '{args[0]}'. Did you mean {meant}?", ctx=ctx)
        return super().resolve_command(ctx, args)


@contextmanager
def _said_plainly(ctx: Any) -> Iterator[None]:
    """Replace Typer's messages on invalid options, which come from its type checker, by clearer ones."""
    try:
        yield
    except typer.BadParameter as error:
        if (found := _first_mistake(error.__cause__)) is None:
            raise
        raise typer.BadParameter(found, ctx=error.ctx, param=error.param) from None
    except Exception as error:
        # Typer vendors Click's classes and does not export this one, so compare the name.
        given = str(vars(error)["option_name"]) if type(error).__name__ == "NoSuchOption" else ""
        if given == "--json" and any("--format" in one.opts for one in ctx.command.params):
            raise _UsageError("No such option: --json. Write --format json", ctx=ctx) from None
        arguments = [one for one in ctx.command.params if one.param_type_name == "argument"]
        if given == "--subject" and any("SUBJECT" in (one.metavar or "") for one in arguments):
            raise _UsageError("No such option: --subject. Give SUBJECT as an argument", ctx=ctx) from None
        if given in ("--filter", "--filter-subject") and any("--subject" in one.opts for one in ctx.command.params):
            raise _UsageError(f"No such option: {given}. Write --subject PATTERN", ctx=ctx) from None
        if re.match(r"-[^-]", given):
            rest = " ".join(one.name.upper() for one in arguments)
            text = f"No such option: {given}. Put an argument that begins with a dash after --, at the end:"
            raise _UsageError(f"{text} {ctx.command_path} … -- {rest}", ctx=ctx) from None
        raise


def _first_mistake(cause: BaseException | None) -> str | None:
    errors = getattr(cause, "errors", None)
    if not callable(errors) or not (listed := errors()):
        return None
    kind, given, bounds = listed[0]["type"], listed[0]["input"], listed[0].get("ctx", {})
    if kind.startswith("int_"):
        return f"{given!r} is not a whole number"
    if kind.startswith("float_"):
        return f"{given!r} is not a number"
    if kind == "greater_than_equal":
        return f"{given} is below {bounds['ge']}, the least"
    if kind == "less_than_equal":
        return f"{given} is above {bounds['le']}, the most"
    return str(listed[0]["msg"]).removeprefix("Value error, ")


def _unwrapped(text: str | None) -> str | None:
    return None if text is None else "\n\n".join(" ".join(one.split("\n")) for one in text.split("\n\n"))


def _together(examples: str | None) -> str:
    """Return the epilog as one paragraph, as bright as the first one: Typer dims all others."""
    text = (examples or "").replace("\n\n", "\n")
    return re.sub(r"(?<!\\)\[(/?)(bold|cyan)\]", lambda found: "[/]" if found[1] else f"[not dim {found[2]}]", text)


def _named(options: list[Any]) -> str | None:
    """Return a line with the options, and where they are explained; None if there are none."""
    flags = [
        f"{one.opts[0]} (default {one.default})" if one.name == "timeout" and one.default else one.opts[0]
        for one in options
    ]
    return f"Connection options, explained by `penstock --help`: {', '.join(flags)}" if flags else None


def _as_switch(option: Any) -> Any:
    if option is not None:
        option.metavar = ""
    return option
