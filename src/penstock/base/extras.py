"""Install instructions for optional parts of Penstock, used by error texts.

Rules: an extra is installed from the folder that Penstock was installed from. Penstock is on no package index; a
package of that name is not ours, so no text tells a user to install it.
"""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path
from urllib.parse import urlsplit

_SOMEWHERE = "the folder that Penstock was installed from"


def how_to_install(*extras: str) -> str:
    """Return the command that installs extras and its folder: "`pip install '.[tls]'` in /home/ann/penstock"."""
    beside = " ./bench" if any(extra.startswith("bench") for extra in extras) else ""  # a distribution of its own
    return f"`pip install '.[{','.join(extras)}]'{beside}` in {checkout()}"


def checkout() -> str:
    """Return the folder that Penstock was installed from if it still exists, otherwise a description of it."""
    try:
        told = json.loads(metadata.distribution("penstock").read_text("direct_url.json") or "{}")
        url = urlsplit(told["url"])
    except (metadata.PackageNotFoundError, ValueError, KeyError, TypeError):
        return _SOMEWHERE
    from urllib.request import url2pathname  # imported here only: it loads ssl, which is slow

    folder = Path(url2pathname(url.path))
    return str(folder) if url.scheme == "file" and (folder / "pyproject.toml").is_file() else _SOMEWHERE
