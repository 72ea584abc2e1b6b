"""Secrets of a broker that other users of the machine may read: in files, and in the process list.

Rules: a secret's file that others can read stops the start, unless `allow_open_secrets` is set; then a warning is
logged. A secret on the command line causes a warning: every user can read the process list.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from penstock.access.secret_files import open_to_others
from penstock.broker.config.config_checks import SECRET_FILES
from penstock.broker.config.setting_sources import ConfigMistakes, SourcedValue, value_of
from penstock.broker.config.settings import SETTINGS

OF_SECRETS = (*SECRET_FILES, "tls_key", "nats_tls_key", "nats_nkey_seed", "nats_creds")
"""The settings that name a file with a secret."""


def exposed_secrets(given: Mapping[str, SourcedValue], mistakes: ConfigMistakes) -> tuple[str, ...]:
    """Return the warnings of the start; add to `mistakes` what prevents the start."""
    warnings = []
    for name in OF_SECRETS:
        if name not in given:
            continue
        with suppress(OSError):  # a missing or inaccessible file is reported elsewhere
            if (advice := open_to_others(given[name].value, given[name].value.stat())) is None:
                continue
            if value_of(given, "allow_open_secrets"):
                warnings.append(advice)
            else:
                mistakes.append(f"{given[name].origin}: {advice}; or, in a container, set allow_open_secrets")
    for setting in SETTINGS.values():
        if setting.secret and setting.name in given and given[setting.name].origin == setting.flag:
            text = f"{setting.flag}: every user of this machine can read it in the list of processes"
            warnings.append(f"{text}; give {setting.flag}-file FILE, or set {setting.variable}")
    nats = given.get("nats")
    if nats is not None and nats.origin == SETTINGS["nats"].flag and any("@" in url for url in nats.value):
        text = "--nats: every user of this machine can read the password in its URL in the list of processes"
        warnings.append(f"{text}; give --nats-password-file FILE, --nats-creds FILE, or set PENSTOCK_NATS")
    return tuple(warnings)
