"""`penstock cluster …`: show and raise the feature level of the cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.terminal import output
from penstock.cli.terminal.confirming import confirm
from penstock.cli.terminal.failure import clearly, say
from penstock.cli.terminal.help import Command, Group
from penstock.cli.terminal.options import (
    DEFAULT_TIMEOUT,
    Debug,
    Json,
    Server,
    Timeout,
    Yes,
    connected,
    examples,
)
from penstock.cli.terminal.standard_streams import need_stdout

if TYPE_CHECKING:
    from penstock.messages import StatusResponse

app = typer.Typer(
    cls=Group,
    help="Show and raise the feature level of the cluster: below it no broker uses a feature of a later version.",
    epilog=examples("penstock cluster features", "# once all brokers run the new version", "penstock cluster upgrade"),
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


@clearly
def features(
    ctx: typer.Context,
    as_json: Json = False,
    server: Server = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
    debug: Debug = False,
) -> None:
    """Show the feature level of the cluster, what each level brings, and the brokers that are too old for it.

    A user needs the right `monitor` or `admin`.
    """
    need_stdout()
    with connected(ctx, server, timeout) as (client, seconds):
        state = client.status(timeout=seconds)
    if as_json:
        output.print_json({"feature_level": state.feature_level, "levels": _levels(state)})
        return
    say(f"feature level: {state.feature_level or 'not known: the broker is of an earlier version'}")
    made = output.table("level", "state", "brings")
    for row in level_rows(state):
        made.add_row(*map(output.cell, row))
    output.console().print(made)


def level_rows(state: StatusResponse) -> list[tuple[str, str, str]]:
    """Return each level, its state, and the first feature that it brings; below it a row for each other feature."""
    rows = []
    for one in _levels(state):
        first, *others = one["features"] or ["what there was before"]
        rows += [(one["level"], _state_text(one), first), *(("", "", other) for other in others)]
    return rows


def _levels(state: StatusResponse) -> list[dict[str, Any]]:
    from penstock.metadata.feature_levels import FIRST_LEVEL, LEVELS, level_of, level_text, version_of
    from penstock.metadata.feature_versions import features_of

    versions = {str(one.broker_id): one.broker_version for one in state.brokers}
    reached = version_of(state.feature_level) or FIRST_LEVEL
    return [
        {
            "level": level_text(level),
            "features": features_of(level),
            "is_reached": level <= reached,
            "older_brokers": {one: version for one, version in versions.items() if level_of(version) < level},
        }
        for level in LEVELS
    ]


def _state_text(one: dict[str, Any]) -> str:
    if one["is_reached"]:
        return "reached"
    if not one["older_brokers"]:
        return "all brokers can: penstock cluster upgrade"
    names = (f"{broker_id} ({version})" for broker_id, version in one["older_brokers"].items())
    return f"waits for broker {', '.join(names)}"


@clearly
def upgrade(
    ctx: typer.Context,
    to: Annotated[
        str | None,
        typer.Option(
            "--to", metavar="LEVEL", help="The level, such as 0.4.  Default: the newest that this program knows."
        ),
    ] = None,
    yes: Yes = False,
    as_json: Json = False,
    server: Server = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
    debug: Debug = False,
) -> None:
    """Raise the feature level of the cluster, once all its brokers run the new version. Asks first.

    From then on the features of that version can be used. [bold]The level is never lowered:[/bold] a broker of an
    earlier version does not start any more. Until then every broker can go back to the version before.

    Refused while a broker is older, also one that is away: a broker cannot be removed from a cluster. Raising it to the
    present level changes nothing. A user needs the right `admin`.
    """
    from penstock.metadata.feature_levels import LEVELS, NEWEST_LEVEL, level_text

    if as_json:
        need_stdout()
    wanted = to or level_text(NEWEST_LEVEL)
    if wanted not in (known := [level_text(level) for level in LEVELS]):
        text = f"--to: {wanted!r} is no feature level that this program knows"
        raise typer.BadParameter(f"{text}: {', '.join(known)}; `penstock cluster features` shows them")
    if not yes:
        question = "It is never lowered: brokers of earlier versions do not start any more."
        confirm(f"Raise the feature level of the cluster to {wanted}? {question}", "the level stays as it is")
    with connected(ctx, server, timeout) as (client, seconds):
        made = client.raise_feature_level(wanted, timeout=seconds)
    if as_json:
        output.print_json({"feature_level": made})
    else:
        say(f"the cluster is at feature level {made}", err=True)


for _name, _command, _lines in (
    ("features", features, ("penstock cluster features", "penstock cluster features --json | jq -r .feature_level")),
    ("upgrade", upgrade, ("penstock cluster upgrade", "penstock cluster upgrade --to 0.4 --yes")),
):
    app.command(_name, cls=Command, epilog=examples(*_lines))(_command)
