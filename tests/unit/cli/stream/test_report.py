"""What is wrong is shown, and what is shown cannot command a terminal."""

from __future__ import annotations

import io

import msgspec
import pytest
from rich.console import Console

from penstock.base.config import StreamConfig
from penstock.base.ids import BrokerId, LeaderEpoch, Offset, PartitionId, StreamId, TimestampUs
from penstock.cli.stream import report
from penstock.doctor.gaps import causes
from penstock.doctor.streams import judge_streams
from penstock.messages import DamageInfo, FollowerInfo, GapInfo, LiveRowsInfo, PartitionInfo, StreamInfo


def stream(*, dedup_window_ms: int | None = 120_000, **partition: object) -> StreamInfo:
    numbers = {
        "leader_epoch": LeaderEpoch(1),
        "log_start": Offset(5),
        "committed_end": Offset(12),
        "log_end": Offset(12),
    }
    part = PartitionInfo(**{**numbers, **partition})
    return StreamInfo(
        stream_id=StreamId(1),
        config=StreamConfig(name="orders", subject="orders.[red].>", dedup_window_ms=dedup_window_ms),
        partitions=(part,),
    )


def shown(info: StreamInfo) -> str:
    out = io.StringIO()
    console = Console(file=out, width=200, markup=False, highlight=False)
    console.print(report.stream_table([info], width=200))
    console.print(report.pairs(report.stream_pairs(info)))
    report.print_trouble(console, info, info.partitions[0])
    return out.getvalue()


def test_a_healthy_stream_has_no_trouble() -> None:
    text = shown(stream(size_bytes=3 * 2**20, segment_count=2))
    assert "orders.[red].>" in text  # not taken for markup
    assert "5 to 11" in text
    assert "3.0 MiB in 2 segment files" in text
    assert "not committed" not in text
    for word in ("Damage", "Gaps", "Not stored", "is online"):
        assert word not in text


def test_message_ids_that_were_not_read_yet_are_not_passed_over() -> None:
    assert "message ids" in shown(stream())
    assert "none read yet" in shown(stream())
    assert "none read yet" not in shown(stream(dedup_ids=1200))
    assert "1,200" in shown(stream(dedup_ids=1200))
    assert "message ids" not in shown(stream(dedup_window_ms=None))
    assert "message ids" not in shown(stream(committed_end=None))


def test_an_empty_stream_says_which_offset_comes_next() -> None:
    assert "none (next is 12)" in shown(stream(log_start=Offset(12)))


def test_trouble_is_shown_with_its_place_and_its_numbers() -> None:
    damage = DamageInfo(
        file="0.arrows",
        position=4096,
        expected="crc 1",
        found="crc 2\x1b[2J",
        base_offset=Offset(7),
        end_offset=Offset(9),
    )
    gaps = (
        GapInfo(start_us=TimestampUs(0), end_us=TimestampUs(1_500_000), reason="NATS was away"),
        GapInfo(start_us=TimestampUs(10_000_000), reason="slow consumer"),
    )
    text = shown(
        stream(
            state="read_only",
            state_reason="damaged",
            damage=(damage,),
            gaps=gaps,
            dropped={"over the limit": 1200, "none": 0},
            log_end=Offset(20),
        )
    )
    assert "read only" in text
    assert "Stream orders is read only: damaged" in text
    assert "0.arrows at byte 4096: expected crc 1, found crc 2\\x1b[2J; offsets that cannot be read: 7 to 8" in text
    assert "1970-01-01 00:00:00.000Z for 1.5s: NATS was away" in text
    assert "1970-01-01 00:00:10.000Z until now: slow consumer" in text
    assert "1,200: over the limit" in text
    assert "  0: none" not in text
    assert "not committed yet" in text
    assert "\x1b" not in text


@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_a_stream_is_one_line_however_long_its_name_and_subject(width: int) -> None:
    numbers = {"log_start": Offset(0), "committed_end": Offset(123_456_789), "log_end": Offset(123_456_789)}
    full = stream(**numbers, size_bytes=2**40, last_timestamp_us=TimestampUs(10**15))
    long = StreamInfo(
        stream_id=StreamId(2), config=StreamConfig(name="n" * 60, subject="s" * 100 + ".>"), partitions=full.partitions
    )
    out = io.StringIO()
    console = Console(file=out, width=width, markup=False, highlight=False)
    console.print(report.stream_table([full, long], width=width))
    lines = [line for line in out.getvalue().splitlines() if line.strip()]
    assert len(lines) == 4  # titles, a rule, two streams
    assert max(map(len, lines)) <= width
    assert "online" in lines[2]
    assert "orders.[red].>" in lines[2]
    assert "nnn" in lines[3]
    assert "sss…" in lines[3]
    assert ("first to last" in lines[0]) == (width >= 120)


@pytest.mark.parametrize("width", [20, 40, 60])
@pytest.mark.parametrize("end", [0, 123_456_789])
def test_on_a_narrow_terminal_columns_are_left_out_and_nothing_wraps(width: int, end: int) -> None:
    numbers = {"log_start": Offset(0), "committed_end": Offset(end), "log_end": Offset(end)}
    part = stream(**numbers, size_bytes=2**40, last_timestamp_us=TimestampUs(10**15)).partitions[0]
    infos = [
        StreamInfo(stream_id=StreamId(2), config=StreamConfig(name=name, subject=f"{name}.>"), partitions=(part,))
        for name in ("orders", "n" * 60)
    ]
    out = io.StringIO()
    Console(file=out, width=width, markup=False, highlight=False).print(report.stream_table(infos, width=width))
    lines = [line for line in out.getvalue().splitlines() if line.strip()]
    assert len(lines) == 4
    assert max(map(len, lines)) <= width
    assert lines[2].startswith("orders ")
    assert lines[3].startswith("nnnnnn")
    assert all("online" in line for line in lines[2:])


def test_how_many_messages_are_left_is_told_as_exactly_as_it_is_known() -> None:
    assert report.stream_pairs(stream())["messages kept"] == "7", "an earlier broker knows offsets only"
    assert report.stream_pairs(stream(messages=4))["messages kept"] == "4"
    found = report.stream_pairs(stream(messages=4), live=[LiveRowsInfo(rows=3, size_bytes=1, deleted=2)])
    assert found["messages kept"] == "3, 2 deleted between them"


def test_json_has_the_counted_messages_of_each_partition() -> None:
    assert report.with_live(stream(), None)["live"] is None
    (found,) = report.with_live(stream(), [LiveRowsInfo(rows=3, size_bytes=1, deleted=2)])["live"]
    assert (found["rows"], found["deleted"], found["first_offset"]) == (3, 2, None)


def test_that_all_partitions_are_empty_is_told_once() -> None:
    part = stream(log_start=Offset(0), committed_end=Offset(0), log_end=Offset(0)).partitions[0]
    parts = tuple(msgspec.structs.replace(part, partition=PartitionId(number)) for number in range(4))
    text = shown(msgspec.structs.replace(stream(), partitions=parts))
    assert text.count("next is 0") == 2  # in the table, and in the pairs
    assert "partition 1 last message" not in text
    assert "none (next is 0)" in shown(stream(log_start=Offset(0), committed_end=Offset(0)))


@pytest.mark.parametrize("partitions", [2, 3, 16, 1024])
@pytest.mark.parametrize("end", [0, 7, 1_234_567_890])
def test_a_stream_is_one_line_however_many_partitions_it_has(partitions: int, end: int) -> None:
    numbers = {"log_start": Offset(0), "committed_end": Offset(end), "log_end": Offset(end)}
    one = stream(**numbers, size_bytes=2**40, last_timestamp_us=TimestampUs(10**15)).partitions[0]
    parts = tuple(msgspec.structs.replace(one, partition=PartitionId(number)) for number in range(partitions))
    info = msgspec.structs.replace(stream(), partitions=parts)
    for width in (80, 120, 200):
        out = io.StringIO()
        Console(file=out, width=width, markup=False, highlight=False).print(report.stream_table([info], width=width))
        lines = [line for line in out.getvalue().splitlines() if line.strip()]
        assert len(lines) == 3  # titles, a rule, the stream
        assert max(map(len, lines)) <= width
        assert ("0 to 6, 0 to 6" in lines[2]) == (width >= 120 and partitions <= 3 and end == 7)
        assert ("none (next is 0 in each partition)" in lines[2]) == (width >= 120 and end == 0)
        is_counted = end > 7 or (end == 7 and partitions > 3)
        assert (f"{partitions} partitions" in lines[2]) == (width >= 120 and is_counted)


def on_80_columns(*printed: object) -> list[str]:
    out = io.StringIO()
    console = Console(file=out, width=80, markup=False, highlight=False, soft_wrap=True)  # as `output.console` makes it
    for one in printed:
        console.print(one)
    return out.getvalue().splitlines()


def test_a_long_path_or_address_is_not_cut_on_a_narrow_terminal() -> None:
    path = "/srv/" + "a-long-name-of-a-folder/" * 6 + "penstock-data"
    name = "partition 12 not committed yet"
    lines = on_80_columns(report.pairs({name: "1,200", "data": path}))
    assert max(map(len, lines)) <= 80
    assert lines[0].split("  ")[0] == name
    assert "".join(line[len(name) :].strip() for line in lines[1:]) == path


def test_a_name_of_usual_length_is_not_cut_on_a_narrow_terminal() -> None:
    """It is what the next command takes."""
    numbers = {"log_start": Offset(0), "committed_end": Offset(123_456), "log_end": Offset(123_456)}
    part = stream(**numbers, size_bytes=2**40, last_timestamp_us=TimestampUs(10**15)).partitions[0]
    config = StreamConfig(name="orders-europe-berlin", subject="orders.europe.germany.*.customers.>")
    lines = on_80_columns(
        report.stream_table([StreamInfo(stream_id=StreamId(2), config=config, partitions=(part,))], width=80)
    )
    assert lines[2].startswith("orders-europe-berlin  orders.")
    assert max(map(len, lines)) <= 80


def test_one_of_a_kind_has_no_plural() -> None:
    assert "in 1 segment file\n" in shown(stream(segment_count=1)).replace(" \n", "\n").replace("  ", "")


def test_trouble_of_one_partition_of_several_says_of_which() -> None:
    gap = GapInfo(start_us=TimestampUs(0), end_us=TimestampUs(1_000_000), reason="nobody led it")
    parts = tuple(
        PartitionInfo(partition=PartitionId(number), leader_epoch=LeaderEpoch(1), gaps=(gap,) if number else ())
        for number in (0, 1)
    )
    info = StreamInfo(stream_id=StreamId(4), config=StreamConfig(name="p6", subject="p"), partitions=parts)
    out = io.StringIO()
    for part in parts:
        report.print_trouble(Console(file=out, width=120), info, part)
    assert "Gaps of stream p6, partition 1: " in out.getvalue()
    assert "partition 0" not in out.getvalue()


def test_a_stream_that_nobody_leads_says_why_in_plain_words() -> None:
    assert "Stream orders: it has no leader now\n" in shown(
        stream(state="no_leader", state_reason="it has no leader now")
    )


def test_a_copy_that_is_not_in_sync_says_why() -> None:
    away = FollowerInfo(broker_id=BrokerId(3), lag=7, state="read_only", state_reason="it is mended once it is closed")
    well = FollowerInfo(broker_id=BrokerId(2), lag=0)
    text = shown(stream(followers=(well, away)))
    assert "Stream orders on broker 3 is read only: it is mended once it is closed\n" in text
    assert "broker 2 is" not in text


def test_status_a_stream_and_the_doctor_show_the_same_gaps() -> None:
    now_us = 1_700_000_000_000_000
    gap = GapInfo(start_us=TimestampUs(now_us - 9_000_000), end_us=TimestampUs(now_us - 8_000_000), reason="killed")
    later = GapInfo(start_us=TimestampUs(now_us - 3_000_000), end_us=TimestampUs(now_us - 2_500_000), reason="no NATS")
    infos = [
        StreamInfo(
            stream_id=StreamId(number),
            config=StreamConfig(name=f"s{number}", subject=f"s{number}"),
            partitions=(PartitionInfo(partition=PartitionId(0), leader_epoch=LeaderEpoch(1), gaps=gaps),),
        )
        for number, gaps in enumerate([(gap,), (gap, later)])
    ]
    out = io.StringIO()
    console = Console(file=out, width=200)
    report.print_causes(console, causes(infos))
    status = [line.strip() for line in out.getvalue().splitlines() if " for " in line]
    assert status == [f"{report.gap_text(gap)} (s0, s1)", f"{report.gap_text(later)} (s1)"]
    out.truncate(0)
    report.print_trouble(console, infos[1], infos[1].partitions[0])
    assert [line.strip() for line in out.getvalue().splitlines() if " for " in line] == [
        report.gap_text(gap),
        report.gap_text(later),
    ]
    told = [one.found for one in judge_streams(infos, [], now_us) if one.check == "gaps"]
    assert told == [
        "s1: no broker subscribed for 500ms, 2s ago (no NATS)",
        "s0, s1: no broker subscribed for 1s, 8s ago (killed)",
    ]


@pytest.mark.parametrize(
    ("reason", "said"),
    [("refused", "7: refused (a check failed: "), ("unmet_expectation", ""), ("consumer_control", "")],
)
def test_lost_races_of_publishers_are_no_trouble(reason: str, said: str) -> None:
    info = stream(dropped={reason: 7})
    out = io.StringIO()
    report.print_troubles(Console(file=out, width=120), [info])
    assert said in out.getvalue()
    assert bool(out.getvalue()) == bool(said)


def test_damage_is_not_pushed_off_the_page_by_dropped_messages() -> None:
    damage = DamageInfo(file="0.arrows", position=4096, expected="crc 1", found="crc 2")
    parts = tuple(
        PartitionInfo(
            partition=PartitionId(number),
            leader_epoch=LeaderEpoch(1),
            dropped={} if number == 39 else {"over the limit": 1},
            damage=(damage,) if number == 39 else (),
        )
        for number in range(40)
    )
    info = StreamInfo(stream_id=StreamId(4), config=StreamConfig(name="p6", subject="p"), partitions=parts)
    out = io.StringIO()
    report.print_troubles(Console(file=out, width=120), [info])
    assert "Damage in stream p6, partition 39" in out.getvalue()
    assert "30 more partitions in trouble" in out.getvalue()
