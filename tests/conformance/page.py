"""The generated part of docs/reference/jetstream-compatibility.md: the kept results of peers' suites."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.conformance.results import GROUPS, RESULTS, Result, Run, read_run
from tests.conformance.servers import System

HEADING = "## Tests of others"
_NEXT = "\n## "
_MADE = "<!-- Made by `python -m tests.docs.reference docs/reference` from tests/conformance/results. -->"
_IN_WORDS = {
    "server": "streams, look-ups, readers without acks, key-value, objects",
    "cluster": "several servers",
    "sources": "mirrors, sources",
    "extras": "schedules, counters, atomic batches, republishing, transforms, work queues",
    "acked": "consumers that are durable or have acks",
    "client": "no server",
}
_WHY = {
    "sources": "a stream with mirrors or sources is refused (10052); `penstock copy` and `relay` copy streams",
    "extras": "republishing, transforms, counters, fast batches and schedules that repeat are refused (10052, 10168, "
    "10189, 10205)",
}
"""Why tests do not pass that need what is not there; the others are listed one by one."""
_INTRO = """\
Peers' own tests, unmodified, against Penstock and against a nats-server with JetStream, by what each test needs \
(`make conformance`, [how](../adr/0096-conformance-by-tests-of-others.md)).
A test that was skipped, or not run, has not passed.
The run of nats.js is older than `first_seq` and delete markers, which work now: what it says of these two is out of \
date.
Of nats.java the tests of consumers that are durable or have acks, and eight others, are of later runs than the rest, \
and so are three tests of nats.go and three of nats.py.
The runs shared two cores with up to twenty other processes: `test_jsm_stream_management_with_offset` of nats.py, \
and `stream_subjects` of async-nats, have limits of seconds.
"""


def summary(run: Run) -> Iterator[str]:
    """Yield a line for each group of a run, and one for all."""
    yield f"{run.suite} ({run.version}) against {run.system}:"
    for group in reversed(GROUPS):
        passed, of = run.passed(group)
        if of:
            yield f"  {group:8} {passed:4} of {of:4}: {_IN_WORDS[group]}"
    passed, of = run.passed(*GROUPS)
    yield f"  {'all':8} {passed:4} of {of:4}"


def with_results(page: str) -> str:
    """Return the page with its generated part made anew."""
    before, rest = page.split(f"\n{HEADING}\n")
    _, behind = rest.split(_NEXT, 1)
    return f"{before}\n{HEADING}\n{section()}{_NEXT}{behind}"


def section() -> str:
    """Return the generated part, without its heading."""
    ours = [read_run(path) for path in sorted(RESULTS.glob(f"*.{System.PENSTOCK}.json"))]
    lines = [_MADE, _INTRO, "| suite | tests that need | Penstock | JetStream |", "|---|---|---|---|"]
    for run in ours:
        theirs = read_run(Path(RESULTS / f"{run.suite}.{System.NATS_SERVER}.json"))
        lines += _rows(run, theirs)
    lines += ["", "What does not pass because something is not there (names: `tests/conformance/results`):", ""]
    lines += ["| tests that need | number | why |", "|---|---|---|"]
    lines += _not_there(ours)
    lines += ["", "All else that does not pass, by its first message:", ""]
    lines += ["| suite | message | tests |", "|---|---|---|"]
    for run in ours:
        lines += _not_passed(run)
    return "\n".join(lines) + "\n"


def _rows(ours: Run, theirs: Run) -> Iterator[str]:
    for group in reversed(GROUPS):
        passed, of = ours.passed(group)
        if of:
            yield f"| {ours.version} | {_IN_WORDS[group]} | {passed} of {of} | {theirs.passed(group)[0]} of {of} |"


def _not_there(runs: Sequence[Run]) -> Iterator[str]:
    for group, why in _WHY.items():
        missed = [(run.suite, run.passed(group)) for run in runs]
        numbers = ", ".join(f"{suite} {of - passed}" for suite, (passed, of) in missed if passed < of)
        if numbers:
            yield f"| {_IN_WORDS[group]} | {numbers} | {why} |"


def _not_passed(run: Run) -> Iterator[str]:
    by_reason: dict[str, list[str]] = defaultdict(list)
    for row in run.rows:
        if row.result != Result.PASSED and row.group not in _WHY:
            by_reason[_cell(row.reason or row.result)].append(row.name)
    for why, names in sorted(by_reason.items(), key=lambda item: -len(item[1])):
        yield f"| {run.suite} | {why} | {_names(names)} |"


def _names(names: Sequence[str]) -> str:
    return ", ".join(f"`{_cell(name)}`" for name in names)


def _cell(text: str) -> str:
    """Return text that stays in its cell, and in which nothing is markup."""
    for sign in "|<>`*_[]\\":
        text = text.replace(sign, "" if sign in "`|" else f"&#{ord(sign)};" if sign in "<>" else sign)
    return text.strip() or "no message"
