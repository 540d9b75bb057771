"""Where in the user's own code evidence lies: file, line and function, as Python stacks tell."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from random_traces import OF_JOBS, TRACES
from traces import MS, digests, finding, job, ranks, write

from tb_ddp_doctor import engine
from tb_ddp_doctor.cache import Cache
from tb_ddp_doctor.cli import main
from tb_ddp_doctor.digest.build import digest
from tb_ddp_doctor.digest.model import CodeOf, RankOwner
from tb_ddp_doctor.discover.runs import discover
from tb_ddp_doctor.facts.evidence_locator import Places
from tb_ddp_doctor.findings import Source
from tb_ddp_doctor.slices import cut
from tb_ddp_doctor.slices.labels import placed
from tb_ddp_doctor.trace import names
from tb_ddp_doctor.trace.model import RankTrace
from tb_ddp_doctor.view import stacks

STEP = Source("train.py", 4, "step")
REPORT = Source("tools/report.py", 12, "report")
STALLED = """
    rank# step |1
          host          [fwd]
          gpu           [fwd..........]
          nccl                         [ar......]
"""
FUNCTIONS = """
          python [report..................]
          inner  [step]        [call]
"""
BOTH = STALLED + FUNCTIONS


@pytest.mark.parametrize(
    ("frame", "expected"),
    [
        ("train.py(41): step", ("train.py", 41, "step")),
        ("/home/me/a (b)/train.py(3): <module>", ("/home/me/a (b)/train.py", 3, "<module>")),
        ("C:\\job\\train.py(3): step", ("C:\\job\\train.py", 3, "step")),
        ("<built-in function len>", None),
        ("nn.Module: Linear_0", None),
        ("train.py(" + "9" * 5_000 + "): step", None),
        ("a" * 100_000 + ".py(1): step", None),
        ("train.py(\u0664): step", None),
        ("train.py(1): a\nb", None),
        ("", None),
    ],
)
def test_file_line_and_function(frame: str, expected: tuple[str, int, str] | None) -> None:
    assert names.source(frame) == expected


def test_evidence_names_what_the_host_is_in() -> None:
    found = finding("host-stall", ranks(BOTH, BOTH))
    assert {item.source for item in found.evidence} == {STEP}


def test_evidence_names_nothing_without_stacks() -> None:
    assert {item.source for item in finding("host-stall", ranks(STALLED, STALLED)).evidence} == {None}


def test_what_the_device_runs_is_of_the_function_that_launched_it() -> None:
    drawn = job(ranks(BOTH, BOTH))
    start = int(drawn.digests[0].steps.host_start_ns[0])
    # Its kernel runs when the host is in no function any more.
    seen = Places(drawn).between(0, start + 11 * MS, start + 22 * MS, RankOwner.COMPUTE, "a kernel")
    assert seen and seen.source == REPORT


def test_a_window_that_no_function_has_most_of_names_none() -> None:
    drawn = job(ranks(BOTH, BOTH))
    start = int(drawn.digests[0].steps.host_start_ns[0])
    places = Places(drawn)

    def source(begin_ms: int, end_ms: int) -> Source | None:
        seen = places.between(0, start + begin_ms * MS, start + end_ms * MS, RankOwner.HOST, "")
        assert seen
        return seen.source

    assert source(2, 8) == STEP
    assert source(2, 13) == STEP
    assert source(2, 16) == REPORT
    assert source(0, 5) == STEP
    # Before the first function there is none.
    assert source(0, 3) is None
    assert places.window(0, 0, "a step").source is None


def test_stretches_of_code_are_in_order_and_those_of_the_host_do_not_overlap() -> None:
    (found,) = digests(ranks(BOTH)).values()
    code = found.code
    assert (code.end_ns > code.start_ns).all()
    for kind in CodeOf:
        rows = np.flatnonzero(code.of == kind)
        assert (np.diff(code.start_ns[rows]) >= 0).all()
    host = np.flatnonzero(code.of == CodeOf.HOST)
    assert (code.end_ns[host][:-1] <= code.start_ns[host][1:]).all()
    assert [found.strings[name] for name in code.function[host][:3]] == [
        "train.py(4): step",
        "tools/report.py(12): report",
        "train.py(4): step",
    ]


@OF_JOBS
@given(TRACES)
def test_stretches_of_random_code_are_in_order(trace: RankTrace) -> None:
    found = digest(trace)
    code = found.code
    assert (code.end_ns >= code.start_ns).all()
    assert all(names.is_own_code(found.strings[name]) for name in code.function)
    for kind in CodeOf:
        assert (np.diff(code.start_ns[code.of == kind]) >= 0).all()
    host = code.of == CodeOf.HOST
    assert (code.end_ns[host][:-1] <= code.start_ns[host][1:]).all()


def test_the_command_line_names_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "job", ranks(BOTH, BOTH))
    assert main(["diagnose", str(tmp_path / "job"), "--no-cache", "-v"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "In step (train.py:4)." in said
    assert stacks.SENTENCE not in said
    assert main(["diagnose", str(tmp_path / "job"), "--no-cache", "--json"]) == 0
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    (found,) = (one for one in run["findings"] if one["rule"] == "host-stall")
    assert found["evidence"][0]["source"] == {"file": "train.py", "line": 4, "function": "step"}


def test_without_stacks_it_says_how_to_get_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "job", ranks(STALLED, STALLED))
    assert main(["diagnose", str(tmp_path / "job"), "--no-cache", "-v"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"{stacks.SENTENCE}: capture with profile(..., with_stack=True)." in said


def test_the_advice_is_code_that_compiles() -> None:
    assert stacks.advice(job(ranks(BOTH, BOTH))) == ""
    _, _, code = stacks.advice(job(ranks(STALLED, STALLED))).partition("\n\n")
    compile(code, "advice", "exec")
    assert "with_stack=True" in code and "ProfilerActivity.CUDA" in code


def test_a_slice_carries_it_on_its_evidence(tmp_path: Path) -> None:
    (run,) = discover(write(tmp_path / "job", ranks(BOTH, BOTH)))
    kept = Cache(None)
    result = engine.diagnose(run, reading=engine.Reading(kept))
    part = cut.cut(result, kept, cut.whole(result.job))
    said = {
        label.args.get("source") for row in placed(part, "") for label in row if "host-stall" in label.args.values()
    }
    assert said == {"train.py:4 step"}
