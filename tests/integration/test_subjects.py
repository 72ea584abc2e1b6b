"""Our idea of a subject against nats-server's own, which decides what is delivered at all."""

from __future__ import annotations

import asyncio
import itertools
import re
import socket
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.base.subjects import begins_with_wildcard, is_reserved, matches, subject_mistake
from tests.extent import each_change, examples
from tests.nats_servers import running_nats

TIMEOUT_S = 60


class PlainClient:
    """The NATS protocol by hand, so that no client library has an opinion on subjects."""

    def __init__(self, port: int, options: str) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)
        self._received = b""
        self._send(b"CONNECT {%s}\r\n" % options.encode())
        self.answers([])

    def _send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def answers(self, commands: Sequence[bytes]) -> list[bytes]:
        """What the server says to the commands, line by line, up to the PONG of a PING behind them."""
        self._send(b"".join([*commands, b"PING\r\n"]))
        while not self._received.endswith((b"PONG\r\n", b"PONG\r\nPING\r\n")):
            part = self._socket.recv(65_536)
            assert part, f"nats-server hung up after {self._received!r}"
            self._received += part
            if self._received.endswith(b"PING\r\n"):  # the server pings, too, at any time
                self._send(b"PONG\r\n")
        # Not splitlines: a subject may hold what Python takes for the end of a line.
        lines = [line for line in self._received.split(b"\r\n")[:-1] if line not in (b"PING", b"PONG")]
        self._received = b""
        return lines

    def close(self) -> None:
        self._socket.close()


def refusals(client: PlainClient, command: bytes) -> list[bytes]:
    """The errors that the server answers one command with."""
    return [line for line in client.answers([command]) if line.startswith(b"-ERR")]


def publish(subject: str) -> bytes:
    return b"PUB %s 0\r\n\r\n" % subject.encode()


def subscribe(subject: str) -> bytes:
    return b"SUB %s 1\r\nUNSUB 1\r\n" % subject.encode()


ODD_TOKENS = [
    *("a", "*", ">", "**", ">>", "a*", "*a", ">a", "a>", "*>", ">*", "$SYS", "$JS", "$", "_INBOX", "-", "\\"),
    *(
        "größe",
        "日本",
        "🦆",
        "\u200b",
        "\ufeff",
        "%00",
        "+OK",
        "PUB",
        "0",
        "@",
        "#",
        ",",
        ";",
        "~",
        "|",
        '"',
        "'",
        "{}",
        "a" * 200,
    ),
]
ODD_SUBJECTS = [
    *ODD_TOKENS,
    *(f"{token}.b" for token in ODD_TOKENS),
    *(f"a.{token}" for token in ODD_TOKENS),
    *(f"a.{token}.b" for token in ODD_TOKENS),
    *(".", "..", ".a", "a.", "a..b", "a.b..", "x" * 1024, ".".join("a" * 512)),
]


@each_change
def test_ours_never_accepts_what_nats_refuses(tmp_path: Path) -> None:
    def compare(client: PlainClient) -> None:
        accepted = refused = 0
        for subject in ODD_SUBJECTS:
            for command, wildcards in ((publish(subject), False), (subscribe(subject), True)):
                errors = refusals(client, command)
                if subject_mistake(subject, wildcards=wildcards) is None:
                    assert errors == [], f"we accept {subject!r}, nats-server says {errors}"
                    accepted += 1
                elif errors:
                    refused += 1
        # The comparison has seen both sides.
        assert accepted > 150
        assert refused > 20

        @settings(max_examples=examples(300))
        @given(st.text(min_size=1, max_size=30) | st.lists(st.sampled_from(ODD_TOKENS), min_size=1).map(".".join))
        def any_text(subject: str) -> None:
            if subject_mistake(subject) is None:
                assert refusals(client, publish(subject)) == []
            if subject_mistake(subject, wildcards=True) is None:
                assert refusals(client, subscribe(subject)) == []

        any_text()

    asyncio.run(with_server(tmp_path, compare, '"verbose":true,"pedantic":true'))


TOKENS = st.sampled_from(["a", "b", "ab", "A", "a*", "*b", ">a", "ä", "$SYS", "$JS", "_INBOX", "$KV", "*", "*", ">"])
JOINED = st.lists(TOKENS, min_size=1, max_size=4).map(".".join)
PATTERNS = JOINED.filter(lambda subject: subject_mistake(subject, wildcards=True) is None)
SUBJECTS = JOINED.filter(lambda subject: subject_mistake(subject) is None)


def test_ours_matches_what_nats_delivers(tmp_path: Path) -> None:
    def compare(client: PlainClient) -> None:
        seen = {True: 0, False: 0}

        @settings(max_examples=examples(200))
        @example(patterns=["a.>", ">", "*", "*.*", "a*", "a.*.b"], subjects=["a", "a.b", "a.b.c", "a*", "ab", "a.x.b"])
        @given(
            patterns=st.lists(PATTERNS, min_size=1, max_size=10),
            subjects=st.lists(SUBJECTS, min_size=1, max_size=10),
        )
        def delivered_alike(patterns: list[str], subjects: list[str]) -> None:
            lines = client.answers(
                [b"SUB %s %d\r\n" % (pattern.encode(), sid) for sid, pattern in enumerate(patterns, 1)]
                # The payload is the subject's number, so that a subject given twice stays two messages.
                + [b"PUB %s 3\r\n%03d\r\n" % (subject.encode(), number) for number, subject in enumerate(subjects)]
                + [b"UNSUB %d\r\n" % sid for sid in range(1, len(patterns) + 1)]
            )
            assert not any(line.startswith(b"-ERR") for line in lines), lines
            delivered = set()
            for line, payload in itertools.pairwise(lines):
                if found := re.fullmatch(rb"MSG [^ ]+ (\d+) 3", line):
                    delivered.add((int(found.group(1)), int(payload)))
            for sid, pattern in enumerate(patterns, 1):
                for number, subject in enumerate(subjects):
                    if begins_with_wildcard(pattern) and is_reserved(subject):
                        assert not matches(pattern, subject)  # ours alone: what is reserved is captured by name only
                        continue
                    expected = (sid, number) in delivered
                    assert matches(pattern, subject) is expected, (pattern, subject)
                    seen[expected] += 1

        delivered_alike()
        assert min(seen.values()) > 30, seen  # both come up: how often is chance

    asyncio.run(with_server(tmp_path, compare, '"verbose":false,"pedantic":true'))


async def with_server(folder: Path, compare: Callable[[PlainClient], None], options: str) -> None:
    """Run `compare`, which blocks, with a client of a nats-server of its own."""

    def connect_and_compare(port: int) -> None:
        with closing(PlainClient(port, options)) as client:
            compare(client)

    async with running_nats(folder) as server:
        await asyncio.to_thread(connect_and_compare, server.port)
