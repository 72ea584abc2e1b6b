"""Try the Penstock that is installed beside this Python: a broker starts, stores a message, serves it and stops.

Rules: standard library only; loopback only. It ends with an error if the hot path is not compiled, or anything fails.

    python tools/try_installed.py
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

PENSTOCK = str(Path(sys.executable).parent / "penstock")
SECONDS_MAX = 60.0


def run(*arguments: str, server: str = "") -> str:
    """Return what the command printed; it must succeed."""
    environment = {**os.environ, "PENSTOCK_SERVER": server} if server else None
    done = subprocess.run(
        [PENSTOCK, *arguments], env=environment, capture_output=True, text=True, timeout=SECONDS_MAX, check=False
    )
    if done.returncode != 0:
        sys.exit(f"penstock {' '.join(arguments)} failed ({done.returncode}): {done.stderr}")
    return done.stdout.strip()


def main() -> None:
    """Run all of it."""
    version = run("--version")
    if "(hot path: compiled)" not in version:
        sys.exit(f"the hot path is not compiled: {version}")
    with tempfile.TemporaryDirectory() as folder:
        command = [PENSTOCK, "serve", "--data-dir", folder, "--listen", "127.0.0.1:0", "--nats-port", "0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as broker:
            too_long = threading.Timer(SECONDS_MAX, broker.kill)
            too_long.start()
            try:
                assert broker.stdout is not None
                line = broker.stdout.readline()
                found = re.match(r"ready client=(\S+)", line)
                if found is None:
                    sys.exit(f"the broker did not start: {line!r}")
                run("stream", "create", "orders", "orders.>", server=found[1])
                run("publish", "orders.eu", "first", server=found[1])
                stored = run("read", "orders", "--format", "raw", server=found[1])
                broker.send_signal(signal.SIGTERM)
                if (stored, broker.wait(SECONDS_MAX)) != ("first", 0):
                    sys.exit(f"it read {stored!r}, and ended with {broker.returncode}")
            finally:
                too_long.cancel()
                broker.kill()  # it has ended, unless something above went wrong
    print(f"{version}: a broker started, stored a message, served it and stopped.")


if __name__ == "__main__":
    main()
