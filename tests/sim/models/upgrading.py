"""Model operator of an upgrade: restarts brokers as another version, raises the feature level, tries what is new.

| invariant                                                                   | checked at           |
|-----------------------------------------------------------------------------|----------------------|
| the level rises only: whoever has applied as much has the same level        | a turn of a broker   |
| no broker of the image is older than its level                              | a turn of a broker   |
| a broker applies no level beyond its own version                            | a turn of a broker   |
| below the level nothing new is there: no `__schemas`, which 0.4 brought     | a turn of a broker   |
| the level is raised once all brokers can, and then the new feature works    | the end              |

Rules: All brokers begin as OLDER. At any time one is restarted, cleanly or not, as either version: also as OLDER after
the level was raised, when it must not take part. The operator soon upgrades such a broker, and all at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random

from penstock.base.errors import ErrorCode, RemoteError
from penstock.messages import (
    AlterStreamRequest,
    RaiseFeatureLevelRequest,
    RaiseFeatureLevelResponse,
    Response,
    SchemasStreamRequest,
    SchemasStreamResponse,
)
from penstock.metadata.feature_levels import FIRST_LEVEL, NEWEST_LEVEL, FeatureLevel, level_of, level_text
from penstock.metadata.image import ClusterImage
from penstock.node.partition.internal_streams import schemas_config
from penstock.schemas.rows import SCHEMAS_STREAM
from penstock.testing.errors import ViolationError
from penstock.testing.simulation import inspector
from penstock.testing.simulation.broker.broker import SimBroker, Surroundings
from penstock.testing.simulation.checks.checks import Checks
from tests.sim.models.client_state import kind_of
from tests.sim.models.requests import SimClient
from tests.sim.plan.plan import Act, PlannedOperation

OLDER = "0.3.0"
NEWER = "0.4.0"
_AGAIN_US = 500_000
_LOOK_US = 3_000_000


class Upgrading:
    """The upgrade of one run. `program`: returns a client that may do everything."""

    def __init__(
        self,
        around: Surroundings,
        checks: Checks,
        brokers: Mapping[int, SimBroker],
        program: Callable[[], SimClient],
        random: Random,
    ) -> None:
        self.acts: dict[Act, Callable[[PlannedOperation], None]] = {Act.LEVEL: self._act}
        self._around = around
        self._checks = checks
        self._brokers = brokers
        self._program = program
        self._random = random
        self._raised: dict[FeatureLevel, int] = {}  # a level → the lowest index of an image that has it
        self._checked: dict[int, ClusterImage] = {}  # by broker
        self._is_over = False  # all faults have ended, and all are to be upgraded
        self._is_new_used = False
        self._schemas = 0  # id of `__schemas`
        for broker in brokers.values():
            broker.version = OLDER

    def _trace(self, what: str) -> None:
        self._around.trace.add("levels", what)

    def start(self) -> None:
        """Start after the brokers."""
        self._checks.begin(schemas_config())
        self._around.scheduler.after(_LOOK_US, self._look)

    def _look(self) -> None:
        """Upgrade the brokers that cannot take part as they are."""
        for broker in self._brokers.values():
            if broker.version == OLDER and (self._is_over or NEWEST_LEVEL in self._raised):
                self._restart(broker, NEWER, is_clean=True)
        self._around.scheduler.after(_LOOK_US, self._look)

    def _restart(self, broker: SimBroker, version: str, *, is_clean: bool) -> None:
        self._trace(f"{broker.name} becomes {version}")
        broker.version = version  # of its next start
        if is_clean:
            broker.stop()
        else:
            broker.crash()

    def _act(self, operation: PlannedOperation) -> None:
        number = operation.number
        broker = self._brokers[1 + number // 64 % len(self._brokers)]
        act = number % 64
        if act < 24:
            is_older = broker.version == OLDER
            if is_older or act < 6:
                self._restart(broker, NEWER if is_older else OLDER, is_clean=act % 3 > 0)
        elif act < 42:
            self._raise(NEWEST_LEVEL)
        elif act < 50:
            self._raise(FIRST_LEVEL)
        else:
            self._use()

    def _raise(self, level: FeatureLevel) -> None:
        def done(response: Response | RemoteError | None, _raw: bytes) -> None:
            self._trace(f"raise to {level_text(level)}: {kind_of(response)}")
            if isinstance(response, RaiseFeatureLevelResponse):
                self._around.count("answered raises of the level")

        self._program().ask(RaiseFeatureLevelRequest(feature_level=level_text(level)), done)

    def _use(self) -> None:
        """Ask for what needs the newest level."""

        def done(response: Response | RemoteError | None, _raw: bytes) -> None:
            self._trace(f"new feature: {kind_of(response)}")
            if isinstance(response, SchemasStreamResponse):
                self._schemas = int(response.stream.stream_id)
                self._checks.created[self._schemas] = self._checks.of(schemas_config().subject, 0)
                self._is_new_used = True
            elif isinstance(response, RemoteError) and response.code == ErrorCode.UNSUPPORTED_VERSION:
                self._around.count("refused by the level")

        self._program().ask(SchemasStreamRequest(timeout_ms=3_000), done)

    def allow_unclean_election(self, stream_id: int) -> bool:
        """Allow an unclean leader election; return False if the id is another stream's."""
        if self._checks.subjects.get(stream_id) != schemas_config().subject:
            return False
        history = self._checks.of(schemas_config().subject, 0)
        history.is_damaged = history.is_given_up = True
        request = AlterStreamRequest(name=SCHEMAS_STREAM, changes={"allow_unclean_election": True})
        self._program().ask(request, lambda response, _raw: self._trace(f"unclean: {kind_of(response)}"))
        return True

    def acted(self, broker: SimBroker) -> None:
        """Check the image of a broker after its turn."""
        assert broker.node is not None
        image = inspector.image(broker.node)
        if self._checked.get(broker.broker_id) is image:
            return
        self._checked[broker.broker_id] = image
        level = image.feature_level
        for other, index in self._raised.items():
            if image.index >= index and level < other:
                raise ViolationError(f"{broker.name} has level {level} at {image.index}, and {other} was at {index}")
        if image.index < self._raised.get(level, image.index + 1):
            self._raised[level] = image.index
        if level > level_of(inspector.version(broker.node)):
            raise ViolationError(f"{broker.name} of version {inspector.version(broker.node)} has applied level {level}")
        older = [one for one in image.brokers.values() if level_of(one.broker_version) < level]
        if older:
            raise ViolationError(f"broker {older[0].broker_id} of {older[0].broker_version} at level {level}")
        if SCHEMAS_STREAM in image.names and level < NEWEST_LEVEL:
            raise ViolationError(f"{SCHEMAS_STREAM} is there at level {level}")

    def waits_for(self) -> Callable[[], str]:
        """Return a function that names what is still to be done; it returns an empty text when nothing is left."""
        self._is_over = True
        self._finish()
        return lambda: "" if self._is_new_used else "a feature of the newest level"

    def _finish(self) -> None:
        if not self._is_new_used:
            self._raise(NEWEST_LEVEL)
            self._use()
            self._around.scheduler.after(_AGAIN_US, self._finish)
