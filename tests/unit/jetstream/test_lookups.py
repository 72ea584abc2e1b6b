"""Look-ups through the gateway of one broker: groups, pieces, retries, limits, and hostile requests."""

from __future__ import annotations

import base64
import json
import re
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.access import Credential, CredentialKind, Operation, Rule
from penstock.access.handshake import Principal
from penstock.base import limits
from penstock.commitlog import LiveSubjectQueries
from penstock.ingest.last_sequences import LastSequences
from penstock.jetstream import lookups
from penstock.jetstream.gateway import ApiRights
from penstock.jetstream.stream_config import KEPT
from penstock.messages import CreateUserRequest, DeleteMessagesRequest, PurgeSubjectRequest
from penstock.node.partition.decisions import DecideRows
from penstock.vfs.faulty import FaultyVfs
from tests.cached_files import warm
from tests.damage import content, flip
from tests.extent import examples
from tests.unit.jetstream.api_broker import ApiBroker

PREFIX = "$JS.API."
_COMMAND = re.compile(rb"(H?PUB) (\S+) (?:(\d+) )?(\d+)\r\n")
_TIME = re.compile(rb"Time-Stamp: \S+")


class GatewayBroker(ApiBroker):
    """A broker with a gateway: calls in, answers out."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.got: list[tuple[str, bytes]] = []  # reply subject; header block and payload
        self.writes = 0

    def _published(self, command: bytes) -> None:
        if _COMMAND.match(command) is None:
            super()._published(command)
            return
        self.writes += 1
        self._take(command)

    def _take(self, commands: bytes) -> None:
        at = 0
        while at < len(commands):
            found = _COMMAND.match(commands, at)
            assert found is not None, commands[at : at + 80]
            end = found.end() + int(found[4])
            assert commands[end : end + 2] == b"\r\n"
            self.got.append((found[2].decode(), commands[found.end() : end]))
            at = end + 2

    def look_up_each(self, *calls: tuple[str, bytes]) -> dict[str, bytes]:
        """One read for each of these calls; the answers so far."""
        told: dict[str, bytes] = {}
        for number, call in enumerate(calls):
            self.look_up(call)
            told |= {f"reply.{number}": payload for _, payload in self.got}
        return told

    def look_up(self, *calls: tuple[str, bytes], headers: bytes | None = None) -> list[bytes]:
        """One read with these calls; the answers so far."""
        self.got.clear()
        self.writes = 0
        read = [
            ((PREFIX + subject).encode(), b"reply.%d" % number, headers, payload)
            for number, (subject, payload) in enumerate(calls)
        ]
        self.take_calls(read)  # type: ignore[arg-type]
        self.turn()
        return self.told

    @property
    def told(self) -> list[bytes]:
        """All answers, without times."""
        return [_TIME.sub(b"Time-Stamp: T", payload) for _, payload in self.got]

    def pass_time(self, ms: int) -> None:
        """The node and the gateway are told that time passed."""
        self.tick(ms)
        self.gateway.tick(self.clock.now)
        self.turn()


def with_messages(count: int = 12, **config: Any) -> GatewayBroker:
    broker = GatewayBroker()
    broker.start()
    broker.create("orders", segment_bytes=4096, **config)
    for number in range(count):
        broker.publish(f"orders.{number % 3}", b"%d" % number)
    return broker


def get(subject: str) -> tuple[str, bytes]:
    return f"DIRECT.GET.orders.{subject}", b""


def query(**fields: Any) -> tuple[str, bytes]:
    return "DIRECT.GET.orders", json.dumps(fields).encode()


def shown(sequence: int, value: bytes, *more: str) -> bytes:
    """The answer with a message of `with_messages`."""
    lines = ["NATS/1.0", "Nats-Stream: orders", f"Nats-Subject: orders.{(sequence - 1) % 3}"]
    lines += [f"Nats-Sequence: {sequence}", "Nats-Time-Stamp: T", *more]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + value


NOT_FOUND = b"NATS/1.0 404 Message Not Found\r\n\r\n"


def test_the_gets_of_one_read_are_answered_by_one_write() -> None:
    broker = with_messages()
    calls = [get("orders.0"), get("orders.none"), get("orders.2"), get("orders.0"), get("orders..x")]
    assert broker.look_up(*calls) == [
        b"NATS/1.0 404 Message Not Found\r\n\r\n",
        shown(10, b"9"),
        NOT_FOUND,
        shown(12, b"11"),
        shown(10, b"9"),
    ]
    assert [reply for reply, _ in broker.got] == ["reply.4", "reply.0", "reply.1", "reply.2", "reply.3"]
    assert broker.writes == 2


def test_a_get_that_is_repeated_reads_no_file_and_sees_each_newer_message() -> None:
    broker = with_messages()
    broker.look_up(get("orders.1"), get("orders.none"))
    opened: list[str] = []
    broker.vfs.plan = lambda operation: opened.append(operation.path)  # type: ignore[assignment,func-returns-value]
    assert broker.look_up(get("orders.1"), get("orders.none")) == [shown(11, b"10"), NOT_FOUND]
    assert not opened
    broker.publish("orders.1", b"newer")
    assert broker.look_up(get("orders.1"))[0].endswith(b"newer")
    broker.request(DeleteMessagesRequest(stream_id=broker.stream_id("orders"), offsets=(12,)))  # type: ignore[arg-type]
    broker.tick(1_000)
    assert broker.look_up(get("orders.1")) == [shown(11, b"10")]
    broker.request(PurgeSubjectRequest(stream_id=broker.stream_id("orders"), subject="orders.1"))
    broker.tick(1_000)
    assert broker.look_up(get("orders.1")) == [NOT_FOUND]


@pytest.mark.parametrize("config", [{}, {"max_messages_per_subject": 1}, {"max_messages_per_subject": 3}])
def test_a_get_right_after_a_put_is_answered_out_of_memory(config: dict[str, Any]) -> None:
    broker = with_messages(**config)
    broker.tick(1_000)
    broker.look_up(get("orders.1"), get("orders.none"))
    broker.tick(1_000)
    broker.hung = (DecideRows,)  # what the newer messages hide is not decided yet
    broker.publish("orders.1", b"newer")
    broker.publish("orders.none", b"first", headers=b"NATS/1.0\r\nA: b\r\n\r\n")
    opened: list[str] = []
    broker.vfs.plan = lambda operation: opened.append(operation.path)  # type: ignore[assignment,func-returns-value]
    first = b"NATS/1.0\r\nA: b\r\nNats-Stream: orders\r\nNats-Subject: orders.none\r\nNats-Sequence: 14\r\n"
    assert broker.look_up(get("orders.1"), get("orders.none")) == [
        shown(13, b"newer").replace(b"orders.0", b"orders.1"),
        first + b"Nats-Time-Stamp: T\r\n\r\nfirst",
    ]
    assert not opened
    broker.append("orders", b"x", b"latest", subject="orders.1")
    opened.clear()
    assert broker.look_up(get("orders.1"))[0].endswith(b"\r\nNats-Sequence: 16\r\nNats-Time-Stamp: T\r\n\r\nlatest")
    assert not opened


ACTS = st.lists(
    st.tuples(
        st.sampled_from(["put", "put", "put", "append", "roll", "roll all", "delete", "purge", "wait", "restart"]),
        st.integers(0, 3),
        st.lists(st.integers(0, 3), max_size=3),
        st.booleans(),
    ),
    max_size=24,
)


@example([("put", 0, [0], False), ("wait", 0, [0], False), ("roll all", 1, [0, 1], True)], 0, 100, 1 << 20, (96, 0))
@given(
    ACTS,
    st.sampled_from([0, 1, 2]),
    st.sampled_from([2, limits.SUBJECT_TABLE_MAX]),
    st.sampled_from([2_000, 1 << 20]),
    st.sampled_from([(0, 0), (2, 1 << 20), (96, 1_000), (96, 1 << 20)]),
)
@settings(max_examples=examples(60), deadline=None)
def test_a_get_finds_the_last_message_whenever_it_comes(
    acts: list[tuple[str, int, list[int], bool]],
    history: int,
    table_max: int,
    kept_bytes_max: int,
    cached: tuple[int, int],
) -> None:
    reads_max, batches_bytes_max = cached
    with (
        patch.object(limits, "SUBJECT_TABLE_MAX", table_max),
        patch.object(limits, "LAST_ROWS_BYTES_MAX", kept_bytes_max),
        patch.object(limits, "LAST_BATCHES_BYTES_MAX", batches_bytes_max),
        patch.object(limits, "CACHED_READS_MAX", reads_max),
        patch.object(FaultyVfs, "cached", warm),
    ):
        broker, live, end = GatewayBroker(), dict[int, tuple[int, bytes]](), 0  # by offset: key, value
        broker.start()
        limit = {"max_messages_per_subject": history} if history else {}
        broker.create("orders", segment_bytes=4096, allow_rollup=True, **limit)
        stream_id = broker.stream_id("orders")
        for act, key, asked, is_hung in acts:
            broker.hung = (DecideRows,) if is_hung else ()
            subject, value = f"orders.{key}", b"%d." % end + b"v" * 200
            mine = [offset for offset, (one, _) in live.items() if one == key]
            match act:
                case "put" | "roll" | "roll all":
                    what = b"all" if act == "roll all" else b"sub"
                    block = None if act == "put" else b"NATS/1.0\r\nNats-Rollup: %b\r\n\r\n" % what
                    broker.publish(subject, value, headers=block)
                    for offset in {"put": [], "roll": mine, "roll all": [*live]}[act]:
                        del live[offset]
                    live[end] = key, value
                    end += 1
                case "append":
                    broker.append("orders", b"earlier", value, subject=subject)
                    live |= {end: (key, b"earlier"), end + 1: (key, value)}
                    end += 2
                case "delete" if mine:
                    broker.hung = ()
                    broker.request(DeleteMessagesRequest(stream_id=stream_id, offsets=(mine[-1],)))  # type: ignore[arg-type]
                    broker.tick(1_000)
                    del live[mine[-1]]
                case "purge":
                    broker.hung = ()
                    broker.request(PurgeSubjectRequest(stream_id=stream_id, subject=subject))
                    broker.tick(1_000)
                    for offset in mine:
                        del live[offset]
                case "wait":
                    broker.tick(1_000)
                case "restart":
                    broker.hung = ()
                    broker.tick(1_000)
                    broker = broker.crash().start()  # type: ignore[assignment]
                    broker.tick(1_000)
            for one in list(live):
                of_subject = [offset for offset in live if live[offset][0] == live[one][0]]
                if history and one in of_subject[:-history]:
                    del live[one]
            broker.look_up(*(get(f"orders.{one}") for one in asked))
            if len(broker.got) < len(asked):  # they wait for what a rollup hides
                assert any("roll" in one for one, *_ in acts)
                broker.hung = ()
                broker.pass_time(1_000)
            told = dict(broker.got)
            if len(told) == len(asked) and not is_hung:
                again = broker.look_up_each(*(get(f"orders.{one}") for one in asked))
                assert again == told
            for number, one in enumerate(asked):
                last = max((offset for offset, (of, _) in live.items() if of == one), default=-1)
                answer = told[f"reply.{number}"]
                if last < 0:
                    assert answer == NOT_FOUND
                else:
                    assert b"Nats-Subject: orders.%d\r\nNats-Sequence: %d\r\n" % (one, last + 1) in answer
                    assert answer.endswith(b"\r\n\r\n" + live[last][1])


def test_a_lone_get_of_what_is_in_memory_or_in_the_page_cache_is_no_event_of_the_node() -> None:
    with patch.object(FaultyVfs, "cached", warm):
        broker = with_messages(3)
        broker.tick(1_000)
        broker.look_up(get("orders.1"), get("orders.none"))
        broker.tick(1_000)
        broker.look_up(get("orders.1"))
        count = broker.node.event_count
        wanted = [shown(3, b"2"), shown(1, b"0"), shown(2, b"1"), NOT_FOUND, NOT_FOUND]
        subjects = "orders.2", "orders.0", "orders.1", "orders.none", "orders.absent"
        assert [broker.look_up(get(one))[0] for one in subjects] == wanted
        assert broker.node.event_count == count
        broker.publish("orders.0", b"newer")
        assert broker.look_up(get("orders.0"))[0].endswith(b"newer")
        assert broker.node.event_count > count
        broker.look_up(get("orders.0"))
        broker.request(DeleteMessagesRequest(stream_id=broker.stream_id("orders"), offsets=(3,)))  # type: ignore[arg-type]
        broker.tick(1)
        assert broker.look_up(get("orders.0")) == [shown(1, b"0")]


@pytest.mark.parametrize("bytes_max", [1, limits.FOUND_BYTES_MAX])
@pytest.mark.parametrize("on_loop_max", [0, limits.FOUND_ON_LOOP_MAX])
def test_gets_by_sequence_of_one_read_are_answered_together(bytes_max: int, on_loop_max: int) -> None:
    with patch.object(limits, "FOUND_ON_LOOP_MAX", on_loop_max), patch.object(limits, "FOUND_BYTES_MAX", bytes_max):
        broker = with_messages()
        broker.request(DeleteMessagesRequest(stream_id=broker.stream_id("orders"), offsets=(4,)))  # type: ignore[arg-type]
        broker.request(PurgeSubjectRequest(stream_id=broker.stream_id("orders"), subject="orders.2"))
        broker.tick(1_000)
        sequences = [7, 1, 5, 3, 12, 13, 2**63, 7, 4, 10]
        found = {7: b"6", 1: b"0", 4: b"3", 10: b"9"}
        calls = [query(seq=one) for one in sequences]
        calls += [("STREAM.MSG.GET.orders", json.dumps({"seq": one}).encode()) for one in sequences]
        calls += [query(seq=one, no_hdr=True) for one in sequences]
        broker.look_up(*calls)
        told = {reply: _TIME.sub(b"Time-Stamp: T", block) for reply, block in broker.got}
        assert len(told) == len(broker.got) == len(calls)
        for number, one in enumerate(sequences):
            direct, plain = told[f"reply.{number}"], told[f"reply.{number + 2 * len(sequences)}"]
            answer = json.loads(told[f"reply.{number + len(sequences)}"])
            if one in found:
                assert direct == shown(one, found[one])
                assert plain == found[one]
                message = answer["message"]
                assert (message["subject"], message["seq"]) == (f"orders.{(one - 1) % 3}", one)
                assert base64.b64decode(message["data"]) == found[one]
            else:
                assert direct == plain == NOT_FOUND
                assert (answer["error"]["code"], answer["error"]["err_code"]) == (404, 10037)
        broker.look_up(query(seq=7), query(seq=5), query(seq=4))
        assert (len(broker.got), broker.writes) == (3, 2 if bytes_max == 1 else 1)


def test_what_the_table_of_last_offsets_has_forgotten_is_looked_up_again() -> None:
    with patch.object(limits, "SUBJECT_TABLE_MAX", 2):
        broker = with_messages(3)
        assert broker.look_up(get("orders.0"))[0].endswith(b"0")
        partition = next(iter(broker.node._replicas.partitions.values()))
        table = partition.lasts
        assert isinstance(table, LastSequences)
        broker.publish("orders.0", b"forgotten")
        for number in range(20):
            broker.publish(f"orders.other.{number}", b"")
        assert partition.lasts is table
        assert table.table.known_from > 4
        assert broker.look_up(get("orders.0"))[0].endswith(b"forgotten")


@pytest.mark.parametrize("config", [{}, {"max_messages_per_subject": 1}])
def test_a_subject_with_a_message_is_found_though_a_newer_one_comes_between_two_pieces(config: dict[str, Any]) -> None:
    broker = with_messages(0, **config)
    for name in ("a", "b", "c"):
        broker.publish(f"orders.{name}", name.encode() * (limits.FOUND_BYTES_MAX * 2 // 3))
    ask, pieces = broker.gateway.ask, 0

    def newer_first(*args: Any) -> None:
        nonlocal pieces
        pieces += 1
        if pieces == 2:
            broker.publish("orders.c", b"newer")
        ask(*args)

    with patch.object(broker.gateway, "ask", newer_first):
        answers = broker.look_up(get("orders.a"), get("orders.b"), get("orders.c"), get("orders.none"))
    broker.tick(1_000)
    assert pieces == 2
    by_reply = dict(broker.got)
    assert by_reply["reply.2"].endswith(b"newer"), answers
    assert _TIME.sub(b"", by_reply["reply.3"]) == NOT_FOUND


@pytest.mark.parametrize("is_by_sequence", [False, True])
def test_a_damaged_message_costs_no_other_get_of_the_same_read(is_by_sequence: bool) -> None:
    broker = with_messages(0)
    for number in range(3):
        broker.publish(f"orders.{number}", b"value-%d" % number)
        for _ in range(9):
            broker.publish("orders.more", bytes(400))
    for _ in range(30):
        broker.tick(10_000)
    broker.look_up(get("orders.none"))  # the sealed segments have indexes of their subjects from now on
    disk = broker.memory
    (path,) = (one for one in disk.files() if one.endswith(".arrows") and b"value-1" in content(disk, one))
    flip(disk, path, content(disk, path).index(b"value-1"))
    calls = [query(seq=10 * number + 1) if is_by_sequence else get(f"orders.{number}") for number in range(3)]
    broker.look_up(*calls)
    told = {reply: _TIME.sub(b"Time-Stamp: T", block) for reply, block in broker.got}
    assert told["reply.0"].endswith(b"Nats-Sequence: 1\r\nNats-Time-Stamp: T\r\n\r\nvalue-0")
    assert told["reply.2"].endswith(b"Nats-Sequence: 21\r\nNats-Time-Stamp: T\r\n\r\nvalue-2")
    assert told["reply.1"].startswith(b"NATS/1.0 500 ")


def test_a_large_read_of_gets_is_answered_piece_by_piece() -> None:
    with patch.object(limits, "FOUND_BYTES_MAX", 1):
        broker = with_messages()
        calls = [get("orders.0"), get("orders.1"), get("orders.2"), get("orders.none")]
        assert sorted(broker.look_up(*calls)) == sorted(
            [NOT_FOUND, shown(10, b"9"), shown(11, b"10"), shown(12, b"11")]
        )


@pytest.mark.parametrize("bytes_max", [1, 3, limits.FOUND_BYTES_MAX])
def test_a_batch_read_in_pieces_is_the_same_as_in_one(bytes_max: int) -> None:
    with patch.object(limits, "FOUND_BYTES_MAX", bytes_max), patch.object(limits, "FOUND_MESSAGES_MAX", 4):
        broker = with_messages()
        wanted = [
            shown(
                at, b"%d" % (at - 1), f"Nats-Num-Pending: {12 - at}", f"Nats-Last-Sequence: {at - 1 if at > 2 else 0}"
            )
            for at in range(2, 11)
        ]
        end = b"NATS/1.0 204 EOB\r\nNats-Num-Pending: 2\r\nNats-Last-Sequence: 10\r\n\r\n"
        assert broker.look_up(query(seq=2, batch=9)) == [*wanted, end]
        found = broker.look_up(query(multi_last=["orders.*"]))
        assert [b"Pending: %d\r\n" % left in one for left, one in zip((2, 1, 0, 0), found, strict=True)] == [True] * 4
        assert found[-1].endswith(b"Nats-UpTo-Sequence: 12\r\n\r\n")


def keys_told(answers: list[bytes]) -> list[tuple[bytes, bytes]]:
    """Key and value of each message of a batch, in the order of the answers."""
    found = [re.search(rb"Nats-Subject: orders\.(\S+)\r\n.*\r\n\r\n(.*)", one, re.DOTALL) for one in answers]
    return [(one[1], one[2]) for one in found if one is not None]


@pytest.mark.parametrize(
    ("change", "asked", "told"),
    [
        ("overwrite", {}, [(b"a", b"1"), (b"b", b"2"), (b"c", b"3"), (b"d", b"newer")]),
        ("overwrite", {"up_to_seq": 4}, [(b"a", b"1"), (b"b", b"2"), (b"c", b"3")]),
        ("overwrite", {"batch": 3}, [(b"a", b"1"), (b"b", b"2"), (b"c", b"3")]),
        ("purge", {}, [(b"a", b"1"), (b"b", b"2"), (b"c", b"3")]),
    ],
)
def test_a_key_that_is_overwritten_between_two_pieces_is_told_once(
    change: str, asked: dict[str, int], told: list[tuple[bytes, bytes]]
) -> None:
    with patch.object(limits, "FOUND_BYTES_MAX", 1):
        broker = with_messages(0, max_messages_per_subject=1)
        for number, key in enumerate("abcd", 1):
            broker.publish(f"orders.{key}", b"%d" % number)
        broker.tick(1_000)
        ask, pieces = broker.gateway.ask, 0

        def changed_first(*args: Any) -> None:
            nonlocal pieces
            pieces += 1
            if pieces == 2 and change == "overwrite":
                for key in "ad":
                    broker.publish(f"orders.{key}", b"newer")
                broker.tick(1_000)
            elif pieces == 2:
                broker.request(PurgeSubjectRequest(stream_id=broker.stream_id("orders"), subject="orders.d"))
                broker.tick(1_000)
            ask(*args)

        with patch.object(broker.gateway, "ask", changed_first):
            answers = broker.look_up(query(multi_last=["orders.*"], **asked))
        assert keys_told(answers) == told
        assert b" 204 EOB\r\nNats-Num-Pending: %d\r\n" % (4 - len(told)) in answers[-1]
        assert b"Nats-UpTo-Sequence: 4\r\n" in answers[-1]
        assert pieces < 12


def test_a_key_whose_last_message_is_deleted_between_two_pieces_is_told_with_the_one_before() -> None:
    with patch.object(limits, "FOUND_BYTES_MAX", 1):
        broker = with_messages(0)
        for number, key in enumerate("dabcd"):
            broker.publish(f"orders.{key}", b"%d" % number)
        ask, pieces = broker.gateway.ask, 0

        def deleted_first(*args: Any) -> None:
            nonlocal pieces
            pieces += 1
            if pieces == 2:
                broker.request(DeleteMessagesRequest(stream_id=broker.stream_id("orders"), offsets=(4,)))  # type: ignore[arg-type]
                broker.tick(1_000)
            ask(*args)

        with patch.object(broker.gateway, "ask", deleted_first):
            answers = broker.look_up(query(multi_last=["orders.*"]))
        assert keys_told(answers) == [(b"a", b"1"), (b"b", b"2"), (b"c", b"3"), (b"d", b"0")]


def test_keys_that_were_told_already_take_no_piece_of_their_own_when_others_are_looked_for() -> None:
    """As many messages as it may tell: one is left, and those that were told come once more."""
    keys = [f"{number:02}" for number in range(40)]
    with patch.object(limits, "FOUND_BYTES_MAX", 30):
        broker = with_messages(0)
        for key in keys:
            broker.publish(f"orders.{key}", b"x" * 10)
        broker.tick(1_000)
        ask, pieces = broker.gateway.ask, 0

        def deleted_first(*args: Any) -> None:
            nonlocal pieces
            pieces += 1
            if pieces == 2:
                broker.request(DeleteMessagesRequest(stream_id=broker.stream_id("orders"), offsets=(39,)))  # type: ignore[arg-type]
                broker.tick(1_000)
            ask(*args)

        with patch.object(broker.gateway, "ask", deleted_first):
            answers = broker.look_up(query(multi_last=["orders.*"], batch=len(keys)))
        assert [key.decode() for key, _ in keys_told(answers)] == keys[:39]
        assert pieces <= 2 * len(keys) // 3 + 3


def test_batches_wait_for_their_turn() -> None:
    broker = with_messages()
    with patch.object(lookups, "BATCHES_WAITING_MAX", 3):
        broker.disk_runs_at_once = False
        assert broker.look_up(*[query(seq=1, batch=2)] * 6) == [b"NATS/1.0 503 Too Many Batch Reads\r\n\r\n"]
        broker.disk_runs_at_once = True
        broker.turn()
    assert sum(b" 204 EOB" in one for one in broker.told) == 5


def test_too_many_subjects_are_refused() -> None:
    with patch.object(limits, "FOUND_SUBJECTS_MAX", 2):
        broker = with_messages()
        assert broker.look_up(query(multi_last=["orders.*"])) == [b"NATS/1.0 413 Too Many Results\r\n\r\n"]
        assert broker.look_up(query(multi_last=["a", "b", "c"])) == [b"NATS/1.0 413 Too Many Results\r\n\r\n"]


def test_a_request_that_comes_too_early_is_answered_later() -> None:
    broker = with_messages()
    broker.request(DeleteMessagesRequest(stream_id=broker.stream_id("orders"), offsets=(0,)))  # type: ignore[arg-type]
    broker.tick(1_000)
    again = GatewayBroker(memory=broker.memory.crash_clone(), clock=broker.clock)
    again.disk_runs_at_once = False
    again.start()
    assert again.look_up(get("orders.0"), ("STREAM.MSG.GET.orders", b'{"seq":2}'), query(seq=2, batch=1)) == []
    assert again.gateway.lookups.next_deadline_us is not None
    again.disk_runs_at_once = True
    again.turn()
    again.pass_time(100)
    assert len(again.got) == 4
    assert again.gateway.lookups.next_deadline_us is None


def test_a_message_beyond_max_payload_costs_a_status_and_not_the_connection() -> None:
    broker = with_messages(2)
    broker.publish("orders.2", b"." * 600)
    broker.gateway.payload_max = 512
    status = b"NATS/1.0 413 Message Larger Than Max Payload\r\n\r\n"
    assert broker.look_up(get("orders.2")) == [status]
    assert broker.look_up(query(seq=3)) == [status]
    assert b'"err_code":10008' in broker.look_up(("STREAM.MSG.GET.orders", b'{"seq":3}'))[0]
    assert [one.startswith(status) for one in broker.look_up(query(seq=2, batch=2))] == [False, True, False]


def test_which_streams_are_read() -> None:
    broker = with_messages(1)
    broker.create("many", "many", partitions=2)
    broker.create("closed", metadata={KEPT: '{"allow_direct": false}'})
    broker.create("odd", metadata={KEPT: "[]"})
    silent = b"NATS/1.0 503\r\nNats-Subject: $JS.API.DIRECT.GET.%b\r\n\r\n"
    for name in (b"closed", b"none", b"__offsets"):
        assert broker.look_up((f"DIRECT.GET.{name.decode()}", b'{"seq":1}')) == [silent % name]
    assert broker.look_up(("DIRECT.GET.many", b'{"seq":1}'))[0].startswith(b"NATS/1.0 400 stream many has 2 partitions")
    assert broker.look_up(("DIRECT.GET.odd", b'{"seq":1}')) == [NOT_FOUND]
    assert b'"err_code":10052' in broker.look_up(("STREAM.MSG.GET.many", b'{"seq":1}'))[0]
    assert b'"err_code":10037' in broker.look_up(("STREAM.MSG.GET.closed", b'{"seq":1}'))[0]
    assert b'"err_code":10059' in broker.look_up(("STREAM.MSG.GET.__offsets", b'{"seq":1}'))[0]


def test_a_get_is_answered_by_the_rights_to_its_own_subject() -> None:
    broker = GatewayBroker(rights=ApiRights(user="nats"))
    broker.start()
    broker.create("orders")
    for number in range(6):
        broker.publish(f"orders.{number % 3}", b"%d" % number)
    key = Credential("password", CredentialKind.PASSWORD, 1, None, b"s" * 16, 600_000, bytes(32), bytes(32))
    broker.request(CreateUserRequest(name="ann", credentials=(key,), rules=(Rule(Operation.ADMIN),)))
    ann = broker.node.image.user("ann")
    broker.who = Principal("ann", ann.made_index, "password", ann.credentials[0].mark)
    rule = Rule(Operation.READ, subject="orders.1")
    broker.request(CreateUserRequest(name="nats", credentials=(key,), rules=(rule,)))
    refused = b"NATS/1.0 403 "
    found = broker.look_up(get("orders.0"), get("orders.1"), get("orders.2"))
    assert [one.startswith(refused) for one in found] == [True, True, False]
    assert broker.got[-1][0] == "reply.1"
    assert found[-1] == shown(5, b"4")
    assert broker.look_up(query(seq=1)) == [b"NATS/1.0 404 Message Not Found\r\n\r\n"]  # not told apart from none
    assert broker.look_up(query(next_by_subj="orders.1", seq=3)) == [shown(5, b"4")]
    assert b'"code":404' in broker.look_up(("STREAM.MSG.GET.orders", b'{"seq":1}'))[0]


def test_a_batch_waits_while_nats_server_does_not_take_what_is_sent() -> None:
    broker = with_messages()
    broker.unsent_bytes = lookups.UNSENT_BYTES_MAX + 1
    assert broker.look_up(query(seq=1, batch=3)) == []
    broker.pass_time(100)
    assert broker.told == []
    assert broker.look_up(get("orders.0"))[0].endswith(b"9")  # others do not wait
    broker.got.clear()
    broker.unsent_bytes = 0
    broker.pass_time(100)
    assert [one.rpartition(b"\r\n\r\n")[2] for one in broker.told] == [b"0", b"1", b"2", b""]


def test_gets_by_sequence_beyond_the_limit_are_refused() -> None:
    calls = [("STREAM.MSG.GET.orders", b'{"seq":1}'), query(seq=1)]
    with patch.object(lookups, "GETS_ASKED_MAX", 2):
        broker = with_messages()
        assert not any(b"too many" in one.lower() for one in broker.look_up(*calls))
        assert all(b"too many" in one.lower() for one in broker.look_up(*calls * 2))


def test_requests_beyond_the_limit_are_refused() -> None:
    broker = with_messages()
    calls = [("STREAM.MSG.GET.orders", b'{"next_by_subj":">"}'), query(next_by_subj=">")]
    with patch.object(lookups, "LOOKUPS_MAX", 2):
        answers = broker.look_up(*calls * 2)
    assert sorted(b"too many" in one.lower() for one in answers) == [False, False, True, True]
    assert not any(b"too many" in one.lower() for one in broker.look_up(*calls))


FIELDS = ("seq", "last_by_subj", "next_by_subj", "batch", "max_bytes", "start_time", "multi_last", "up_to_seq",
          "up_to_time", "no_hdr", "other")  # fmt: skip
VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.integers(0, 14), st.floats(allow_nan=False), st.text(),
    st.sampled_from(["orders.*", "orders.1", ">", "a..b", "*", "2023-11-14T22:13:20.1234567Z", "0000-00-00T00:00:00Z",
                     "9999-12-31T23:59:59-23:59"]),
    st.lists(st.one_of(st.none(), st.text(), st.sampled_from(["orders.>", "orders.2"])), max_size=3),
)  # fmt: skip
PAYLOADS = st.one_of(
    st.binary(max_size=40),
    st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=4).map(lambda one: json.dumps(one).encode()),
    st.sampled_from([b"[" * 5_000, b'{"seq":' * 2_000, b'{"seq":1,"seq":2}', b'"', b"nul", b'{"batch":1e400}']),
)
SUBJECTS = st.one_of(
    st.sampled_from(
        ["DIRECT.GET.orders", "STREAM.MSG.GET.orders", "DIRECT.GET.orders.orders.1", "DIRECT.GET.orders.>"]
    ),
    st.text(max_size=20).map("DIRECT.GET.orders.".__add__),
)


@given(st.lists(st.tuples(SUBJECTS, PAYLOADS), min_size=1, max_size=12), st.sampled_from([None, b"NATS/1.0\r\n\r\n"]))
@settings(max_examples=examples(150), deadline=None)
def test_each_request_has_an_end_whatever_it_holds(calls: list[tuple[str, bytes]], headers: bytes | None) -> None:
    broker = with_messages()
    safe = [(subject.encode(errors="replace").decode(), payload) for subject, payload in calls]
    broker.look_up(*safe, headers=headers)
    assert {reply for reply, _ in broker.got} == {f"reply.{number}" for number in range(len(safe))}
    assert not broker.disk
    assert broker.gateway.lookups.next_deadline_us is None


def test_sums_of_the_active_segment_are_merged_once_where_rows_are_hidden() -> None:
    broker = GatewayBroker()
    broker.start()
    broker.create("orders", max_messages_per_subject=1)
    (partition,) = [one for one in broker.node._partitions.values() if one.stream.name == "orders"]

    def told() -> list[int]:
        told: list[int] = []
        view = partition.live_view()
        LiveSubjectQueries(view, partition.visible_end, told.append).last_of_many([b"orders.none"])
        return told

    for number in range(40):
        broker.publish(f"orders.{number}", b"v")
    broker.tick(1_000)
    told()
    for number in range(5, 9):  # the log begins with the same row as before
        broker.publish(f"orders.{number}", b"newer")
    broker.tick(1_000)
    assert partition.log.hidden is not None
    subjects = 40 + 4  # of both parts; told beside the bytes of rows
    assert subjects in told()
    assert subjects not in told()
