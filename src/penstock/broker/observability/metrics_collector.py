"""Metrics of a broker outside its node, as families of the metrics page, and the measurements behind them."""

from __future__ import annotations

import asyncio
import os
import platform
import resource
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from penstock.base import limits
from penstock.base.meters import Families, Family, Histogram, Sample, single
from penstock.broker.driver import Driver
from penstock.broker.observability import metrics
from penstock.broker.observability.consumer_metrics import consumer_families
from penstock.broker.observability.otlp import Exporter
from penstock.broker.process.running_timeout import RunningTimeout
from penstock.broker.security.certificates import CertificateFile
from penstock.broker.security.nats_credentials import TlsFiles
from penstock.broker.socket_api.request_meters import name_of
from penstock.hot import is_compiled
from penstock.jetstream.gateway import NO_READERS
from penstock.jetstream.partition_streams import real_ids
from penstock.node.step import Lane

_LOOP_LAG_INTERVAL_MS = 200  # interval of measurements of the event loop's lag
_STATM = Path("/proc/self/statm")
_FILES = "/proc/self/fd"
_NO_FILES = TlsFiles()


class DiskSample(NamedTuple):
    """Measurements of a disk thread. None: not available on this system."""

    free_bytes: int
    size_bytes: int
    resident_bytes: int | None
    open_files: int | None
    nats_certificates: tuple[CertificateFile, ...] = ()


class DiskProbe:
    """Measures on a WRITE disk thread: if those hang, so does this. One measurement at a time."""

    def __init__(self, driver: Driver, folder: Path, nats_tls: TlsFiles = _NO_FILES) -> None:
        self._driver = driver
        self._folder = folder
        self._nats_tls = nats_tls
        self._open: asyncio.Future[DiskSample] | None = None

    async def sample(self) -> DiskSample | None:
        """Return a measurement; None if the disk did not answer in time, or with an error."""
        if self._open is None:
            self._open = self._begin()
        look = self._open
        patience = RunningTimeout(asyncio.get_running_loop().time, limits.DISK_PROBE_TIMEOUT_MS / 1_000)
        await patience.waits_for(asyncio.wait((look,)))
        return None if not look.done() or look.exception() is not None else look.result()

    def _begin(self) -> asyncio.Future[DiskSample]:
        seen: list[DiskSample] = []
        future: asyncio.Future[DiskSample] = asyncio.get_running_loop().create_future()

        def done(error: Exception | None) -> None:
            self._open = None
            if error is None:
                future.set_result(seen[0])
            else:
                future.set_exception(error)
                future.exception()  # the waiter may have been cancelled

        self._driver.have_done(Lane.WRITE, lambda: seen.append(_look(self._folder, self._nats_tls)), done)
        return future


def disk_space(folder: Path) -> tuple[int, int]:
    """Return the free bytes of the folder's file system, for others than root, and all its bytes; blocking. OSError."""
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize


def _look(folder: Path, nats_tls: TlsFiles) -> DiskSample:
    sizes = disk_space(folder)
    resident_bytes = open_files = None
    with suppress(OSError, ValueError, IndexError):  # not on Linux
        resident_bytes = int(_STATM.read_text().split()[1]) * resource.getpagesize()
        open_files = len(os.listdir(_FILES))
    return DiskSample(*sizes, resident_bytes, open_files, nats_tls.held())


class LoopLag:
    """Delay of the event loop, measured with a timer a few times a second."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.us = Histogram.of_times()
        self._loop = loop
        self._due_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start the timer."""
        self._due_s = self._loop.time() + _LOOP_LAG_INTERVAL_MS / 1_000
        self._timer = self._loop.call_at(self._due_s, self._measure)

    def _measure(self) -> None:
        self.us.add(max(0, int((self._loop.time() - self._due_s) * 1e6)))
        self.start()

    def stop(self) -> None:
        """Stop the timer; idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class BrokerMetricsCollector:
    """The metric families. `why` returns the reason why the broker is not ready, or an empty string."""

    def __init__(
        self,
        driver: Driver,
        lag: LoopLag,
        *,
        version: str,
        broker_id: int,
        started_us: int,
        why: Callable[[], str],
        exporter: Exporter | None = None,
    ) -> None:
        self._driver = driver
        self._lag = lag
        self._why_not_ready = why
        self._started_us = started_us
        self._exporter = exporter
        self._build = (version, platform.python_version(), "compiled" if is_compiled() else "plain", str(broker_id))

    def families(self, look: DiskSample | None) -> Families:
        """Yield all families; `look`: the measurement of a disk thread, if any."""
        yield Family(metrics.BUILD_INFO, [Sample(self._build, 1)])
        yield single(metrics.READY, int(not self._why_not_ready()))
        yield from self._process(look)
        yield from self._nats()
        yield from self._clients()
        yield from self._requests()
        yield self._certificates(look)
        yield single(metrics.FAILED_LOGINS, self._driver.server.failed_logins)
        yield single(metrics.UNFINISHED_LOGINS, self._driver.server.unfinished_logins)
        usage = self._driver.server.usage
        throttled = {"delayed": usage.delayed, "refused": usage.throttled}
        yield Family(metrics.THROTTLED, [Sample((how,), count) for how, count in throttled.items()])
        yield from self._traces()

    def _certificates(self, look: DiskSample | None) -> Family:
        held = () if self._driver.tls is None else self._driver.tls.held
        held += () if look is None else look.nats_certificates
        return Family(metrics.CERTIFICATE_EXPIRES, [Sample((one.setting,), one.validity.end_us) for one in held])

    def _traces(self) -> Families:
        exporter, tracing = self._exporter, self._driver.tracing
        yield single(metrics.SPANS_EXPORTED, 0 if exporter is None else exporter.exported)
        yield single(metrics.SPANS_DROPPED, 0 if exporter is None else exporter.dropped)
        yield single(metrics.TRACES_DROPPED, 0 if tracing is None else tracing.dropped)

    def _process(self, look: DiskSample | None) -> Families:
        used = resource.getrusage(resource.RUSAGE_SELF)
        files_max, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        yield single(metrics.CPU_SECONDS, used.ru_utime + used.ru_stime)
        yield single(metrics.OPEN_FILES_MAX, files_max if files_max != resource.RLIM_INFINITY else sys.maxsize)
        yield single(metrics.START_SECONDS, self._started_us)
        yield single(metrics.LOOP_LAG_SECONDS, self._lag.us)
        yield single(metrics.DISK_ANSWERS, int(look is not None))
        yield single(metrics.DISK_WORK, self._driver.disk_work)
        if look is not None:
            yield single(metrics.DISK_FREE_BYTES, look.free_bytes)
            yield single(metrics.DISK_SIZE_BYTES, look.size_bytes)
            if look.resident_bytes is not None and look.open_files is not None:
                yield single(metrics.RESIDENT_BYTES, look.resident_bytes)
                yield single(metrics.OPEN_FILES, look.open_files)

    def _nats(self) -> Families:
        driver, link = self._driver, self._driver.link
        yield single(metrics.NATS_CONNECTED, int(link.is_up))
        yield single(metrics.NATS_DISCONNECTS, driver.reconnects)
        yield single(metrics.NATS_ANSWERS_DROPPED, driver.answers_dropped)
        yield single(metrics.NATS_MESSAGES_SKIPPED, driver.messages_skipped)
        yield single(metrics.NATS_UNANSWERABLE, driver.unanswerable)
        yield single(metrics.NATS_PAUSED, int(driver.reading_paused))
        yield single(metrics.NATS_WRITE_BYTES, link.write_buffer_bytes)
        if (leaf := driver.leaf) is not None:
            yield single(metrics.LEAF_UP, int(leaf.is_up))
            yield single(metrics.LEAF_PENDING_BYTES, leaf.pending_bytes)
            yield single(metrics.LEAF_UNDELIVERED, leaf.undelivered)
            yield single(metrics.LEAF_SUBJECTS, len(leaf.interest))
        yield from self._jetstream_api()

    def _jetstream_api(self) -> Families:
        """Yield what callers of JetStream's API asked; without samples while it is off."""
        api = self._driver.gateway
        served = {} if api is None else api.served
        requests, errors = ({}, {}) if api is None else (api.requests, api.errors)
        yield Family(metrics.API_SERVED, [Sample((prefix,), int(is_served)) for prefix, is_served in served.items()])
        decided = () if api is None else api.node.image.apis
        yield Family(metrics.API_DECISION, [Sample((one.prefix, one.state), 1) for one in decided])
        yield Family(metrics.API_REQUESTS, [Sample((name,), count) for name, count in sorted(requests.items())])
        failed = [Sample((name, str(code)), count) for (name, code), count in sorted(errors.items())]
        yield Family(metrics.API_ERRORS, failed)
        times = {} if api is None else api.seconds
        yield Family(metrics.API_SECONDS, [Sample((name,), took) for name, took in sorted(times.items())])
        yield single(metrics.API_OPEN, 0 if api is None else api.under_way)
        readers = NO_READERS if api is None else api.reader_numbers()
        yield Family(metrics.READERS, [Sample(("push",), readers.push), Sample(("pull",), readers.pull)])
        yield single(metrics.READER_PULLS, readers.pulls_waiting)
        yield single(metrics.READER_DELIVERIES, readers.delivered)
        yield single(metrics.READER_BYTES, readers.delivered_bytes)
        yield single(metrics.LETTERS_WAITING, readers.letters_waiting)
        results = {"stored": readers.letters_stored, "failed": readers.letters_failed}
        yield Family(metrics.LETTERS, [Sample((result,), count) for result, count in results.items()])
        yield single(metrics.READER_TOO_LARGE, readers.too_large)
        yield from consumer_families(iter(()) if api is None else api.stored_numbers(), self._place_of)

    def _place_of(self, api_stream_id: int) -> tuple[str, str] | None:
        """Return the name of a stream and the partition by the id in JetStream's API; None: it is deleted."""
        stream_id, partition = real_ids(api_stream_id)
        api = self._driver.gateway
        state = None if api is None else api.node.image.streams.get(stream_id)
        return None if state is None else (state.name, str(partition))

    def _clients(self) -> Families:
        server = self._driver.server
        counts = {"clients": len(server.connections) - len(server.peers), "brokers": len(server.peers)}
        buffers = {"clients": server.buffers, "brokers": server.peer_buffers}
        yield Family(metrics.CONNECTIONS, [Sample((of,), count) for of, count in counts.items()])
        yield single(metrics.CONNECTIONS_MAX, server.connections_max)
        yield Family(metrics.BUFFER_BYTES, [Sample((of,), one.used) for of, one in buffers.items()])
        yield Family(metrics.BUFFER_BYTES_MAX, [Sample((of,), one.total) for of, one in buffers.items()])
        yield single(metrics.ANSWER_FILES, server.files.used)
        yield single(metrics.DAMAGED_FRAMES, server.damaged_frames + self._driver.peers.damaged_frames)

    def _requests(self) -> Families:
        server = self._driver.server
        yield single(metrics.REQUESTS_OPEN, server.open_request_count)
        took = [Sample((name_of(api),), took) for api, took in sorted(server.requests.seconds.items())]
        yield Family(metrics.REQUEST_SECONDS, took)
        yield Family(
            metrics.REQUEST_ERRORS, [Sample(of, count) for of, count in sorted(server.requests.errors.items())]
        )
