"""`penstock cluster …`: the level, what each brings, the brokers that keep the cluster from it; JetStream's API."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from penstock.base.ids import BrokerId, TimestampUs
from penstock.cli.broker.cluster import level_rows
from penstock.cli.broker.status import broker_pairs
from penstock.messages import ApiDecisionInfo, BrokerInfo, StatusResponse
from tests.cli_app import app
from tests.unit.cli.broker.test_status import state_of


def status(level: str, *versions: str) -> StatusResponse:
    brokers = (
        BrokerInfo(broker_id=BrokerId(number), address=f"h:{number}", broker_version=version)
        for number, version in enumerate(versions, 1)
    )
    return state_of(feature_level=level, brokers=tuple(brokers))


def rows(level: str, *versions: str) -> list[tuple[str, str]]:
    return [(one, text) for one, text, _ in level_rows(status(level, *versions)) if one]


def test_a_level_is_reached_possible_or_waits_for_brokers() -> None:
    assert rows("0.4", "0.4.0") == [("0.3", "reached"), ("0.4", "reached")]
    assert rows("0.3", "0.4.0", "0.4.1")[1] == ("0.4", "all brokers can: penstock cluster upgrade")
    assert rows("0.3", "0.4.0", "0.3.0", "0.3.1")[1] == ("0.4", "waits for broker 2 (0.3.0), 3 (0.3.1)")
    assert rows("", "0.3.0")[0] == ("0.3", "reached")  # a broker that says no level


def test_a_level_says_what_it_brings() -> None:
    old, *others = level_rows(status("0.3", "0.4.0"))
    assert old == ("0.3", "reached", "the option suspend_deletion of a stream")
    assert ("", "", "the registry of schemas") in others
    assert ("", "", "the option schema_check of a stream") in others


def test_the_status_hints_at_a_level_that_all_brokers_can() -> None:
    assert broker_pairs(status("0.3", "0.4.0"))["feature level"] == "0.3; all brokers can 0.4: penstock cluster upgrade"
    assert broker_pairs(status("0.3", "0.4.0", "0.3.0"))["feature level"] == "0.3"
    assert "feature level" not in broker_pairs(status("", "0.3.0"))


@pytest.mark.parametrize(
    ("state", "why", "text"),
    [
        ("taken", "", "$JS.API.> served"),
        ("withdrawn", "broker 1: a JetStream answers there", "left to another service, broker 1: a JetStream"),
        ("waiting", "", "not served yet: all brokers are to find out first"),
        ("waiting", "the settings of broker 2", "not served yet: the settings of broker 2"),
    ],
)
def test_the_status_says_who_serves_jetstreams_api(state: str, why: str, text: str) -> None:
    decision = ApiDecisionInfo(prefix="$JS.API.", state=state, decided_us=TimestampUs(1), index=1, why=why)
    assert text in broker_pairs(state_of(apis=(decision,)))["JetStream's API"]
    assert "JetStream's API" not in broker_pairs(state_of())


@pytest.mark.parametrize("level", ["abc", "0.9", "0.40"])
def test_a_level_that_can_be_none_is_refused_before_anything_is_asked(level: str) -> None:
    done = CliRunner().invoke(app, ["cluster", "upgrade", "--to", level, "--server", "127.0.0.1:1"])
    assert done.exit_code == 2
    text = " ".join(done.output.replace("│", "").split())
    assert f"--to: '{level}' is no feature level that this program knows: 0.3, 0.4" in text
    assert "Raise the feature level" not in done.output
