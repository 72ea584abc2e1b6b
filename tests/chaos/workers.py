"""Unmodified nats-py clients of consumers with acks: they ack, nak, wait, and forget, for as long as they are let."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections import Counter
from contextlib import suppress
from typing import Any

import nats
import nats.errors
from nats.js.errors import APIError, NoStreamResponseError

from tests.chaos.acked import AckHistory, Confirmed, Taken

FAILURES = (TimeoutError, nats.errors.Error, APIError, NoStreamResponseError, ConnectionError)
_WAIT_S = 2.0
_PAUSE_S = 0.05
_BETWEEN_S = 0.01  # two messages of a publisher


async def client_of(url: str) -> Any:
    """Connect a client that connects again for ever."""

    async def ignore(_: Exception) -> None:
        """The history has what came of it."""

    return await nats.connect(url, max_reconnect_attempts=-1, reconnect_time_wait=0.1, error_cb=ignore)


class NumberPublisher:
    """Publishes numbered messages, each one until it is stored; a message has an id, so it is stored once."""

    def __init__(self, url: str, subject: str, history: AckHistory) -> None:
        self._url, self._subject, self._history = url, subject, history
        self._stop = asyncio.Event()
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        connection = await client_of(self._url)
        js = connection.jetstream()
        for number in itertools.count():
            value = f"{number}"
            self._history.published.add(value)
            while value not in self._history.stored:
                with suppress(*FAILURES):
                    await js.publish(
                        self.subject_of(number), value.encode(), timeout=_WAIT_S, headers={"Nats-Msg-Id": f"n{number}"}
                    )
                    self._history.stored.add(value)
                    continue
                await asyncio.sleep(_PAUSE_S)
            if self._stop.is_set():
                break
            await asyncio.sleep(_BETWEEN_S)
        await connection.close()

    def subject_of(self, number: int) -> str:
        """Return where a message goes."""
        return self._subject

    async def stop(self) -> None:
        """End once the last message is stored."""
        self._stop.set()
        await self._task


class Worker:
    """One worker of a pull consumer, or a member of a push consumer's queue group."""

    def __init__(
        self, url: str, stream: str, consumer: str, history: AckHistory, seed: int, *, group: str = "", batch: int = 20
    ) -> None:
        """`group`: of a push consumer. `batch`: most messages of one request; it waits for all of them."""
        self.batch = batch
        self.heard: Counter[str] = Counter()
        self.is_calm = False
        self._url, self._stream, self.consumer, self._group = url, stream, consumer, group
        self._history, self._chance = history, random.Random(seed)
        self._task = asyncio.create_task(self._pushed() if group else self._pull())

    async def _pull(self) -> None:
        connection = await client_of(self._url)
        try:
            pull = await connection.jetstream().pull_subscribe_bind(self.consumer, self._stream)
            while True:
                try:
                    messages = await pull.fetch(self._chance.randint(1, self.batch), timeout=_WAIT_S)
                except FAILURES as error:
                    self.heard[type(error).__name__] += 1
                    await asyncio.sleep(_PAUSE_S)
                    continue
                await asyncio.gather(*(self._take(message) for message in messages))
        finally:
            await connection.close()

    async def _pushed(self) -> None:
        connection = await client_of(self._url)
        try:
            inbox = await connection.subscribe(f"deliver.{self.consumer}", queue=self._group)
            async for message in inbox.messages:
                await self._take(message)
        finally:
            await connection.close()

    async def _take(self, message: Any) -> None:
        if "Status" in (message.headers or {}):
            return
        value = message.data.decode()
        self._history.taken.append(Taken(time.monotonic(), self.consumer, value, message.metadata.num_delivered))
        self.heard["taken"] += 1
        try:
            await self._settle(message, value)
        except FAILURES as error:
            self.heard[f"ack: {type(error).__name__}"] += 1

    async def _settle(self, message: Any, value: str) -> None:
        what = 0.0 if self.is_calm else self._chance.random()
        if what < 0.7:
            self._history.acking.add((self.consumer, value))
        if what < 0.5:
            await message.ack_sync(timeout=_WAIT_S)
            self._history.confirmed.append(Confirmed(time.monotonic(), self.consumer, value))
            self.heard["confirmed"] += 1
        elif what < 0.7:
            await message.ack()
        elif what < 0.8:
            await message.nak()
        elif what < 0.85:
            await message.nak(delay=self._chance.random())
        elif what < 0.9:
            await message.in_progress()

    def calm(self) -> None:
        """Ack all from now on, and wait for the answers."""
        self.is_calm = True

    async def stop(self) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
