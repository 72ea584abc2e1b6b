"""The kernel's syncs of a step begin before all else it has; what goes wrong with the rest costs no sync."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.base import limits
from penstock.messages import CreateStreamResponse
from penstock.node.step import DiskWork, Lane, PlainSync, Step
from tests.unit.broker.process.test_kernel_syncs import Kernel
from tests.unit.broker.test_driver_timer import driver_of
from tests.unit.node.harness import Broker


class Done:
    """Disk work, and what became of it."""

    def __init__(self, log: list[str], name: str, descriptor: int | None = None, **more: Any) -> None:
        self._log, self._name = log, name
        sync = None if descriptor is None else PlainSync(descriptor, None)
        self.work = DiskWork(Lane.WRITE, self._run, self._done, sync=sync, **more)

    def _run(self) -> None:
        self._log.append(f"{self._name} run by a thread")

    def _done(self, error: Exception | None) -> None:
        self._log.append(f"{self._name} done: {error}")


@pytest.mark.parametrize("room", [0, 1, limits.KERNEL_SYNCS_MAX])
async def test_a_note_that_raises_costs_no_work_of_the_step(room: int) -> None:
    log: list[str] = []
    broker = Broker().start()
    driver, _, disk = driver_of(broker, kernel := Kernel(room))

    def note() -> None:
        log.append(f"note, {len(kernel.waiting)} begun")
        raise AssertionError("a bug")

    try:
        works = [Done(log, "a", 7), Done(log, "b"), Done(log, "c", 8)]
        with pytest.raises(AssertionError, match="a bug"):
            driver.do(Step(notes=[note], disk=[one.work for one in works]))
        begun = min(room, 2)
        assert log[0] == f"note, {begun} begun"
        if begun:
            kernel.end(*[0] * begun)
        await disk.idle()
        assert sorted(one for one in log if "done" in one) == ["a done: None", "b done: None", "c done: None"]
        by_threads = [one for one in log if "thread" in one]
        assert len(by_threads) == 3 - begun
    finally:
        disk.close()


async def test_the_answers_get_out_though_a_sync_cannot_be_begun() -> None:
    """What asks the kernel raises: the step's answers must get out, and each work must come to an end."""
    log: list[str] = []
    broker = Broker().start()
    broker.answer(broker.create("orders"), CreateStreamResponse)
    driver, _, disk = driver_of(broker, kernel := Kernel())

    def submit(number: int, descriptor: int, event_descriptor: int) -> bool:
        raise MemoryError

    kernel.submit = submit  # type: ignore[method-assign]
    try:
        works = [Done(log, "a", 7), Done(log, "b")]
        driver.do(Step(notes=[lambda: log.append("note")], disk=[one.work for one in works]))
        await disk.idle()
        assert sorted(log) == ["a done: None", "a run by a thread", "b done: None", "b run by a thread", "note"]
    finally:
        disk.close()
