"""Consumers and groups: the blocking face has the calls, parameters, defaults and words of the asyncio one."""

from __future__ import annotations

import inspect

import pytest

from penstock.client.blocking import groups as blocking_groups
from penstock.client.consume import consumers, groups
from penstock.client.link.keywords import ConsumerOptions

INSIDE = {"open", "take", "each", "is_due", "checkpoint"}  # of the asyncio consumer, for the blocking one


def calls(face: type) -> dict[str, object]:
    return {name: value for name, value in vars(face).items() if not name.startswith("_") and name not in INSIDE}


@pytest.mark.parametrize(
    ("ours", "theirs"), [(blocking_groups.Consumer, consumers.Consumer), (blocking_groups.Groups, groups.Groups)]
)
def test_both_faces_are_the_same(ours: type, theirs: type) -> None:
    assert calls(ours).keys() == calls(theirs).keys()
    for name in calls(ours):
        own, other = getattr(ours, name), getattr(theirs, name)
        assert inspect.getdoc(own) == inspect.getdoc(other), name
        if inspect.isfunction(own):
            assert inspect.signature(own).parameters == inspect.signature(other).parameters, name


def test_options_are_what_is_wanted() -> None:
    options = {name.removesuffix("_s") for name in consumers.ConsumerSettings._fields}
    assert set(ConsumerOptions.__annotations__) == options - {"stream", "group", "start", "timeout"}


def test_what_cannot_be_is_refused() -> None:
    for options, error in (
        ({"batch_rows_max": 0}, ValueError),
        ({"checkpoint_interval": 0.0}, ValueError),
        ({"columns": ["colour"]}, ValueError),
        ({"follows": True}, TypeError),
    ):
        with pytest.raises(error):
            consumers.consumer_settings("orders", "billing", 0, 1.0, options)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="may hold only letters"):
        consumers.consumer_settings("orders", "a b", 0, 1.0, {})
