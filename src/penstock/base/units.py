"""Parses and formats sizes and durations: `512MiB`, `7d`, `1h30m`.

Rules: a bare number is bytes; a duration needs a unit, except 0. Powers of 1024 are `KiB`, `MiB`, `GiB`, `TiB`; powers
of 1000 are `kB`, `MB`, `GB`, `TB`; case does not matter. Durations are `us`, `ms`, `s`, `m` or `min`, `h`, `d`, `w`;
they may be joined, and case does not matter. `M` is refused: in the nats CLI it is a month. `mo` and `y` are refused,
too, because months and years have no fixed length.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

_BYTES = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "k": 2**10,
    "m": 2**20,
    "g": 2**30,
    "t": 2**40,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_BINARY = {"ki": "KiB", "mi": "MiB", "gi": "GiB", "ti": "TiB"}  # Kubernetes notation
_MICROSECONDS = {
    "us": 1,
    "ms": 10**3,
    "s": 10**6,
    "m": 60 * 10**6,
    "min": 60 * 10**6,
    "h": 3_600 * 10**6,
    "d": 86_400 * 10**6,
    "w": 7 * 86_400 * 10**6,
}
_WORDS = {
    **dict.fromkeys(("sec", "second"), "s"),
    **dict.fromkeys(("minute",), "m"),
    **dict.fromkeys(("hr", "hour"), "h"),
    **dict.fromkeys(("day",), "d"),
    **dict.fromkeys(("wk", "week"), "w"),
    **dict.fromkeys(("millisecond", "msec"), "ms"),
}
_CALENDAR = {"mo": "month", "mon": "month", "month": "month", "y": "year", "yr": "year", "year": "year"}
_CALENDAR_DAYS = {"month": 30, "year": 365}
_NUMBER = r"[0-9]{1,20}(?:\.[0-9]{1,9})?"
_SIZE = re.compile(rf"({_NUMBER})\s*([a-z]*)", re.IGNORECASE)
_BARE = re.compile(_NUMBER)
_DURATION_PART = re.compile(rf"({_NUMBER})\s*([a-z]+)\s*", re.IGNORECASE)


def parse_bytes(text: str) -> int:
    """Parse `512MiB` to a number of bytes; ValueError says what is expected."""
    found = _SIZE.fullmatch(text.strip())
    scale = None if found is None else _BYTES.get(found[2].lower())
    if found is None or scale is None:
        if found is not None and found[2].lower() in _BINARY:
            raise ValueError(f"{text!r} is not a size; write {found[1]}{_BINARY[found[2].lower()]}")
        raise ValueError(f"{text!r} is not a size; write for example 1048576, 64MiB or 1.5GB")
    return _scaled(found[1], scale)


def parse_duration_us(text: str) -> int:
    """Parse `1h30m` to microseconds; ValueError says what is expected."""
    bare = text.strip()
    if _BARE.fullmatch(bare) is not None:
        if not bare.strip("0."):
            return 0
        # Taking a bare number for seconds would delete nearly all of a stream if the user meant days.
        raise ValueError(f"{bare} has no unit; write for example {bare}s, {bare}m, {bare}h or {bare}d")
    mistake = f"{text!r} is not a duration; write for example 500ms, 30s, 15m, 12h, 7d or 1h30m"
    total = position = 0
    while position < len(bare) or not bare:
        # Part by part: one pattern for all parts would backtrack over every way to split digits.
        part = _DURATION_PART.match(bare, position)
        scale = None if part is None else _MICROSECONDS.get(part[2].lower())
        if part is not None and (calendar := _calendar_unit(part[2])) is not None:
            raise ValueError(_of_calendar(text, part, calendar))
        if part is not None and (unit := _WORDS.get(part[2].lower().removesuffix("s"))) is not None:
            raise ValueError(f"{text!r} is not a duration; write {part[1]}{unit}")
        if part is None or scale is None:
            raise ValueError(mistake)
        total += _scaled(part[1], scale)
        position = part.end()
    return total


def parse_duration_ms(text: str) -> int:
    """Parse `1h30m` to milliseconds; ValueError as in `parse_duration_us`, and for less than 1 ms."""
    duration_us = parse_duration_us(text)
    if 0 < duration_us < 1_000:
        raise ValueError(f"{text.strip()} is below 1ms, the least")
    return duration_us // 1_000


def _calendar_unit(unit: str) -> str | None:
    """Return the calendar unit that is meant. M counts as one, although m is minutes."""
    return "month" if unit == "M" else _CALENDAR.get(unit.lower().removesuffix("s"))


def _of_calendar(text: str, part: re.Match[str], calendar: str) -> str:
    number, unit = part[1], part[2]
    days = f"{_plain(_scaled(number, _CALENDAR_DAYS[calendar] * 1_000))}d"
    if unit == "M":
        return f"{text!r}: m is minutes and M is refused; write {number}m for minutes, {days} for months"
    return f"{text!r}: a {calendar} has no fixed length; write {days}"


def _plain(thousandths: int) -> str:
    whole, rest = divmod(thousandths, 1_000)
    return f"{whole}.{rest:03}".rstrip("0").rstrip(".")


def _scaled(number: str, scale: int) -> int:
    # Not through floats: numbers above 2**53 stay exact.
    whole, _, fraction = number.partition(".")
    return int(whole) * scale + (int(fraction) * scale // 10 ** len(fraction) if fraction else 0)


def format_bytes(size_bytes: int) -> str:
    """Format for people: `1.5 MiB`."""
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size_bytes} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def format_exact_bytes(size_bytes: int) -> str:
    """Format in the largest unit that is exact and that `parse_bytes` reads: `64MiB`, `1000`."""
    for unit, scale in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size_bytes and size_bytes % scale == 0:
            return f"{size_bytes // scale}{unit}"
    return str(size_bytes)


def format_short_bytes(size_bytes: int) -> str:
    """Format exactly in the shorter of both notations, binary or decimal: `10GB`, `64MiB`."""
    binary = format_exact_bytes(size_bytes)
    decimal = binary
    for unit, scale in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6)):
        if size_bytes and size_bytes % scale == 0:
            decimal = f"{size_bytes // scale}{unit}"
            break
    return min(binary, decimal, key=len)


def format_duration_us(duration_us: int) -> str:
    """Format for people, with at most two units: `2d 3h`, `1m 5s`, `12.3ms`."""
    if duration_us < 0:
        return f"-{format_duration_us(-duration_us)}"
    if duration_us == 0:
        return "0s"
    if duration_us < 1_000:
        return f"{duration_us}us"
    if duration_us < 10**6:
        return f"{duration_us / 1_000:g}ms"
    if duration_us < 60 * 10**6:
        return f"{round(duration_us / 10**6, 1):g}s"
    seconds = duration_us // 10**6
    parts: list[str] = []
    for unit, scale in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        count, seconds = divmod(seconds, scale)
        if count or parts:
            parts.append(f"{count}{unit}" if count else "")
        if len(parts) == 2:
            break
    return " ".join(filter(None, parts))


def format_duration_ms(duration_ms: int) -> str:
    return format_duration_us(duration_ms * 1_000)


def format_offsets(begin: int, end: int | None) -> str:
    """Format the offsets from `begin` up to `end` (exclusive; None: unknown) for people, with the last one included."""
    if end is None:
        return f"{begin} and later ones"
    if end <= begin:
        return "none"
    return str(begin) if end == begin + 1 else f"{begin} to {end - 1}"


def counted(count: int, noun: str, many: str = "") -> str:
    """Return `1 message` or `2,000 messages`; `many` is an irregular plural."""
    return f"{count:,} {noun if count == 1 else many or f'{noun}s'}"


def utc_text(moment_us: int) -> str:
    """Format a time (µs since 1970) to the minute, in UTC."""
    return datetime.fromtimestamp(moment_us / 1e6, UTC).strftime("%Y-%m-%d %H:%M UTC")
