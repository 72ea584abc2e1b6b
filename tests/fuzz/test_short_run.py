"""A short run of each fuzz target, with the inputs that a seed gives; and that the fuzzer itself sees what is wrong."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from penstock import hot
from penstock.hot.crc import crc32c
from penstock.ingest.producers import Producers
from penstock.messages import APIS
from penstock.messages.fields import Request
from penstock.raft.messages import Message
from penstock.wire import FrameDecoder
from penstock.wire.bodies import decode_answer_body, decode_request_body
from tests import hot_modes
from tests.extent import HAS_TIME, each_change
from tests.fuzz import corpus, engine, mutation, shapes, tracing
from tests.fuzz.hot_runs import patched
from tests.fuzz.parts import joined, parted
from tests.fuzz.run import table
from tests.fuzz.seeds import SEEDS
from tests.fuzz.target import INPUT_BYTES_MAX, INPUT_SECONDS_MAX, Cover, Target
from tests.fuzz.targets import TARGETS
from tests.fuzz.tracing import Tracer, reached, wanted_of

ROOT = Path(__file__).resolve().parents[2]
SECONDS_MAX = 120
INPUTS = 600 if HAS_TIME else 200
SLOW_INPUTS = 100 if HAS_TIME else 20


def order(target: str, folder: Path, **more: object) -> dict[str, Any]:
    return {
        "target": target,
        "seed": 1,
        "inputs": SLOW_INPUTS if TARGETS[target].is_slow else INPUTS,
        "seconds": SECONDS_MAX,
        "compare_every": 2,
        "chunk": str(folder / "chunk"),
        "corpus": str(folder / "corpus"),
        **more,
    }


@pytest.mark.parametrize("target", TARGETS)
def test_nothing_is_found(target: str, tmp_path: Path) -> None:
    wanted = order(target, tmp_path)
    found = engine.run(wanted)
    assert found["inputs"] == wanted["inputs"]
    assert found["kinds"] > 1
    if TARGETS[target].compares and hot.is_compiled():
        assert found["compared"] >= wanted["inputs"] // 2


@pytest.mark.parametrize("spec", APIS.values(), ids=[spec.api.name.lower() for spec in APIS.values()])
def test_every_request_and_its_answer_are_made_in_every_version(spec: Any) -> None:
    """A new request is fuzzed without another line; a field of a type that `shapes` does not know fails here."""
    chance = Random(int(spec.api))
    for version in range(spec.version_min, spec.version_max + 1):
        requests = [shapes.as_msgpack(shapes.maker_of(spec.request)(chance, 0.0)) for _ in range(20)]
        assert [decode_request_body(int(spec.api), version, body) for body in requests]
    answers = [shapes.as_msgpack(shapes.maker_of(spec.response)(chance, 0.0)) for _ in range(20)]
    assert [decode_answer_body(body, spec.request) for body in answers]
    names = {name for body in requests for name in msgspec.msgpack.decode(body)}
    assert names == set(spec.request.__struct_fields__), "every field is there now and then"


def test_what_shapes_do_not_know_is_an_error_and_not_left_out() -> None:
    class Odd(Request, frozen=True, kw_only=True):
        when: memoryview

    with pytest.raises(TypeError, match="no values are made"):
        shapes.maker_of(Odd)


def test_every_kind_of_raft_message_is_made() -> None:
    chance = Random(1)
    for kind in Message.__args__:
        message = msgspec.msgpack.decode(shapes.as_msgpack(shapes.maker_of(kind)(chance, 0.0)), type=Message)
        assert type(message) is kind


@pytest.mark.parametrize("target", TARGETS)
def test_covers_name_what_there_is(target: str) -> None:
    wanted = wanted_of(TARGETS[target].covers)
    assert len(wanted.lines) > 3
    assert all(reason for cover in TARGETS[target].covers for reason in cover.but.values())


def test_a_name_that_is_not_there_any_more_is_an_error() -> None:
    for cover in (Cover("penstock.wire.frames", ("Gone",)), Cover("penstock.wire.frames", (), {"Gone": "why"})):
        with pytest.raises(ValueError, match="has no Gone"):
            wanted_of((cover,))


def test_what_runs_is_counted_and_what_does_not_is_not() -> None:
    wanted = wanted_of((Cover("penstock.wire.frames", ("FrameDecoder.next_frame",)),))
    decoder = FrameDecoder(100)
    with Tracer(wanted.files) as tracer:
        decoder.next_frame()
    few, _ = reached(tracer.arcs, wanted)
    with Tracer(wanted.files) as tracer:
        TARGETS["frames"].run(hot_modes.running, b"".join(corpus.read("frames")))
    more, branches = reached(tracer.arcs, wanted)
    assert 0 < len(few) < len(more) < len(wanted.lines)
    assert branches
    assert tracing.wanted_of((Cover("penstock.hot.scan", ("_fields",)),)).lines, "what is compiled only is left out"


def _found(target: Target, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(TARGETS, target.name, target)
    with pytest.raises(engine.FindingError) as caught:
        engine.run(order(target.name, folder, corpus=None, inputs=2_000))
    return str(caught.value)


def _target(run: Any) -> Target:
    return Target("frames", run, lambda chance: bytes((int(chance.random() * 4),)), ())


def _raises(_: object, data: bytes) -> object:
    return [1, 2, 3][data[0] if data else 0]


def _is_slow(_: object, data: bytes) -> object:
    end_s = time.process_time() + 1.2 * INPUT_SECONDS_MAX
    while data[:1] == b"\3" and time.process_time() < end_s:
        pass
    return 0


def _takes_much(_: object, data: bytes) -> object:
    return len(bytearray(4_000_000))


def test_an_exception_that_nobody_declared_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "IndexError" in _found(_target(_raises), tmp_path, monkeypatch)


@each_change
def test_an_input_that_takes_long_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "s of CPU for" in _found(_target(_is_slow), tmp_path, monkeypatch)


def test_an_input_that_takes_much_memory_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "bytes of memory for" in _found(_target(_takes_much), tmp_path, monkeypatch)


@hot_modes.needs_compiled
def test_a_difference_between_compiled_and_plain_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(modules: Any, data: bytes) -> object:
        return str(modules("scan").__file__)

    target = Target("frames", run, lambda chance: b"x", (), compares=True)
    assert "compiled '" in _found(target, tmp_path, monkeypatch)


def test_a_broker_that_forgets_what_was_appended_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    again = SEEDS["appends"][1]
    TARGETS["appends"].run(hot_modes.running, again)
    monkeypatch.setattr(Producers, "appended", lambda _self, _header: None)  # the planted mistake
    with pytest.raises(AssertionError, match="is not known"):
        TARGETS["appends"].run(hot_modes.running, again)


def test_a_decoder_that_depends_on_where_reads_end_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = FrameDecoder.receive

    def without_empty_reads(self: FrameDecoder, data: Any) -> None:
        whole(self, data[1:] if len(data) == 1 else data)  # the planted mistake

    head = struct.pack("<IHHII", 12, 7, 1, 258, 0)
    TARGETS["frames"].run(hot_modes.running, head)
    monkeypatch.setattr("tests.fuzz.targets_wire._step_of", lambda _: 1)
    monkeypatch.setattr(FrameDecoder, "receive", without_empty_reads)
    with pytest.raises(AssertionError):
        TARGETS["frames"].run(hot_modes.running, head)


def test_the_same_seed_makes_the_same_inputs(tmp_path: Path) -> None:
    chunks = []
    for number in range(2):
        folder = tmp_path / str(number)
        folder.mkdir()
        engine.run(order("requests", folder))
        chunks.append((folder / "chunk").read_text())
    assert chunks[0] == chunks[1]
    assert len(json.loads(chunks[0])) > 10


def test_changes_stay_small_and_seals_keep_checksums_right() -> None:
    chance = Random(1)
    for target in TARGETS.values():
        data = target.make(chance)
        for _ in range(20):
            data = mutation.changed(chance, data, target.make(chance))
            assert len(data) <= INPUT_BYTES_MAX
            if target.seal is not None:
                sealed = target.seal(data)
                assert target.seal(sealed) == sealed, target.name
    assert isinstance(hot_modes.running("message").MessageChecker(engine_layout()).message(patched(b"\x01")), tuple)


def engine_layout() -> Any:
    from penstock.batch import codec

    return codec.LAYOUT


def test_parts_come_out_as_they_went_in() -> None:
    parts = [b"", b"a", b"b" * 300]
    assert parted(joined(parts)) == parts
    for cut in range(len(joined(parts))):
        assert parted(joined(parts)[:cut])[:-1] == parts[: max(0, len(parted(joined(parts)[:cut])) - 1)]


def test_the_corpus_is_as_small_as_it_can_be() -> None:
    inputs = [(b"long", frozenset({1, 2})), (b"s", frozenset({1, 2})), (b"other", frozenset({3})), (b"x", frozenset())]
    assert corpus.minimised(inputs) == [b"s", b"other"]
    assert corpus.minimised(inputs, [b"s", b"kind", bytes(corpus.OTHER_BYTES_MAX + 1)]) == [b"s", b"other", b"kind"]


@each_change
def test_what_went_wrong_is_known_afterwards(tmp_path: Path) -> None:
    # An input that no target can take, in a process of its own, as `run` starts one.
    (tmp_path / "alone").write_text(json.dumps(["00"]))
    wrong = order("envelope", tmp_path, replay=str(tmp_path / "alone"), compiled="", corpus=None)
    good = subprocess.run([sys.executable, "-m", "tests.fuzz.engine", json.dumps(wrong)], cwd=ROOT, check=False)
    assert good.returncode == 0
    (tmp_path / "alone").write_text(json.dumps(["no digits"]))
    bad = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.engine", json.dumps(wrong)], cwd=ROOT, check=False, capture_output=True
    )
    assert bad.returncode != 0


def test_the_table_says_what_was_done() -> None:
    state = {"frames": {"inputs": 1_000, "seconds": 2.0, "asan": 5, "lines": 0.95, "branches": 0.9, "findings": []}}
    head, rule, row = table(state, ["frames"]).splitlines()
    assert head.startswith("target")
    assert set(rule) <= set("-|")
    assert ("1,000" in row, "500" in row, "95.0%" in row) == (True, True, True)


def test_a_seal_of_frames_is_the_checksum_of_frames() -> None:
    frame = TARGETS["frames"].seal
    assert frame is not None
    head = struct.pack("<IHHII", 20, 0xC007, 1, 258, 0) + bytes(8)
    sealed = frame(head)
    assert struct.unpack_from("<I", sealed, 20)[0] == crc32c(sealed[:20])
