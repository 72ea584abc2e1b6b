"""Finding of a check: result, description, and remedy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import StrEnum

import msgspec

SHOWN_MAX = 10  # of one check; further ones are counted


class Result(StrEnum):
    """Severity of a finding."""

    OK = "ok"
    WARN = "warn"  # works, but will cause trouble
    FAIL = "fail"  # does not work, or is insecure
    UNKNOWN = "unknown"  # could not be checked


class Finding(msgspec.Struct, frozen=True):
    """One line of the report."""

    check: str
    result: Result
    found: str
    advice: str = ""


def ok(check: str, found: str) -> Finding:
    return Finding(check, Result.OK, found)


def warn(check: str, found: str, advice: str) -> Finding:
    return Finding(check, Result.WARN, found, advice)


def fail(check: str, found: str, advice: str) -> Finding:
    return Finding(check, Result.FAIL, found, advice)


def unknown(check: str, found: str, advice: str = "") -> Finding:
    return Finding(check, Result.UNKNOWN, found, advice)


def bounded(findings: Iterable[Finding], well: Finding) -> Iterator[Finding]:
    """Yield the findings of one check, the worst first and at most SHOWN_MAX; if there are none, `well`."""
    found = sorted(findings, key=lambda one: one.result is not Result.FAIL)
    if not found:
        yield well
        return
    yield from found[:SHOWN_MAX]
    if more := found[SHOWN_MAX:]:
        yield Finding(well.check, max(more, key=_badness).result, f"and {len(more)} more of these", more[0].advice)


def listed(names: Iterable[object]) -> str:
    """Return `a, b and 3 more`."""
    texts = [str(name) for name in names]
    shown, more = texts[:5], len(texts) - 5
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")


_ORDER = (Result.OK, Result.UNKNOWN, Result.WARN, Result.FAIL)


def _badness(finding: Finding) -> int:
    return _ORDER.index(finding.result)


def worst(findings: Iterable[Finding]) -> Result:
    """Return the worst result."""
    return max((one.result for one in findings), key=_ORDER.index, default=Result.OK)
