"""What is measured when somebody asks, and what its results are compared with."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.base.addresses import Address
from penstock.base.limits import BENCH_IN_FLIGHT_BYTES_MAX, GIB
from penstock_bench.load.generator import Load
from penstock_bench.load.readers import joined_values
from penstock_bench.measure.reader_table import READERS, readers_of
from penstock_bench.runs.throughput import (
    NOTES,
    PENSTOCK,
    Axes,
    ThroughputPlan,
    Wish,
    ceilings_of,
    pairs_of,
    planned,
    title_of,
)
from penstock_bench.systems import clusters, kafka
from penstock_bench.systems.external import ProductAddresses
from penstock_bench.systems.system import VARIANTS


def shapes(plan: ThroughputPlan) -> set[tuple[int, int, int]]:
    return {(load.size, load.window, load.publishers) for load in plan.loads}


def test_no_window_is_larger_than_its_round() -> None:
    assert shapes(planned(Wish(messages=50, axes=Axes((16,), (1, 100, 4_000), (1,))))) == {(16, 1, 1), (16, 50, 1)}


def test_without_lists_one_thing_varies_at_a_time() -> None:
    plan = planned(Wish())
    assert shapes(plan) == {
        (256, 4_000, 1),
        (1_024, 4_000, 1),
        (5_120, 4_000, 1),
        (256, 1, 1),
        (256, 100, 1),
        (256, 4_000, 4),
        (256, 4_000, 16),
    }
    assert {load.messages for load in plan.loads} == {100_000}
    assert {load.size for load in plan.reads} == {256, 1_024, 5_120}


def test_lists_are_combined_and_what_is_left_out_is_the_base() -> None:
    plan = planned(Wish(axes=Axes(sizes=(16, 100), windows=(1, 7), publishers=())))
    assert shapes(plan) == {(16, 1, 1), (16, 7, 1), (100, 1, 1), (100, 7, 1)}


def test_all_combines_the_whole_axes() -> None:
    assert len(shapes(planned(Wish(every=True)))) == 27
    assert len(shapes(planned(Wish(every=True, axes=Axes((16,), (), ()))))) == 9


def test_a_short_run_is_smaller_and_what_is_asked_for_goes_first() -> None:
    short = planned(Wish(short=True))
    assert shapes(short) == {(256, 1, 1), (256, 4_000, 1)}
    assert short.bytes_needed < planned(Wish()).bytes_needed
    exact = planned(Wish(short=True, messages=7, seconds_max=2.5, rounds=9))
    assert {(load.messages, load.seconds_max) for load in exact.loads} == {(7, 2.5)}
    assert exact.rounds == 9


def test_others_are_measured_only_when_they_are_named() -> None:
    assert not [name for name in planned(Wish()).variants if VARIANTS[name].product == "jetstream"]
    assert "jetstream-always" in planned(Wish(against=("jetstream",))).variants
    assert planned(Wish(against=("jetstream",), only=("penstock", "jetstream"))).variants == ("penstock", "jetstream")


def test_a_bar_ends_where_the_measurements_end() -> None:
    plan = planned(Wish(against=("jetstream",), short=True, rounds=3))
    readers = readers_of(plan.variants)
    assert plan.measurements == 3 * (len(plan.loads) * len(plan.variants) + len(plan.reads) * len(readers))


def test_large_messages_need_no_more_disk_than_two_logs() -> None:
    plan = planned(Wish(axes=Axes((1_000_000,), (), ()), messages=1_000))
    assert 2 * GIB < plan.bytes_needed < 6 * GIB


@pytest.mark.parametrize(("size", "publishers", "window"), [(256, 1, 4_000), (1_000_000, 1, 33), (1_000_000, 40, 40)])
def test_a_window_is_bounded_in_bytes(size: int, publishers: int, window: int) -> None:
    load = Load(size=size, publishers=publishers)
    assert load.window_in_effect == window
    assert publishers > 1 or load.window_in_effect * size <= BENCH_IN_FLIGHT_BYTES_MAX
    assert f"window {window:,}" in title_of(load)


def test_like_is_compared_with_like_and_a_stranger_with_each_of_ours() -> None:
    assert ("penstock-memory", "jetstream-memory") in pairs_of(list(VARIANTS))
    assert ("penstock-memory", "jetstream-always") not in pairs_of(list(VARIANTS))
    assert pairs_of(["penstock", "penstock-os", "other"]) == [("penstock", "other"), ("penstock-os", "other")]


def test_an_ack_before_the_write_stands_beside_the_page_cache_and_memory_beside_it_says_that_it_is_unlike() -> None:
    assert ("penstock-os", "jetstream-async") in pairs_of(list(VARIANTS))
    assert "no file" in NOTES["penstock-memory / jetstream-async"]
    assert "after the write" in NOTES["penstock-os / jetstream-async"]
    assert "a file, acked before it is written" in VARIANTS["jetstream-async"].title
    assert "no file" in VARIANTS["penstock-memory"].title
    assert "no file" in VARIANTS["jetstream-memory"].title


def test_every_system_has_the_ceiling_of_its_own_generator() -> None:
    names = ["penstock", "jetstream", "echo", "null"]
    assert ceilings_of(names) == {"penstock": "null", "jetstream": "null", "echo": "null"}
    assert ceilings_of(names[:-1]) == {"penstock": "echo", "jetstream": "echo"}
    assert ceilings_of(names[:-2]) == {}
    others = planned(Wish(only=("kafka", "kafka-null"), addresses=KAFKA)).others
    assert ceilings_of(["penstock", "kafka", "kafka-null", "null"], others) == {
        "penstock": "null",
        "kafka": "kafka-null",
    }
    assert ceilings_of(["penstock", "kafka", "null"], others) == {"penstock": "null"}


@pytest.mark.parametrize("other", ["nats-py", "confluent-kafka", "grpc"])
def test_what_touches_a_column_at_once_says_so(other: str) -> None:
    assert "one checksum over a column" in NOTES[f"penstock-batches / {other}"]
    assert f"penstock-messages / {other}" not in NOTES


def test_a_note_is_about_a_pair_that_is_told() -> None:
    everything = [*VARIANTS, *clusters.VARIANTS, *(reader.name for reader in READERS)]
    assert {f"{one} / {other}" for one, other in pairs_of(everything)} >= NOTES.keys()


def test_readers_have_names_of_their_own() -> None:
    assert len({reader.name for reader in READERS} | set(VARIANTS)) == len(READERS) + len(VARIANTS)


def test_all_values_of_a_batch_lie_behind_each_other() -> None:
    values = [b"one", b"", b"three", b"four"]
    batch = pa.record_batch({"offset": [0, 1, 2, 3], "value": pa.array(values, pa.binary())})
    assert bytes(joined_values(batch)) == b"onethreefour"
    assert bytes(joined_values(batch.slice(1, 2))) == b"three"
    assert bytes(joined_values(batch.slice(4))) == b""


KAFKA = ProductAddresses(kafka=Address("127.0.0.1", 9092))
LIFTBRIDGE = ProductAddresses(liftbridge=Address("127.0.0.1", 9292), liftbridge_nats=Address("127.0.0.1", 4222))


def test_products_of_somebody_else_are_measured_at_their_addresses() -> None:
    plan = planned(Wish(against=("jetstream", "kafka"), addresses=KAFKA))
    assert {one.name for one in plan.others} == set(kafka.NAMES) <= set(plan.variants)
    (only,) = planned(Wish(only=("penstock", "liftbridge"), addresses=LIFTBRIDGE)).others
    assert only.name == "liftbridge"
    assert planned(Wish(against=("jetstream",), addresses=KAFKA)).others == ()


@pytest.mark.parametrize(
    ("wish", "option"),
    [
        (Wish(against=("kafka",)), "--kafka-address"),
        (Wish(against=("kafka",), addresses=LIFTBRIDGE), "--kafka-address"),
        (Wish(against=("liftbridge",)), "--liftbridge-address"),
        (Wish(only=("liftbridge",), addresses=ProductAddresses(liftbridge=Address("::1", 1))), "--liftbridge-nats"),
        (Wish(only=("penstock", "kafka-fsync")), "--kafka-address"),
    ],
)
def test_a_product_of_somebody_else_without_its_address_is_a_mistake_in_the_call(wish: Wish, option: str) -> None:
    with pytest.raises(ValueError, match=f"not started for you: say where it listens, with {option} HOST:PORT"):
        planned(wish)


def test_what_promises_the_same_is_told_beside_it() -> None:
    pairs = pairs_of([*planned(Wish(against=("kafka",), addresses=KAFKA)).variants])
    assert ("penstock", "kafka-fsync-linger-0") in pairs
    assert ("penstock-os", "kafka-linger-0") in pairs
    assert not [pair for pair in pairs if "kafka-null" in pair]


def test_a_run_can_tell_about_how_long_it_takes() -> None:
    one, all_of_jetstream = (planned(Wish(against=products)).seconds for products in ((), ("jetstream",)))
    assert 60 < one < all_of_jetstream < 3_600
    assert planned(Wish(short=True)).seconds < one / 2
    few, many = (planned(Wish(rounds=rounds)).seconds for rounds in (1, 9))
    assert many == pytest.approx(5 * few)  # a round more is the warm-up


def test_three_replicas_are_three_of_each() -> None:
    plan = planned(Wish(against=("jetstream",), replicas=3))
    assert {one.name for one in plan.others} == set(clusters.VARIANTS) <= set(plan.variants)
    assert {"null", "echo"} <= set(plan.variants)
    assert not set(plan.variants) & set(PENSTOCK)
    pairs = pairs_of(plan.variants)
    assert ("penstock-r3", "jetstream-r3") in pairs
    assert ("penstock-r3-fsync", "jetstream-r3") not in pairs


def test_who_has_no_cluster_here_is_not_measured_as_one() -> None:
    with pytest.raises(ValueError, match="kafka is measured with one replica only"):
        planned(Wish(against=("kafka",), addresses=KAFKA, replicas=3))
