"""What one look came to: a result, what was found, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import StrEnum

import msgspec

SHOWN_MAX = 10  # findings of one check; of more it is said how many


class Result(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARN = "warn"  # works, and will hurt one day
    FAIL = "fail"  # does not work, or lets in who should stay out
    UNKNOWN = "unknown"  # could not be looked at


class Finding(msgspec.Struct, frozen=True):
    """One line of the report."""

    check: str
    result: Result
    found: str
    advice: str = ""


def ok(check: str, found: str) -> Finding:
    """All is well."""
    return Finding(check, Result.OK, found)


def warn(check: str, found: str, advice: str) -> Finding:
    """It works, and will hurt one day."""
    return Finding(check, Result.WARN, found, advice)


def fail(check: str, found: str, advice: str) -> Finding:
    """It does not work, or lets in who should stay out."""
    return Finding(check, Result.FAIL, found, advice)


def unknown(check: str, found: str, advice: str = "") -> Finding:
    """It could not be looked at."""
    return Finding(check, Result.UNKNOWN, found, advice)


def bounded(findings: Iterable[Finding], well: Finding) -> Iterator[Finding]:
    """The findings of one check, the worst first and at most SHOWN_MAX; where there are none, that all is well."""
    found = sorted(findings, key=lambda one: one.result is not Result.FAIL)
    if not found:
        yield well
        return
    yield from found[:SHOWN_MAX]
    if more := found[SHOWN_MAX:]:
        yield Finding(well.check, max(more, key=_badness).result, f"and {len(more)} more of these", more[0].advice)


def listed(names: Iterable[object]) -> str:
    """`a, b and 3 more`."""
    texts = [str(name) for name in names]
    shown, more = texts[:5], len(texts) - 5
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")


_ORDER = (Result.OK, Result.UNKNOWN, Result.WARN, Result.FAIL)


def _badness(finding: Finding) -> int:
    return _ORDER.index(finding.result)


def worst(findings: Iterable[Finding]) -> Result:
    """The worst of their results."""
    return max((one.result for one in findings), key=_ORDER.index, default=Result.OK)
