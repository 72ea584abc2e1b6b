"""Codecs: values as Thrift's binary, compact and JSON protocols, with a message header or bare.

A message is a header (name, kind, sequence number) and a value: the struct of a method's arguments or result, a
TApplicationException, or what a scope publishes. Each codec writes the bytes that Apache Thrift writes; in JSON,
doubles may have another form.

Rules: a decoder trusts no byte. Sizes of texts and containers are checked against the bytes that are left, structs nest
up to `DEPTH_MAX`, and each value takes a byte at least, so the work is bounded by the bytes. A struct of a byte takes
microseconds to make, so a value has `OBJECTS_MAX` structs and containers at most: more are refused before one is made,
by encoders and decoders of binary and compact; JSON has a limit of its own, `json_protocol.JSON_OBJECTS_MAX`. Texts are
UTF-8; bytes behind the value are refused. Fields that a struct does not have, or has with another type, are skipped, as
Thrift does; elements of a container that have another type are not. An encoder checks the whole value first: what does
not fit its type, and a required field that is None, is not written. Whatever is wrong is a `CodecError`, which names
the path to the field, and in bytes of binary and compact the byte of the value.

| codec     | values by                               | media type (IANA)                       |
|-----------|-----------------------------------------|-----------------------------------------|
| `BINARY`  | Apache thrift's C code (extra `frugal`) | `application/vnd.apache.thrift.binary`  |
| `COMPACT` | Apache thrift's C code (extra `frugal`) | `application/vnd.apache.thrift.compact` |
| `JSON`    | `json_protocol`                         | `application/vnd.apache.thrift.json`    |

The C code replaces bytes that are no UTF-8 with U+FFFD. So a value that is not all ASCII is looked at again, as bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property, lru_cache
from io import BytesIO
from typing import Any, Final, NamedTuple, NoReturn, Protocol

from penstock.base.errors import OperationalError
from penstock.base.extras import how_to_install
from penstock.base.typed_headers import media_type, thrift_media_type
from penstock.frugal.contracts import Spec
from penstock.frugal.errors import CodecError
from penstock.frugal.fitting import check_fit, placed, root_of, shape_by
from penstock.frugal.json_protocol import decode_json, decode_json_message, encode_json, encode_json_message
from penstock.hot import thrift_objects
from penstock.hot.thrift_objects import find_excess, find_fault

DEPTH_MAX = 64
"""Structs in structs; Apache thrift's own limit."""
NAME_BYTES_MAX = 1024
"""Most bytes of the name of a method or operation."""
OBJECTS_MAX = 100_000
"""Most structs and containers of one value; some tenths of a second to make."""
_HEADERS_KEPT = 256
"""Headers of messages that are kept, encoded and decoded: those of a service are few."""
_SPECS_KEPT = 1024
_KEPT_BYTES = 128
"""A longer header is not kept."""
_STRUCT: Final = 12  # plain: each use of `WireType` takes a look-up


class MessageKind(IntEnum):
    """Kind of a message: Thrift's TMessageType."""

    CALL = 1
    REPLY = 2
    EXCEPTION = 3
    ONEWAY = 4


class WireType(IntEnum):
    """Thrift's TType: the first part of a `Spec`."""

    BOOL = 2
    BYTE = 3
    DOUBLE = 4
    I16 = 6
    I32 = 8
    I64 = 10
    STRING = 11
    STRUCT = 12
    MAP = 13
    SET = 14
    LIST = 15
    UUID = 16


class MessageHeader(NamedTuple):
    """Header in front of a message's value. `sequence` is 0 with Frugal."""

    name: str
    kind: MessageKind
    sequence: int = 0


class Codec(Protocol):
    """A protocol of Thrift. `data` is bytes; specs are those of `contracts`. Errors: `CodecError`."""

    @property
    def name(self) -> str:
        """Return the codec's name: "binary"."""

    @property
    def content_type(self) -> str:
        """Return the media type of bare values and messages."""

    def encode(self, name: str, kind: MessageKind, sequence: int, spec: Spec, value: Any) -> bytes:
        """Return a message."""

    def decode_header(self, data: bytes) -> tuple[MessageHeader, int]:
        """Return a message's header, and where its value begins."""

    def decode_value(self, data: bytes, start: int, spec: Spec) -> Any:
        """Return a message's value, which begins at `start` and reaches to the end."""

    def encode_bare(self, spec: Spec, value: Any) -> bytes:
        """Return a value without a message header."""

    def decode_bare(self, data: bytes, spec: Spec) -> Any:
        """Return the value that all of the bytes are."""


def _spec(kind: Any) -> Spec:
    return (_STRUCT, [kind, kind.thrift_spec])


struct_spec: Callable[..., Spec] = lru_cache(_SPECS_KEPT)(_spec)
"""Returns the spec of a struct of generated code."""


@dataclass(slots=True)
class ApplicationException:
    """Thrift's TApplicationException: the value of a message of kind EXCEPTION."""

    message: str | None = None
    type: int = 0

    thrift_spec = (
        None,
        (1, WireType.STRING, "message", "UTF8", None),
        (2, WireType.I32, "type", None, 0),
    )


# Values


@dataclass(frozen=True, slots=True)
class _Compiled:
    """Functions of Thrift's C code: encode(value, [class, spec]) and decode(None, input, [class, spec])."""

    encode: Callable[[Any, Any], bytes]
    decode: Callable[[None, _Input, Any], Any]


class _Input:
    """Input of Thrift's C code: the bytes, and the sizes that are the most of a text and of a container."""

    __slots__ = ("container_length_limit", "cstringio_buf", "string_length_limit")

    def __init__(self, data: bytes) -> None:
        self.cstringio_buf = BytesIO(data)
        self.container_length_limit = self.string_length_limit = len(data)  # a value takes a byte at least

    @property
    def trans(self) -> _Input:
        return self

    def cstringio_refill(self, partly: bytes, size: int) -> NoReturn:
        raise EOFError(f"{size:,} bytes are needed, and {len(partly):,} are left")


def _compiled(name: str) -> _Compiled:
    try:
        from thrift.protocol import fastbinary
    except ImportError:
        raise OperationalError(f"Apache thrift is not installed, or not compiled: {how_to_install('frugal')}") from None
    return _Compiled(getattr(fastbinary, f"encode_{name}"), getattr(fastbinary, f"decode_{name}"))


class _Box:
    """A struct of one field: the C code reads and writes structs only."""

    __slots__ = ("value",)

    def __init__(self, value: Any = None) -> None:
        self.value = value


def _boxed(spec: Spec) -> list[Any]:
    return [_Box, (None, (1, spec[0], "value", spec[1], None))]


class _ThriftCodec:
    """Common part of binary and compact: values by the C code."""

    name: str
    _is_compact = False

    @property
    def content_type(self) -> str:
        return thrift_media_type(self.name)

    @cached_property
    def _compiled(self) -> _Compiled:
        return _compiled(self.name)

    def encode_bare(self, spec: Spec, value: Any) -> bytes:
        """Return a value without a message header."""
        check_fit(spec, value)
        encode = self._compiled.encode
        try:
            bare = encode(value, spec[1]) if spec[0] == _STRUCT else self._encode_other(encode, spec, value)
        except Exception as error:  # of the struct's own code, too
            raise CodecError(f"{root_of(spec)} does not fit its type: {_text(error)}") from error
        if len(bare) > OBJECTS_MAX:
            self._check_objects(bare, spec[0])
        return bare

    def _check_objects(self, data: bytes, wire_type: int) -> None:
        """Raise CodecError for a value of too many objects. One that has fewer bytes cannot have them."""
        match find_excess(data, wire_type, OBJECTS_MAX, self._is_compact):
            case thrift_objects.EXCEEDS:
                raise CodecError(f"the value has more than {OBJECTS_MAX:,} structs and containers, the most of one")
            case thrift_objects.UNREADABLE:
                raise CodecError("the value has a size beyond its end, an unknown type, or nests too deep")

    def _encode_other(self, encode: Callable[[Any, Any], bytes], spec: Spec, value: Any) -> bytes:
        if (bare := self._encode_special(spec, value)) is not None:
            return bare
        return encode(_Box(value), _boxed(spec))[len(self._prefix(spec[0])) : -1]

    def decode_bare(self, data: bytes, spec: Spec) -> Any:
        """Return the value that all of the bytes are."""
        wire_type, arguments = spec
        if len(data) > OBJECTS_MAX:
            self._check_objects(data, wire_type)
        decode = self._compiled.decode
        try:
            if wire_type == _STRUCT:
                value = _decode_whole(decode, data, arguments)
            elif (special := self._decode_special(spec, data)) is not None:
                return special
            else:
                value = _decode_whole(decode, b"".join((self._prefix(wire_type), data, b"\0")), _boxed(spec)).value
                if value is None:
                    raise CodecError("there is no value")
        except CodecError:
            raise
        except Exception as error:  # of the struct's own code, too
            self._check_bytes(data, spec, only_texts=False)
            raise CodecError(f"the bytes are no {root_of(spec)}: {_text(error)}") from error
        if not data.isascii():
            self._check_bytes(data, spec, only_texts=True)
        return value

    def _check_bytes(self, data: bytes, spec: Spec, *, only_texts: bool) -> None:
        """Raise CodecError for the first field that cannot be read, or for a text that is no UTF-8."""
        fault = find_fault(data, shape_by(spec), self._is_compact, only_texts)
        if fault is not None:
            raise CodecError(placed(spec, fault))

    def decode_value(self, data: bytes, start: int, spec: Spec) -> Any:
        return self.decode_bare(data[start:], spec)

    def _prefix(self, wire_type: int) -> bytes:
        """Return the beginning of a struct of one field, with id 1."""
        raise NotImplementedError

    def _encode_special(self, spec: Spec, value: Any) -> bytes | None:
        """Return a value that has another form in a struct than alone."""

    def _decode_special(self, spec: Spec, data: bytes) -> Any:
        """Return the value of what `_encode_special` makes; None: it has no form of its own."""


def _decode_whole(decode: Callable[[None, _Input, Any], Any], data: bytes, arguments: Any) -> Any:
    source = _Input(data)
    value = decode(None, source, arguments)
    read = source.cstringio_buf.tell()
    if read != len(data):
        raise CodecError(f"{len(data) - read:,} bytes follow the value")
    return value


def _text(error: Exception) -> str:
    return f"{error}" or type(error).__name__


# Messages


class BinaryCodec(_ThriftCodec):
    """Thrift's binary protocol. Writes the strict form of a header, and reads the old one too."""

    name = "binary"

    def encode(self, name: str, kind: MessageKind, sequence: int, spec: Spec, value: Any) -> bytes:
        """Return a message."""
        return _binary_head(name, kind, sequence) + self.encode_bare(spec, value)

    def decode_header(self, data: bytes) -> tuple[MessageHeader, int]:
        """Return a message's header, and where its value begins."""
        end = 12 + int.from_bytes(data[4:8], "big")
        if end <= _KEPT_BYTES and len(data) > end and data[0] == 0x80:
            return _kept_binary_header(data[:end])
        return _binary_header(data)

    def _prefix(self, wire_type: int) -> bytes:
        return bytes((wire_type, 0, 1))


@lru_cache(_HEADERS_KEPT)
def _binary_head(name: str, kind: MessageKind, sequence: int) -> bytes:
    encoded = _encode_name(name)
    return _BINARY_HEAD.pack(_BINARY_VERSION | kind, len(encoded)) + encoded + _I32.pack(sequence)


def _binary_header(data: bytes) -> tuple[MessageHeader, int]:
    try:
        (first,) = _U32.unpack_from(data)
        if first >> 31 == 0 and data[0] != _JSON_ID:  # the old form: size, name, kind, sequence
            name, after = _decode_name(data, 4, first)
            kind = data[after]
            after += 1
        elif first & 0xFFFF0000 != _BINARY_VERSION:
            raise _unknown_version(data, "binary")
        else:
            name, after = _decode_name(data, 8, _U32.unpack_from(data, 4)[0])
            kind = first & 0xFF
        (sequence,) = _I32.unpack_from(data, after)
    except (struct.error, IndexError):
        raise CodecError(f"the message ends in its header, after {len(data)} bytes") from None
    return MessageHeader(name, _decode_kind(kind), sequence), after + 4


_kept_binary_header = lru_cache(_HEADERS_KEPT)(_binary_header)


_U32 = struct.Struct(">I")
_I32 = struct.Struct(">i")
_BINARY_HEAD = struct.Struct(">II")
_BINARY_VERSION: Final = 0x80010000


class CompactCodec(_ThriftCodec):
    """Thrift's compact protocol."""

    name = "compact"
    _is_compact = True

    def encode(self, name: str, kind: MessageKind, sequence: int, spec: Spec, value: Any) -> bytes:
        """Return a message."""
        encoded = _encode_name(name)
        head = bytes((_COMPACT_ID, _COMPACT_VERSION | kind << 5))
        numbers = _varint(sequence & 0xFFFFFFFF) + _varint(len(encoded))
        return b"".join((head, numbers, encoded, self.encode_bare(spec, value)))

    def decode_header(self, data: bytes) -> tuple[MessageHeader, int]:
        """Return a message's header, and where its value begins."""
        try:
            if data[0] != _COMPACT_ID or data[1] & 0x1F != _COMPACT_VERSION:
                raise _unknown_version(data, self.name)
            sequence, after = _decode_varint(data, 2)
            size, after = _decode_varint(data, after)
        except IndexError:
            raise CodecError(f"the message ends in its header, after {len(data)} bytes") from None
        name, after = _decode_name(data, after, size)
        signed = sequence - (1 << 32) if sequence >> 31 else sequence
        return MessageHeader(name, _decode_kind(data[1] >> 5), signed), after

    def _prefix(self, wire_type: int) -> bytes:
        return bytes((0x10 | _COMPACT_TYPES[wire_type],))

    def _encode_special(self, spec: Spec, value: Any) -> bytes | None:
        if spec[0] != WireType.BOOL:
            return None
        return b"\1" if value else b"\2"

    def _decode_special(self, spec: Spec, data: bytes) -> Any:
        if spec[0] != WireType.BOOL:
            return None
        if data not in {b"\0", b"\1", b"\2"}:
            raise CodecError(f"{data[:4].hex() or 'nothing'} is no bool")
        return data == b"\1"


_COMPACT_ID = 0x82
_COMPACT_VERSION = 1
_COMPACT_TYPES = {3: 3, 4: 7, 6: 4, 8: 5, 10: 6, 11: 8, 15: 9, 14: 10, 13: 11, 12: 12, 16: 13}
"""The compact protocol's number of each wire type; a bool's is its value."""


_JSON_ID = 0x5B  # of `[1,"name",…]`; as a size of the old binary form it would be beyond `NAME_BYTES_MAX`
_OTHERS_IDS = (b"\x80", b"\x82")  # of binary and compact: no text of JSON begins so


def _unknown_version(data: bytes, own: str) -> CodecError:
    """Return the error for a message whose first bytes are not those of a codec: perhaps they are another one's."""
    if data[:2] == b"\x80\x01":
        other = "binary"
    elif data[0] == _COMPACT_ID:
        other = "compact"
    else:
        other = "json" if data[0] == _JSON_ID else own
    if other == own:
        return CodecError(f"the message begins with {data[:4].hex()}, which is no version of Thrift's {own} protocol")
    return CodecError(
        f"the message is in Thrift's {other} protocol, and is read here as {own}: give both sides the same codec "
        f"(here codec={other.upper()})"
    )


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _decode_varint(data: bytes, position: int) -> tuple[int, int]:
    """Return an unsigned number of 32 bits, and the position behind it."""
    number = 0
    for index in range(5):
        byte = data[position + index]
        number |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            if number >> 32:
                break
            return number, position + index + 1
    raise CodecError(f"the number at byte {position} has more than 32 bits")


def _encode_name(name: str) -> bytes:
    try:
        encoded = name.encode()
    except UnicodeEncodeError:
        raise CodecError(f"the name {name!r} has no form in UTF-8") from None
    if len(encoded) > NAME_BYTES_MAX:
        raise CodecError(f"the name has {len(encoded):,} bytes, more than {NAME_BYTES_MAX:,}")
    return encoded


def _decode_name(data: bytes, start: int, size: int) -> tuple[str, int]:
    if size > NAME_BYTES_MAX:
        raise CodecError(f"the name has {size:,} bytes, more than {NAME_BYTES_MAX:,}")
    end = start + size
    if end > len(data):
        raise CodecError(f"the name has {size} bytes, and {len(data) - start} are left")
    try:
        return data[start:end].decode(), end
    except UnicodeDecodeError as error:
        raise CodecError(f"the name is no UTF-8: {error}") from None


def _decode_kind(number: int) -> MessageKind:
    if not MessageKind.CALL <= number <= MessageKind.ONEWAY:
        raise CodecError(f"a message of kind {number} is not known")
    return MessageKind(number)


class JsonCodec:
    """Thrift's JSON protocol."""

    name = "json"
    content_type = thrift_media_type(name)

    def encode(self, name: str, kind: MessageKind, sequence: int, spec: Spec, value: Any) -> bytes:
        """Return a message."""
        _encode_name(name)
        return encode_json_message(name, kind, sequence, spec, value)

    def decode_header(self, data: bytes) -> tuple[MessageHeader, int]:
        """Return a message's header, and where its value begins."""
        if data[:1] in _OTHERS_IDS:
            raise _unknown_version(data, self.name)
        name, kind, sequence, start = decode_json_message(data)
        _encode_name(name)
        return MessageHeader(name, _decode_kind(kind), sequence), start

    def decode_value(self, data: bytes, start: int, spec: Spec) -> Any:
        """Return a message's value, which begins at `start` and reaches to the last bracket."""
        return decode_json(data[start : data.rindex(b"]")], spec)

    def encode_bare(self, spec: Spec, value: Any) -> bytes:
        """Return a value without a message header."""
        return encode_json(spec, value)

    def decode_bare(self, data: bytes, spec: Spec) -> Any:
        """Return the value that all of the bytes are."""
        return decode_json(data, spec)


BINARY: Codec = BinaryCodec()
COMPACT: Codec = CompactCodec()
JSON: Codec = JsonCodec()
CODECS = {each.name: each for each in (BINARY, COMPACT, JSON)}
"""The codecs by name: "binary", "compact", "json"."""


def find_codec(content_type: str) -> Codec | None:
    """Return the codec of a media type; parameters of it do not count."""
    kind = media_type(content_type)
    return next((each for each in CODECS.values() if each.content_type == kind), None)
