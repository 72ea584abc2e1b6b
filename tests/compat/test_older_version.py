"""An earlier version and this one, side by side: brokers that are upgraded one by one, clients of either with either.

The earlier ones are sources that run as plain Python, for nothing of them is compiled: that of 0.1.0, an archive in
`older/`, and that of the last release, by its tag in git. Where a clone has no tag, its tests are skipped.
"""

from __future__ import annotations

import asyncio
import inspect
import io
import json
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import aio, ops
from penstock.base.config import StreamConfig
from penstock.base.errors import ErrorCode, RemoteError
from penstock.client.users import password_credential, rule
from penstock.commitlog import Log, LogConfig, LogFolder, SubjectQueries, SubjectRow
from penstock.metadata import feature_levels, feature_versions
from penstock.metadata.commands import Command
from penstock.vfs.real import RealVfs
from tests.broker_process import DEADLINE_S, BrokerProcess, broker_environment, eventually
from tests.extent import each_change, needs_time
from tests.integration.clusters import ClusterProcesses, check, load, running_cluster
from tests.logs import clean_all, save
from tests.property.test_subject_queries import rows_of, table
from tests.subjects import append_on

OLDER = Path(__file__).parent / "older"
ROOT = Path(__file__).resolve().parents[2]
RELEASED = "v0.3.0"
ACKS = 100
PASSWORD = "long enough for a test"
COUNT = 200  # as in older/use.py


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """The source of 0.1.0, or of the tag that a test asks for."""
    folder = tmp_path_factory.mktemp("older")
    if (tag := getattr(request, "param", None)) is None:
        with tarfile.open(OLDER / "penstock.tar.bz2") as archive:
            archive.extractall(folder, filter="data")
        return folder
    git = ["git", "-C", str(ROOT), "archive", "--format=tar", f"{tag}:src", "penstock"]
    done = subprocess.run(git, capture_output=True, timeout=60, check=False)
    if done.returncode != 0:
        pytest.skip(f"this clone has no tag {tag}: git fetch --tags")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder


EACH = pytest.mark.parametrize("older", [None, RELEASED], ids=["0.1.0", RELEASED], indirect=True)


def version_of(older: Path) -> str:
    (found,) = re.findall(r'^__version__ = "([^"]+)"', (older / "penstock/__init__.py").read_text(), re.MULTILINE)
    return str(found)


def make_older(broker: BrokerProcess, older: Path) -> None:
    """Its next start is that of the version before."""
    has_commands = (older / "penstock" / "cli").is_dir()
    broker.program = ("-m", "penstock", "serve") if has_commands else (str(OLDER / "serve.py"),)
    broker.environment = broker_environment({"PYTHONPATH": str(older)})


def upgrade(broker: BrokerProcess) -> None:
    """Its next start is that of this version."""
    fresh = BrokerProcess(broker.data_dir)
    broker.program, broker.environment = fresh.program, fresh.environment


def start_again(broker: BrokerProcess) -> None:
    """SIGTERM, and the start of whatever it is to be now."""
    assert broker.stop() == 0, broker.said
    broker.start()


@pytest.fixture
def cluster(tmp_path: Path, older: Path) -> Iterator[ClusterProcesses]:
    """Three brokers of the version before, that run."""
    with running_cluster(tmp_path, started=False) as brokers:
        for broker in brokers.brokers.values():
            make_older(broker, older)
        brokers.start()
        try:
            yield brokers
        finally:
            print(brokers.said)  # shown where a test fails


class Group:
    """A member of a consumer group, which commits what it has seen."""

    def __init__(self, client: aio.Client) -> None:
        self.seen: set[int] = set()
        self.task = asyncio.create_task(self._consume(client))

    async def _consume(self, client: aio.Client) -> None:
        async with client.consumer(
            "orders", group="mail", follow=True, checkpoint_interval=0.2, timeout=DEADLINE_S
        ) as consumer:
            async for batch in consumer:
                self.seen.update(int(value) for value in batch.column("value").to_pylist())

    async def has_seen(self, numbers: set[int]) -> None:
        async def look() -> bool:
            assert not self.task.done(), self.task
            return numbers <= self.seen

        await eventually(look, "the group has seen all that was acked")


@asynccontextmanager
async def consuming(client: aio.Client) -> AsyncIterator[Group]:
    group = Group(client)
    try:
        yield group
    finally:
        group.task.cancel()
        await asyncio.gather(group.task, return_exceptions=True)


async def make_administrator(client: aio.Client) -> None:
    """What the version before does not know: a user."""
    await client.users.create("ann", password_credential(PASSWORD), rules=[rule("admin")])


@needs_time
@EACH
async def test_brokers_are_upgraded_one_by_one_under_load(cluster: ClusterProcesses, older: Path) -> None:
    knows_users = feature_levels.version_of(version_of(older)) >= (0, 2)
    await cluster.all_live()
    async with cluster.client(1) as client:
        await client.create_stream("orders", "orders.>", replicas=3)
        async with consuming(client) as group, load(cluster.nats.url, "orders.a") as sent:
            await sent.acks(ACKS)
            for number, broker in cluster.brokers.items():
                upgrade(broker)
                start_again(broker)
                await cluster.all_live()
                await cluster.in_sync("orders", {1, 2, 3}, number)
                await sent.acks(ACKS)
                if number < 3 and not knows_users:
                    # Of whichever version the metadata leader is: nobody tells the others what they do not know.
                    for asked in (1, 3):
                        async with cluster.client(asked) as other:
                            with pytest.raises(RemoteError) as raised:
                                await make_administrator(other)
                        assert raised.value.code == ErrorCode.UNSUPPORTED_VERSION, raised.value
            await sent.stop()
            await group.has_seen(set(sent.acked))
        await check(client, "orders", sent)
        versions = {one.broker_version for one in (await client.status()).brokers}
        assert versions == {penstock.__version__}


_TOLD = """
import asyncio, sys
from penstock import aio
async def told():
    async with await aio.connect(sys.argv[1]) as client:
        info = await client.stream("orders")
        print(info.config.max_messages, [one.offset async for one in client.messages("orders")])
asyncio.run(told())
"""


@needs_time
async def test_a_copy_waits_for_the_last_broker_and_an_older_client_reads_a_suspended_stream(
    cluster: ClusterProcesses, older: Path
) -> None:
    def copy(target: str) -> None:
        with penstock.connect(broker.client_address) as client:
            ops.copy_stream(client, "orders", target)

    await cluster.all_live()
    async with cluster.client(1) as client:
        for name in ("orders", "target"):
            await client.create_stream(name, f"{name}.*", max_messages=3)
        await client.append("orders", [{"subject": "orders.a", "value": "1"}] * 3)
        await client.pause_stream("target")
        leads = (await client.status()).metadata_leader
    upgraded = sorted(cluster.brokers.values(), key=lambda one: one is cluster.brokers[leads or 1])
    for broker in upgraded:
        for target in ("copy", "target"):
            with pytest.raises(RemoteError) as raised:
                await asyncio.to_thread(copy, target)
            assert raised.value.code == ErrorCode.UNSUPPORTED_VERSION, raised.value
            assert "upgrade" in str(raised.value)
        async with await broker.client() as client:
            with pytest.raises(RemoteError) as raised:
                await client.alter_stream("orders", suspend_deletion="yes")
            assert raised.value.code == ErrorCode.UNSUPPORTED_VERSION, raised.value
        async with await broker.client() as client:
            assert [info.name for info in await client.streams()] == ["orders", "target"]
            assert (await client.stream("target")).messages == 0
        upgrade(broker)
        start_again(broker)
        await cluster.all_live()
    await asyncio.to_thread(copy, "copy")
    async with cluster.client(1) as client:
        assert len([one async for one in client.messages("copy")]) == 3
        await client.alter_stream("orders", suspend_deletion="yes")
        await client.append("orders", [{"subject": "orders.a", "value": "1"}] * 2)
    for client_address in (one.client_address for one in cluster.brokers.values()):
        command = [sys.executable, "-W", "error", "-c", _TOLD, client_address]
        environment = broker_environment({"PYTHONPATH": str(older)})
        done = await asyncio.to_thread(subprocess.run, command, env=environment, capture_output=True, text=True)
        assert done.stdout == "3 [0, 1, 2, 3, 4]\n", done.stderr


SCHEMA = penstock.Schema(penstock.SchemaKind.AVRO, '{"type":"record","name":"Order","fields":[]}')


async def refusal(request: Awaitable[object]) -> str:
    """The error of a request that is not known yet, somewhere or at this level."""
    with pytest.raises(RemoteError) as raised:
        await request
    assert raised.value.code == ErrorCode.UNSUPPORTED_VERSION, raised.value
    return raised.value.message


async def check_refused(cluster: ClusterProcesses, upgraded: int) -> None:
    """Whichever broker is asked: a new feature waits for the level, and the level for the brokers that are older."""
    for asked in cluster.brokers:
        async with cluster.client(asked) as client:
            feature = await refusal(client.register_schema("orders", SCHEMA))
            level = await refusal(client.raise_feature_level())
            assert (await client.schemas("orders")).versions == ()
        if asked <= upgraded:
            assert "the registry of schemas needs feature level 0.4; the cluster is at 0.3: run `penst" in feature
            assert f"broker {upgraded + 1} (0.3.0)" in level


@needs_time
@pytest.mark.parametrize("older", [RELEASED], indirect=True)
async def test_the_feature_level_is_raised_after_an_upgrade_under_load(cluster: ClusterProcesses, older: Path) -> None:
    async def restarted(number: int) -> None:
        start_again(cluster.brokers[number])
        await cluster.all_live()
        await cluster.in_sync("orders", {1, 2, 3}, number)
        await sent.acks(ACKS)

    await cluster.all_live()
    async with cluster.client(1) as client:
        await client.create_stream("orders", "orders.>", replicas=3)
        async with load(cluster.nats.url, "orders.a") as sent:
            for number, broker in cluster.brokers.items():
                await check_refused(cluster, number - 1)
                upgrade(broker)
                await restarted(number)
            assert "needs feature level 0.4" in await refusal(client.register_schema("orders", SCHEMA))
            make_older(cluster.brokers[2], older)  # as long as the level was not raised
            await restarted(2)
            assert "broker 2 (0.3.0)" in await refusal(client.raise_feature_level())
            upgrade(cluster.brokers[2])
            await restarted(2)
            assert (await client.status()).feature_level == "0.3"
            assert await client.raise_feature_level("0.4") == "0.4"
            assert (await client.register_schema("orders", SCHEMA)).number == 1
            assert cluster.brokers[3].stop() == 0, cluster.brokers[3].said
            make_older(cluster.brokers[3], older)
            cluster.brokers[3].launch()
            assert await asyncio.to_thread(cluster.brokers[3].wait) == 1
            said = cluster.brokers[3].said
            assert "the metadata has something that this version does not know: upgrade this broker" in said
            assert "Traceback" not in said
            await sent.acks(ACKS)
            upgrade(cluster.brokers[3])
            cluster.brokers[3].start()
            await cluster.in_sync("orders", {1, 2, 3}, 3)
            await sent.acks(ACKS)
            await sent.stop()
        await check(client, "orders", sent)
    for number in cluster.brokers:
        async with cluster.client(number) as client:
            assert (await client.status()).feature_level == "0.4"
            assert len((await client.schemas("orders")).versions) == 1


@needs_time
@pytest.mark.parametrize("older", [RELEASED], indirect=True)
async def test_brokers_of_two_versions_form_a_cluster_at_the_level_of_the_older_one(
    tmp_path: Path, older: Path
) -> None:
    with running_cluster(tmp_path, started=False) as brokers:
        for number in (2, 3):  # without one of which no cluster is formed
            make_older(brokers.brokers[number], older)
        brokers.start()
        await brokers.all_live()
        async with brokers.client(1) as client:
            assert (await client.status()).feature_level == "0.3"
            await client.create_stream("orders", "orders.>", replicas=3)
        await brokers.in_sync("orders", {1, 2, 3}, 1)


@needs_time
@pytest.mark.parametrize("older", [RELEASED], indirect=True)
async def test_all_brokers_go_back_as_long_as_the_feature_level_was_not_raised(
    cluster: ClusterProcesses, older: Path
) -> None:
    await cluster.all_live()
    async with cluster.client(1) as client:
        await client.create_stream("orders", "orders.>", replicas=3)
        async with load(cluster.nats.url, "orders.a") as sent:
            for version in (penstock.__version__, version_of(older)):
                for number, broker in cluster.brokers.items():
                    if version == penstock.__version__:
                        upgrade(broker)
                    else:
                        make_older(broker, older)
                    start_again(broker)
                    await cluster.all_live()
                    await cluster.in_sync("orders", {1, 2, 3}, number)
                    await sent.acks(ACKS)
                name = f"of-{version[:3].replace('.', '-')}"
                await client.create_stream(name, f"{name}.>", replicas=3)
                assert {one.broker_version for one in (await client.status()).brokers} == {version}
            await sent.stop()
        await check(client, "orders", sent)
        assert [info.name for info in await client.streams()] == ["of-0-3", "of-0-4", "orders"]


@needs_time
async def test_what_is_new_can_be_used_once_all_are_upgraded(cluster: ClusterProcesses) -> None:
    await cluster.all_live()
    # A user needs brokers that know each other; those of the version before have no such setting.
    for broker in cluster.brokers.values():
        upgrade(broker)
        start_again(broker)
        await cluster.all_live()
    for broker in cluster.brokers.values():
        broker.environment["PENSTOCK_CLUSTER_SECRET"] = "known to all brokers, and to nobody else"
        start_again(broker)
        await cluster.all_live()
    async with cluster.client(1) as client:
        await make_administrator(client)
    async with await aio.connect(
        cluster.brokers[2].client_address, credentials=penstock.Credentials("ann", PASSWORD)
    ) as client:
        info = await client.create_stream("orders", "orders.>", replicas=3)
        assert set(info.partitions[0].replicas) == {1, 2, 3}


@needs_time
@EACH
async def test_a_broker_that_goes_back_finds_all_as_long_as_nothing_new_was_used(
    cluster: ClusterProcesses, older: Path
) -> None:
    await cluster.all_live()
    async with cluster.client(1) as client:
        await client.create_stream("orders", "orders.>", replicas=3)
        async with load(cluster.nats.url, "orders.a") as sent:
            await sent.acks(ACKS)
            upgrade(cluster.brokers[2])
            start_again(cluster.brokers[2])
            await cluster.in_sync("orders", {1, 2, 3}, 1)
            await sent.acks(ACKS)
            make_older(cluster.brokers[2], older)
            start_again(cluster.brokers[2])
            await cluster.in_sync("orders", {1, 2, 3}, 1)
            await sent.acks(ACKS)
            await sent.stop()
        await check(client, "orders", sent)


@needs_time
def test_a_broker_that_goes_back_is_told_what_it_does_not_know(tmp_path: Path, older: Path) -> None:
    broker = BrokerProcess(tmp_path / "data", "--auth", environment={"PENSTOCK_ADMIN_PASSWORD": PASSWORD})
    try:
        broker.start()
        assert broker.stop() == 0
        make_older(broker, older)
        broker.arguments = ["--nats-port", "0"]
        broker.launch()
        assert broker.wait() == 1
        assert "upgrade" in broker.said
        assert "Traceback" not in broker.said
        upgrade(broker)
        broker.arguments.append("--auth")
        broker.start()
    finally:
        broker.end()


def use(server: str, environment: dict[str, str]) -> dict[str, Any]:
    """What a program that uses a cluster has to tell."""
    done = subprocess.run(
        [sys.executable, "-W", "error", str(OLDER / "use.py"), server, "orders"],
        env=broker_environment(environment),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


@needs_time
@EACH
@pytest.mark.parametrize("is_older_client", [True, False], ids=["an-older-client", "an-older-cluster"])
async def test_a_client_uses_a_cluster_of_the_other_version(
    tmp_path: Path, older: Path, *, is_older_client: bool
) -> None:
    with running_cluster(tmp_path, started=False) as cluster:
        for broker in cluster.brokers.values():
            if not is_older_client:
                make_older(broker, older)
        cluster.start()
        await cluster.all_live()
        told = use(cluster.brokers[1].client_address, {"PYTHONPATH": str(older)} if is_older_client else {})
    before, now = version_of(older), penstock.__version__
    assert (told["version"], set(told["brokers"])) == ((before, {now}) if is_older_client else (now, {before}))
    assert told["offsets"] == list(range(COUNT))
    assert told["read"] == list(range(2 * COUNT))
    assert (told["got"], told["consumed"], told["replicas"]) == ("7", 2 * COUNT, 3)


_KNOWN = """
import json
from penstock.base.config import StreamConfig
from penstock.metadata import commands
known = {one.__struct_config__.tag: list(one.__struct_fields__) for one in commands.Command.__args__}
print(json.dumps({"config": list(StreamConfig.__struct_fields__), "commands": known}))
"""


@each_change
def test_what_is_new_in_the_metadata_says_since_when(older: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _KNOWN], env={**os.environ, "PYTHONPATH": str(older)}, capture_output=True, check=True
    )
    known = json.loads(done.stdout)
    commands = {str(one.__struct_config__.tag): one for one in Command.__args__}
    assert set(known["commands"]) <= set(commands)
    own = feature_levels.version_of(penstock.__version__)
    assert {one.__struct_config__.tag for one, version in feature_versions.COMMANDS.items() if version <= own} == (
        set(commands) - set(known["commands"])
    )
    for tag, fields in known["commands"].items():
        listed = feature_versions.COMMAND_FIELDS.get(commands[tag], {})
        assert set(commands[tag].__struct_fields__) - set(fields) == set(listed), tag
    assert set(StreamConfig.__struct_fields__) - set(known["config"]) == set(feature_versions.CONFIG_FIELDS)
    assert all(version <= own for version in feature_versions.COMMANDS.values())


def test_the_version_before_is_an_earlier_one(older: Path) -> None:
    assert version_of(older) == "0.1.0"
    assert feature_levels.version_of("0.1.0") < feature_levels.version_of(penstock.__version__)
    assert inspect.getfile(penstock) != str(older / "penstock" / "__init__.py")


@each_change
@pytest.mark.parametrize("older", [RELEASED], indirect=True)
def test_an_older_version_goes_on_with_a_log_whose_subjects_are_indexed(older: Path, tmp_path: Path) -> None:
    """It leaves indexes of what it truncates; this version believes none of them, and loses nothing."""
    config = LogConfig(segment_bytes=4_000, indexes_subjects=True)
    folder = LogFolder(RealVfs(str(tmp_path)), "log", 7, 0)
    log = Log.open(folder, config, now_us=0)
    log.start_epoch(1)
    for number in range(20):
        append_on(log, ["common", f"own.{number}", "common"])
    save(log)
    log.note_committed(log.log_end)
    clean_all(log)
    log.close()
    indexes = [path.name for path in sorted((tmp_path / "log").glob("*.subjects"))]
    assert len(indexes) > 1
    environment = {**os.environ, "PYTHONPATH": str(older)}
    command = [sys.executable, str(OLDER / "go_on.py"), str(tmp_path), "log"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert all(f"log/{name}: not a file of a log" in done.stdout for name in indexes)
    log = Log.open(folder, config, now_us=0, must_exist=True)
    assert not log.notices
    found, rows = SubjectQueries(log.view(), log.log_end), rows_of(log.view(), log.log_end)
    assert found.matching([">"], limit=1_000) == table(rows)
    assert found.of("own.0") == SubjectRow("own.0", 1, 1, 1)
    assert found.count(["later.*"]) == 20
    assert found.last("own.19") is None
    log.close()
