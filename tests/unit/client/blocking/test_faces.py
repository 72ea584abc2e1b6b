"""The blocking client is what `tools/faces.py` writes: the calls, parameters, defaults and words of the asyncio one."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
from tools import faces

from penstock.client import aio, users
from penstock.client.append import producing, staging
from penstock.client.blocking import client as blocking
from penstock.client.consume import consumers, groups, stream_consumers, tables
from penstock.client.queues import queue

ROOT = Path(__file__).resolve().parents[4]
INSIDE = {
    *("open", "take", "each", "is_due", "checkpoint", "hand_over", "shown", "check_messages"),  # of consumers
    *("load", "moved"),  # of tables
}
"""Methods for our own use."""
SPECIAL = {"__contains__", "__getitem__", "__iter__", "__len__"}
SHOWN = {"__repr__", "_repr_html_"}
OTHER_WORDS = {"Client.close"}  # it also ends a thread


def test_the_file_is_what_would_be_written() -> None:
    written = (ROOT / faces.TARGET).read_text(encoding="utf-8")
    assert written == faces.blocking_client(), "write it anew: `python3 dev.py faces`"


def is_offered(face: type, name: str) -> bool:
    if name in SPECIAL:
        return not hasattr(face, "__next__")  # an iterator is `__aiter__` in the other face
    return name in SHOWN or (not name.startswith("_") and name not in INSIDE)


def calls(face: type) -> dict[str, object]:
    return {name: one for name, one in vars(face).items() if is_offered(face, name)}


@pytest.mark.parametrize(
    "theirs",
    [
        aio.Client,
        consumers.Consumer,
        groups.Groups,
        producing.Producer,
        queue.Queue,
        queue.QueueMessage,
        stream_consumers.StreamConsumers,
        staging.Staging,
        tables.Table,
        users.Users,
    ],
)
def test_both_faces_are_the_same(theirs: type) -> None:
    ours = getattr(blocking, theirs.__name__)
    assert list(calls(ours)) == list(calls(theirs)) != []
    for name, own in calls(ours).items():
        other = getattr(theirs, name)
        if f"{ours.__name__}.{name}" not in OTHER_WORDS:
            assert inspect.getdoc(own) == inspect.getdoc(other), name
        if isinstance(own, property):
            assert isinstance(other, property), name
            continue
        assert not inspect.iscoroutinefunction(own), name
        assert inspect.signature(own).parameters == inspect.signature(other).parameters, name
        assert as_blocking(inspect.signature(other)) == inspect.signature(own).return_annotation, name


def as_blocking(signature: inspect.Signature) -> str:
    found = str(signature.return_annotation)
    if found.startswith("AsyncGenerator["):
        return found.removeprefix("Async").removesuffix("]") + ", None]"
    return found.replace("asyncio.", "concurrent.futures.").replace("Changes", "Iterator[Message]")


def test_connecting_is_the_same() -> None:
    assert inspect.signature(blocking.connect).parameters == inspect.signature(aio.connect).parameters
    assert inspect.getdoc(blocking.connect) == inspect.getdoc(aio.connect)


PLANTED = '''
    async def planted(self, stream: StreamName, *rest: int, size: int | None = None, **more: Any) -> list[int]:
        """Return the sizes."""
        return await self._link.sizes(stream)

    async def opened(self, name: str) -> Table:
        return await Table(self._link, 1.0).load(name)

    @property
    def is_planted(self) -> bool:
        return True

    def _hidden(self) -> None: ...

'''
WRITTEN = '''
    def planted(self, stream: StreamName, *rest: int, size: int | None = None, **more: Any) -> list[int]:
        """Return the sizes."""
        return self._thread.run(self._client.planted(stream, *rest, size=size, **more))

    def opened(self, name: str) -> Table:
        return Table(self._thread.run(self._client.opened(name)), self._thread)

    @property
    def is_planted(self) -> bool:
        return self._client.is_planted

    # Streams
'''


def test_a_new_call_gets_its_twin() -> None:
    def source(module: str) -> str:
        return faces.source_of(module).replace("\n    # Streams\n", f"{PLANTED}    # Streams\n")

    text = faces.blocking_client(source)
    assert WRITTEN in text
    assert "_hidden" not in text


def test_one_that_is_out_of_date_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / faces.TARGET
    target.parent.mkdir(parents=True)
    target.write_text((ROOT / faces.TARGET).read_text(encoding="utf-8") + "# edited\n", encoding="utf-8")
    monkeypatch.setattr(faces, "blocking_client", (ROOT / faces.TARGET).read_text)
    monkeypatch.setattr(faces, "ROOT", tmp_path)
    assert faces.main(["--check"]) == 1
    assert "is out of date: `python3 dev.py faces`" in capsys.readouterr().out
    assert faces.main([]) == faces.main(["--check"]) == 0
