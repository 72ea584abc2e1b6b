"""The runner of stories: what happens otherwise than a story says is a failure that shows the difference."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.conftest import WORLDS, StoryError, check, replayed

STORIES = Path(__file__).parents[1] / "scenarios"


class Echo:
    """Shows each command twice, but for `quiet`."""

    def tell(self, command: str) -> list[str]:
        return [] if command == "quiet" else [command, command]


def test_a_story_is_told_with_what_happens() -> None:
    told = "# Twice.\none\nquiet\n----\nanother\n\nquiet\n\nquiet\n----\n"
    assert replayed(told, Echo()) == "# Twice.\none\nquiet\n----\none\none\n\nquiet\n\nquiet\n----\n"


@pytest.mark.parametrize("folder", WORLDS)
def test_there_are_stories_of_each_world(folder: str) -> None:
    assert len(list((STORIES / folder).glob("*.txt"))) >= 5


def test_all_stories_are_in_the_folder_of_a_world() -> None:
    assert {path.parent.relative_to(STORIES).as_posix() for path in STORIES.rglob("*.txt")} == set(WORLDS)


def test_another_outcome_fails_and_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REWRITE_SCENARIOS", raising=False)
    story = (STORIES / "raft" / "check_quorum.txt").read_text(encoding="utf-8")
    path = tmp_path / "raft" / "check_quorum.txt"
    path.parent.mkdir()
    path.write_text(story, encoding="utf-8")
    check(path)
    path.write_text(story.replace("1: Leader", "1: Follower", 1), encoding="utf-8")
    with pytest.raises(StoryError, match=r"(?s)-1: Follower.*\+1: Leader"):
        check(path)
