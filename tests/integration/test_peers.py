"""Two brokers that ask each other, each with its node, its driver and its sockets."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

from penstock.base.errors import ErrorCode, OperationalError, RemoteError
from penstock.base.ids import BrokerId
from penstock.messages import AwaitMetadataRequest, AwaitMetadataResponse, Response
from penstock.node.step import Step
from penstock.vfs.real import RealVfs
from tests.broker_process import eventually, running_nats
from tests.integration.in_process import InProcess, broker_in_process

FIRST, SECOND = BrokerId(1), BrokerId(2)
TIMEOUT_S = 60.0


class Asked:
    """Asks a peer as a part of the node does, and waits for what it hears."""

    def __init__(self, broker: InProcess) -> None:
        self.driver = broker.driver
        self.peers = broker.driver._node._peers

    async def asked(self, broker_id: BrokerId) -> Response | RemoteError:
        """What comes of asking whether it has heard of nothing."""
        loop = asyncio.get_running_loop()
        heard: asyncio.Future[Response | RemoteError] = loop.create_future()
        request = AwaitMetadataRequest(index=0, timeout_ms=1_000)
        self.peers.send(broker_id, request, done=lambda response, raw: heard.set_result(response))
        self.driver.schedule()
        async with asyncio.timeout(TIMEOUT_S):
            return await heard

    async def until_up(self, broker_id: BrokerId) -> AwaitMetadataResponse:
        """Ask until there is an answer."""

        async def look() -> AwaitMetadataResponse | None:
            answer = await self.asked(broker_id)
            if isinstance(answer, RemoteError):
                assert answer.code == ErrorCode.BROKER_UNAVAILABLE
                return None
            assert isinstance(answer, AwaitMetadataResponse)
            return answer

        answer = await eventually(look, f"broker {broker_id} answers")
        assert answer is not None
        return answer


async def test_two_brokers_ask_each_other_and_notice_when_one_stops(tmp_path: Path) -> None:
    with running_nats(tmp_path / "nats") as nats_server:
        async with broker_in_process(RealVfs(tmp_path / "1"), nats_server.url, cluster_id="c") as first:
            asking = Asked(first)
            second_vfs = RealVfs(tmp_path / "2")
            async with broker_in_process(second_vfs, nats_server.url, broker_id=2, cluster_id="c") as second:
                for broker, other, address in ((first, SECOND, second.address), (second, FIRST, first.address)):
                    broker.driver.do(Step(peer_addresses=[(other, address)]))
                await asking.until_up(SECOND)
                await Asked(second).until_up(FIRST)
                assert list(second.server.peers) == [FIRST]
                many = await asyncio.gather(*(asking.asked(SECOND) for _ in range(500)))
                assert all(isinstance(answer, AwaitMetadataResponse) for answer in many)
            answer = await asking.asked(SECOND)
            assert isinstance(answer, RemoteError)
            assert answer.code == ErrorCode.BROKER_UNAVAILABLE

            async def is_gone() -> bool:
                return first.server.peers == {}

            await eventually(is_gone, "its connection is closed here, too")


async def test_a_cluster_that_has_become_known_is_kept_by_a_disk_thread_and_told_to_peers(tmp_path: Path) -> None:
    kept: list[tuple[str, bool]] = []
    came = threading.Event()

    def remember(cluster_id: str) -> None:
        kept.append((cluster_id, threading.current_thread() is threading.main_thread()))
        came.set()

    with running_nats(tmp_path / "nats") as nats_server:
        async with broker_in_process(RealVfs(tmp_path / "1"), nats_server.url, remember_cluster=remember) as broker:
            assert await asyncio.to_thread(came.wait, TIMEOUT_S)
            assert kept == [("disk-1", False)]  # alone, it has formed a cluster of its own
            assert broker.driver.peers.hello.cluster_id == "disk-1"


async def test_a_broker_of_another_cluster_than_its_disk_says_so_to_its_owner(tmp_path: Path) -> None:
    failures: list[BaseException] = []
    told = asyncio.Event()

    def remember(cluster_id: str) -> None:
        raise OperationalError("it belongs to cluster b")

    def failed(error: BaseException) -> None:
        failures.append(error)
        told.set()

    with running_nats(tmp_path / "nats") as nats_server:
        vfs = RealVfs(tmp_path / "1")
        async with broker_in_process(vfs, nats_server.url, cluster_id="b", remember_cluster=remember) as broker:
            broker.driver._failed = failed
            broker.driver.do(Step(cluster_id="c"))
            async with asyncio.timeout(TIMEOUT_S):
                await told.wait()
    assert [str(failure) for failure in failures] == ["it belongs to cluster b"]
