"""Supervisor of several brokers of one machine, each a process.

Rules: nats-server is started once, or is external (`nats`). The supervisor locks the folder, not the data: a broker
that ends affects no other, and is restarted (`keeper`). At a stop the brokers stop one after the other, the last one
first, so that each can hand over its leaderships; those left after SUPERVISOR_ORDER_MS stop together. nats-server ends
last. If the supervisor is killed, the brokers notice and stop cleanly (`supervised`).

It is ready when every broker serves, or has a failure that was logged, and at least one serves. If none can start, it
ends.

    exit code 0   told to stop, and every broker stopped cleanly
              1   a broker did not; or no broker starts
              2   no broker can work with its settings
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from penstock.access.users import ADMIN_CREDENTIALS_FILE
from penstock.base.errors import ConfigError, PenstockError
from penstock.broker.config.config import BrokerConfig
from penstock.broker.config.data_dir import admin_password_advice
from penstock.broker.nats.server import EmbeddedNats
from penstock.broker.process.signals import on_signals
from penstock.broker.process.systemd import Notifier
from penstock.broker.security.generated_secrets import (
    SECRET_FILE,
    drawn_password,
    embedded_password,
    shared_secret,
)
from penstock.broker.supervision.machine import MachineDir, folder_of, planned, take_machine_dir
from penstock.broker.supervision.process_monitor import ProcessMonitor, ProcessState
from penstock.broker.supervision.supervised import ConfigHandoff

_log = logging.getLogger("penstock.supervisor")

SUPERVISOR_ORDER_MS = 20_000  # brokers of one machine stop one after the other; after it, all remaining ones at once
_SUPERVISOR_STOP_MS = 10_000  # a broker told to stop is killed after it


def run_machine(config: BrokerConfig, *, ready: Callable[[str, str], None]) -> int:
    """Run `config.brokers` brokers until SIGTERM or SIGINT and return the exit code. Blocks; one call per process.

    `ready` gets the addresses for clients, and the URL of NATS. Raise ConfigError if the settings do not fit the
    folder.
    """
    try:
        return asyncio.run(_Supervisor(config, ready).run())
    except ConfigError:
        raise
    except (PenstockError, OSError) as error:
        _log.error("%s", error)
        return 1


@dataclass(slots=True)
class _Supervisor:
    config: BrokerConfig
    ready: Callable[[str, str], None]
    _keepers: list[ProcessMonitor] = field(default_factory=list)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _stopping: asyncio.Event = field(default_factory=asyncio.Event)
    _is_clean: bool = True

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        on_signals(loop, (signal.SIGTERM, signal.SIGINT), self._told_to_stop)
        if self.config.tls or self.config.encryption_keys_file is not None:
            on_signals(loop, (signal.SIGHUP,), self._told_to_reload)
        notifier = Notifier(os.environ)
        folder = take_machine_dir(self.config.data_dir)
        embedded: EmbeddedNats | None = None
        try:
            configs = self._planned(folder)
            if self.config.nats is None:
                password = embedded_password(
                    self.config.data_dir, (one.data_dir for one in configs), auth=self.config.auth
                )
                embedded = await EmbeddedNats.start(
                    data_dir=self.config.data_dir,
                    port=self.config.nats_port,
                    monitor_port=self.config.nats_monitor_port,
                    password=password,
                )
                configs = [replace(one, nats=(embedded.server,), nats_leaf=(embedded.leaf_server,)) for one in configs]
            return await self._keep(configs, notifier)
        finally:
            if embedded is not None:
                await embedded.stop()
            folder.release()

    def _planned(self, folder: MachineDir) -> list[BrokerConfig]:
        config = self.config
        configs, remembered = planned(config, folder.remembered)
        folder.remember(remembered)
        # for its errors only; each broker logs the advice
        admin_password_advice(config, [one.data_dir for one in configs])
        if config.voters or config.join:  # then secret and password are set by the operator, the same on all machines
            return configs
        secret, password = config.cluster_secret, config.admin_password
        if secret is None and (config.auth or (folder.path / SECRET_FILE).exists()):
            secret = shared_secret(folder.path)  # brokers that have once used a secret require it at every start
        if config.auth and password is None:
            password = drawn_password(folder.path)[0]
            _log.info("the password of the user admin is in %s", folder.path / ADMIN_CREDENTIALS_FILE)
        return [replace(one, cluster_secret=secret, admin_password=password) for one in configs]

    def _told_to_stop(self) -> None:
        self._stopping.set()
        self._changed.set()

    def _told_to_reload(self) -> None:
        for keeper in self._keepers:
            keeper.reload()

    # The brokers

    async def _keep(self, configs: list[BrokerConfig], notifier: Notifier) -> int:
        cores = _cores(len(configs)) if self.config.pin else [None] * len(configs)
        colour = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
        self._keepers = [
            ProcessMonitor(folder_of(one.broker_id), ConfigHandoff(one, core, colour), self._write, self._changed.set)
            for one, core in zip(configs, cores, strict=True)
        ]
        tasks = [asyncio.create_task(keeper.run(), name=keeper.name) for keeper in self._keepers]
        try:
            code = await self._watch(configs, notifier, tasks)
            notifier.stopping()
            await self._stop()
            return code or (0 if self._is_clean else 1)
        finally:
            for keeper in self._keepers:
                await keeper.stop(0)  # no process may stay behind
            await asyncio.wait(tasks)

    async def _watch(self, configs: list[BrokerConfig], notifier: Notifier, tasks: list[asyncio.Task[None]]) -> int:
        """Wait until told to stop and return 0, or return the exit code if no broker can be started."""
        is_ready, status = False, ""
        while not self._stopping.is_set():
            await self._changed.wait()
            self._changed.clear()
            for task in tasks:
                if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                    raise error
            serving = sum(keeper.state is ProcessState.SERVES for keeper in self._keepers)
            if serving and not is_ready and all(_is_settled(keeper) for keeper in self._keepers):
                is_ready = True
                self._announce(configs, notifier)
            if status != (status := f"{serving} of {len(self._keepers)} brokers serve"):
                notifier.status(status)
            if not is_ready and all(
                keeper.is_in_trouble and keeper.state is ProcessState.ENDED for keeper in self._keepers
            ):
                _log.error("none of the %d brokers starts", len(self._keepers))
                return max(keeper.last_code if keeper.last_code > 0 else 1 for keeper in self._keepers)
        return 0

    def _announce(self, configs: list[BrokerConfig], notifier: Notifier) -> None:
        clients = ",".join(str(one.advertise or one.listen) for one in configs)
        nats = ",".join(map(str, configs[0].nats or ()))
        self.ready(clients, nats)
        notifier.ready(f"serving clients on {clients}, NATS at {nats}")

    async def _stop(self) -> None:
        """Stop one broker after the other, the last one first; all at once when that takes too long."""
        _log.info("stopping")
        for keeper in self._keepers:
            keeper.will_stop()
        left = list(self._keepers)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SUPERVISOR_ORDER_MS / 1_000):
                while left:
                    self._is_clean &= await left[-1].stop(_SUPERVISOR_STOP_MS)
                    left.pop()
        if left:
            _log.warning("the brokers do not stop one after the other in time: the last %d stop together", len(left))
            ends = await asyncio.gather(*(keeper.stop(_SUPERVISOR_STOP_MS) for keeper in left))
            self._is_clean &= all(ends)
        _log.info("stopped")

    # Its log

    def _write(self, name: str, line: bytes) -> None:
        """Write a line of a broker's log, with its name."""
        with contextlib.suppress(OSError):  # a closed stderr is no reason to stop
            if self.config.log_format != "json":
                sys.stderr.buffer.write(b"%b | %b\n" % (name.encode(), line))
            elif line.startswith(b'{"'):
                sys.stderr.buffer.write(line + b"\n")
            else:  # from an interpreter that failed before the log was configured
                broker = int(name.rpartition("-")[2])
                _log.warning("%s", line.decode("utf-8", "backslashreplace"), extra={"broker": broker})
            sys.stderr.buffer.flush()


def _is_settled(keeper: ProcessMonitor) -> bool:
    return keeper.state is ProcessState.SERVES or keeper.is_in_trouble


def _cores(count: int) -> list[int | None]:
    """Return a core for each broker, or None for all if there are too few."""
    available = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if len(available) < count:
        _log.warning("%d brokers are not kept on cores of their own: there are %d", count, len(available))
        return [None] * count
    return list(available[:count])
