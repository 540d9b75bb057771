"""Runs are diagnosed, and asked about, in processes that a run can cost, and not TensorBoard's."""

from __future__ import annotations

import gzip
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hostile_files import digests_of_many_messages
from soak import HEALTHY, SLOW, server
from tensorboard.plugins import base_plugin
from traces import in_row, ranks, write

from tb_ddp_doctor.discover.runs import discover
from tb_ddp_doctor.engine import RunError
from tb_ddp_doctor.plugin import examination, examiners
from tb_ddp_doctor.plugin.asking import RunFiles, RunQuestion
from tb_ddp_doctor.plugin.examination import Examination
from tb_ddp_doctor.plugin.examiners import Examiners
from tb_ddp_doctor.plugin.plugin import DiagnosisPlugin
from tb_ddp_doctor.workers.limits import Limits

TRACES = in_row(ranks(HEALTHY, SLOW, HEALTHY))
PATIENCE_S = 120
#: Too little for a job of hundreds of thousands of collectives: less than a second.
FEW = Limits(seconds=60.0, cpu_s=0.0, bytes=384 << 20, answer_bytes=64 << 20)


def silent(*_: object) -> None:
    """Nobody wants to know."""


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[RunFiles]:
    logs = tmp_path_factory.mktemp("logs")
    for name in ("a", "b"):
        write(logs / name, TRACES)
    return [RunFiles(number, run) for number, run in enumerate(discover(logs))]


@pytest.fixture
def many() -> Iterator[Examiners]:
    made = Examiners()
    yield made
    for member in made._members:
        member.process.end()


def asked(source: RunFiles, route: str = "detail", *others: RunFiles, **parameters: str) -> RunQuestion:
    return RunQuestion(route, source, parameters or {"of": "operators"}, others)


def test_a_run_made_to_be_joined_for_long_costs_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of which nothing is computed in the process that serves the tab."""
    write(tmp_path / "good", TRACES)
    # A second of CPU time is the least that a system can limit.
    digests_of_many_messages(tmp_path / "planted", 400_000)
    usual = examiners._limits
    few = {"planted": FEW}
    monkeypatch.setattr(examiners, "_limits", lambda source: few.get(source.run.name) or usual(source))
    get = server(tmp_path)
    until = time.monotonic() + PATIENCE_S
    while (planted := get("/run", run="planted").get_json())["state"] not in ("ready", "failed"):
        assert time.monotonic() < until
        time.sleep(0.05)
    assert planted["state"] == "failed"
    assert planted["error"] == "Diagnosing it takes more than 0 s of CPU time, which no run of its size needs."
    while get("/run", run="good").status_code != 200:
        assert time.monotonic() < until
        time.sleep(0.05)
    assert get("/detail", run="good", of="operators").status_code == 200
    assert get("/detail", run="planted", of="operators").status_code == 404


def test_a_question_that_takes_too_long_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "job", TRACES)
    plugin = DiagnosisPlugin(base_plugin.TBContext(logdir=str(tmp_path)))
    get = server(tmp_path, plugin)
    until = time.monotonic() + PATIENCE_S
    while get("/run", run="job").status_code != 200:
        assert time.monotonic() < until
        time.sleep(0.05)
    monkeypatch.setattr(examiners, "_limits", lambda *sources: Limits(0.0, 20.0, 384 << 20, 64))
    response = get("/detail", run="job", of="operators")
    assert response.status_code == 500
    assert response.get_json()["error"].startswith("Diagnosing it takes more than ")
    monkeypatch.undo()
    assert get("/detail", run="job", of="operators").status_code == 200


def test_a_run_is_asked_about_where_it_was_diagnosed(many: Examiners, sources: list[RunFiles]) -> None:
    for source in sources:
        shown = many.show(source, silent)
        assert (
            json.loads(gzip.decompress(shown.body))["diagnosis"]["verdict"] == shown.summary["verdict"] == "straggler"
        )
    assert many.reply(asked(sources[0])).code == 200
    assert len(many._members) == 1


def test_while_a_run_is_diagnosed_others_are_asked_about(many: Examiners, sources: list[RunFiles]) -> None:
    many.show(sources[0], silent)
    with many._member({7}, shows=True) as busy:
        assert many.reply(asked(sources[0])).code == 200
        assert len(many._members) == 2
    assert busy in many._members


def test_a_process_that_died_is_replaced(many: Examiners, sources: list[RunFiles]) -> None:
    many.show(sources[0], silent)
    before = many.reply(asked(sources[0]))
    (member,) = many._members
    member.process.end()
    member.process.ended = False  # nobody has seen it
    with pytest.raises(Exception, match="died"):
        many.reply(asked(sources[0]))
    assert many.reply(asked(sources[0])) == before


def test_two_runs_are_compared(many: Examiners, sources: list[RunFiles]) -> None:
    compared = json.loads(many.reply(asked(sources[0], "compare", sources[1])).content)
    assert [run["name"] for run in compared["comparison"]["runs"]] == ["a", "b"]


def test_a_run_that_is_gone_is_a_sentence(many: Examiners, sources: list[RunFiles], tmp_path: Path) -> None:
    folder = write(tmp_path / "gone", TRACES)
    (run,) = discover(tmp_path)
    for path in folder.iterdir():
        os.unlink(path)
    shown = many.show(RunFiles(99, run), silent)
    assert shown.error and "no trace of this run can be read" in shown.error
    reply = many.reply(asked(RunFiles(99, run)))
    assert (reply.code, json.loads(reply.content)["error"][:24]) == (409, "gone could not be read: ")


def test_what_was_found_of_the_last_runs_is_kept(monkeypatch: pytest.MonkeyPatch, sources: list[RunFiles]) -> None:
    """Of 400 runs it took 481 MB, for as long as TensorBoard ran."""
    monkeypatch.setattr(examination, "_MOST_RESULTS", 1)
    found = Examination()
    for source in (*sources, *sources):
        found.show(source)
        assert [*found._results] == [source.number]
        assert found.reply(asked(source)).code == 200


def test_of_much_memory_only_the_last_run_is_kept(monkeypatch: pytest.MonkeyPatch, sources: list[RunFiles]) -> None:
    monkeypatch.setattr(examination, "_MOST_BYTES", 1 << 60)
    found = Examination()
    for source in sources:
        found.show(source)
    assert len(found._results) == 2
    monkeypatch.setattr(examination, "_MOST_BYTES", 0)
    found.show(sources[0])
    assert [*found._results] == [sources[0].number]


def test_a_run_is_not_diagnosed_again_for_a_question(sources: list[RunFiles]) -> None:
    diagnosed: list[str] = []

    def diagnose(run: Any, *_: object) -> Any:
        diagnosed.append(run.name)
        raise RunError("on purpose", ("rank0",))

    shown = Examination(diagnose=diagnose).show(sources[0])
    assert (shown.error, shown.unfinished) == ("on purpose", ("rank0",))
    found = Examination()
    found.show(sources[0])
    found._diagnose = diagnose
    assert found.reply(asked(sources[0])).code == 200
    assert found.reply(asked(sources[1])).code == 409
    assert diagnosed == ["a", "b"]


def test_a_scheduler_that_is_none_is_a_sentence(sources: list[RunFiles]) -> None:
    found = Examination("nowhere")
    assert (found.show(sources[0]).error or "").startswith("--scheduler takes the address")
    assert found.reply(asked(sources[0])).code == 409


def test_joining_is_said_once_all_is_read(sources: list[RunFiles]) -> None:
    said: list[str] = []
    Examination().show(sources[0], lambda *_: said.append("read"), lambda: said.append("joining"))
    assert said[-1] == "joining" and said.count("joining") == 1
