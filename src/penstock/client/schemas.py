"""Requests for schemas of streams: register, list, forget.

Rules: the stream that holds schemas is created when one is first registered; listing does not create it. A text does
not change under its hash, so each is fetched once and kept, up to TEXTS_KEPT_BYTES_MAX. Versions of a kind that this
version of Penstock does not know are left out. `pyarrow` is imported with the first schema.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import PartitionId
from penstock.base.subjects import overlap
from penstock.client.checks import milliseconds, seconds_of
from penstock.client.errors import InvalidSchema, StreamChanged
from penstock.client.link.link import CREATE_GRACE_S, Link
from penstock.client.streams.named_streams import NamedStreams
from penstock.client.values import StreamName
from penstock.messages import (
    ForgetSchemasRequest,
    ForgetSchemasResponse,
    GetSchemaTextRequest,
    GetSchemaTextResponse,
    ListSchemasRequest,
    ListSchemasResponse,
    MetadataRequest,
    MetadataResponse,
    RegisterSchemasRequest,
    RegisterSchemasResponse,
    SchemaEntry,
    SchemaInfo,
    SchemasStreamRequest,
    SchemasStreamResponse,
    StreamInfo,
)
from penstock.schemas.rows import SCHEMAS_STREAM, StoredText

if TYPE_CHECKING:
    from penstock.schemas.decoding import ValueFraming
    from penstock.schemas.kinds import Schema
    from penstock.schemas.registry import SchemaVersion, StreamSchemas

T = TypeVar("T")

TEXTS_KEPT_BYTES_MAX = 32 << 20
"""Most bytes of texts that one client keeps."""

ContractPath = str | os.PathLike[str]
FramingName = Literal["bare", "message", "frugal-v0", "confluent"]
ProtocolName = Literal["binary", "compact"]

_ONLY = PartitionId(0)


class Schemas:
    """Sends the requests. `timeout_s` bounds each answer, including failovers."""

    def __init__(self, link: Link, streams: NamedStreams) -> None:
        self._link = link
        self._streams = streams
        self._kept: StreamInfo | None = None  # the stream that holds the schemas
        self._texts: dict[str, StoredText] = {}
        self._text_bytes = 0

    async def register(
        self,
        stream: StreamName,
        text: StoredText,
        entries: Callable[[StreamInfo], Sequence[SchemaEntry]],
        *,
        force: bool,
        check_only: bool,
        timeout_s: float,
    ) -> list[SchemaVersion]:
        """Register a text for the entries, which may depend on the stream. IncompatibleSchema, InvalidSchema."""
        info = await self._streams.now(stream, timeout_s)
        wanted = tuple(entries(info))

        async def register(kept: StreamInfo) -> RegisterSchemasResponse:
            request = RegisterSchemasRequest(
                stream_id=kept.stream_id,
                partition=_ONLY,
                of_stream_id=info.stream_id,
                kind=text.kind,  # type: ignore[arg-type]
                text=text.text,
                closure=text.closure,
                entries=wanted,
                force=force,
                check_only=check_only,
            )
            return (await self._link.call(request, RegisterSchemasResponse, timeout_s=timeout_s))[0]

        answer = await self._with_stream(register, timeout_s)
        found = []
        for one in answer.versions:
            # An older version may have the same schema in other words.
            known = text if one.version.text_hash == text.hash() else await self._text(info, one.version, timeout_s)
            found.append(_version(one.version, known, is_new=one.is_new, needs_header=one.needs_header))
        return [one for one in found if one is not None]

    async def of(self, stream: StreamName, timeout_s: float) -> StreamSchemas:
        """Return the schemas of a stream, of which it may have none. StreamNotFound."""
        from penstock.schemas.registry import StreamSchemas

        info = await self._streams.now(stream, timeout_s)
        answer, _ = await self._link.call(
            MetadataRequest(names=(SCHEMAS_STREAM,)), MetadataResponse, timeout_s=timeout_s
        )
        kept = next((one for one in answer.streams if one.config.is_internal), None)
        versions: list[SchemaVersion] = []
        if kept is not None:
            for one in await self._listed(kept, info, timeout_s):
                version = _version(one, await self._text(info, one, timeout_s, kept))
                if version is not None:
                    versions.append(version)
        return StreamSchemas(info.name, info.stream_id, tuple(versions))

    async def forget(self, stream: StreamName, subject: str, timeout_s: float) -> int:
        """Forget all versions of a pattern of subjects, and return their number. RemoteError schema_not_found."""
        info = await self._streams.now(stream, timeout_s)

        async def forget(kept: StreamInfo) -> int:
            request = ForgetSchemasRequest(
                stream_id=kept.stream_id, partition=_ONLY, of_stream_id=info.stream_id, subject=subject
            )
            return (await self._link.call(request, ForgetSchemasResponse, timeout_s=timeout_s))[0].versions

        return await self._with_stream(forget, timeout_s)

    async def _listed(self, kept: StreamInfo, info: StreamInfo, timeout_s: float) -> list[SchemaInfo]:
        found: list[SchemaInfo] = []
        while True:
            request = ListSchemasRequest(
                stream_id=kept.stream_id,
                partition=_ONLY,
                of_stream_id=info.stream_id,
                after_subject=found[-1].subject if found else "",
                after_number=found[-1].number if found else 0,
            )
            answer, _ = await self._link.call(request, ListSchemasResponse, timeout_s=timeout_s)
            found += answer.versions
            if not answer.has_more or not answer.versions:
                return found

    async def _text(
        self, info: StreamInfo, version: SchemaInfo, timeout_s: float, kept: StreamInfo | None = None
    ) -> StoredText:
        """Return the text of a version: as kept, or from the broker."""
        text_hash = version.text_hash
        known = self._texts.get(text_hash)
        if known is not None:
            return known

        async def fetch(kept: StreamInfo) -> GetSchemaTextResponse:
            request = GetSchemaTextRequest(
                stream_id=kept.stream_id, partition=_ONLY, of_stream_id=info.stream_id, text_hash=text_hash
            )
            return (await self._link.call(request, GetSchemaTextResponse, timeout_s=timeout_s))[0]

        answer = await (self._with_stream(fetch, timeout_s) if kept is None else fetch(kept))
        text = StoredText(answer.kind, answer.text, answer.closure)
        self._text_bytes += text.size
        if self._text_bytes > TEXTS_KEPT_BYTES_MAX:
            self._texts.clear()
            self._text_bytes = text.size
        self._texts[text_hash] = text
        return text

    async def _with_stream(self, call: Callable[[StreamInfo], Awaitable[T]], timeout_s: float) -> T:
        """Call `call` with the stream that holds schemas; call it again if that stream was recreated."""
        if (kept := self._kept) is not None:
            try:
                return await call(kept)
            except StreamChanged as error:  # its metadata were lost, or the stream that has the schemas was deleted
                if error.details.get("stream_id") != kept.stream_id:
                    raise
        request = SchemasStreamRequest(timeout_ms=milliseconds(timeout_s))
        answer, _ = await self._link.call(
            request, SchemasStreamResponse, timeout_s=seconds_of(timeout_s) + CREATE_GRACE_S
        )
        self._kept = answer.stream
        return await call(answer.stream)


def entry_of(
    schema: Schema, subject: str | None, message: str, framing: ValueFraming | FramingName, protocol: Any
) -> Callable[[StreamInfo], Sequence[SchemaEntry]]:
    """Return the entry of one schema; `subject` None: for all subjects of the stream. ValueError: an unknown word."""
    from penstock.schemas.decoding import ValueFraming
    from penstock.schemas.thrift import ThriftProtocol

    form: dict[str, Any] = {"framing": ValueFraming(framing).value, "protocol": ThriftProtocol(protocol).value}

    def entries(info: StreamInfo) -> Sequence[SchemaEntry]:
        where = info.subjects if subject is None else (subject,)
        return [SchemaEntry(subject=one, type_name=schema.type_name, message=message, **form) for one in where]

    return entries


def text_of(schema: Schema) -> StoredText:
    """Return the text of a schema, with its closure in order. InvalidSchema: it is larger than the registry takes."""
    text = StoredText(schema.kind.value, schema.text, tuple(sorted(schema.closure)))
    _check_size(text)
    return text


def contract_of(contract: ContractPath, include: Iterable[ContractPath]) -> StoredText:
    """Return a contract and its includes as one text. `contract`: its text, or as a path its file.

    InvalidSchema: it has mistakes, or cannot be read.
    """
    if isinstance(contract, str):
        text = StoredText("frugal", contract)
    else:
        text = _read(os.fspath(contract), [os.fspath(one) for one in include])
    _check_size(text)
    return text


def _check_size(text: StoredText) -> None:
    from penstock.base.limits import SCHEMA_BYTES_MAX

    try:
        size = text.size
    except UnicodeEncodeError as error:
        raise InvalidSchema(ErrorCode.INVALID_SCHEMA, f"the schema is not UTF-8: {error}") from error
    if size > SCHEMA_BYTES_MAX:
        what = f"the schema has {size:,} bytes with its included files"
        raise RemoteError(ErrorCode.TOO_LARGE, f"{what}; a registry takes {SCHEMA_BYTES_MAX:,} at most")


def _read(path: str, include: list[str]) -> StoredText:
    """Read a contract and its includes from the disk; an included file is named by its path below its folder."""
    from penstock.idl.files import FileReader
    from penstock.idl.linker import link
    from penstock.idl.mistakes import IdlError

    roots = [posixpath.dirname(path), *include]
    read = FileReader(roots)
    texts: dict[str, str] = {}

    def reading(file: str) -> str:
        texts[file] = read(file)
        return texts[file]

    try:
        link(path, reading, roots)
    except IdlError as error:
        raise InvalidSchema(ErrorCode.INVALID_SCHEMA, f"the contract has mistakes: {error}") from error
    own = texts.pop(posixpath.normpath(path))
    closure: dict[str, str] = {}
    for file, text in sorted(texts.items()):
        name = _name_below(file, roots)
        if closure.setdefault(name, text) != text:
            raise InvalidSchema(ErrorCode.INVALID_SCHEMA, f"two different files are included as {name!r}")
    return StoredText("frugal", own, tuple(sorted(closure.items())))


def _name_below(file: str, roots: Sequence[str]) -> str:
    """Return the shortest path of a file from one of the roots."""
    names = [posixpath.relpath(file, root or ".") for root in roots]
    return min((name for name in names if not name.startswith("..")), key=len, default=posixpath.basename(file))


def operations_of(
    text: StoredText, wanted: Iterable[str] | None, protocol: Any
) -> Callable[[StreamInfo], Sequence[SchemaEntry]]:
    """Return the entries of a contract's operations: those whose subjects the stream stores, or the `wanted` ones.

    `wanted`: names as "Scope.Operation". InvalidSchema: no such operation, or none for this stream.
    """
    from penstock.schemas.contracts import frugal_program
    from penstock.schemas.plans import SchemaError
    from penstock.schemas.registry import operations
    from penstock.schemas.thrift import ThriftProtocol

    try:
        found = {name: typed for typed, name in operations(frugal_program(text.text, text.closure))}
    except SchemaError as error:
        raise InvalidSchema(ErrorCode.INVALID_SCHEMA, str(error)) from error
    names = None if wanted is None else list(dict.fromkeys(wanted))
    for name in names or ():
        if name not in found:
            known = ", ".join(sorted(found)[:10])
            raise InvalidSchema(
                ErrorCode.INVALID_SCHEMA, f"the contract has no operation {name!r}; it has {known}, as SCOPE.OPERATION"
            )
    spoken: Any = ThriftProtocol(protocol).value

    def entries(info: StreamInfo) -> Sequence[SchemaEntry]:
        def is_stored(name: str) -> bool:
            return any(overlap(found[name].subject, subject) for subject in info.subjects)

        mine = list(filter(is_stored, found)) if names is None else names
        if not mine:
            stored = ", ".join(sorted({one.subject for one in found.values()})[:10])
            text = f"stream {info.name!r} stores {', '.join(map(repr, info.subjects))}, and no operation is published"
            raise InvalidSchema(ErrorCode.INVALID_SCHEMA, f"{text} there; they are on {stored}")
        return [
            SchemaEntry(
                subject=found[name].subject,
                type_name=name,
                message=found[name].message,
                framing=found[name].framing.value,
                protocol=spoken,
            )
            for name in mine
        ]

    return entries


def _version(info: SchemaInfo, text: StoredText, **told: bool) -> SchemaVersion | None:
    from penstock.schemas.registry import version_of  # which imports pyarrow

    return version_of(info, text, **told)
