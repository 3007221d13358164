"""Baselines of a store and the copy that sessions read: what is down, taken, lost or removed."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.registry import give
from pytest_llmbench.store import elsewhere
from pytest_llmbench.store.elsewhere import Mirror, folder_of, mirror_of

FIRST, SECOND = "Linux-64bit/0001_main.json", "Linux-64bit/0002_main.json"


class Store:
    """A store in memory, which may be down for some calls, or keep what it cannot say it kept."""

    def __init__(self, *names: str) -> None:
        self.kept = dict.fromkeys(names, "{}")
        self.down = 0
        self.mute = False

    def _answers(self) -> None:
        self.down -= 1
        if self.down >= 0:
            raise ConnectionError("down")

    def names(self) -> list[str]:
        self._answers()
        return list(self.kept)

    def read(self, name: str) -> str:
        self._answers()
        return self.kept[name]

    def add(self, name: str, text: str) -> bool:
        self._answers()
        if name in self.kept:
            return False
        self.kept[name] = text
        if self.mute:
            self.mute = False
            raise TimeoutError("no answer")
        return True


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elsewhere, "_PAUSES_S", (0.0, 0.0))


def saved(mirror: Mirror, name: str = FIRST, text: str = "mine") -> Path:
    path = mirror.folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def names(mirror: Mirror) -> list[str]:
    return sorted(path.relative_to(mirror.folder).as_posix() for path in mirror.folder.rglob("*.json"))


def test_the_copy_is_what_the_store_has(tmp_path: Path) -> None:
    store = Store(FIRST, SECOND, "../0001_evil.json", "a/b/0001_x.json", "notes.json")
    mirror = Mirror("mem:", store, tmp_path)
    assert mirror.fetch() == []
    assert names(mirror) == [FIRST, SECOND]
    assert (tmp_path / ".gitignore").read_text() == "*\n"
    del store.kept[FIRST]  # a maintainer took it out
    assert mirror.fetch() == []
    assert names(mirror) == [SECOND]


def test_a_call_is_tried_three_times(tmp_path: Path) -> None:
    store = Store(FIRST)
    store.down = 2
    assert Mirror("mem:", store, tmp_path).fetch() == []


def test_of_a_store_that_is_down_the_copy_is_read_and_nothing_is_lost(tmp_path: Path) -> None:
    store = Store(FIRST)
    mirror = Mirror("mem:", store, tmp_path)
    mirror.fetch()
    store.down = 100
    (said,) = mirror.fetch()
    assert "mem: does not answer (ConnectionError: down): sessions are compared with the copy" in said
    assert "the session is kept in" in mirror.send(saved(mirror, SECOND))
    assert names(mirror) == [FIRST, f"unsent/{SECOND}"]
    store.down = 0
    store.kept[SECOND] = "theirs"  # saved meanwhile from another machine
    assert mirror.fetch() == ["baseline sent to mem: as Linux-64bit/0003_main.json"]
    assert store.kept["Linux-64bit/0003_main.json"] == "mine"
    assert names(mirror) == [FIRST, SECOND, "Linux-64bit/0003_main.json"]


def test_a_number_that_is_taken_is_not_overwritten(tmp_path: Path) -> None:
    store = Store(FIRST)
    mirror = Mirror("mem:", store, tmp_path)
    assert mirror.send(saved(mirror)) == "baseline sent to mem: as Linux-64bit/0002_main.json"
    assert store.kept == {FIRST: "{}", SECOND: "mine"}


def test_what_a_store_kept_without_saying_so_is_not_kept_twice(tmp_path: Path) -> None:
    store = Store()
    store.mute = True
    mirror = Mirror("mem:", store, tmp_path)
    assert mirror.send(saved(mirror)) == "baseline sent to mem: as Linux-64bit/0001_main.json"
    assert store.kept == {FIRST: "mine"}


def test_a_store_that_never_answers_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from threading import Event

    monkeypatch.setattr(elsewhere, "_LONGEST_S", 0.05)
    store, never = Store(), Event()
    store.names = lambda: [str(never.wait(5))]  # type: ignore[method-assign]
    (said,) = Mirror("mem:", store, tmp_path).fetch()
    assert "no answer within 0.05 s" in said
    never.set()


def test_names_of_stores_and_of_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert mirror_of("baselines", "--llm-storage") is None
    assert mirror_of("./mem:x", "--llm-storage") is None
    with pytest.raises(SuiteError, match="there is no store 'mem'"):
        mirror_of("mem:x", "--llm-storage")
    give("stores", {"mem": lambda where: Store(where)})
    try:
        found = mirror_of("mem:http://a/b", "--llm-storage")
        assert found is not None
        assert found.store.names() == ["http://a/b"]
        assert found.folder == folder_of("mem:http://a/b") != folder_of("mem:http:/a/b")
        (tmp_path / "mem:x").mkdir()
        assert mirror_of("mem:x", "--llm-storage") is None
    finally:
        give("stores", {})
