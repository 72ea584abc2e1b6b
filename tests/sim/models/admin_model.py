"""Model administrator: creates and deletes users, grants and revokes rules, rotates secrets, and reads `__audit`.

| invariant                                                               | checked at                   |
|-------------------------------------------------------------------------|------------------------------|
| an acknowledged change is in force on all brokers (see `rights`)        | any answer                   |
| every acknowledged change is in `__audit`, with its author              | the end, after all faults    |
| `__audit` holds no change twice, and all in the order of their commits  | a read, and at the end       |
| the changes in `__audit` add up to the users and rules of the brokers   | the end, unless it has a gap |

Rules: One change of a user is in progress at a time. The outcome of an unanswered change is unknown; `__audit` shows
it. A secret that may have been rotated is kept beside the previous one. A permitted loss from the log of `__audit`, or
its corruption, ends these checks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from random import Random
from typing import Any

from penstock.access import Operation, Rule
from penstock.access.users import EVERYBODY
from penstock.base.errors import RemoteError
from penstock.base.ids import Offset, StreamId
from penstock.base.subjects import AUDIT_STREAM
from penstock.messages import (
    AlterStreamRequest,
    AlterUserRequest,
    ChangeRulesRequest,
    CreateUserRequest,
    DeleteUserRequest,
    FetchRequest,
    FetchResponse,
    MetadataRequest,
    MetadataResponse,
    Request,
    Response,
)
from penstock.messages.access import UserChangedResponse
from penstock.node.controller.audit import audit_config
from penstock.testing.errors import ViolationError
from penstock.testing.simulation import inspector
from penstock.testing.simulation.broker.broker import Surroundings
from penstock.testing.simulation.checks.checks import Checks, PartitionHistory
from penstock.testing.simulation.rows import ReadRows
from tests.sim.checks.rights import Rights
from tests.sim.models.client_state import kind_of
from tests.sim.models.logins import ADMIN, APP, Login
from tests.sim.models.requests import SimClient
from tests.sim.models.user_models import NAMES, SUBJECTS
from tests.sim.plan.plan import Act
from tests.sim.plan.plan import PlannedOperation as Planned

USERS = ("u1", "u2", "u3")
_AGAIN_US = 700_000
_ON_STREAMS = (Operation.READ, Operation.APPEND, Operation.ALTER, Operation.DELETE, Operation.COMMIT_OFFSETS)
_ALL = tuple(Rule(one, stream=name) for one in _ON_STREAMS for name in NAMES)
_SOME = (*_ALL, *_ALL, *(Rule(Operation.APPEND, subject=f"{name}.{one}") for name in NAMES for one in SUBJECTS))
_OF_EVERYBODY = (Rule(Operation.READ, stream="t*"), Rule(Operation.COMMIT_OFFSETS, stream="t*"))
_OF_APP = (
    *(Rule(one, stream=pattern) for one in _ON_STREAMS for pattern in ("*", "__offsets")),
    Rule(Operation.CREATE, subject=">"),
)


class Ruling:
    """The administrator of one run. `admin`: its client; `logins`: the credentials of each other user, by name."""

    def __init__(
        self, around: Surroundings, checks: Checks, admin: SimClient, logins: Mapping[str, Login], random: Random
    ) -> None:
        assert isinstance(around.rights, Rights)
        self.acts: dict[Act, Callable[[Planned], None]] = {Act.RULE: self._rule}
        self._around = around
        self._rights = around.rights
        self._checks = checks
        self._admin = admin
        self._logins = logins
        self._random = random
        self._busy: set[str] = set()  # users with a change in progress
        self._there: dict[str, bool | None] = {}  # user → exists; None: unknown
        self._acknowledged: dict[int, tuple[str, str]] = {}  # index → act and user
        self._stream_id = 0  # of `__audit`, once a broker has returned it
        self._rows: list[dict[str, Any]] = []  # of the last read
        self._is_reading = False

    def _trace(self, what: str) -> None:
        self._around.trace.add("admin", what)

    def start(self) -> None:
        """Create the users; retried until answered."""
        self._checks.begin(audit_config())
        self._create(APP, _OF_APP, is_needed=True)
        for name in USERS:
            self._create(name, self._some(), is_needed=True)

    def _some(self) -> tuple[Rule, ...]:
        return tuple({_SOME[int(self._random.random() * len(_SOME))]: None for _ in range(8)})

    # Changes

    def _rule(self, operation: Planned) -> None:
        chance = operation.number
        name = (*USERS, EVERYBODY)[chance % 4]
        chance //= 4
        if name in self._busy:
            return
        if name == EVERYBODY:
            rule = _OF_EVERYBODY[chance % len(_OF_EVERYBODY)]
            self._change(name, (), (rule,)) if chance // 4 % 3 else self._change(name, (rule,), ())
        elif not self._there.get(name):
            self._create(name, self._some())
        elif chance % 10 == 0:
            self._send(DeleteUserRequest(name=name), lambda: self._there.update({name: False}))
            self._there[name] = None
        elif chance % 10 <= 2:
            self._send(AlterUserRequest(name=name, add=(self._logins[name].renewed(),)), self._logins[name].taken)
            self._around.count("rotated secrets")
        else:
            add, drop = self._some(), self._some()
            self._change(name, add[: chance // 10 % 4], tuple(one for one in drop if one not in add))

    def _create(self, name: str, rules: tuple[Rule, ...], *, is_needed: bool = False) -> None:
        request = CreateUserRequest(name=name, credentials=(self._logins[name].renewed(),), rules=rules)
        again = (lambda: self._create(name, rules, is_needed=True)) if is_needed else None

        def made() -> None:
            self._there[name] = True
            self._logins[name].taken()

        self._send(request, made, again)

    def _change(self, name: str, add: tuple[Rule, ...], drop: tuple[Rule, ...]) -> None:
        self._send(ChangeRulesRequest(name=name, add=add, drop=drop))

    def _send(
        self,
        request: CreateUserRequest | AlterUserRequest | DeleteUserRequest | ChangeRulesRequest,
        acknowledged: Callable[[], object] = lambda: None,
        again: Callable[[], None] | None = None,
    ) -> None:
        name, act = request.name, _ACTS[type(request)]
        self._busy.add(name)

        def done(response: Response | RemoteError | None, _raw: bytes) -> None:
            self._trace(f"{act} {name}: {kind_of(response)}")
            self._busy.discard(name)
            if isinstance(response, UserChangedResponse):
                self._around.count(act)
                acknowledged()
                self._acknowledge(int(response.index), act, name)
            elif isinstance(response, RemoteError) and response.code in ("user_exists", "user_not_found"):
                self._there[name] = response.code == "user_exists"
            elif again is not None:
                self._around.scheduler.after(_AGAIN_US, again)

        self._admin.ask(request, done)

    def _acknowledge(self, index: int, act: str, name: str) -> None:
        if not index:
            return  # the change was in force already; its index is unknown
        if (before := self._acknowledged.setdefault(index, (act, name))) != (act, name):
            raise ViolationError(f"{act} of {name!r} was acknowledged as index {index}, and so was {before}")
        self._rights.acknowledged = max(self._rights.acknowledged, index)

    # The audit stream

    def _read(self, position: int = 0) -> None:
        """Read all of `__audit` from its beginning."""
        if self._is_reading:
            return
        if not position:
            self._rows.clear()

        def done(response: Response | RemoteError | None, raw: bytes) -> None:
            self._is_reading = False
            if not isinstance(response, FetchResponse):
                self._trace(f"audit: {kind_of(response)}")
                return
            rows = ReadRows(raw)
            self._rows += [
                json.loads(value) for offset, value in zip(rows.offsets, rows.values, strict=True) if offset >= position
            ]
            self._trace(f"audit: {len(self._rows)} rows")
            self._check_order()
            if response.end_offset < response.committed_end:
                self._read(int(response.end_offset))

        self._is_reading = True
        self._ask_audit(FetchRequest(stream_id=StreamId(self._stream_id), offset=Offset(position)), done)

    def _ask_audit(self, request: Request, done: Callable[[Response | RemoteError | None, bytes], None]) -> None:
        self._admin.ask_leader(self._stream_id, 0, request, done)

    def _look_up(self) -> None:
        def done(response: Response | RemoteError | None, _raw: bytes) -> None:
            if isinstance(response, MetadataResponse) and response.streams:
                self._stream_id = int(response.streams[0].stream_id)

        self._admin.ask(MetadataRequest(names=(AUDIT_STREAM,)), done)

    @property
    def _history(self) -> PartitionHistory:
        return self._checks.of(audit_config().subject, 0)

    @property
    def _is_held(self) -> bool:
        history = self._history
        return not (history.is_damaged or history.is_given_up)

    def _check_order(self) -> None:
        indexes = [row["index"] for row in self._rows]
        if self._is_held and indexes != sorted(set(indexes)):
            raise ViolationError(f"{AUDIT_STREAM} tells what was done in the order {indexes}")

    def allow_unclean_election(self, stream_id: int) -> bool:
        """Allow an unclean leader election of `__audit`; return False if the id is another stream's."""
        if self._checks.subjects.get(stream_id) != audit_config().subject:
            return False
        self._history.is_damaged = self._history.is_given_up = True
        request = AlterStreamRequest(name=AUDIT_STREAM, changes={"allow_unclean_election": True})
        self._admin.ask(request, lambda response, _raw: self._trace(f"unclean: {kind_of(response)}"))
        return True

    # The end

    def waits_for(self, is_stuck: Callable[[PartitionHistory], bool]) -> Callable[[], str]:
        """Return a function that names what is still missing: users with all rules, and all changes in `__audit`.

        The function returns an empty text when nothing is missing.
        """
        missing = set(USERS)
        self._rows.clear()  # earlier reads may have been lost since
        turn = 0

        def left() -> str:
            nonlocal turn
            turn += 1
            if turn % 4 == 1:
                for name in sorted(missing):
                    self._restore(name, partial(missing.discard, name))
            if missing:
                return f"users {', '.join(sorted(missing))} have not got their rules"
            if not self._is_held or is_stuck(self._history):
                return ""
            untold = self._untold()
            if untold and turn % 2:
                self._look_up() if not self._stream_id else self._read()
            return f"{AUDIT_STREAM} does not tell of {untold}" if untold else ""

        return left

    def _restore(self, name: str, done: Callable[[], None]) -> None:
        """Ensure that a user exists, with all rules."""
        if name in self._busy:
            return
        if not self._there.get(name):
            self._create(name, _ALL)
            return

        def heard(response: Response | RemoteError | None, _raw: bytes) -> None:
            self._busy.discard(name)
            self._trace(f"all rules for {name}: {kind_of(response)}")
            if isinstance(response, UserChangedResponse):
                self._acknowledge(int(response.index), "change_rules", name)
                done()
            elif isinstance(response, RemoteError) and response.code == "user_not_found":
                self._there[name] = False

        self._busy.add(name)
        self._admin.ask(ChangeRulesRequest(name=name, add=_ALL), heard)

    def _untold(self) -> list[int]:
        """Return the acknowledged changes that are neither in `__audit` nor in one of its gaps."""
        told = {row["index"] for row in self._rows}
        gaps = [range(row.get("after", 0), row["index"] + 1) for row in self._rows if row["act"] == "unknown"]
        return [one for one in sorted(self._acknowledged) if one not in told and not any(one in gap for gap in gaps)]

    def check(self) -> None:
        """At the end of the run: compare `__audit` with the users and rules of the brokers."""
        if not self._is_held or not self._rows:
            return
        by_index = {row["index"]: row for row in self._rows}
        for index, (act, name) in self._acknowledged.items():
            row = by_index.get(index)
            if row is None or row["act"] == "unknown":
                continue
            if (row["act"], row.get("user"), row.get("by")) != (act, name, ADMIN):
                raise ViolationError(f"{AUDIT_STREAM} tells of {row} at {index}, which was {act} of {name!r}")
        if any(row["act"] == "unknown" for row in self._rows):
            self._around.count("audits with gaps")
            return
        self._check_alterations()
        told = _folded(self._rows)
        for broker in self._around.brokers.values():
            if broker.node is None:
                continue
            acted, users = inspector.users(broker.node)
            there = {name: {str(rule) for rule in user.rules} for name, user in users.items()}
            if acted != self._rows[-1]["index"]:
                continue
            self._around.count("audits")
            if there != told:
                raise ViolationError(f"{broker.name} has {there} at index {acted}, and {AUDIT_STREAM} tells {told}")

    def _check_alterations(self) -> None:
        """Check that `__audit` names every acknowledged stream alteration and its author."""
        altered = [row for row in self._rows if row["act"] == "alter_stream"]
        told = {(row["stream"], row["changes"].get("segment_bytes"), row.get("by")) for row in altered}
        for (name, segment_bytes), user in self._rights.altered.items():
            if (name, segment_bytes, user) not in told:
                raise ViolationError(f"{AUDIT_STREAM} does not tell that {user} gave {name} {segment_bytes}")
            self._around.count("alterations that are told")


def _folded(rows: list[dict[str, Any]]) -> dict[str, set[str]]:
    """Compute the users and their rules from the rows of `__audit`."""
    users: dict[str, set[str]] = {}
    for row in rows:
        name = row.get("user", "")
        if row["act"] == "create_user":
            users[name] = set(row["rules"])
        elif row["act"] == "delete_user":
            del users[name]
        elif row["act"] == "change_rules":
            rules = users.setdefault(name, set())
            rules.update(row.get("added", ()))
            rules.difference_update(row.get("dropped", ()))
    return users


_ACTS: dict[type[Request], str] = {
    CreateUserRequest: "create_user",
    AlterUserRequest: "alter_user",
    DeleteUserRequest: "delete_user",
    ChangeRulesRequest: "change_rules",
}
