"""A capture that is asked for when the step times of all ranks show a change."""

from __future__ import annotations

import logging
import os
import threading
import time
from pathlib import Path

import pytest
from test_history_summary import QUIET, drawn, written

from tb_ddp_doctor.cache import Cache
from tb_ddp_doctor.capture import changes as changes_module
from tb_ddp_doctor.capture.changes import ChangeWatch, SlowerSteps, changes
from tb_ddp_doctor.capture.doctor import Doctor
from tb_ddp_doctor.capture.requests import Mailbox, Request
from tb_ddp_doctor.history.read import RankHistory

SLOWED = QUIET + "b ....................####################"


@pytest.fixture
def mailbox(tmp_path: Path) -> Mailbox:
    box = Mailbox(tmp_path)
    box.open()
    return box


def watch(folder: Path, most_a_day: int = 4) -> ChangeWatch:
    return ChangeWatch(folder, folder / "kept", most_a_day, os.environ)


def now(files: list[RankHistory]) -> list[RankHistory]:
    """The same hours, of which the last step ends now."""
    last = files[0].stretches[0]
    later_ns = time.time_ns() - int(last.steps_us.sum()) * 1000 - last.begin_ns
    return [
        file._replace(stretches=[one._replace(begin_ns=one.begin_ns + later_ns) for one in file.stretches])
        for file in files
    ]


def test_changes_are_those_that_are_slower_and_go_on(tmp_path: Path) -> None:
    (found,) = changes(written(tmp_path / "slowed", drawn(SLOWED)), Cache(None))
    assert found.sentence.startswith("Rank 3 is ")
    is_over = written(tmp_path / "over", drawn(QUIET + "b ..........##########...................."))
    assert changes(is_over, Cache(None)) == ()
    faster = written(tmp_path / "faster", drawn("a ####################....................\n" * 3))
    assert changes(faster, Cache(None)) == ()
    assert changes(written(tmp_path / "quiet", drawn(QUIET)), Cache(None)) == ()
    assert changes(tmp_path, Cache(None)) == ()


def test_a_new_change_asks_for_a_capture_once(
    tmp_path: Path, mailbox: Mailbox, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    watching = watch(tmp_path)
    watching.ask(mailbox, (SlowerSteps(time.time() - 60, "It was slow before this process began"),))
    assert mailbox.unanswered() == {}
    change = SlowerSteps(time.time() + 0.001, "Rank 3 is 20 ms slower since step 2,000")
    time.sleep(0.002)
    watching.ask(mailbox, (change,))
    # A later look may see it begin a little later.
    watching.ask(mailbox, (change, SlowerSteps(change.begin_s + 0.0001, change.sentence)))
    assert len(mailbox.unanswered()) == 1
    assert "Rank 3 is 20 ms slower since step 2,000: a capture is asked for." in caplog.text


def test_a_day_has_as_many_captures_as_allowed_whatever_restarts(tmp_path: Path, mailbox: Mailbox) -> None:
    mailbox.ask(Request(time.time(), "somebody"))
    for _ in range(3):
        watching = watch(tmp_path, most_a_day=2)
        watching.ask(mailbox, (SlowerSteps(time.time() + 1, "slower"),))
    assert [request.by for request in mailbox.unanswered().values()].count("a change in the step times") == 2


def test_a_child_looks_at_the_history(tmp_path: Path, mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes_module, "_LOOK_S", 0.0)
    files = now(drawn(SLOWED))
    # The process began an hour and a half ago; half of that the rank has been slow.
    began_s = time.time() - 5400
    with monkeypatch.context() as earlier:
        earlier.setattr(time, "time", lambda: began_s)
        watching = watch(tmp_path)
    written(tmp_path, files)
    until = time.monotonic() + 60
    while not mailbox.unanswered() and time.monotonic() < until:
        watching.look(mailbox)
        time.sleep(0.05)
    assert len(mailbox.unanswered()) == 1
    watching.close()
    assert not (tmp_path / "kept").exists()


@pytest.mark.parametrize(("rank", "looks"), [("0", True), ("1", False)])
def test_rank_0_looks_while_it_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: str, looks: bool) -> None:
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", "2")
    looked = threading.Event()
    monkeypatch.setattr(ChangeWatch, "look", lambda *_: looked.set())
    doctor = Doctor(tmp_path, on_change=True, poll_s=0.01, scratch=tmp_path / "scratch")
    doctor.step()
    assert looked.wait(10 if looks else 0.3) == looks
    doctor.close()


@pytest.mark.parametrize(("given", "a_day"), [(True, 4), (False, 0), (12, 12)])
def test_on_change_is_allowed_so_often_a_day(tmp_path: Path, given: bool | int, a_day: int) -> None:
    doctor = Doctor(tmp_path, on_change=given, scratch=tmp_path / "scratch")
    assert (doctor._on_change, doctor._history is not None) == (a_day, bool(given))
    doctor.close()


def test_on_change_is_a_number(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"on_change is a whole number, such as 1000, not 'often'\."):
        Doctor(tmp_path, on_change="often")  # type: ignore[arg-type]
