"""`penstock user …` and `penstock acl …` against a real broker: what they refuse, and how they say it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import warm
from tests.broker_process import BrokerProcess, running_broker
from tests.extent import needs_time

Run = Callable[..., subprocess.CompletedProcess[str]]

TOKEN = "pst_admin_4f3a9c21_" + "0123456789abcdef" * 4
SEED = "SUAMLK2ZNL35WSMW37E7UD4VZ7ELPKW7DHC3BWBSD2GCZ7IUQQXZIORRBU"  # made for nothing else
NAMED = "admin:a password"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with running_broker(tmp_path_factory.mktemp("broker") / "data", "--auth") as broker:
        yield broker


@pytest.fixture(scope="module")
def penstock(broker: BrokerProcess) -> Run:
    """The program, as the administrator, unless `more` of the environment says otherwise."""

    def run(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        known = {
            "PENSTOCK_SERVER": broker.client_address,
            "PENSTOCK_CREDENTIALS": str(broker.data_dir / "admin.credentials"),
        }
        return warm.run(arguments, {**broker.environment, **known, **more})

    return run


def credential_ids(penstock: Run, user: str) -> list[str]:
    users = [json.loads(line) for line in penstock("user", "list", "--json").stdout.splitlines()]
    return [one["credential_id"] for user_ in users if user_["name"] == user for one in user_["credentials"]]


@needs_time
def test_only_a_credential_that_is_there_is_dropped(penstock: Run) -> None:
    assert penstock("user", "add", "billing", "--token").returncode == 0
    (there,) = credential_ids(penstock, "billing")
    for more in ((), ("--token",), ("--drop", there)):
        refused = penstock("user", "rotate", "billing", "--drop", "deadbeef", *more)
        assert refused.returncode == 1, refused.stderr
        assert refused.stdout == ""
        assert f"user billing has no token or nkey deadbeef; it has token {there}" in refused.stderr
        assert credential_ids(penstock, "billing") == [there]
    nobody = penstock("user", "rotate", "nobody", "--drop", "deadbeef")
    assert (nobody.returncode, nobody.stderr) == (1, "Error: there is no user nobody\n")


@needs_time
def test_who_changes_what_he_logs_in_with_hears_that_it_was_done(penstock: Run, tmp_path: Path) -> None:
    """What asked counts no more when it is told."""
    old, new, shown = tmp_path / "old", tmp_path / "new", tmp_path / "pat.credentials"
    old.write_text("pat-password-1")
    new.write_text("pat-password-2")
    shown.write_text("pat:pat-password-1")
    assert penstock("user", "add", "pat", "--password-file", str(old)).returncode == 0
    rotated = penstock("user", "rotate", "pat", "--password-file", str(new), PENSTOCK_CREDENTIALS=str(shown))
    assert (rotated.returncode, rotated.stderr) == (0, "user pat logs in with: password\n")
    token = tmp_path / "admin.token"
    assert penstock("user", "rotate", "admin", "--token", "--out", str(token)).returncode == 0
    (dropped,) = [one for one in credential_ids(penstock, "admin") if one != "password"]
    rotated = penstock("user", "rotate", "admin", "--drop", dropped, PENSTOCK_CREDENTIALS=str(token))
    assert (rotated.returncode, rotated.stderr) == (0, "user admin logs in with: password\n")


@needs_time
@pytest.mark.parametrize("secret", [TOKEN, SEED, NAMED])
def test_a_secret_in_the_place_of_a_file_is_not_repeated(penstock: Run, secret: str) -> None:
    for run in (
        penstock("user", "list", PENSTOCK_CREDENTIALS=secret),
        penstock("--credentials", secret, "user", "list"),
        penstock("user", "add", "carol", "--password-file", secret),
    ):
        assert run.returncode == 1
        assert secret not in run.stderr
        assert "is not repeated here" in run.stderr
    nkey = penstock("user", "add", "carol", "--nkey", secret)
    assert nkey.returncode == 2
    assert secret not in nkey.stderr


@needs_time
def test_a_script_gets_rules_and_quotas_by_name(penstock: Run) -> None:
    assert penstock("user", "add", "dora", "--token").returncode == 0
    assert penstock("acl", "add", "dora", "read", "--stream", "orders").returncode == 0
    assert penstock("user", "limit", "dora", "--connections", "3").returncode == 0
    users = [json.loads(line) for line in penstock("user", "list", "--json").stdout.splitlines()]
    (dora,) = (one for one in users if one["name"] == "dora")
    assert dora["rules"] == [{"operation": "read", "stream": "orders", "group": "*"}]
    names = ("append_bytes_per_s", "fetch_bytes_per_s", "streams_max", "partitions_max", "message_ids_max")
    none = dict.fromkeys(names)
    assert dora["quotas"] == {**none, "connections_max": 3}
    assert dora["streams"] == 0


@needs_time
def test_a_user_makes_streams_up_to_its_limit_and_is_told_what_to_do_then(penstock: Run) -> None:
    made = penstock("user", "add", "hal", "--token")
    hal = {"PENSTOCK_CREDENTIALS": "", "PENSTOCK_TOKEN": made.stdout.strip()}
    for right in ("create,delete,read",):
        assert penstock("acl", "add", "hal", right, "--subject", "hal.>").returncode == 0
    limited = penstock("user", "limit", "hal", "--streams", "1")
    assert limited.stderr == "limits of user hal on each broker: none; in the cluster: 1 stream\n"
    assert penstock("stream", "create", "hal-1", "hal.1", **hal).returncode == 0
    refused = penstock("stream", "create", "hal-2", "hal.2", **hal)
    assert refused.returncode == 1
    assert "it has made 1 and its limit is 1: delete one that is not needed" in refused.stderr
    assert "`penstock user limit hal --streams N`" in refused.stderr
    assert penstock("stream", "create", "hal-1", "hal.1", **hal).returncode == 0, "the same again"
    (listed,) = (line for line in penstock("user", "list").stdout.splitlines() if line.startswith("hal "))
    assert "1 of 1" in listed
    shown = penstock("stream", "show", "hal-1", **hal)
    assert "hal" in next(line for line in shown.stdout.splitlines() if line.startswith("made by")).split()
    assert penstock("stream", "delete", "hal-1", "--yes", **hal).returncode == 0
    assert penstock("stream", "create", "hal-2", "hal.2", **hal).returncode == 0
    assert penstock("user", "limit", "hal", "--streams", "none").returncode == 0
    assert penstock("stream", "create", "hal-3", "hal.3", **hal).returncode == 0
    assert penstock("user", "limit", "hal", "--streams", "0").returncode == 2
    for name in ("hal-2", "hal-3"):
        assert penstock("stream", "delete", name, "--yes", **hal).returncode == 0


@needs_time
def test_what_somebody_may_not_see_is_not_said_to_be_missing(penstock: Run) -> None:
    token = penstock("user", "add", "eve", "--token").stdout.strip()
    eve = {"PENSTOCK_CREDENTIALS": "", "PENSTOCK_TOKEN": token}
    assert penstock("stream", "list").stderr.startswith("no streams yet")
    assert penstock("stream", "list", **eve).stderr.startswith("no streams that you may see")
    refused = penstock("status", **eve)
    assert refused.returncode == 2
    assert "user 'eve' may not monitor the cluster: this operation requires the rule monitor or admin" in refused.stderr


@needs_time
def test_names_of_users_are_completed_for_who_has_logged_in(
    penstock: Run, broker: BrokerProcess, tmp_path: Path
) -> None:
    frida = tmp_path / "frida.token"
    assert penstock("user", "add", "frida", "--token", "--out", str(frida)).returncode == 0

    def completed(line: str, **more: str) -> list[str]:
        known = {"_PENSTOCK_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
        done = warm.run([], {**broker.environment, "PENSTOCK_SERVER": broker.client_address, **known, **more})
        assert not done.stderr, done.stderr
        return done.stdout.split()

    # Who asks has a token: completion waits for one second, of which a password alone takes the client 0.2 s of CPU.
    admin = str(tmp_path / "chief.token")
    assert penstock("user", "add", "chief", "--token", "--out", admin).returncode == 0
    assert penstock("acl", "add", "chief", "admin").returncode == 0
    for line in ("user rotate fr", "user delete fr", "acl add fr", "acl list fr"):
        assert completed(f"penstock {line}", PENSTOCK_CREDENTIALS=admin) == ["frida"]
    assert completed(f"penstock --credentials {admin} user limit adm") == ["admin"]
    assert completed(f"penstock user limit --credentials {admin} adm") == ["admin"]
    assert completed("penstock user limit adm") == []
    assert completed("penstock user rotate ", PENSTOCK_TOKEN=frida.read_text().strip()) == ["frida"]
    assert completed("penstock user add fr", PENSTOCK_CREDENTIALS=admin) == []
    assert completed("penstock acl add frida read,com") == ["read,commit_offsets"]


@needs_time
def test_who_may_read_some_subjects_reads_these_of_all_partitions(penstock: Run, tmp_path: Path) -> None:
    stream = "shares"
    made = penstock("stream", "create", stream, f"{stream}.>", "--partitions", "2", "--partition-by", "token:2")
    assert made.returncode == 0, made.stderr
    for region, value in (("eu", "a"), ("us", "b"), ("eu", "c")):
        penstock("publish", f"{stream}.{region}", value, "--key", value)
    (tmp_path / "password").write_text("a password")
    assert penstock("user", "add", stream, "--password-file", str(tmp_path / "password")).returncode == 0
    assert penstock("acl", "add", stream, "read", "--subject", f"{stream}.eu.>").returncode == 0
    assert penstock("acl", "add", stream, "read", "--subject", f"{stream}.eu").returncode == 0
    (tmp_path / "credentials").write_text(f"{stream}:a password")
    who = {"PENSTOCK_CREDENTIALS": str(tmp_path / "credentials")}
    refused = penstock("read", stream, **who)
    assert (refused.returncode, "may not read" in refused.stderr) == (1, True)
    only = ("read", stream, "--subject", f"{stream}.eu")
    for more, values in (
        ((), "ac"),
        (("--key", "c"), "c"),
        (("--from", "1h ago", "--to", "latest"), "ac"),
        (("--follow", "--limit", "2"), "ac"),
    ):
        run = penstock(*only, "--format", "json", *more, **who)
        assert run.returncode == 0, run.stderr
        assert [json.loads(line)["value"] for line in run.stdout.splitlines()] == [*values]


@needs_time
def test_who_reads_a_stream_is_shown_it_and_who_cannot_verify_is_told_why(penstock: Run, tmp_path: Path) -> None:
    assert penstock("stream", "create", "shown", "shown.>").returncode == 0
    (tmp_path / "password").write_text("a password")
    assert penstock("user", "add", "viewer", "--password-file", str(tmp_path / "password")).returncode == 0
    assert penstock("acl", "add", "viewer", "read", "--stream", "shown").returncode == 0
    (tmp_path / "credentials").write_text("viewer:a password")
    who = {"PENSTOCK_CREDENTIALS": str(tmp_path / "credentials")}
    shown = penstock("stream", "show", "shown", **who)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "shown.>" in shown.stdout
    assert penstock("stream", "show", "shown", "--json", **who).returncode == 0
    for arguments in ((), ("shown",), ("--json",)):
        refused = penstock("verify", *arguments, **who)
        assert refused.returncode == 1
        assert (refused.stdout, "Not sound" in refused.stderr) == ("", False)
        assert "needs the rule `admin`" in refused.stderr


@needs_time
def test_who_may_read_some_subjects_reads_them(penstock: Run) -> None:
    assert penstock("stream", "create", "regions", "regions.>").returncode == 0
    for subject in ("regions.eu", "regions.us"):
        assert penstock("publish", subject, subject).returncode == 0
    eu = {"PENSTOCK_CREDENTIALS": "", "PENSTOCK_TOKEN": penstock("user", "add", "eu", "--token").stdout.strip()}
    assert penstock("acl", "add", "eu", "read", "--subject", "regions.eu").returncode == 0
    ends = (("--limit", "1", "--follow"), ("--to", "latest"), ())
    for more in ends:
        read = penstock("read", "regions", "--subject", "regions.eu", "--format", "raw", *more, **eu)
        assert (read.returncode, read.stdout) == (0, "regions.eu\n"), read.stderr
    refused = penstock("read", "regions", **eu)
    assert (refused.returncode, refused.stdout) == (1, "")
    shown = penstock("stream", "show", "regions", **eu)
    assert shown.returncode == 0, shown.stderr
    assert "regions.>" in shown.stdout


@needs_time
def test_who_makes_a_stream_is_told_of_those_on_the_same_subjects(penstock: Run) -> None:
    assert penstock("stream", "create", "over", "over.>").stderr == ""
    made = penstock("stream", "create", "part", "over.eu.*")
    assert made.returncode == 0
    assert "note: other streams store messages on its subjects, too: over" in made.stderr
    assert "Nats-Expected-Stream: part" in made.stderr
    silent = penstock("stream", "create", "never", "over.us", "--acks", "never")
    assert "on its subjects, too: over" in silent.stderr
    assert "first ack" not in silent.stderr


@needs_time
def test_a_user_makes_partitions_and_ids_up_to_its_limits(penstock: Run) -> None:
    made = penstock("user", "add", "ida", "--token")
    ida = {"PENSTOCK_CREDENTIALS": "", "PENSTOCK_TOKEN": made.stdout.strip()}
    assert penstock("acl", "add", "ida", "create,alter", "--subject", "ida.>").returncode == 0
    limited = penstock("user", "limit", "ida", "--partitions", "3", "--message-ids", "3000")
    assert limited.stderr.endswith("; in the cluster: 3 partitions, 3,000 message ids\n")
    options = ("--partition-by", "key", "--dedup-ids-max", "1000")
    assert penstock("stream", "create", "ida-1", "ida.1", "--partitions", "2", *options, **ida).returncode == 0
    refused = penstock("stream", "create", "ida-2", "ida.2", "--partitions", "2", *options, **ida)
    assert refused.returncode == 1
    assert "`penstock user limit ida --partitions N`" in refused.stderr
    refused = penstock("stream", "alter", "ida-1", "--dedup-ids-max", "1501", **ida)
    assert refused.returncode == 1
    assert "`penstock user limit ida --message-ids N`" in refused.stderr
    grown = penstock("stream", "alter", "ida-1", "--partitions", "4", **ida)
    assert "`penstock user limit ida --partitions N`" in grown.stderr
    (listed,) = (line for line in penstock("user", "list").stdout.splitlines() if line.startswith("ida "))
    assert "2 of 3" in listed
    assert penstock("user", "limit", "ida", "--partitions", "none", "--message-ids", "none").returncode == 0
    assert penstock("stream", "alter", "ida-1", "--partitions", "4", **ida).returncode == 0
