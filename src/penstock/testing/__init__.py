"""Test your own producers and consumers on a simulated cluster, with faults drawn from a seed.

    async def test_my_service(penstock_cluster):
        async with penstock.aio.connect() as client:
            await client.create_stream("orders", "orders.>")
            await client.publish("orders.eu", b"42", retries=5)

The package registers the fixture with pytest; without pytest: `Cluster(seed=7, faults=True).run(coroutine())`.

| module       | what it does                                                               |
|--------------|----------------------------------------------------------------------------|
| `cluster`    | the cluster: queries and actions of a test                                 |
| `program`    | a user's program that runs, is killed, and is restarted                    |
| `connecting` | resolves the addresses that a program uses                                 |
| `faults`     | the kinds of faults, and how they are drawn                                |
| `promises`   | checks Penstock's guarantees                                               |
| `loop`       | asyncio on simulated time                                                  |
| `transport`  | asyncio's transports on the simulated network                              |
| `socket_api` | the brokers' socket protocol, byte by byte                                 |
| `chance`     | simulated clocks and random numbers                                        |
| `watchdog`   | detects programs that block the simulation in real time                    |
| `where`      | locates the line at which a program waits                                  |
| `plugin`     | the fixture `penstock_cluster`, the marker, the options, the report        |

Names are imported on first use, because pytest imports the plugin in every run.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.testing.cluster import Cluster as Cluster
    from penstock.testing.errors import NotLiveError as NotLiveError
    from penstock.testing.errors import NotSimulatedError as NotSimulatedError
    from penstock.testing.errors import ProgramError as ProgramError
    from penstock.testing.errors import SpinningError as SpinningError
    from penstock.testing.errors import StuckError as StuckError
    from penstock.testing.errors import ViolationError as ViolationError
    from penstock.testing.faults import Fault as Fault
    from penstock.testing.program import Program as Program

_PLACES = {
    "Cluster": "penstock.testing.cluster",
    "Fault": "penstock.testing.faults",
    "NotLiveError": "penstock.testing.errors",
    "NotSimulatedError": "penstock.testing.errors",
    "Program": "penstock.testing.program",
    "ProgramError": "penstock.testing.errors",
    "SpinningError": "penstock.testing.errors",
    "StuckError": "penstock.testing.errors",
    "ViolationError": "penstock.testing.errors",
}

__all__ = [
    "Cluster",
    "Fault",
    "NotLiveError",
    "NotSimulatedError",
    "Program",
    "ProgramError",
    "SpinningError",
    "StuckError",
    "ViolationError",
]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_PLACES[name]), name)
