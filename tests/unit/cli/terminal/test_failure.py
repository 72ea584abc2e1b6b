"""One clear line, advice, and the right exit code."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
import typer

from penstock.base.errors import ConfigError, CorruptionError, ErrorCode, OperationalError, RemoteError
from penstock.cli.terminal import failure
from penstock.client.errors import InvalidConfig, TimedOut, Unavailable


def raised(error: BaseException) -> int:
    @failure.clearly
    def command() -> None:
        raise error

    with pytest.raises(typer.Exit) as caught:
        command()
    return int(caught.value.exit_code)


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (RemoteError(ErrorCode.READ_ONLY, "it is sealed"), 1, "Error: it is sealed\n"),
        (
            RemoteError(ErrorCode.READ_ONLY, "read only until it is resumed", stream="orders"),
            1,
            "Error: read only until it is resumed\n  `penstock stream resume orders` lets it accept messages again\n",
        ),
        (
            RemoteError(ErrorCode.NO_ENCRYPTION_KEY, "no such key", key_id="first"),
            1,
            "Error: no such key\n  a new key does not decrypt existing data; docs/how-to/encryption.md says where",
        ),
        (
            RemoteError(ErrorCode.UNSUPPORTED_VERSION, "x needs feature level 0.4", feature_level="0.3"),
            1,
            "Error: x needs feature level 0.4\n",
        ),
        (RemoteError("a_code_of_tomorrow", "what now"), 1, "Error: what now\n"),
        (OperationalError("one\ntwo"), 1, "Error: one\n  two\n"),
        (Unavailable("nobody there"), 1, "Error: nobody there\n  start a broker"),
        (TimedOut("too slow"), 1, "Error: too slow\n  raise the time-out with --timeout"),
        (
            TimedOut("too few", tried={"a:1": "no"}),
            1,
            "Error: too few\n  `penstock status` shows which brokers are live",
        ),
        (
            RemoteError(ErrorCode.STREAM_EXISTS, "it is there", differences={"acks": [1, 2]}),
            1,
            "Error: it is there\n  `penstock stream show NAME` shows its config, `penstock stream alter` changes it\n",
        ),
        (
            RemoteError(ErrorCode.STREAM_EXISTS, "it is there", differences={"storage": [1, 2], "subject": [1, 2]}),
            1,
            "Error: it is there\n  --storage cannot be altered: take another name, or "
            "`penstock stream delete NAME`, with all that it holds\n",
        ),
        (
            RemoteError(ErrorCode.STREAM_EXISTS, "'s-p0' is taken by a partition", partition=0),
            1,
            "Error: 's-p0' is taken by a partition\n",
        ),
        (
            CorruptionError("f", 7, 1, 2),
            1,
            "Error: f: at byte 7: expected 1, found 2\n  nothing was deleted; `penstock d",
        ),
        (
            CorruptionError("a.parquet", 0, 1, 2),
            1,
            "Error: a.parquet: at byte 0: expected 1, found 2\n  nothing was deleted\n",
        ),
        (
            CorruptionError("1.json", 0, 1, 2, advice="Restore it."),
            1,
            "Error: 1.json: at byte 0: expected 1, found 2. Restore it.\n",
        ),
        (FileNotFoundError(2, "No such file", "x.creds"), 1, "Error: x.creds: No such file\n"),
        (ValueError("a header may not"), 2, "Error: a header may not\n"),
        (ConfigError(["a", "b"]), 2, "Error: the config cannot work; 2 mistakes:\n  - a\n  - b\n"),
        (InvalidConfig(ErrorCode.INVALID_CONFIG, "name: bad"), 2, "Error: the config cannot work:\n  - name: bad\n"),
        (OperationalError("\x1b[2Jgone"), 1, "Error: \\x1b[2Jgone\n"),
        (KeyboardInterrupt(), 130, ""),
        (failure.Interrupted(signal.SIGTERM), 143, ""),
        (failure.Interrupted(signal.SIGHUP), 129, ""),
    ],
)
def test_errors(
    error: BaseException, code: int, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)  # so that it is put back
    assert raised(error) == code
    captured = capsys.readouterr()
    assert captured.err.startswith(said)
    assert captured.err == said or not said.endswith("\n")
    assert not captured.out
    assert "Traceback" not in captured.err


@pytest.mark.parametrize(
    ("err_code", "advice"),
    [
        (10084, "--acks explicit"),
        (10098, "--acks explicit"),
        (10099, "--subject"),
        (10100, "--subject"),
        (10101, "--from earliest"),
    ],
)
def test_a_consumer_that_a_work_queue_cannot_have_is_told_with_what_it_can(
    err_code: int, advice: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert raised(RemoteError(ErrorCode.BAD_REQUEST, "as nats-server says it", err_code=err_code)) == 1
    first, second = capsys.readouterr().err.splitlines()
    assert first == "Error: as nats-server says it"
    assert advice in second


def test_what_to_do_about_an_error_can_depend_on_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    @failure.clearly
    def command(code: ErrorCode) -> None:
        with failure.advising(ErrorCode.OFFSET_OUT_OF_RANGE, "take another one"):
            raise RemoteError(code, "no")

    for code, said in (
        (ErrorCode.OFFSET_OUT_OF_RANGE, "Error: no\n  take another one\n"),
        (ErrorCode.BAD_REQUEST, "Error: no\n"),
    ):
        with pytest.raises(typer.Exit):
            command(code)
        assert capsys.readouterr().err == said


def test_a_mistake_in_the_program_keeps_its_traceback() -> None:
    @failure.clearly
    def command() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        command()


def test_debugging_shows_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_DEBUG", "1")

    @failure.clearly
    def command() -> None:
        raise OperationalError("x")

    with pytest.raises(OperationalError):
        command()


def test_ctrl_c_before_there_is_a_command_shows_no_traceback() -> None:
    pressed = (
        "import sys\n"
        "class Pressed:\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'penstock.cli.program': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Pressed())\n"
        "from penstock.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", pressed], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (130, "")


def test_what_was_begun_when_ctrl_c_came_says_nothing() -> None:
    program = (
        "from penstock.cli.terminal import failure\n"
        "async def begun(): pass\n"
        "kept = []\n"
        "@failure.clearly\n"
        "def command():\n"
        "    kept.append(begun())\n"  # it goes when the process ends, and was never awaited
        "    raise KeyboardInterrupt\n"
        "try: command()\n"
        "except failure.typer.Exit: pass\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_who_cannot_trust_a_broker_is_not_told_to_start_one(capsys: pytest.CaptureFixture[str]) -> None:
    failure.report(Unavailable("no broker can be reached (a:1: its certificate has expired)"))
    assert capsys.readouterr().err == "Error: no broker can be reached (a:1: its certificate has expired)\n"


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("can't start new thread"), OSError(24, "Too many")])
def test_what_the_system_did_not_give_is_one_line_with_the_limit_to_raise(
    error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    assert raised(error) == 1
    said = capsys.readouterr().err
    assert said.startswith("Error: ")
    assert said.count("\n") == 1
    assert "ulimit" in said


def test_a_mistake_of_the_program_is_told_with_its_traceback() -> None:
    @failure.clearly
    def command() -> None:
        raise RuntimeError("the loop is closed")

    with pytest.raises(RuntimeError, match="the loop is closed"):
        command()
