"""The page on the socket API names every request, field and error code there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock.messages import APIS, ApiSpec, StatusResponse

PAGE = (Path(__file__).parents[2] / "docs/reference/socket-api.md").read_text()


@pytest.mark.parametrize("spec", APIS.values(), ids=lambda spec: spec.api.name)
def test_the_table_has_the_fields_of_each_request(spec: ApiSpec) -> None:
    rows = re.findall(rf"^\| {int(spec.api)} \| {spec.api.name.lower()} \|(.*)\|$", PAGE, flags=re.MULTILINE)
    assert len(rows) == 1
    request, answer = rows[0].split(" | ")[:2]
    assert [name for name in spec.request.__struct_fields__ if f"`{name}`" not in request] == []
    if spec.response is not StatusResponse:
        assert [name for name in spec.response.__struct_fields__ if f"`{name}`" not in answer] == []
