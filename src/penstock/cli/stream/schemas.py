"""`penstock schema …`: register, list, show and forget the schemas of a stream.

Rules: the suffix of the file says what kind of schema it holds, unless `--kind` does. A Frugal contract without
`--type` is registered by its scopes, each operation with its own subjects. The exit
code of `register` is 1 if the schema is not compatible, or the broker refuses it for another reason, and 2 if the file
cannot be read or has mistakes.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.base.errors import PenstockError
from penstock.cli.terminal import output
from penstock.cli.terminal.completing import complete_stream
from penstock.cli.terminal.confirming import confirm
from penstock.cli.terminal.failure import FAILED, clearly, printable, say, say_error
from penstock.cli.terminal.help import Command, Group
from penstock.cli.terminal.names import stream_name
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
    seconds_of,
)
from penstock.cli.terminal.standard_streams import need_stdout

if TYPE_CHECKING:
    from penstock.client.blocking.client import Client
    from penstock.schemas.kinds import Schema
    from penstock.schemas.registry import SchemaVersion, StreamSchemas

app = typer.Typer(
    cls=Group,
    help="Register, list, show and forget the schemas of streams: the types of the values on their subjects.",
    epilog=examples(
        "penstock schema register orders order.avsc",
        "penstock schema list orders",
        "penstock schema show orders 'orders.>' --columns",
    ),
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


class Kind(StrEnum):
    """The values of `--kind`."""

    ARROW = "arrow"
    JSON_SCHEMA = "json-schema"
    AVRO = "avro"
    FRUGAL = "frugal"
    PROTOBUF = "protobuf"


class FramingWord(StrEnum):
    """The values of `--framing`."""

    BARE = "bare"
    MESSAGE = "message"
    FRUGAL = "frugal-v0"
    CONFLUENT = "confluent"


class ProtocolWord(StrEnum):
    """The values of `--protocol`."""

    BINARY = "binary"
    COMPACT = "compact"


_KINDS = {
    ".frugal": Kind.FRUGAL,
    ".thrift": Kind.FRUGAL,
    ".avsc": Kind.AVRO,
    ".json": Kind.JSON_SCHEMA,
    ".arrow": Kind.ARROW,
    ".desc": Kind.PROTOBUF,
    ".binpb": Kind.PROTOBUF,
}
_FILE_BYTES_MAX = 16 << 20  # an Arrow file may hold rows besides its schema
_SHOWN_HASH = 12  # digits of a hash in tables

_Subject = Annotated[
    str | None,
    typer.Option(
        "--subject",
        metavar="PATTERN",
        help="The subjects whose values have this type, such as 'orders.*.placed'.  Default: all of the stream.",
        show_default=False,
    ),
]
_TypeName = Annotated[
    str | None,
    typer.Option(
        "--type",
        metavar="NAME",
        help="The type in a contract or descriptor set: Order, base.Order, shop.v1.Order.  Default, for a Frugal "
        "contract: its scopes, each operation with its own subjects and type.",
        show_default=False,
    ),
]
_Include = Annotated[
    list[Path] | None,
    typer.Option(
        "--include",
        "-I",
        metavar="DIR",
        help="Also look for included files below this folder; may be given several times.",
        show_default=False,
    ),
]
_PatternArgument = Annotated[
    str, typer.Argument(metavar="SUBJECT", help="The pattern of subjects as `penstock schema list` shows it.")
]
_OneStream = Annotated[
    str,
    typer.Argument(metavar="STREAM", help="The stream's name.", callback=stream_name, autocompletion=complete_stream),
]


@clearly
def register(
    ctx: typer.Context,
    stream: StreamArgument,
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="The schema: .frugal, .thrift, .avsc (Avro), .json (JSON Schema), .arrow (a file, a stream, or a "
            "schema of Arrow), .desc or .binpb (a descriptor set: protoc --include_imports --descriptor_set_out).",
            show_default=False,
        ),
    ],
    kind: Annotated[
        Kind | None, typer.Option("--kind", help="What the file holds.  Default: by its suffix.", show_default=False)
    ] = None,
    type_name: _TypeName = None,
    subject: _Subject = None,
    operation: Annotated[
        list[str] | None,
        typer.Option(
            "--operation",
            metavar="SCOPE.NAME",
            help="Of a contract's scopes only this operation; may be given several times.  Default: those whose "
            "subjects the stream stores.",
            show_default=False,
        ),
    ] = None,
    include: _Include = None,
    framing: Annotated[
        FramingWord,
        typer.Option(
            "--framing",
            help="What stands before a value, with --type.  bare: nothing; message: Thrift's message begin; frugal-v0: "
            "Frugal's frame, which is headers and a message begin; confluent: the id of Confluent's serializers.",
        ),
    ] = FramingWord.BARE,
    protocol: Annotated[ProtocolWord, typer.Option("--protocol", help="The protocol of Thrift.")] = ProtocolWord.BINARY,
    message: Annotated[
        str,
        typer.Option("--message", metavar="NAME", help="The name in Thrift's message begin.  Default: any."),
    ] = "",
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Register it although it is not compatible, or not for the stream's subjects; needs the permission "
            "alter, too.",
        ),
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Only check whether it could be registered, as in CI.")
    ] = False,
    as_json: Json = False,
    server: Server = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
    debug: Debug = False,
) -> None:
    """Register a schema for the values of a stream, or of some of its subjects.

    It becomes the next version there, and readers get typed columns by it. The same schema again changes nothing. A new
    version has to be compatible with all before it, in both directions, since the stream keeps old messages, and old
    programs go on: fields may be added or removed if they are optional or have defaults.

    The exit code is 0 if it is registered, or was already, 1 if it is not compatible or cannot be registered, and 2 if
    the command line or the file is wrong. With --check nothing is registered, and the exit codes are the same.

    json: an object for each version, with [bold]stream, subject, version, new, kind, type, framing, protocol, message,
    hash, registered, by, forced[/bold].
    """
    need_stdout()
    seconds_of(timeout)  # a mistake in it is told before those of the file
    how: dict[str, Any] = {"force": force, "check_only": check}
    kind = _kind(file, kind)
    is_of_scopes = kind is Kind.FRUGAL and type_name is None
    if is_of_scopes and subject is not None:
        raise typer.BadParameter("the scopes of a contract name their subjects: give --type with --subject")
    if operation and not is_of_scopes:
        raise typer.BadParameter("--operation is for the scopes of a Frugal contract, without --type")
    schema = _schema(file, kind, type_name or "", include or [])
    with connected(ctx, server, timeout) as (client, seconds):
        if schema is None:
            found = client.register_contract(
                stream, file, operation, include=include or [], protocol=protocol.value, timeout=seconds, **how
            )
        else:
            version = client.register_schema(
                stream,
                schema,
                subject=subject,
                message=message,
                framing=framing.value,
                protocol=protocol.value,
                timeout=seconds,
                **how,
            )
            found = [version]
    for version in found:
        if as_json:
            output.print_json(_json(stream, version))
        else:
            say(_told(stream, version, is_check=check))


def _told(stream: str, version: SchemaVersion, *, is_check: bool) -> str:
    where = f"{version.typed.subject} of {stream}"
    if version.is_new:
        forced = ", forced: it is not compatible with all before it" if version.is_forced else ""
        does = "would be registered" if is_check else "is registered"
        told = f"{where}: version {version.number} {does}{forced}"
    else:
        told = f"{where} has this schema already: version {version.number}"
    if version.needs_header:
        told += (
            f". The versions differ in their bytes: from now on a message is decoded only if its header Penstock-Schema"
            f" names its version. That of this one is {version.hash}; those of the others need theirs, also those"
            f" that are stored already (penstock schema list {stream} --all --json)"
        )
    return told


def _kind(file: Path, kind: Kind | None) -> Kind:
    found = kind or _KINDS.get(file.suffix.lower())
    if found is None:
        suffixes = ", ".join(_KINDS)
        raise typer.BadParameter(f"{file} ends with none of {suffixes}: say what it holds with --kind")
    return found


def _schema(file: Path, kind: Kind, type_name: str, include: Sequence[Path]) -> Schema | None:
    """Return the schema in a file; None: a contract, of which no type was named.

    BadParameter: it cannot be read, or has mistakes.
    """
    from penstock.client.schemas import contract_of
    from penstock.schemas.kinds import Schema, SchemaKind, text_of_arrow

    if kind is Kind.PROTOBUF and not type_name:
        raise typer.BadParameter("a descriptor set has many messages: say which with --type, such as shop.v1.Order")
    try:
        if kind is Kind.FRUGAL:
            contract = contract_of(file, include)
            if not type_name:
                return None
            schema = Schema(SchemaKind.FRUGAL, contract.text, contract.closure, type_name)
        else:
            data = _bytes(file)
            if kind is Kind.PROTOBUF:
                text = base64.b64encode(data).decode()
            elif kind is Kind.ARROW:
                text = text_of_arrow(_arrow_schema(file, data))
            else:
                text = data.decode()
            schema = Schema(SchemaKind(kind.value), text, type_name=type_name)
        schema.plan()
    except (PenstockError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"{file}: {getattr(error, 'message', error)}") from error
    return schema


def _bytes(file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            data = opened.read(_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise typer.BadParameter(f"{file} cannot be read: {error.strerror or error}") from error
    if len(data) > _FILE_BYTES_MAX:
        raise typer.BadParameter(f"{file} has more than {_FILE_BYTES_MAX:,} bytes, the most of a schema's file")
    return data


def _arrow_schema(file: Path, data: bytes) -> Any:
    """Return the schema of an Arrow file, of an Arrow stream, or a schema alone. BadParameter: it is none of them."""
    import pyarrow as pa

    buffer = pa.py_buffer(data)
    is_file = data.startswith(b"ARROW1")
    try:
        return pa.ipc.open_file(buffer).schema if is_file else pa.ipc.read_schema(buffer)
    except (pa.ArrowException, OSError):
        pass
    raise typer.BadParameter(f"{file} holds no Arrow file, stream or schema")


@clearly
def list_schemas(
    ctx: typer.Context,
    stream: _OneStream,
    all_versions: Annotated[bool, typer.Option("--all", help="Also versions that are not the newest.")] = False,
    as_json: Json = False,
    server: Server = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
    debug: Debug = False,
) -> None:
    """List the schemas of a stream: the newest version for each pattern of subjects.

    json: as of [bold]penstock schema register[/bold], all versions.
    """
    need_stdout()
    with connected(ctx, server, timeout) as (client, seconds):
        kept = client.schemas(stream, timeout=seconds)
    if as_json:
        for version in kept.versions:
            output.print_json(_json(stream, version))
        return
    shown = kept.versions if all_versions else tuple(kept.newest().values())
    if not shown:
        say(f"stream {stream} has no schemas; `penstock schema register {stream} FILE` makes one", err=True)
        return
    rows = [_row(version) for version in shown]
    console = output.console()
    titles = output.fitting(rows, console.width, left_out_first=("by", "hash", "registered"))
    table = output.table(*titles, right=("version",))
    for row in rows:
        table.add_row(*(output.cell(row[title]) for title in titles))
    console.print(table)


def _row(version: SchemaVersion) -> dict[str, str]:
    row = {
        "subject": version.typed.subject,
        "version": f"{version.number}{' (forced)' if version.is_forced else ''}",
        "kind": version.schema.kind.value,
        "type": version.schema.shown_type(),
        "framing": version.typed.framing.value,
        "registered": output.time_text(version.registered_us),
        "by": version.by,
        "hash": version.hash[:_SHOWN_HASH],
    }
    return {title: printable(text) for title, text in row.items()}


@clearly
def show(
    ctx: typer.Context,
    stream: _OneStream,
    subject: Annotated[
        str | None,
        typer.Argument(
            metavar="SUBJECT",
            help="The pattern of subjects as `penstock schema list` shows it.  Default: the only one of the stream.",
            show_default=False,
        ),
    ] = None,
    number: Annotated[
        int | None,
        typer.Option("--version", metavar="N", min=1, help="Default: the newest version.", show_default=False),
    ] = None,
    columns: Annotated[
        bool, typer.Option("--columns", help="Show the Arrow columns of decoded values instead of the text.")
    ] = False,
    raw: Annotated[
        bool, typer.Option("--raw", help="Show the text as it is kept: of Protobuf and Arrow base64.")
    ] = False,
    to_file: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write the schema there as it was registered; included files go beside it, by their paths.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
    server: Server = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
    debug: Debug = False,
) -> None:
    """Show a schema: its text, or the columns that readers get. Of Protobuf the message and the types that it names.

    json: as of [bold]penstock schema register[/bold], with [bold]text, includes[/bold], and [bold]columns[/bold]: name
    and type of each.
    """
    need_stdout()
    with connected(ctx, server, timeout) as (client, seconds):
        kept = client.schemas(stream, timeout=seconds)
    version = _chosen(kept, subject or _only_subject(kept), number)
    schema = version.schema
    if as_json:
        fields = [{"name": field.name, "type": str(field.type)} for field in schema.arrow_schema()]
        texts = {"text": schema.text, "includes": dict(schema.closure), "columns": fields}
        output.print_json({**_json(stream, version), **texts})
    elif columns:
        table = output.table("column", "type", "nulls")
        for field in schema.arrow_schema():
            cells = field.name, str(field.type), "yes" if field.nullable else "no"
            table.add_row(*(output.cell(printable(text)) for text in cells))
        output.console().print(table)
    elif to_file is not None:
        _write(schema, to_file)
        say(f"version {version.number} of {version.typed.subject} is in {to_file}")
    elif not raw and not schema.closure:
        _say_lines(schema.readable())
    else:
        for name, text in (*schema.closure, ("", schema.text)):
            if schema.closure:
                say(f"// {printable(name) or 'the contract itself'}")
            _say_lines(text)


def _say_lines(text: str) -> None:
    say("\n".join(printable(line) for line in text.splitlines()))


def _only_subject(kept: StreamSchemas) -> str:
    """Return the only pattern of a stream with schemas. Exit: it has several, or none."""
    known = sorted({each.typed.subject for each in kept.versions})
    if len(known) == 1:
        return known[0]
    if known:
        say_error(f"stream {kept.stream} has schemas for several patterns: give one of {', '.join(known)}")
    else:
        say_error(f"stream {kept.stream} has no schemas; `penstock schema register {kept.stream} FILE` makes one")
    raise typer.Exit(FAILED)


def _chosen(kept: StreamSchemas, subject: str, number: int | None) -> SchemaVersion:
    """Return one version. Exit: there is none."""
    found = {each.number: each for each in kept.versions if each.typed.subject == subject}
    if not found:
        known = ", ".join(sorted({each.typed.subject for each in kept.versions})) or "none"
        say_error(f"stream {kept.stream} has no schema for {subject}; it has schemas for: {known}")
        raise typer.Exit(FAILED)
    chosen = found.get(max(found) if number is None else number)
    if chosen is None:
        say_error(f"{subject} of {kept.stream} has versions {', '.join(map(str, sorted(found)))}, and no {number}")
        raise typer.Exit(FAILED)
    return chosen


def _write(schema: Schema, path: Path) -> None:
    """Write a schema and its included files. BadParameter: an included file would lie elsewhere, or exists."""
    from penstock.idl.files import is_within
    from penstock.schemas.kinds import SchemaKind

    is_binary = schema.kind in (SchemaKind.PROTOBUF, SchemaKind.ARROW)
    data = base64.b64decode(schema.text) if is_binary else schema.text.encode()
    files = {path: data}
    for name, text in schema.closure:
        if not is_within(name, "."):  # others have registered it: the name may be hostile
            raise typer.BadParameter(f"the included file {name!r} does not lie beside its contract")
        files[path.parent / name] = text.encode()
    for file, content in files.items():
        if file != path and file.exists() and file.read_bytes() != content:
            raise typer.BadParameter(f"{file} exists, and is another file than the one that is included")
    for file, content in files.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)


@clearly
def forget(
    ctx: typer.Context,
    stream: _OneStream,
    subject: _PatternArgument,
    yes: Yes = False,
    server: Server = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
    debug: Debug = False,
) -> None:
    """Forget all versions of the schema for a pattern of subjects. Asks first.

    The messages stay; typed readers leave them without a type. A schema registered there again is version 1. It needs
    the permissions register and alter.
    """
    with connected(ctx, server, timeout) as (client, seconds):
        if not yes:
            _confirm(client, stream, subject, seconds)
        count = client.forget_schema(stream, subject, timeout=seconds)
    forgotten = output.counted(count, "version")
    say(f"forgotten: {forgotten} of the schema for {subject} of {stream}")


def _confirm(client: Client, stream: str, subject: str, seconds: float) -> None:
    newest = _chosen(client.schemas(stream, timeout=seconds), subject, None)
    question = f"Forget the schema for {subject} of stream {stream}, up to version {newest.number}?"
    confirm(question, "the schema stays")


def _json(stream: str, version: SchemaVersion) -> dict[str, object]:
    return {
        "stream": stream,
        "subject": version.typed.subject,
        "version": version.number,
        "new": version.is_new,
        "kind": version.schema.kind.value,
        "type": version.schema.shown_type() or None,
        "framing": version.typed.framing.value,
        "protocol": version.typed.protocol.value,
        "message": version.typed.message or None,
        "hash": version.hash,
        "registered": output.time_text(version.registered_us),
        "by": version.by or None,
        "forced": version.is_forced,
    }


for _name, _command, _lines in (
    (
        "register",
        register,
        (
            "penstock schema register orders order.avsc",
            "# in CI: would it be compatible?",
            "penstock schema register orders order.avsc --check",
            "# one type for some subjects",
            "penstock schema register orders shop.desc --type shop.v1.Order --subject 'orders.*.placed'",
            "# all operations of a contract's scopes, with their subjects",
            "penstock schema register events orders.frugal",
            "# it breaks old readers, on purpose",
            "penstock schema register orders order.avsc --force",
        ),
    ),
    ("list", list_schemas, ("penstock schema list orders", "penstock schema list orders --all")),
    (
        "show",
        show,
        (
            "penstock schema show orders",
            "penstock schema show orders 'orders.>' --columns",
            "penstock schema show orders 'orders.>' --version 1 --output order.avsc",
        ),
    ),
    ("forget", forget, ("penstock schema forget orders 'orders.>'",)),
):
    app.command(_name, cls=Command, epilog=examples(*_lines))(_command)
