"""Advice is made from what the job is: its hosts, backend, device and recorder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace
from test_communication_bound import BOUND
from test_host_stall import STALLED
from test_missing_straggler import EXPOSED as UNTRACED
from test_profiler_overhead import STALLED as FLUSHED
from test_slow_link import drawn as linked
from test_straggler import HEALTHY, OTHER_KERNELS
from test_trace_quality import GOOD
from test_variable_transfers import ONCE
from traces import draw, job, ranks

from tb_ddp_doctor import record_again
from tb_ddp_doctor.account import verdict
from tb_ddp_doctor.account.savings import Savings
from tb_ddp_doctor.discover.runs import only_run
from tb_ddp_doctor.engine import diagnose
from tb_ddp_doctor.evidence.model import CaptureRecord, RankEvidence
from tb_ddp_doctor.facts import Facts
from tb_ddp_doctor.facts.frame import frame as _frame
from tb_ddp_doctor.facts.without_faults import whatif
from tb_ddp_doctor.findings import Finding, Setting, Unexplained
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.job.setting import setting
from tb_ddp_doctor.rules import CATALOGUE, trace_quality
from tb_ddp_doctor.rules.support.base import run
from tb_ddp_doctor.step_parts import OWNERS
from tb_ddp_doctor.view import commands, stacks

#: What is asked of networks, of NVIDIA's devices and NCCL, and what a script without a `Doctor` writes.
NETWORKS = ("chronyc", "network is shared", "ibdiagnet", "ibstat", "ethtool", "iperf", "SOCKET_IFNAME")
NVIDIA = ("NCCL", "nvidia-smi", "nccl-tests", "ibdiagnet", "GPU idle")
SCRIPTS = ("torch.profiler", "profile(", "schedule=")
CPU_BOUND = """
    rank# step |1
          host [fwd...]
          gloo         [ar..............]
"""


def one_host(of: Job) -> Job:
    return replace(of, nodes=("node0",) * len(of.ranks))


def with_doctor(of: Job) -> Job:
    return replace(of, rank_evidence={rank: RankEvidence(logdir="/runs/my job") for rank in of.ranks.tolist()})


def with_nsys(of: Job) -> Job:
    """The job as Nsight Systems records it."""
    return replace(
        of, digests=tuple(replace(each, header=replace(each.header, recorder="nsys")) for each in of.digests)
    )


def with_backend(of: Job, backend: str) -> Job:
    return replace(
        of, digests=tuple(replace(each, header=replace(each.header, backend=backend)) for each in of.digests)
    )


def found(rule: str, of: Job) -> Finding:
    facts = Facts(of)
    result = run(CATALOGUE[rule], facts)[1]
    assert result, rule
    return Savings([result], facts.get(whatif), of).findings[0]


def said(rule: str, of: Job) -> str:
    finding = found(rule, of)
    what = " ".join(window.what for window in finding.evidence)
    return " ".join([finding.title, finding.why, finding.fix, what, *commands.commands(of, finding)])


def skewed(of: Job) -> Job:
    return replace(of, clock=replace(of.clock, residual_ns=of.step_ns))


@pytest.mark.parametrize(
    ("nodes", "hosts"), [({0: "a", 1: "a"}, 1), ({0: "a", 1: "b"}, 2), ({0: "", 1: ""}, 0), ({0: "a", 1: ""}, 0)]
)
def test_hosts_are_counted_where_all_are_known(nodes: Mapping[int, str], hosts: int) -> None:
    assert setting(job(ranks(GOOD, GOOD), nodes=nodes)).hosts == hosts


@pytest.mark.parametrize(
    ("backend", "of_gpus", "of_cpus"),
    [
        ("nccl", "nccl", "gloo"),
        ("", "nccl", "gloo"),
        ("cpu:gloo,cuda:nccl", "nccl", "gloo"),
        ("gloo", "gloo", "gloo"),
        ("mpi", "mpi", "mpi"),
    ],
)
def test_the_backend_is_that_of_what_computes(backend: str, of_gpus: str, of_cpus: str) -> None:
    gpus, cpus = job(ranks(GOOD, GOOD)), job(ranks(CPU_BOUND, CPU_BOUND))
    assert setting(with_backend(gpus, backend)).backend == of_gpus
    assert setting(with_backend(cpus, backend)).backend == of_cpus


def test_amd_is_known_by_the_devices_name() -> None:
    assert setting(job(ranks(GOOD), device={"name": "AMD Instinct MI300X"})).device == "rocm"
    assert (setting(job(ranks(GOOD))).device, setting(job(ranks(CPU_BOUND))).device) == ("cuda", "cpu")


#: Rules that advise on what is between hosts, and a job that has the fault.
OF_NETWORKS = [
    ("variable-transfers", job(ONCE)),
    ("slow-link", job(linked(10, 10, 40))),
    ("communication-bound", job(ranks(CPU_BOUND, CPU_BOUND))),
    ("trace-quality", skewed(job(ranks(GOOD, GOOD)))),
]


@pytest.mark.parametrize(("rule", "of"), OF_NETWORKS, ids=[rule for rule, _ in OF_NETWORKS])
@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_one_host_has_no_network(rule: str, of: Job, backend: str) -> None:
    given = with_backend(of, backend)
    assert any(word in said(rule, given) for word in NETWORKS)
    alone = said(rule, one_host(given))
    assert not [word for word in NETWORKS if word in alone], alone


def test_one_host_has_one_clock() -> None:
    finding = found("trace-quality", one_host(skewed(job(ranks(GOOD, GOOD)))))
    assert "clock" not in finding.title and "spread of the ends of collectives is ±" in finding.title
    noisy = skewed(job(ranks(BOUND, BOUND)))
    assert "above the clock skew" in found("communication-bound", noisy).why
    assert "above the spread of the ends of collectives" in found("communication-bound", one_host(noisy)).why


@pytest.mark.parametrize("rule", ["variable-transfers", "slow-link", "communication-bound"])
def test_gloo_gets_no_advice_of_nccl(rule: str) -> None:
    of = {**dict(OF_NETWORKS), "communication-bound": job(ranks(BOUND, BOUND))}[rule]
    assert any(word in said(rule, with_backend(of, "nccl")) for word in NVIDIA)
    over_gloo = said(rule, with_backend(of, "gloo"))
    assert not [word for word in ("NCCL", "nccl-tests", "ibdiagnet") if word in over_gloo], over_gloo


def test_jobs_on_cpus_get_no_advice_of_gpus() -> None:
    asleep = """
        rank# step |1
              host       [fwd]
              gloo            [ar]
    """
    usual = """
        rank# step |1
              host [fwd]
              gloo      [ar......]
    """
    straggling = job(ranks(usual, asleep, usual))
    for rule, of in (("straggler", straggling), ("communication-bound", job(ranks(CPU_BOUND, CPU_BOUND)))):
        assert not [word for word in NVIDIA if word in said(rule, of)], said(rule, of)
    where = Unexplained(owner="host", phase=None, ranks=(0,), steps=(1,))
    assert "GPU" in verdict.place(where, [0, 1], [1, 2], has_gpu=True)
    for owner in OWNERS:
        said_of = verdict.place(replace(where, owner=owner), [0, 1], [1, 2], has_gpu=False)
        assert not [word for word in ("GPU", "kernel", "launch", "cuda") if word in said_of], said_of


#: Rules that advise to record again, and a job that has the fault.
OF_RECORDERS = [
    ("host-stall", job(ranks(STALLED, STALLED))),
    ("profiler-overhead", job(ranks(FLUSHED, FLUSHED))),
    ("missing-straggler", job(ranks(UNTRACED, UNTRACED), world_size=3)),
    ("trace-quality", job(ranks(GOOD, GOOD, steps=1), world_size=8, shapes=False)),
    ("straggler", job(ranks(HEALTHY, HEALTHY, OTHER_KERNELS))),
]


@pytest.mark.parametrize(("rule", "of"), OF_RECORDERS, ids=[rule for rule, _ in OF_RECORDERS])
def test_a_job_with_a_doctor_is_captured_by_it(rule: str, of: Job) -> None:
    assert any(word in found(rule, of).fix for word in SCRIPTS)
    fix = found(rule, with_doctor(of)).fix
    assert "ddp-doctor capture '/runs/my job'" in fix
    assert not [word for word in SCRIPTS if word in fix], fix


@pytest.mark.parametrize(("rule", "of"), OF_RECORDERS, ids=[rule for rule, _ in OF_RECORDERS])
def test_a_job_that_nsight_systems_recorded_is_recorded_by_it(rule: str, of: Job) -> None:
    fix = found(rule, with_nsys(of)).fix
    assert "nsys profile --trace=cuda,nvtx" in fix
    assert not [word for word in SCRIPTS if word in fix], fix


@pytest.mark.parametrize("lacks", [{"no_shapes"}, {"no_steps"}, {"missing_ranks", "damaged_files"}, {"few_steps"}])
def test_what_nsight_systems_records_is_python(lacks: set[str]) -> None:
    """What a recording lacked is in the code that is advised, which runs as it stands."""
    frame = Facts(with_nsys(job(ranks(GOOD)))).get(_frame)
    said = trace_quality._fix(sorted(lacks), frame)
    code = [line for line in said.splitlines()[1:] if not line.startswith("nsys ")]
    compile("\n".join(code), "advice", "exec")
    assert ("emit_nvtx(record_shapes=True)" in said) == ("no_shapes" in lacks)
    assert ("on every node" in said) == ("missing_ranks" in lacks)


def test_what_a_recording_lacks_is_asked_of_its_recorder() -> None:
    of = job(ranks(GOOD))
    own, doctors, nsys = setting(of), setting(with_doctor(of)), setting(with_nsys(of))
    assert (own.recorder, nsys.recorder) == ("profiler", "nsys")
    assert "profile_memory=True" in record_again.no_memory(own)
    assert "--memory" in record_again.no_memory(doctors) and "profile" not in record_again.no_memory(doctors)
    assert "Nsight Systems does not record them" in record_again.no_memory(nsys)
    assert "emit_nvtx(record_shapes=True)" in record_again.no_shapes(nsys)
    for words in (record_again.stacks_in_words, record_again.with_stacks):
        assert "with_stack=True" in words(own)
        assert "--stacks" in words(doctors)
        assert "NVTX" in words(nsys) and "with_stack" not in words(nsys)
    assert "NVTX" in stacks.advice(with_nsys(of)) and "with_stack" not in stacks.advice(with_nsys(of))


def test_stacks_are_captured_by_the_doctor_that_a_job_has() -> None:
    of = job(ranks(GOOD))
    assert "with_stack=True" in stacks.advice(of)
    assert "--stacks" in stacks.advice(with_doctor(of)) and "with_stack" not in stacks.advice(with_doctor(of))


def test_records_beside_the_traces_tell_that_a_doctor_captured_them(tmp_path: Path) -> None:
    folder = tmp_path / "step_1"
    folder.mkdir()
    for rank, data in draw(ranks(GOOD, GOOD)).items():
        (folder / f"rank{rank}.pt.trace.json").write_bytes(data)
    assert diagnose(only_run(str(tmp_path))).diagnosis.setting == Setting(hosts=0, has_doctor=False)
    record = CaptureRecord(
        rank=0, world_size=2, node="n", pid=1, step=1, steps=3, captured_ns=0, files={}, evidence=RankEvidence()
    )
    (folder / "rank0.capture").write_bytes(msgspec.json.encode(record))
    known = diagnose(only_run(str(tmp_path))).diagnosis.setting
    assert known.has_doctor and known.logdir == str(tmp_path)
