"""The feature level rises only, and no broker of the cluster is older than it."""

from __future__ import annotations

import pytest

from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import BrokerId
from penstock.metadata.commands import Command, FenceBroker, FormCluster, RaiseFeatureLevel, RegisterBroker
from penstock.metadata.effects.apply import apply
from penstock.metadata.image import ClusterImage, CommandOutcome

FORM = FormCluster(cluster_id="c")
RAISE = RaiseFeatureLevel(feature_level=(0, 4))


def register(number: int, version: str) -> RegisterBroker:
    return RegisterBroker(
        broker_id=BrokerId(number),
        data_dir_id=f"disk{number}",
        address=f"b{number}:7422",
        rack=None,
        broker_version=version,
        clean_stop=True,
        registered_us=1,
    )


def folded(*commands: Command) -> tuple[ClusterImage, list[CommandOutcome | RemoteError]]:
    image, outcomes = ClusterImage(), []
    for command in commands:
        image, outcome = apply(image, image.index + 1, command)
        outcomes.append(outcome)
    return image, outcomes


def test_it_is_raised_once() -> None:
    image, outcomes = folded(FORM, register(1, "0.4.0"), RAISE, RAISE)
    assert outcomes[2:] == [CommandOutcome(changed=True), CommandOutcome()]
    assert image.feature_level == (0, 4)


def test_it_is_never_lowered() -> None:
    image, outcomes = folded(FORM, RAISE, RaiseFeatureLevel(feature_level=(0, 3)))
    assert isinstance(outcomes[2], RemoteError)
    assert outcomes[2].code == ErrorCode.CHANGE_REFUSED
    assert outcomes[2].message.startswith("the cluster is at feature level 0.4, and it is never lowered, as to 0.3: ")
    assert image.feature_level == (0, 4)


@pytest.mark.parametrize("is_away", [False, True])
def test_it_is_not_raised_over_an_older_broker(*, is_away: bool) -> None:
    fence = FenceBroker(broker_id=BrokerId(2), incarnation=3)  # type: ignore[arg-type]
    image, outcomes = folded(FORM, register(1, "0.4.0"), register(2, "0.3.0"), *[fence] * is_away, RAISE)
    refusal = outcomes[-1]
    assert isinstance(refusal, RemoteError)
    assert refusal.code == ErrorCode.UNSUPPORTED_VERSION
    assert "broker 2 (0.3.0); upgrade it first" in refusal.message
    assert ("it cannot be removed from the cluster" in refusal.message) is is_away
    assert refusal.details["brokers"] == [2]
    assert image.feature_level == (0, 3)


def test_an_older_broker_does_not_register() -> None:
    image, outcomes = folded(FORM, register(1, "0.4.0"), register(2, "0.4.0"), RAISE, register(2, "0.3.9"))
    refusal = outcomes[-1]
    assert isinstance(refusal, RemoteError)
    assert refusal.code == ErrorCode.UNSUPPORTED_VERSION
    assert refusal.message == (
        "broker 2 is of version 0.3.9, and the cluster is at feature level 0.4, which is never lowered: start this "
        "broker with version 0.4 or later"
    )
    assert image.brokers[BrokerId(2)].broker_version == "0.4.0"
    assert image.brokers[BrokerId(2)].is_live


def test_a_new_cluster_begins_at_the_level_it_is_formed_with_unless_an_older_broker_is_there() -> None:
    form = FormCluster(cluster_id="c", feature_level=(0, 4))
    assert folded(form)[0].feature_level == (0, 4)
    assert folded(register(1, "0.3.0"), form)[0].feature_level == (0, 3)
    assert folded(FORM)[0].feature_level == (0, 3)
    assert folded(FORM, form)[0].feature_level == (0, 3)  # it was formed, and is not formed again
