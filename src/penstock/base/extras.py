"""Install instructions for optional parts of Penstock, used by error texts.

Rules: an extra is installed from where Penstock was installed from, which is in its metadata (PEP 610). The
distribution is `penstock-log`: on package indexes `penstock` is another project, so no text tells a user to install it.

| Penstock was installed from             | pip is told                                         |
|-----------------------------------------|-----------------------------------------------------|
| a checkout that is still there          | `pip install '.[tls]'` in /home/ann/penstock        |
| a wheel's file that is still there      | `pip install '/home/ann/penstock_log-….whl[tls]'`   |
| an index, or what is gone meanwhile     | `pip install 'penstock-log[tls]'`                   |
| nothing: its sources run                | `pip install '.[tls]'` in the folder of its source  |

The third works without an index that has Penstock: pip sees that it is installed, and fetches what the extra names.
"""

from __future__ import annotations

import json
import shlex
from importlib import metadata
from pathlib import Path
from urllib.parse import urlsplit

DISTRIBUTION = "penstock-log"


def how_to_install(*extras: str) -> str:
    """Return the command that installs extras and its folder: "`pip install '.[tls]'` in /home/ann/penstock"."""
    what, where = pip_arguments(*extras)
    return f"`pip install {what}`{where}"


def pip_arguments(*extras: str) -> tuple[str, str]:
    """Return what pip is to install, for a shell, and behind it the folder: ("'.[tls]'", " in /home/ann/penstock")."""
    names = ",".join(extras)
    beside = " ./bench" if any(extra.startswith("bench") for extra in extras) else ""  # a distribution of its own
    origin = _origin()
    if origin is not None and origin.is_dir():
        return f"'.[{names}]'{beside}", f" in {origin}"
    if beside or not _is_installed():
        return f"'.[{names}]'{beside}", " in the folder of Penstock's source"
    return (f"'{DISTRIBUTION}[{names}]'" if origin is None else shlex.quote(f"{origin}[{names}]")), ""


def _origin() -> Path | None:
    """Return the folder or wheel's file that Penstock was installed from, or runs from, if it is still there."""
    found = (_recorded(), Path(__file__).resolve().parents[3])
    return next((path for path in found if path is not None and _is_installable(path)), None)


def _is_installable(path: Path) -> bool:
    return path.is_file() if path.suffix == ".whl" else (path / "pyproject.toml").is_file()


def _is_installed() -> bool:
    try:
        metadata.distribution(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return False
    return True


def _recorded() -> Path | None:
    """Return the local path that pip recorded at the installation."""
    try:
        told = json.loads(metadata.distribution(DISTRIBUTION).read_text("direct_url.json") or "{}")
        url = urlsplit(told["url"])
    except (metadata.PackageNotFoundError, ValueError, KeyError, TypeError):
        return None
    from urllib.request import url2pathname  # imported here only: it loads ssl, which is slow

    return Path(url2pathname(url.path)) if url.scheme == "file" else None
