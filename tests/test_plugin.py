"""The plugin's routes through werkzeug's client, with results made up here instead of the engine's."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tensorboard.plugins import base_plugin
from werkzeug.test import Client, TestResponse

from tb_ddp_doctor.engine import RunError
from tb_ddp_doctor.findings import OWNERS, Account, AccountLine, Clock, Diagnosis, Finding, FixParts, LineKind, Prospect
from tb_ddp_doctor.plugin import analyses
from tb_ddp_doctor.plugin.arrivals import Stamp
from tb_ddp_doctor.plugin.examination import Examination
from tb_ddp_doctor.plugin.plugin import DiagnosisPlugin
from tb_ddp_doctor.view import assets

FRONTEND = Path(__file__).parent.parent / "frontend" / "src"
#: For what comes at once on a machine that has nothing else to do.
PATIENCE_S = 120


def finding(severity: str = "critical", cost_ms: float = 60.0) -> Finding:
    return Finding(
        id="straggler",
        rule="straggler",
        severity=severity,
        cost_ms=cost_ms,
        alone_ms=cost_ms,
        range_ms=(cost_ms, cost_ms),
        ranks=(1,),
        steps=(2, 3),
        cause="host",
        confidence="high",
        title="Rank 1 is the straggler.",
        headline=f"Rank 1 costs {cost_ms:.1f} ms of 100 ms a step.",
        why="Its host is outside operators.",
        fix="Look at it.\n\npy-spy dump",
        fix_parts=FixParts.of("Look at it.\n\npy-spy dump"),
        evidence=(),
    )


def diagnosis(
    name: str, *findings: Finding, step_ms: float = 100.0, verdict: str | None = None, unexplained: float = 0.0
) -> Diagnosis:
    """With what nothing explains, ms; the rest is the floor."""

    def line(kind: LineKind, ms: float, finding: str | None = None) -> AccountLine:
        return AccountLine(kind, finding, 0, ms, ms / step_ms if step_ms else 0.0)

    floor = line("floor", step_ms - unexplained - sum(one.cost_ms for one in findings))
    found = (line("finding", one.cost_ms, one.id) for one in findings)
    lines = (floor, line("tracing", 0.0), *found, line("unexplained", unexplained))
    return Diagnosis(
        name=name,
        world_size=2,
        ranks=(0, 1),
        missing_ranks=(),
        incomplete=(),
        steps=(2, 3),
        step_ms=step_ms,
        verdict=verdict or (findings[0].rule if findings else "healthy"),
        headline=findings[0].title if findings else "Healthy.",
        account=Account("replay", 0, lines, None),
        budget_ms={rank: dict.fromkeys(OWNERS, 1.0) for rank in ("0", "1")},
        phases_ms={},
        host_phases_ms={},
        clock=Clock(None, {}),
        communication=(),
        network=None,
        findings=findings,
        outcomes=(),
        warnings=(),
    )


class Halving:
    """Prospects under which each fix halves the step."""

    def __init__(self, step_ms: float) -> None:
        self._step_ms = step_ms

    def without(self, rules: list[str]) -> Prospect:
        left = self._step_ms / 2 ** len(rules)
        return Prospect(tuple(rules), self._step_ms, left, (left, left))


class Bench:
    """A plugin whose engine does what the test says."""

    def __init__(self, runs: dict[str, Any], flags: Any = None, logdir: str = "logs") -> None:
        #: Name to what `diagnose` makes of it: a diagnosis, an exception, or a function that gives one.
        self.runs = runs
        self.stamps: dict[str, int] = {}
        self.locations: list[Any] = []
        self.read: list[str] = []
        self.views: Any = {"ranks": [0, 1]}
        context = base_plugin.TBContext(logdir=logdir, flags=flags)
        self.plugin = DiagnosisPlugin(
            context,
            discover=self.discover,
            examiner=Examination(
                diagnose=self.diagnose,
                answer=lambda result: {"state": "ready", "diagnosis": result.diagnosis, "views": self.views},
            ),
            stamps=lambda run: {f"{run.name}/trace": Stamp(self.stamps.get(run.name, 0), 0)},
        )
        self.apps = self.plugin.get_plugin_apps()

    def discover(self, location: Any) -> Any:
        self.locations.append(location)
        return [SimpleNamespace(name=name) for name in self.runs]

    def diagnose(
        self, run: Any, changing: Any, expected: Any, progress: Callable[[int, int, str], None], joining: Any
    ) -> Any:
        self.read.append(run.name)
        progress(1, 2, "file")
        result = self.runs[run.name]
        if callable(result):
            result = result()
        if isinstance(result, Exception):
            raise result
        return SimpleNamespace(diagnosis=result, job=None, savings=Halving(result.step_ms), unfinished=())

    def get(self, route: str, **query: str) -> TestResponse:
        return Client(self.apps[route]).get(route, query_string=query)

    def entry(self, name: str) -> dict[str, Any]:
        return next(run for run in self.get("/runs").get_json()["runs"] if run["name"] == name)

    def settled(self) -> dict[str, Any]:
        """The listing once nothing is left to do."""

        def listing() -> dict[str, Any] | None:
            answer: dict[str, Any] = self.get("/runs").get_json()
            busy = answer["state"] == "scanning" or any(
                run["state"] in ("queued", "reading") or run["arriving"] for run in answer["runs"]
            )
            return None if busy else answer

        settled: dict[str, Any] = eventually(listing)
        return settled


def eventually(ask: Callable[[], Any]) -> Any:
    """What `ask` gives once it gives something."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        if (answer := ask()) is not None:
            return answer
        time.sleep(0.01)
    raise AssertionError(f"it took longer than {PATIENCE_S} s")


class Gate:
    """A result that comes when the test opens the gate."""

    def __init__(self, result: Any) -> None:
        self.result = result
        self.reached = threading.Event()
        self.open = threading.Event()

    def __call__(self) -> Any:
        self.reached.set()
        assert self.open.wait(PATIENCE_S)
        return self.result


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate(diagnosis("slow"))
    yield gate
    gate.open.set()


def test_constructor_starts_nothing_and_imports_nothing_heavy() -> None:
    code = """
        import sys, threading
        from tensorboard import default
        from tensorboard.plugins import base_plugin
        default.get_static_plugins()
        before = set(sys.modules)
        from tb_ddp_doctor.plugin.plugin import DiagnosisPlugin
        plugin = DiagnosisPlugin(base_plugin.TBContext(logdir="/nowhere"))
        plugin.get_plugin_apps()
        assert threading.active_count() == 1
        new = {name for name in set(sys.modules) - before if not name.startswith("tb_ddp_doctor.plugin")}
        light = {"tb_ddp_doctor", "tb_ddp_doctor.version"}
        light |= {"tb_ddp_doctor.view", "tb_ddp_doctor.view.assets", "tb_ddp_doctor.view.summary"}
        assert new <= light, new
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True)


def test_torch_tb_profiler_is_linked_where_it_is_installed() -> None:
    for installed in (False, True):
        instances: dict[str, base_plugin.TBPlugin] = {}
        plugin = DiagnosisPlugin(base_plugin.TBContext(logdir="", plugin_name_to_instance=instances))
        if installed:
            instances["pytorch_profiler"] = plugin
        answer = Client(plugin.get_plugin_apps()["/viewers"]).get("/viewers").get_json()
        assert answer["torch_tb_profiler"] == installed


def test_is_active_answers_while_the_directory_is_searched(gate: Gate) -> None:
    plugin = DiagnosisPlugin(base_plugin.TBContext(logdir="logs"), discover=lambda location: gate())
    assert plugin.is_active()
    assert gate.reached.wait(PATIENCE_S)
    assert plugin.is_active()
    assert not gate.open.is_set()


def test_is_active_says_no_where_no_run_is() -> None:
    bench = Bench({})
    assert bench.settled()["runs"] == []
    assert not bench.plugin.is_active()


def test_is_active_says_yes_where_a_run_is() -> None:
    bench = Bench({"job": diagnosis("job")})
    bench.settled()
    assert bench.plugin.is_active()


def test_metadata_names_the_tab() -> None:
    metadata = Bench({}).plugin.frontend_metadata()
    assert metadata.tab_name == "Diagnosis"
    assert metadata.es_module_path in Bench({}).apps


def test_a_browser_keeps_the_files_of_the_frontend_and_no_answer() -> None:
    """All but the first opening of the tab ask for data alone; other files lie in another folder."""
    bench = Bench({})
    entry = bench.plugin.frontend_metadata().es_module_path
    assert "max-age=86400" in bench.get(entry).headers["Cache-Control"]
    assert "no-cache" in bench.get("/runs").headers["Cache-Control"]
    contents = {"/index.js": b"import './app.js'", "/app.js": b""}
    changed = [contents, contents | {"/app.js": b" "}, contents | {"/new.js": b""}]
    assert len({assets.folder(files) for files in changed}) == 3
    assert assets.folder(dict(reversed(contents.items()))) == assets.folder(contents)


def test_every_file_of_the_frontend_is_served_and_nothing_else() -> None:
    bench = Bench({})
    folder = bench.plugin.frontend_metadata().es_module_path.removesuffix("/index.js")
    files = {f"{folder}/{file.relative_to(FRONTEND).as_posix()}" for file in FRONTEND.rglob("*.*")}
    assert f"{folder}/views/verdict.js" in files
    pages = {route for route in bench.apps if route.startswith("/perfetto/")}
    others = {"/runs", "/run", "/rule", "/whatif", "/slice", "/detail", "/compare", "/plan", "/lanes", "/viewers"}
    others |= {"/report", "/notes"}
    assert set(bench.apps) == files | pages | others
    for route in files:
        response = bench.get(route)
        assert response.status_code == 200
        assert response.data == (FRONTEND / route.removeprefix(f"{folder}/")).read_bytes()
        kind = {".js": "text/javascript", ".css": "text/css"}[Path(route).suffix]
        assert response.headers["Content-Type"] == f"{kind}; charset=utf-8"
        assert response.headers["X-Content-Type-Options"] == "nosniff"


def test_listing() -> None:
    slow = diagnosis("slow", finding(), finding("minor", 5.0), finding("info", 2.0))
    bench = Bench({"slow": slow, "fine": diagnosis("fine")})
    listing = bench.settled()
    assert listing["logdir"] == "logs"
    assert listing["left_out"] == []
    assert listing["error"] is None
    first, fine = listing["runs"]
    assert first == {
        "name": "slow",
        "state": "ready",
        "progress": {"done": 1, "total": 2, "file": "file", "elapsed_s": None},
        "error": None,
        "arriving": 0,
        "deleted": 0,
        "modified_s": 0.0,
        "world_size": 2,
        "ranks": 2,
        "incomplete": 0,
        "steps": 2,
        "step_ms": 100.0,
        "verdict": "straggler",
        "headline": "Rank 1 is the straggler.",
        "severity": "critical",
        "lost_ms": 65.0,
        "unexplained_ms": 0.0,
    }
    assert (fine["verdict"], fine["severity"], fine["lost_ms"]) == ("healthy", None, 0.0)


@pytest.mark.parametrize(("unexplained", "severity"), [(5.0, "minor"), (12.0, "major"), (30.0, "critical")])
def test_what_nothing_explains_is_as_severe_as_its_share(unexplained: float, severity: str) -> None:
    found = diagnosis("job", finding("minor", 4.0), verdict="unexplained", unexplained=unexplained)
    (run,) = Bench({"job": found}).settled()["runs"]
    assert (run["verdict"], run["severity"], run["lost_ms"]) == ("unexplained", severity, 4.0)
    assert run["unexplained_ms"] == unexplained


def test_what_fixes_would_bring_is_predicted() -> None:
    bench = Bench({"job": diagnosis("job")})
    assert bench.get("/whatif", run="job").status_code == 404
    bench.settled()
    answer = bench.get("/whatif", run="job", without="straggler:2,host-sync").get_json()
    assert answer == {
        "fixed": ["straggler:2", "host-sync"],
        "step_ms": 100.0,
        "without_ms": 25.0,
        "range_ms": [25.0, 25.0],
    }
    assert bench.get("/whatif", run="job").get_json()["without_ms"] == 100.0


@pytest.mark.parametrize("name", ["<b>", "straggler:<b>", "straggler:", ":1"])
def test_a_rule_that_there_is_not_cannot_be_fixed(name: str) -> None:
    bench = Bench({"job": diagnosis("job")})
    bench.settled()
    response = bench.get("/whatif", run="job", without=name)
    assert (response.status_code, response.get_json()) == (400, {"error": f"There is no rule {name!r}."})


def test_costs_lose_no_more_than_the_step() -> None:
    bench = Bench({"job": diagnosis("job", finding(cost_ms=80.0), finding(cost_ms=80.0))})
    assert bench.settled()["runs"][0]["lost_ms"] == 100.0


def test_progress_while_a_run_is_read(gate: Gate) -> None:
    bench = Bench({"slow": gate, "next": diagnosis("next")})
    bench.get("/runs")
    assert gate.reached.wait(PATIENCE_S)
    assert bench.entry("slow")["state"] == "reading"
    progress = bench.entry("slow")["progress"]
    assert (progress["done"], progress["total"], progress["file"]) == (1, 2, "file")
    assert progress["elapsed_s"] is not None
    assert bench.entry("next")["state"] == "queued"
    response = bench.get("/run", run="slow")
    assert response.status_code == 202
    answer = response.get_json()
    assert (answer["state"], answer["progress"]["done"], answer["progress"]["total"]) == ("reading", 1, 2)


def test_a_run_that_is_opened_is_read_next(gate: Gate) -> None:
    bench = Bench({"slow": gate, "second": diagnosis("second"), "third": diagnosis("third")})
    bench.get("/runs")
    assert gate.reached.wait(PATIENCE_S)
    assert bench.get("/run", run="third").get_json()["state"] == "queued"
    gate.open.set()
    bench.settled()
    assert bench.read == ["slow", "third", "second"]


def test_a_comparison_says_how_far_its_runs_are(gate: Gate) -> None:
    bench = Bench({"fast": diagnosis("fast"), "slow": gate})
    bench.get("/runs")
    assert gate.reached.wait(PATIENCE_S)
    response = bench.get("/compare", before="fast", after="slow")
    answer = response.get_json()
    assert (response.status_code, answer["state"], answer["run"]) == (202, "reading", "slow")
    assert answer["progress"]["total"] == 2


def test_a_run_that_is_compared_is_read_next(gate: Gate) -> None:
    bench = Bench({"a": gate, "b": diagnosis("b"), "c": diagnosis("c")})
    bench.get("/runs")
    assert gate.reached.wait(PATIENCE_S)
    assert bench.get("/compare", before="c", after="a").get_json()["run"] == "c"
    gate.open.set()
    bench.settled()
    assert bench.read == ["a", "c", "b"]


def test_run_carries_the_diagnosis_and_the_numbers_of_its_pictures() -> None:
    bench = Bench({"a/b c": diagnosis("a/b c", finding())})
    bench.settled()
    response = bench.get("/run", run="a/b c")
    assert response.status_code == 200
    assert response.headers["Content-Type"] == "application/json"
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    answer = response.get_json()
    assert answer["state"] == "ready"
    assert answer["diagnosis"]["findings"][0]["title"] == "Rank 1 is the straggler."
    assert answer["views"] == {"ranks": [0, 1]}


def test_not_a_number_never_reaches_the_page() -> None:
    bench = Bench({"job": diagnosis("job", step_ms=float("nan"))})
    bench.views = {"busy_ms": [[float("nan")]]}
    bench.settled()
    answer = bench.get("/run", run="job").data
    json.loads(answer, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


@pytest.mark.parametrize(
    ("query", "status", "words"),
    [({}, 400, "Which run?"), ({"run": ""}, 400, "Which run?"), ({"run": "../etc/passwd"}, 404, "no run named")],
)
def test_run_that_does_not_exist(query: dict[str, str], status: int, words: str) -> None:
    bench = Bench({"job": diagnosis("job")})
    bench.settled()
    response = bench.get("/run", **query)
    assert response.status_code == status
    assert words in response.get_json()["error"]


def test_a_run_that_fails_says_so_and_hides_no_other() -> None:
    bench = Bench({"bad": ValueError("the third file is\nno trace"), "good": diagnosis("good")})
    bad, good = bench.settled()["runs"]
    assert bad["state"] == "failed"
    assert bad["error"] == "This run could not be analysed: the third file is. TensorBoard's log has the details."
    assert good["state"] == "ready"
    assert bench.get("/run", run="bad").get_json() == {"state": "failed", "error": bad["error"]}


def test_what_the_engine_says_of_a_run_is_said_as_it_is() -> None:
    bench = Bench({"bad": RunError("No rank of this run has a usable trace.")})
    assert bench.settled()["runs"][0]["error"] == "No rank of this run has a usable trace."


def test_a_run_whose_files_change_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(analyses, "RESCAN_S", 0.1)
    bench = Bench({"job": diagnosis("job"), "other": diagnosis("other")})
    bench.settled()
    bench.runs["job"] = diagnosis("job", finding())
    bench.runs["later"] = diagnosis("later")
    bench.stamps["job"] = 1
    eventually(lambda: True if len(bench.settled()["runs"]) == 3 else None)
    assert bench.entry("job")["verdict"] == "straggler"
    assert bench.read.count("other") == 1


def test_a_run_that_is_deleted_leaves_its_result_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(analyses, "RESCAN_S", 0.1)
    bench = Bench({"job": diagnosis("job"), "bad": ValueError("no trace")})
    bench.settled()
    bench.runs.clear()
    (job,) = eventually(lambda: runs if len(runs := bench.settled()["runs"]) == 1 else None)
    assert (job["name"], job["state"], job["deleted"]) == ("job", "ready", 1)
    assert bench.get("/run", run="job").status_code == 200
    assert bench.get("/run", run="bad").status_code == 404


def test_a_directory_that_is_missing_is_said() -> None:
    plugin = DiagnosisPlugin(base_plugin.TBContext(logdir="/nowhere/at/all"))
    client = Client(plugin.get_plugin_apps()["/runs"])

    def listing() -> dict[str, Any] | None:
        answer: dict[str, Any] = client.get("/runs").get_json()
        return None if answer["state"] == "scanning" else answer

    answer = eventually(listing)
    assert "/nowhere/at/all" in answer["error"]
    assert "Traceback" not in answer["error"]
    assert answer["runs"] == []


def test_logdir_spec() -> None:
    bench = Bench({}, flags=SimpleNamespace(logdir_spec="a:/x,b:/y"), logdir="")
    bench.settled()
    assert bench.locations == [{"a": "/x", "b": "/y"}]


def test_without_any_directory_nothing_is_searched() -> None:
    bench = Bench({"job": diagnosis("job")}, logdir="")
    assert bench.settled()["runs"] == []
    assert bench.locations == []


def test_no_lock_is_held_while_a_run_is_read(gate: Gate) -> None:
    bench = Bench({"slow": gate})
    bench.get("/runs")
    assert gate.reached.wait(PATIENCE_S)
    for _ in range(20):
        assert bench.plugin.is_active()
        bench.get("/runs")
    assert bench.entry("slow")["state"] == "reading"
