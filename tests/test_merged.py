"""Files into which somebody merged the traces of several ranks are read as these ranks."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pftrace_files
import pytest
from tensorboard.plugins import base_plugin
from traces import draw, in_row, ranks, write
from werkzeug.test import Client, TestResponse

from tb_ddp_doctor import api, engine
from tb_ddp_doctor.discover.merged import is_of, own_pid, parts
from tb_ddp_doctor.discover.runs import discover
from tb_ddp_doctor.plugin.plugin import DiagnosisPlugin
from tb_ddp_doctor.trace import reader
from tb_ddp_doctor.trace.model import TraceError

JOB = ranks(
    """
    rank# step     |1
          host     [fwd..]
          autograd        [bwd.......]
          gpu      [fwd..........][bwd.]
          nccl                [ar.......]
""",
    """
    rank# step     |1
          host     [fwd..]
          autograd        [bwd.......]
          gpu      [fwd..........][bwd.]
          nccl                [ar.......]
""",
)

Rewrite = Callable[[int, dict[str, Any]], None]


def as_tracelens(rank: int, event: dict[str, Any]) -> None:
    """Numbers of processes and launches are moved apart, and the rank is told."""
    event["args"] |= {"rank": rank, "pid_raw": event["pid"]}
    event["pid"] += rank * 100_000_000
    if "correlation" in event["args"]:
        event["args"]["correlation"] += rank * 100_000_000


def as_sglang(rank: int, event: dict[str, Any]) -> None:
    """Processes are labelled; launches keep their numbers."""
    event["pid"] = f"[TP{rank:02}-EP00] {event['pid']}"


def merge(folder: Path, rewrite: Rewrite, header: dict[str, Any] | None = None, text: str = JOB) -> Path:
    """The drawn job as one file; each rank's clock is the same."""
    events = []
    for rank, data in draw(text).items():
        for event in json.loads(data)["traceEvents"]:
            event["ts"] += 1_700_000_000_000_000
            rewrite(rank, event)
            events.append(event)
    folder.mkdir()
    (folder / "merged.json.gz").write_bytes(
        gzip.compress(json.dumps({**(header or {}), "traceEvents": events}).encode())
    )
    return folder


KINETO = {"schemaVersion": 1, "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 2}}


@pytest.mark.parametrize(("rewrite", "header"), [(as_tracelens, None), (as_tracelens, KINETO), (as_sglang, KINETO)])
def test_a_merged_file_is_diagnosed_as_its_ranks_are(
    tmp_path: Path, rewrite: Rewrite, header: dict[str, Any] | None
) -> None:
    (run,) = discover(merge(tmp_path / "merged", rewrite, header))
    (own,) = discover(write(tmp_path / "own", JOB))
    found, alone = engine.diagnose(run).diagnosis, engine.diagnose(own).diagnosis
    assert found.ranks == alone.ranks == (0, 1)
    assert (found.verdict, found.step_ms) == (alone.verdict, alone.step_ms)
    assert found.budget_ms == alone.budget_ms
    assert any("2 ranks were merged into this file" in warning.message for warning in found.warnings)


#: The second rank is late.
LATE = in_row(
    ranks(
        """
    rank# step |1
          host [fwd....][bwd.]
          gpu  [fwd....][bwd.]
          nccl                [ar........]
""",
        """
    rank# step |1
          host [fwd........][bwd.]
          gpu  [fwd........][bwd.]
          nccl                    [ar....]
""",
    )
)


def served(folder: Path) -> tuple[dict[str, Any], list[Any]]:
    """What the tab gets of a folder with one run: its first finding, and the events of its evidence's slice."""
    apps = DiagnosisPlugin(base_plugin.TBContext(logdir=str(folder))).get_plugin_apps()

    def ask(route: str, **query: str) -> TestResponse:
        return Client(apps[route]).get(route, query_string=query)

    until = time.monotonic() + 60
    while (answer := ask("/run", run=folder.name)).status_code != 200:
        assert time.monotonic() < until
        time.sleep(0.05)
    found = answer.get_json()["diagnosis"]["findings"][0]
    window = found["evidence"][0]["window"]
    start, end = window.pop("seen")
    asked = {"run": folder.name, **window, "ranks": ",".join(map(str, window["ranks"])), "start": start, "end": end}
    events = ask("/slice", **asked, format="json").get_json()["traceEvents"]
    seen = [
        (one["name"].replace(folder.name, "job"), one["ts"], one["dur"], one["tid"])
        for one in events
        if one["ph"] == "X"
    ]
    return found, sorted(seen)


@pytest.mark.parametrize("rewrite", [as_tracelens, as_sglang])
def test_the_tab_has_findings_evidence_and_slices_of_a_merged_file(tmp_path: Path, rewrite: Rewrite) -> None:
    (merged, slice_of_merged), (apart, slice_of_files) = (
        served(merge(tmp_path / "merged", rewrite, KINETO, LATE)),
        served(write(tmp_path / "apart", LATE)),
    )
    assert (merged["rule"], merged["ranks"]) == (apart["rule"], apart["ranks"]) == ("straggler", [1])
    assert merged["cost_ms"] == pytest.approx(apart["cost_ms"])
    assert merged["evidence"][0]["rank"] == apart["evidence"][0]["rank"] == 1
    assert len(slice_of_files) > 10
    assert slice_of_merged == slice_of_files


@pytest.mark.parametrize("rewrite", [as_tracelens, as_sglang])
def test_a_long_header_hides_no_ranks(tmp_path: Path, rewrite: Rewrite) -> None:
    """The devices of a node, of which a chunk is read with hardly an event behind them."""
    for long in range(7_600, 8_200, 97):
        folder = merge(tmp_path / str(long), rewrite, {**KINETO, "deviceProperties": ["x" * long]})
        (run,) = discover(folder)
        assert len(run.files) == 2


def test_labels_number_no_ranks(tmp_path: Path) -> None:
    (run,) = discover(merge(tmp_path / "merged", as_sglang, KINETO))
    assert [(file.rank, file.rank_source, file.path.name) for file in run.files] == [
        (0, "order", "merged.json.gz (TP00-EP00)"),
        (1, "order", "merged.json.gz (TP01-EP00)"),
    ]
    assert any("in the order of their labels" in warning.message for warning in run.warnings)


@pytest.mark.parametrize("rewrite", [as_tracelens, as_sglang])
@pytest.mark.parametrize("header", [KINETO, {}])
def test_a_merged_file_beside_those_it_was_made_of_is_left_out(
    tmp_path: Path, rewrite: Rewrite, header: dict[str, Any]
) -> None:
    """SGLang writes it there."""
    folder = merge(tmp_path / "job", rewrite)
    for rank, data in draw(JOB).items():
        about = {"distributedInfo": KINETO["distributedInfo"] | {"rank": rank}} if header else {}
        (folder / f"1699999990.12-TP-{rank}.trace.json").write_bytes(json.dumps(json.loads(data) | about).encode())
    (run,) = discover(folder)
    assert [file.path.name for file in run.files] == [f"1699999990.12-TP-{rank}.trace.json" for rank in range(2)]
    said = {warning.message for warning in run.warnings if warning.file == str(folder / "merged.json.gz")}
    assert said == {"Left out: several ranks were merged into it, and beside it each has its own file."}


def test_a_merged_file_is_read_once_for_all_its_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    decode = reader._decode
    monkeypatch.setattr(reader, "_decode", lambda blocks, file: (read.append(file), decode(blocks, file))[1])
    (run,) = discover(merge(tmp_path / "merged", as_sglang))
    path = tmp_path / "merged" / "merged.json.gz"
    traces = [reader.read(file.path) for file in run.files]
    assert read == [str(path)]
    assert [trace.file for trace in traces] == [f"{path} (TP00-EP00)", f"{path} (TP01-EP00)"]
    # A file that was changed is read anew, as is one after another file.
    path.write_bytes(path.read_bytes()[:-12])
    cut = [reader.read(file.path) for file in run.files]
    assert read == [str(path)] * 2
    assert [warning.file for trace in cut for warning in trace.warnings] == [trace.file for trace in cut]
    (alone, *_) = write(tmp_path / "own", JOB).iterdir()
    reader.read(alone)
    reader.read(run.files[0].path)
    assert read == [str(path), str(path), str(alone), str(path)]


def test_a_trace_of_one_rank_is_none_that_was_merged(tmp_path: Path) -> None:
    (run,) = discover(write(tmp_path / "own", JOB))
    assert all(isinstance(file.path, Path) for file in run.files)


def side(pid: bytes, *categories: bytes) -> bytes:
    """The events of one process, which has a name; numbers of processes that cannot be of merged ranks."""
    name = b'{"name": "process_name", "pid": %b, "tid": 0, "args": {"name": "\\u2460"}}, {"pid": 9000000},'
    events = (b'{"ph": "X", "cat": "%b", "name": "x", "pid": %b, "tid": 1}, ' % (one, pid) for one in categories)
    return name % pid + b"".join(events)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (b'{"traceEvents": [{"ph": "X", "pid": 12, "tid": 1}, {"ph": "X", "pid": 4194304, "tid": 1}]}', ()),
        (b'{"traceEvents": [{"ph": "X", "pid": 12}, {"ph": "X", "pid": 1000000012}]}', ("rank 0", "rank 10")),
        # A full command buffer is of process -1.
        (b'{"traceEvents": [{"pid": -1}, {"pid": 12}, {"pid": 99999999}, {"pid": 100000012}]}', ("rank 0", "rank 1")),
        (b'{"traceEvents": [{"pid": "[DP1] 12"}, {"pid": "[DP0] 12"}, {"pid": "Spans"}]}', ("DP0", "DP1")),
        (b'{"traceEvents": [{"pid": "[DP1] 12"}, {"pid": 7}]}', ()),
        # RTP-LLM's, which keeps the first rank's keys.
        (b'{"traceEvents": [{"pid": "[WR00] 12"}, {"pid": "[WR01] 12"}], "schemaVersion": 1}', ("WR00", "WR01")),
        (b'{"traceEvents": [{"pid": 3016828}, {"pid": 3089232288}]}', ()),
        (b'{"traceEvents": [{"pid": 99999999999999999999999}, {"pid": 7}]}', ()),
        (
            side(b"0", b"cpu_op", b"kernel") + side(b"1", b"cpu_op", b"kernel"),
            ("part 0: ①", "part 1: ①"),
        ),
        # Operators of a process, which has GPU 1 too, and work of GPU 0.
        (side(b"1", b"cpu_op", b"kernel") + side(b"0", b"kernel"), ()),
        (side(b"1", b"cpu_op", b"kernel") + side(b"0", b"cpu_op", b"kernel", b"ddp-doctor"), ()),
        (b'{"schemaVersion": 1, "traceEvents": [{"ph": "X", "pid": 12}, {"ph": "X", "pid": 900000012}]}', ()),
    ],
)
@pytest.mark.parametrize("size", [7, 1000])
def test_parts_are_told_apart_by_their_processes(text: bytes, found: tuple[str, ...], size: int) -> None:
    assert parts(text, (text[at : at + size] for at in range(0, len(text), size))) == found


def test_what_is_of_no_part_is_left_out(tmp_path: Path) -> None:
    def odd(rank: int, event: dict[str, Any]) -> None:
        as_tracelens(rank, event)
        if event["name"].startswith("aten") and rank:
            event["pid"] = "Traces"

    (run,) = discover(merge(tmp_path / "merged", odd))
    found = engine.diagnose(run).diagnosis
    assert found.ranks == (0, 1)
    assert msgspec.json.encode(found)


@pytest.mark.parametrize("form", ["json", "pftrace"])
def test_traces_that_were_only_put_together_are_refused(tmp_path: Path, form: str) -> None:
    """Processes and GPUs keep their numbers, and launches of both ranks have the same: nothing tells them apart."""
    name = "merged.json" if form == "json" else "merged.pftrace"
    traces = [json.loads(data) for data in draw(JOB).values()]
    for rank, trace in enumerate(traces):
        for event in trace["traceEvents"]:
            event["pid"] = 41 + rank
    assert {event["pid"] for trace in traces for event in trace["traceEvents"]} == {41, 42}
    if form == "json":
        events = [event for trace in traces for event in trace["traceEvents"]]
        (tmp_path / name).write_text(json.dumps(KINETO | {"traceEvents": events}))
    else:
        (tmp_path / name).write_bytes(b"".join(pftrace_files.of_json(json.dumps(trace).encode()) for trace in traces))
    with pytest.raises(TraceError, match=r"(2|two) processes: .* Diagnose the files that it was made of"):
        reader.read_rank(tmp_path / name)


def side_by_side(folder: Path, form: str, names: dict[int, str], text: str = JOB) -> Path:
    """The drawn ranks as transformer-nuggets puts traces side by side: each is one process, its GPU too, from 0 on."""
    events: list[dict[str, Any]] = []
    for rank, data in draw(text).items():
        made = json.loads(data)["traceEvents"]
        begin = min(event["ts"] for event in made)
        events += [event | {"pid": rank, "ts": event["ts"] - begin} for event in made]
    folder.mkdir()
    path = folder / f"side by side.{form}"
    if form == "pftrace":
        path.write_bytes(pftrace_files.side_by_side({"traceEvents": events}, names))
    else:
        named = [
            {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}}
            for pid, name in names.items()
        ]
        path.write_text(json.dumps({"traceEvents": named + events}, indent=0))
    return path


@pytest.mark.parametrize("form", ["json", "pftrace"])
def test_ranks_that_lie_side_by_side_are_diagnosed_as_ranks(tmp_path: Path, form: str) -> None:
    (run,) = discover(side_by_side(tmp_path / "merged", form, {0: "Rank 0", 1: "Rank 1"}, LATE).parent)
    (own,) = discover(write(tmp_path / "own", LATE))
    found, alone = engine.diagnose(run).diagnosis, engine.diagnose(own).diagnosis
    assert (found.ranks, found.verdict, found.step_ms) == (alone.ranks, alone.verdict, alone.step_ms)
    (late,) = (one for one in found.findings if one.severity != "info")
    assert (late.rule, late.ranks) == ("straggler", (1,))


def test_many_descriptors_hide_no_traces_side_by_side(tmp_path: Path) -> None:
    """The beginning of such a file holds neither an operator nor a kernel."""
    events = [
        event | {"pid": rank, "tid": f"{event['tid']}{'x' * 9_000}{copy}" if copy else event["tid"]}
        for rank, data in draw(JOB).items()
        for event in json.loads(data)["traceEvents"]
        for copy in range(3)
    ]
    packets = pftrace_files.side_by_side({"traceEvents": events}, {0: "Rank 0", 1: "Rank 1"})
    assert b"cpu_op" not in packets[: 1 << 16]
    (tmp_path / "both.pftrace").write_bytes(packets)
    (run,) = discover(tmp_path / "both.pftrace")
    assert len(run.files) == 2


@pytest.mark.parametrize("is_folded", [False, True])
@pytest.mark.parametrize("names", [("Rank 0", "Rank 1"), ("before", "after")])
def test_perfetto_files_that_were_put_together_are_what_they_were(
    tmp_path: Path, names: tuple[str, str], is_folded: bool
) -> None:
    """GPUs and streams of both have the same numbers."""
    files = [pftrace_files.of_json(data) for data in draw(LATE).values()]
    (tmp_path / "both.pftrace").write_bytes(pftrace_files.put_together(files, names, is_folded=is_folded))
    (tmp_path / "own").mkdir()
    (tmp_path / "own/rank1.pftrace").write_bytes(files[1])
    runs = discover(tmp_path / "both.pftrace")
    assert [len(run.files) for run in runs] == ([2] if names[0] == "Rank 0" else [1, 1])
    found = {file.path.name: reader.read(file.path).events for run in runs for file in run.files}
    own = reader.read(tmp_path / "own/rank1.pftrace").events
    events = found[f"both.pftrace (part 1: {names[1]})"]
    assert events.start_ns.tolist() == own.start_ns.tolist()
    assert events.correlation.tolist() == own.correlation.tolist()


@pytest.mark.parametrize("form", ["json", "pftrace"])
def test_captures_that_lie_side_by_side_are_runs(tmp_path: Path, form: str) -> None:
    """They are there to be compared by eye: as ranks of one job the slower one would be a straggler."""
    path = side_by_side(tmp_path / "both", form, {0: "1 · BEFORE", 1: "2 · a/b"}, LATE)
    runs = discover(path)
    assert [run.name for run in runs] == [f"{path.name}/1 · BEFORE", f"{path.name}/2 · a_b"]
    found = [engine.diagnose(run).diagnosis for run in runs]
    assert [one.ranks for one in found] == [(0,), (0,)]
    compute = [one.budget_ms["0"]["compute"] for one in found]
    assert compute[0] < compute[1]
    assert "each is a run" in found[0].warnings[0].message
    compared = api.compare(path / "1 · BEFORE", path / "2 · a_b")
    assert compared.after.endswith("2 · a_b")


@pytest.mark.parametrize(
    ("names", "runs"),
    [
        ({0: "python", 1: "python"}, ["python 0", "python 1"]),
        ({0: "", 1: ".."}, ["..", "part 0"]),
        ({0: "a" * 9_000, 1: "a" * 9_001}, ["a" * 100 + " 0", "a" * 100 + " 1"]),
        ({0: "Rank 1", 1: "rank_1"}, ["Rank 1", "rank_1"]),
    ],
)
def test_each_capture_is_a_run_whatever_they_are_called(tmp_path: Path, names: dict[int, str], runs: list[str]) -> None:
    path = side_by_side(tmp_path / "both", "pftrace", names)
    assert [run.name for run in discover(path)] == [f"{path.name}/{name}" for name in runs]


@pytest.mark.parametrize("form", ["json", "pftrace"])
def test_all_events_of_a_merged_file_can_be_read(tmp_path: Path, form: str) -> None:
    path = side_by_side(tmp_path / "both", form, {0: "Rank 0", 1: "Rank 1"})
    both = reader.read(path)
    (run,) = discover(path)
    assert len(both.events) == sum(len(reader.read(file.path).events) for file in run.files)


@pytest.mark.parametrize("pid", [-1, 7, 4_194_304])
def test_a_process_has_its_number_back(pid: int) -> None:
    for rank in (0, 3):
        told = str(rank * 100_000_000 + pid)
        assert is_of(told, f"rank {rank}")
        assert own_pid(told) == str(pid)


def test_a_damaged_process_is_none_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "rank0.json").write_bytes(draw(ranks("rank# step |1\n host [fwd]\n gpu [fwd]", steps=40))[0])
    trace = json.loads((tmp_path / "rank0.json").read_bytes())
    next(event for event in trace["traceEvents"] if event.get("cat") == "cpu_op")["pid"] = 7
    (tmp_path / "rank0.json").write_text(json.dumps(trace))
    assert reader.read(tmp_path / "rank0.json")


def test_a_merged_file_of_collectives_alone_says_nothing_of_cpus(tmp_path: Path) -> None:
    folder = merge(tmp_path / "merged", as_tracelens)
    path = folder / "merged.json.gz"
    events = [e for e in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"] if "nccl" in e["name"]]
    for event in events:
        event["args"]["External id"] = 3
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": events}).encode()))
    (run,) = discover(folder)
    found = engine.diagnose(run).diagnosis
    assert found.ranks == (0, 1)
    assert "The traces are sampled or filtered" in " ".join([found.headline, *(w.message for w in found.warnings)])
    assert {outcome.rule: outcome.status for outcome in found.outcomes}["host-stall"] == "not-applicable"
