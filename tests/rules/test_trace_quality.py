"""What the traces lack."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from traces import digests, finding, job, outcome, ranks

from tb_ddp_doctor.account.savings import Savings
from tb_ddp_doctor.facts import Facts
from tb_ddp_doctor.facts.without_faults import whatif
from tb_ddp_doctor.findings import FileWarning, Finding
from tb_ddp_doctor.job.build import build
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.rules import CATALOGUE
from tb_ddp_doctor.rules.support.base import run
from tb_ddp_doctor.trace.losses import Loss, Losses

RULE = "trace-quality"
GOOD = """
    rank# step |1
          host [a][b]
          gpu  [a....][b....]
          nccl               [ar]
"""


def test_whole_traces_of_all_ranks_are_clear() -> None:
    assert outcome(RULE, ranks(GOOD, GOOD)).status == "clear"


def test_calls_that_block_a_cpu_are_counted_with_those_of_which_it_is_known_what_they_wait_for() -> None:
    # cudaFree returns long after the GPU is done; the sync ends with the AllReduce.
    frees = """
        rank# step |1
              host [a][free.........][b][ar][sync.....]
              gpu   [a]               [b]
              nccl                          [ar.....]
    """
    said = outcome(RULE, ranks(frees, frees)).reason
    assert said.endswith("Of 12 calls that block a CPU, 6 end with the GPU work that the CPU waits for.")
    assert "block" not in outcome(RULE, ranks(GOOD, GOOD)).reason


def test_missing_ranks_are_told() -> None:
    found = finding(RULE, ranks(GOOD, GOOD), world_size=4)
    assert (found.cause, found.severity, found.cost_ms) == ("missing_ranks", "info", 0)
    assert "2 of 4 ranks have no usable trace" in found.title
    assert 'worker_name=f"{socket.gethostname()}_{rank}"' in found.fix


def test_few_steps_are_told() -> None:
    text = ranks(GOOD, GOOD, steps=2)
    found = finding(RULE, text)
    assert found.cause == "few_steps"
    assert "only 2 steps" in found.title
    assert "active=5" in found.fix
    assert outcome(RULE, text, settings={"min_steps": 2.0}).status == "clear"


def test_a_trace_without_steps_is_told_once() -> None:
    text = "rank0 host [a][b]\n gpu [a..][b..]\n nccl       [ar]"
    found = finding(RULE, text)
    assert found.cause == "no_steps"
    assert "few" not in found.title


def test_kernels_without_launches_are_told() -> None:
    found = finding(RULE, "gpu [?a...][?b...]")
    assert "joined to their launches" in found.title
    assert "# the host as well" in found.fix


def test_unmatched_collectives_are_told() -> None:
    alone = GOOD.replace("[ar]", "[ag]")
    assert finding(RULE, ranks(GOOD, alone)).cause == "no_matches"
    some = GOOD.replace("[ar]", "[ar][ar@7]")
    found = finding(RULE, ranks(GOOD, some))
    assert found.cause == "unmatched"
    # One of three calls has no partner.
    assert "33 % of the collectives" in found.title
    assert outcome(RULE, ranks(GOOD, some), settings={"max_unmatched": 0.34}).status == "clear"


def test_ranks_that_only_send_to_each_other_have_nothing_to_match() -> None:
    messages = [GOOD.replace("[ar]", f"[{way}{other}]") for way, other in (("s", 1), ("r", 0))]
    assert outcome(RULE, ranks(*messages)).status == "clear"


def found_in(given: Job) -> tuple[Finding, ...]:
    facts = Facts(given)
    found = run(CATALOGUE[RULE], facts)[1]
    return Savings([found], facts.get(whatif), given).findings if found else ()


def test_a_cut_file_is_told() -> None:
    drawn = digests(ranks(GOOD, GOOD))
    cut = FileWarning("rank1.json", "cut off at byte 1,234: what follows is missing (end of data)", "lost-end")
    drawn[1] = replace(drawn[1], warnings=(cut,))
    (found,) = found_in(build("drawn", drawn, {}, 2))
    assert found.cause == "damaged_files"
    assert "1 file is cut off or damaged" in found.title


def test_clocks_that_disagree_are_told() -> None:
    given = job(ranks(GOOD, GOOD))
    limit = 0.03 * given.step_ns
    for residual, status in ((limit * 1.01, "finding"), (limit * 0.99, "clear")):
        shifted = replace(given, clock=replace(given.clock, residual_ns=residual))
        assert run(CATALOGUE[RULE], Facts(shifted))[0].status == status
        assert [each.cause for each in found_in(shifted)] == ["clocks"] * (status == "finding")


def test_shapes_that_were_not_recorded_are_told() -> None:
    found = finding(RULE, ranks(GOOD, GOOD), shapes=False)
    assert found.cause == "no_shapes"
    assert "record_shapes=True" in found.fix


#: A job that lacks one thing, and what the code then has.
LACKING: list[tuple[str, str, dict[str, Any]]] = [
    ("socket.gethostname()", ranks(GOOD, GOOD), {"world_size": 3}),
    ("record_shapes=True", ranks(GOOD, GOOD), {"shapes": False}),
    ("active=5", ranks(GOOD, GOOD, steps=2), {}),
    ("# marks the steps", "rank0 host [a][b]\n gpu [a..][b..]\n nccl       [ar]", {}),
    ("# all ranks start on the same step", ranks(GOOD, GOOD.replace("[ar]", "[ag]")), {}),
]


@pytest.mark.parametrize(("line", "text", "options"), LACKING, ids=[line for line, _, _ in LACKING])
def test_the_code_has_what_is_lacking_and_nothing_else(line: str, text: str, options: dict[str, Any]) -> None:
    fix = finding(RULE, text, **options).fix
    # Steps that nothing marks need a schedule too.
    expected = {line, "active=5"} if line == "# marks the steps" else {line}
    assert {other for other, _, _ in LACKING if other in fix} == expected
    compile(fix.partition("\n\n")[2], "fix", "exec")


def test_clocks_alone_need_no_other_capture() -> None:
    given = job(ranks(GOOD, GOOD))
    shifted = replace(given, clock=replace(given.clock, residual_ns=given.step_ns))
    (found,) = found_in(shifted)
    assert "chronyc" in found.fix and "profile(" not in found.fix


def test_all_that_is_lacking_goes_into_one_capture() -> None:
    found = finding(RULE, ranks(GOOD, GOOD, steps=1), world_size=8, shapes=False)
    assert found.fix.count("with profile(") == 1
    assert all(word in found.fix for word in ("socket", "record_shapes=True", "active=5"))


@pytest.mark.parametrize("kind", Loss)
def test_warnings_tell_whether_events_are_lost(kind: Loss) -> None:
    losses = Losses()
    losses.add(kind, 1234, "it (the line)\nbreaks", 2)
    (warning,) = losses.warnings("rank0.json")
    assert warning.loses_events == (kind not in (Loss.TEXT, Loss.ARGUMENTS, Loss.HEADER, Loss.AFTER_END, Loss.DOUBLED))
