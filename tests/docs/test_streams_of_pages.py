"""The how-to pages work one after another on one broker: no two of them create a stream with different configs."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import penstock
from tests import warm
from tests.broker_process import running_broker
from tests.docs.pages import PAGES, blocks
from tests.extent import each_change

OWN_BROKERS = {"cluster", "compose", "secure", "spark", "test-with-the-simulator"}  # pages with brokers of their own
CONFLICT = "exists with another config"
TIMEOUT_S = 120


def created(program: str) -> Iterator[tuple[list[str], dict[str, object]]]:
    """Arguments of each `create_stream("NAME", "SUBJECT", …)` of a program."""
    for node in ast.walk(ast.parse(program)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "create_stream":
            options = {one.arg: ast.literal_eval(one.value) for one in node.keywords if one.arg is not None}
            yield [ast.literal_eval(one) for one in node.args], options


@each_change
def test_no_two_pages_create_a_stream_with_different_configs(tmp_path: Path) -> None:
    conflicts, count = [], 0
    with running_broker(tmp_path / "data") as broker, penstock.connect(broker.client_address) as client:
        environment = broker.environment | {"PENSTOCK_SERVER": broker.client_address}
        for page, path in PAGES.items():
            if page in OWN_BROKERS:
                continue
            for language, text in blocks(path.read_text(encoding="utf-8")):
                if language == "python":
                    for arguments, options in created(text) if "create_stream" in text else ():
                        count += 1
                        try:
                            client.create_stream(*arguments, **options)  # type: ignore[arg-type]
                        except penstock.PenstockError as error:
                            conflicts += [(path.name, arguments, str(error))] if CONFLICT in str(error) else []
                    continue
                for line in re.findall(r"^penstock (stream (?:create|alter) .*)$", text, flags=re.MULTILINE):
                    count += 1
                    running = warm.penstock(shlex.split(line), environment, text=True)
                    _, errors = running.communicate(timeout=TIMEOUT_S)
                    conflicts += [(path.name, line, errors)] if CONFLICT in errors else []
    assert count > 30
    assert conflicts == []
