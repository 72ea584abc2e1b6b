"""Makes the archive of the version before: `python tests/compat/older/make.py COMMIT`, where its history is.

It holds the sources of what a broker and a client need: they work as they stand. At each release it is made anew, of
the release before.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
from pathlib import Path

ARCHIVE = Path(__file__).parent / "penstock.tar.bz2"
_LEFT_OUT = ("bench", "cli", "sim", "spark", "testing", "__main__.py")
_SUFFIXES = (".py", ".proto", ".typed")


def main(commit: str) -> None:
    """Write the archive, the same bytes each time."""
    made = subprocess.run(["git", "archive", "--format=tar", commit, "src/penstock"], capture_output=True, check=True)
    with tarfile.open(fileobj=io.BytesIO(made.stdout)) as source, tarfile.open(ARCHIVE, "w:bz2") as target:
        for member in sorted(source.getmembers(), key=lambda one: one.name):
            path = member.name.removeprefix("src/")
            if member.isfile() and path.endswith(_SUFFIXES) and path.split("/")[1] not in _LEFT_OUT:
                member.name, member.mtime, member.mode = path, 0, 0o644
                member.uname = member.gname = ""
                target.addfile(member, source.extractfile(member))
        said = subprocess.run(["git", "rev-parse", commit], capture_output=True, check=True).stdout
        about = tarfile.TarInfo("COMMIT")
        about.size = len(said)
        target.addfile(about, io.BytesIO(said))


if __name__ == "__main__":
    main(*sys.argv[1:])
