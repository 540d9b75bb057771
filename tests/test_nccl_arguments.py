"""What NCCL's profiler plugin in torch adds to a kernel's arguments: how calls match, and what NCCL chose for them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pftrace_files
import pytest
import traces
from test_nccl import BOUND, SOCKETS, log
from traces import ranks

from tb_ddp_doctor import engine
from tb_ddp_doctor.cache import Cache
from tb_ddp_doctor.discover.runs import discover
from tb_ddp_doctor.facts import Facts
from tb_ddp_doctor.findings import Diagnosis
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.planning.model import Question
from tb_ddp_doctor.planning.predict import Planner
from tb_ddp_doctor.planning.record import PlanRecord

Event: TypeAlias = dict[str, Any]
#: Torch's name of a collective, and NCCL's; torch's type, and NCCL's.
FUNC = {"allreduce": "AllReduce", "_allgather_base": "AllGather", "_reduce_scatter_base": "ReduceScatter"}
SHARED = """
    rank# step     |1                      |2
          host     [fwd][ag]                [fwd][ag]
          gpu      [fwd..]                  [fwd..]
          nccl           [ag.........]            [ag.........]
"""


def of_plugin(event: Event, told: Event, **chosen: Any) -> None:
    """Write what NCCL's plugin says of a collective, as torch/profiler/_cupti/monitor_trace.py spreads it."""
    func = FUNC[told["Collective name"]]
    parts = told["Group size"] if func != "AllReduce" else 1
    event["args"] |= {
        "func": func,
        "datatype": "ncclFloat32",
        "count": max(told["In msg nelems"], told["Out msg nelems"]) // parts,
        "root": 0,
        "n_warps": 16,
        "seq": told.get("Seq", 0) + 1000,
        "rank": 0,
        "algo": "RING",
        "proto": "SIMPLE",
        "n_channels": 16,
    } | chosen


def of_comms_hook(event: Event, told: Event) -> None:
    """Write what torch/profiler/_cupti/comms/hook.py knows of a collective, beside NCCL's plugin."""
    event["args"] |= {
        "process_group": [told["Process Group Name"], ""],
        "process_group_ranks": json.loads(told["Process Group Ranks"]),
        "is_p2p": False,
    }


def write(folder: Path, text: str, change: Callable[[Event, Event], None], *, form: str = "json", **how: Any) -> Path:
    """A drawn job whose communication kernels are changed, given torch's own metadata of each."""
    folder.mkdir(parents=True)
    for rank, data in traces.draw(text, metadata="kernel", sequence=True, **how).items():
        trace = json.loads(data)
        for event in trace["traceEvents"]:
            if "Collective name" in event.get("args", {}) and event["cat"] == "kernel":
                change(event, dict(event["args"]))
        packed = json.dumps(trace).encode()
        name, packed = (
            (f"host_{100 + rank}.1.pt.trace.json.gz", gzip.compress(packed))
            if form == "json"
            else (f"rank{rank}.pftrace", pftrace_files.of_json(packed))
        )
        (folder / name).write_bytes(packed)
    return folder


def result(folder: Path) -> tuple[Diagnosis, Job]:
    (run,) = discover(folder)
    found = engine.diagnose(run, reading=engine.Reading(cache=Cache(None)))
    return found.diagnosis, found.job


def nccl_alone(event: Event, told: Event, **chosen: Any) -> None:
    """Of the CUPTI monitor with torchcomms: nothing of c10d's."""
    for name in traces_metadata():
        event["args"].pop(name, None)
    of_plugin(event, told, **chosen)
    of_comms_hook(event, told)


def traces_metadata() -> tuple[str, ...]:
    return (
        *("Collective name", "Process Group Name", "Process Group Ranks", "Group size", "In msg nelems"),
        *("Out msg nelems", "dtype", "Seq"),
    )


@pytest.mark.parametrize("form", ["json", "pftrace"])
@pytest.mark.parametrize("text", [ranks(BOUND, BOUND), ranks(SHARED, SHARED)])
def test_collectives_match_as_by_torchs_own_metadata(tmp_path: Path, text: str, form: str) -> None:
    before, own = result(write(tmp_path / "torch", text, lambda *_: None))
    after, job = result(write(tmp_path / "nccl", text, nccl_alone, form=form))
    assert after.step_ms == before.step_ms
    # A file of packets does not say how many ranks there are.
    costs = [
        [(one.rule, one.cost_ms) for one in each.findings if one.rule != "trace-quality"] for each in (before, after)
    ]
    assert costs[0] == costs[1]
    for had, has in zip(own.digests, job.digests, strict=True):
        a, b = had.collectives, has.collectives
        assert [had.strings[i] for i in a.group.tolist()] == [has.strings[i] for i in b.group.tolist()]
        assert [had.strings[i] for i in a.kind.tolist()] == [has.strings[i] for i in b.kind.tolist()]
        assert [had.strings[i] for i in a.dtype.tolist()] == [has.strings[i] for i in b.dtype.tolist()]
        assert (a.bytes.tolist(), a.group_size.tolist()) == (b.bytes.tolist(), b.group_size.tolist())
        assert (b.sequence - a.sequence).tolist() == [1000] * len(a)


def test_a_finding_says_what_nccl_chose(tmp_path: Path) -> None:
    def change(event: Event, told: Event) -> None:
        of_plugin(event, told, algo="TREE", proto="LL128", n_channels=2)

    diagnosis, _ = result(write(tmp_path / "job", ranks(BOUND, BOUND), change))
    (found,) = [one for one in diagnosis.findings if one.rule == "communication-bound"]
    assert "For all_reduce NCCL chose tree, LL128, 2 of 2 channels." in found.why
    assert diagnosis.network
    assert {(one.kind, one.algorithm, one.protocol, one.channels) for one in diagnosis.network.choices} == {
        ("all_reduce", "tree", "LL128", 2)
    }


def test_gradients_of_which_the_plugin_alone_tells_are_planned_with(tmp_path: Path) -> None:
    """The number of ranks is then known by matching alone."""

    def change(event: Event, told: Event) -> None:
        for name in traces_metadata():
            event["args"].pop(name, None)
        of_plugin(event, told)

    folder = write(tmp_path / "job", ranks(BOUND, BOUND), change)
    (run,) = discover(folder)
    record = PlanRecord(Facts(engine.diagnose(run, reading=engine.Reading(cache=Cache(None))).job))
    assert Planner(record).predict(Question(dtype="bfloat16")).change_ms < -5


def test_the_choices_of_the_trace_go_before_those_of_the_log(tmp_path: Path) -> None:
    def change(event: Event, told: Event) -> None:
        of_plugin(event, told, proto="LL", n_channels=2)

    folder = write(tmp_path / "above" / "job", ranks(BOUND, BOUND), change)
    logged = "vm:100:1 [0] NCCL INFO AllReduce: 65536 Bytes -> Algo TREE proto LL128 channel{Lo..Hi}={0..1}\n"
    (folder / "nccl.vm.100.log").write_text(log(SOCKETS, 0, 100).replace("2 coll", "16 coll") + logged)
    network = result(folder)[0].network
    assert network and network.channels == 16 and network.version
    assert {(one.algorithm, one.protocol) for one in network.choices} == {("ring", "LL")}


def test_large_messages_by_ll_and_few_channels_are_explained(tmp_path: Path) -> None:
    """64 MB by LL in 2 of 16 channels."""

    def change(event: Event, told: Event) -> None:
        event["args"] |= {"In msg nelems": 16_000_000, "Out msg nelems": 16_000_000}
        of_plugin(event, told, proto="LL", n_channels=2)

    folder = write(tmp_path / "above" / "job", ranks(BOUND, BOUND), change)
    (folder / "nccl.vm.100.log").write_text(log(SOCKETS, 0, 100).replace("2 coll", "16 coll"))
    diagnosis, _ = result(folder)
    (found,) = [one for one in diagnosis.findings if one.rule == "communication-bound"]
    assert "for messages of this size Simple is faster. " in found.why
    assert "Messages of this size fill all 16 channels: with 2, " in found.why


#: A group within a node, and one that goes over a network.
TWO_GROUPS = """
    rank# step     |1
          host     [fwd][ag/tp][rs/dp]
          autograd                    [bwd][ar/dp]
          gpu      [fwd..]             [bwd..]
          nccl          [ag/tp][rs/dp]       [ar/dp......................]
"""


@pytest.mark.parametrize("form", ["json", "pftrace"])
@pytest.mark.parametrize(("large", "small", "said"), [(2, 16, True), (2, 2, False), (16, 16, False), (8, 12, False)])
def test_few_channels_are_few_of_their_own_group(tmp_path: Path, large: int, small: int, said: bool, form: str) -> None:
    """Channels of the all-reduce of 64 MB, and of a small call of its group; the group within the node has 16."""

    def change(event: Event, told: Event) -> None:
        is_large = told["Collective name"] == "allreduce"
        event["args"] |= {"In msg nelems": 16_000_000 if is_large else 8, "Out msg nelems": 16_000_000}
        channels = 16 if told["Process Group Name"] == "tp" else large if is_large else small
        of_plugin(event, told, n_channels=channels)

    diagnosis, _ = result(write(tmp_path / "job", ranks(TWO_GROUPS, TWO_GROUPS), change, form=form))
    (found,) = [one for one in diagnosis.findings if one.rule == "communication-bound"]
    assert f"For all_reduce NCCL chose ring, Simple, {large} of {max(large, small)} channels" in found.why
    assert ("fill all 16 channels: with 2, " in found.why) == said


def test_torchs_group_is_kept_where_the_plugin_names_none(tmp_path: Path) -> None:
    """Of c10d, `record_param_comms` has the group, and the kernel only what NCCL's plugin says."""

    def change(event: Event, told: Event) -> None:
        for name in traces_metadata():
            event["args"].pop(name, None)
        of_plugin(event, told)

    folder = write(tmp_path / "kernel", ranks(BOUND, BOUND), change)
    for path in folder.iterdir():
        trace = json.loads(gzip.decompress(path.read_bytes()))
        for event in trace["traceEvents"]:
            if event.get("name") == "record_param_comms":
                event["args"] = {"Collective name": "allreduce", "Process Group Name": "7", "Group size": 2,
                                 "In msg nelems": 8, "Out msg nelems": 8, "dtype": "Float", "Seq": 4}  # fmt: skip
        path.write_bytes(gzip.compress(json.dumps(trace).encode()))
    _, job = result(folder)
    for digest in job.digests:
        table = digest.collectives
        assert {digest.strings[i] for i in table.group.tolist()} == {"7"}
        assert set(table.bytes.tolist()) == {32}
        assert {digest.strings[i] for i in table.protocol.tolist()} == {"SIMPLE"}
        assert set(table.channels.tolist()) == {16}


@pytest.mark.parametrize("name", ["all_gather", "OpName.all_gather"])
def test_the_name_of_a_call_names_no_part_of_the_model(tmp_path: Path, name: str) -> None:
    """As torch/profiler/_cupti/comms/hook.py writes it; what `mark_kernels` writes stays."""

    def change(event: Event, told: Event) -> None:
        nccl_alone(event, told)
        event["args"]["name"] = name

    _, job = result(write(tmp_path / "job", ranks(SHARED, SHARED), change))
    paths = job.digests[0].modules.paths
    assert name not in [job.digests[0].strings[i] for i in paths.name.tolist()]

    def marked(event: Event, told: Event) -> None:
        change(event, told)
        event["args"]["name"] = "attention"

    _, job = result(write(tmp_path / "marked", ranks(SHARED, SHARED), marked))
    paths = job.digests[0].modules.paths
    assert "attention" in [job.digests[0].strings[i] for i in paths.name.tolist()]


def test_odd_choices_are_shown_as_they_are_spelled(tmp_path: Path) -> None:
    def change(event: Event, told: Event) -> None:
        of_plugin(event, told, algo="PAT2", proto=7, n_channels="3")

    network = result(write(tmp_path / "job", ranks(BOUND, BOUND), change))[0].network
    assert network
    assert {(one.algorithm, one.protocol, one.channels) for one in network.choices} == {("PAT2", "7", 3)}


def test_a_call_that_tells_nothing_hides_no_kernels_own(tmp_path: Path) -> None:
    """The operator around a launch has a number alone, and no process group: the kernel knows more."""
    text, folder = ranks(BOUND, BOUND), tmp_path / "job"
    folder.mkdir()
    for rank, data in traces.draw(text).items():
        trace = json.loads(data)
        told = next(event["args"] for event in trace["traceEvents"] if "Collective name" in event.get("args", {}))
        told = dict(told)
        for event in trace["traceEvents"]:
            if "Collective name" in event.get("args", {}):
                event["args"] = {"Seq": 3}
            elif event["name"].startswith("nccl"):
                of_plugin(event, told)
        (folder / f"host_{rank}.1.pt.trace.json").write_text(json.dumps(trace))
    _, job = result(folder)
    assert set(job.digests[0].collectives.bytes.tolist()) == {4 * told["In msg nelems"]}


def test_a_count_without_its_ranks_has_no_size(tmp_path: Path) -> None:
    """NCCL counts what one rank gives to an all_gather."""

    def change(event: Event, told: Event) -> None:
        for name in traces_metadata():
            event["args"].pop(name, None)
        of_plugin(event, told)

    _, job = result(write(tmp_path / "job", ranks(SHARED, SHARED), change))
    assert set(job.digests[0].collectives.bytes.tolist()) == {-1}
    assert job.network is None
