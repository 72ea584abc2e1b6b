"""What reports of unreachable leaders cost where they elect nobody."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from penstock.base.config import StreamConfig
from penstock.base.ids import BrokerId, StreamId
from penstock.messages import UnreachableLeader
from penstock.metadata.commands import CreateStream
from penstock.metadata.controller.reachability import ReachabilityReports
from penstock.metadata.effects.apply import apply
from penstock.metadata.image import ClusterImage
from tests.unit.metadata.controller.test_controller import ONE, THREE, TWO, register

WINDOW_US = 1_000_000


class CountedStreams(dict):
    """The streams of an image, and how often somebody went over all of them."""

    passes = 0

    def values(self) -> Any:
        self.passes += 1
        return super().values()


def image_with(*replicas: BrokerId) -> ClusterImage:
    image = ClusterImage()
    for command in (*map(register, (ONE, TWO, THREE)), created(replicas)):
        image, _ = apply(image, image.index + 1, command)
    return image


def created(replicas: tuple[BrokerId, ...]) -> CreateStream:
    config = StreamConfig(name="a", subject="a", replicas=len(replicas), min_isr=1)
    return CreateStream(config=config, created_us=1, assignments=(replicas,))


def counted(image: ClusterImage) -> tuple[ClusterImage, CountedStreams]:
    streams = CountedStreams((key, image.streams[key]) for key in image.streams)
    return replace(image, streams=streams), streams  # type: ignore[arg-type]


def test_all_partitions_are_looked_at_once_for_the_same_reports_and_image() -> None:
    image, streams = counted(image_with(ONE, TWO, THREE))
    reports = ReachabilityReports(WINDOW_US)
    accused = UnreachableLeader(ONE, image.brokers[ONE].incarnation)
    reports.replace_report(image, TWO, [accused], 0)
    for tick_us in range(0, 500_000, 100_000):
        assert reports.elections(image, tick_us) == []  # two others are in sync, and one of them complains
    assert streams.passes == 1
    reports.replace_report(image, THREE, [accused], 500_000)
    for tick_us in (500_000, 600_000):
        assert [one.stream_id for one in reports.elections(image, tick_us)] == list(map(StreamId, image.streams))
    assert streams.passes == 2
    later, streams = counted(image)
    assert len(reports.elections(later, 700_000)) == 1
    assert streams.passes == 1
    assert reports.elections(later, 3_000_000) == []  # old news
