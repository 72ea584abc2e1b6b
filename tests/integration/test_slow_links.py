"""Three real brokers whose links carry 1 MB/s while it matters: what is large takes its time, and arrives."""

from __future__ import annotations

import json
from pathlib import Path

from tests.broker_process import running_nats
from tests.extent import needs_time
from tests.integration.clusters import ClusterProcesses
from tests.integration.publishers import connected_to
from tests.integration.relay import relays
from tests.ports import free_ports

BYTES_PER_S = 1_000_000
QUICK = 1_000_000_000
NATS_CONFIG = "max_payload: 16777216\nmax_pending: 67108864\n"


class SlowCluster(ClusterProcesses):
    """Brokers that reach each other through relays; clients reach them directly."""

    def place(self, count: int) -> None:
        super().place(count)
        self.relayed = {}
        for broker, port in zip(self.brokers.values(), free_ports(count), strict=True):
            known = int(broker.listen.rpartition(":")[2])
            self.relayed[known] = port
            broker.listen = broker.client_address = f"127.0.0.1:{port}"
            broker.arguments += ["--advertise", f"127.0.0.1:{known}"]


@needs_time
async def test_a_large_message_is_acked_by_all_replicas_over_slow_links(tmp_path: Path) -> None:
    with running_nats(tmp_path / "nats", NATS_CONFIG) as server:
        cluster = SlowCluster(tmp_path, server, 3)
        async with relays(cluster.relayed, QUICK) as links:
            try:
                cluster.start()
                await cluster.all_live()
                async with cluster.client(1) as client, connected_to(server.url) as connection:
                    await client.create_stream("files", "files.>", replicas=3, min_isr=2)
                    before = await cluster.in_sync("files", {1, 2, 3}, 1)
                    payload = bytes(range(250)) * 32_000
                    for link in links:
                        link.bytes_per_s, link.passed_bytes = BYTES_PER_S, 0
                    reply = json.loads((await connection.request("files.a", payload, timeout=14)).data)
                    assert reply.get("replicas") == 3, reply
                    came_bytes = sum(link.passed_bytes for link in links)
                    assert came_bytes < 2.5 * len(payload), "it was sent more than once to each"
                    for link in links:
                        link.bytes_per_s = QUICK
                    after = await cluster.partition("files", 1)
                    assert after is not None
                    assert (set(after.isr), after.leader_epoch) == ({1, 2, 3}, before.leader_epoch)
                    values = [message.value async for message in client.messages("files")]
                    assert values == [payload]
            finally:
                print(cluster.said)
                cluster.end()
