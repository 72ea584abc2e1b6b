"""Load that only some plans have: users with few permissions and an administrator; an importer; schemas; expectations.

Rules: A plan without these operations runs as before they were introduced. With users, all clients log in from the
first moment: one client as the administrator made at set-up, the others as a user who keeps every right but the admin
rule, so that no request of theirs may be refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random

from penstock.testing.simulation.broker.broker import SimBroker, Surroundings
from penstock.testing.simulation.checks.checks import Checks, PartitionHistory
from tests.sim.checks.refusals import Refusals
from tests.sim.checks.rights import Rights
from tests.sim.models.admin_model import USERS, Ruling
from tests.sim.models.batching import Batching
from tests.sim.models.client_state import StreamGeneration
from tests.sim.models.consuming import Consuming
from tests.sim.models.expecting import Expecting
from tests.sim.models.gateway_load import GatewayLoad
from tests.sim.models.grouping import GroupModels
from tests.sim.models.importing import Importing
from tests.sim.models.logins import ADMIN, APP, Login
from tests.sim.models.marking import Marking
from tests.sim.models.registering import Registering
from tests.sim.models.requests import SimClient
from tests.sim.models.upgrading import Upgrading
from tests.sim.models.user_models import Tenants
from tests.sim.models.working import Working
from tests.sim.plan.plan import Act, PlannedOperation, RunPlan

_NOBODY = "nobody"


class OptionalLoad:
    """The optional load of one run. Call `programs` first, and `settle` when all else exists."""

    def __init__(
        self,
        plan: RunPlan,
        around: Surroundings,
        checks: Checks,
        brokers: Mapping[int, SimBroker],
        random: Callable[[str], Random],
    ) -> None:
        acts = {operation.act for operation in plan.operations}
        self.acts: dict[Act, Callable[[PlannedOperation], None]] = {}
        self.rights = Rights(around) if acts & {Act.ASK, Act.RULE} else None
        self._imports, self._registers, self._marks = Act.IMPORT in acts, Act.SCHEMA in acts, Act.MARK in acts
        self._upgrades, self._expects = Act.LEVEL in acts, Act.EXPECT in acts
        self._consumes = Act.CONSUME in acts
        self._batches = Act.BATCH in acts
        self.looks_up = Act.LAST in acts
        self._works, self._calls = Act.WORK in acts, Act.API in acts
        around.serves_api = self._works or self._calls
        self._around = around
        self._checks = checks
        self.brokers = brokers
        self._random = random
        self._logins = {name: Login(name) for name in (APP, *USERS)}
        self._ruling: Ruling | None = None
        self._tenants: Tenants | None = None
        self._importing: Importing | None = None
        self._registering: Registering | None = None
        self.marking: Marking | None = None
        self._consuming: Consuming | None = None
        self._upgrading: Upgrading | None = None
        self._expecting: Expecting | None = None
        self._gateway: GatewayLoad | None = None
        self._batching: Batching | None = None
        self._working: Working | None = None

    def programs(self, count: int) -> list[SimClient]:
        """Return the clients c1, c2, … of the basic load; with users, c1 is the administrator's."""
        logins = [None] * count if self.rights is None else [Login(ADMIN), *[self._logins[APP]] * (count - 1)]
        return [self._program(f"c{number}", login) for number, login in enumerate(logins, 1)]

    def _program(self, name: str, login: Login | None) -> SimClient:
        rights = self.rights
        known = (lambda: 0) if rights is None else (lambda: rights.acknowledged)
        return SimClient(name, self._around.network, self.brokers, self._random(name), login, known)

    def settle(
        self, refusals: Refusals, groups: GroupModels, programs: list[SimClient], program: Callable[[], SimClient]
    ) -> None:
        """Create the optional load. `programs`: the basic clients; `program`: returns any of them."""
        if self.rights is not None:
            users = [self._program(name, self._logins[name]) for name in USERS]
            self._users = [*users, self._program(_NOBODY, None)]
            admin = self._program(ADMIN, Login(ADMIN))
            self._ruling = Ruling(self._around, self._checks, admin, self._logins, self._random("ruling"))
            self._tenants = Tenants(self._around, self._checks, refusals, self._users, groups, program)
            self.acts |= self._ruling.acts | self._tenants.acts
        ruler = lambda: programs[0]  # noqa: E731 (only the administrator may append rows with offsets, or force schemas)
        if self._imports:
            self._importing = Importing(self._around, self._checks, ruler, self._random("import"))
            self.acts |= self._importing.acts
        if self._registers:
            self._registering = Registering(self._around, self._checks, refusals, ruler, self._random("schemas"))
            self.acts |= self._registering.acts
        if self._marks:
            chance = self._random("marking")
            self.marking = Marking(self._around, self._checks, self.brokers, ruler, chance)
            self.acts |= self.marking.acts
        if self._consumes:
            chance = self._random("consuming")
            self._consuming = Consuming(self._around, self._checks, self.brokers, ruler, chance)
            self.acts |= self._consuming.acts
        if self._expects:
            chance = self._random("expecting")
            self._expecting = Expecting(self._around, self._checks, refusals, self.brokers, ruler, chance)
            self.acts |= self._expecting.acts
        if self._batches:
            chance = self._random("batching")
            self._batching = Batching(self._around, self._checks, refusals, self.brokers, ruler, chance)
            self.acts |= self._batching.acts
        if self._works:
            chance = self._random("working")
            self._working = Working(self._around, self._checks, refusals, self.brokers, ruler, chance)
            self.acts |= self._working.acts
        if self._calls:
            chance = self._random("API")
            self._gateway = GatewayLoad(self._around, self._checks, refusals, self.brokers, ruler, chance)
            self.acts |= self._gateway.acts
        if self._upgrades:
            self._upgrading = Upgrading(self._around, self._checks, self.brokers, ruler, self._random("levels"))
            self.acts |= self._upgrading.acts

    def start(self) -> None:
        """Start after the brokers."""
        if self._ruling is not None and self._tenants is not None:
            self._ruling.start()
            self._tenants.create()
        if self._importing is not None:
            self._importing.create()
        if self._registering is not None:
            self._registering.create()
        if self.marking is not None:
            self.marking.create()
        if self._consuming is not None:
            self._consuming.create()
        if self._expecting is not None:
            self._expecting.create()
        if self._batching is not None:
            self._batching.create()
        if self._gateway is not None:
            self._gateway.create()
        if self._working is not None:
            self._working.create()
        if self._upgrading is not None:
            self._upgrading.start()

    def acted(self, broker: SimBroker) -> None:
        """Check a broker after its turn."""
        if self.rights is not None:
            self.rights.acted(broker)
        if self.marking is not None:
            self.marking.acted(broker)
        if self._consuming is not None:
            self._consuming.acted(broker)
        if self._expecting is not None:
            self._expecting.acted(broker)
        if self._batching is not None:
            self._batching.acted(broker)
        if self._gateway is not None:
            self._gateway.acted(broker)
        if self._upgrading is not None:
            self._upgrading.acted(broker)

    @property
    def generations(self) -> list[StreamGeneration]:
        """The streams that the audit also reads."""
        loads = (
            self._tenants, self._registering, self.marking, self._expecting, self._gateway, self._consuming,
            self._batching, self._working,
        )  # fmt: skip
        return [one for load in loads if load is not None for one in load.generations]

    def allow_unclean_election(self, stream_id: int) -> bool:
        """Allow an unclean leader election; return False if the stream is not part of this load."""
        there = (
            self._ruling, self._tenants, self._importing, self._registering, self.marking, self._expecting,
            self._gateway, self._upgrading, self._consuming, self._batching,
            self._working,
        )  # fmt: skip
        return any(one.allow_unclean_election(stream_id) for one in there if one is not None)

    def waits_for(self, is_stuck: Callable[[PartitionHistory], bool]) -> Callable[[], str]:
        """Return a function that names what the load still waits for; it returns an empty text when nothing is left."""
        waits: list[Callable[[], str]] = []
        if self._ruling is not None and self._tenants is not None:
            ruled, asked = self._ruling.waits_for(is_stuck), self._tenants.waits_for(self._users[0], is_stuck)
            waits = [lambda: ruled() or asked()]  # the user needs its rules first
        if self._importing is not None:
            waits.append(self._importing.waits_for(is_stuck))
        if self._registering is not None:
            waits.append(self._registering.waits_for(is_stuck))
        if self.marking is not None:
            waits.append(self.marking.waits_for(is_stuck))
        if self._consuming is not None:
            waits.append(self._consuming.waits_for(is_stuck))
        if self._expecting is not None:
            waits.append(self._expecting.waits_for(is_stuck))
        if self._batching is not None:
            waits.append(self._batching.waits_for(is_stuck))
        if self._gateway is not None:
            waits.append(self._gateway.waits_for(is_stuck))
        if self._working is not None:
            waits.append(self._working.waits_for(is_stuck))
        if self._upgrading is not None:
            waits.append(self._upgrading.waits_for())
        return lambda: ", ".join(filter(None, [one() for one in waits]))

    def check(self) -> None:
        """Check `__audit` and expectations after the audit of the logs."""
        if self._expecting is not None:
            self._expecting.check()
        if self._batching is not None:
            self._batching.check()
        if self._gateway is not None:
            self._gateway.check()
        if self._working is not None:
            self._working.check()
        if self._ruling is not None:
            self._ruling.check()
