"""The brokers of one machine: who they are, what they are told, what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.base.errors import ConfigError, OperationalError
from penstock.broker.config.config import BrokerConfig, load
from penstock.broker.config.data_dir import take_data_dir
from penstock.broker.supervision.machine import MachineRecord, planned, take_machine_dir
from penstock.broker.supervision.supervised import ConfigHandoff, decode, encode

NATS = {"nats": "nats://n.example:4222"}


def config(**flags: str) -> BrokerConfig:
    return load(environment={}, flags={"data_dir": "data", "rack": "here", **flags})


def told(configs: list[BrokerConfig]) -> list[tuple[int, str, str, str, str]]:
    """Of each: its id, its folder, where it listens, whom it begins with, whom it joins."""
    return [
        (
            one.broker_id,
            one.data_dir.name,
            str(one.listen),
            ",".join(map(str, one.voters)),
            ",".join(map(str, one.join)),
        )
        for one in configs
    ]


def mistakes_of(known: MachineRecord | None = None, **flags: str) -> str:
    with pytest.raises(ConfigError) as caught:
        planned(config(**flags), known)
    return "\n".join(caught.value.mistakes)


def test_four_that_are_alone_are_three_and_one_that_joins() -> None:
    configs, remembered = planned(config(brokers="4"), None)
    voters = "1@127.0.0.1:7422,2@127.0.0.1:7423,3@127.0.0.1:7424"
    assert told(configs) == [
        (1, "broker-1", "127.0.0.1:7422", voters, ""),
        (2, "broker-2", "127.0.0.1:7423", voters, ""),
        (3, "broker-3", "127.0.0.1:7424", voters, ""),
        (4, "broker-4", "127.0.0.1:7425", "", "127.0.0.1:7422,127.0.0.1:7423,127.0.0.1:7424"),
    ]
    assert {one.rack for one in configs} == {"here"}
    assert remembered == MachineRecord(1, 1, (7422, 7423, 7424, 7425), (1, 2, 3))


def test_who_comes_later_joins_those_that_began() -> None:
    _, one = planned(config(brokers="1"), None)
    configs, three = planned(config(brokers="3"), one)
    assert [(bool(broker.voters), bool(broker.join)) for broker in configs] == [
        (True, False),
        (False, True),
        (False, True),
    ]
    again, same = planned(config(brokers="3"), three)
    assert (told(again), same) == (told(configs), three)


def test_of_several_machines_each_has_one_that_begins() -> None:
    cluster = "1@10.0.0.1:7422,101@10.0.0.2:7422,201@10.0.0.3:7422"
    flags = {"cluster": cluster, "id": "101", "brokers": "3", "insecure": "yes", **NATS}
    configs, remembered = planned(config(**flags), None)
    others = "10.0.0.1:7422,10.0.0.2:7422,10.0.0.3:7422"
    assert told(configs) == [
        (101, "broker-101", "10.0.0.2:7422", cluster, ""),
        (102, "broker-102", "10.0.0.2:7423", "", others),
        (103, "broker-103", "10.0.0.2:7424", "", others),
    ]
    assert remembered.voters == ()


def test_all_of_a_machine_that_joins_do() -> None:
    flags = {"join": "10.0.0.1:7422", "id": "11", "listen": "10.0.0.9:7000", "insecure": "yes", "brokers": "2", **NATS}
    configs, _ = planned(config(**flags), None)
    assert told(configs) == [
        (11, "broker-11", "10.0.0.9:7000", "", "10.0.0.1:7422"),
        (12, "broker-12", "10.0.0.9:7001", "", "10.0.0.1:7422"),
    ]


def test_ports_that_are_given_and_what_the_others_are_told() -> None:
    flags = {"listen": "0.0.0.0:7422", "advertise": "10.0.0.9:9000", "insecure": "yes"}
    configs, _ = planned(config(brokers="3", ports="7422,7500,7501", **flags), None)
    assert [(str(one.listen), str(one.advertise)) for one in configs] == [
        ("0.0.0.0:7422", "10.0.0.9:9000"),
        ("0.0.0.0:7500", "10.0.0.9:9078"),
        ("0.0.0.0:7501", "10.0.0.9:9079"),
    ]


def test_free_ports_are_remembered() -> None:
    _, first = planned(config(brokers="2", listen="127.0.0.1:0"), None)
    _, second = planned(config(brokers="3", listen="127.0.0.1:0"), first)
    assert len(set(second.ports)) == 3
    assert second.ports[:2] == first.ports


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"brokers": "2"}, r"--brokers: data holds brokers 1 to 3, and 2 are fewer: .* give --brokers 3"),
        ({"brokers": "3", "id": "5"}, "--id: the first broker of data is 1, not 5"),
    ],
)
def test_what_contradicts_an_earlier_start_is_refused(flags: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        planned(config(**flags), MachineRecord(1, 1, (7422, 7423, 7424), (1, 2, 3)))


def test_mistakes_are_told_together() -> None:
    said = mistakes_of(brokers="3", ports="7422,7423", listen="0.0.0.0:7422", insecure="yes", id=str(2**31 - 2))
    assert "--ports: 2 ports for 3 brokers" in said
    assert "--listen: 0.0.0.0:7422 means every address" in said
    assert "--brokers: the last of 3 brokers would have the id 2147483648" in said


def test_ids_and_addresses_of_other_machines_are_not_taken() -> None:
    cluster = "1@10.0.0.1:7422,2@10.0.0.2:7422,9@10.0.0.1:7423"
    said = mistakes_of(cluster=cluster, id="1", brokers="3", insecure="yes", **NATS)
    assert "--cluster: broker 2 would be one of the 3 of this machine, which are 1 to 3" in said
    assert "--cluster: 10.0.0.1:7423 is the address of one of the 3 brokers of this machine" in said


@pytest.mark.parametrize("name", ["ports", "pin"])
def test_what_is_for_several_needs_several(name: str) -> None:
    with pytest.raises(ConfigError, match="is for several brokers on one machine; set brokers"):
        config(**{name: "1" if name == "ports" else "yes"})


# The folder


def test_the_folder_remembers_and_is_held(tmp_path: Path) -> None:
    first = take_machine_dir(tmp_path)
    with pytest.raises(OperationalError, match="in use by another broker"):
        take_machine_dir(tmp_path)
    first.remember(MachineRecord(1, 1, (7422,), (1,)))
    first.release()
    again = take_machine_dir(tmp_path)
    assert again.remembered == MachineRecord(1, 1, (7422,), (1,))
    again.release()


def test_the_directory_of_one_broker_is_not_that_of_several(tmp_path: Path) -> None:
    take_data_dir(tmp_path).release()
    with pytest.raises(OperationalError, match="is the data directory of one broker: start it without --brokers"):
        take_machine_dir(tmp_path)


def test_nor_the_other_way_round(tmp_path: Path) -> None:
    folder = take_machine_dir(tmp_path)
    folder.remember(MachineRecord(1, 1, (7422,), (1,)))
    folder.release()
    with pytest.raises(OperationalError, match="of several brokers of one machine: start them with --brokers"):
        take_data_dir(tmp_path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "not readable as Penstock's"),
        (json.dumps({"format": 1, "first_id": 1, "ports": []}), "not readable as Penstock's"),
        (json.dumps({"format": 1, "first_id": 1, "ports": [70_000]}), "not readable as Penstock's"),
        (json.dumps({"format": 9, "first_id": 1, "ports": [1]}), "has format 9"),
    ],
)
def test_a_damaged_memory_is_refused(tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "brokers.json").write_text(content)
    with pytest.raises(OperationalError, match=said):
        take_machine_dir(tmp_path)
    assert (tmp_path / "brokers.json").read_text() == content


def test_somebody_elses_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.doc").write_text("")
    with pytest.raises(OperationalError, match=r"holds thesis\.doc"):
        take_machine_dir(tmp_path)


# Handed over


def test_a_config_is_the_same_at_the_other_end() -> None:
    flags = {"brokers": "2", "nats_user": "u", "nats_password": "secret", "advertise": "127.0.0.1:9", **NATS}
    configs, _ = planned(config(**flags), None)
    for one in configs:
        found = decode(encode(ConfigHandoff(one, 3, True)))
        assert found == ConfigHandoff(one, 3, True)
        assert dict(found.config.origins) == dict(one.origins)
        assert found.config.nats_credentials.password == "secret"


def test_each_shows_its_metrics_at_a_port_of_its_own() -> None:
    def shown(**flags: str) -> list[str]:
        return [str(one.http) for one in planned(config(brokers="3", **flags), None)[0]]

    assert shown() == ["127.0.0.1:8422", "127.0.0.1:8423", "127.0.0.1:8424"]
    assert shown(http="127.0.0.1:9000", id="7") == ["127.0.0.1:9000", "127.0.0.1:9001", "127.0.0.1:9002"]
    assert shown(http="127.0.0.1:0") == ["127.0.0.1:0"] * 3
    assert shown(http="off") == ["None"] * 3
    assert mistakes_of(brokers="3", http="127.0.0.1:65534") == "--http: the last of 3 brokers would have the port 65536"
    assert "--http: port 7424 is that of a broker itself" in mistakes_of(brokers="3", http="127.0.0.1:7424")
