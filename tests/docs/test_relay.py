"""The page on relays: its commands run in order, and subscribers get what it says."""

from __future__ import annotations

import asyncio
import re
import shlex
from pathlib import Path

from tests.broker_process import running_broker
from tests.cli_process import command, ended, launched
from tests.extent import needs_time
from tests.integration.test_relay import headers_of, subscribed

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "how-to/relay.md").read_text(encoding="utf-8")


@needs_time
async def test_the_page_does_what_it_says(tmp_path: Path) -> None:
    once, mapped, ever = (text.splitlines() for text in re.findall(r"```sh\n(.*?)```", PAGE, flags=re.DOTALL))
    with running_broker(tmp_path / "data") as broker:
        async with (
            subscribed(broker.nats_url, "copies.>") as copies,
            subscribed(broker.nats_url, "by-region.>") as by_region,
            subscribed(broker.nats_url, "replayed.parcels") as replayed,
        ):
            for line in (*once, *mapped):
                await command(broker.client_address, *shlex.split(line)[1:])
            first, second = await copies.until(2)
            assert (first.subject, first.data, second.subject) == (
                "copies.parcels.eu.7",
                b"hello",
                "copies.parcels.us.8",
            )
            for name in re.findall(r"`(Penstock-[A-Z][a-z]+)`", PAGE.partition("## Relay continuously")[0]):
                assert headers_of(first)[name]
            assert headers_of(first)["Colour"] == "red"
            assert [one.subject for one in await by_region.until(2)] == ["by-region.eu.7", "by-region.us.8"]
            assert [one.data for one in await replayed.until(3)] == [b"hello", b"world", b"hello"]
            with launched(broker.client_address, *shlex.split(ever[1])[1:]) as running:
                await copies.until(4)
                await command(broker.client_address, "publish", "parcels.eu.9", "later")
                assert (await copies.until(5))[4].data == b"later"
                running.terminate()
                await asyncio.to_thread(running.wait)
            with launched(broker.client_address, *shlex.split(ever[0])[1:]) as running:
                while len(copies.messages) < 6:  # until it listens for what comes
                    await command(broker.client_address, "publish", "parcels.eu.9", "again")
                running.send_signal(2)
                await ended(running, 130)
