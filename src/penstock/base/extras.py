"""Install instructions for optional parts of Penstock, used by error texts.

Rules: an extra is installed from where Penstock was installed from, which is in its metadata (PEP 610). The
distribution is `penstock-log`: on package indexes `penstock` is another project, so no text tells a user to install it.

| Penstock was installed from             | pip is told                                         |
|-----------------------------------------|-----------------------------------------------------|
| a checkout that is still there          | `pip install '.[tls]'` in /home/ann/penstock        |
| a wheel's file that is still there      | `pip install '/home/ann/penstock_log-….whl[tls]'`   |
| an index, or what is gone meanwhile     | `pip install 'penstock-log[tls]'`                   |
| nothing: it runs from a checkout        | `pip install '.[tls]'` in that folder               |

The third works without an index that has Penstock: pip sees that it is installed, and fetches what the extra names.
"""

from __future__ import annotations

import json
import shlex
from importlib import metadata
from pathlib import Path
from urllib.parse import urlsplit

DISTRIBUTION = "penstock-log"
_SOURCE = "the folder of Penstock's source"


def how_to_install(*extras: str) -> str:
    """Return the command that installs extras and its folder: "`pip install '.[tls]'` in /home/ann/penstock"."""
    what, where = pip_arguments(*extras)
    return f"`pip install {what}`{where}"


def pip_arguments(*extras: str) -> tuple[str, str]:
    """Return what pip is to install, for a shell, and behind it the folder: ("'.[tls]'", " in /home/ann/penstock")."""
    names = ",".join(extras)
    origin = _origin()
    if any(extra.startswith("bench") for extra in extras):  # a distribution of its own, on no index yet
        return f"'.[{names}]' ./bench", f" in {origin if origin is not None and origin.is_dir() else _SOURCE}"
    if origin is None:
        return f"'{DISTRIBUTION}[{names}]'", ""
    if origin.is_file():
        return shlex.quote(f"{origin}[{names}]"), ""
    return f"'.[{names}]'", f" in {origin}"


def _origin() -> Path | None:
    """Return the folder or wheel's file that Penstock was installed from, or runs from, if it is still there."""
    found = (_recorded(), Path(__file__).resolve().parents[3])
    return next((path for path in found if path is not None and _is_installable(path)), None)


def _is_installable(path: Path) -> bool:
    return path.is_file() if path.suffix == ".whl" else (path / "pyproject.toml").is_file()


def _recorded() -> Path | None:
    """Return the local path that pip recorded at the installation."""
    try:
        told = json.loads(metadata.distribution(DISTRIBUTION).read_text("direct_url.json") or "{}")
        url = urlsplit(told["url"])
    except (metadata.PackageNotFoundError, ValueError, KeyError, TypeError):
        return None
    from urllib.request import url2pathname  # imported here only: it loads ssl, which is slow

    return Path(url2pathname(url.path)) if url.scheme == "file" else None
