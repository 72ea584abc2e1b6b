"""None where bytes or an object of ours is expected: an error in both modes, and never a crash."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import hot_modes

ROOT = Path(__file__).resolve().parents[3]
SECONDS_MAX = 120
PRELUDE = """
from penstock.batch.codec import LAYOUT
from penstock.hot import acks, encode, envelope, headers, join, keyhash
from penstock.hot import message, message_group, message_ids, refusals, row_objects, rows
from penstock.hot import siphash, subject_filter, subject_table
from penstock.hot import change_log, classification, deliveries, pending, pending_acks, pending_rows, scan
acks_read = message_group.MessageGroup.of([b"$JS.ACK.s.c.1.1.1.1.1"], [b""])
held = message_group.MessageGroup.of([b"a", b"b"], [b"v", None], replies=[b"r", b"s"])
sound, _ = encode.Encoder(LAYOUT).encode(held, 0, 2, 0, 0, 0, 0)
checker = message.MessageChecker(LAYOUT)
"""
CALLS = (
    "split_by_key.split_by_key(None, keymap.KeyMap((1,)), 0, b'1')",
    "split_by_key.split_by_key(group, None, 0, b'1')",
    "split_by_key.split_by_key(group, keymap.KeyMap((1,)), 0, None)",
    "scan.scan(b'PING\\r\\n', 0, 6, None)",
    "scan.scan(None, 0, 0, scan.Frames())",
    "classification.classify(None, b's', True, 1, False, 0, True, None, False, None, 0)",
    "classification.classify(held, b's', True, 1, False, 0, True, None, False, None, 0, mistyped=b'')",
    "classification.close(None, b's', True, False, True)",
    "refusals.answers(None, [], lambda *_: b'', 1, b'')",
    "refusals.answers(held, None, lambda *_: b'', 1, b'')",
    "refusals.answers(held, [None], lambda *_: b'', 1, b'')",
    "refusals.answers(held, classification.close(held, b's', True, False, True).refused, lambda *_: None, 1, b'')",
    "refusals.answers_alike(None, b'')",
    "refusals.answers_alike(b'r ', None)",
    "acks.waiting(None, 0, 0, False)",
    "acks.waiting_count(None)",
    "acks.pubacks(None, b'r ', 0, b'')",
    "acks.pubacks(b's', None, 0, b'')",
    "acks.pubacks(b's', b'r ', 0, None)",
    "acks.waiting_again(None, classification.close(held, b's', True, False, True).refused, 0, 9)",
    "acks.waiting_again(held, None, 0, 9)",
    "acks.waiting_again(held, [None], 0, 9)",
    "acks.pubacks_again(None, b'r ', bytes(8), b'')",
    "acks.pubacks_again(b's', None, bytes(8), b'')",
    "acks.pubacks_again(b's', b'r ', None, b'')",
    "acks.pubacks_again(b's', b'r ', bytes(8), None)",
    "message_ids.MessageIds(1).find(None, 0, 1)",
    "message_ids.MessageIds(1).add(None, 0, 1, 0)",
    "message_ids.MessageIds(1).is_of(-1, None, 0, 0)",
    "message_ids.MessageIds(1).note(None, 0, 0)",
    "message_ids.MessageIds(1).note([None], 0, 0)",
    "message_ids.MessageIds(1).note_before(None, [], [], 0)",
    "message_ids.MessageIds(1).note_before([(0, b'x')], None, [0], 0)",
    "message_ids.MessageIds(1).know(None)",
    "message_ids.RemoteMessageIds(1).gather(0, None)",
    "message_ids.RemoteMessageIds(1).gather(0, [None])",
    "message_ids.RemoteMessageIds(1).find(None, 0, 1)",
    "message_ids.key_of(None, 0, 1)",
    "encode.Encoder(None)",
    "encode.Encoder(LAYOUT).encode(None, 0, 1, 0, 0, 0, 0)",
    "envelope.parse(None, 0, 0)",
    "pending.PendingTable(None, 0, 0)",
    "pending_acks.ack_parts(None)",
    "pending_acks.apply_acks(None, 0, 0, {}, 0, [])",
    "pending_acks.apply_acks(acks_read, 0, 1, None, 0, [])",
    "pending_acks.apply_acks(acks_read, 0, 1, {b's.c': None}, 0, None)",
    "pending_rows.encode_entries(None)",
    "pending_rows.decode_entries(None, b'x', 0, 1)",
    "pending_rows.decode_entries(pending.PendingTable(bytes(8), 0, 0), None, 0, 1)",
    "pending_rows.apply_change(pending.PendingTable(bytes(8), 0, 0), None, 0, 1)",
    "pending_rows.apply_change(None, b'', 0, 1)",
    "deliveries.Cursor(deliveries.Filter([]), b'', 0).attach(None, b'')",
    "change_log.put_varint(None, 1)",
    "message_group.MessageGroup(None)",
    "held.keep_key(None, 0, 0)",
    "headers.HeaderFields().read(None, 0, 0)",
    "headers.asked_for(None, 0, 0)",
    "headers.unsupported(None)",
    "join.Joiner(None, checker)",
    "join.Joiner(LAYOUT, None).gather(memoryview(sound), 0, 0, (0, 9), 9, 1 << 20, 1 << 20)",
    "join.Joiner(LAYOUT, checker).gather(None, 0, 0, (0, 9), 9, 9, 9)",
    "join.Joiner(LAYOUT, checker).join(None, None)",
    "join.Joiner(LAYOUT, checker).last(None)",
    "keyhash.xxh64(None)",
    "siphash.SipHash(None)",
    "siphash.SipHash(bytes(16)).digest(None)",
    "subject_filter.hashes(None)",
    "subject_filter.hashes([None])",
    "subject_filter.row_of(None, b'', 1, b'')",
    "subject_filter.row_of(memoryview(bytes(8)).cast('i'), None, 1, b'')",
    "subject_filter.row_of(memoryview(bytes(8)).cast('i'), b'', 1, None)",
    "subject_filter.may_hold_each(None, bytearray(8))",
    "subject_filter.may_hold_each(bytes(256), None)",
    "subject_table.SubjectTable(1, 0).find(None, 0, 0)",
    "subject_table.SubjectTable(1, 0).note(None, 0, 0, 0)",
    "subject_table.SubjectTable(1, 0).note_column(None, b'', 1, 0)",
    "subject_table.SubjectTable(1, 0).take(bytes(8), None, bytes(8), 0, 1)",
    "subject_table.SubjectTable(1, 0).take(bytes(8), b'', None, 0, 1)",
    "keyhash.partition_of(None, 1)",
    "keymap.KeyMap(None)",
    "keymap.KeyMap((1,)).partition_of(None)",
    "keymap.KeyMap((1,)).partitions_of(None, bytes(8))",
    "keymap.KeyMap((1,)).partitions_of(b'', None)",
    "message.MessageChecker(None)",
    "checker.header(None)",
    "checker.message(None)",
    "row_objects.rows(None, 0, [1], [1], [''], [None], [None], [None])",
    "row_objects.rows(row_objects.Row, 0, None, [1], [''], [None], [None], [None])",
    "row_objects.rows(row_objects.Row, 0, [1], [1], [''], [None], [None], None)",
    "rows.BatchRows(None, LAYOUT)",
    "rows.BatchRows(sound, None)",
    "rows.BatchRows(sound, LAYOUT).refused_subject(None)",
    "rows.copied(None)",
    "rows.put_numbers(None, 0, 0, 0, 0)",
)
ASK = """
for call in CALLS:
    print(call, flush=True)
    try:
        found = eval(call)
    except Exception:
        continue
    raise SystemExit(f"{call} gives {found!r}")
print("done", flush=True)
"""


@pytest.mark.parametrize("plain", [pytest.param("", marks=hot_modes.needs_compiled), "1"])
def test_none_is_an_error(plain: str) -> None:
    finished = subprocess.run(
        [sys.executable, "-c", f"CALLS = {CALLS!r}\n{PRELUDE}{ASK}"],
        cwd=ROOT,
        env={"PENSTOCK_PLAIN": plain, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout[-200:] + finished.stderr[-2000:]
    assert finished.stdout.endswith("done\n")
