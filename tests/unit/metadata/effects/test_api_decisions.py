"""Decisions who serves JetStream's API: each replaces the one that it names, and a taking needs all live brokers."""

from __future__ import annotations

import pytest

from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import BrokerId, Incarnation
from penstock.metadata.api_decisions import PREFIXES_MAX, ApiState
from penstock.metadata.commands import DecideApi, FenceBroker, RegisterBroker
from penstock.metadata.effects.apply import apply
from penstock.metadata.image import ClusterImage, CommandOutcome
from penstock.metadata.persistence.snapshot import decode_image, encode_image

PREFIX = "$JS.API."


def after(image: ClusterImage, *commands: DecideApi | RegisterBroker | FenceBroker) -> ClusterImage:
    for command in commands:
        image, outcome = apply(image, image.index + 1, command)
        assert isinstance(outcome, CommandOutcome), outcome
    return image


def refusal(image: ClusterImage, command: DecideApi) -> str:
    after, outcome = apply(image, image.index + 1, command)
    assert isinstance(outcome, RemoteError)
    assert outcome.code == ErrorCode.CHANGE_REFUSED
    assert after.apis == image.apis
    return outcome.message


def started(*ids: int) -> ClusterImage:
    return after(
        ClusterImage(feature_level=(0, 4)),
        *(
            RegisterBroker(
                broker_id=BrokerId(one),
                data_dir_id=f"disk-{one}",
                address=f"b{one}:1",
                rack=None,
                broker_version="0.4.0",
                clean_stop=False,
                registered_us=1,
            )
            for one in ids
        ),
    )


def decide(image: ClusterImage, state: ApiState, prefix: str = PREFIX, **more: object) -> DecideApi:
    before = image.api(prefix)
    fields = {"prefix": prefix, "before": 0 if before is None else before.index, "decided_us": 5, **more}
    return DecideApi(state=state, **fields)  # type: ignore[arg-type]


def runs(image: ClusterImage) -> tuple[tuple[BrokerId, Incarnation], ...]:
    return tuple((one.broker_id, one.incarnation) for one in image.brokers.values())


def waiting(*ids: int) -> ClusterImage:
    image = started(*ids)
    return after(image, decide(image, ApiState.WAITING))


def taken(*ids: int) -> ClusterImage:
    image = waiting(*ids)
    return after(image, decide(image, ApiState.TAKEN, evidence=runs(image)))


def test_evidence_counts_since_the_decision_that_asked_for_it() -> None:
    image = taken(1, 2)
    (one,) = image.apis
    assert (one.state, one.index, one.since) == (ApiState.TAKEN, image.index, image.index - 1)
    again = after(image, decide(image, ApiState.WAITING, held_back_by=(BrokerId(2),)))
    assert (again.apis[0].since, again.apis[0].held_back_by) == (again.index, (2,))


def test_a_broker_that_was_registered_meanwhile_has_to_give_evidence() -> None:
    image = waiting(1, 2)
    evidence = runs(image)
    registered = after(image, *(_again(image, one) for one in (2,)))
    assert "broker 2 has given no evidence" in refusal(registered, decide(image, ApiState.TAKEN, evidence=evidence))
    fenced = after(image, FenceBroker(broker_id=BrokerId(2), incarnation=evidence[1][1]))
    assert after(fenced, decide(fenced, ApiState.TAKEN, evidence=evidence[:1])).apis[0].state is ApiState.TAKEN


def _again(image: ClusterImage, broker_id: int) -> RegisterBroker:
    known = image.brokers[BrokerId(broker_id)]
    return RegisterBroker(
        broker_id=known.broker_id,
        data_dir_id=known.data_dir_id,
        address=known.address,
        rack=None,
        broker_version="0.4.0",
        clean_stop=False,
        registered_us=2,
    )


def test_of_two_metadata_leaders_one_decides() -> None:
    image = taken(1, 2)
    withdraw, hold = decide(image, ApiState.WITHDRAWN), decide(image, ApiState.WAITING)
    assert "another decision was made meanwhile" in refusal(after(image, withdraw), hold)


@pytest.mark.parametrize(
    ("made", "state"),
    [
        (started, ApiState.TAKEN),
        (started, ApiState.WITHDRAWN),
        (taken, ApiState.FORGOTTEN),
        (taken, ApiState.TAKEN),
    ],
)
def test_a_decision_that_cannot_follow(made: object, state: ApiState) -> None:
    assert callable(made)
    image = made(1, 2)
    assert "it cannot follow" in refusal(image, decide(image, state, evidence=runs(image)))


def test_what_is_withdrawn_can_only_be_asked_for_again() -> None:
    image = taken(1)
    image = after(image, decide(image, ApiState.WITHDRAWN, why="broker 1: a JetStream"))
    assert image.apis[0].why == "broker 1: a JetStream"
    for state in (ApiState.TAKEN, ApiState.FORGOTTEN, ApiState.WITHDRAWN):
        refusal(image, decide(image, state, evidence=runs(image)))
    assert after(image, decide(image, ApiState.WAITING)).apis[0].state is ApiState.WAITING


def test_prefixes_are_bounded_and_forgotten() -> None:
    image = started(1)
    for number in range(PREFIXES_MAX):
        image = after(image, decide(image, ApiState.WAITING, f"$JS.d{number}.API."))
    assert f"there are {PREFIXES_MAX} prefixes" in refusal(image, decide(image, ApiState.WAITING))
    assert decode_image(encode_image(image)) == image
    image = after(image, decide(image, ApiState.FORGOTTEN, "$JS.d3.API."))
    assert len(image.apis) == PREFIXES_MAX - 1


@pytest.mark.parametrize("field", ["since", "index", "state", "why"])
def test_a_snapshot_with_an_impossible_decision_is_refused(field: str) -> None:
    import msgspec

    image = waiting(1)
    wrong = {"since": image.index + 1, "index": image.index + 1, "state": ApiState.FORGOTTEN, "why": "x" * 257}
    fields = msgspec.msgpack.decode(encode_image(image))
    fields[9] = [msgspec.structs.astuple(msgspec.structs.replace(image.apis[0], **{field: wrong[field]}))]
    with pytest.raises(RemoteError, match=r"API"):
        decode_image(msgspec.msgpack.encode(fields))
