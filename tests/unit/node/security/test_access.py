"""Every request without the right, with it, and with a right that is nearly it; and nothing is done before the look."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

import msgspec
import pytest

from penstock.access import Credential, CredentialKind, Operation, Quotas, Rule, User
from penstock.access.handshake import Principal
from penstock.access.rules import OF_CLUSTER
from penstock.base import limits
from penstock.base.config import ALTERABLE, Intake, StreamConfig
from penstock.base.errors import ErrorCode, RemoteError
from penstock.messages import (
    API_OF_REQUEST,
    AlterStreamRequest,
    AlterStreamResponse,
    AlterUserRequest,
    Api,
    AppendAtRequest,
    AppendOnceRequest,
    AppendRequest,
    AskConsumersRequest,
    AuthenticateRequest,
    AwaitErasureRequest,
    ChangeRulesRequest,
    CommitOffsetsRequest,
    ConsumerOperation,
    CreateStreamRequest,
    CreateStreamResponse,
    CreateUserRequest,
    DeleteMessagesRequest,
    DeleteStreamRequest,
    DeleteUserRequest,
    ExportUsersRequest,
    ExportUsersResponse,
    FetchOffsetsRequest,
    FetchRequest,
    FetchResponse,
    FindMessagesRequest,
    FindStreamsRequest,
    FindStreamsResponse,
    ForgetSchemasRequest,
    GetRequest,
    GetResponse,
    GetSchemaTextRequest,
    GroupHeartbeatRequest,
    HelloRequest,
    HelloResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    ListOffsetsRequest,
    ListProducersRequest,
    ListPublishedRequest,
    ListSchemasRequest,
    ListSubjectsRequest,
    ListUsersRequest,
    ListUsersResponse,
    MetadataRequest,
    MetadataResponse,
    OffsetCommit,
    OffsetsStreamRequest,
    OffsetsStreamResponse,
    PublishStagedRequest,
    PurgeSubjectRequest,
    RaiseFeatureLevelRequest,
    RegisterSchemasRequest,
    ReportArchivedRequest,
    Request,
    SchemaEntry,
    SchemasStreamRequest,
    SchemasStreamResponse,
    SetIntakeRequest,
    StagedRange,
    StagedStreamRequest,
    StageRequest,
    StatusRequest,
    TakeApiRequest,
    TestAccessRequest,
    TestAccessResponse,
    TruncateRequest,
    VerifyRequest,
)
from penstock.metadata.persistence.snapshot import encode_image
from penstock.node.security.access import Authorization
from penstock.schemas.rows import StoredText
from tests.extent import each_change
from tests.unit.node.harness import Broker, batch_of
from tests.unit.node.staging import QUERY, staged_stream
from tests.unit.node.test_expiry import block

ANN, BOB = Principal("ann", 0), Principal("bob", 0)
GROUP = "billing"


def credential() -> Credential:
    return Credential("password", CredentialKind.PASSWORD, 1, None, b"s" * 16, 600_000, bytes(32), bytes(32))


def user(name: str, *rules: Rule) -> CreateUserRequest:
    return CreateUserRequest(name=name, credentials=(credential(),), rules=rules)


def who(broker: Broker, name: str) -> Principal:
    user = broker.node.image.user(name)
    return Principal(name, user.made_index, "password", user.credentials[0].mark)


@contextmanager
def asking_as(broker: Broker, principal: Principal | None) -> Iterator[None]:
    before, broker.who = broker.who, principal
    try:
        yield
    finally:
        broker.who = before


def asking(broker: Broker, name: str | None) -> AbstractContextManager[None]:
    return asking_as(broker, None if name is None else who(broker, name))


def allow(broker: Broker, *rules: Rule, name: str = "bob") -> None:
    with asking(broker, "ann"):
        broker.request(ChangeRulesRequest(name=name, add=rules))


@contextmanager
def allowed(broker: Broker, rule: Rule) -> Iterator[None]:
    """Bob has that rule within the block, and none before and behind it."""
    assert broker.node.image.user("bob").rules == ()
    allow(broker, rule)
    try:
        yield
    finally:
        with asking(broker, "ann"):
            broker.request(ChangeRulesRequest(name="bob", drop=(rule,)))


@pytest.fixture
def broker() -> Broker:
    """As `guarded` makes it."""
    return guarded()


@pytest.fixture(scope="module")
def shared() -> Broker:
    """As `guarded` makes it, for tests that change nothing; bob's rules go with the test that gave them."""
    return guarded()


def guarded() -> Broker:
    """A stream with a message, a group in it, something staged; ann rules, bob may nothing."""
    broker = Broker().start()
    broker.create("orders")
    broker.append("orders", b"1")
    broker.request(CreateStreamRequest(config=StreamConfig(name="copied", subject="copied"), is_paused=True))
    broker.ask(OffsetsStreamRequest(), OffsetsStreamResponse)
    broker.ask(SchemasStreamRequest(), SchemasStreamResponse)
    broker.request(registration(broker))
    broker.request(registration(broker))
    broker.request(ListGroupsRequest(**offsets(broker)))  # from here on what these ask for is in memory
    broker.request(ListProducersRequest(stream_id=stream_id(broker)))
    broker.request(ListPublishedRequest(stream_id=stream_id(broker)))
    broker.request(StageRequest(stream_id=staged_stream(broker).stream_id, partition=0), ROWS)
    broker.request(user("ann", Rule(Operation.ADMIN)))
    with asking(broker, "ann"):
        broker.request(user("bob"))
    return broker


class Case(NamedTuple):
    """What is asked, and the rules each of which allows it."""

    make: Callable[[Broker], tuple[Request, bytes]]
    rules: tuple[Rule, ...]
    nearly: tuple[Rule, ...] = ()  # that do not


MONITOR = Rule(Operation.MONITOR)


def on(operation: Operation) -> tuple[Rule, ...]:
    """Rules that allow that on `orders`, which is on `orders.>`."""
    return (
        Rule(operation, stream="orders"),
        Rule(operation, stream="ord*"),
        Rule(operation, stream="*"),
        Rule(operation, subject="orders.>"),
        Rule(operation, subject=">"),
        Rule(Operation.ADMIN),
    )


def off(operation: Operation) -> tuple[Rule, ...]:
    """Rules that look much like it."""
    others = tuple(Rule(other, stream="orders") for other in Operation if other not in (operation, *OF_CLUSTER))
    return (
        MONITOR,
        *others,
        Rule(operation, stream="orders2"),
        Rule(operation, stream="order"),
        Rule(operation, subject="orders.*"),
    )


def stream_id(broker: Broker, name: str = "orders") -> int:
    return broker.node.image.by_name(name).stream_id


def offsets(broker: Broker) -> dict[str, int]:
    return {"stream_id": stream_id(broker, "__offsets"), "partition": _partition(broker)}


def _partition(broker: Broker) -> int:
    from penstock.hot.keyhash import partition_of

    image = broker.node.image
    return partition_of(GROUP.encode(), len(image.by_name("__offsets").partitions))


ROWS = bytes(batch_of([("orders.eu", None, b"2", None)]))
READ, APPEND, COMMIT = Operation.READ, Operation.APPEND, Operation.COMMIT_OFFSETS
ADMIN_ONLY = ((Rule(Operation.ADMIN),), (*on(READ)[:1], MONITOR))


def _staged(broker: Broker) -> int:
    return stream_id(broker, f"__staged-{stream_id(broker)}")


def plain(make: Callable[[Broker], Request]) -> Callable[[Broker], tuple[Request, bytes]]:
    return lambda broker: (make(broker), b"")


def rows(make: Callable[[Broker], Request]) -> Callable[[Broker], tuple[Request, bytes]]:
    return lambda broker: (make(broker), ROWS)


REGISTER = Operation.REGISTER
SEEING = (READ, APPEND, COMMIT, REGISTER, Operation.ALTER)


def schemas(broker: Broker) -> dict[str, int]:
    return {"stream_id": stream_id(broker, "__schemas"), "partition": 0}


def registration(broker: Broker, *, force: bool = False) -> RegisterSchemasRequest:
    schema = '{"type":"record","name":"Order","fields":[]}'
    entries = (SchemaEntry(subject="orders.>"),)
    of = stream_id(broker)
    return RegisterSchemasRequest(
        **schemas(broker), of_stream_id=of, kind="avro", text=schema, entries=entries, force=force
    )


def text_hash(broker: Broker) -> str:
    return StoredText("avro", registration(broker).text).hash()


def asked_of(broker: Broker, operation: ConsumerOperation) -> AskConsumersRequest:
    return AskConsumersRequest(stream_id=stream_id(broker), operation=operation, consumer="billing")


def changing(operation: ConsumerOperation) -> Case:
    return Case(
        plain(lambda b: asked_of(b, operation)),
        (*on(COMMIT), Rule(COMMIT, stream="orders", group="consumer:bill*")),
        (*off(COMMIT), Rule(COMMIT, stream="orders", group="billing")),
    )


READS = (ConsumerOperation.LIST, ConsumerOperation.INFO, ConsumerOperation.EXPORT, ConsumerOperation.EXPORT_ALL)
CHANGES = [one for one in ConsumerOperation if one not in READS]
COMMIT_NEARLY = (*off(COMMIT), Rule(COMMIT, stream="orders", group="shipping"))

CASES = {
    "fetch": Case(plain(lambda b: FetchRequest(stream_id=stream_id(b), offset=0)), on(READ), off(READ)),
    "get": Case(plain(lambda b: GetRequest(stream_id=stream_id(b), offset=0)), on(READ), off(READ)),
    "list offsets": Case(
        plain(lambda b: ListOffsetsRequest(stream_id=stream_id(b), at="latest")),
        (*on(READ), MONITOR),
        tuple(rule for rule in off(READ)[:-1] if rule != MONITOR),
    ),
    "list subjects": Case(
        plain(lambda b: ListSubjectsRequest(stream_id=stream_id(b), subjects=(">",))), on(READ), off(READ)
    ),
    "find messages": Case(plain(lambda b: FindMessagesRequest(stream_id=stream_id(b))), on(READ), off(READ)),
    "append": Case(rows(lambda b: AppendRequest(stream_id=stream_id(b))), on(APPEND), off(APPEND)[:-1]),
    "append once": Case(
        rows(lambda b: AppendOnceRequest(stream_id=stream_id(b), producer_id=7, producer_epoch=0, sequence=0)),
        on(APPEND),
        off(APPEND)[:-1],
    ),
    "append at": Case(
        lambda b: (AppendAtRequest(stream_id=stream_id(b, "copied")), bytes(batch_of([("copied", None, b"2", None)]))),
        *ADMIN_ONLY,
    ),
    "list producers": Case(plain(lambda b: ListProducersRequest(stream_id=stream_id(b))), on(APPEND), off(APPEND)[:-1]),
    "stage": Case(rows(lambda b: StageRequest(stream_id=_staged(b), partition=0)), on(APPEND), off(APPEND)),
    "staged stream": Case(plain(lambda b: StagedStreamRequest(stream_id=stream_id(b))), on(APPEND), off(APPEND)),
    "list published": Case(plain(lambda b: ListPublishedRequest(stream_id=stream_id(b))), on(APPEND), off(APPEND)),
    "publish staged": Case(
        plain(
            lambda b: PublishStagedRequest(
                stream_id=stream_id(b),
                staged_stream_id=_staged(b),
                query_id=QUERY,
                batch_id=0,
                staged=(StagedRange(0, 1, 1),),
            )
        ),
        on(APPEND),
        off(APPEND),
    ),
    "fetch of what is staged": Case(
        plain(lambda b: FetchRequest(stream_id=_staged(b), offset=0)), on(APPEND), off(APPEND)
    ),
    "create": Case(
        plain(lambda b: CreateStreamRequest(config=StreamConfig(name="orders-eu", subject="eu.orders.>"))),
        (Rule(Operation.CREATE, subject="eu.>"), Rule(Operation.CREATE, subject=">"), Rule(Operation.ADMIN)),
        (
            Rule(Operation.CREATE, subject="eu.*"),
            Rule(Operation.CREATE, subject="orders.>"),
            Rule(Operation.ALTER, stream="*"),
            Rule(Operation.ALTER, subject="eu.>"),
        ),
    ),
    "alter": Case(
        plain(lambda b: AlterStreamRequest(name="orders", changes={"max_messages": 7})),
        on(Operation.ALTER),
        off(Operation.ALTER),
    ),
    "set intake": Case(
        plain(lambda b: SetIntakeRequest(name="orders", intake=Intake.PAUSED)),
        on(Operation.ALTER),
        off(Operation.ALTER),
    ),
    "delete": Case(plain(lambda b: DeleteStreamRequest(name="orders")), on(Operation.DELETE), off(Operation.DELETE)),
    "truncate": Case(
        plain(lambda b: TruncateRequest(stream_id=stream_id(b), before=1)), on(Operation.DELETE), off(Operation.DELETE)
    ),
    "delete messages": Case(
        plain(lambda b: DeleteMessagesRequest(stream_id=stream_id(b), offsets=(0,))),
        on(Operation.DELETE),
        off(Operation.DELETE),
    ),
    "await erasure": Case(
        plain(lambda b: AwaitErasureRequest(stream_id=stream_id(b), marks_end=0)),
        on(Operation.DELETE),
        off(Operation.DELETE),
    ),
    "purge subject": Case(
        plain(lambda b: PurgeSubjectRequest(stream_id=stream_id(b), subject="orders.>")),
        on(Operation.DELETE),
        off(Operation.DELETE),
    ),
    "report archived": Case(
        plain(lambda b: ReportArchivedRequest(stream_id=stream_id(b), archive="lake", end_offset=1, archived_epoch=1)),
        (*on(COMMIT), Rule(COMMIT, stream="orders", group="lak*")),
        COMMIT_NEARLY,
    ),
    "commit offsets": Case(
        plain(
            lambda b: CommitOffsetsRequest(
                **offsets(b),
                group=GROUP,
                offsets=(OffsetCommit(stream_id=stream_id(b), partition=0, offset=0),),
            )
        ),
        (*on(COMMIT), Rule(COMMIT, stream="orders", group="bill*")),
        COMMIT_NEARLY,
    ),
    "heartbeat": Case(
        plain(
            lambda b: GroupHeartbeatRequest(
                **offsets(b), group=GROUP, member_id="m" * 16, number=1, stream_ids=(stream_id(b),)
            )
        ),
        on(COMMIT),
        COMMIT_NEARLY,
    ),
    "fetch offsets": Case(
        plain(lambda b: FetchOffsetsRequest(**offsets(b), group=GROUP, of_stream_id=stream_id(b))),
        (*on(COMMIT), *on(READ), MONITOR),
        (Rule(APPEND, stream="orders"), Rule(COMMIT, stream="orders", group="shipping")),
    ),
    "list consumers": Case(
        plain(lambda b: AskConsumersRequest(stream_id=stream_id(b), operation=ConsumerOperation.LIST)),
        (*on(COMMIT), *on(READ), MONITOR),
        (Rule(READ, stream="orders2"), Rule(READ, subject="others.>")),
    ),
    "consumer": Case(
        plain(lambda b: asked_of(b, ConsumerOperation.INFO)),
        (*on(COMMIT), *on(READ), MONITOR),
        (Rule(APPEND, stream="orders"), Rule(COMMIT, stream="orders", group="billing")),
    ),
    "export of a consumer": Case(
        plain(lambda b: asked_of(b, ConsumerOperation.EXPORT)),
        (*on(COMMIT), *on(READ), MONITOR),
        (Rule(APPEND, stream="orders"), Rule(COMMIT, stream="orders", group="billing")),
    ),
    **{f"{operation} of a consumer": changing(operation) for operation in CHANGES},
    "offsets stream": Case(
        plain(lambda b: OffsetsStreamRequest()), (*on(COMMIT), *on(READ)), (Rule(APPEND, stream="orders"),)
    ),
    "schemas stream": Case(plain(lambda b: SchemasStreamRequest()), on(REGISTER), (*on(READ)[:1], MONITOR)),
    "register schemas": Case(plain(lambda b: registration(b)), on(REGISTER), off(REGISTER)),
    "register schemas by force": Case(
        plain(lambda b: registration(b, force=True)),
        (Rule(Operation.ADMIN),),
        (*on(REGISTER)[:-1], *on(Operation.ALTER)[:-1]),
    ),
    "list schemas": Case(
        plain(lambda b: ListSchemasRequest(**schemas(b), of_stream_id=stream_id(b))),
        (*(rule for operation in SEEING for rule in on(operation)), MONITOR),
        (Rule(READ, stream="orders2"), Rule(READ, subject="others.>")),
    ),
    "get schema text": Case(
        plain(lambda b: GetSchemaTextRequest(**schemas(b), of_stream_id=stream_id(b), text_hash=text_hash(b))),
        (*on(READ), *on(REGISTER), MONITOR),
        (Rule(READ, stream="orders2"),),
    ),
    "forget schemas": Case(
        plain(lambda b: ForgetSchemasRequest(**schemas(b), of_stream_id=stream_id(b), subject="orders.>")),
        (Rule(Operation.ADMIN),),
        (*on(REGISTER)[:-1], *on(Operation.ALTER)[:-1]),
    ),
    "status": Case(plain(lambda b: StatusRequest()), (MONITOR, Rule(Operation.ADMIN)), on(READ)[:1]),
    "verify": Case(plain(lambda b: VerifyRequest(stream_id=stream_id(b))), *ADMIN_ONLY),
    "create user": Case(plain(lambda b: user("eve")), *ADMIN_ONLY),
    "delete user": Case(plain(lambda b: DeleteUserRequest(name="bob")), *ADMIN_ONLY),
    "alter another user": Case(plain(lambda b: AlterUserRequest(name="ann", add=(credential(),))), *ADMIN_ONLY),
    "own quotas": Case(plain(lambda b: AlterUserRequest(name="bob", quotas=Quotas(1 << 20))), *ADMIN_ONLY),
    "change rules": Case(plain(lambda b: ChangeRulesRequest(name="bob", add=on(READ)[:1])), *ADMIN_ONLY),
    "export of users": Case(plain(lambda b: ExportUsersRequest()), *ADMIN_ONLY),
    "raise of the level": Case(plain(lambda b: RaiseFeatureLevelRequest()), *ADMIN_ONLY),
    "taking back of JetStream's API": Case(plain(lambda b: TakeApiRequest()), *ADMIN_ONLY),
    "test of another user": Case(plain(lambda b: TestAccessRequest(name="ann", operation=READ)), *ADMIN_ONLY),
}
TOLD_WHAT_THEY_MAY_KNOW = {
    HelloRequest,
    AuthenticateRequest,  # the connection answers it
    MetadataRequest,
    FindStreamsRequest,
    ListGroupsRequest,
    ListUsersRequest,
}


def is_denied(broker: Broker, case: Case) -> bool:
    with asking(broker, "bob"):
        response = broker.replies[ask(broker, case)].response
    codes = (ErrorCode.NOT_AUTHORIZED, ErrorCode.STREAM_NOT_FOUND, ErrorCode.STREAM_CHANGED)
    return isinstance(response, RemoteError) and response.code in codes


def ask(broker: Broker, case: Case) -> object:
    request, raw = case.make(broker)
    caller = broker.request(request, raw)
    if caller in broker.open_requests:  # a long poll
        broker.clock.advance_ms(60_000)
        broker.node.tick(broker.clock.now)
        broker.turn()
    return caller


def state(broker: Broker) -> object:
    """All that a request could have changed."""
    with asking(broker, "ann"):
        logs = {name: broker.values(name) for name in broker.streams()}
    return encode_image(broker.node.image), logs


@pytest.mark.parametrize("name", CASES)
def test_what_no_rule_allows_is_refused_and_nothing_was_done(shared, name) -> None:
    before = state(shared)
    assert is_denied(shared, CASES[name])
    assert state(shared) == before


@each_change
@pytest.mark.parametrize(("name", "rule"), [(name, rule) for name, case in CASES.items() for rule in case.rules])
def test_what_a_rule_allows_is_done(broker, name, rule) -> None:
    allow(broker, rule)
    with asking(broker, "bob"):
        response = broker.replies[ask(broker, CASES[name])].response
    # a node without the gateway has no consumers, and says so who may ask
    assert not isinstance(response, RemoteError) or response.code == ErrorCode.JETSTREAM_OFF


@each_change
@pytest.mark.parametrize(("name", "rule"), [(name, rule) for name, case in CASES.items() for rule in case.nearly])
def test_no_other_rule_does(shared, name, rule) -> None:
    with allowed(shared, rule):
        before = state(shared)
        assert is_denied(shared, CASES[name])
        assert state(shared) == before


@pytest.mark.parametrize("name", CASES)
def test_what_everybody_may_each_user_may(broker, name) -> None:
    rule = CASES[name].rules[0]
    if rule.operation in OF_CLUSTER:
        pytest.skip("nobody may make everybody an administrator, or let everybody monitor")
    allow(broker, rule, name="*")
    assert not is_denied(broker, CASES[name])


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("somebody", [None, Principal("eve", 3), Principal("bob", 1)])
def test_who_is_nobody_is_refused_everything(shared, name, somebody) -> None:
    """Not logged in; logged in once, and deleted; deleted, and somebody else made under that name."""
    before = state(shared)
    with asking_as(shared, somebody):
        response = shared.replies[ask(shared, CASES[name])].response
    assert isinstance(response, RemoteError)
    assert response.code == ErrorCode.UNAUTHENTICATED
    assert state(shared) == before


def test_every_request_of_clients_is_tried_here() -> None:
    tried = set()
    broker = Broker().start()
    broker.create("orders")
    broker.create("copied")
    broker.ask(SchemasStreamRequest(), SchemasStreamResponse)
    broker.ask(OffsetsStreamRequest(), OffsetsStreamResponse)
    staged_stream(broker)
    for case in CASES.values():
        tried.add(type(case.make(broker)[0]))
    of_clients = {one for one, spec in API_OF_REQUEST.items() if spec.api < Api.PEER_HELLO}
    assert of_clients == tried | TOLD_WHAT_THEY_MAY_KNOW


def test_a_request_that_is_in_no_table_is_for_administrators(broker, monkeypatch) -> None:
    monkeypatch.delitem(Authorization._CHECKS, FetchRequest)
    allow(broker, *on(READ)[:1])
    assert is_denied(broker, CASES["fetch"])
    with asking(broker, "ann"):
        broker.answer(broker.fetch("orders"), FetchResponse)


def test_streams_with_which_nothing_may_be_done_are_not_there(broker) -> None:
    with asking(broker, "ann"):
        broker.create("prices")
    allow(broker, Rule(READ, stream="orders"))
    with asking(broker, "bob"):
        assert set(broker.streams()) == {"__offsets", "__schemas", "orders"}
        assert not broker.ask(MetadataRequest(names=("prices",)), MetadataResponse).streams
        assert not broker.ask(FindStreamsRequest(subject="prices.x"), FindStreamsResponse).streams
        refused = broker.refusal(DeleteStreamRequest(name="prices"))
        assert refused.code == broker.refusal(DeleteStreamRequest(name="nothing")).code == ErrorCode.STREAM_NOT_FOUND
        assert broker.refusal(DeleteStreamRequest(name="orders")).code == ErrorCode.NOT_AUTHORIZED


def test_groups_of_streams_that_are_not_there_for_him_are_not_either(broker) -> None:
    with asking(broker, "ann"):
        broker.request(CASES["commit offsets"].make(broker)[0])
        listing = ListGroupsRequest(**offsets(broker))
        assert len(broker.ask(listing, ListGroupsResponse).groups) == 1
    with asking(broker, "bob"):
        assert not broker.ask(listing, ListGroupsResponse).groups
    allow(broker, Rule(COMMIT, stream="orders", group="bill*"))
    with asking(broker, "bob"):
        assert len(broker.ask(listing, ListGroupsResponse).groups) == 1


def test_a_rule_about_subjects_allows_rows_on_them(broker) -> None:
    allow(broker, Rule(APPEND, subject="orders.eu.*"), Rule(APPEND, subject="other.>"))
    request = AppendRequest(stream_id=stream_id(broker))
    good = batch_of([("orders.eu.a", None, b"2", None), ("orders.eu.b", None, b"3", None)])
    bad = batch_of([("orders.eu.a", None, b"4", None), ("orders.us.a", None, b"5", None)])
    with asking(broker, "bob"):
        broker.request(request, good)
        refused = broker.refusal(request, bad)
    assert refused.code == ErrorCode.NOT_AUTHORIZED
    assert "orders.us.a" in refused.message
    with asking(broker, "ann"):
        assert broker.values("orders") == [b"1", b"2", b"3"]


def test_who_may_append_on_some_subjects_takes_nothing_of_the_others(broker) -> None:
    with asking(broker, "ann"):
        broker.create("rolled", "rolled.>", allow_rollup=True)
        broker.append("rolled", b"1", subject="rolled.a")
    allow(broker, Rule(APPEND, subject="rolled.b"))
    request = AppendRequest(stream_id=stream_id(broker, "rolled"))
    with asking(broker, "bob"):
        refused = broker.refusal(request, batch_of([("rolled.b", None, b"2", block("Nats-Rollup: all"))]))
        assert refused.code == ErrorCode.NOT_AUTHORIZED
        broker.request(request, batch_of([("rolled.b", None, b"3", block("Nats-Rollup: sub"))]))
    broker.tick(limits.DECISION_PAUSE_MS_MAX)
    with asking(broker, "ann"):
        assert broker.values("rolled") == [b"1", b"3"]


def test_a_rule_about_subjects_allows_a_fetch_of_these(broker) -> None:
    allow(broker, Rule(READ, subject="orders.eu.>"))
    number = stream_id(broker)
    with asking(broker, "bob"):
        for subjects in (None, (), ("orders.>",), ("orders.eu.a", "orders.us")):
            assert broker.refusal(FetchRequest(stream_id=number, offset=0, subjects=subjects)).code == (
                ErrorCode.NOT_AUTHORIZED
            )
        broker.ask(FetchRequest(stream_id=number, offset=0, subjects=("orders.eu.a",)), FetchResponse)


def test_a_rule_about_subjects_allows_a_message_by_offset_on_these_and_tells_nothing_of_others(broker) -> None:
    with asking(broker, "ann"):
        broker.append("orders", b"2", subject="orders.eu")
        broker.append("orders", b"3", subject="orders.us")
        broker.append("orders", b"4", subject="orders.us")
        broker.request(DeleteMessagesRequest(stream_id=stream_id(broker), offsets=(3,)))
        broker.tick(1_000)
    allow(broker, Rule(READ, subject="orders.eu"))

    number = stream_id(broker)

    def get(**which: Any) -> Any:
        with asking(broker, "bob"):
            asked = broker.request(GetRequest(stream_id=number, **which))
            broker.settle()
        answer = broker.replies[asked].response
        assert not (isinstance(answer, RemoteError) and broker.payloads.get(asked))
        return (answer.code, answer.message, answer.details) if isinstance(answer, RemoteError) else answer

    found = get(offset=1, subject="orders.eu")
    assert isinstance(found, GetResponse)
    assert found.offset == 1
    for other in ("orders.us", "orders.x"):
        assert get(offset=0, subject=other)[0] == ErrorCode.NOT_AUTHORIZED
    assert get(offset=1)[0] == ErrorCode.NOT_AUTHORIZED
    assert get(offset=1, key=b"k")[0] == ErrorCode.NOT_AUTHORIZED
    told = [get(offset=offset, subject="orders.eu") for offset in (2, 3)]  # one on another subject, one deleted
    assert {code for code, _, _ in told} == {ErrorCode.MESSAGE_NOT_FOUND}
    assert [(text.replace("2", "N"), {**details, "offset": "N"}) for _, text, details in told[:1]] == [
        (text.replace("3", "N"), {**details, "offset": "N"}) for _, text, details in told[1:]
    ]


def test_what_penstock_keeps_for_itself_is_not_read_with_a_wildcard(broker) -> None:
    allow(broker, Rule(READ, stream="*"), Rule(READ, subject=">"), Rule(APPEND, stream="*"))
    request = FetchRequest(stream_id=stream_id(broker, "__offsets"), offset=0)
    with asking(broker, "bob"):
        assert broker.refusal(request).code == ErrorCode.NOT_AUTHORIZED
    allow(broker, Rule(READ, stream="__offsets"))
    with asking(broker, "bob"):
        broker.ask(request, FetchResponse)


@each_change
def test_a_rule_that_is_taken_away_counts_at_once_also_for_who_waits(broker) -> None:
    allow(broker, Rule(READ, stream="orders"))
    with asking(broker, "bob"):
        waiting = broker.fetch("orders", 1, wait_ms_max=30_000)
    assert waiting in broker.open_requests
    with asking(broker, "ann"):
        broker.request(ChangeRulesRequest(name="bob", drop=(Rule(READ, stream="orders"),)))
        broker.append("orders", b"secret")
    response = broker.replies[waiting].response
    assert isinstance(response, RemoteError)
    assert response.code == ErrorCode.STREAM_CHANGED


@pytest.mark.parametrize("has_another", [False, True])
def test_a_fetch_whose_user_may_not_read_any_more_ends_although_nothing_comes(broker, *, has_another: bool) -> None:
    rule = Rule(READ, stream="orders")
    allow(broker, rule)
    if has_another:
        allow(broker, rule, name="*")
    with asking(broker, "bob"):
        waiting = broker.fetch("orders", 1, wait_ms_max=30_000)
    with asking(broker, "ann"):
        other = broker.fetch("orders", 1, wait_ms_max=30_000)
        broker.request(ChangeRulesRequest(name="bob", drop=(rule,)))
    broker.tick(1_000)
    assert other in broker.open_requests
    assert (waiting in broker.open_requests) == has_another
    if has_another:
        with asking(broker, "ann"):
            broker.request(ChangeRulesRequest(name="*", drop=(rule,)))
        broker.tick(1_000)
    response = broker.replies[waiting].response
    assert isinstance(response, RemoteError)
    assert response.code == ErrorCode.STREAM_CHANGED


OTHER_WAITS = {
    "get": (Rule(READ, stream="orders"), lambda number: GetRequest(stream_id=number, offset=0)),
    "list offsets": (Rule(READ, stream="orders"), lambda number: ListOffsetsRequest(stream_id=number, at="latest")),
    "list subjects": (
        Rule(READ, stream="orders"),
        lambda number: ListSubjectsRequest(stream_id=number, subjects=("orders.>",)),
    ),
    "find messages": (
        Rule(READ, stream="orders"),
        lambda number: FindMessagesRequest(stream_id=number, subjects=("orders.>",)),
    ),
    "verify": (Rule(Operation.ADMIN), lambda number: VerifyRequest(stream_id=number, offset=0)),
    "truncate, dry run": (
        Rule(Operation.DELETE, stream="orders"),
        lambda number: TruncateRequest(stream_id=number, before=1, is_dry_run=True),
    ),
    "purge subject, dry run": (
        Rule(Operation.DELETE, stream="orders"),
        lambda number: PurgeSubjectRequest(stream_id=number, subject="orders.>", is_dry_run=True),
    ),
}


@pytest.mark.parametrize("what", ["append", "append on a subject", "fetch by subject", *OTHER_WAITS])
def test_a_rule_that_is_taken_away_while_the_disk_is_asked_counts(broker, what) -> None:
    is_fetch, is_narrow = what == "fetch by subject", what == "append on a subject"
    had = Rule(READ if is_fetch else APPEND, **({"subject": "orders.eu"} if is_narrow else {"stream": "orders"}))
    if what in OTHER_WAITS:
        had, make = OTHER_WAITS[what]
    allow(broker, had)
    if is_narrow:
        allow(broker, Rule(APPEND, subject="orders.us"))
    with asking(broker, "ann"):
        before = broker.values("orders")
    broker.disk_runs_at_once = False
    with asking(broker, "bob"):
        if is_fetch:
            asked = broker.request(FetchRequest(stream_id=stream_id(broker), offset=0, subjects=("orders.>",)))
        elif what in OTHER_WAITS:
            asked = broker.request(make(stream_id(broker)))
        else:
            asked = broker.request(AppendRequest(stream_id=stream_id(broker)), ROWS)
    (executed,) = [broker.execute() for _ in broker.disk]
    broker.disk_runs_at_once = True
    with asking(broker, "ann"):
        broker.request(ChangeRulesRequest(name="bob", drop=(had,)))
    assert asked in broker.open_requests
    broker.complete(executed)
    response = broker.replies[asked].response
    assert isinstance(response, RemoteError)
    assert response.code in (ErrorCode.NOT_YET if is_narrow else ErrorCode.STREAM_CHANGED, ErrorCode.NOT_AUTHORIZED)
    assert not broker.payloads.get(asked)
    with asking(broker, "ann"):
        assert broker.values("orders") == before


def test_who_was_deleted_waits_for_nothing(broker) -> None:
    allow(broker, Rule(READ, stream="orders"))
    with asking(broker, "bob"):
        waiting = broker.fetch("orders", 1, wait_ms_max=30_000)
    with asking(broker, "ann"):
        broker.request(DeleteUserRequest(name="bob"))
        broker.append("orders", b"secret")
    response = broker.replies[waiting].response
    assert isinstance(response, RemoteError)
    assert response.code == ErrorCode.UNAUTHENTICATED


def test_few_parked_fetches_are_authorized_in_a_turn(broker) -> None:
    allow(broker, Rule(READ, stream="orders"))
    with asking(broker, "bob"):
        waiting = {broker.fetch("orders", 1, wait_ms_max=30_000) for _ in range(3 * limits.FETCHES_WOKEN_MAX)}
        broker.request(AlterUserRequest(name="bob", add=(credential(),)))  # takes nothing away
    broker.tick(1_000)
    assert not waiting & broker.replies.keys()
    with asking(broker, "ann"):
        broker.request(ChangeRulesRequest(name="bob", drop=(Rule(READ, stream="orders"),)))
    for turn in range(1, 4):
        assert len(waiting & broker.replies.keys()) <= turn * limits.FETCHES_WOKEN_MAX
        broker.tick(1)
    assert waiting <= broker.replies.keys()


def test_fetches_without_a_user_end_when_the_cluster_gets_users() -> None:
    broker = Broker().start()
    broker.create("orders")
    waiting = broker.fetch("orders", 0, wait_ms_max=30_000)
    broker.request(user("ann", Rule(Operation.ADMIN)))
    broker.tick(1_000)
    response = broker.replies[waiting].response
    assert isinstance(response, RemoteError)
    assert response.code == ErrorCode.UNAUTHENTICATED


def test_a_user_knows_himself_and_changes_his_own_credentials(broker) -> None:
    broker.who = who(broker, "bob")
    seen = broker.ask(ListUsersRequest(), ListUsersResponse)
    assert [one.name for one in seen.users] == ["bob"]
    assert seen.user == "bob"
    broker.request(AlterUserRequest(name="bob", add=(credential(),)))
    assert broker.ask(TestAccessRequest(name="bob", operation=READ, stream="orders"), TestAccessResponse).reason


def test_what_is_told_of_users_holds_no_key(broker) -> None:
    broker.who = who(broker, "ann")
    said = str(broker.ask(ListUsersRequest(), ListUsersResponse))
    assert "stored_key" not in said
    assert "server_key" not in said
    assert "salt" not in said


def test_an_administrator_exports_all_of_which_users_can_be_made_again(broker, monkeypatch) -> None:
    monkeypatch.setattr(limits, "USERS_PER_ANSWER_MAX", 2)
    broker.who = who(broker, "ann")
    kept = credential()
    broker.request(CreateUserRequest(name="zoe", credentials=(kept,), rules=on(READ), quotas=Quotas(1 << 20)))
    found, after = [], ""
    while True:
        page = broker.ask(ExportUsersRequest(after=after), ExportUsersResponse)
        assert len(page.users) <= 2
        found += page.users
        if page.next_after is None:
            break
        after = page.next_after
    assert [one.name for one in found] == sorted(broker.node.image.users)
    zoe = found[-1]
    (exported,) = zoe.credentials
    assert msgspec.structs.replace(exported, created_us=kept.created_us) == kept
    assert (set(zoe.rules), zoe.quotas) == (set(on(READ)), Quotas(1 << 20))


def test_a_credential_that_expires_counts_no_more(broker) -> None:
    with asking(broker, "ann"):
        expiring = Credential(
            "password",
            CredentialKind.PASSWORD,
            1,
            broker.clock.wall_us + 5_000_000,
            *[b"s" * 16, 600_000, bytes(32), bytes(32)],
        )
        broker.request(AlterUserRequest(name="bob", add=(expiring,)))
    allow(broker, Rule(READ, stream="orders"))
    with asking(broker, "bob"):
        broker.answer(broker.fetch("orders"), FetchResponse)
        number = stream_id(broker)
        broker.clock.advance_ms(6_000)
        refusal = broker.refusal(FetchRequest(stream_id=number, offset=0))
        assert refusal.code == ErrorCode.UNAUTHENTICATED
        assert "this password of 'bob' expired at" in refusal.message


def test_what_counts_no_more_uses_up_no_quota_of_the_user(broker) -> None:
    with asking(broker, "ann"):
        broker.request(AlterUserRequest(name="bob", quotas=Quotas(append_bytes_per_s=1_024)))
    bob = who(broker, "bob")
    assert broker.node.access.quotas_for(bob) == Quotas(append_bytes_per_s=1_024)
    assert broker.node.access.quotas_for(bob._replace(mark="another")) is None


def test_who_has_not_logged_in_is_told_no_more_than_how(broker) -> None:
    hello = HelloRequest(client_name="c", client_version="1")
    broker.who = None
    told = broker.ask(hello, HelloResponse)
    assert told.mechanisms == ("SCRAM-SHA-256", "NKEY")
    assert (told.cluster_id, told.nats_urls) == ("", ())


def test_a_broker_that_was_told_so_lets_nobody_in_before_there_are_users() -> None:
    broker = Broker(requires_login=True).start()
    assert broker.refusal(MetadataRequest()).code == ErrorCode.UNAUTHENTICATED


def test_the_first_user_is_made_once_where_everybody_has_to_log_in() -> None:
    made = []

    def first() -> User:
        made.append(1)
        return User("admin", 5, (credential(),), (Rule(Operation.ADMIN),))

    broker = Broker(requires_login=True, first_user=first).start()
    broker.clock.advance_ms(5_000)
    broker.node.tick(broker.clock.now)
    broker.turn()
    assert broker.node.image.administrators() == ["admin"]
    assert made == [1]
    again = broker.crash().start()
    again.clock.advance_ms(5_000)
    again.node.tick(again.clock.now)
    again.turn()
    assert made == [1]
    again.who = who(again, "admin")
    assert set(again.streams()) <= {"__audit"}


def test_test_says_which_rule_decides(broker) -> None:
    allow(broker, Rule(READ, subject="orders.eu.>"), Rule(COMMIT, stream="orders", group="b*"))
    broker.who = who(broker, "ann")

    def tried(operation: Operation, **fields: str) -> tuple[bool, str]:
        answer = broker.ask(TestAccessRequest(name="bob", operation=operation, **fields), TestAccessResponse)
        return answer.is_allowed, answer.reason

    near = "no rule allows it; nearest: read on subject orders.eu.>"
    assert tried(READ, stream="orders") == (False, near)
    assert tried(READ, stream="orders", subject="orders.us.x") == (False, near)
    assert tried(READ, stream="other", subject="other") == (False, "no rule allows it")
    assert tried(READ, stream="orders", subject="orders.eu.x") == (True, "read on subject orders.eu.>")
    assert tried(READ, stream="new", subject="orders.eu.*")[0]
    assert tried(COMMIT, stream="orders", group="b1") == (True, "commit_offsets on stream orders group b*")
    assert not tried(COMMIT, stream="orders", group="c1")[0]
    assert tried(Operation.ADMIN) == (False, "no rule makes it an administrator")
    nobody = TestAccessRequest(name="eve", operation=READ, stream="orders")
    assert broker.refusal(nobody).code == ErrorCode.USER_NOT_FOUND


def test_a_stream_that_is_not_for_him_is_told_from_none_by_nothing(broker) -> None:
    hidden, number = stream_id(broker), stream_id(broker)
    with asking(broker, "ann"):
        broker.create("gone")
        gone = stream_id(broker, "gone")
        broker.request(DeleteStreamRequest(name="gone"))
    with asking(broker, "bob"):
        for make in (
            lambda number: FetchRequest(stream_id=number, offset=0),
            lambda number: AppendRequest(stream_id=number),
            lambda number: TruncateRequest(stream_id=number, before=1),
            lambda number: StagedStreamRequest(stream_id=number),
        ):
            told = [broker.refusal(make(number), ROWS) for number in (hidden, gone)]
            assert "orders" not in str([vars(one) for one in told])
            assert [str(one).replace(str(number), "N") for one, number in zip(told, (hidden, gone), strict=True)] == [
                str(told[0]).replace(str(hidden), "N")
            ] * 2
    assert number


def test_pages_of_streams_tell_of_none_that_is_not_for_him(broker) -> None:
    with asking(broker, "ann"):
        for name in ("alpha", "payroll", "zeta"):
            broker.create(name)
    allow(broker, Rule(READ, stream="a*"), Rule(READ, stream="zeta"), Rule(READ, subject="payroll.eu.>"))
    seen, after = [], None
    with asking(broker, "bob"):
        while True:
            page = broker.ask(MetadataRequest(streams_max=1, after=after), MetadataResponse)
            seen += [info.name for info in page.streams]
            if (after := page.next_after) is None:
                break
            assert after == seen[-1]
    assert seen == ["__offsets", "__schemas", "alpha", "payroll", "zeta"]
    allow(broker)
    with asking(broker, "ann"):
        broker.request(ChangeRulesRequest(name="bob", drop=(Rule(READ, subject="payroll.eu.>"),)))
    with asking(broker, "bob"):
        page = broker.ask(MetadataRequest(streams_max=1, after="__schemas"), MetadataResponse)
        assert page.next_after == "alpha"
        page = broker.ask(MetadataRequest(streams_max=1, after="alpha"), MetadataResponse)
        assert ([info.name for info in page.streams], page.next_after) == (["zeta"], None)


def test_who_may_monitor_sees_all_streams_and_may_nothing_else(broker) -> None:
    with asking(broker, "ann"):
        broker.create("payroll", "payroll.>")
        names = [info.name for info in broker.ask(MetadataRequest(), MetadataResponse).streams]
        assert broker.refusal(ChangeRulesRequest(name="*", add=(MONITOR,))).code == ErrorCode.BAD_REQUEST
        wrong = Rule(Operation.MONITOR, stream="payroll")
        assert broker.refusal(ChangeRulesRequest(name="bob", add=(wrong,))).code == ErrorCode.BAD_REQUEST
    allow(broker, MONITOR)
    with asking(broker, "bob"):
        assert [info.name for info in broker.ask(MetadataRequest(), MetadataResponse).streams] == names
        asked = TestAccessRequest(name="bob", operation=Operation.MONITOR)
        assert broker.ask(asked, TestAccessResponse).is_allowed
        asked = TestAccessRequest(name="bob", operation=READ, stream="payroll")
        assert not broker.ask(asked, TestAccessResponse).is_allowed


@pytest.mark.parametrize("name", CASES)
def test_a_broker_that_may_not_have_heard_of_it_serves_no_user(broker, name) -> None:
    allow(broker, *(rule for rule in CASES[name].rules if rule.operation is not Operation.ADMIN))
    before = state(broker)
    broker.node.access._session.is_started = False
    for somebody in ("bob", "ann"):
        with asking(broker, somebody):
            response = broker.replies[ask(broker, CASES[name])].response
            if name != "status":  # both may monitor
                assert isinstance(response, RemoteError)
                assert response.code == ErrorCode.NOT_YET
    broker.node.access._session.is_started = True
    assert state(broker) == before


@pytest.mark.parametrize(
    "quotas", [Quotas(0), Quotas(-5), Quotas(None, 1), Quotas(None, None, 0), Quotas(1 << 50), Quotas(streams_max=0)]
)
def test_quotas_with_which_nobody_could_live_are_refused(broker, quotas) -> None:
    with asking(broker, "ann"):
        assert broker.refusal(AlterUserRequest(name="bob", quotas=quotas)).code == ErrorCode.BAD_REQUEST


def test_who_has_made_as_many_streams_as_he_may_is_refused_before_anything_is_done(broker) -> None:
    allow(broker, Rule(Operation.CREATE, subject="bobs.>"))
    with asking(broker, "ann"):
        broker.request(AlterUserRequest(name="bob", quotas=Quotas(streams_max=1)))
    with asking(broker, "bob"):
        broker.create("first", "bobs.1")
        before = state(broker)
        refused = broker.refusal(CreateStreamRequest(config=StreamConfig(name="second", subject="bobs.2")))
        assert refused.code == ErrorCode.QUOTA_EXCEEDED
        assert state(broker) == before
        broker.create("first", "bobs.1")
        (told,) = (one for one in broker.ask(ListUsersRequest(), ListUsersResponse).users if one.name == "bob")
        assert told.streams == 1
    with asking(broker, "ann"):
        broker.request(DeleteStreamRequest(name="first"))
    with asking(broker, "bob"):
        broker.create("second", "bobs.2")


def test_a_credential_is_since_now_whatever_the_clock_of_the_client_says(broker) -> None:
    with asking(broker, "ann"):
        broker.request(AlterUserRequest(name="bob", add=(msgspec.structs.replace(credential(), created_us=-7),)))
    (kept,) = broker.node.image.user("bob").credentials
    assert kept.created_us == broker.clock.wall_us


@pytest.mark.parametrize("subject", ["_INBOX.>", "$JS.>", "$PENSTOCK.offsets", "$SYS.>", "prices.>"])
def test_who_may_make_streams_on_what_is_his_hears_nothing_else(broker, subject) -> None:
    allow(broker, Rule(Operation.CREATE, subject="mine.>"), Rule(READ, stream="mal-*"))
    if subject != "prices.>":
        allow(broker, Rule(Operation.CREATE, subject=">"))
    with asking(broker, "bob"):
        made = CreateStreamRequest(config=StreamConfig(name="mal-1", subject=subject))
        assert broker.refusal(made).code == ErrorCode.NOT_AUTHORIZED


def test_a_token_makes_no_other_credential(broker) -> None:
    token = msgspec.structs.replace(credential(), credential_id="t1", kind=CredentialKind.TOKEN, iterations=1)
    soon = msgspec.structs.replace(credential(), expires_us=broker.clock.wall_us + 10**9)
    with asking(broker, "ann"):
        broker.request(AlterUserRequest(name="bob", add=(token, soon)))
    user = broker.node.image.user("bob")
    for one in user.credentials:
        broker.who = Principal("bob", user.made_index, one.credential_id, one.mark)
        refused = broker.refusal(AlterUserRequest(name="bob", add=(credential(),)))
        assert refused.code == ErrorCode.NOT_AUTHORIZED
    broker.request(AlterUserRequest(name="bob", add=(soon,)))
    assert len(broker.node.image.user("bob").credentials) == 2


def test_who_has_groups_sees_where_they_are(broker) -> None:
    allow(broker, Rule(COMMIT, stream="orders"))
    with asking(broker, "bob"):
        assert set(broker.streams()) == {"__offsets", "__schemas", "orders"}
        request = FetchRequest(stream_id=stream_id(broker, "__offsets"), offset=0)
        assert broker.refusal(request).code == ErrorCode.NOT_AUTHORIZED


def test_who_asks_for_a_name_hears_nothing_of_a_stream_that_is_not_for_him(broker) -> None:
    with asking(broker, "ann"):
        broker.create("payroll", "payroll.>", max_age_ms=1_000_000)
    allow(broker, Rule(Operation.CREATE, subject="tmp.>"))
    made = CreateStreamRequest(config=StreamConfig(name="payroll", subject="tmp.a"))
    with asking(broker, "bob"):
        hidden = broker.refusal(made)
    assert hidden.code == ErrorCode.STREAM_EXISTS
    assert hidden.details == {}
    assert "payroll.>" not in hidden.message
    assert "1000000" not in hidden.message
    allow(broker, Rule(READ, stream="payroll"))
    with asking(broker, "bob"):
        assert "subject" in broker.refusal(made).details["differences"]


def test_nor_of_one_that_was_made_meanwhile(broker) -> None:
    allow(broker, Rule(Operation.CREATE, subject="tmp.>"))
    broker.disk_runs_at_once = False
    with asking(broker, "ann"):
        config = StreamConfig(name="payroll", subject="payroll.>", max_age_ms=1_000_000)
        broker.request(CreateStreamRequest(config=config))
    with asking(broker, "bob"):
        caller = broker.request(CreateStreamRequest(config=StreamConfig(name="payroll", subject="tmp.a")))
    broker.disk_runs_at_once = True
    broker.settle()
    hidden = broker.replies[caller].response
    assert isinstance(hidden, RemoteError)
    assert hidden.code == ErrorCode.STREAM_EXISTS
    assert hidden.details == {}
    assert "payroll.>" not in hidden.message


# What a stream of one user takes from those of others


CREATE, ALTER = Operation.CREATE, Operation.ALTER


def refused_create(broker: Broker, name: str, subject: str, **config: object) -> RemoteError:
    with asking(broker, "bob"):
        return broker.refusal(CreateStreamRequest(config=StreamConfig(name=name, subject=subject, **config)))


def created(broker: Broker, name: str, subject: str, *, by: str = "bob", **config: object) -> None:
    with asking(broker, by):
        broker.ask(CreateStreamRequest(config=StreamConfig(name=name, subject=subject, **config)), CreateStreamResponse)


@pytest.mark.parametrize(
    ("theirs", "mine"),
    [
        ({"subject": "work.>"}, {"subject": "work.eu.>"}),
        ({"subject": "work.eu.*"}, {"subject": "work.>"}),
        ({"subject": "work", "partitions": 2}, {"subject": "work.1"}),
        ({"subject": "work.1"}, {"subject": "work", "partitions": 2}),
        ({"subject": "work.1"}, {"subject": "work"}),  # it takes a share of work.1 once it has two partitions
        ({"subject": "work.*", "partitions": 2, "partition_by": "mapped"}, {"subject": "work.eu.1"}),
    ],
)
def test_a_group_that_streams_of_others_use_is_joined_only_by_who_may_alter_them(broker, theirs, mine) -> None:
    """NATS would give the new stream a share of the messages that the others get now."""
    created(broker, "work", **theirs, by="ann", group="workers")
    allow(broker, Rule(CREATE, subject="work"), Rule(CREATE, subject="work.>"))
    error = refused_create(broker, "thief", **mine, group="workers")
    assert error.code == ErrorCode.NOT_AUTHORIZED
    assert "'workers'" in error.message
    assert "'work'" in error.message
    allow(broker, Rule(ALTER, stream="work"))
    created(broker, "second", **mine, group="workers")


def test_a_group_on_other_subjects_is_another_group(broker) -> None:
    created(broker, "work", "work.>", by="ann", group="workers")
    allow(broker, Rule(CREATE, subject="jobs.>"), Rule(CREATE, subject="work.>"))
    created(broker, "jobs", "jobs.>", group="workers")
    created(broker, "copy", "work.>", group="others")
    created(broker, "all", "work.>")


def test_all_streams_of_a_group_are_looked_at(broker) -> None:
    for name in ("work1", "work2"):
        created(broker, name, "work.>", by="ann", group="workers")
    allow(broker, Rule(CREATE, subject="work.>"), Rule(ALTER, stream="work1"))
    error = refused_create(broker, "thief", "work.eu.>", group="workers")
    assert error.code == ErrorCode.NOT_AUTHORIZED
    assert "'work2'" in error.message


def test_a_stream_of_a_group_that_is_there_already_is_found_again(broker) -> None:
    allow(broker, Rule(CREATE, subject="work.>"))
    created(broker, "mine", "work.>", group="workers")
    created(broker, "theirs", "work.>", by="ann", group="workers")
    created(broker, "mine", "work.>", group="workers")


def test_a_stream_joins_no_group_of_others_by_more_partitions(broker) -> None:
    created(broker, "work", "work", by="ann", group="workers")
    created(broker, "part", "work.1", by="ann", group="others")  # before there is anything to share
    allow(broker, Rule(ALTER, stream="work"))
    with asking(broker, "bob"):
        broker.ask(AlterStreamRequest(name="work", changes={"partitions": 2}), AlterStreamResponse)
    created(broker, "jobs", "jobs", by="ann", group="workers")
    created(broker, "jobs1", "jobs.1", by="ann", group="workers")
    allow(broker, Rule(ALTER, stream="jobs"))
    more = AlterStreamRequest(name="jobs", changes={"partitions": 2})
    with asking(broker, "bob"):
        error = broker.refusal(more)
    assert error.code == ErrorCode.NOT_AUTHORIZED
    assert "that you may not see" in error.message
    assert "jobs1" not in error.message  # it is not there for him
    allow(broker, Rule(ALTER, stream="jobs1"))
    with asking(broker, "bob"):
        broker.ask(more, AlterStreamResponse)


def test_no_stream_is_put_into_a_group_later() -> None:
    assert "group" not in ALTERABLE
    assert "partition_by" not in ALTERABLE  # with `group` it would be a queue group


@pytest.mark.parametrize(
    ("subject", "config", "beyond"),
    [
        ("eu.x", {"partitions": 2}, "eu.x.1"),
        ("eu.*", {"partitions": 2, "partition_by": "mapped"}, "eu.*.0"),
    ],
)
def test_a_stream_listens_to_nothing_beyond_the_rules_of_who_makes_it(broker, subject, config, beyond) -> None:
    allow(broker, Rule(CREATE, subject=subject))
    error = refused_create(broker, "eu", subject, **config)
    assert error.code == ErrorCode.NOT_AUTHORIZED
    assert repr(beyond) in error.message
    created(broker, "one", subject)
    allow(broker, *(Rule(CREATE, subject=f"{subject}.{number}") for number in range(2)))
    created(broker, "eu", subject, **config)


def test_it_comes_to_listen_to_nothing_beyond_them_either(broker) -> None:
    allow(broker, Rule(CREATE, subject="eu.x"), Rule(ALTER, subject="eu.x"))
    created(broker, "eu", "eu.x")
    more = AlterStreamRequest(name="eu", changes={"partitions": 3})
    with asking(broker, "bob"):
        error = broker.refusal(more)
    assert error.code == ErrorCode.NOT_AUTHORIZED
    assert "'eu.x.1'" in error.message
    allow(broker, Rule(ALTER, subject="eu.x.*"))
    with asking(broker, "bob"):
        broker.ask(more, AlterStreamResponse)


def test_who_may_alter_a_stream_by_its_name_adds_partitions_to_it(broker) -> None:
    created(broker, "eu", "eu.x", by="ann")
    allow(broker, Rule(ALTER, stream="eu"))
    with asking(broker, "bob"):
        broker.ask(AlterStreamRequest(name="eu", changes={"partitions": 3}), AlterStreamResponse)


def test_each_of_several_subjects_is_looked_at(broker) -> None:
    allow(broker, Rule(CREATE, subject="eu.>"))
    error = refused_create(broker, "two", "eu.a", more_subjects=("us.a",))
    assert error.code == ErrorCode.NOT_AUTHORIZED
    assert "'us.a'" in error.message
    allow(broker, Rule(CREATE, subject="us.a"))
    created(broker, "two", "eu.a", more_subjects=("us.a",))


def test_a_stream_gets_no_subject_on_which_its_changer_may_create_none(broker) -> None:
    created(broker, "eu", "eu.a", by="ann")
    allow(broker, Rule(ALTER, stream="eu"))
    more = AlterStreamRequest(name="eu", changes={}, add_subjects=("us.a",))
    with asking(broker, "bob"):
        error = broker.refusal(more)
    assert error.code == ErrorCode.NOT_AUTHORIZED
    assert "'us.a'" in error.message
    allow(broker, Rule(CREATE, subject="us.*"))
    with asking(broker, "bob"):
        broker.ask(more, AlterStreamResponse)


def test_a_subject_that_is_added_takes_no_messages_from_a_group_of_others(broker) -> None:
    created(broker, "work", "work.>", by="ann", group="workers")
    allow(broker, Rule(CREATE, subject="work.>"), Rule(CREATE, subject="mine"), Rule(ALTER, subject="mine"))
    created(broker, "mine", "mine", group="workers")
    with asking(broker, "bob"):
        error = broker.refusal(AlterStreamRequest(name="mine", changes={}, add_subjects=("work.eu",)))
    assert error.code == ErrorCode.NOT_AUTHORIZED
    assert "'work'" in error.message


def test_who_may_read_some_subjects_reads_no_message_of_one_that_was_removed(broker) -> None:
    """Nor the stream as a whole, though it stores only what may be read by now: the others are still in it."""
    created(broker, "two", "eu.a", by="ann", more_subjects=("us.a",))
    allow(broker, Rule(READ, subject="eu.>"))
    number = stream_id(broker, "two")
    with asking(broker, "bob"):
        assert broker.refusal(FetchRequest(stream_id=number, offset=0)).code == ErrorCode.NOT_AUTHORIZED
    with asking(broker, "ann"):
        broker.ask(AlterStreamRequest(name="two", changes={}, remove_subjects=("us.a",)), AlterStreamResponse)
    with asking(broker, "bob"):
        assert broker.refusal(FetchRequest(stream_id=number, offset=0)).code == ErrorCode.NOT_AUTHORIZED
        broker.ask(FetchRequest(stream_id=number, offset=0, subjects=("eu.a",)), FetchResponse)
    allow(broker, Rule(READ, subject="us.>"))
    with asking(broker, "bob"):
        broker.ask(FetchRequest(stream_id=number, offset=0), FetchResponse)


@pytest.mark.parametrize("config", [{"partitions": 10**9}, {"partitions": 2, "partition_by": "nonsense"}])
def test_of_what_no_stream_can_be_no_subjects_are_looked_at(broker, config) -> None:
    allow(broker, Rule(CREATE, subject="eu.x"), Rule(ALTER, subject="eu.x"))
    assert refused_create(broker, "eu", "eu.x", **config).code == ErrorCode.INVALID_CONFIG
    created(broker, "eu", "eu.x")
    with asking(broker, "bob"):
        error = broker.refusal(AlterStreamRequest(name="eu", changes={"partitions": 10**9}))
    assert error.code == ErrorCode.INVALID_CONFIG


# Streams on the same subjects


def told_overlapping(broker: Broker, by: str, name: str, subject: str, **config: object) -> tuple[str, ...]:
    with asking(broker, by):
        request = CreateStreamRequest(config=StreamConfig(name=name, subject=subject, **config))
        return broker.ask(request, CreateStreamResponse).stream.overlapping


def test_who_makes_a_stream_is_told_of_those_on_its_subjects_that_he_may_see(broker) -> None:
    created(broker, "eu", "eu.>", by="ann")
    created(broker, "part", "us", by="ann", partitions=3)
    allow(broker, Rule(CREATE, subject="eu.x.*"), Rule(CREATE, subject="us.2"), Rule(CREATE, subject="asia"))
    assert told_overlapping(broker, "bob", "eux", "eu.x.*") == ("eu",)
    assert told_overlapping(broker, "bob", "eux", "eu.x.*") == ("eu",), "the same again"
    assert told_overlapping(broker, "bob", "us2", "us.2") == ()  # which is that of a partition, but not there for him
    assert told_overlapping(broker, "bob", "asia", "asia") == ()
    assert told_overlapping(broker, "ann", "all", ">", acks="never") == (
        "asia",
        "copied",
        "eu",
        "eux",
        "orders",
        "part",
        "us2",
    )
    assert told_overlapping(broker, "ann", "more", "us.2") == ("all", "part", "us2")
    with asking(broker, "ann"):
        assert broker.stream("eux").overlapping == ()


def test_no_more_than_some_are_named(broker, monkeypatch) -> None:
    monkeypatch.setattr(limits, "OVERLAPPING_TOLD_MAX", 2)
    for name in ("a", "b", "c"):
        created(broker, name, "eu", by="ann")
    assert told_overlapping(broker, "ann", "d", "eu") == ("a", "b")


def test_more_subjects_than_a_stream_has_are_refused_before_they_are_compared(broker) -> None:
    many = tuple(f"eu.{number}" for number in range(100_000))
    allow(broker, Rule(CREATE, subject="eu.>"), Rule(ALTER, stream="eu"))
    created(broker, "eu", "eu.a")
    with asking(broker, "bob"):
        error = broker.refusal(AlterStreamRequest(name="eu", changes={}, add_subjects=many))
    assert (error.code, "100000 are given" in error.message) == (ErrorCode.INVALID_CONFIG, True)
    error = refused_create(broker, "us", "eu.b", more_subjects=many)
    assert (error.code, "these are 100001" in error.message) == (ErrorCode.INVALID_CONFIG, True)
