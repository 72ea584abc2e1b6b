"""Validate the caller's arguments and convert them to protocol types; check that answers match their requests."""

from __future__ import annotations

import contextlib
import difflib
import importlib.util
import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any, SupportsFloat, SupportsIndex, get_type_hints

import msgspec

from penstock.base import limits
from penstock.base.config import StreamConfig, field_type_mistake, stream_config_mistakes
from penstock.base.errors import CorruptionError, ErrorCode
from penstock.base.extras import how_to_install
from penstock.base.ids import StreamId
from penstock.base.subjects import subject_mistake
from penstock.client.errors import InvalidConfig
from penstock.client.places import LastMessages, parse_place
from penstock.client.publish_format import a_kind
from penstock.client.values import Message, StreamName
from penstock.messages import GetRequest, StreamInfo

COLUMNS = ("offset", "timestamp", "subject", "key", "value", "headers")
"""The columns of the log, in order."""


def stream_config(fields: dict[str, Any]) -> StreamConfig:
    """Return a config from its fields. InvalidConfig lists every mistake."""
    fields = field_values(fields)
    mistakes = _field_mistakes(fields)
    if not mistakes:
        config = msgspec.convert(fields, StreamConfig)
        mistakes = stream_config_mistakes(config)
    if mistakes:
        raise InvalidConfig(ErrorCode.INVALID_CONFIG, "\n".join(mistakes), mistakes=mistakes)
    return config


def several(subjects: str | Sequence[str]) -> tuple[str, ...]:
    """Return one or several subjects as a tuple."""
    return (subjects,) if isinstance(subjects, str) else tuple(subjects)


def field_values(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields with all integers, numpy's included, as int, and numpy's booleans as bool; others unchanged."""
    return {name: _as_int(value) for name, value in fields.items()}


def _as_int(value: Any) -> Any:
    if getattr(getattr(value, "dtype", None), "kind", "") == "b":
        return bool(value)
    if not isinstance(value, bool):
        with contextlib.suppress(TypeError):
            return operator.index(value)
    return value


def _field_mistakes(fields: dict[str, Any]) -> list[str]:
    """Return a mistake for each field that does not exist or has the wrong type."""
    types = get_type_hints(StreamConfig)
    mistakes = []
    for name, value in fields.items():
        if name not in types:
            meant = difflib.get_close_matches(name, types, n=1)
            hint = f"did you mean {meant[0]}?" if meant else f"there are {', '.join(types)}"
            mistakes.append(f"{name}: there is no such field; {hint}")
            continue
        if (mistake := _duration_mistake(name, value) or field_type_mistake(name, value)) is not None:
            mistakes.append(mistake)
    return mistakes


def check_durations(changes: Mapping[str, Any]) -> None:
    """Raise InvalidConfig for a timedelta, because the broker would receive it as a plain number."""
    if mistakes := [mistake for one in changes.items() if (mistake := _duration_mistake(*one)) is not None]:
        raise InvalidConfig(ErrorCode.INVALID_CONFIG, "\n".join(mistakes), mistakes=mistakes)


def _duration_mistake(name: str, value: object) -> str | None:
    if not isinstance(value, timedelta):
        return None
    return f"{name}: it is a timedelta; give milliseconds, here {value // timedelta(milliseconds=1)}"


def check_plain(subject: str) -> None:
    """Raise ValueError unless `subject` is valid and has no wildcards."""
    if (mistake := subject_mistake(subject)) is None:
        return
    if subject_mistake(subject, wildcards=True) is None:
        raise ValueError(
            f"{subject!r} is a pattern, and this takes a plain subject; read(where=Filter(subject=…)) takes patterns"
        )
    raise ValueError(mistake)


def name_and_id(stream: StreamName) -> tuple[str, StreamId | None]:
    """Return (name, id); the id is None if only the name is given."""
    return (stream.name, stream.stream_id) if isinstance(stream, StreamInfo) else (stream, None)


def wanted_columns(columns: Iterable[str] | None) -> list[str] | None:
    """Return the requested columns, or None for all. ValueError: a column that does not exist."""
    if columns is None:
        return None
    wanted = [columns] if isinstance(columns, str) else list(columns)
    if not wanted or not set(wanted) <= set(COLUMNS):
        raise ValueError(f"columns are {wanted}; there are {', '.join(COLUMNS)}")
    if len(set(wanted)) < len(wanted):
        raise ValueError(f"columns are {wanted}; give each once")
    return wanted


def seconds_of(timeout: object) -> float:
    """Return a time-out in seconds, at most CLIENT_TIMEOUT_S_MAX. TypeError: not a number. ValueError: NaN."""
    if type(timeout) is float and timeout < limits.CLIENT_TIMEOUT_S_MAX:  # each publish has one; NaN is not less
        return timeout
    # `float` and `int` first: the check of a protocol is slow.
    if isinstance(timeout, bool) or not isinstance(timeout, (float, int, SupportsFloat)):
        what = "None" if timeout is None else a_kind(timeout)
        raise TypeError(f"timeout is {what}; give seconds, or float('inf') to wait for as long as it takes")
    seconds = float(timeout)
    if math.isnan(seconds):
        raise ValueError("timeout is nan; give seconds, or float('inf') to wait for as long as it takes")
    return min(seconds, limits.CLIENT_TIMEOUT_S_MAX)


def duration_s(what: str, given: object) -> float:
    """Return an option in seconds that is not a time-out. TypeError: not a number."""
    if isinstance(given, bool) or not isinstance(given, SupportsFloat):
        raise TypeError(f"{what} is {a_kind(given)}; give seconds, such as 10")
    return float(given)


def rows_max(given: SupportsIndex) -> int:
    """Return the maximum number of rows of a batch. TypeError, ValueError."""
    if (number := whole_number("batch_rows_max", given)) < 1:
        raise ValueError(f"batch_rows_max is {number}; a batch has at least one row")
    return number


def limit_of(given: SupportsIndex | None) -> int | None:
    """Return the maximum number of rows to read; None: no limit. TypeError, ValueError."""
    number = None if given is None else whole_number("limit", given)
    if number is not None and number < 0:
        raise ValueError(f"limit is {number}; give how many messages to read at most")
    return number


def milliseconds(timeout: float) -> int:
    """Return a time-out in whole milliseconds, at least one."""
    return max(1, round(seconds_of(timeout) * 1000))


def whole_number(what: str, given: SupportsIndex) -> int:
    """Return an integer of any type, numpy's included, as int. ValueError: beyond 64 bits. TypeError: anything else."""
    try:
        number = given if type(given) is int else operator.index(given)  # `index` is slow
    except TypeError:
        number = None
    if number is None or isinstance(given, bool):
        raise TypeError(f"the {what} {given!r} is {a_kind(given)}; give an int")
    if not -limits.OFFSET_MAX <= number <= limits.OFFSET_MAX:
        raise ValueError(f"the {what} {number} is beyond {limits.OFFSET_MAX}, the most")
    return number


def whole_numbers(offsets: Mapping[int, int]) -> dict[int, int]:
    """Return offsets by partition as ints. TypeError: a value that is not an integer."""
    if not isinstance(offsets, Mapping):
        raise TypeError(f"the offsets are {a_kind(offsets)}; give a dict of an offset by partition, such as {{0: 6}}")
    return {whole_number("partition", one): whole_number("offset", offsets[one]) for one in offsets}


def place_of(place: Any) -> Any:
    """Parse text; convert dates, numpy's integers, `datetime64` (as UTC, like pandas) and `timedelta64` to the types of
    `Start`.

    A negative integer -N is LastMessages(N). Any other position is returned unchanged. ValueError: text that is no
    position, NaT, or a time outside the years 1 to 9999.
    """
    if isinstance(place, str):
        return parse_place(place)
    if isinstance(place, date) and not isinstance(place, datetime):
        return datetime(place.year, place.month, place.day, tzinfo=UTC)
    kind = getattr(getattr(place, "dtype", None), "kind", "")
    if kind in ("i", "u") or (isinstance(place, int) and not isinstance(place, bool)):
        number = whole_number("offset", place)
        return number if number >= 0 else LastMessages(-number)
    if kind not in ("M", "m"):
        return place
    if str(place) == "NaT":
        raise ValueError(f"{place!r} is no place in the log: it is not a time")
    in_us, in_s = f"{kind}8[us]", f"{kind}8[s]"
    try:
        if place.astype(in_us).astype(in_s) != place.astype(in_s):  # numpy wraps around on overflow
            raise OverflowError
        moved = timedelta(microseconds=int(place.astype(in_us).astype("int64")))
        return datetime(1970, 1, 1, tzinfo=UTC) + moved if kind == "M" else moved
    except OverflowError:
        raise ValueError(f"{place!r} is no place in the log: it is beyond the years 1 to 9999") from None


def fixed_place_of(place: Any) -> Any:
    """Return `place_of`. ValueError: it is -N, which is another place with each new message."""
    if isinstance(found := place_of(place), LastMessages):
        text = f"-{found.message_count} changes with each new message"
        raise ValueError(f"{text}: give an end of the log, an offset, an age or a time")
    return found


def require(package: str) -> None:
    """Raise ImportError with installation advice if `package` is missing."""
    if importlib.util.find_spec(package) is None:
        raise ImportError(f"{package} is not installed: {how_to_install(package)}")


def check_asked_for(request: GetRequest, found: Message, *, source: str) -> None:
    """Raise CorruptionError if the message is not the requested one."""
    for name in ("offset", "key", "subject"):
        wanted, got = getattr(request, name), getattr(found, name)
        if wanted is not None and wanted != got:
            raise CorruptionError(source, 0, f"the message with {name} {wanted!r}", f"one with {got!r}")
