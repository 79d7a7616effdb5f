import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from unshuffle.errors import UserError
from unshuffle.runs.heartbeat import Heartbeat
from unshuffle.runs.run import Run
from unshuffle.serve import library
from unshuffle.serve.library import Library


@pytest.fixture(autouse=True)
def always_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "SECONDS_BETWEEN_LOOKS", 0.0)


def test_runs_are_found_and_keep_their_version_until_something_changes(copied: Run) -> None:
    runs = Library([copied.folder.parent])
    before = runs.runs()
    assert list(before) == ["copied"] and before["copied"].state.state == "finished"
    assert runs.runs()["copied"].version == before["copied"].version
    with copied.metrics_file.open("a") as file:
        file.write('{"iteration": 99, "kind": "cost", "duration": 1}\n')
    assert runs.runs()["copied"].version > before["copied"].version
    Heartbeat("failed", 1.0, "no memory").write(copied)
    assert runs.runs()["copied"].state.message == "no memory"


def test_a_new_run_appears_and_a_deleted_one_is_shown_as_such(run: Run, tmp_path: Path) -> None:
    runs = Library([tmp_path])
    assert runs.runs() == {}
    shutil.copytree(run.folder, tmp_path / "arm" / "seed-0")
    assert list(runs.runs()) == ["arm/seed-0"]
    shutil.rmtree(tmp_path / "arm")
    state = runs.runs()["arm/seed-0"].state
    assert (state.state, state.message) == ("damaged", "its folder was deleted")
    shutil.copytree(run.folder, tmp_path / "arm" / "seed-0")
    assert runs.runs()["arm/seed-0"].state.state == "finished"


def test_a_run_folder_itself_and_several_folders(run: Run, uniform_run: Run) -> None:
    assert list(Library([run.folder]).runs()) == [run.folder.name]
    assert list(Library([run.folder, uniform_run.folder]).runs()) == [run.folder.name, uniform_run.folder.name]


def test_what_is_no_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a folder"):
        Library([tmp_path / "missing"])


def test_answers_are_kept_for_their_version_only(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "MAX_REMEMBERED", 2)
    runs, made = Library([run.folder]), list[int]()

    def make() -> int:
        made.append(1)
        return len(made)

    assert [runs.remember("a", 1, make), runs.remember("a", 1, make), runs.remember("a", 2, make)] == [1, 1, 2]
    for key in ("b", "c"):
        runs.remember(key, 1, make)
    assert runs.remember("a", 2, make) == 5, "the oldest was forgotten"


def test_an_answer_is_made_once_for_all_that_ask(run: Run) -> None:
    runs, made, asked = Library([run.folder]), list[int](), threading.Event()

    def make() -> int:
        made.append(1)
        asked.wait(0.5)
        return len(made)

    with ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(runs.remember, "a", 1, make) for _ in range(4)]
        asked.set()
    assert [answer.result() for answer in answers] == [1, 1, 1, 1]
