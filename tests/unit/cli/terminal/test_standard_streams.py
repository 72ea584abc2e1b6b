"""Programs that are started with closed, full or narrow standard streams."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.cli.terminal.failure import ascii_json

OPENS_A_FILE = """
import json, os, sys
from penstock.cli.terminal.standard_streams import secure
secure()
file = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY)
print("into nothing, or where it was")
sys.stderr.write("as well")
os.write(2, b"what C code prints")
os.write(file, json.dumps([file, *(os.readlink(f"/proc/self/fd/{number}") for number in range(3))]).encode())
"""

PRINTS_MUCH = """
import sys
from penstock.cli.terminal.standard_streams import secure
secure()
try:
    sys.stdout.buffer.write(b"x" * 1_000_000)
    sys.stdout.buffer.flush()
except OSError as error:
    sys.exit(error.strerror)
"""


def run(closed: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[bytes]:
    """A program with these descriptors closed, or led elsewhere, as a shell says it."""
    command = ["/bin/sh", "-c", f'exec "$0" "$@" {closed}', sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, timeout=120, check=False, env={**os.environ, **variables})


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
@pytest.mark.parametrize("closed", ["<&- >&- 2>&-", ">&-", "2>&-", "<&- 2>&-", "<&-", ""])
def test_no_file_gets_the_descriptor_of_a_standard_stream(tmp_path: Path, closed: str) -> None:
    done = run(closed, "-c", OPENS_A_FILE, str(tmp_path / "segment"))
    assert done.returncode == 0, done.stderr
    file, *streams = json.loads((tmp_path / "segment").read_bytes())
    assert file > 2
    for number, sign in enumerate(("<&-", ">&-", "2>&-")):
        if sign in closed.split():
            assert streams[number] == os.devnull


@pytest.mark.parametrize(
    ("closed", "code", "said"),
    [
        (">&-", 0, b""),
        (">/dev/full", 1, b"Error: No space left on device\n"),
        (">/dev/full 2>/dev/full", 1, b""),
        ("<&- >&- 2>&-", 0, b""),
    ],
)
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_command_whose_output_goes_nowhere_ends_without_a_traceback(closed: str, code: int, said: bytes) -> None:
    done = run(closed, "-m", "penstock", "health", "--help")
    assert (done.returncode, done.stderr) == (code, said)


def test_a_command_whose_reader_is_gone_ends_without_a_traceback() -> None:
    nobody, output = os.pipe()
    os.close(nobody)
    with os.fdopen(output, "wb") as written:
        command = [sys.executable, "-m", "penstock", "serve", "--print-config"]
        done = subprocess.run(command, stdout=written, stderr=subprocess.PIPE, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_what_a_pipe_that_does_not_block_takes_later_is_not_lost(unbuffered: str) -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    variables = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with subprocess.Popen([sys.executable, "-c", PRINTS_MUCH], stdout=writer, env=variables) as process:
        os.close(writer)
        with open(reader, "rb") as file:
            assert len(file.read()) == 1_000_000
    assert process.returncode == 0


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_file_that_takes_a_part_only_is_an_error(tmp_path: Path, unbuffered: str) -> None:
    file = tmp_path / "out"
    program = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))\n{PRINTS_MUCH}"
    done = run(f'>"{file}"', "-c", program, PYTHONUNBUFFERED=unbuffered)
    assert b"File too large" in done.stderr
    assert done.returncode
    assert file.stat().st_size == 5000


def test_what_a_terminal_cannot_show_is_escaped() -> None:
    done = run("", "-m", "penstock", "health", "--help", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, b"")
    done = run("", "-m", "penstock", "serve", "--data-dir", "\u0434", "--print-config", PYTHONIOENCODING="latin-1")
    assert done.returncode == 0, done.stderr
    assert b'data_dir = "\\u0434"' in done.stdout


@pytest.mark.parametrize("text", ["abc", "\u65e5\u672c \u00e9", "\U0001f600"])
def test_json_for_who_takes_ascii_only_is_the_same_value(text: str) -> None:
    escaped = ascii_json(json.dumps({"a": text}, ensure_ascii=False))
    assert escaped.isascii()
    assert json.loads(escaped) == {"a": text}
