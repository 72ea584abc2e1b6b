"""Who may read a file that holds a secret: its owner alone, or a group to which somebody else has given it.

Rules: as PostgreSQL and OpenSSH have it. Others never may. A group may read, and not write, what does not belong to
whoever uses it: so Kubernetes hands out secrets (root, `fsGroup`, mode 0440), and systemd credentials; their user could
not change that. A container in which modes mean nothing says so: `allow_open_secrets`.

| owner          | mode            |              |
|----------------|-----------------|--------------|
| who uses it    | 0600, 0400      | taken        |
| who uses it    | 0640, 0644      | refused      |
| somebody else  | 0440, 0640      | taken        |
| anybody        | 0644, 0444, 0660 | refused     |
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

VARIABLE = "PENSTOCK_ALLOW_OPEN_SECRETS"
"""In the environment: files are taken whoever may read them."""


def allowed_by(environment: Mapping[str, str]) -> bool:
    """Whether the environment of a client says that files are taken whoever may read them."""
    return environment.get(VARIABLE, "").strip().lower() in ("1", "true", "yes", "on")


def open_to_others(file: Path, state: os.stat_result) -> str | None:
    """What is wrong with the mode of a file that holds a secret, and what to do; None: nothing."""
    if not (hasattr(os, "geteuid") and is_open_to_others(state, os.geteuid())):
        return None
    mode = stat.S_IMODE(state.st_mode)
    return f"{file} holds a secret, and with mode {mode:04o} others than its owner may use it: chmod 600 {file}"


def check_private(file: Path, environment: Mapping[str, str]) -> None:
    """ValueError: a file of a client that holds a secret is open to others, unless its environment allows that."""
    if (advice := open_to_others(file, file.stat())) is not None and not allowed_by(environment):
        raise ValueError(f"{advice}; or, in a container, set {VARIABLE}=true")


def is_open_to_others(state: os.stat_result, user_id: int) -> bool:
    """Whether others than that user, or than the group of a file that is not that user's, may use it."""
    of_group = stat.S_IRWXG if state.st_uid == user_id else stat.S_IWGRP | stat.S_IXGRP
    return bool(state.st_mode & (stat.S_IRWXO | of_group))
