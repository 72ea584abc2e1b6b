"""Schemas of streams: register, list, read and forget them.

All of them go to the leader of the only partition of the stream `__schemas`; `stream_id` and `partition` are those of
it, `of_stream_id` is the stream whose schemas they are about. All are of version 0.4.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from penstock.base import limits
from penstock.messages.fields import (
    Int32Field,
    Int64Field,
    PartitionField,
    Request,
    Response,
    StreamIdField,
    SubjectField,
    TimestampField,
)
from penstock.messages.streams import StreamInfo

KindField = Literal["arrow", "json-schema", "avro", "frugal", "protobuf"]
FramingField = Literal["bare", "message", "frugal-v0", "confluent"]
ProtocolField = Literal["binary", "compact"]
HashField = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]
TypeNameField = Annotated[str, msgspec.Meta(max_length=limits.SCHEMA_NAME_CHARS_MAX)]
TextField = Annotated[str, msgspec.Meta(max_length=limits.SCHEMA_BYTES_MAX)]
FileNameField = Annotated[str, msgspec.Meta(min_length=1, max_length=limits.SCHEMA_NAME_CHARS_MAX)]
ClosureField = Annotated[tuple[tuple[FileNameField, TextField], ...], msgspec.Meta(max_length=limits.SCHEMA_FILES_MAX)]
"""Names and texts of the included files; all texts together have at most SCHEMA_BYTES_MAX."""


class SchemasStreamRequest(Request, frozen=True, kw_only=True):
    """Request the stream that holds the schemas; it is created if missing."""

    timeout_ms: Int64Field = 10_000


class SchemasStreamResponse(Response, frozen=True, kw_only=True):
    """The stream `__schemas` and the leader of its partition."""

    stream: StreamInfo


class SchemaEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A pattern of subjects, how the values there are written, and their type in the text."""

    subject: SubjectField
    type_name: TypeNameField = ""
    message: TypeNameField = ""  # name in Thrift's message begin; "": any
    framing: FramingField = "bare"
    protocol: ProtocolField = "binary"


class SchemaInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One version, without its text: `text_hash` names that. `by`: the user who registered it, "" without users."""

    subject: str
    number: Int32Field
    kind: str
    type_name: str = ""
    message: str = ""
    framing: str = "bare"
    protocol: str = "binary"
    text_hash: str
    hash: str
    registered_us: TimestampField
    by: str = ""
    is_forced: bool = False


class RegisteredSchema(msgspec.Struct, frozen=True, kw_only=True):
    """The version of an entry; `is_new`: it was registered now, or would be if more than a check was asked for.

    `needs_header`: the bytes of the pattern's versions differ and do not say which one they are of, as those of Avro,
    so that messages of all of them need the header `Penstock-Schema`.
    """

    version: SchemaInfo
    is_new: bool
    needs_header: bool = False


class RegisterSchemasRequest(Request, frozen=True, kw_only=True):
    """Register a text for some patterns of subjects of a stream, all or none.

    `force`: also if it is not compatible with earlier versions. `check_only`: answer as if, and write nothing.
    """

    stream_id: StreamIdField
    partition: PartitionField
    of_stream_id: StreamIdField
    kind: KindField
    text: TextField
    closure: ClosureField = ()
    entries: Annotated[tuple[SchemaEntry, ...], msgspec.Meta(min_length=1, max_length=limits.SCHEMA_ENTRIES_MAX)]
    force: bool = False
    check_only: bool = False


class RegisterSchemasResponse(Response, frozen=True, kw_only=True):
    """Sent once they are committed: the versions of the entries, in their order."""

    versions: tuple[RegisteredSchema, ...]


class ListSchemasRequest(Request, frozen=True, kw_only=True):
    """List the versions of a stream, by subject and number, page by page: begin after that version."""

    stream_id: StreamIdField
    partition: PartitionField
    of_stream_id: StreamIdField
    after_subject: Annotated[str, msgspec.Meta(max_length=limits.SUBJECT_BYTES_MAX)] = ""
    after_number: Int32Field = 0


class ListSchemasResponse(Response, frozen=True, kw_only=True):
    """One page; `has_more`: more follow after its last version."""

    versions: tuple[SchemaInfo, ...]
    has_more: bool = False


class GetSchemaTextRequest(Request, frozen=True, kw_only=True):
    """Request the text with this `text_hash`, of a version of the stream."""

    stream_id: StreamIdField
    partition: PartitionField
    of_stream_id: StreamIdField
    text_hash: HashField


class GetSchemaTextResponse(Response, frozen=True, kw_only=True):
    """A text, and the names and texts of the files that it includes."""

    kind: str
    text: str
    closure: tuple[tuple[str, str], ...] = ()


class ForgetSchemasRequest(Request, frozen=True, kw_only=True):
    """Forget all versions of a pattern of subjects. A pattern that is registered again begins with version 1."""

    stream_id: StreamIdField
    partition: PartitionField
    of_stream_id: StreamIdField
    subject: SubjectField


class ForgetSchemasResponse(Response, frozen=True, kw_only=True):
    """The number of versions that were forgotten; committed."""

    versions: Int32Field
