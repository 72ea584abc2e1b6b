"""A broker's config: where it comes from, what overrides what, and how all mistakes are told at once."""

from __future__ import annotations

import codecs
import tomllib
from pathlib import Path
from typing import Any

import pytest

from penstock.base.addresses import Address, parse_address
from penstock.base.errors import ConfigError
from penstock.broker.config.checks import api_advice, plain_beyond_reach, voters_advice
from penstock.broker.config.config import knows_broker, load, to_toml
from penstock.broker.config.settings import SETTINGS


def mistakes_of(**places) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(**{"environment": {}, **places})
    return caught.value.mistakes


def write(path: Path, content: str) -> Path:
    path.write_text(content)
    return path


def test_defaults_need_nothing() -> None:
    config = load(environment={"PATH": "/bin", "PENSTOCK_LISTEN": ""})
    assert (config.listen, config.nats, config.nats_port) == (Address("127.0.0.1", 7422), None, 4222)
    assert config.data_dir == Path("penstock-data")


def test_a_later_place_overrides_an_earlier_one(tmp_path: Path) -> None:
    file = write(tmp_path / "p.toml", 'nats_port = 1\ndisk_threads = 2\nlog_level = "debug"\n')
    environment = {"PENSTOCK_CONFIG": str(file), "PENSTOCK_DISK_THREADS": "3", "PENSTOCK_LOG_LEVEL": "warning"}
    config = load(environment=environment, flags={"log_level": "error", "log_format": None})
    assert (config.nats_port, config.disk_threads, config.log_level, config.log_format) == (1, 3, "error", "human")
    assert dict(config.origins) == {
        "nats_port": f"{file}: nats_port",
        "disk_threads": "PENSTOCK_DISK_THREADS",
        "log_level": "--log-level",
    }


def test_a_file_given_by_flag_replaces_the_one_in_the_environment(tmp_path: Path) -> None:
    file = write(tmp_path / "p.toml", "disk_threads = 2")
    assert load(file=file, environment={"PENSTOCK_CONFIG": "/nowhere.toml"}).disk_threads == 2


def test_every_mistake_of_every_place_is_told_with_its_place(tmp_path: Path) -> None:
    file = write(tmp_path / "p.toml", 'nats_prt = 3\ndisk_threads = true\nlisten = "nowhere"\n[nats]\nuser = "x"\n')
    others = {"PENSTOCK_SERVER": "127.0.0.1:1", "PENSTOCK_PLAIN": "1"}
    environment = {"PENSTOCK_LISTN": "x", "PENSTOCK_NATS_PORT": "70000"} | others
    mistakes = mistakes_of(file=file, environment=environment, flags={"log_level": "loud"})
    expected = [
        f"{file}: nats_prt: no such setting; did you mean nats_port?",
        f"{file}: disk_threads: True is not a whole number between 1 and 64",
        f"{file}: listen: 'nowhere' is not an address; expected HOST:PORT, such as 127.0.0.1:7422 or [::1]:7422",
        f"{file}: nats.user: no such setting; did you mean nats_user?",
        "PENSTOCK_LISTN: no such setting; did you mean PENSTOCK_LISTEN?",
        "PENSTOCK_NATS_PORT: 70000 is not a whole number between 0 and 65535",
        "--log-level: 'loud' is not one of debug, info, warning, error",
    ]
    assert sorted(mistakes) == sorted(expected)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("listen = ", "is not valid TOML"),
        ("[tuning]\ndisk_thread = 1", "tuning.disk_thread: no such setting; did you mean disk_threads?"),
        ("[tuning]", "there are no tables"),
    ],
)
def test_a_config_file_that_cannot_be_used(tmp_path: Path, content: str, said: str) -> None:
    (mistake,) = mistakes_of(file=write(tmp_path / "p.toml", content))
    assert said in mistake


def test_a_config_file_that_is_not_there_is_named() -> None:
    assert mistakes_of(file=Path("/nowhere.toml")) == ["/nowhere.toml: cannot be read: No such file or directory"]


@pytest.mark.parametrize("address", ["0.0.0.0:7422", "[::]:7422", "192.168.1.5:7422", "broker.example:7422"])
def test_listening_beyond_this_machine_must_be_wanted(address: str) -> None:
    (mistake,) = mistakes_of(flags={"listen": address})
    assert mistake.startswith("--listen: ")
    assert "insecure" in mistake
    assert load(environment={}, flags={"listen": address, "insecure": True}).listen == parse_address(address)


@pytest.mark.parametrize("address", ["127.0.0.1:0", "127.8.9.1:1", "[::1]:7422", "localhost:7422"])
def test_listening_on_this_machine_needs_no_leave(address: str) -> None:
    assert str(load(environment={}, flags={"listen": address}).listen) == address


@pytest.mark.parametrize(
    "text", ["7422", "host", ":7422", "::1:7422", "[::1]", "[nonsense]:1", "h:-1", "h:٣", "h:65536", "h h:1", ""]
)
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ValueError, match="HOST:PORT"):
        parse_address(text)


def test_kubernetes_variables_are_no_settings() -> None:
    environment = {
        "PENSTOCK_SERVICE_HOST": "10.0.0.1",
        "PENSTOCK_SERVICE_PORT_CLIENT": "7422",
        "PENSTOCK_PORT": "tcp://10.0.0.1:7422",
        "PENSTOCK_PORT_7422_TCP_ADDR": "10.0.0.1",
    }
    assert load(environment=environment).origins == {}


def test_service_links_of_kubernetes_are_passed_over_where_a_setting_has_their_name() -> None:
    """A service "penstock-nats" gives every container of its namespace such a variable."""
    links = {"PENSTOCK_NATS_PORT": "tcp://10.0.0.1:4222", "PENSTOCK_NATS_SERVICE_PORT": "4222"}
    assert load(environment=links).nats_port == SETTINGS["nats_port"].default
    assert not knows_broker(environment=links)
    assert load(environment={"PENSTOCK_NATS_PORT": "4333"}).nats_port == 4333
    assert mistakes_of(environment={"PENSTOCK_NATS_PORT": "udp"}) != []
    assert mistakes_of(environment={"PENSTOCK_HTTP": "tcp://10.0.0.1:80"}) != []


@pytest.mark.parametrize("end", ["\n", "\r\n", ""])
def test_a_line_end_behind_a_value_of_the_environment_is_cut_off(end: str) -> None:
    """As `kubectl create secret --from-file`, or `echo`, leaves it there."""
    environment = {
        "PENSTOCK_NATS": f"nats://127.0.0.1:1{end}",
        "PENSTOCK_NATS_USER": f"u{end}",
        "PENSTOCK_NATS_PASSWORD": f"pass word{end}",
        "PENSTOCK_AUTH": f"true{end}",
        "PENSTOCK_ADMIN_PASSWORD": f" long enough {end}",
    }
    config = load(environment=environment)
    assert (config.nats_credentials.user, config.nats_credentials.password) == ("u", "pass word")
    assert config.admin_password == " long enough "


def test_files_may_begin_with_a_byte_order_mark_and_have_the_line_ends_of_windows(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(codecs.BOM_UTF8 + b"a password of some length\r\n")
    secret.chmod(0o600)
    file = tmp_path / "penstock.toml"
    file.write_bytes(codecs.BOM_UTF8 + b'http = "off"\r\nauth = true\r\nadmin_password_file = "secret"\r\n')
    config = load(file=file, environment={})
    assert config.http is None
    assert config.admin_password == "a password of some length"
    file.write_bytes('http = "off"\r\n'.encode("utf-16"))
    (mistake,) = mistakes_of(file=file, environment={})
    assert "it is UTF-16, as PowerShell's > writes it: save it as UTF-8" in mistake


def test_relative_paths_in_a_file_count_from_the_file(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("hunter2\n")
    file = write(
        tmp_path / "p.toml",
        'data_dir = "data"\nnats = "nats://h"\nnats_user = "me"\nnats_password_file = "secret"\n',
    )
    config = load(file=file, environment={})
    assert config.data_dir == tmp_path / "data"
    assert config.nats_credentials.password == "hunter2"
    assert load(environment={}, flags={"data_dir": "data"}).data_dir == Path("data")


def test_secrets_are_shown_nowhere(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t0ken-in-a-file")
    environment = {"PENSTOCK_NATS": "nats://me:pass-in-url@h:1,h2", "PENSTOCK_NATS_TOKEN_FILE": str(tmp_path / "token")}
    config = load(environment=environment)
    other = load(environment={}, flags={"nats": "h", "nats_user": "me", "nats_password": "pass-in-flag"})
    assert "pass-in-flag" not in str(other.shown)
    shown = repr(config) + str(config) + to_toml(config) + repr(other) + to_toml(other)
    for secret in ("t0ken-in-a-file", "pass-in-url", "pass-in-flag"):
        assert secret not in shown
    assert "nats_password is set, and not shown" in to_toml(other)
    environment = {"PENSTOCK_NATS": "nats://me:pass-in-url@h:0", "PENSTOCK_NATS_PASSWORD": "hidden"}
    mistakes = mistakes_of(environment=environment)
    assert not any("pass-in-url" in text or "hidden" in text for text in mistakes)


def test_combinations_that_cannot_work(tmp_path: Path) -> None:
    assert mistakes_of(flags={"nats_user": "me", "nats_password": "x"}) == [
        "--nats-user: the embedded nats-server takes no such setting; set nats to the URL of another",
        "--nats-password: the embedded nats-server takes no such setting; set nats to the URL of another",
    ]
    (mistake,) = mistakes_of(flags={"nats": "h", "nats_monitor_port": 8222})
    assert mistake == "--nats-monitor-port: is the monitoring port of the embedded nats-server, which --nats replaces"
    (mistake,) = mistakes_of(flags={"nats": "h", "nats_port": 4223})
    assert mistake == "--nats-port: is the port of the embedded nats-server, which --nats replaces"
    (mistake,) = mistakes_of(flags={"nats": "h", "nats_password": "x"}, environment={"PENSTOCK_DISK_THREADS": "1"})
    assert mistake == "nats: a password needs a user (see --nats-password)"
    missing = tmp_path / "none"
    (mistake,) = mistakes_of(flags={"nats": "h", "nats_user": "me", "nats_password_file": str(missing)})
    assert mistake == f"--nats-password-file: cannot read {missing}: No such file or directory"
    (mistake,) = mistakes_of(flags={"nats": "h", "nats_token": "x", "nats_token_file": str(missing)})
    assert mistake == "--nats-token-file: nats_token is set too (by --nats-token); set one of them"
    (mistake,) = mistakes_of(flags={"nats": "h", "nats_tls_ca": str(missing)})
    assert str(missing) in mistake
    assert "see --nats-tls-ca" in mistake
    (mistake,) = mistakes_of(flags={"partition_in_flight_bytes": "1GiB"})
    assert mistake.startswith("--partition-in-flight-bytes: ")
    (mistake,) = mistakes_of(flags={"nats": " , "})
    assert mistake == "--nats: no URL given; write for example nats://localhost:4222, or embedded"


def test_the_embedded_server_can_be_asked_for_against_a_file(tmp_path: Path) -> None:
    file = write(tmp_path / "p.toml", 'nats = ["nats://a", "nats://b"]\n')
    assert [server.host for server in load(file=file, environment={}).nats or ()] == ["a", "b"]
    assert load(file=file, environment={}, flags={"nats": "embedded"}).nats is None


@pytest.mark.parametrize("value", ["1MiB", "1048576", 1_048_576])
def test_sizes(value: object) -> None:
    assert load(environment={}, flags={"partition_in_flight_bytes": value}).partition_in_flight_bytes == 2**20


@pytest.mark.parametrize(("value", "expected"), [("yes", True), ("0", False), (True, True), ("FALSE", False)])
def test_booleans(value: object, expected: bool) -> None:
    assert load(environment={}, flags={"insecure": value}).insecure is expected


@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"data_dir": 'we"ird\\d\tir', "insecure": True, "listen": "[::]:1", "disk_threads": 7},
        {"nats": "tls://a,b:1"},
        {"nats": "h", "id": 2, "cluster": "1@127.0.0.1:1,2@127.0.0.1:2", "rack": "r"},
        {"nats": "h", "id": 9, "join": "127.0.0.1:1,[::1]:2"},
    ],
)
def test_the_shown_config_is_a_config_file_that_means_the_same(tmp_path: Path, flags: dict[str, object]) -> None:
    config = load(environment={}, flags=flags)
    shown = to_toml(config)
    again = load(file=write(tmp_path / "shown.toml", shown), environment={})
    assert again.data_dir == tmp_path / config.data_dir
    assert (again.listen, again.nats, again.insecure, again.disk_threads) == (
        config.listen,
        config.nats,
        config.insecure,
        config.disk_threads,
    )
    assert (again.broker_id, again.voters, again.join, again.rack, again.advertise) == (
        config.broker_id,
        config.voters,
        config.join,
        config.rack,
        config.advertise,
    )
    assert set(tomllib.loads(shown)) <= set(SETTINGS)


THREE = "1@127.0.0.1:7001,2@127.0.0.1:7002,3@[::1]:7003"


def test_a_broker_of_a_cluster_listens_where_the_others_look_for_it() -> None:
    config = load(environment={}, flags={"id": "3", "cluster": THREE, "nats": "h", "rack": "attic"})
    assert [str(voter) for voter in config.voters] == THREE.split(",")
    assert (config.broker_id, config.listen, config.advertise) == (3, Address("::1", 7003), Address("::1", 7003))
    assert (config.rack, config.join, config.origins["listen"]) == ("attic", (), "--cluster")
    environment = {"PENSTOCK_ID": "2", "PENSTOCK_CLUSTER": THREE, "PENSTOCK_NATS": "h"}
    elsewhere = load(environment=environment, flags={"listen": "127.0.0.1:9"})
    assert (elsewhere.listen.port, elsewhere.advertise) == (9, None)


@pytest.mark.parametrize("address", ["0.0.0.0:7001", "[::]:7001"])
def test_no_broker_of_a_cluster_is_at_every_address(address: str) -> None:
    with pytest.raises(ConfigError, match=r"--cluster: .* means every address of a machine"):
        load(environment={}, flags={"id": 1, "nats": "h", "cluster": f"1@{address},2@127.0.0.1:7002"})


@pytest.mark.parametrize(
    ("listen", "listed", "advertised"),
    [
        ("127.0.0.1:7001", "localhost:7001", "localhost:7001"),
        ("0.0.0.0:9", "10.0.0.1:7001", "10.0.0.1:7001"),
        ("10.0.0.9:7001", "broker-1.example:7001", "broker-1.example:7001"),  # the name may be that of 10.0.0.9
        ("10.0.0.9:7001", "10.0.0.1:7001", None),
        ("10.0.0.9:9", "broker-1.example:7001", None),
    ],
)
def test_who_listens_elsewhere_than_the_list_says_is_not_told_by_the_list(
    listen: str, listed: str, advertised: str | None
) -> None:
    config = load(environment={}, flags={"cluster": f"1@{listed}", "listen": listen, "nats": "h", "insecure": True})
    assert (None if config.advertise is None else str(config.advertise)) == advertised


@pytest.mark.parametrize(
    ("advertise", "mistake"),
    [
        ("0.0.0.0:7001", "--advertise: 0.0.0.0:7001 means every address of a machine"),
        ("[::]:7001", "--advertise: [::]:7001 means every address of a machine"),
        ("localhost:7002", "--advertise: 127.0.0.1:7002 is the address of broker 2 (--cluster)"),
    ],
)
def test_an_address_that_leads_the_others_elsewhere_is_refused(advertise: str, mistake: str) -> None:
    flags = {"id": 1, "nats": "h", "cluster": "1@127.0.0.1:7001,2@127.0.0.1:7002,3@127.0.0.1:7003"}
    with pytest.raises(ConfigError) as refused:
        load(environment={}, flags={**flags, "advertise": advertise})
    (text,) = refused.value.mistakes
    assert text.startswith(mistake)


def test_one_broker_may_be_a_cluster_with_a_nats_of_its_own() -> None:
    config = load(environment={}, flags={"cluster": "1@127.0.0.1:7001"})
    assert (config.listen.port, config.nats) == (7001, None)


def test_a_broker_that_joins_says_whom_it_asks() -> None:
    config = load(environment={}, flags={"id": 4, "join": "a:1, [::1]:2", "nats": "h"})
    assert (config.broker_id, config.join, config.voters) == (4, (Address("a", 1), Address("::1", 2)), ())


def test_a_broker_that_joins_from_another_machine_says_where_it_is() -> None:
    flags = {"id": 4, "join": "10.0.0.1:1", "nats": "h", "insecure": True}
    assert load(environment={}, flags={**flags, "listen": "10.0.0.4:1"}).listen == Address("10.0.0.4", 1)
    config = load(environment={}, flags={**flags, "listen": "0.0.0.0:1", "advertise": "10.0.0.4:1"})
    assert config.advertise == Address("10.0.0.4", 1)


def test_a_cluster_in_a_file_is_a_list(tmp_path: Path) -> None:
    file = write(tmp_path / "p.toml", f'id = 2\nnats = "h"\ncluster = {THREE.split(",")}\n'.replace("'", '"'))
    assert [str(voter) for voter in load(file=file, environment={}).voters] == THREE.split(",")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"cluster": "127.0.0.1:7001"}, "'127.0.0.1:7001' is not a broker; expected ID@HOST:PORT"),
        ({"cluster": "0@127.0.0.1:7001"}, "'0' is not an id from 1 to 2147483647"),
        ({"cluster": "99999999999999@127.0.0.1:7001"}, "is not an id"),
        ({"cluster": "one@127.0.0.1:7001"}, "'one' is not an id"),
        ({"cluster": "1@nowhere"}, "'nowhere' is not an address"),
        ({"cluster": "1@127.0.0.1:0"}, "port 0"),
        ({"cluster": " , "}, "no broker given"),
        ({"cluster": "1@a:1,1@b:1"}, "two brokers with the same id: 1"),
        ({"cluster": "1@a:1,2@a:1"}, "two brokers with the same address: a:1"),
        ({"cluster": "1@A:1,2@a:1"}, "two brokers with the same address: a:1"),
        ({"cluster": "1@localhost:1,2@127.0.0.1:1"}, "two brokers with the same address: 127.0.0.1:1"),
        ({"cluster": "1@a:1,,3@c:1"}, "one of the brokers is empty"),
        ({"cluster": ",1@a:1"}, "one of the brokers is empty"),
        (
            {"cluster": "1@a:1,1@b:1,2@b:1"},
            "two brokers with the same id: 1; two brokers with the same address: b:1",
        ),
        ({"cluster": ",".join(f"{one}@a:{one}" for one in range(1, 7))}, "6 voters; at most 5 decide together"),
        ({"cluster": THREE, "nats": "h"}, "--cluster: which broker of the cluster is this one? Set id (--id)"),
        ({"join": "a:1", "nats": "h"}, "--join: which broker of the cluster is this one? Set id (--id)"),
        ({"cluster": THREE, "id": 4, "nats": "h"}, "this broker, 4 (--id), is not one of 1, 2, 3"),
        ({"cluster": THREE, "id": 2}, "--cluster: every broker of a cluster uses the same NATS"),
        ({"join": "127.0.0.1:1", "id": 2}, "--join: every broker of a cluster uses the same NATS"),
        ({"cluster": THREE, "join": "a:1", "id": 2}, "begin a cluster, others join one; set one"),
        ({"cluster": THREE, "id": 2, "nats": "h", "listen": "127.0.0.1:0"}, "look for this broker at 127.0.0.1:7002"),
        ({"cluster": "1@10.0.0.1:7422"}, "--cluster: 10.0.0.1:7422 can be reached from other machines"),
        ({"join": " "}, "no address given"),
        ({"join": "user:PART,SECRET@h:1"}, "--join: an address has no login, and this one has an '@': write HOST:PORT"),
        ({"cluster": "user:SECRET@h:1"}, "--cluster: the text before the '@' is not an id from 1 to"),
        ({"http": "user:SECRET@h:1"}, "--http: an address has no login"),
        (
            {"join": "10.0.0.1:7422", "id": 4, "nats": "h"},
            "listen (default): the others would be told that this broker",
        ),
        (
            {"join": "10.0.0.1:7422", "id": 4, "nats": "h", "listen": "0.0.0.0:1", "insecure": True},
            "--listen: the others would be told that this broker is at 0.0.0.0:1, where they, at 10.0.0.1:7422, do not",
        ),
        (
            {"cluster": "1@127.0.0.1:7422,2@10.0.0.2:7422", "id": 1, "nats": "h"},
            "--cluster: the others would be told that this broker is at 127.0.0.1:7422",
        ),
        ({"id": 0}, "--id: 0 is not a whole number between 1 and 2147483647"),
        ({"id": 2**31}, "is not a whole number"),
        ({"rack": "r" * 129}, "a rack has a name of at most 128"),
    ],
)
def test_clusters_that_cannot_work(flags: dict[str, object], said: str) -> None:
    (mistake,) = mistakes_of(flags=flags)
    assert said in mistake


@pytest.mark.parametrize(("count", "said"), [(1, None), (2, "does NOT survive"), (3, None), (4, "one of 3"), (5, None)])
def test_an_even_number_of_voters_is_advised_against(count: int, said: str | None) -> None:
    cluster = ",".join(f"{number}@127.0.0.1:{number}" for number in range(1, count + 1))
    advice = voters_advice(load(environment={}, flags={"id": 1, "cluster": cluster, "nats": "h"}).voters)
    assert (advice is None) if said is None else (advice is not None and said in advice)


def test_a_file_that_is_nested_too_deeply_is_a_mistake(tmp_path: Path) -> None:
    file = write(tmp_path / "p.toml", f"nats = {'[' * 5_000}{']' * 5_000}\n")
    (mistake,) = mistakes_of(file=file)
    assert mistake == f"{file}: is not valid TOML: nested too deeply"


def test_a_home_that_nobody_has_is_a_mistake() -> None:
    (mistake,) = mistakes_of(environment={"PENSTOCK_DATA_DIR": "~nobody-of-that-name/data"})
    assert mistake.startswith("PENSTOCK_DATA_DIR: ")


@pytest.mark.parametrize("name", ["data_dir", "nats_password_file", "nats_creds", "nats_tls_ca"])
def test_a_path_with_a_nul_is_a_mistake(tmp_path: Path, name: str) -> None:
    file = write(tmp_path / "p.toml", f'nats = "h"\n{name} = "a\\u0000b"\n')
    found = mistakes_of(file=file)
    assert any("NUL" in mistake for mistake in found), found


def test_the_ports_of_several_brokers_are_shown_as_a_file_says_them(tmp_path: Path) -> None:
    config = load(environment={}, flags={"brokers": "2", "ports": "7423,7424"})
    again = load(file=write(tmp_path / "p.toml", to_toml(config)), environment={})
    assert again.ports == config.ports == (7423, 7424)


@pytest.mark.parametrize("address", ["0.0.0.0:8422", "[::]:0", "192.168.1.5:8422"])
def test_metrics_are_shown_beyond_this_machine_with_a_token_or_if_that_is_wanted(tmp_path: Path, address: str) -> None:
    (mistake,) = mistakes_of(flags={"http": address})
    assert mistake.startswith(f"--http: {address} can be reached from other machines")
    secret = write(tmp_path / "token", "s3cret\n")
    for flags in ({"insecure": True}, {"http_token_file": str(secret)}, {"http_token": "s3cret"}):
        config = load(environment={}, flags={"http": address, **flags})
        assert config.http == parse_address(address, any_port=True)
        assert "s3cret" not in repr(config) + to_toml(config) + str(config.shown)
    assert config.http_token == load(environment={}, flags={"http_token_file": str(secret)}).http_token == "s3cret"


def test_the_port_for_metrics_can_be_turned_off(tmp_path: Path) -> None:
    file = write(tmp_path / "p.toml", "http = false")
    for config in (load(environment={}, flags={"http": "off"}), load(file=file, environment={})):
        assert config.http is None
        assert 'http = "off"' in to_toml(config)
    assert load(environment={}).http == Address("127.0.0.1", 8422)


@pytest.mark.parametrize("token", ["two words", "ümlaut", "line\nend", ""])
def test_a_token_can_be_sent_in_a_header(token: str) -> None:
    (mistake,) = mistakes_of(flags={"http_token": token})
    assert "expected" in mistake
    assert not token or token not in mistake


def test_a_token_needs_no_nats_of_its_own() -> None:
    assert load(environment={}, flags={"http_token": "s3cret"}).nats is None


@pytest.mark.parametrize(
    ("listen", "has_tls", "is_told"),
    [("127.0.0.1:7422", False, False), ("0.0.0.0:7422", True, False), ("0.0.0.0:7422", False, True)],
)
def test_what_is_reached_from_other_machines_without_tls_is_told(listen: str, has_tls: bool, is_told: bool) -> None:
    told = plain_beyond_reach(parse_address(listen), has_tls=has_tls)
    assert (told is not None) is is_told
    assert told is None or told.startswith("0.0.0.0:7422 speaks no TLS")


def test_the_leaf_port_of_nats() -> None:
    on = {"nats": "h", "jetstream_api": "domain"}
    assert load(environment={}, flags={"nats": "h"}).nats_leaf == ()
    assert load(environment={}, flags={"nats_leaf": "off"}).nats_leaf == ()
    config = load(environment={}, flags={**on, "nats_leaf": "nats://leaf:hidden@h:7423,tls://[::1]:7424/"})
    assert [(one.host, one.port, one.tls, one.user) for one in config.nats_leaf] == [
        ("h", 7423, False, "leaf"),
        ("::1", 7424, True, None),
    ]
    assert "hidden" not in f"{config}{to_toml(config)}"
    assert config.exposed == (
        "--nats-leaf: every user of this machine can read the password in its URL in the list of processes; give "
        "--nats-password-file FILE, --nats-creds FILE, or set PENSTOCK_NATS_LEAF",
    )
    for url in ("nats://leaf:hidden@h", "hidden@h", "nats://[::1]", ""):
        (mistake,) = mistakes_of(flags={**on, "nats_leaf": url})
        assert "with the port of `leafnodes`" in mistake
        assert "hidden" not in mistake
    (mistake,) = mistakes_of(flags={"jetstream_api": "auto", "nats_leaf": "h:7423"})
    assert "--nats-leaf: the embedded nats-server takes no such setting" in mistake
    (mistake,) = mistakes_of(flags={"nats": "h", "nats_leaf": "h:7423"})
    assert mistake == "--nats-leaf: nothing is delivered while jetstream_api is off; set it (--jetstream-api domain)"
    (mistake,) = mistakes_of(flags={**on, "nats_leaf": "h:0"})
    assert "--nats-leaf: " in mistake


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({}, None),
        ({"rights": "manage"}, "jetstream_rights has no effect"),
        ({"user": "nats"}, "jetstream_user has no effect"),
        ({"is_on": True, "user": "nats"}, "until users have to log in"),
        ({"is_on": True, "user": "nats", "has_users": True}, None),
        ({"is_on": True, "rights": "manage"}, None),
    ],
)
def test_settings_of_the_api_without_effect_are_told(settings: dict[str, Any], text: str | None) -> None:
    advice = api_advice(**{"is_on": False, "rights": None, "user": None, "has_users": False, **settings})
    assert advice is None if text is None else advice is not None and text in advice
