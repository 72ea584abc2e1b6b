"""How a part of Penstock is installed that not everybody needs: what every error text says.

Rules: an extra comes from the folder that Penstock was installed from. No package index has Penstock; what has its name
there is somebody else's, so no text tells a user to install that.
"""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path
from urllib.parse import urlsplit

_SOMEWHERE = "the folder that Penstock was installed from"


def how_to_install(*extras: str) -> str:
    """The command that installs them, and where it is to run: "`pip install '.[tls]'` in /home/ann/penstock"."""
    return f"`pip install '.[{','.join(extras)}]'` in {checkout()}"


def checkout() -> str:
    """The folder that Penstock was installed from, if it is still there; else so many words."""
    try:
        told = json.loads(metadata.distribution("penstock").read_text("direct_url.json") or "{}")
        url = urlsplit(told["url"])
    except (metadata.PackageNotFoundError, ValueError, KeyError, TypeError):
        return _SOMEWHERE
    from urllib.request import url2pathname  # only here: it loads ssl, which takes long

    folder = Path(url2pathname(url.path))
    return str(folder) if url.scheme == "file" and (folder / "pyproject.toml").is_file() else _SOMEWHERE
