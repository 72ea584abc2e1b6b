"""Test your own producers and consumers on a simulated cluster, under faults that a seed decides.

    async def test_my_service(penstock_cluster):
        async with penstock.aio.connect() as client:
            await client.create_stream("orders", "orders.>")
            await client.publish("orders.eu", b"42", retries=5)

The fixture comes with the package where pytest is; without pytest: `Cluster(seed=7, faults=True).run(coroutine())`.

| module       | what it does                                                               |
|--------------|----------------------------------------------------------------------------|
| `cluster`    | the cluster, what a test asks of it and does to it                         |
| `program`    | a program of the user's: it runs, is killed, is started again              |
| `connecting` | what its addresses mean                                                    |
| `faults`     | what goes wrong, and how it is drawn                                       |
| `promises`   | what Penstock promised, and whether it holds                               |
| `loop`       | asyncio on simulated time                                                  |
| `transport`  | asyncio's transports on the simulated network                              |
| `socket_api` | the brokers' frames, byte by byte                                          |
| `chance`     | clocks and random numbers                                                  |
| `watchdog`   | what holds the simulation up in real time                                  |
| `where`      | where a program stands                                                     |
| `plugin`     | the fixture `penstock_cluster`, the marker, the options, the report        |

Names are imported when they are first used: pytest imports the plugin in every run.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.sim.violation import ViolationError as ViolationError
    from penstock.testing.cluster import Cluster as Cluster
    from penstock.testing.errors import NotLiveError as NotLiveError
    from penstock.testing.errors import NotSimulatedError as NotSimulatedError
    from penstock.testing.errors import ProgramError as ProgramError
    from penstock.testing.errors import SpinningError as SpinningError
    from penstock.testing.errors import StuckError as StuckError
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
    "ViolationError": "penstock.sim.violation",
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
