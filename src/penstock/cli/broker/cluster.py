"""`penstock cluster …`: the feature level of the cluster, and who serves JetStream's API."""

from __future__ import annotations

from collections.abc import Sequence
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
    from penstock.messages import ApiDecisionInfo, StatusResponse

app = typer.Typer(
    cls=Group,
    help="Show and raise the feature level of the cluster: below it no broker uses a feature of a later version.\n\n"
    "Show if the cluster serves JetStream's API, and take it back from another service.",
    epilog=examples(
        "penstock cluster features",
        "# once all brokers run the new version",
        "penstock cluster upgrade",
        "# once the other JetStream is gone",
        "penstock cluster take-api",
    ),
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


@clearly
def api(
    ctx: typer.Context,
    as_json: Json = False,
    server: Server = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
    debug: Debug = False,
) -> None:
    """Show under which prefixes the cluster serves JetStream's API (`jetstream_api`), since when, and why not.

    A prefix is `taken` once all brokers have found that no other service has it, `waiting` until then, and `withdrawn`
    when another one was heard. A user needs the right `monitor` or `admin`.
    """
    need_stdout()
    with connected(ctx, server, timeout) as (client, seconds):
        state = client.status(timeout=seconds)
    _show_apis(state.apis, as_json=as_json)


@clearly
def take_api(
    ctx: typer.Context,
    prefix: Annotated[
        str | None, typer.Argument(metavar="[PREFIX]", help="Such as $JS.API.  Default: all that are withdrawn.")
    ] = None,
    yes: Yes = False,
    as_json: Json = False,
    server: Server = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
    debug: Debug = False,
) -> None:
    """Take JetStream's API back, after the cluster has left it to another service. Asks first.

    All brokers look for the other service again, and serve the prefix once none of them finds it; `penstock cluster
    api` shows that a moment later. A prefix that is named is also taken from brokers whose settings do not allow it and
    that are away, perhaps for good. Any other prefix stays as it is. A user needs the right `admin`.

    [bold]Streams that clients have made in the other service meanwhile are not here.[/bold]
    """
    if as_json:
        need_stdout()
    wanted = None if prefix is None else f"{prefix.removesuffix('>').removesuffix('.')}."
    if not yes:
        what = "all prefixes of JetStream's API that it has left" if wanted is None else f"{wanted}>"
        confirm(f"Let the cluster serve {what} again? Clients then find its streams there.", "it stays as it is")
    with connected(ctx, server, timeout) as (client, seconds):
        apis = client.take_api(wanted, timeout=seconds)
    _show_apis(apis, as_json=as_json)


def _show_apis(apis: Sequence[ApiDecisionInfo], *, as_json: bool) -> None:
    if as_json:
        output.print_json({"apis": apis})
        return
    if not apis:
        say("no broker wants to serve JetStream's API: the setting jetstream_api is `off`")
        return
    made = output.table("prefix", "state", "since", "by", "why")
    for one in apis:
        by = one.by or ("" if one.broker_id is None else f"broker {one.broker_id}")
        row = one.prefix, one.state, output.time_text(one.decided_us), by, one.why
        made.add_row(*map(output.cell, row))
    output.console().print(made)


for _name, _command, _lines in (
    ("features", features, ("penstock cluster features", "penstock cluster features --json | jq -r .feature_level")),
    ("api", api, ("penstock cluster api", "penstock cluster api --json | jq -r '.apis[].state'")),
    ("take-api", take_api, ("penstock cluster take-api", "penstock cluster take-api '$JS.API.' --yes")),
    ("upgrade", upgrade, ("penstock cluster upgrade", "penstock cluster upgrade --to 0.4 --yes")),
):
    app.command(_name, cls=Command, epilog=examples(*_lines))(_command)
