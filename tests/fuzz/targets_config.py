"""Files that people and brokers leave: a broker's config and its secrets, and who a data directory belongs to."""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
from functools import cache
from pathlib import Path
from random import Random

from penstock.base.errors import ConfigError, OperationalError
from penstock.base.ids import BrokerId
from penstock.broker.config.config import load, to_toml
from penstock.broker.config.data_dir import MACHINE_FILE, take_data_dir
from penstock.broker.config.settings import SETTINGS
from penstock.broker.security.nats_credentials import NatsServer, parse_nats_urls
from penstock.broker.supervision.machine import MachineRecord, take_machine_dir
from penstock.node.data_dir.clean_stop import CLEAN_STOP_PATH, mark_clean_stop, take_clean_stop
from tests.fuzz.disks import holding
from tests.fuzz.parts import joined, parted
from tests.fuzz.shapes import DEEP_JSON, HOSTILE, as_json, made_json, maker_of
from tests.fuzz.target import Cover, Modules, Target

_NO_DIGITS = str.maketrans("", "", "0123456789")
_TEXTS = (
    "127.0.0.1:7422", "[::1]:0", "0.0.0.0:1", "localhost", "x:y:z", "host:99999", "1@10.0.0.1:1,2@10.0.0.2:2",
    "1@a:1,1@a:1", "0@a:1", "@", ",", "nats://u:p@h:1,tls://t@h", "nats://h:0", "http://h", "nats://[::1", "h/x?y#z",
    "64MiB", "1.5GB", "9" * 30, "9" * 5_000, "1h30m", "9" * 60 + "!", "7d", "0", "-1", "true", "yes", "~", "~nobody/x",
    "a\0b", "info", "json", "", " ", "é", "x" * 300, "²", "٣", "auto", "7422,7423", "7422-7425", "secret", "creds",
    "nkey",
)  # fmt: skip
_SECRETS = {
    "secret": b"p\n",
    "empty": b"",
    "binary": b"\xff\xfe",
    "nkey": b"SUAIBDPBAUTWCWBKIO6XHQNINK5FWJW4OHLXC3HQ2KFE4PEJUA44CNHTC4\n",
    "creds": b"-----BEGIN NATS USER JWT-----\nx.y.z\n------END NATS USER JWT------\n"
    b"-----BEGIN USER NKEY SEED-----\nSUAIBDPBAUTWCWBKIO6XHQNINK5FWJW4OHLXC3HQ2KFE4PEJUA44CNHTC4\n"
    b"------END USER NKEY SEED------\n",
}


@cache
def _scratch() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="penstock-fuzz-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for name, content in _SECRETS.items():
        (folder / name).write_bytes(content)
    return folder


def config(modules: Modules, data: bytes) -> object:
    """A file, an environment and flags: a config that its own text gives again, or every mistake."""
    toml, *others = [*parted(data), b""]
    file = _scratch() / "penstock.toml"
    file.write_bytes(toml)
    environment: dict[str, str] = {}
    flags: dict[str, object] = {}
    for part in others:
        name, _, value = part.decode("utf-8", "replace").partition("=")
        if name in SETTINGS:
            flags[name] = [value] if name in ("nats", "cluster", "join", "ports") and "," in value else value
        elif name.startswith("PENSTOCK_") and name != "PENSTOCK_CONFIG":
            environment[name] = value
    try:
        found = load(file=file, environment=environment, flags=flags)
    except ConfigError as error:
        assert error.mistakes
        assert all(error.mistakes)
        # Without the folder of this process: what comes of an input is the same everywhere.
        told = [one.replace(str(_scratch()), "").rpartition(": ")[2][:30] for one in error.mistakes[:2]]
        return " ".join(told).translate(_NO_DIGITS)
    text = to_toml(found)
    assert "hush" not in text
    again_file = _scratch() / "again.toml"
    again_file.write_text(text)
    try:
        again = load(file=again_file, environment={}, flags={})
    except ConfigError as error:
        # A secret is not shown: what it belongs to lacks it then.
        assert any("nats" in one for one in error.mistakes), (error.mistakes, text)
        return "secret"
    assert again.listen == found.listen
    shown = [line.partition(" = ")[0].split(" is ")[0] for line in text.splitlines() if "and not shown" not in line]
    assert set(shown) <= {line.partition(" = ")[0].split(" is ")[0] for line in to_toml(again).splitlines()}
    return "config"


def _toml_value(chance: Random) -> str:
    kind = chance.random()
    text = _TEXTS[int(chance.random() * len(_TEXTS))]
    if kind < 0.6:
        return json.dumps(text)
    if kind < 0.7:
        return chance.choice(
            ("0", "1", "-1", "7422", "65536", "true", "false", "1.5", "nan", "2026-11-25", "9" * 5_000)
        )
    if kind < 0.85:
        return json.dumps([text, _TEXTS[int(chance.random() * 8)]])
    return chance.choice(
        ("[]", '["", ""]', "[1, true]", "{ a = 1 }", "[[]]", "''''''", '"\\u0000"', "[" * 900 + "]" * 900)
    )


def made_config(chance: Random) -> bytes:
    """Settings of every kind with values that some of them take."""
    names = tuple(SETTINGS)
    lines = [f"{_setting(chance, names)} = {_toml_value(chance)}" for _ in range(int(chance.random() * 4))]
    if chance.random() < 0.05:
        lines.append(
            chance.choice(("[nats]", "port = 1", "[nats]\nport = 1", "[[a]]", "a = ", "é = 1", "nats_prot = 1"))
        )
    if chance.random() < 0.4:
        lines += _cluster(chance)
    parts = ["\n".join(lines).encode()]
    for _ in range(int(chance.random() * 3)):
        name = _setting(chance, names)
        name = name if chance.random() < 0.5 else f"PENSTOCK_{name.upper()}"
        if chance.random() < 0.05:
            name = chance.choice(("PENSTOCK_PORT", "PENSTOCK_SERVER", "PENSTOCK_X", "PENSTOCK_SERVICE_HOST"))
        parts.append(f"{name}={_TEXTS[int(chance.random() * len(_TEXTS))]}".encode())
    return joined(parts)


_TOGETHER = (
    "insecure = true", 'nats = "nats://u:p@h:1,h2"', "nats_port = 5", "brokers = 2", "ports = [7422, 7423]",
    "pin = true",
    'partition_in_flight_bytes = "1GiB"', 'nats_user = "u"', 'nats_password = "hush"', 'nats_creds = "creds"',
    'nats_nkey_seed = "nkey"', 'nats_token = "hush"', 'rack = "r"',
)  # fmt: skip


def _cluster(chance: Random) -> list[str]:
    """Settings of a broker that has others, which may go together."""
    hosts = ("127.0.0.1", "10.0.0.1", "localhost", "[::1]", "host.example", "0.0.0.0")
    here, there = (f"{chance.choice(hosts)}:{chance.choice((0, 7422, 7423))}" for _ in range(2))
    lines = [chance.choice((f'cluster = ["1@{here}", "2@{there}"]', f'cluster = "1@{here}"', f'join = "{there}"'))]
    others = (
        f"id = {chance.choice((1, 1, 2, 3))}",
        f'listen = "{here}"',
        f'advertise = "{there}"',
        f'nats_password_file = "{chance.choice(tuple(_SECRETS))}"',
        *_TOGETHER,
    )
    return lines + [line for line in others if chance.random() < 0.25]


def _setting(chance: Random, names: tuple[str, ...]) -> str:
    # Certificates of the system are read for each context: a hundred times what all else takes.
    while (name := chance.choice(names)).startswith("nats_tls") and chance.random() < 0.995:
        pass
    return name


def nats_urls(modules: Modules, data: bytes) -> object:
    """Servers of a list of URLs, or mistakes that show no secret."""
    text = data.decode("utf-8", "replace")
    try:
        found = parse_nats_urls(text)
    except ConfigError as error:
        for part in text.split(","):
            if "hush" in part.rpartition("@")[0] and text.count("hush") == 1:
                assert not any("hush" in one for one in error.mistakes), (text, error.mistakes)
        return " ".join(one[-30:] for one in error.mistakes[:2]).translate(_NO_DIGITS)
    for server in found:
        assert isinstance(server, NatsServer)
        assert 0 < server.port < 65_536
        assert "hush" not in str(server) or "hush" in server.host
        assert (again := parse_nats_urls(str(server))[0]).port == server.port, again
    return f"{len(found)} {found[0].tls} {found[0].user is None} {found[0].token is None}"


def made_urls(chance: Random) -> bytes:
    """Some URLs with commas between."""
    pick = chance.choice

    def one() -> str:
        scheme = pick(("", "nats://", "tls://", "TLS://", "http://", "://"))
        user = pick(("", "", "hush@", "u:hush@", "u%40:%00@", ":@", "@"))
        host = pick(("h", "10.0.0.1", "[::1]", "[::1", "]", "é.x", "", "a_b", "H", "x" * 300, "h%zz", "[::1%lo]", "℀"))
        port = pick(("", ":4222", ":0", ":65536", ":", ":x", ":٣", ":-1", ":" + "9" * 5_000))
        return f"{scheme}{user}{host}{port}{pick(('', '', '/', '/x', '?a', '#b'))}"

    return ",".join(one() for _ in range(1 + int(chance.random() * 2))).encode()


_NUMBERED = maker_of(MachineRecord)


def data_dir(modules: Modules, data: bytes) -> object:
    """A folder that somebody left: taken as what it is, or refused with nothing touched."""
    name, clean, content = data[:1], data[1:2], data[2:]
    folder = _scratch() / "data"
    folder.mkdir(exist_ok=True)
    is_machine = name > b"\x7f"
    file = folder / (MACHINE_FILE if is_machine else "penstock.json")
    what = clean[0] % 64 if clean else 0
    if what == 1:
        file.mkdir()
    elif what != 2:
        file.write_bytes(content)
    if what == 3 and is_machine:
        (folder / "penstock.json").write_bytes(content)
    try:
        taken = take_machine_dir(folder) if is_machine else take_data_dir(folder, BrokerId(1))
    except OperationalError as error:
        return str(error).partition(" is ")[2][:40].translate(_NO_DIGITS)
    else:
        taken.release()
        return f"taken {is_machine} {what == 2}"
    finally:
        if file.is_dir():
            file.rmdir()
        elif what != 2:
            assert file.read_bytes() == content
        for path in folder.iterdir():
            path.unlink()


def made_data_dir(chance: Random) -> bytes:
    """penstock.json or brokers.json."""
    head = bytes((int(chance.random() * 256), int(chance.random() * 256)))
    kind = chance.random()
    if kind < 0.02:
        return (
            head
            + b'{"format":1,"id":"x","crc32c":"0","more":'
            + chance.choice((DEEP_JSON, b"9" * 5_000, b"1e999"))
            + b"}"
        )
    if head[0] > 0x7F:
        return head + made_json(chance, _NUMBERED)
    said: dict[str, object] = {"format": 1, "id": "0123", "broker_id": 1, "cluster_id": "c"}
    if chance.random() < 0.5:
        said["crc32c"] = chance.choice(("", "00000000", "x", 5))
    if chance.random() < 0.5:
        said[chance.choice(("format", "id", "broker_id", "cluster_id", "more"))] = HOSTILE[
            int(chance.random() * len(HOSTILE))
        ]
    return head + sealed_identity(b"  " + as_json(said))[2:]


def sealed_identity(data: bytes) -> bytes:
    """An identity with the checksum that it needs, where it has one."""
    from penstock.broker.config.data_dir import _checksum

    try:
        said = json.loads(data[2:])
        if not isinstance(said, dict) or "crc32c" not in said:
            return data
        return data[:2] + json.dumps({**said, "crc32c": _checksum(said)}).encode()
    except (ValueError, RecursionError):
        return data


def clean_stop(modules: Modules, data: bytes) -> object:
    """The mark of a clean stop: which run it was, or none; it is gone then."""
    vfs = holding({CLEAN_STOP_PATH: data})
    found = take_clean_stop(vfs)
    assert CLEAN_STOP_PATH not in vfs.list("")
    assert take_clean_stop(vfs) is None
    if found is None:
        return "none"
    assert found >= 0
    mark_clean_stop(vfs, found)
    assert take_clean_stop(vfs) == found
    return "clean"


TARGETS: tuple[Target, ...] = (
    Target(
        "config",
        config,
        made_config,
        (
            Cover("penstock.broker.config.config"),
            Cover(
                "penstock.broker.config.settings",
                (),
                {"Voter": "its text", "Setting.default_text": "it is for the documentation"},
            ),
            Cover(
                "penstock.broker.config.checks",
                (),
                {
                    "api_advice": "it is for people",
                    "voters_advice": "it is for people",
                    "plain_beyond_reach": "it is for people",
                    "exposed_secrets": "it looks at the modes of files",
                },
            ),
            Cover("penstock.base.units", ("parse_bytes", "parse_duration_us", "parse_duration_ms", "_scaled")),
            Cover("penstock.base.addresses", ("parse_address", "may_be_host")),
        ),
        memory_bytes=8 * 1024 * 1024,
    ),
    Target(
        "nats_urls",
        nats_urls,
        made_urls,
        (Cover("penstock.broker.security.nats_credentials", ("parse_nats_urls", "_parse_url", "NatsServer.__str__")),),
        pieces=(b"nats://", b"tls://", b"@", b":", b",", b"[", b"]", b"%", b"/"),
    ),
    Target(
        "data_dir",
        data_dir,
        made_data_dir,
        (
            Cover("penstock.broker.config.data_dir", ("take_data_dir", "_identity", "_checksum")),
            Cover("penstock.broker.supervision.machine", ("take_machine_dir", "_remembered")),
        ),
        seal=sealed_identity,
        memory_bytes=4 * 1024 * 1024,
    ),
    Target(
        "clean_stop",
        clean_stop,
        lambda chance: chance.choice(
            (b"1", b"42", b"9" * 20, b"9" * 21, b"-1", b"", "٣".encode(), b"1\n", b"0x1", b"\xb2")
        ),
        (Cover("penstock.node.data_dir.clean_stop", ("take_clean_stop", "mark_clean_stop")),),
    ),
)
