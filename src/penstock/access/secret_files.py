"""File modes for a file with a secret: readable by its owner alone, or by a group if another user owns it.

Rules: those of PostgreSQL and OpenSSH. Others may never read. A group may read, but not write, a file that does not
belong to the user who uses it: Kubernetes hands out secrets like that (root, `fsGroup`, mode 0440), and so do systemd
credentials; their user could not change it. A container in which modes have no effect sets `allow_open_secrets`.

| owner          | mode             |              |
|----------------|------------------|--------------|
| the user       | 0600, 0400       | accepted     |
| the user       | 0640, 0644       | refused      |
| another user   | 0440, 0640       | accepted     |
| any user       | 0644, 0444, 0660 | refused      |
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

VARIABLE = "PENSTOCK_ALLOW_OPEN_SECRETS"
"""Environment variable: accept files whatever their mode."""


def allowed_by(environment: Mapping[str, str]) -> bool:
    """True if a client's environment accepts files whatever their mode."""
    return environment.get(VARIABLE, "").strip().lower() in ("1", "true", "yes", "on")


def open_to_others(file: Path, state: os.stat_result) -> str | None:
    """Return what is wrong with the mode of a file that holds a secret, and what to do; None if it is fine."""
    if not (hasattr(os, "geteuid") and is_open_to_others(state, os.geteuid())):
        return None
    mode = stat.S_IMODE(state.st_mode)
    return f"{file} holds a secret, and with mode {mode:04o} others than its owner may use it: chmod 600 {file}"


def check_private(file: Path, environment: Mapping[str, str]) -> None:
    """Raise ValueError if a client's file with a secret is open to others, unless its environment allows that."""
    if (advice := open_to_others(file, file.stat())) is not None and not allowed_by(environment):
        raise ValueError(f"{advice}; or, in a container, set {VARIABLE}=true")


def is_open_to_others(state: os.stat_result, user_id: int) -> bool:
    """True if the mode lets others use the file; the group may read a file that belongs to another user."""
    of_group = stat.S_IRWXG if state.st_uid == user_id else stat.S_IWGRP | stat.S_IXGRP
    return bool(state.st_mode & (stat.S_IRWXO | of_group))
