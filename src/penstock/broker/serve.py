"""Runs one broker from start to stop: data directory, NATS, recovery, sockets, signals.

Start order: lock the data directory; recover every log; start or reach NATS; listen; join the cluster; report `ready`.
A failure undoes all earlier steps. Reads are served before `ready`. Stop order: refuse connections; drain NATS; flush;
send the last answers; close. The stop has one deadline, and a watchdog thread ends the process if the event loop misses
it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import logging
import os
import random
import resource
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import MappingProxyType

from penstock import __version__
from penstock.access import User
from penstock.access.users import ADMIN_CREDENTIALS_FILE
from penstock.base import limits
from penstock.base.addresses import Address
from penstock.base.config import Encryption
from penstock.base.errors import ConfigError, OperationalError, PenstockError
from penstock.base.importing import undisturbed
from penstock.base.shortages import shortage
from penstock.broker.config.checks import api_advice, plain_beyond_reach, voters_advice
from penstock.broker.config.config import Addresses, BrokerConfig
from penstock.broker.config.data_dir import (
    DataDir,
    admin_password_advice,
    is_alone,
    take_data_dir,
)
from penstock.broker.config.encryption import encrypted
from penstock.broker.config.settings import DEFAULT_DOMAIN, OFF, SYNC_BY_AUTO
from penstock.broker.driver import Driver, wall_clock
from penstock.broker.nats.api_link import ApiLinkEvents
from penstock.broker.nats.deliveries import LeafDeliveries
from penstock.broker.nats.leaf_link import LeafLink
from penstock.broker.nats.link import NatsLink
from penstock.broker.nats.server import EmbeddedNats
from penstock.broker.observability.http_server import bind_http
from penstock.broker.observability.metrics_collector import disk_space
from penstock.broker.observability.observability import Observability, exporter_of
from penstock.broker.peers.peers import PeerConnections
from penstock.broker.process.disk_threads import DiskThreads
from penstock.broker.process.kernel_syncs import LinuxAio, UnavailableError, try_kernel
from penstock.broker.process.running_timeout import LOOK_S, RunningTimeout
from penstock.broker.process.signals import on_signals
from penstock.broker.process.systemd import Notifier
from penstock.broker.security.authentication import BrokerAuthenticator, ClusterSecret
from penstock.broker.security.generated_secrets import drawn_password, embedded_password, first_user
from penstock.broker.security.nats_credentials import NatsAccess, NatsServer
from penstock.broker.socket_api.acceptor import bind
from penstock.broker.socket_api.server import Server
from penstock.broker.transport.tls import ServerTls
from penstock.jetstream.api import jetstream_gateway
from penstock.jetstream.gateway import ApiRights, Gateway
from penstock.jetstream.ownership import PUBLIC_PREFIX
from penstock.messages import PeerHelloRequest
from penstock.node.data_dir.known_brokers import KnownBrokers, read_known_brokers
from penstock.node.data_dir.lost_files import GUARDS
from penstock.node.node import Node
from penstock.node.settings import Settings
from penstock.node.step import Lane, Step
from penstock.vfs import Vfs
from penstock.vfs.real import RealVfs

_log = logging.getLogger("penstock.broker")

_READY_POLL_MS = 50  # interval of checks whether a starting broker is ready in the cluster
_READY_LOG_MS = 1_000  # interval of log lines about what it waits for
FREED_BYTES_MAX = 64 * limits.MIB  # freed memory kept by the C library: a few reads, their batches and their answers
_FREED_PIECE_BYTES_MAX = 32 * limits.MIB  # larger blocks are returned to the kernel at once; glibc takes no more
FIRST_LINK_TIMEOUT_MS = 5_000
"""Milliseconds that a start waits for NATS before it serves reads without it."""
STOP_TIMEOUT_S = 8.0  # bounds a hanging NATS or disk, and clients that take nothing; `docker stop` kills after 10 s
END_TIMEOUT_S = 9.0  # from the signal on: then the watchdog ends the process
LAST_WORDS_S = 0.5
_OPEN_EMBEDDED = (
    "everybody logs in to Penstock from now on, but not to the nats-server that was started with this broker: any "
    "program on this machine may publish into every stream there, and read what is published, until a restart gives it "
    "a login (docs/how-to/access.md)"
)
OPEN_FILES = 65_536  # requested, as far as the hard limit allows
_M_TRIM_THRESHOLD = -1  # from malloc.h
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
_ARENAS_MAX = 2  # the event loop's and one for all disk threads: each one keeps FREED_BYTES_MAX
THREAD_SWITCH_S = 0.0005  # a disk thread that decodes must not keep the loop waiting for the default 5 ms


@dataclass(slots=True)
class _Running:
    """The parts that a stop has to close, in reverse order."""

    data_dir: DataDir
    known: KnownBrokers | None = None  # the brokers recorded in the data directory
    driver: Driver | None = None
    embedded: EmbeddedNats | None = None
    link_tasks: list[asyncio.Task[None]] = field(default_factory=list)
    observability: Observability | None = None
    failed: asyncio.Event = field(default_factory=asyncio.Event)

    def keys_read(self) -> None:
        if self.driver is not None:
            self.driver.keys_read()


def run(
    config: BrokerConfig, *, ready: Callable[[Addresses], None], listening: Callable[[Addresses], None] = lambda _: None
) -> int:
    """Serve until SIGTERM or SIGINT and return the process's exit code. Blocks; one call per process.

    Raise ConfigError if the settings do not fit the data directory.
    `listening` is called once requests are accepted, `ready` once the broker has joined its cluster (needs others).
    """
    try:
        with undisturbed():
            # Arrow's own allocator keeps what a disk thread has freed until that thread works again.
            os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
            import pyarrow  # noqa: F401 (slow: the first append must not wait for it)

        sys.setswitchinterval(THREAD_SWITCH_S)
        keep_freed_memory()
        return asyncio.run(_serve(config, _raised_file_limit(), listening, ready))
    except ConfigError:
        raise
    except (PenstockError, OSError, ImportError, MemoryError, RuntimeError) as error:
        if (lacking := _lacking(error)) is None and not isinstance(error, PenstockError | OSError):
            raise
        _log.error("%s", lacking or error)
        return 1


def _lacking(error: BaseException) -> str | None:
    """Return which resource the system refused; None for another error. A `PenstockError` has that in its own text."""
    return None if isinstance(error, PenstockError) else shortage(error)


def _raised_file_limit() -> int:
    """Raise the limit of open files and return it. The usual 1,024 of a shell are fewer than a broker's connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # then the limit stays
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            _log.info("%d files may be open, not %d: the limit was raised", wanted, soft)
            soft = wanted
    if soft != resource.RLIM_INFINITY and soft < limits.OPEN_FILES_ADVISED:
        text = "only %d files may be open, so %d clients at most, and few streams; raise it: ulimit -n, LimitNOFILE: %d"
        _log.warning(text, soft, soft // limits.CONNECTION_FILES_SHARE, limits.OPEN_FILES_ADVISED)
    return OPEN_FILES if soft == resource.RLIM_INFINITY else soft


def keep_freed_memory() -> None:
    """Make the C library keep up to FREED_BYTES_MAX of freed memory for reuse, twice: for the event loop, and for all
    disk threads together.

    By default glibc returns large blocks to the kernel at once and faults them in again for the next batch, page by
    page, which costs more than all other work on that batch. Without glibc nothing changes.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _FREED_PIECE_BYTES_MAX)
        mallopt(_M_TRIM_THRESHOLD, FREED_BYTES_MAX)
        mallopt(_M_ARENA_MAX, _ARENAS_MAX)


@contextlib.contextmanager
def made_to_stay() -> Iterator[None]:
    """Exempt the objects made inside from garbage collection; they live as long as the process.

    A full collection stops everything while it visits all objects: modules, and the state of every stream.
    """
    gc.disable()  # otherwise it visits the streams repeatedly while they are created
    try:
        yield
        gc.collect()
        gc.freeze()
    finally:
        gc.enable()


def _end_process_after(timeout_s: float) -> None:
    """End the process after `timeout_s` unless it has ended by then. Acked messages are on disk."""

    def end() -> None:
        patience = RunningTimeout(time.monotonic, timeout_s)
        while patience.remaining_s():
            time.sleep(min(patience.left_s, LOOK_S))
        text = "the stop took longer than %.1f s: the process ends as it is; the next start recovers"
        # stderr may hang as well.
        teller = threading.Thread(target=_log.critical, args=(text, timeout_s), daemon=True)
        teller.start()
        teller.join(LAST_WORDS_S)
        os._exit(1)

    threading.Thread(target=end, name="penstock-end", daemon=True).start()


async def _serve(
    config: BrokerConfig,
    open_files_max: int,
    listening: Callable[[Addresses], None],
    ready: Callable[[Addresses], None],
) -> int:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()

    def told_to_stop() -> None:
        if not stopping.is_set():
            stopping.set()
            _end_process_after(END_TIMEOUT_S)

    on_signals(loop, (signal.SIGTERM, signal.SIGINT), told_to_stop)
    notifier = Notifier(os.environ)
    running = _Running(take_data_dir(config.data_dir, config.broker_id))
    try:
        running.known = read_known_brokers(RealVfs(config.data_dir))
        config = running.data_dir.checked(config, running.known)
        if advice := admin_password_advice(config, [config.data_dir]):
            _log.info("%s", advice)
        if is_alone(config, running.known) and "id" in config.origins:
            _log.info(
                "broker %d is a cluster of its own, with one broker; to be one of several, start it with an empty data "
                "directory and --cluster or --join",
                config.broker_id,
            )
        with made_to_stay():
            addresses = await _start(config, open_files_max, running)
        listening(addresses)
        if await _has_its_part(running, stopping, notifier):
            ready(addresses)
            notifier.ready(f"serving clients on {addresses.client}, NATS at {addresses.nats}")
        await _first_of(stopping, running.failed)
        notifier.stopping()
        _log.info("stopping")
    finally:
        is_clean = await _stop(running)
    _log.info("stopped")
    return 0 if is_clean and not running.failed.is_set() else 1


async def _first_of(*events: asyncio.Event, timeout_s: float | None = None) -> None:
    tasks = [asyncio.ensure_future(event.wait()) for event in events]
    await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()


async def _has_its_part(running: _Running, stopping: asyncio.Event, notifier: Notifier) -> bool:
    """Return True once the broker has joined its cluster; False if it is stopped or has failed before."""
    assert running.driver is not None
    loop = asyncio.get_running_loop()
    told, next_s = "", 0.0
    while waits_for := running.driver.waits_for:
        if waits_for != told and loop.time() >= next_s:
            told, next_s = waits_for, loop.time() + _READY_LOG_MS / 1_000
            _log.info("not ready yet: %s", waits_for)
            notifier.status(waits_for)
        await _first_of(stopping, running.failed, timeout_s=_READY_POLL_MS / 1_000)
        if stopping.is_set() or running.failed.is_set():
            return False
    if told:
        _log.info("ready: this broker is registered in the cluster")
    return True


def _kernel_syncs(config: BrokerConfig) -> LinuxAio | None:
    """Return the kernel's syncs; None, after a line in the log, if threads do them."""
    if config.sync_by != SYNC_BY_AUTO:
        return None
    try:
        return try_kernel(str(config.data_dir))
    except (UnavailableError, OSError) as error:
        _log.info("files are synced by threads, for the kernel cannot be asked (Linux AIO): %s", error)
        return None


def _advise(config: BrokerConfig, listens: Address) -> None:
    """Log warnings about risky settings."""
    api = api_advice(
        is_on=config.jetstream_api != OFF,
        rights=config.jetstream_rights,
        user=config.jetstream_user,
        has_users=config.auth,
    )
    here = (api, voters_advice(config.voters), plain_beyond_reach(listens, has_tls=bool(config.tls)))
    for advice in (*config.exposed, *here):
        if advice is not None:
            _log.warning("%s", advice)


async def _start(config: BrokerConfig, open_files_max: int, running: _Running) -> Addresses:
    loop = asyncio.get_running_loop()
    servers = config.nats or await _embedded(config, running)
    exporter = exporter_of(config)
    (listeners, client_address), vfs = bind(config.listen), RealVfs(config.data_dir)
    _advise(config, client_address)
    http = None if config.http is None else bind_http(config.http, is_chosen="http" in config.origins)
    settings = _settings(config, running, vfs, servers, config.advertise or client_address, open_files_max)
    node = Node(vfs, settings, random.SystemRandom())
    guarding = _guarding(config, node, settings, servers)
    driver = Driver(
        node,
        loop,
        disk=DiskThreads(loop, config.disk_threads, _kernel_syncs(config)),
        in_flight_bytes_max=config.broker_in_flight_bytes,
        embedded_nats=running.embedded is not None,
        remember_cluster=running.data_dir.remember_cluster,
        failed=lambda error: _cannot_go_on(error, running),
        disk_space=lambda: disk_space(config.data_dir),
    )
    tls = _tls(config, driver, loop)
    driver.server = Server(
        driver,
        listeners,
        loop,
        driver.elapsed_us,
        open_files_max=open_files_max,
        tls=tls,
        guard=guarding,
    )
    server = driver.server
    guarding.count(server.connections_of.__getitem__, server.make_room, server.has_share)
    driver.link = _nats_link(driver, config, servers)
    if config.jetstream_api != OFF:
        driver.api_link = _api_link(driver, config, servers)
        driver.leaf = _leaf_link(driver, config, running, node)
        driver.gateway = _gateway(node, driver, config)
        driver.have_done(Lane.QUERY, _load_arrow, lambda error: None)  # the first STREAM.INFO is not to wait for it
    step = _started(node, driver, running.data_dir)
    driver.peers = PeerConnections(
        driver,
        _introduction(settings, node),
        driver.elapsed_us,
        random.random,
        failed=lambda error: _cannot_go_on(error, running),
        dialling=(lambda host: {}) if tls is None else tls.dialling,
        guarding=guarding,
    )
    driver.do(step)
    running.driver = driver
    driver.carry_out()
    driver.server.start()
    running.observability = Observability(driver, config, http, exporter)
    await running.observability.start()
    running.link_tasks.append(asyncio.create_task(driver.link.run(), name="NATS link"))
    if driver.api_link is not None:
        running.link_tasks.append(asyncio.create_task(driver.api_link.run(), name="NATS link of the API"))
    if driver.leaf is not None:
        running.link_tasks.append(asyncio.create_task(driver.leaf.run(), name="leaf link"))
    for link_task in running.link_tasks:
        link_task.add_done_callback(lambda task: _link_ended(task, running))
    await _first_connected(driver, is_guarded=node.access.is_guarded)
    if cluster := cluster_text(config):
        _log.info("broker of a cluster: %s", cluster)
    nats = ",".join(str(server) for server in servers)
    return Addresses(client_address, nats, config.data_dir, cluster, None if http is None else http[1])


async def _embedded(config: BrokerConfig, running: _Running) -> tuple[NatsServer]:
    """Start the embedded nats-server and return its address and login."""
    password = embedded_password(config.data_dir, (config.data_dir,), auth=config.auth)
    running.embedded = await EmbeddedNats.start(
        data_dir=config.data_dir,
        port=config.nats_port,
        monitor_port=config.nats_monitor_port,
        password=password,
    )
    return (running.embedded.server,)


async def _first_connected(driver: Driver, *, is_guarded: bool) -> None:
    """Wait for NATS, at most FIRST_LINK_TIMEOUT_MS for each of two steps."""
    link = driver.link
    try:
        await link.wait_up(FIRST_LINK_TIMEOUT_MS)
        await link.wait_barrier(FIRST_LINK_TIMEOUT_MS)  # behind the driver's barrier: every subscription is confirmed
        if driver.gateway is not None and driver.gateway.node.cluster_id:  # else it may take long until there is one
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(driver.api_decided.wait(), FIRST_LINK_TIMEOUT_MS / 1_000)
            if driver.api_link is not None:
                await driver.api_link.wait_barrier(FIRST_LINK_TIMEOUT_MS)
    except OperationalError as error:
        _log.warning("%s; serving reads meanwhile, and trying on", error)
    if is_guarded and (open_nats := _open_nats(link)):
        _log.warning("%s", open_nats)


def _open_nats(link: NatsLink) -> str:
    """Return a warning if nats-server accepts clients without a login although Penstock does not; else empty."""
    if link.info is None or link.info.auth_required or link.info.tls_verify:
        return ""
    if link.server is not None and link.server.is_embedded:
        return ""  # reported once there are users
    return (
        f"everybody logs in to Penstock, but not to NATS at {link.server}: anyone who reaches it may publish into "
        "every stream there, and read what is published; give it users (docs/how-to/nats-permissions.md)"
    )


def _tls(config: BrokerConfig, driver: Driver, loop: asyncio.AbstractEventLoop) -> ServerTls | None:
    if not config.tls:
        return None
    driver.tls = ServerTls(config.tls)
    on_signals(loop, (signal.SIGHUP,), driver.reload_certificates)
    return driver.tls


def _guarding(
    config: BrokerConfig, node: Node, settings: Settings, servers: tuple[NatsServer, ...]
) -> BrokerAuthenticator:
    secret = None if config.cluster_secret is None else ClusterSecret(config.cluster_secret, secrets.token_bytes(16))
    return BrokerAuthenticator(
        node.access,
        secret,
        lambda: secrets.token_urlsafe(24),
        broker_id=settings.broker_id,
        cluster_id=lambda: node.cluster_id,
        nats_urls=settings.nats_urls,
        nats_urls_of_rulers=tuple(one.url_with_login if one.is_embedded else str(one) for one in servers),
    )


def _nats_access(config: BrokerConfig, servers: tuple[NatsServer, ...]) -> NatsAccess:
    return NatsAccess(
        servers,
        config.nats_credentials,
        config.nats_tls,
        uses_announced=not config.nats_ignore_announced,
        version=__version__,
    )


def _nats_link(driver: Driver, config: BrokerConfig, servers: tuple[NatsServer, ...]) -> NatsLink:
    access = _nats_access(config, servers)
    return NatsLink(driver, access, clock_us=lambda: wall_clock().wall_us, random=random.random)


def _api_link(driver: Driver, config: BrokerConfig, servers: tuple[NatsServer, ...]) -> NatsLink:
    return NatsLink(
        ApiLinkEvents(driver),
        _nats_access(config, servers),
        clock_us=lambda: wall_clock().wall_us,
        random=random.random,
        what="connection for JetStream's API",
        read_buffer_bytes=limits.API_READ_BUFFER_BYTES,
    )


def _load_arrow() -> None:
    """Import what counts subjects: 0.2 s of CPU, and pandas where it is installed, for which `array` looks once."""
    import pyarrow as pa
    import pyarrow.compute

    pa.array([0])


def _gateway(node: Node, driver: Driver, config: BrokerConfig) -> Gateway:
    prefixes = (f"$JS.{config.jetstream_domain}.API.", *((PUBLIC_PREFIX,) if config.jetstream_api == "auto" else ()))
    manages = config.jetstream_rights == "manage" or (
        config.jetstream_rights is None and (config.auth or not config.nats)
    )
    return jetstream_gateway(
        node,
        prefixes=prefixes,
        deliveries=LeafDeliveries(driver.leaf, node.outbox),
        new_name=lambda: secrets.token_hex(6),
        unsent_bytes=lambda: 0 if driver.api_link is None else driver.api_link.write_buffer_bytes,
        domain=config.jetstream_domain,
        rights=ApiRights(may_manage=manages, user=config.jetstream_user),
    )


def _leaf_link(driver: Driver, config: BrokerConfig, running: _Running, node: Node) -> LeafLink | None:
    """Return the link that delivers; None with an external nats-server whose leaf port is not known."""
    servers = config.nats_leaf if running.embedded is None else (running.embedded.leaf_server,)
    if not servers:
        return None

    def name() -> str:
        if not node.cluster_id:
            raise OperationalError("this broker has not joined its cluster yet")
        return f"penstock-{node.cluster_id}-{config.broker_id}"

    return LeafLink(driver, _nats_access(config, servers), driver.link, name=name, random=random.random)


def _introduction(settings: Settings, node: Node) -> PeerHelloRequest:
    """Return the peer hello by which this broker identifies itself to others."""
    return PeerHelloRequest(
        cluster_id=settings.cluster_id,
        broker_id=settings.broker_id,
        data_dir_id=settings.data_dir_id,
        broker_version=settings.broker_version,
        address=settings.address,
        process=node.process,
    )


def _ack_domain(config: BrokerConfig) -> str:
    """Return the domain that PubAcks name: one of the operator's choice."""
    is_chosen = config.jetstream_api != OFF and config.jetstream_domain != DEFAULT_DOMAIN
    return config.jetstream_domain if is_chosen else ""


def _settings(
    config: BrokerConfig,
    running: _Running,
    vfs: Vfs,
    servers: tuple[NatsServer, ...],
    address: Address,
    open_files_max: int,
) -> Settings:
    data_dir = running.data_dir
    alone = is_alone(config, running.known)
    voters = {voter.broker_id: str(voter.address) for voter in config.voters}
    if running.known is not None:
        # Log entries are not known to be committed at a start; until then these are the other brokers' addresses.
        voters = {**running.known.addresses, **voters}
    return Settings(
        broker_id=config.broker_id,
        broker_version=__version__,
        cluster_id=data_dir.cluster_id or (data_dir.id if alone else ""),
        data_dir_id=data_dir.id,
        guards=data_dir.guards,
        process=secrets.token_hex(8),
        voters=MappingProxyType({config.broker_id: str(address)} if alone else voters),
        join=tuple(map(str, config.join)),
        rack=config.rack,
        proves_brokers=config.cluster_secret is not None,
        requires_login=config.auth,
        first_user=_first_user(config),
        address=str(address),
        data_dir=str(config.data_dir.resolve()),
        nats_urls=tuple(str(server) for server in servers),
        open_nats=_OPEN_EMBEDDED if any(one.is_embedded and one.password is None for one in servers) else "",
        partition_in_flight_bytes_max=config.partition_in_flight_bytes,
        broker_in_flight_bytes_max=config.broker_in_flight_bytes,
        log_files_max=max(1, open_files_max // limits.LOG_FILES_SHARE),
        cleaner_bytes_per_s=config.cleaner_rate,
        catch_up_bytes_per_s=config.catch_up_rate,
        scrub_bytes_per_s=config.scrub_rate,
        scrub_interval_ms=config.scrub_interval,
        domain_prefix="" if config.jetstream_api == OFF else f"$JS.{config.jetstream_domain}.API.",
        ack_domain=_ack_domain(config),
        encrypted=encrypted(vfs, config, asyncio.get_running_loop(), running.keys_read),
        internal_encryption=Encryption.AES_256_GCM if config.encrypt_internal_streams else Encryption.NONE,
    )


def _first_user(config: BrokerConfig) -> Callable[[], User] | None:
    def make() -> User:
        password = config.admin_password
        if password is None:
            password, is_new = drawn_password(config.data_dir)
            file = config.data_dir / ADMIN_CREDENTIALS_FILE
            _log.info("%s the password of the user admin: %s", "drew" if is_new else "found", file)
        return first_user(password, wall_clock().wall_us, salt=secrets.token_bytes(limits.SALT_BYTES))

    return make if config.auth else None


def cluster_text(config: BrokerConfig) -> str:
    """Return this broker's id and its cluster's brokers; empty for a broker that is alone."""
    if config.voters:
        return f"id={config.broker_id} voters={','.join(map(str, config.voters))}"
    return f"id={config.broker_id} join={','.join(map(str, config.join))}" if config.join else ""


def _link_ended(task: asyncio.Task[None], running: _Running) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _part_failed(error, running)


def _cannot_go_on(error: BaseException, running: _Running) -> None:
    lacking = _lacking(error)
    if lacking is None and not isinstance(error, PenstockError | OSError):
        _part_failed(error, running)
        return
    _log.critical("the broker stops: %s", lacking or error)
    running.failed.set()


def _part_failed(error: BaseException, running: _Running) -> None:
    _log.critical("internal error (bug): the broker stops to avoid worse", exc_info=error)
    running.failed.set()


async def _stop(running: _Running) -> bool:
    """Stop everything; return True if all was closed cleanly."""
    async with RunningTimeout(asyncio.get_running_loop().time, STOP_TIMEOUT_S).running() as patience:
        return await _stop_within(running, patience)


async def _stop_within(running: _Running, patience: RunningTimeout) -> bool:
    is_clean = True
    try:
        if running.driver is not None:
            is_clean = await running.driver.stop(STOP_TIMEOUT_S * 0.9)
        for link_task in running.link_tasks:
            link_task.cancel()
        if running.link_tasks:
            await patience.waits_for(asyncio.wait(running.link_tasks))
    finally:
        if running.observability is not None:
            await running.observability.stop()
        if running.embedded is not None:
            await running.embedded.stop(max(200, int(patience.remaining_s() * 1_000)))
        _note_guards(running.data_dir)
        running.data_dir.release()
    return is_clean


def _started(node: Node, driver: Driver, data_dir: DataDir) -> Step:
    """Return the node's first step, not carried out yet."""
    step = node.start(driver.now())
    _note_guards(data_dir)
    return step


def _note_guards(data_dir: DataDir) -> None:
    """Record the guards in `penstock.json`; call only while no disk thread writes that file."""
    try:
        data_dir.remember_guards(GUARDS)
    except (OSError, ValueError) as error:
        _log.warning("cannot note in penstock.json which files the data directory has: %s", error)
