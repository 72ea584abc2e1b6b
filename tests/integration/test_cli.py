"""The command line against a real broker with its real nats-server."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner, Result

from penstock.broker.supervision.child import ReadyLine, parse_ready, serving
from penstock.hot import is_compiled
from tests import warm
from tests.broker_process import broker_environment, running_broker
from tests.cli_app import app
from tests.extent import each_change, needs_time

TIMEOUT_S = 90.0
PENSTOCK = [sys.executable, "-m", "penstock"]

Run = Callable[..., Result]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReadyLine]:
    with serving(tmp_path_factory.mktemp("data"), "--listen", "127.0.0.1:0", "--nats-port", "0") as ready:
        yield ready


@pytest.fixture
def run(broker: ReadyLine) -> Run:
    runner = CliRunner()

    def invoke(*args: str, code: int = 0, stdin: bytes | None = None, server: str | None = None) -> Result:
        result = runner.invoke(app, args, input=stdin, env={"PENSTOCK_SERVER": server or broker.client})
        assert result.exit_code == code, (args, result.output, result.exception)
        return result

    return invoke


@pytest.fixture
def stream(run: Run, request: pytest.FixtureRequest) -> Iterator[str]:
    """A stream of the test's own; its subjects begin with its name."""
    name = request.node.name.partition("[")[0]
    run("stream", "create", name, f"{name}.>")
    yield name
    run("stream", "delete", name, "--yes")


def start(broker: ReadyLine, *args: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PENSTOCK_SERVER": broker.client}
    return subprocess.Popen(
        [*PENSTOCK, *args], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )


def lines(result: Result) -> list[dict]:
    return [json.loads(line) for line in result.stdout.splitlines()]


@each_change
def test_streams_from_create_to_delete(run: Run) -> None:
    assert (
        run("stream", "create", "life", "life.>", "--max-age", "7d").stdout == "stream life created: it stores life.>\n"
    )
    assert "was there already" in run("stream", "create", "life", "life.>", "--max-age", "7d").stdout
    other = run("stream", "create", "life", "other.>", code=1)
    assert "subject is 'life.>'" in other.stderr
    assert "--max-age is 7d, not none" in other.stderr
    assert "stream alter" in other.stderr
    assert "stream alter" in run("stream", "create", "life", "life.>", code=1).stderr
    fixed = run("stream", "alter", "life", "--replicas", "3", "--subject", "other.>", code=2).stderr
    assert "--subject cannot be replaced: --add-subject and --remove-subject change" in fixed
    assert "--replicas cannot be changed yet\n" in fixed
    run("stream", "alter", "life", "--max-age", "none", "--max-bytes", "1GiB")
    (info,) = [one for one in lines(run("stream", "list", "--json")) if one["config"]["name"] == "life"]
    assert (info["config"]["max_age_ms"], info["config"]["max_bytes"]) == (None, 2**30)
    assert "1GiB" in run("stream", "show", "life").stdout
    (shown,) = lines(run("stream", "show", "life", "--json"))
    assert shown == info | {"live": shown["live"]}
    assert "life.>" in run("stream", "find", "life.x").stdout
    assert "no stream stores elsewhere" in run("stream", "find", "elsewhere", code=1).stderr
    assert "for good?" in run("stream", "delete", "life", stdin=b"n\n", code=1).stderr
    assert "--yes" in run("stream", "delete", "life", stdin=b"", code=1).stderr
    assert "--storage cannot be changed" in run("stream", "alter", "life", "--storage", "memory", code=2).stderr
    low = run("stream", "alter", "life", "--segment-bytes", "1", "--max-age", "0s", code=2).stderr
    assert "--segment-bytes: 1 is below" in low
    assert "--max-age: 0s is below 1ms" in low
    assert run("stream", "delete", "life", "--yes").stdout == "stream life deleted\n"
    assert "there is no stream 'life'" in run("stream", "show", "life", code=1).stderr


@each_change
def test_several_subjects_a_description_and_metadata(run: Run) -> None:
    made = run("stream", "create", "many", "many.a", "many.b.*", "--description", "Two", "--metadata", "team=shop=1")
    assert made.stdout == "stream many created: it stores many.a, many.b.*\n"
    assert (
        "was there already"
        in run(
            "stream", "create", "many", "many.b.*", "many.a", "--description", "Two", "--metadata", "team=shop=1"
        ).stdout
    )
    (info,) = lines(run("stream", "show", "many", "--json"))
    assert (info["config"]["more_subjects"], info["config"]["metadata"]) == (["many.b.*"], {"team": "shop=1"})
    assert info["subjects"] == ["many.a", "many.b.*"]
    changed = run("stream", "alter", "many", "--remove-subject", "many.a", "--add-subject", "many.c", "--metadata", "")
    assert changed.stdout == "stream many: it stores many.b.*, many.c, metadata is none\n"
    shown = run("stream", "show", "many").stdout
    assert "many.b.*, many.c" in shown
    assert "Two" in shown
    assert "many.b.*, many.c" in run("stream", "find", "many.b.x").stdout
    assert "SUBJECT: 'x.>' and 'x.y' overlap" in run("stream", "create", "x", "x.>", "x.y", code=2).stderr
    refused = run("stream", "alter", "many", "--remove-subject", "many.b.*", "--remove-subject", "many.c", code=2)
    assert "--remove-subject: a stream has a subject" in refused.stderr
    assert "--metadata: 'team' is not KEY=VALUE" in run("stream", "alter", "many", "--metadata", "team", code=2).stderr
    run("stream", "delete", "many", "--yes")


def test_wrong_use_is_told_all_at_once(run: Run) -> None:
    result = run("stream", "create", "x", "x", "--max-age", "soon", "--max-bytes", "much", code=2)
    assert "--max-age" in result.stderr
    assert "--max-bytes" in result.stderr
    result = run("stream", "create", "no good", "a..b", code=2)
    assert "NAME:" in result.stderr
    assert "SUBJECT:" in result.stderr
    run("stream", "alter", "x", code=2)
    run("read", "x", "--from", "nonsense", code=2)
    run("read", "x", "--follow", "--to", "latest", code=2)
    run("status", "--timeout", "never", code=2)


def test_what_is_published_is_read_back(run: Run, stream: str) -> None:
    said = run("publish", f"{stream}.a", '{"amount": 42}', "--key", "customer-7", "--header", "Colour=red").stdout
    assert said == f"stored in {stream} at offset 0, on disk\n"
    acked = lines(run("publish", f"{stream}.b", "-", "--json", stdin=b"\xff\x00"))
    assert [(ack["offset"], ack["seq"]) for ack in acked[0]["acks"]] == [(1, 2)]
    run("publish", f"{stream}.a", "--tombstone", "--key", "customer-7")
    first, second, third = lines(run("read", stream))
    assert (first["subject"], first["key"], first["value"]) == (f"{stream}.a", "customer-7", '{"amount": 42}')
    assert first["headers"] == {"Colour": ["red"], "Penstock-Key": ["customer-7"]}
    assert second["value_base64"] == "/wA="
    assert third["value"] is None
    assert lines(run("read", stream, "--key", "customer-7")) == [first, third]
    assert lines(run("read", stream, "--subject", "*.b")) == [second]
    assert lines(run("read", stream, "--subject", "*.b", "--key", "customer-7")) == []
    assert lines(run("read", stream, "--header", "Colour")) == [first]
    assert lines(run("read", stream, "--header", "Colour=red", "--header", "Penstock-Key=customer-7")) == [first]
    assert lines(run("read", stream, "--header", "Colour=re")) == []
    assert "--header 'A' is given twice" in run("read", stream, "--header", "A", "--header", "A=1", code=2).stderr
    assert "header name" in run("read", stream, "--header", "=1", code=2).stderr
    assert "(tombstone)" in run("read", stream, "--format", "table").stdout


@needs_time
def test_many_messages_and_every_place(run: Run, stream: str) -> None:
    numbers = b"".join(b"%d\n" % number for number in range(500))
    assert (
        f"stored in {stream} at offsets 0 to 499" in run("publish", f"{stream}.n", "-", "--lines", stdin=numbers).stdout
    )
    summary = lines(run("publish", f"{stream}.n", "again", "--count", "500", "--json"))[0]
    assert (summary["messages"], summary["offsets"]) == (1000 - 500, {stream: [500, 999]})
    assert run("read", stream, "--to", "500", "--format", "raw").stdout_bytes == numbers
    assert run("read", stream, "--from", "497", "-n", "2", "-o", "raw").stdout == "497\n498\n"
    assert [row["offset"] for row in lines(run("read", stream, "--from", "-2"))] == [998, 999]
    assert len(lines(run("read", stream, "--from", "1h ago"))) == 1000
    assert lines(run("read", stream, "--from", "latest")) == []
    assert lines(run("read", stream, "--limit", "0")) == []
    middle = lines(run("read", stream, "--from", "500", "-n", "1"))[0]
    since = lines(run("read", stream, "--from", middle["timestamp"]))
    assert since[0]["offset"] <= 500
    assert since[-1]["offset"] == 999
    table = pa.ipc.open_stream(run("read", stream, "-o", "arrow").stdout_bytes).read_all()
    assert table["offset"].to_pylist() == list(range(1000))
    beyond = run("read", stream, "--from", "5000", code=1)
    assert "holds 0 up to (not including) 1000" in beyond.stderr
    assert "read from `--from earliest`" in beyond.stderr


@each_change
def test_duplicates_are_not_counted_as_stored(run: Run, stream: str) -> None:
    same = ("--header", "Nats-Msg-Id=1", "--count", "3")
    said = run("publish", f"{stream}.n", "x", *same).stdout.splitlines()
    assert said[0].startswith("3 messages in ")
    assert said[1:] == [
        f"stored in {stream} at offset 0",
        f"2 were duplicates in {stream}: stored before, and not again",
    ]
    summary = lines(run("publish", f"{stream}.n", "x", *same, "--json"))[0]
    counted = ("messages", "stored", "duplicates", "offsets")
    assert [summary[name] for name in counted] == [3, 0, 3, {}]
    summary = lines(run("publish", f"{stream}.n", "x", "--count", "2", "--json"))[0]
    assert [summary[name] for name in counted] == [2, 2, 0, {stream: [1, 2]}]
    summary = lines(run("publish", f"{stream}.n", "x", "--count", "2", "--ack", "none", "--json"))[0]
    assert [summary[name] for name in counted] == [2, None, None, {}]  # nobody says


def test_publishing_where_nobody_stores_is_an_error(run: Run) -> None:
    assert "no stream stores" in run("publish", "nobody.stores.this", "x", code=1).stderr
    run("publish", "bad subject", "x", code=2)
    run("publish", "a", code=2)
    run("publish", "a", "x", "--header", "nonsense", code=2)


@each_change
def test_what_would_wait_in_vain_for_an_ack_is_said_at_once(run: Run, stream: str) -> None:
    at_once = ("--timeout", "1h")  # what waits fails the test's own time-out
    said = run("publish", f"{stream}.a", "x", "--stream", stream[:-1], *at_once, code=1).stderr
    assert f"there is no stream '{stream[:-1]}'" in said
    assert f"did you mean {stream}?" in said
    said = run("publish", "elsewhere", "x", "--stream", stream, *at_once, code=2).stderr
    assert f"stores {stream}.>" in " ".join(said.split())
    assert "no stream stores the subject 'elsewhere'" in run("publish", "elsewhere", "x", *at_once, code=1).stderr
    run("stream", "create", "silent", "silence.>", "--acks", "never")
    assert "--ack none" in run("publish", "silence.x", "x", *at_once, code=2).stderr
    run("publish", "silence.x", "x", "--ack", "none")
    run("stream", "delete", "silent", "--yes")
    assert "empty key" in run("publish", f"{stream}.a", "x", "--key", "", code=2).stderr


@each_change
def test_an_envelope_is_published_and_its_ack_shown(run: Run) -> None:
    pytest.importorskip("google.protobuf")
    run("stream", "create", "enveloped", "enveloped.>", "--acks", "envelope")
    at_once = ("--timeout", "1h")
    said = run("publish", "enveloped.a", "x", *at_once, code=2).stderr
    assert "publish with --envelope, or with --ack none" in " ".join(said.split())
    more = ("--key", "k", "--header", "Colour=red", "--correlation-id", "c-1", "--expect-offset", "0")
    (acked,) = lines(run("publish", "enveloped.a", "hello", "--envelope", "--json", *more))
    assert [(ack["offset"], ack["correlation_id"]) for ack in acked["acks"]] == [(0, "c-1")]
    assert (
        "not stored: it would get offset 1, and not 0"
        in run("publish", "enveloped.a", "late", "--envelope", *more, code=1).stderr
    )
    asks = ("--header", "Nats-Expected-Last-Sequence=7")  # which one was not met, nobody says
    late = run("publish", "enveloped.a", "late", "--envelope", *asks, "--expect-offset", "1", code=1).stderr
    assert "wrong last sequence: 1" in late
    assert "offset 1" in run("publish", "enveloped.a", "two", "--envelope", "--ack", "leader").stdout
    run("publish", "enveloped.a", "three", "--envelope", "--ack", "none", "--crc")
    run("publish", "enveloped.a", "--tombstone", "--key", "k", "--envelope")
    rows = lines(run("read", "enveloped"))
    assert [row["value"] for row in rows] == ["hello", "two", "three", None]
    assert (rows[0]["key"], rows[0]["headers"]) == ("k", {"Colour": ["red"]})
    for alone in (("--correlation-id", "c"), ("--crc",)):
        said = run("publish", "enveloped.a", "x", *alone, code=2).stderr
        assert "add --envelope" in " ".join(said.split())
    run("stream", "delete", "enveloped", "--yes")


@each_change
def test_every_stream_that_acks_is_shown(run: Run, stream: str) -> None:
    run("stream", "create", "second", f"{stream}.a")
    said = run("publish", f"{stream}.a", "x").stdout
    assert sorted(said.splitlines()) == [f"stored in {name} at offset 0, on disk" for name in ("second", stream)]
    (acked,) = lines(run("publish", f"{stream}.a", "x", "--json"))
    assert {ack["stream"]: ack["offset"] for ack in acked["acks"]} == {"second": 1, stream: 1}
    assert run("publish", f"{stream}.a", "x", "--stream", "second").stdout == "stored in second at offset 2, on disk\n"
    many = run("publish", f"{stream}.a", "x", "--count", "3")
    assert "the first ack of each message" in many.stderr
    run("stream", "delete", "second", "--yes")


@each_change
def test_a_wrong_nats_is_what_the_advice_is_about(run: Run, stream: str) -> None:
    said = run("publish", f"{stream}.a", "x", "--nats", "nats://127.0.0.1:1", "--timeout", "1s", code=1).stderr
    assert "NATS" in said
    assert "--nats URL" in said
    assert "penstock serve" not in said


def test_a_nats_server_taken_for_a_broker_is_recognised(run: Run, broker: ReadyLine) -> None:
    said = run("status", server=broker.nats.removeprefix("nats://"), code=2).stderr
    assert "this is a NATS server" in said


@each_change
def test_reading_nothing_says_why(run: Run, stream: str) -> None:
    assert run("read", stream).stderr == f"no messages: {stream} is empty; --follow waits for what comes\n"
    run("publish", f"{stream}.a", "x", "--count", "3")
    assert "--to (offset 1) is not after --from (offset 2)" in run("read", stream, "--from", "2", "--to", "1").stderr
    for place in ("latest", "3", "2999-01-01"):
        assert f"--from is where {stream} ends (offset 3)" in run("read", stream, "--from", place).stderr
    assert "none from offset 0 to 2 matches" in run("read", stream, "--key", "nobody").stderr
    assert run("read", stream, "--limit", "0").stderr == ""


def test_status(run: Run, broker: ReadyLine, stream: str) -> None:
    shown = run("status").stdout
    assert broker.client in shown
    assert broker.nats in shown
    assert stream in shown
    state = lines(run("status", "--json"))[0]
    assert state["broker"]["nats"]["state"] == "connected"
    assert stream in [one["config"]["name"] for one in state["streams"]]


def test_the_feature_level_of_a_new_cluster_is_the_newest(run: Run) -> None:
    shown = run("cluster", "features").stdout
    assert shown.startswith("feature level: 0.4\n")
    assert "the registry of schemas" in " ".join(shown.split())
    (told,) = lines(run("cluster", "features", "--json"))
    assert [(one["level"], one["is_reached"], one["older_brokers"]) for one in told["levels"]] == [
        ("0.3", True, {}),
        ("0.4", True, {}),
    ]
    assert run("cluster", "upgrade", "--yes").stderr == "the cluster is at feature level 0.4\n"
    assert run("cluster", "upgrade", stdin=b"n\n", code=1).stderr.endswith("the level stays as it is\n")
    refused = run("cluster", "upgrade", "--to", "0.3", "--yes", code=1).stderr
    assert "the cluster is at feature level 0.4, and it is never lowered" in refused


def test_without_a_broker_the_line_says_what_to_do(run: Run) -> None:
    result = run("status", server="127.0.0.1:1", code=1)
    assert result.stderr.startswith("Error: no broker answers at 127.0.0.1:1")
    assert "penstock serve" in result.stderr
    assert "Traceback" not in result.stderr
    assert "no broker answers at 127.0.0.1:2" in run("--server", "127.0.0.1:2", "status", code=1).stderr


def test_dump_reads_what_a_broker_is_writing(run: Run, broker: ReadyLine, stream: str) -> None:
    run("publish", f"{stream}.a", "x", "--count", "10")
    rows = lines(run("dump", broker.data_dir, "--json", "--limit", "100000"))
    batches = [row for row in rows if f"-{stream}/" in row["file"] and row["file"].endswith(".arrows") and "crc" in row]
    assert (batches[0]["base_offset"], batches[-1]["end_offset"]) == (0, 10)
    commands = [row["content"] for row in rows if row.get("what") == "command"]
    assert stream in [command["config"]["name"] for command in commands if command["type"] == "create_stream"]
    assert "damage" not in {name for row in rows for name in row}
    shown = run("dump", broker.data_dir)
    assert "raft/log" in shown.stdout
    assert "lineage" in shown.stdout
    assert not shown.stderr


def test_dump_shows_messages_and_a_verdict(run: Run, broker: ReadyLine, stream: str) -> None:
    run("publish", f"{stream}.a", "x" * 100, "--key", "k")
    run("publish", f"{stream}.a", "y", "--count", "10")
    (segment,) = Path(broker.data_dir).glob(f"streams/*-{stream}/0/*.arrows")
    rows = lines(run("dump", str(segment), "--messages", "--json"))
    messages = [row for row in rows if "offset" in row]
    assert [row["offset"] for row in messages] == list(range(11))
    assert (messages[0]["subject"], messages[0]["key"], messages[0]["value"]) == (f"{stream}.a", "k", "x" * 100)
    shown = run("dump", str(segment), "--messages", "--limit", "3").stdout
    assert "xxx…" in shown  # a preview of the value
    assert shown.count("x") < 70
    assert "and 9 more rows" in shown
    assert shown.splitlines()[-1] == "Sound: 1 file, 12 rows."


@each_change
def test_dump_shows_damage_and_goes_on(run: Run, broker: ReadyLine, stream: str, tmp_path: Path) -> None:
    for _ in range(3):
        run("publish", f"{stream}.a", "x")
    (segment,) = Path(broker.data_dir).glob(f"streams/*-{stream}/0/*.arrows")
    copy = tmp_path / segment.name
    data = bytearray(segment.read_bytes())
    second = lines(run("dump", str(segment), "--json"))[2]["position"]
    data[second + 600] ^= 1
    copy.write_bytes(data)
    result = run("dump", str(copy), "--json", code=1)
    rows = lines(result)
    assert [row.get("base_offset") for row in rows] == [None, 0, None, 2]
    assert rows[2]["position"] == second
    assert "1 damaged place in 1 file" in result.stderr
    assert f"{copy} at byte {second}" in result.stderr
    assert "DAMAGE at byte" in run("dump", str(copy), "--limit", "0", code=1).stdout
    assert copy.read_bytes() == data
    assert "No such file" in run("dump", str(tmp_path / "none"), code=1).stderr
    (tmp_path / "mine.txt").write_text("hello")
    assert "not a file of Penstock's" in run("dump", str(tmp_path / "mine.txt")).stderr


@each_change
def test_following_prints_what_comes_and_ctrl_c_is_quiet(run: Run, broker: ReadyLine, stream: str) -> None:
    run("publish", f"{stream}.a", "first")
    with start(broker, "read", stream, "--follow", "--format", "raw") as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"first\n"
            run("publish", f"{stream}.a", "second")
            assert process.stdout.readline() == b"second\n"
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=TIMEOUT_S)
        finally:
            process.kill()
    assert (out, err, process.returncode) == (b"", b"", 130)


def with_stdout(broker: ReadyLine, where: str, *args: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A command with its stdout led elsewhere, as a shell says it."""
    return subprocess.run(
        ["/bin/sh", "-c", f'exec "$0" "$@" {where}', *PENSTOCK, *args],
        env={**os.environ, "PENSTOCK_SERVER": broker.client, **variables},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000)),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )


@pytest.mark.parametrize("shape", ["raw", *(pytest.param(one, marks=needs_time) for one in ("table", "json", "arrow"))])
def test_what_a_file_does_not_take_is_an_error_and_not_committed(
    run: Run, broker: ReadyLine, tmp_path: Path, shape: str
) -> None:
    name = f"limited-{shape}"
    run("stream", "create", name, f"{name}.>")
    run("publish", f"{name}.a", "x" * 1000, "--count", "300")
    done = with_stdout(
        broker, f'>"{tmp_path / "rows"}"', "read", name, "-o", shape, "--group", name, PYTHONUNBUFFERED="1"
    )
    assert (done.returncode, done.stderr) == (1, "Error: File too large\n")
    rows = (tmp_path / "rows").read_bytes()
    written = rows.count(b"\n") if shape in ("table", "json") else len(rows) // 1000
    assert lines(run("group", "show", name, "--json"))[0]["offset"] <= written < 300


def test_a_command_whose_output_would_be_lost_does_nothing(run: Run, broker: ReadyLine, stream: str) -> None:
    run("publish", f"{stream}.a", "x")
    for command in (
        ("read", stream, "--group", stream),
        ("user", "add", "bob", "--admin", "--token"),
        ("keys", "new"),
        ("dump", broker.data_dir),
    ):
        done = with_stdout(broker, ">&-", *command)
        assert (done.returncode, done.stderr.count("\n")) == (1, 1), done
        assert "stdout is closed" in done.stderr
    assert lines(run("read", stream, "--group", stream))[0]["value"] == "x"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_token_that_cannot_be_printed_makes_no_user(run: Run, broker: ReadyLine) -> None:
    done = with_stdout(broker, ">/dev/full", "user", "add", "bob", "--admin", "--token")
    assert (done.returncode, done.stderr) == (1, "Error: No space left on device\n")
    with start(broker, "user", "add", "bob", "--admin", "--token") as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert b"the token cannot be printed" in process.stderr.read()
        assert process.wait(TIMEOUT_S) == 1
    assert "authentication is off" in run("user", "list").stderr


@each_change
def test_ctrl_c_at_the_question_is_130_and_deletes_nothing(run: Run, broker: ReadyLine, stream: str) -> None:
    environment = {**os.environ, "PENSTOCK_SERVER": broker.client}
    command = [*PENSTOCK, "stream", "delete", stream]
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            assert process.stderr is not None
            asked = b""
            while not asked.endswith(b"[y/N]: "):
                asked += process.stderr.read(1)
            for _ in range(5):  # one that comes just before CPython's read waits with it; people press again
                process.send_signal(signal.SIGINT)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(TIMEOUT_S / 5)
                    break
            assert (process.stderr.read(), process.returncode) == (b"", 130)
        finally:
            process.kill()
    run("stream", "show", stream)


@pytest.mark.parametrize("shape", ["json", "arrow", *(pytest.param(one, marks=needs_time) for one in ("table", "raw"))])
def test_a_reader_of_our_output_that_has_enough_is_fine(
    run: Run, broker: ReadyLine, request: pytest.FixtureRequest, shape: str
) -> None:
    name = f"pipe-{shape}"
    run("stream", "create", name, f"{name}.>")
    run("publish", f"{name}.a", "x" * 10_000, "--count", "300")
    with start(broker, "read", name, "--format", shape) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.read(10)
            process.stdout.close()
            assert process.stderr is not None
            err = process.stderr.read()
            process.wait(TIMEOUT_S)
        finally:
            process.kill()
    assert (err, process.returncode) == (b"", 0)


def listening(path: Path) -> socket.socket:
    """A socket in the place of systemd's."""
    receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    receiver.settimeout(TIMEOUT_S)
    receiver.bind(str(path))
    return receiver


@each_change
def test_serving_says_ready_once_and_stops_on_sigterm(tmp_path: Path) -> None:
    command = [*PENSTOCK, "serve", "--listen", "127.0.0.1:0", "--nats-port", "0", "--log-format", "json"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    with (
        listening(tmp_path / "notify") as systemd,
        subprocess.Popen(
            [*command, "--data-dir", str(tmp_path / "a b")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**environment, "NOTIFY_SOCKET": str(tmp_path / "notify")},
        ) as process,
    ):
        try:
            assert process.stdout is not None
            ready = parse_ready(process.stdout.readline().decode())
            assert ready is not None
            assert ready.data_dir == str(tmp_path / "a b")
            second = subprocess.run(
                [*command, "--data-dir", str(tmp_path / "a b")], capture_output=True, timeout=TIMEOUT_S, env=environment
            )
            assert second.returncode == 1
            assert b"in use by another broker" in second.stderr
            assert systemd.recv(4096).startswith(b"READY=1\nSTATUS=serving clients on 127.0.0.1:")
            process.send_signal(signal.SIGTERM)
            assert systemd.recv(4096) == b"STOPPING=1"
            out, err = process.communicate(timeout=TIMEOUT_S)
        finally:
            process.kill()
    assert process.returncode == 0
    assert out == b""
    lines = [json.loads(line) for line in err.splitlines()]
    assert len(lines) > 3
    for line in lines:
        assert {"time", "level", "logger", "message", "broker"} <= set(line), line
        assert line["broker"] == 1, line


@each_change
def test_a_broker_of_a_cluster_says_which_one_before_it_is_ready(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    command = [*PENSTOCK, "serve", "--cluster", f"7@{address}", "--id", "7", "--nats-port", "0"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    with subprocess.Popen(
        [*command, "--data-dir", str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().decode() == f"cluster id=7 voters=7@{address}\n"
            ready = parse_ready(process.stdout.readline().decode())
            assert ready is not None
            assert ready.client == address
            process.send_signal(signal.SIGTERM)
            assert process.wait(TIMEOUT_S) == 0
        finally:
            process.kill()


@needs_time
@pytest.mark.parametrize("plain", ["", "1"])
def test_a_broker_says_in_one_line_that_it_runs_plain(tmp_path: Path, plain: str) -> None:
    with running_broker(tmp_path, environment={"PENSTOCK_PLAIN": plain}) as broker:
        broker.stop()
        assert broker.stderr is not None
        broker.stderr.close()  # all that it said has been read
        told = [line for line in broker.said.splitlines() if "hot path" in line]
    assert len(told) == (1 if plain or not is_compiled() else 0)
    assert all("WARNING" in line and "hot path: plain Python, several times slower" in line for line in told)


def test_what_is_refused_is_told_with_what_to_do(run: Run, broker: ReadyLine, stream: str) -> None:
    run("publish", f"{stream}.a", "x")
    run("stream", "purge", stream, "--all", "--yes")
    empty = run("read", stream, "--from", "0", code=1).stderr
    assert "offset 0 is not in the log, which is empty: the next message gets offset 1" in empty
    refused = run("publish", f"{stream}.a", "x", "--header", "Nats-TTL=1h", code=1).stderr
    assert f"`penstock stream alter {stream} --allow-message-ttl yes`" in refused
    refused = run("publish", f"{stream}.a", "x", "--header", "Nats-Rollup=all", code=1).stderr
    assert f"`penstock stream alter {stream} --allow-rollup yes`" in refused
    assert "is the data directory of a broker" in run("backup", broker.data_dir, code=2).stderr
    relayed = run("relay", stream, "--to", "nobody", "--stored", "--timeout", "1s")
    assert "nothing was relayed" in relayed.stderr
    run("publish", f"{stream}.a", "x", "--nats", "")
    relayed = run("relay", stream, "--to", "nobody", "--stored", "--timeout", "1s", code=1)
    assert "penstock stream create NAME SUBJECT" in relayed.stderr
    assert "penstock serve" not in relayed.stderr


def test_a_paused_stream_is_not_waited_for(run: Run, stream: str) -> None:
    run("stream", "create", "beside", f"{stream}.>")
    run("stream", "pause", "beside")
    told = run("publish", f"{stream}.a", "x")
    assert told.stdout == f"stored in {stream} at offset 0, on disk\n"
    assert "beside is paused, and so does not store this message" in told.stderr
    run("stream", "pause", stream)
    assert "store the subject" in (said := run("publish", f"{stream}.a", "x", code=1).stderr)
    assert "and are paused" in said
    run("stream", "delete", "beside", "--yes")


def test_settings_that_cannot_work_are_told_together(run: Run) -> None:
    result = run("serve", "--listen", "0.0.0.0:1", "--nats-port", "x", "--log-level", "loud", code=2)
    assert "3 mistakes" in result.stderr
    shown = run("serve", "--nats", "nats://me:hunter2@h:1", "--print-config").stdout
    assert 'nats = ["nats://h:1"]  # from --nats' in shown
    assert "hunter2" not in shown


def test_a_file_is_no_data_directory(run: Run, tmp_path: Path) -> None:
    (tmp_path / "data").write_text("mine")
    assert "data is a file; give a directory" in run("serve", "--data-dir", str(tmp_path / "data"), code=2).stderr
    assert (tmp_path / "data").read_text() == "mine"


def test_help_is_quick() -> None:
    imported = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "penstock", "--help"],
        capture_output=True,
        timeout=TIMEOUT_S,
        check=True,
    ).stderr.decode()
    modules = {line.rpartition("|")[2].strip() for line in imported.splitlines()}
    # What takes long to import is not: that keeps it below 400 ms on any machine.
    assert not modules & {"pyarrow", "pyarrow.lib", "nats", "asyncio", "ssl", "penstock.client.aio", "penstock.node"}


def completed(line: str, server: str) -> list[str]:
    """What the shell offers at the end of a line."""
    more = {"_PENSTOCK_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    done = warm.run([], broker_environment({"PENSTOCK_SERVER": server, **more}))
    assert not done.stderr, done.stderr
    return done.stdout.split()


@needs_time
def test_names_of_streams_are_completed(broker: ReadyLine, stream: str) -> None:
    nobody = "127.0.0.1:1"
    assert completed(f"penstock read {stream[:-3]}", broker.client) == [stream]
    assert completed("penstock read no-such", broker.client) == []
    assert completed(f"penstock read {stream[:-3]}", nobody) == []
    for line in ("penstock --server {} read {}", "penstock read --server {} {}"):
        assert completed(line.format(broker.client, stream[:-3]), nobody) == [stream]


@each_change
def test_a_reset_says_that_it_creates_the_group(run: Run, stream: str) -> None:
    words = ("group", "reset", f"no-{stream}", stream, "--to", "earliest")
    new = f"group no-{stream} did not exist: it"
    assert run(*words, "--dry-run").stdout == f"{new} would begin in {stream} at offset 0\n"
    assert run(*words, "--yes").stdout == f"{new} begins in {stream} at offset 0\n"
    assert "goes on in" in run(*words, "--yes").stdout


def test_doctor_looks_at_its_data_directories_first(run: Run, tmp_path: Path) -> None:
    wrong = run("doctor", "--data-dir", f"{tmp_path}/nosuch", server="127.0.0.1:1", code=2).stderr
    assert f"{tmp_path}/nosuch" in "".join(wrong.replace("│", "").split())  # wrapped in its box


@needs_time
def test_names_of_groups_are_completed(broker: ReadyLine, stream: str) -> None:
    group = f"readers-of-{stream}"
    reads = ["group", "reset", group, stream, "--to", "latest", "--yes"]
    done = warm.run(reads, broker_environment({"PENSTOCK_SERVER": broker.client}))
    assert done.returncode == 0, done.stderr
    for line in ("group show {}", "group reset {}", "group delete {}", "read orders --group {}"):
        assert completed(f"penstock {line.format(group[:-3])}", broker.client) == [group]
    assert completed("penstock group show no-such", broker.client) == []
    assert completed(f"penstock group show {group} {stream[:-3]}", broker.client) == [stream]


@needs_time
def test_as_json_a_start_that_fails_says_why_in_the_log(tmp_path: Path) -> None:
    (tmp_path / "penstock.json").write_text("nonsense")
    command = [*PENSTOCK, "serve", "--data-dir", str(tmp_path), "--log-format", "json", "--nats-port", "0"]
    for more in ([], ["--brokers", "2"]):
        ended = subprocess.run([*command, *more], capture_output=True, timeout=TIMEOUT_S, check=False)
        assert ended.returncode == 1
        lines = [json.loads(line) for line in ended.stderr.splitlines()]
        assert str(tmp_path) in lines[-1]["message"]
        assert lines[-1]["broker"] == (None if more else 1)


@needs_time
@pytest.mark.parametrize(
    "arguments",
    [("stream", "list", "--json"), ("stream", "list"), ("status",), ("read", "{stream}", "--format", "raw")],
    ids=" ".join,
)
def test_who_reads_no_further_hears_nothing_of_it(
    run: Run, broker: ReadyLine, stream: str, arguments: tuple[str, ...]
) -> None:
    """As `penstock … | head` ends: also where what is left is written as Python ends."""
    run("publish", f"{stream}.a", "1")
    nobody, output = os.pipe()
    os.close(nobody)
    with os.fdopen(output, "wb") as written:
        command = [*PENSTOCK, *(one.format(stream=stream) for one in arguments)]
        environment = {**os.environ, "PENSTOCK_SERVER": broker.client}
        done = subprocess.run(
            command, env=environment, stdout=written, stderr=subprocess.PIPE, timeout=TIMEOUT_S, check=False
        )
    assert (done.returncode, done.stderr) == (0, b"")
