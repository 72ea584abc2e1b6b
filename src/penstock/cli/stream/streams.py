"""`penstock stream …`: create, list, show, find, alter, pause, seal, copy, purge and delete streams."""

from __future__ import annotations

import inspect
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.base.config import ALTERABLE, Acks, StreamConfig
from penstock.base.subjects import is_reserved
from penstock.base.units import format_bytes
from penstock.cli.stream import copy, deleting, finding, intake, producers, purge, report, subjects
from penstock.cli.stream.forget_archive import forget_archive
from penstock.cli.terminal import output
from penstock.cli.terminal.confirming import confirm
from penstock.cli.terminal.failure import clearly, say, say_note
from penstock.cli.terminal.help import Command, Group
from penstock.cli.terminal.names import new_stream_name
from penstock.cli.terminal.options import (
    DEFAULT_TIMEOUT,
    Debug,
    Json,
    Server,
    StreamArgument,
    Timeout,
    Yes,
    connected,
    examples,
    text_option,
    with_options,
)
from penstock.cli.terminal.standard_streams import need_stdout
from penstock.cli.terminal.stream_fields import FIELDS, UNLIMITED, Field, flag_of, sent, shown
from penstock.ops.placed_rows import unfinished_note

if TYPE_CHECKING:
    from penstock.client.blocking.client import Client
    from penstock.messages import LiveRowsInfo, StreamInfo

_ANOTHER_STREAM = "cannot be changed: create a new stream instead"
_WHY_FIXED = {
    "replicas": "cannot be changed yet",
    "subject": "cannot be replaced: --add-subject and --remove-subject change what the stream stores",
}
_SUBJECT_CHANGES = {
    "add_subjects": "Store messages of this subject, too. It can be given several times.",
    "remove_subjects": "Store no more messages of this subject; those that are stored stay. It can be given several "
    "times.",
}

app = typer.Typer(
    cls=Group,
    help="Create, list, show, find, alter, pause, seal, copy, purge and delete streams.",
    epilog=examples("penstock stream create orders 'orders.>' --max-age 7d", "penstock stream list"),
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


def _parameters(*, altering: bool) -> list[inspect.Parameter]:
    parameters = []
    if altering:  # hidden options, so that the error can say that they cannot be changed
        meaning = "The subject; --add-subject and --remove-subject change it."
        parameters.append(text_option("subject", flag="--subject", metavar="SUBJECT", meaning=meaning, hidden=True))
        for name, meaning in _SUBJECT_CHANGES.items():
            flag = f"--{name.removesuffix('s').replace('_', '-')}"
            parameters.append(text_option(name, flag=flag, metavar="SUBJECT", meaning=meaning, is_many=True))
    defaults = StreamConfig(name="", subject="")
    for field in FIELDS:
        if altering and field.name not in ALTERABLE:
            option = text_option(field.name, flag=field.flag, metavar=field.metavar, meaning=field.meaning, hidden=True)
            parameters.append(option)
            continue
        default = getattr(defaults, field.name)
        meaning = field.meaning
        if altering:
            meaning += f"  'none': {field.nothing}." if field.unlimited else ""
        else:
            meaning += f"  Default: {field.default or shown(field.name, default)}."
        parameters.append(
            text_option(field.name, flag=field.flag, metavar=field.metavar, meaning=meaning, is_many=field.is_many)
        )
    return parameters


def _parsed(given: dict[str, Any]) -> dict[str, Any]:
    """Return the given options as values of a stream's config. Raise BadParameter with every mistake."""
    values, mistakes = {}, []
    for field in FIELDS:
        text = given.get(field.name)
        if text is None or text == []:
            continue
        try:
            is_none = field.unlimited and text.lower() == UNLIMITED
            values[field.name] = None if is_none else field.parse(text)
        except ValueError as error:
            mistakes.append(f"{field.flag}: {error}{_advice(field) if text[0].startswith('-') else ''}")
    if mistakes:
        raise typer.BadParameter("; ".join(mistakes))
    return values


_LOOK_S = 0.1  # poll interval while keys move to other partitions
_LONG_NAMES = [field.name for field in FIELDS if "_" in field.name]  # names that cannot be ordinary words in a text
_MISTAKE = re.compile(r"(\w+): (.*)", re.DOTALL)
_FIELD_NAMED = re.compile(rf"`({'|'.join(field.name for field in FIELDS)})`|\b({'|'.join(_LONG_NAMES)})\b")
_OPTION_NAMED = re.compile(r"the option (\w+) of")
_OUT_OF_BOUNDS = re.compile(r"(-?\d+) is not between (\d+) and (\d+)")


_ARGUMENTS = {
    "name": "NAME",
    "subject": "SUBJECT",
    "add_subjects": "--add-subject",
    "remove_subjects": "--remove-subject",
}


def as_typed(mistake: str, *, subscribing: bool = False) -> str:
    """Translate an error about a config field into options: `--max-age: 0s is below 1ms, the least`.

    `subscribing`: subjects of a stream change.
    """
    found = _MISTAKE.fullmatch(mistake)
    if found is not None and found[1] in _ARGUMENTS:
        name = "add_subjects" if subscribing and found[1] == "subject" else found[1]
        return f"{_ARGUMENTS[name]}: {found[2]}"
    field = next((one for one in FIELDS if found is not None and one.name == found[1]), None)
    if found is None or field is None:
        return _with_flags(mistake)
    bounds = _OUT_OF_BOUNDS.fullmatch(found[2])
    if bounds is None:
        return f"{field.flag}: {_with_flags(found[2])}"
    value, low, high = (int(number) for number in bounds.groups())
    where = f"below {field.show(low)}, the least" if value < low else f"above {field.show(high)}, the most"
    return f"{field.flag}: {field.show(value)} is {where}{_advice(field) if value <= 0 else ''}"


def _advice(field: Field) -> str:
    """Return a hint for users who write 0 or -1 for "no limit", as in other products."""
    if not field.unlimited:
        return ""
    return f"; write {UNLIMITED} for no limit" if field.nothing == "no limit" else f"; {UNLIMITED}: {field.nothing}"


def _with_flags(text: str) -> str:
    """Replace the names of config fields in `text` by their options."""
    return _FIELD_NAMED.sub(lambda found: flag_of(found[1] or found[2]), text)


@contextmanager
def _said_as_typed(name: str, *, creating: bool = False, subscribing: bool = False) -> Iterator[None]:
    """Translate the broker's errors into options, and add advice to a time-out; `subscribing`: subjects change."""
    from penstock.base.errors import ErrorCode, RemoteError
    from penstock.client.errors import InvalidConfig, NotEnoughReplicas, StreamExists, TimedOut

    try:
        yield
    except InvalidConfig as error:
        told = error.details.get("mistakes") or error.message.splitlines()
        mistakes = [as_typed(str(mistake), subscribing=subscribing) for mistake in told]
        raise InvalidConfig(error.code, "\n".join(mistakes), mistakes=mistakes) from None
    except StreamExists as error:
        differences = error.details.get("differences")
        if not isinstance(differences, dict):
            raise
        told = (
            f"{flag_of(field)} is {shown(field, sent(field, have))}, not {shown(field, sent(field, want))}"
            for field, (have, want) in differences.items()
        )
        text = f"stream {name} exists with another config: {', '.join(told)}"
        raise StreamExists(error.code, text, **error.details) from None
    except NotEnoughReplicas as error:
        raise NotEnoughReplicas(error.code, as_typed(error.message), **error.details) from None
    except TimedOut as error:
        undo = f"; `penstock stream delete {name}` undoes it" if creating else ""
        error.add_note(f"`penstock stream show {name}` shows if it was done{undo}")
        if subscribing:
            error.add_note(
                "a change of subjects ends once every leader has subscribed at NATS: `penstock status` shows which "
                "brokers are not connected to it"
            )
        raise
    except RemoteError as error:
        if error.code != ErrorCode.UNSUPPORTED_VERSION:
            raise
        text = _OPTION_NAMED.sub(lambda found: f"the option {flag_of(found[1])} of", error.message)
        raise RemoteError(error.code, text, **error.details) from None


def shown_config(info: StreamInfo) -> dict[str, str]:
    """Return a stream's config as option → value, as the user writes them."""
    config = {field.name: getattr(info.config, field.name) for field in FIELDS}
    config["nats_readable"] = info.config.is_nats_readable
    return {field.flag.removeprefix("--"): shown(field.name, config[field.name]) for field in FIELDS}


def warnings(subject: str) -> Iterator[str]:
    """Yield warnings about a valid subject that may be a mistake."""
    if is_reserved(subject):
        whose = subject.partition(".")[0]
        yield (
            f"{whose} belongs to NATS or Penstock: other clients' requests and replies use it. A stream that acks "
            "answers them; with --acks never it only listens."
        )
    for token in subject.split("."):
        if token not in ("*", ">") and ("*" in token or ">" in token):
            yield f"in {token!r} the {'*' if '*' in token else '>'!r} is not a wildcard: only a whole token is one."


def _create(
    ctx: typer.Context,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Letters, digits, '-' and '_'.", callback=new_stream_name)
    ],
    subjects: Annotated[
        list[str],
        typer.Argument(
            metavar="SUBJECT", help="Subjects to store, of which none overlap; '*' is one token, '>' all that follow."
        ),
    ],
    server: Server = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
    debug: Debug = False,
    **fields: Any,
) -> None:
    """Create a stream that stores the messages that are published on a NATS subject, or on several.

    The stream stores every message that is published after this command has ended.
    Repeating the command changes nothing. It fails if a stream of that name has another config.
    """
    from penstock.client.errors import StreamNotFound

    config = _parsed(fields)
    if "range_bounds" in config:  # they imply the other two
        config = {"partition_by": "range", "partitions": len(config["range_bounds"]) + 1, **config}
    with connected(ctx, server, timeout) as (client, seconds):
        for warning in (warning for subject in subjects for warning in warnings(subject)):
            say_note(f"note: {warning}")
        before = None
        with suppress(StreamNotFound):
            before = client.stream(name, timeout=seconds).stream_id
        with _said_as_typed(name, creating=True):
            info = client.create_stream(name, subjects, timeout=seconds, **config)
    what = "was there already" if info.stream_id == before else "created"
    say(f"stream {info.name} {what}: it stores {', '.join(info.subjects)}")
    for note in _overlapping_notes(info):
        say_note(f"note: {note}")


def _overlapping_notes(info: StreamInfo) -> list[str]:
    """Return notes about other streams that store messages on the same subjects."""
    if not info.overlapping:
        return []
    names = ", ".join(info.overlapping)
    notes = [f"other streams store messages on its subjects, too: {names} (of those that you may see)"]
    if info.config.acks is not Acks.NEVER:
        notes.append(
            f"a publisher's first ack may come from {info.name} or from any of these; to select one, "
            f"publish with a header such as Nats-Expected-Stream: {info.name}"
        )
    return notes


create = clearly(with_options(_create, _parameters(altering=False)))


def _alter(
    ctx: typer.Context,
    name: StreamArgument,
    server: Server = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
    debug: Debug = False,
    **fields: Any,
) -> None:
    """Change the config of a stream: all given options, or none.

    Name, storage and the number of replicas cannot be changed. The stream can get more partitions, in a command without
    other options: see how-to/more-partitions. With other subjects the command ends once they are in effect: see
    how-to/several-subjects.
    """
    new_subject = fields.pop("subject", None)
    of_subjects: dict[str, list[str]] = {name: given for name in _SUBJECT_CHANGES if (given := fields.pop(name, None))}
    changes = _parsed(fields)
    fixed = [] if new_subject is None else ["subject"]
    fixed += [field.name for field in FIELDS if field.name in changes and field.name not in ALTERABLE]
    if fixed:
        flags = {field.name: field.flag for field in FIELDS}
        why = [f"{flags.get(field, f'--{field}')} {_WHY_FIXED.get(field, _ANOTHER_STREAM)}" for field in fixed]
        raise ValueError("\n".join(why))
    if not (changes or of_subjects):
        raise typer.BadParameter("nothing to change: give at least one option, such as --max-age 7d")
    with connected(ctx, server, timeout) as (client, seconds), _said_as_typed(name, subscribing=bool(of_subjects)):
        for warning in (warning for subject in of_subjects.get("add_subjects", ()) for warning in warnings(subject)):
            say_note(f"note: {warning}")
        add, remove = (of_subjects.get(name, ()) for name in _SUBJECT_CHANGES)
        info = client.alter_stream(name, add_subjects=add, remove_subjects=remove, timeout=seconds, **changes)
        if info.is_moving:
            info = _moved(client, info, seconds)
    config = shown_config(info)
    flags = {field.name: field.flag.removeprefix("--") for field in FIELDS}
    told = [*changes, "partitions"] if "range_bounds" in changes and "partitions" not in changes else list(changes)
    now = [f"it stores {', '.join(info.subjects)}"] if of_subjects else []
    say(f"stream {info.name}: " + ", ".join([*now, *(f"{flags[field]} is {config[flags[field]]}" for field in told)]))
    if info.is_moving:
        say(f"keys are still moving: {report.moving_text(info)}; `penstock stream show {info.name}` shows when it ends")


def _moved(client: Client, info: StreamInfo, seconds: float) -> StreamInfo:
    """Return the stream once all keys have moved, or its state at the time-out."""
    deadline_s = time.monotonic() + seconds
    while info.is_moving and time.monotonic() < deadline_s:
        time.sleep(_LOOK_S)
        info = client.stream(info.name, timeout=seconds)
    return info


alter = clearly(with_options(_alter, _parameters(altering=True)))


@clearly
def list_streams(
    ctx: typer.Context,
    also_internal: Annotated[
        bool, typer.Option("--all", help="Also Penstock's internal streams, such as __offsets.")
    ] = False,
    as_json: Json = False,
    server: Server = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
    debug: Debug = False,
) -> None:
    """List all streams.

    Deleted messages do not count. Gaps of an imported stream do, and so does what a broker before 0.4 has compacted:
    stream show and stream count count without them.
    """
    need_stdout()
    with connected(ctx, server, timeout) as (client, seconds):
        infos = [info for info in client.streams(timeout=seconds) if also_internal or not info.config.is_internal]
        sees_all = bool(infos) or as_json or _sees_all(client, seconds)
    if as_json:
        for info in infos:
            output.print_json(report.with_subjects(info))
    elif infos:
        console = output.console()
        console.print(report.stream_table(infos, width=console.width))
    elif not sees_all:
        say("no streams that you may see; `penstock acl list` shows what you may", err=True)
    else:
        say("no streams yet; make one with `penstock stream create NAME SUBJECT`", err=True)


def _sees_all(client: Client, seconds: float) -> bool:
    """True if the user may see all streams, as far as the broker says."""
    from penstock.base.errors import PenstockError

    try:
        found = client.users.all(timeout=seconds)
    except PenstockError:  # for example an older broker without users
        return True
    rules = [str(rule) for one in found.users if one.name in ("*", found.user) for rule in one.rules]
    return not found.is_guarded or "admin" in rules


@clearly
def show(
    ctx: typer.Context,
    name: StreamArgument,
    who: Annotated[
        bool,
        typer.Option("--producers", help="Instead, the producers that have appended in the last ten minutes."),
    ] = False,
    queries: Annotated[
        bool,
        typer.Option("--queries", help="Instead, the queries that have published staged rows in the last seven days."),
    ] = False,
    as_json: Json = False,
    server: Server = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
    debug: Debug = False,
) -> None:
    """Show one stream: its config, its contents, its problems.

    json: the stream as in stream list, with [bold]live[/bold]: for each partition rows, size_bytes, deleted,
    first_offset, first_us, last_offset, last_us, of its messages without deleted ones; null if they cannot be counted
    within 2 s.
    """
    need_stdout()
    with connected(ctx, server, timeout) as (client, seconds):
        if queries:
            producers.show_queries(client.staging.queries(name, timeout=seconds), as_json=as_json)
            return
        if who:
            producers.show(client.known_producers(name, timeout=seconds), as_json=as_json)
            return
        info = client.stream(name, timeout=seconds)
        is_clustered = _is_clustered(client, info, seconds)
        live = _live_rows(client, info)
        told = _told_consumers(client, info)
    if as_json:
        output.print_json(report.with_live(info, live))
        return
    console = output.console()
    about = report.stream_pairs(info, is_clustered=is_clustered, live=live)
    console.print(report.pairs(about | ({"consumers": told} if told else {}) | shown_config(info)))
    report.print_troubles(console, [info])
    if note := unfinished_note(info.config):
        say_note(note)


_COUNT_S = 2.0  # the number of messages is left out if it takes longer


def _live_rows(client: Client, info: StreamInfo) -> list[LiveRowsInfo] | None:
    """Return the counts by partition; None if one is unknown, or the user may not read the stream."""
    from penstock.base.errors import PenstockError

    with suppress(PenstockError):
        found = [one for one in client.live_rows(info, timeout=_COUNT_S) if one is not None]
        return found if len(found) == len(info.partitions) else None
    return None


def _told_consumers(client: Client, info: StreamInfo) -> str:
    """Return how many consumers of JetStream's API it has, and how many deliver nothing; empty: none, or unknown."""
    from penstock.base.errors import PenstockError

    with suppress(PenstockError):
        found = client.consumers.all(info, timeout=_COUNT_S)
        states = {
            "paused": sum(one.paused_until is not None for one in found),
            "full, waiting for acks": sum(one.is_full for one in found),
        }
        blocked = [f"{count} {state}" for state, count in states.items() if count]
        return ", ".join([output.count_text(len(found)), *blocked]) if found else ""
    return ""


def _is_clustered(client: Client, info: StreamInfo, seconds: float) -> bool:
    """True if there are several brokers; judged by the stream's replicas if the user may not ask for the status."""
    from penstock.client.errors import NotAuthorized

    try:
        return len(client.status(timeout=seconds).brokers) > 1
    except NotAuthorized:
        return any(len(part.replicas) > 1 for part in info.partitions)


@clearly
def delete(
    ctx: typer.Context,
    name: StreamArgument,
    yes: Yes = False,
    server: Server = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
    debug: Debug = False,
) -> None:
    """Delete a stream and all its messages. Asks first."""
    with connected(ctx, server, timeout) as (client, seconds):
        info = client.stream(name, timeout=seconds)
        if not yes:
            held = "all its messages (how many is unknown now)"
            if info.messages is not None and info.size_bytes is not None:
                size = format_bytes(info.size_bytes)
                held = f"its {output.counted(info.messages, 'message')} ({size})"
            confirm(f"Delete stream {info.name} and {held} for good?", f"stream {info.name} is kept")
        with _said_as_typed(name):
            client.delete_stream(info, timeout=seconds)
    say(f"stream {info.name} deleted")


def _add(name: str, command: Callable[..., Any], *lines: str) -> None:
    app.command(name, cls=Command, epilog=examples(*lines))(command)


_add(
    "create",
    create,
    "penstock stream create orders 'orders.>'",
    "penstock stream create events 'events.*.eu' --max-age 7d --max-bytes 10GiB",
    "penstock stream create trade 'orders.>' 'prices.*'",
    "# all subjects, without acks",
    "penstock stream create audit '>' --acks never",
)
_add("list", list_streams, "penstock stream list", "penstock stream list --json | jq .config.name")
_add("show", show, "penstock stream show orders", "penstock stream show orders --producers")
_add("find", finding.find, "penstock stream find orders.eu.42")
app.command("subjects", cls=Command, epilog=subjects.SUBJECTS_EXAMPLES)(subjects.subjects)
app.command("count", cls=Command, epilog=subjects.COUNT_EXAMPLES)(subjects.count)
app.command("last", cls=Command, epilog=subjects.LAST_EXAMPLES)(subjects.last)
_add(
    "alter",
    alter,
    "penstock stream alter orders --max-age 30d --max-bytes none",
    "penstock stream alter trade --add-subject 'rates.*' --remove-subject 'prices.*'",
)
_add("pause", intake.pause, "penstock stream pause orders")
_add("resume", intake.resume, "penstock stream resume orders")
_add("read-only", intake.read_only, "penstock stream read-only orders", "penstock stream read-only orders --off")
_add("seal", intake.seal, "penstock stream seal orders-2025", "penstock stream seal orders-2025 --yes")
app.command("copy", cls=Command, epilog=copy.EXAMPLES)(copy.copy)
app.command("purge", cls=Command, epilog=purge.EXAMPLES)(purge.purge)
app.command("truncate", cls=Command, hidden=True)(purge.purge)  # its former name
app.command("delete-message", cls=Command, epilog=deleting.EXAMPLES)(deleting.delete_message)
_add("forget-archive", forget_archive, "penstock stream forget-archive orders lake")
_add("delete", delete, "penstock stream delete orders", "penstock stream delete orders --yes")
