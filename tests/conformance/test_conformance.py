"""A few of nats.go's tests at each change, and the parts that run peers' suites.

A test of nats.go that passes now and did not in the kept results fails here, too: `make conformance ARGS=--keep` keeps
the new results, and the page is made from them.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import nats
import pytest

from penstock.broker.nats.server import find_nats_server
from tests.broker_process import DEADLINE_S, eventually
from tests.conformance import nats_go, nats_java, suites
from tests.conformance.__main__ import AGAIN_MAX, SUITES, lost, main, named, run_suite
from tests.conformance.configs import Login, jetstream_login, on_loopback, with_leaf_port, without_jetstream
from tests.conformance.nats_go import NatsGo
from tests.conformance.natscli import NatsCli
from tests.conformance.page import _WHY, HEADING, _cell, with_results
from tests.conformance.results import (
    GROUPS,
    RESULTS,
    Listed,
    Outcome,
    Result,
    Row,
    Run,
    judged,
    read_list,
    read_run,
)
from tests.conformance.servers import System
from tests.conformance.stand_in import parse
from tests.conformance.suites import ROOT, SuiteMissingError, put_nats_server, reason, run_program
from tests.conformance.tester import running_tester
from tests.extent import RUNS_ALL, code_seed, each_change, needs_time
from tests.ports import free_ports

OF_CHANGES = (
    "TestAccountInfo",
    "TestCreateStream",
    "TestDeleteMsg",
    "TestGetMsg",
    "TestKeyValueBasics",
    "TestKeyValueBindStore",
    "TestKeyValueHistory",
    "TestKeyValueKeys",
    "TestKeyValueWatch",
    "TestObjectBasics",
    "TestObjectLinks",
    "TestObjectWatch",
    "TestOrderedConsumerNext",
    "TestOrderedConsumerNextOrder",
    "TestStreamInfo",
)
THIRD = 3  # a change runs one in so many of them: each starts servers of its own, in two seconds of CPU
JOBS = 4  # a test that fails mostly waits


@each_change
@pytest.mark.parametrize("system", list(System))
async def test_nats_go(system: System) -> None:
    kept = {row.name: row for row in read_run(RESULTS / f"nats.go.{system}.json").rows}
    tests = OF_CHANGES if RUNS_ALL else OF_CHANGES[code_seed() % THIRD :: THIRD]
    run = await run_suite(NatsGo(), system, tests, JOBS)
    assert len(run.rows) == len(tests)
    other = [row for row in run.rows if row.result != kept[row.name].result]
    assert other == [], "if they pass now: make conformance ARGS=--keep"


def test_a_suite_that_is_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SuiteMissingError, match=r"nats\.go needs the program go"):
        NatsGo().prepare()


@each_change
def test_a_module_of_other_content_is_an_error() -> None:
    with pytest.raises(SuiteMissingError, match="has checksum h1:"):
        suites.go_module(nats_go._MODULE, nats_go._VERSION, "h1:other", "nats.go")


# Lists and results


@pytest.mark.parametrize("suite", [suite.name for suite in SUITES])
def test_a_list_has_each_test_once_and_knows_its_needs(suite: str) -> None:
    listed = read_list(suite)
    assert len({test.name for test in listed}) == len(listed) >= 40
    words = {*GROUPS, "restart", "domain", "accounts"}
    assert [test for test in listed if not set(test.needs) <= words or not set(test.needs) & set(GROUPS)] == []


@pytest.mark.parametrize("suite", [suite.name for suite in SUITES])
@pytest.mark.parametrize("system", list(System))
def test_kept_results_are_of_the_list(suite: str, system: System) -> None:
    kept = read_run(RESULTS / f"{suite}.{system}.json")
    assert [(row.name, row.needs) for row in kept.rows] == [(t.name, ",".join(t.needs)) for t in read_list(suite)]


def test_the_tests_of_one_group_can_be_run_alone(capsys: pytest.CaptureFixture[str]) -> None:
    needing = [test.name for test in read_list("nats.py") if "acked" in test.needs]
    assert named("nats.py", "acked") == needing
    assert len(needing) == 46
    for wrong in (["--needs", "nothing"], ["--needs", "acked", "--keep"], ["--needs", "acked", "--test", "one"]):
        with pytest.raises(SystemExit):
            main(["nats.py", *wrong])
    assert "--keep is for whole suites" in capsys.readouterr().err


def test_the_list_of_calls_is_that_of_the_script() -> None:
    assert NatsCli().names() == [test.name for test in read_list("natscli")]


LISTED = [Listed("one", ("server",)), Listed("two", ("acked", "cluster")), Listed("three", ("server", "restart"))]


def test_what_was_skipped_or_not_run_has_not_passed(tmp_path: Path) -> None:
    told = [Outcome("one", Result.PASSED), Outcome("two", Result.SKIPPED, "no cluster here")]
    run = judged("some", "some 1.0", "penstock", LISTED, told)
    assert [(row.group, row.result) for row in run.rows] == [
        ("server", "passed"),
        ("acked", "skipped"),
        ("server", "not run"),
    ]
    assert (run.passed("server"), run.passed("acked"), run.passed(*GROUPS)) == ((1, 2), (0, 1), (1, 3))
    assert read_run(run.write(tmp_path)) == run


@pytest.mark.parametrize(
    ("told", "mistake"), [(["four"], "not on the list: four"), (["one", "one"], "one is told twice")]
)
def test_a_test_that_is_not_listed_or_told_twice_is_an_error(told: list[str], mistake: str) -> None:
    with pytest.raises(ValueError, match=mistake):
        judged("some", "some 1.0", "penstock", LISTED, [Outcome(name, Result.PASSED) for name in told])


def test_a_test_that_passed_before_is_lost() -> None:
    kept = read_run(RESULTS / "nats.go.nats-server.json")
    assert lost(kept) == []
    first, *others = kept.rows
    failed = Row(first.name, first.needs, first.group, "failed", "why")
    assert lost(Run(kept.suite, kept.version, kept.system, (failed, *others))) == [f"{first.name}: failed, why"]


def test_the_page_is_made_from_the_kept_results() -> None:
    page = (ROOT / "docs/reference/jetstream-compatibility.md").read_text(encoding="utf-8")
    assert with_results(page) == page, "remake it: python -m tests.docs.reference docs/reference"
    section = page.split(f"\n{HEADING}\n")[1].split("\n## ")[0]
    for suite in SUITES:
        kept = read_run(RESULTS / f"{suite.name}.penstock.json")
        missing = [row for row in kept.rows if row.result != Result.PASSED]
        alone = [row.name for row in missing if row.group not in _WHY]
        assert [name for name in alone if f"`{_cell(name)}`" not in section] == []
        for group, why in _WHY.items():
            (line,) = [one for one in section.splitlines() if why in one] or [""]
            number = sum(row.group == group for row in missing)
            assert bool(re.search(rf" {re.escape(suite.name)} {number}\b", line)) == bool(number)


class Unsteady:
    """A suite whose first run of a test fails, and of one each time."""

    name, version = "nats.go", "1"

    def __init__(self, fails: int) -> None:
        self.runs: list[tuple[list[str], int]] = []
        self._fails = fails

    def prepare(self) -> None:
        pass

    async def run(self, system: System, tests: Sequence[str], folder: Path, jobs: int) -> list[Outcome]:
        self.runs.append(([*tests], jobs))
        failing = set(tests[: self._fails]) if len(self.runs) == 1 else set(tests[:1])
        return [
            Outcome(test, Result.FAILED, "late") if test in failing else Outcome(test, Result.PASSED) for test in tests
        ]


async def test_few_tests_that_failed_are_tried_once_more_alone() -> None:
    names = [test.name for test in read_list("nats.go")][:20]
    few = Unsteady(2)
    run = await run_suite(few, System.PENSTOCK, names, 4)
    assert few.runs == [(names, 4), (names[:2], 1)]
    assert [(row.result, row.reason) for row in run.rows[:3]] == [
        ("failed", "late"),
        ("passed", "when it ran alone; before: late"),
        ("passed", ""),
    ]


async def test_of_many_tests_that_failed_those_that_passed_before_are_tried_once_more() -> None:
    kept = [row.name for row in read_run(RESULTS / "nats.go.penstock.json").rows if row.result == Result.PASSED]
    names = [test.name for test in read_list("nats.go")]
    new = [name for name in names if name not in kept][: AGAIN_MAX + 1]
    assert len(new) > AGAIN_MAX
    before = [name for name in names if name in kept][:2]
    many = Unsteady(AGAIN_MAX + 3)
    run = await run_suite(many, System.PENSTOCK, [*new, *before], 4)
    assert [jobs for _, jobs in many.runs] == [4, 1]
    assert many.runs[1][0] == sorted(before)
    assert run.passed(*GROUPS) == (1, AGAIN_MAX + 3)


@pytest.mark.parametrize(
    ("code", "said", "result", "why"),
    [
        (0, "K > one() :: STARTED\nK > one() :: SUCCESSFUL\n", Result.PASSED, ""),
        (0, "K > one() :: SKIPPED\n\tReason: is disabled\n", Result.SKIPPED, "Reason: is disabled"),
        (1, "K > one() :: FAILED\n\tno KV_8gMCoO79Uk yet\n\t\tat K.one\n", Result.FAILED, "no KV_DRAWN yet"),
        (1, "K > one(a) :: SUCCESSFUL\nK > one(b) :: FAILED\n\tno\n", Result.FAILED, "no"),
        (-9, "not ended after 120 s", Result.FAILED, "not ended after 120 s"),
    ],
)
def test_what_junit_says_of_a_test(code: int, said: str, result: Result, why: str) -> None:
    assert nats_java.outcome_of_junit("one", code, said) == Outcome("one", result, why)


def test_a_reason_is_one_line_that_is_the_same_in_each_run() -> None:
    one = reason("dial tcp 127.0.0.1:4222:\n  refused for _INBOX.aBc.1 after 1.25s")
    assert one == "dial tcp HOST:PORT: refused for _INBOX after TIME"
    assert len(reason("x" * 1_000)) == 160


def test_the_outcome_of_a_test_in_go_is_its_own_line() -> None:
    said = "=== RUN   TestA\n    a_test.go:7: unexpected\n"
    output = f"{said}    --- FAIL: TestA/part (0.00s)\n--- FAIL: TestA (0.01s)\nFAIL\n"
    assert nats_go._outcome("TestA", 1, output) == Outcome("TestA", Result.FAILED, "unexpected")
    assert nats_go._outcome("TestA", 0, "--- PASS: TestA (0.00s)\nPASS\n") == Outcome("TestA", Result.PASSED)
    assert nats_go._outcome("TestA", 1, "--- PASS: TestA (0.00s)\nPASS\n").result is Result.FAILED
    panic = nats_go._outcome("TestA", 2, "panic: nil pointer\n")
    assert panic == Outcome("TestA", Result.FAILED, "panic: nil pointer")


async def test_what_a_program_leaves_behind_is_ended(tmp_path: Path) -> None:
    leaves = f"sleep 600 >/dev/null 2>&1 & echo $! > {tmp_path}/pid; echo done"
    ended = await run_program(["sh", "-c", leaves], tmp_path, os.environ, DEADLINE_S)
    assert (ended.code, ended.output) == (0, "done\n")
    left = Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}/stat")

    async def is_gone() -> bool:
        return not left.exists() or left.read_text().rpartition(")")[2].split()[0] == "Z"

    await eventually(is_gone, "what was left has ended")
    late = await run_program(["sleep", "600"], tmp_path, os.environ, 0.01)
    assert late.code == -9


# Configs of nats-server

ACCOUNTS = """accounts: {
  U: { users: [ {user: guest, password: one} ] },
  JS: {
    jetstream: enabled
    users: [ {user: main, password: "two"} ]
    exports [ { service: "$JS.API.>" } ]
  }
}"""
LIMITS = """jetstream: { domain: "d" }
no_auth_user: "foo"
accounts: { A { users: [{ user: "foo" }], jetstream: { x: 1 } } }"""


def test_jetstream_goes_from_a_config_and_its_user_is_found() -> None:
    assert jetstream_login(ACCOUNTS) == Login("main", "two")
    assert jetstream_login(LIMITS) == Login("foo", "")
    assert jetstream_login(ACCOUNTS.replace("enabled", "disabled")) is None
    assert "jetstream" not in without_jetstream(ACCOUNTS) + without_jetstream(LIMITS)
    assert '"$JS.API.>"' in without_jetstream(ACCOUNTS)


def test_a_leaf_port_is_added_where_there_is_none() -> None:
    assert with_leaf_port("", 7).strip() == 'leafnodes { listen: "127.0.0.1:7" }'
    assert with_leaf_port("leafnodes { port: 8 }", 7) == "leafnodes { port: 8 }"
    remotes = with_leaf_port('leafnodes { remotes = [ { url: "leaf://x:1" } ] }', 7)
    assert remotes == 'leafnodes { listen: "127.0.0.1:7",  remotes = [ { url: "leaf://x:1" } ] }'


def test_a_listener_without_a_host_is_on_loopback() -> None:
    assert on_loopback("leafnodes { port: 8 }") == 'leafnodes { host: "127.0.0.1",  port: 8 }'
    listens = 'leafnodes { listen: "127.0.0.1:8" }'
    assert on_loopback(listens) == listens
    assert on_loopback(ACCOUNTS) == ACCOUNTS


def test_arguments_are_read_as_nats_server_reads_them() -> None:
    found = parse(["-p", "4222", "-m", "8222", "--addr", "127.0.0.1", "-js", "-sd=/data", "--name", "n", "-DV"])
    assert found.known == {"port": "4222", "monitor": "8222", "address": "127.0.0.1", "jetstream": "", "store": "/data"}
    assert found.others == ["--name", "n", "-DV"]
    assert found.wants_jetstream
    assert not parse(["-p", "4222"]).wants_jetstream


# The tester service


@needs_time
@pytest.mark.parametrize("system", list(System))
async def test_the_tester_service(system: System, tmp_path: Path) -> None:
    async with running_tester(system, tmp_path) as url:
        connection = await nats.connect(url)

        async def ask(subject: str, request: dict[str, object]) -> tuple[dict[str, object], str]:
            answer = await connection.request(f"tester.{subject}", json.dumps(request).encode(), timeout=DEADLINE_S)
            return json.loads(answer.data), (answer.headers or {}).get("Nats-Service-Error", "")

        made, mistake = await ask("create.cluster", {"servers": 3, "jetstream": True, "description": "three"})
        assert mistake == ""
        servers = made["servers"]
        assert isinstance(servers, list)
        assert (made["kind"], len(servers)) == ("cluster", 3)
        for server in servers:
            await (await nats.connect(f"nats://127.0.0.1:{server['port']}")).close()

        name = {"name": servers[0]["name"]}
        assert await ask("stop.server", name) == ({"shutdown": True}, "")
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", servers[0]["port"])
        status, _ = await ask("status", {"instance_id": made["id"]})
        assert [one["running"] for one in status["instances"][0]["servers"]] == [False, True, True]  # type: ignore[index]
        assert await ask("start.server", name) == ({"started": True}, "")
        await (await nats.connect(f"nats://127.0.0.1:{servers[0]['port']}")).close()

        assert (await ask("update.server", {**name, "snippets": {"top": "max_connections: 7"}}))[0] == {"updated": True}
        assert (await ask("reload.server", name))[0] == {"reloaded": True}
        assert (await ask("list", {}))[0]["instances"][0]["servers"] == 3  # type: ignore[index]
        assert (await ask("destroy", {"instance_id": made["id"]}))[0] == {"destroyed": True}
        assert (await ask("list", {}))[0] == {"instances": []}

        for subject, request, words in (
            ("create.server", {"tls": {"mode": "mutual"}}, "not supported by this tester: tls"),
            ("create.server", {"snippets": {"other": ""}}, "unknown parts of a config: other"),
            ("create.server", {"snippets": {"top": "{{ range .Routes }}"}}, "not supported in a part of a config"),
            ("create.cluster", {"servers": 1_000}, "1000 servers: 1 to 5 are allowed"),
            ("create.super-cluster", {}, "is not served here"),
            ("stop.server", {"name": "nobody"}, "there is no server nobody"),
            ("destroy", {"instance_id": "none"}, "there is no instance none"),
        ):
            _, mistake = await ask(subject, request)
            assert words in mistake
        await connection.close()


# The stand-in for nats-server


class Started:
    """The stand-in as a suite starts it: with arguments, or all in a config file."""

    def __init__(self, folder: Path, *, by_config: bool) -> None:
        put_nats_server(folder, System.PENSTOCK)
        program = folder / "nats-server"
        self.port, self.monitor = free_ports(2)
        self.folder = folder / "store"
        config = folder / "suite.conf"
        text = f"ports_file_dir: {folder}\njetstream: {{ store_dir: {self.folder} }}\n"
        ports = ["-p", str(self.port), "-m", str(self.monitor)]
        if by_config:
            text += f'host: "127.0.0.1"\nport: {self.port}\nhttp: "127.0.0.1:{self.monitor}"\n'
            text += 'leafnodes {\n  listen: "127.0.0.1:-1"\n}\n'
            ports = []
        config.write_text(text)
        self._ports_of = folder
        files = ["-P", str(folder / "pid"), "-l", str(folder / "log")]
        self._command = [program, *ports, *files, "-c", str(config)]
        self.process = subprocess.Popen(self._command)

    def again(self) -> None:
        """Start it on the same ports and files, at once after its end."""
        self.process = subprocess.Popen(self._command)

    async def up(self) -> None:
        async def answers() -> bool:
            if not (self._ports_of / f"nats-server_{self.process.pid}.ports").exists():
                return False
            try:
                url = f"http://127.0.0.1:{self.monitor}/varz"
                with await asyncio.to_thread(urllib.request.urlopen, url, timeout=5) as page:
                    return bool(page.status == 200)
            except OSError:
                return False

        await eventually(answers, "GET /varz")

    def children(self) -> list[int]:
        """Return the processes whose arguments name the folder."""
        own, folder = os.getpid(), str(self.folder).encode()
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                arguments = path.read_bytes().split(b"\0")
            except OSError:
                continue
            if int(path.parent.name) not in (own, self.process.pid) and any(
                one.startswith(folder) for one in arguments
            ):
                found.append(int(path.parent.name))
        return found

    async def gone(self) -> None:
        async def look() -> bool:
            return not self.children()

        await eventually(look, "both programs have ended")


@needs_time
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
async def test_the_stand_in_is_a_server_with_a_broker_and_both_end_with_it(how: signal.Signals, tmp_path: Path) -> None:
    started = Started(tmp_path, by_config=how is signal.SIGKILL)
    try:
        await started.up()
        assert len(started.children()) == 2
        pid = started.process.pid
        assert (tmp_path / "pid").read_text() == str(pid)
        assert json.loads((tmp_path / f"nats-server_{pid}.ports").read_text())["nats"] == [
            f"nats://127.0.0.1:{started.port}"
        ]
        assert "Server is ready" in (tmp_path / "log").read_text()
        connection = await nats.connect(f"nats://127.0.0.1:{started.port}")
        assert connection._server_info.get("jetstream") is not True
        await connection.close()

        started.process.send_signal(how)
        await asyncio.to_thread(started.process.wait, DEADLINE_S)
        started.again()
        await started.up()
        started.process.send_signal(how)
        await asyncio.to_thread(started.process.wait, DEADLINE_S)
        await started.gone()
        assert (started.folder / "penstock").is_dir()
    finally:
        started.process.kill()
        await asyncio.to_thread(started.process.wait)


def test_the_stand_in_is_the_real_program_without_jetstream(tmp_path: Path) -> None:
    put_nats_server(tmp_path, System.PENSTOCK)
    program = tmp_path / "nats-server"
    said = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=60, check=True).stdout
    real = subprocess.run([find_nats_server(), "--version"], capture_output=True, text=True, timeout=60, check=True)
    assert said == real.stdout


def test_the_command_says_which_suites_there_are() -> None:
    command = [sys.executable, "-m", "tests.conformance", "nats.ada"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert "there is no suite nats.ada" in ended.stderr
