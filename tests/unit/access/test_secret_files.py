"""Files with secrets: who may read them, what a broker and a client refuse, and what permits it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.access.secret_files import is_open_to_others, open_to_others
from penstock.base.errors import ConfigError, OperationalError
from penstock.broker.config.checks import OF_SECRETS, exposed_secrets
from penstock.broker.config.config import BrokerConfig, load, to_toml
from penstock.broker.config.settings import SETTINGS, GivenSettings, SourcedValue
from penstock.broker.supervision.supervised import ConfigHandoff, decode, encode
from penstock.cli.terminal.nats_options import login_of
from penstock.cli.terminal.open_secrets import warn_if_open
from penstock.client.link.credentials import credentials_of

SECRET = "a secret of the cluster that is long enough"
PUBLIC = {"data_dir", "tls_cert", "tls_ca", "tls_client_ca", "nats_tls_ca", "nats_tls_cert"}


@pytest.mark.parametrize(
    ("mode", "owner", "is_open"),
    [
        (0o600, 7, False),
        (0o400, 7, False),
        (0o440, 7, True),
        (0o640, 7, True),
        (0o644, 7, True),
        (0o440, 0, False),
        (0o640, 0, False),
        (0o460, 0, True),
        (0o444, 0, True),
        (0o604, 0, True),
    ],
)
def test_a_group_may_read_what_belongs_to_somebody_else(mode: int, owner: int, is_open: bool) -> None:
    state = os.stat_result((mode, 0, 0, 1, owner, 7, 0, 0, 0, 0))
    assert is_open_to_others(state, 7) is is_open


def test_every_setting_that_names_a_file_is_one_of_a_secret_or_not() -> None:
    named = {name for name, setting in SETTINGS.items() if setting.names_file}
    assert named == PUBLIC | set(OF_SECRETS)
    assert not PUBLIC & set(OF_SECRETS)


def secret_in(folder: Path, text: str = SECRET, mode: int = 0o644) -> Path:
    file = folder / "secret"
    file.write_text(text)
    file.chmod(mode)
    return file


def config_of(**settings: str) -> BrokerConfig:
    return load(environment={f"PENSTOCK_{name.upper()}": value for name, value in settings.items()})


@pytest.mark.parametrize("name", OF_SECRETS)
def test_a_broker_refuses_a_file_that_others_may_read(tmp_path: Path, name: str) -> None:
    file = secret_in(tmp_path)
    with pytest.raises(ConfigError) as told:
        load(environment={}, flags={name: str(file)})
    wanted = f"{SETTINGS[name].flag}: {file} holds a secret, and with mode 0644 others than its owner may use it: "
    (mistake,) = [one for one in told.value.mistakes if "holds a secret" in one]
    assert mistake == f"{wanted}chmod 600 {file}; or, in a container, set allow_open_secrets"


def test_one_that_is_private_is_taken(tmp_path: Path) -> None:
    file = secret_in(tmp_path, mode=0o600)
    assert config_of(cluster_secret_file=str(file)).cluster_secret == SECRET
    assert config_of(cluster_secret_file=str(file)).exposed == ()


def test_a_link_is_judged_by_what_it_leads_to(tmp_path: Path) -> None:
    file = secret_in(tmp_path, mode=0o600)
    (tmp_path / "link").symlink_to(file)
    assert config_of(cluster_secret_file=str(tmp_path / "link")).exposed == ()
    file.chmod(0o604)
    with pytest.raises(ConfigError, match="with mode 0604"):
        config_of(cluster_secret_file=str(tmp_path / "link"))


def test_a_setting_permits_it_and_the_start_warns(tmp_path: Path) -> None:
    config = config_of(cluster_secret_file=str(secret_in(tmp_path)), allow_open_secrets="true")
    assert config.cluster_secret == SECRET
    assert config.exposed == (open_to_others(tmp_path / "secret", (tmp_path / "secret").stat()),)
    assert "allow_open_secrets = true" in to_toml(config)
    assert decode(encode(ConfigHandoff(config))).config.exposed == config.exposed


@pytest.mark.parametrize("line", ['cluster_secret = "SECRET"', 'nats = "nats://me:SECRET@nats.example:4222"'])
def test_a_config_file_with_a_secret_is_warned_of(tmp_path: Path, line: str) -> None:
    file = secret_in(tmp_path, line.replace("SECRET", SECRET))
    assert load(file=file, environment={}).exposed == (open_to_others(file, file.stat()),)
    file.chmod(0o600)
    assert load(file=file, environment={}).exposed == ()
    assert load(file=secret_in(tmp_path, "nats_port = 4333"), environment={}).exposed == ()


def test_commands_warn_once_of_a_key_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = secret_in(tmp_path)
    for _ in range(2):
        warn_if_open(file)
    assert capsys.readouterr().err == f"warning: {open_to_others(file, file.stat())}\n"
    file = file.rename(tmp_path / "other")
    file.chmod(0o600)
    warn_if_open(file)
    warn_if_open(tmp_path / "missing")
    assert capsys.readouterr().err == ""


def test_a_secret_on_the_command_line_is_warned_of() -> None:
    flags: dict[str, object] = {"admin_password": "pw", "nats": "nats://me:pw@127.0.0.1:4222"}
    config = load(environment={"PENSTOCK_CLUSTER_SECRET": SECRET, "PENSTOCK_AUTH": "1"}, flags=flags)
    password, url = config.exposed
    assert password == (
        "--admin-password: every user of this machine can read it in the list of processes; "
        "give --admin-password-file FILE, or set PENSTOCK_ADMIN_PASSWORD"
    )
    assert url.startswith("--nats: every user of this machine can read the password in its URL")
    assert "pw" not in password.replace("password", "")
    assert "me:pw" not in url


@pytest.mark.parametrize("name", [name for name, setting in SETTINGS.items() if setting.secret])
def test_so_is_every_other_one(name: str) -> None:
    secret = SETTINGS[name]
    given = GivenSettings()
    given[name] = SourcedValue(SECRET, secret.flag)
    (warning,) = exposed_secrets(given)
    assert warning.startswith(f"{secret.flag}: every user of this machine can read it in the list of processes")
    assert (f"{name}_file" in SETTINGS, f"give {secret.flag}-file FILE" in warning) == (True, True)
    assert SECRET not in warning
    given[name] = SourcedValue(SECRET, secret.variable)
    assert (exposed_secrets(given), given.mistakes) == ((), [])


def test_a_client_refuses_credentials_that_others_may_read(tmp_path: Path) -> None:
    file = secret_in(tmp_path, "ann:pass")
    with pytest.raises(OperationalError, match=r"with mode 0644 .*chmod 600 .*set PENSTOCK_ALLOW_OPEN_SECRETS=true"):
        credentials_of(file, {})()
    assert credentials_of(file, {"PENSTOCK_ALLOW_OPEN_SECRETS": "true"})() is not None
    with pytest.raises(OperationalError, match="chmod 600"):
        credentials_of(None, {"PENSTOCK_CREDENTIALS": str(file)})()
    file.chmod(0o600)
    assert credentials_of(file, {})() is not None


def test_so_are_those_for_nats(tmp_path: Path) -> None:
    file = secret_in(tmp_path, "ann:pass")
    with pytest.raises(ValueError, match="chmod 600"):
        login_of(file)
    file.chmod(0o600)
    assert login_of(file) == {"user": "ann", "password": "pass"}
