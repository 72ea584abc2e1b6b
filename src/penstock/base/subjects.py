"""NATS subjects: validation, and matching of patterns.

The rules are nats-server's (`server/sublist.go`): tokens separated by `.`, none empty, no ASCII space; `*` is one whole
token, `>` one or more at the end. White space beyond ASCII, such as U+00A0, is a normal character. Penstock adds two:
UTF-8, because the subject column of the log is text (ADR 61), and no ASCII control character.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from penstock.base import limits

_FORBIDDEN = re.compile(r"[\x00-\x20\x7f]")
_FORBIDDEN_ASCII = bytes(range(0x21)) + b"\x7f"
_QUEUE_GROUP = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")  # Penstock's own names begin with '_'
_STREAM_NAME = re.compile(r"[A-Za-z0-9_-]+")

INTERNAL_NAME_PREFIX = "__"
"""Name prefix of Penstock's own streams; users cannot create such names."""
AUDIT_STREAM = "__audit"
"""Stream that records administrative changes."""

INTERNAL_SUBJECT_PREFIX = "$PENSTOCK."
"""Subject prefix of Penstock's own streams. A name prefix alone is not enough: older user streams may have it."""

RESERVED_PREFIXES = ("$SYS.", "$JS.", "_INBOX.", "$PENSTOCK.")
"""Prefixes that a leading wildcard never captures: NATS's own subjects, request/reply inboxes, and Penstock's."""

DOMAIN_SUBJECT_PREFIXES = ("$KV.", "$O.")
"""Prefixes of subjects to which clients of a JetStream domain publish behind the prefix of its API."""


def stream_name_mistake(name: str) -> str | None:
    """Return why `name` is not a valid stream name, or None if it is."""
    if not name:
        return "a stream needs a name"
    if len(name) > limits.STREAM_NAME_CHARS_MAX:
        return f"the name is {len(name)} characters long; the limit is {limits.STREAM_NAME_CHARS_MAX}"
    if not _STREAM_NAME.fullmatch(name):
        return f"the name {name!r} may hold only letters, digits, '-' and '_'"
    return None


def queue_group_mistake(name: str) -> str | None:
    """Return why `name` is not a valid group of streams (a NATS queue group), or None if it is."""
    if not _QUEUE_GROUP.fullmatch(name):
        return f"the name {name!r} may hold only letters, digits, '-', '_' and '.', and begins with none of these three"
    if len(name) > limits.QUEUE_GROUP_CHARS_MAX:
        return f"the name is {len(name)} characters long; the limit is {limits.QUEUE_GROUP_CHARS_MAX}"
    return None


def subject_mistake(subject: str, *, wildcards: bool = False) -> str | None:
    """Return why nats-server would refuse `subject`, or None. Wildcards are valid only with `wildcards`."""
    if not subject:
        return "the subject is empty"
    size = len(subject.encode("utf-8", "surrogatepass"))
    if size > limits.SUBJECT_BYTES_MAX:
        return f"the subject is {size} bytes long; the limit is {limits.SUBJECT_BYTES_MAX}"
    if _FORBIDDEN.search(subject):
        return f"the subject {subject!r} holds white space or a control character"
    try:
        subject.encode()
    except UnicodeEncodeError:
        return f"the subject {subject!r} is not valid text"
    tokens = subject.split(".")
    for position, token in enumerate(tokens):
        if not token:
            return f"the subject {subject!r} has an empty token"
        if token == ">" and position != len(tokens) - 1:
            return f"the subject {subject!r} has '>' before its end"
        if token in {"*", ">"} and not wildcards:
            return f"the subject {subject!r} holds the wildcard {token!r}; a message needs a plain subject"
    return None


def are_plain(subjects: Sequence[bytes]) -> bool:
    """True if `subject_mistake` finds no error in any subject; uses a few C loops, however many there are."""
    if not subjects:
        return True
    # A dot separates tokens and is no part of a UTF-8 sequence: if no token of the joined text is invalid, none is.
    joined = b".%s." % b".".join(subjects)
    if b".." in joined or (b"*" in joined and b".*." in joined) or (b">" in joined and b".>." in joined):
        return False
    if max(map(len, subjects)) > limits.SUBJECT_BYTES_MAX:
        return False
    if joined.isascii():
        return len(joined.translate(None, _FORBIDDEN_ASCII)) == len(joined)
    try:
        return _FORBIDDEN.search(joined.decode()) is None
    except UnicodeDecodeError:
        return False


def is_wildcard(subject: str) -> bool:
    """True if `subject` is a pattern rather than a plain subject."""
    return any(token in {"*", ">"} for token in subject.split("."))


def partition_subject(subject: str, partition: int) -> str:
    """Return the subject of a partition with its own subject: the stream's for 0, `<subject>.<n>` for n."""
    return f"{subject}.{partition}" if partition else subject


def begins_with_wildcard(pattern: str) -> bool:
    """True if the first token is a wildcard, so that the pattern matches inboxes and system subjects."""
    return pattern.split(".", 1)[0] in {"*", ">"}


def is_reserved(subject: str) -> bool:
    """True if only a stream that names its first token may capture `subject`."""
    return subject.startswith(RESERVED_PREFIXES)


def matches(pattern: str, subject: str) -> bool:
    """True if a stream on `pattern` stores messages on the plain `subject`."""
    if begins_with_wildcard(pattern) and is_reserved(subject):
        return False
    wanted = pattern.split(".")
    tokens = subject.split(".")
    for position, token in enumerate(wanted):
        if token == ">":
            return len(tokens) > position
        if position >= len(tokens) or (token not in ("*", tokens[position])):
            return False
    return len(tokens) == len(wanted)


def overlap(one: str, other: str) -> bool:
    """True if some subject matches both patterns."""
    left, right = one.split("."), other.split(".")
    for mine, theirs in zip(left, right, strict=False):
        if ">" in (mine, theirs):
            return True
        if mine != theirs and "*" not in (mine, theirs):
            return False
    return len(left) == len(right)


def is_within(subjects: str, pattern: str) -> bool:
    """True if every subject that matches `subjects` also matches `pattern`."""
    wanted, allowed = subjects.split("."), pattern.split(".")
    for position, token in enumerate(allowed):
        if token == ">":
            return len(wanted) > position
        if position >= len(wanted) or wanted[position] == ">":
            return False
        if token not in ("*", wanted[position]):
            return False
    return len(wanted) == len(allowed)
