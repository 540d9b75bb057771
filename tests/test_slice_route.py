"""The plugin's route `slice`, on a job that the real engine read."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace
from tensorboard.plugins import base_plugin
from traces import in_row, ranks, write
from werkzeug.test import Client, TestResponse

from tb_ddp_doctor.plugin.plugin import DiagnosisPlugin

HEALTHY = """
    rank# step |1
          gpu  [fwd....][bwd.]
          nccl                [ar........]
"""
SLOW = """
    rank# step |1
          gpu  [fwd........][bwd.]
          nccl                    [ar....]
"""
Get = Callable[..., TestResponse]


@pytest.fixture(scope="module")
def get(tmp_path_factory: pytest.TempPathFactory) -> Get:
    logs = tmp_path_factory.mktemp("logs")
    write(logs / "job", in_row(ranks(HEALTHY, SLOW, HEALTHY)), clock_ms={1: 500.0})
    apps = DiagnosisPlugin(base_plugin.TBContext(logdir=str(logs))).get_plugin_apps()

    def ask(route: str, **query: str) -> TestResponse:
        return Client(apps[route]).get(route, query_string=query)

    until = time.monotonic() + 60
    while ask("/run", run="job").status_code != 200:
        assert time.monotonic() < until
        time.sleep(0.05)
    return ask


@pytest.fixture(scope="module")
def evidence(get: Get) -> dict[str, str]:
    """The window of the first finding's first evidence, as parameters."""
    window: dict[str, Any] = get("/run", run="job").get_json()["diagnosis"]["findings"][0]["evidence"][0]["window"]
    start, end = window.pop("seen")
    assert int(window["start"]) < int(start) < int(end) < int(window["end"])
    return {"run": "job", **window, "ranks": ",".join(map(str, window["ranks"])), "start": start, "end": end}


def test_a_finding_leads_to_a_native_trace(get: Get, evidence: dict[str, str]) -> None:
    response = get("/slice", **evidence)
    assert response.status_code == 200
    assert response.headers["Content-Type"] == "application/octet-stream"
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    trace = Trace.FromString(response.data)
    names = {packet.track_descriptor.process.process_name for packet in trace.packet}
    assert {"rank 0 (host0)", "rank 1 (host1)", "rank 2 (host2)"} <= names
    # What proves the finding lies in the window that was asked for.
    labels = [packet for packet in trace.packet if packet.track_event.name.startswith("rank 1:")]
    assert int(evidence["start"]) in [packet.timestamp for packet in labels]


@pytest.mark.parametrize("form", ["json", "columns"])
def test_as_json(get: Get, evidence: dict[str, str], form: str) -> None:
    response = get("/slice", **evidence, format=form)
    assert response.status_code == 200
    assert response.headers["Content-Type"].startswith("application/json")
    assert response.get_json()


def test_lanes_are_of_the_ranks_that_are_asked_for(get: Get, evidence: dict[str, str]) -> None:
    told = get("/lanes", **evidence | {"ranks": "2,0"}).get_json()
    assert [lane["rank"] for lane in told["ranks"]] == [0, 2]
    assert (told["start_ns"], told["end_ns"]) == (evidence["start"], evidence["end"])


def test_steps_have_places_on_the_common_clock(get: Get) -> None:
    answer = get("/run", run="job").get_json()
    views = answer["views"]
    # On its own clock the second rank is half a second ahead.
    own = views["start_ns"]
    assert own[1][0] - own[0][0] == pytest.approx(500e6, abs=20e6)
    clock = views["clock_ms"]
    assert clock[1][0] - clock[0][0] == pytest.approx(0, abs=20)
    assert min(map(min, clock)) == 0
    assert (
        abs(int(views["origin_ns"]) - int(answer["diagnosis"]["findings"][0]["evidence"][0]["window"]["start"])) < 1e9
    )


@pytest.mark.parametrize(
    ("changed", "status", "words"),
    [
        ({"run": "<b>"}, 404, "No run named '<b>'"),
        ({"run": ""}, 404, "No run"),
        ({"ranks": ""}, 400, "Which ranks?"),
        ({"ranks": "9"}, 400, "no rank 9"),
        ({"ranks": "0;1"}, 400, "whole numbers"),
        ({"ranks": "-1"}, 400, "whole numbers"),
        ({"ranks": ",".join(["1"] * 10_000)}, 400, "Which ranks?"),
        ({"ranks": ",".join(map(str, range(40)))}, 400, "no rank 3"),
        ({"start": "abc"}, 400, "whole numbers"),
        ({"start": "1e9"}, 400, "whole numbers"),
        ({"start": "\u0663"}, 400, "whole numbers"),
        ({"end": "9" * 30}, 400, "whole numbers"),
        ({"end": "0"}, 400, "ends before"),
        ({"format": "../etc"}, 400, "no format '../etc'"),
    ],
)
def test_requests_that_make_no_sense(
    get: Get, evidence: dict[str, str], changed: dict[str, str], status: int, words: str
) -> None:
    for route in ("/slice", "/lanes") if "format" not in changed else ("/slice",):
        response = get(route, **evidence | changed)
        assert response.status_code == status
        assert words in response.get_json()["error"]
        assert len(response.get_json()["error"]) < 300


def test_a_window_where_nothing_is(get: Get, evidence: dict[str, str]) -> None:
    response = get("/slice", **evidence | {"start": "1", "end": "8" * 19})
    assert response.status_code == 200
    nothing = get("/slice", **evidence | {"start": "1", "end": "2"})
    assert nothing.status_code == 200
    assert Trace.FromString(nothing.data)
