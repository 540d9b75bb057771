"""Whoever reaches TensorBoard can ask the plugin for anything: every answer is one, or a sentence that says why not."""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from load import load
from soak import HEALTHY, SLOW
from tensorboard.plugins import base_plugin
from traces import in_row, ranks, write
from werkzeug.test import Client

import tb_ddp_doctor.plugin
from tb_ddp_doctor.plugin import perfetto_ui, turns
from tb_ddp_doctor.plugin.plugin import DiagnosisPlugin
from tb_ddp_doctor.plugin.turns import TooManyError, Turns

PARAMETER = re.compile(r'(?:args|asked)\.get(?:list)?\(\s*"(\w+)"|(?:args|asked)\["(\w+)"\]|"(\w+)" in request\.args')
SOURCES = Path(tb_ddp_doctor.plugin.__file__).parent.glob("*.py")
#: Whatever the plugin's modules take out of a request, so that new routes are tried too, and one that is not taken.
PARAMETERS = sorted(
    {name for file in SOURCES for found in PARAMETER.findall(file.read_text()) for name in found if name} | {"other"}
)
PAGES = perfetto_ui.pages()
ROUTES = sorted(
    route
    for route in DiagnosisPlugin(base_plugin.TBContext(logdir="")).get_plugin_apps()
    if not route.startswith("/frontend-") and route not in PAGES
)
LIKELY = (
    "job", "", "straggler", "straggler,host-sync", "operators", "memory", "0", "0,1", "-1", "1e9", "0x10", "nan",
    "9" * 18, "9" * 19, "9" * 400, "١٢", "native", "json", "columns", "../../etc/passwd", "/etc/passwd", "job/../job",
    "%2e%2e", "\0", "\r\nSet-Cookie: a=b", "<script>", "{}", "[]", "0," * 600, "true", " 1",
)  # fmt: skip
VALUES = st.one_of(st.sampled_from(LIKELY), st.text(st.characters(exclude_categories=["Cs"]), max_size=40))


@pytest.fixture(scope="module")
def apps(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    logs = tmp_path_factory.mktemp("logs")
    write(logs / "job", in_row(ranks(HEALTHY, SLOW, HEALTHY)))
    apps: dict[str, Any] = DiagnosisPlugin(base_plugin.TBContext(logdir=str(logs))).get_plugin_apps()
    until = time.monotonic() + 60
    while Client(apps["/run"]).get("/run", query_string={"run": "job"}).status_code != 200:
        assert time.monotonic() < until
        time.sleep(0.05)
    return apps


def test_parameters_are_found() -> None:
    assert {"run", "without", "ranks", "start", "end", "format", "reload", "arriving"} <= set(PARAMETERS)
    assert {"/runs", "/run", "/whatif", "/slice"} <= set(ROUTES)


@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    route=st.sampled_from(ROUTES),
    query=st.lists(st.tuples(st.sampled_from(PARAMETERS), VALUES), max_size=8),
    method=st.sampled_from(["GET", "GET", "GET", "HEAD", "POST"]),
)
def test_every_parameter_has_an_answer(
    apps: dict[str, Any], route: str, query: list[tuple[str, str]], method: str
) -> None:
    response = Client(apps[route]).open(route, query_string=_multi(query), method=method)
    assert response.status_code < 500
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    assert "Set-Cookie" not in response.headers
    if response.status_code >= 400 and method != "HEAD":
        sentence = response.get_json()["error"]
        assert sentence.endswith((".", "?"))
        assert len(sentence) < 2000
        assert "Traceback" not in sentence


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(route=st.sampled_from(ROUTES), raw=st.binary(max_size=60))
def test_bytes_that_are_no_query(apps: dict[str, Any], route: str, raw: bytes) -> None:
    environ = {"QUERY_STRING": raw.decode("latin-1")}
    response = Client(apps[route]).get(route, environ_overrides=environ)
    assert response.status_code < 500


def _multi(query: list[tuple[str, str]]) -> dict[str, list[str]]:
    values: dict[str, list[str]] = {}
    for name, value in query:
        values.setdefault(name, []).append(value)
    return values


def test_only_so_many_answers_are_computed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "PATIENCE_S", 0.05)
    mine, done, inside = Turns(), threading.Event(), threading.Barrier(turns.AT_ONCE + 1)

    def blocked_by() -> None:
        with mine.turn():
            inside.wait(60)
            done.wait(60)

    threads = [threading.Thread(target=blocked_by) for _ in range(turns.AT_ONCE)]
    for thread in threads:
        thread.start()
    inside.wait(60)
    with pytest.raises(TooManyError, match="Ask again"), mine.turn():
        pass
    done.set()
    for thread in threads:
        thread.join()
    with mine.turn():
        pass


def test_only_so_many_wait_for_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "AT_ONCE", 0)
    monkeypatch.setattr(turns, "MOST_WAITING", 1)
    monkeypatch.setattr(turns, "PATIENCE_S", 60.0)
    mine = Turns()

    def wait() -> None:
        with mine.turn():
            pass

    first = threading.Thread(target=wait)
    first.start()
    while mine._places._value:
        time.sleep(0.001)
    with pytest.raises(TooManyError):
        wait()
    assert first.is_alive()
    mine._free.release()
    first.join()


#: Whatever computes its answer from a run, so that a route that is added is capped too.
COMPUTED = sorted(set(ROUTES) - {"/runs", "/run", "/rule", "/viewers", "/notes"})


@pytest.mark.parametrize("route", COMPUTED)
def test_who_is_not_served_in_time_is_told(route: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "PATIENCE_S", 0.0)
    monkeypatch.setattr(turns, "AT_ONCE", 0)
    plugin = DiagnosisPlugin(base_plugin.TBContext(logdir=""))
    response = Client(plugin.get_plugin_apps()[route]).get(route, query_string={"run": "job"})
    assert (response.status_code, response.headers["Retry-After"]) == (503, "5")
    assert response.get_json()["error"].endswith("Ask again in a moment.")


def test_many_clients(tmp_path: Path) -> None:
    write(tmp_path / "job", in_row(ranks(HEALTHY, SLOW, HEALTHY)))
    seen = load(tmp_path, clients=10, seconds=0, answers=200)
    assert not seen.problems
    assert seen.grown_mb < 100
