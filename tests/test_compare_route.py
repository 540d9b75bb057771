"""The plugin's route `compare`, on jobs that the real engine read."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from soak import server
from tensorboard.plugins import base_plugin
from traces import ranks, write
from werkzeug.test import Client, TestResponse

from tb_ddp_doctor import engine
from tb_ddp_doctor.plugin import examination
from tb_ddp_doctor.plugin.examination import Examination
from tb_ddp_doctor.plugin.plugin import DiagnosisPlugin

USUAL = """
    rank# step |1
          gpu  [fwd....][bwd.]
          nccl                [ar........]
"""
LONGER = """
    rank# step |1
          gpu  [fwd........][bwd.]
          nccl                    [ar........]
"""
ODD = 'ümlaut #1 & "100%"'
Get = Callable[..., TestResponse]


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    logs = tmp_path_factory.mktemp("logs")
    write(logs / "short", ranks(USUAL, USUAL))
    write(logs / ODD, ranks(LONGER, LONGER, LONGER, steps=5))
    (logs / "broken").mkdir()
    (logs / "broken" / "rank0.pt.trace.json").write_text("this is no trace")
    return logs


@pytest.fixture(scope="module")
def get(logs: Path) -> Get:
    apps = DiagnosisPlugin(base_plugin.TBContext(logdir=str(logs))).get_plugin_apps()
    return lambda route, **query: Client(apps[route]).get(route, query_string=query)


def answered(get: Get, **query: str) -> TestResponse:
    """The answer once all that it needs is read."""
    until = time.monotonic() + 60
    while (response := get("/compare", **query)).status_code == 202:
        assert response.get_json()["state"] == "reading"
        assert time.monotonic() < until
        time.sleep(0.05)
    return response


def test_two_runs_are_compared_as_on_the_command_line(get: Get) -> None:
    response = answered(get, before="short", after=ODD)
    assert response.status_code == 200
    found = response.get_json()["comparison"]
    assert (found["before"], found["after"]) == ("short", ODD)
    assert found["step"]["change"] == pytest.approx(4 / 27)
    assert found["story"] == ["Compute rose from 15.0 to 19.0 ms a step, 100 % of the difference."]
    assert found["unlike"][0].startswith(f"{ODD} ran on 3 ranks, short on 2 ranks")


def test_a_run_and_itself_do_not_differ(get: Get) -> None:
    found = answered(get, before="short", after="short").get_json()["comparison"]
    assert found["headline"].startswith("No significant difference") and found["story"] == []


@pytest.mark.parametrize(
    ("query", "status", "words"),
    [
        ({}, 400, "Which two runs?"),
        ({"before": "short"}, 400, "Which two runs?"),
        ({"before": "", "after": "short"}, 400, "Which two runs?"),
        ({"before": "short", "after": "../short"}, 404, "There is no run named '../short'"),
        ({"before": "none", "after": "short"}, 404, "There is no run named 'none'"),
        ({"before": "short", "after": "broken"}, 409, "broken could not be read: "),
    ],
)
def test_what_cannot_be_compared_is_said(get: Get, query: dict[str, str], status: int, words: str) -> None:
    response = answered(get, **query)
    assert (response.status_code, words in response.get_json()["error"]) == (status, True)


def test_no_lock_is_held_while_runs_are_compared(logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reached, go_on = threading.Event(), threading.Event()
    compare = examination.compare
    plugin = DiagnosisPlugin(base_plugin.TBContext(logdir=str(logs)), examiner=Examination())
    get = server(logs, plugin)

    def slowly(before: engine.Result, after: engine.Result) -> object:
        reached.set()
        assert go_on.wait(120)
        return compare(before, after)

    answered(get, before="short", after=ODD)
    monkeypatch.setattr(examination, "compare", slowly)
    asking = threading.Thread(target=get, args=("/compare",), kwargs={"before": "short", "after": ODD})
    asking.start()
    assert reached.wait(120)
    assert get("/runs").status_code == get("/run", run="short").status_code == 200
    go_on.set()
    asking.join(120)
