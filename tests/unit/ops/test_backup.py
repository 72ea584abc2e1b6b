"""Backup, verification and restore, called as a program would."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from msgspec import UNSET

import penstock
from penstock import ops
from penstock.base.errors import OperationalError
from penstock.ops.backup import restoring
from tests.broker_process import eventually, running_broker
from tests.extent import needs_time
from tests.unit.ops.cut_short import each_end


class Heard(ops.Progress):
    """Keeps all that an operation tells."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.done: dict[str, tuple[int | None, int]] = {}

    def note(self, text: str) -> None:
        self.notes.append(text)

    def step(self, what: str, total: int | None, *, noun: str = "") -> AbstractContextManager[Callable[[int], None]]:
        @contextmanager
        def counted():  # type: ignore[no-untyped-def]
            self.done[what] = total, 0
            yield lambda done: self.done.update({what: (total, done)})

        return counted()


@needs_time
def test_streams_come_back_and_a_second_run_adds_what_is_new(tmp_path: Path) -> None:
    folder, heard = tmp_path / "backup", Heard()
    with running_broker(tmp_path / "data") as broker, penstock.connect(broker.client_address) as client:
        client.create_stream("orders", "orders.>")
        client.append("orders", [{"subject": "orders.eu", "value": str(n)} for n in range(20)])
        client.groups.commit("billing", "orders", {0: 5})
        with ops.Backup(folder) as backup:
            first = backup.add(client, progress=heard)
            with pytest.raises(OperationalError, match="is under way"), ops.Backup(folder):
                pass
        client.append("orders", [{"subject": "orders.eu", "value": "new"}])
        with ops.Backup(folder) as backup:
            second = backup.add(client, ["orders"])
        assert [(one.stream, one.rows) for one in (*first.streams, *second.streams)] == [("orders", 20), ("orders", 1)]
        assert (first.users, second.users) == (0, None)
        assert heard.done == {"Backing up": (20, 20)}

        found = ops.verify_backup(folder)
        assert (found.damaged, [(one.rows, one.verdict) for one in found.partitions]) == ([], [(21, "sound")])

        plan = ops.Restore(folder, ops.RestoreOptions("orders", "monday")).plan(client, progress=heard)
        assert plan.administrators == []
        with pytest.raises(penstock.StreamNotFound):
            client.stream("monday")  # nothing is done yet
        done = plan.run()
        assert done == ops.Restored([ops.RestoredStream("monday", 21, 1, 1, "paused")], None)
        assert client.to_table("monday") == client.to_table("orders")
        assert heard.done["Restoring"] == (21, 21)

        # The original has all of it: it is left as it is, and that is said.
        assert ops.Restore(folder).plan(client, progress=heard).run() == ops.Restored([], None)
        assert any("already has all rows of the backup" in note for note in heard.notes)


@needs_time
def test_neither_a_backup_nor_a_copy_brings_back_what_is_hidden(tmp_path: Path) -> None:
    folder, heard = tmp_path / "backup", Heard()
    with running_broker(tmp_path / "data") as broker, penstock.connect(broker.client_address) as client:
        client.create_stream("orders", "orders.>")
        client.append("orders", [{"subject": "orders.eu", "value": str(n)} for n in range(20)])
        assert client.delete("orders", [0, 3, 4, 19]).deleted == 4
        shown = [*range(1, 3), *range(5, 19)]
        with ops.Backup(folder) as backup:
            assert backup.add(client).streams[0].rows == 16
        done = ops.Restore(folder, ops.RestoreOptions("orders", "again")).plan(client).run()
        assert done.streams[0].rows == 16
        assert ops.copy_stream(client, "orders", "copy").rows == 16
        for name in ("orders", "again", "copy"):
            assert [message.offset for message in client.messages(name)] == shown, name
        client.append("orders", [{"subject": "orders.eu", "value": "new"}])
        with ops.Backup(folder) as backup:
            assert backup.add(client, ["orders"]).streams[0].rows == 1
        assert ops.copy_stream(client, "orders", "copy").rows == 1
        assert ops.Restore(folder, ops.RestoreOptions("orders", "again")).plan(client).run().streams[0].rows == 17
        for name in ("orders", "again", "copy"):
            assert [message.offset for message in client.messages(name)] == [*shown, 20], name
        # The stream has all of its backup but what was deleted since.
        client.delete("orders", [7])
        assert ops.Restore(folder, ops.RestoreOptions("orders")).plan(client, progress=heard).run().streams == []
        assert [message.offset for message in client.messages("orders")] == [one for one in (*shown, 20) if one != 7]


@needs_time
def test_a_restore_that_ended_before_an_empty_partition_was_cut_is_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "backup"
    with running_broker(tmp_path / "data") as broker, penstock.connect(broker.client_address) as client:
        client.create_stream("orders", "orders.*")
        client.append("orders", [{"subject": "orders.eu", "value": "1"}] * 7)
        client.truncate_stream("orders", 7)
        client.create_stream("zones", "zones")
        client.append("zones", [{"value": "1"}])
        with ops.Backup(folder) as backup:
            backup.add(client)
        for name in ("orders", "zones"):
            client.delete_stream(name)

        async def interrupted(*_: object) -> None:
            raise OperationalError("the program ends here")

        with monkeypatch.context() as patch:
            patch.setattr("penstock.client.bulk.placing._Placing.give_up_before", interrupted)
            with pytest.raises(OperationalError, match="ends here"):
                ops.Restore(folder).plan(client).run()
        assert [one.offset for one in client.messages("orders")] == [6]
        done = ops.Restore(folder).plan(client).run()
        assert [(one.stream, one.rows) for one in done.streams] == [("orders", 0), ("zones", 1)]
        part = client.stream("orders").partitions[0]
        assert (part.log_start, part.committed_end) == (7, 7)
        # Another stream's only row is none of it.
        client.create_stream("other", "orders.*")
        client.append("other", [{"subject": "orders.x", "value": ""}] * 7)
        client.truncate_stream("other", 6)
        client.pause_stream("other")
        with pytest.raises(OperationalError, match="has other rows than"):
            ops.Restore(folder, ops.RestoreOptions("orders", "other")).plan(client)


@needs_time
def test_a_restored_stream_keeps_its_own_limits(tmp_path: Path) -> None:
    folder, day_ms = tmp_path / "backup", 86_400_000
    with running_broker(tmp_path / "data") as broker, penstock.connect(broker.client_address) as client:
        client.create_stream("orders", "orders.*", max_age_ms=day_ms, compact=True, compaction_lag_ms=5)
        client.append("orders", [{"subject": "orders.eu", "value": "1", "key": "k"}])
        with ops.Backup(folder) as backup:
            backup.add(client)
        options = ops.RestoreOptions("orders", "again")
        plan = ops.Restore(folder, options).plan(client)
        plan.create()  # a run that ends here
        config = client.stream("again").config
        assert (config.max_age_ms, config.compact, config.suspend_deletion) == (day_ms, True, "copying")
        ops.Restore(folder, options).plan(client).run()
        config = client.stream("again").config
        assert (config.max_age_ms, config.compact, config.is_deletion_suspended) == (day_ms, True, False)
        client.alter_stream("again", max_age_ms=2 * day_ms, max_messages=1_000, compact=False)
        client.append("orders", [{"subject": "orders.eu", "value": "2", "key": "l"}])
        with ops.Backup(folder) as backup:
            backup.add(client)
        assert ops.Restore(folder, options).plan(client).run().streams[0].rows == 2
        config = client.stream("again").config
        assert (config.max_age_ms, config.max_messages, config.compact) == (2 * day_ms, 1_000, False)


@needs_time
def test_a_restored_stream_keeps_what_a_user_kept_and_says_so(tmp_path: Path) -> None:
    folder, heard = tmp_path / "backup", Heard()
    with running_broker(tmp_path / "data") as broker, penstock.connect(broker.client_address) as client:
        client.create_stream("orders", "orders.*", max_messages=5, max_age_ms=1, suspend_deletion="yes")
        client.append("orders", [{"subject": "orders.eu", "value": "1"}] * 8)
        with ops.Backup(folder) as backup:
            backup.add(client)
        ops.Restore(folder, ops.RestoreOptions("orders", "again")).plan(client, progress=heard).run()
        assert heard.notes == [
            "note: deletion stays suspended in stream again, as it is in the backup: "
            "`penstock stream alter again --suspend-deletion no` resumes it"
        ]
        assert client.stream("again").config.suspend_deletion == "yes"
        assert len(list(client.messages("again"))) == 8


@needs_time
def test_deletion_is_suspended_while_a_restore_adds_and_what_a_user_alters_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, options, huge = tmp_path / "backup", ops.RestoreOptions("orders", "again"), 1 << 52
    fill = restoring._Job._fill

    def altered(*args: Any) -> None:
        fill(*args)
        config = client.stream("again").config
        assert (config.max_messages, config.compact, config.suspend_deletion) == (12, True, "copying")
        client.alter_stream("again", max_messages=1_000, compact=False)

    def back_up(count: int) -> None:
        client.append("orders", [{"subject": "orders.eu", "value": "1", "key": "k"}] * count)
        with ops.Backup(folder) as backup:
            backup.add(client)

    with running_broker(tmp_path / "data") as broker, penstock.connect(broker.client_address) as client:
        client.create_stream("orders", "orders.*", max_bytes=huge)
        back_up(10)
        ops.Restore(folder, options).plan(client).run()
        assert client.stream("again").config.max_bytes == huge
        client.alter_stream("again", max_messages=12, max_age_ms=86_400_000, compact=True)
        back_up(10)
        monkeypatch.setattr(restoring._Job, "_fill", altered)
        assert ops.Restore(folder, options).plan(client).run().streams[0].rows == 20
        config = client.stream("again").config
        assert (config.max_messages, config.max_age_ms, config.max_bytes) == (1_000, 86_400_000, huge)
        assert (config.compact, config.is_deletion_suspended) == (False, False)


@needs_time
@pytest.mark.parametrize("least", [1_000, None])
def test_what_is_altered_while_earlier_streams_are_filled_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, least: int | None
) -> None:
    folder, options, fill = tmp_path / "backup", ops.RestoreOptions(paused=True), restoring._Job._fill

    def altered(job: Any, *rest: Any) -> None:
        if job.name == "a":
            client.alter_stream("b", max_messages=30)
        else:
            config = client.stream("b").config
            assert (config.max_messages, config.suspend_deletion) == (30, "copying")
        fill(job, *rest)

    with (
        running_broker(tmp_path / "one") as first,
        penstock.connect(first.client_address) as source,
        running_broker(tmp_path / "two") as second,
        penstock.connect(second.client_address) as client,
    ):
        for name in ("a", "b"):
            source.create_stream(name, name, max_messages=least)
        for number in range(2):
            for name in ("a", "b"):
                source.append(name, [{"value": "1"}] * 20)
            with ops.Backup(folder) as backup:
                backup.add(source)
            if number:
                monkeypatch.setattr(restoring._Job, "_fill", altered)
            ops.Restore(folder, options).plan(client).run()
        assert client.stream("b").config.max_messages == 30


@needs_time
@pytest.mark.parametrize(
    "limits", [{"compact": True, "dedup_window_ms": None}, {"max_messages": 120}, {"max_bytes": 5_000}]
)
@pytest.mark.parametrize("is_interrupted", [False, True])
def test_a_restore_adds_to_a_stream_whose_own_limits_have_deleted_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limits: dict[str, Any], is_interrupted: bool
) -> None:
    folder, options = tmp_path / "backup", ops.RestoreOptions("orders", "again")

    def back_up() -> None:
        client.append("orders", [{"subject": "orders.eu", "value": "1" * 90, "key": "k"}] * 100)
        with ops.Backup(folder) as backup:
            backup.add(client)

    def left() -> int:
        return sum(1 for _ in client.messages("again"))

    async def deleted() -> int:
        try:
            count = await asyncio.to_thread(left)
        except penstock.OffsetOutOfRange:  # they have been deleted under the reader
            return 0
        return count if count < 200 else 0

    def interrupted(*_: object, **__: object) -> int:
        raise OperationalError("the program ends here")

    with running_broker(tmp_path / "data") as broker, penstock.connect(broker.client_address) as client:
        client.create_stream("orders", "orders.*", segment_bytes=4_096)
        for _ in range(2):
            back_up()
            ops.Restore(folder, options).plan(client).run()
        client.alter_stream("again", **limits)
        kept = asyncio.run(eventually(deleted, "its limits have deleted rows"))
        back_up()
        if is_interrupted:
            with monkeypatch.context() as patch:
                patch.setattr(restoring._Job, "_compare", interrupted)
                with pytest.raises(OperationalError, match="ends here"):
                    ops.Restore(folder, options).plan(client).run()
            assert client.stream("again").config.suspend_deletion == "copying"
            assert left() == kept + 100
        assert ops.Restore(folder, options).plan(client).run().streams[0].rows >= 100
        assert client.stream("again").config.suspend_deletion is UNSET
        assert client.offsets("again", penstock.LATEST).committed_end == 300


@needs_time
def test_deletion_is_suspended_until_all_is_restored_wherever_a_run_ends(tmp_path: Path) -> None:
    folder, limits = tmp_path / "backup", {"max_messages": 30, "max_age_ms": 86_400_000}
    with running_broker(tmp_path / "data") as broker, penstock.connect(broker.client_address) as client:
        client.create_stream("orders", "orders.*", partitions=2, partition_by="token:2", **limits)  # type: ignore[arg-type]
        client.append("orders", [{"subject": f"orders.{n}", "value": "1"} for n in range(40)])
        client.truncate_stream("orders", 2, partition=0)
        client.groups.commit("billing", "orders", {0: 5})
        ends = [part.committed_end for part in client.stream("orders").partitions]
        with ops.Backup(folder) as backup:
            backup.add(client)

        def run() -> None:
            ops.Restore(folder).plan(client).run()

        ended_at = []
        client.delete_stream("orders")
        for where in each_end(run):
            ended_at.append(where)
            with suppress(penstock.StreamNotFound):
                info = client.stream("orders")
                is_complete = [part.committed_end for part in info.partitions] == ends
                assert is_complete or info.config.suspend_deletion == "copying", where
                assert is_complete or info.intake == "paused", where
                run()
                info = client.stream("orders")
                assert [part.committed_end for part in info.partitions] == ends, where
                assert (info.config.is_deletion_suspended, info.intake) == (False, "open"), where
                client.delete_stream("orders")
        assert ended_at[-1] == "after SetIntakeRequest"
        assert {"before AppendAtRequest", "after AlterStreamRequest"} < set(ended_at)


@needs_time
def test_a_paused_restore_follows_a_source_that_was_purged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, options = tmp_path / "backup", ops.RestoreOptions("orders", "again")

    def back_up(count: int, *, purge: bool = False) -> None:
        client.append("orders", [{"subject": "orders.eu", "value": "1"}] * count)
        if purge:
            client.truncate_stream("orders", client.offsets("orders", penstock.LATEST).committed_end)
        with ops.Backup(folder) as backup:
            backup.add(client)

    def restored() -> tuple[int | None, int | None, list[int]]:
        ops.Restore(folder, options).plan(client).run()
        part = client.stream("again").partitions[0]
        return part.log_start, part.committed_end, [one.offset for one in client.messages("again")]

    async def interrupted(*_: object) -> None:
        raise OperationalError("the program ends here")

    with running_broker(tmp_path / "data") as broker, penstock.connect(broker.client_address) as client:
        client.create_stream("orders", "orders.*")
        back_up(5)
        assert restored() == (0, 5, [0, 1, 2, 3, 4])
        back_up(5, purge=True)
        assert restored() == (10, 10, [])
        # A run that was interrupted before the log was cut, and a newer backup.
        back_up(2, purge=True)
        with monkeypatch.context() as patch:
            patch.setattr("penstock.client.bulk.placing._Placing.give_up_before", interrupted)
            with pytest.raises(OperationalError, match="ends here"):
                restored()
        back_up(3)
        assert restored() == (12, 15, [12, 13, 14])


def test_mistakes_are_errors_before_a_client_is_needed(tmp_path: Path) -> None:
    with pytest.raises(OperationalError, match="is no backup"):
        ops.Restore(tmp_path)
    for options in (ops.RestoreOptions(name="monday"), ops.RestoreOptions(streams=False, paused=True)):
        with pytest.raises(ops.ArgumentError, match=r"--as is for one stream|so --paused has no meaning"):
            ops.Restore(tmp_path, options)
    with pytest.raises(OperationalError, match="is no backup"):
        ops.verify_backup(tmp_path)
    (tmp_path / "other").touch()
    for _ in range(2):  # the lock is let go
        with pytest.raises(OperationalError, match="is not empty, and no backup"), ops.Backup(tmp_path):
            pass
    (tmp_path / "penstock.json").touch()
    with pytest.raises(ValueError, match="is the data directory of a broker"), ops.Backup(tmp_path):
        pass


def test_every_public_name_is_there() -> None:
    for name in ops.__all__:
        assert getattr(ops, name) is not None
    assert dir(ops) == sorted(ops.__all__)
    assert not hasattr(ops, "nothing")
