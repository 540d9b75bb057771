"""Steps predicted with states sharded otherwise, on drawn jobs whose other steps follow from the drawing."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import numpy as np
import pytest
import traces

from tb_ddp_doctor import engine
from tb_ddp_doctor.calibration.model import Calibration, Point, curve
from tb_ddp_doctor.discover.runs import only_run
from tb_ddp_doctor.facts import Facts
from tb_ddp_doctor.planning.layers import repeated_layers
from tb_ddp_doctor.planning.model import Question
from tb_ddp_doctor.planning.predict import Planner
from tb_ddp_doctor.planning.record import PlanRecord
from tb_ddp_doctor.planning.refusal import CannotPlanError
from tb_ddp_doctor.planning.shards.smaller import _of_units
from tb_ddp_doctor.planning.shards.states import States, of_rank, offloaded
from tb_ddp_doctor.planning.shards.units import units
from tb_ddp_doctor.planning.steps import Otherwise


def drawn(*blocks: tuple[str, int, int, str], width: int = 250) -> str:
    """A rank's step from lanes, begins, ends and names."""
    lanes: dict[str, str] = {"step": "|2".ljust(width)}
    for lane, begin, end, name in blocks:
        lanes[lane] = lanes.get(lane, "").ljust(begin) + f"[{name}".ljust(end - begin - 1, ".") + "]"
    return "\n".join(f"rank# {lane:<8} {drawing}" for lane, drawing in lanes.items()) + "\n"


#: fully_shard of two units and of the root, without prefetch. The CPU awaits the GPU after each unit's forward, so that
#: AllGathers run alone; collectives of n million elements take 10 + 4 n ms.
FSDP_BLOCKS = (
    ("host", 0, 5, "ag0"), ("nccl", 0, 14, "ag0@1"), ("host", 5, 11, "fwd0"), ("gpu", 14, 26, "fwd0"),
    ("host", 11, 26, "sync"),
    ("host", 26, 31, "ag1"), ("nccl", 26, 44, "ag1@2"), ("host", 31, 37, "fwd1"), ("gpu", 44, 70, "fwd1"),
    ("host", 37, 70, "sync"),
    ("host", 70, 75, "ag2"), ("nccl", 70, 92, "ag2@3"), ("host", 75, 81, "fwd2"), ("gpu", 92, 107, "fwd2"),
    ("host", 81, 107, "sync"),
    ("autograd", 107, 112, "ag5"), ("nccl", 107, 129, "ag5@3"), ("autograd", 112, 116, "b2"), ("gpu", 129, 149, "b2"),
    ("autograd", 116, 121, "rs2"), ("nccl", 149, 171, "rs2@3"),
    ("autograd", 121, 126, "ag6"), ("nccl", 171, 189, "ag6@2"), ("autograd", 126, 130, "b1"), ("gpu", 189, 209, "b1"),
    ("autograd", 130, 135, "rs1"), ("nccl", 209, 227, "rs1@2"), ("autograd", 135, 139, "b0"), ("gpu", 209, 214, "b0"),
    ("autograd", 139, 144, "rs0"), ("nccl", 227, 241, "rs0@1"),
    ("host", 144, 149, "opt"), ("gpu", 241, 246, "opt"), ("host", 149, 246, "sync"),
)  # fmt: skip
FSDP = drawn(*FSDP_BLOCKS)
#: Three layers of one size, whose gradients are sent in one bucket when backward is over.
DDP = drawn(
    ("host", 0, 5, "fwd"), ("gpu", 0, 45, "fwd"),
    ("autograd", 5, 9, "b2"), ("gpu", 45, 65, "b2"), ("autograd", 9, 17, "grad@4"),
    ("autograd", 17, 21, "b1"), ("gpu", 65, 85, "b1"), ("autograd", 21, 29, "grad@4"),
    ("autograd", 29, 33, "b0"), ("gpu", 85, 105, "b0"), ("autograd", 33, 41, "grad@4"),
    ("autograd", 41, 45, "ar"), ("nccl", 105, 141, "ar@12"),
    ("host", 45, 50, "opt"), ("host", 50, 146, "sync"), ("gpu", 141, 146, "opt"),
)  # fmt: skip


@pytest.fixture(scope="module")
def sharded() -> Planner:
    return Planner(PlanRecord(Facts(traces.job(traces.ranks(FSDP, FSDP, steps=3)))))


@pytest.fixture(scope="module")
def reduced() -> Planner:
    return Planner(PlanRecord(Facts(traces.job(traces.ranks(DDP, DDP, steps=3)))))


def test_units_of_a_sharded_record_are_those_that_it_gathers(sharded: Planner) -> None:
    found = units(sharded.record)
    assert found.elements.tolist() == [3_000_000, 2_000_000, 1_000_000]
    assert (found.has_root, found.regathers, found.ahead) == (True, True, (0, 0))


def test_the_record_says_how_it_shards_and_what_its_gathers_wait_for(sharded: Planner) -> None:
    found = sharded.sharded
    assert found is not None
    assert (found.stage, found.shards, found.copies, found.units) == ("zero3", 2, 1, 3)
    assert (found.least_bytes, found.median_bytes, found.most_bytes) == (4_000_000, 8_000_000, 12_000_000)
    assert (found.ahead_forward, found.ahead_backward) == (0, 0)
    # All but that of unit 1 in backward, which waits for the reduce-scatter before it: 14, 18, 22 and 22 ms.
    assert (found.gathers, found.late_gathers, found.late_ms) == (5, 4, 14 + 18 + 22 + 22)


def test_gathers_that_are_launched_ahead_wait_for_no_launch() -> None:
    """Forward's gathers are launched one after the other, and follow each other on their stream."""
    launches = {"ag1": (5, 10), "fwd0": (10, 14), "ag2": (14, 19), "fwd1": (19, 23)}
    device = {"ag1@2": (14, 32), "fwd1": (32, 58), "ag2@3": (32, 54)}
    blocks = []
    for lane, begin, end, name in FSDP_BLOCKS:
        moved = launches if lane == "host" else device if lane in ("gpu", "nccl") else {}
        if (lane, name) != ("host", "sync") or begin > 100:
            blocks.append((lane, *moved.get(name, (begin, end)), name))
    ahead = drawn(*sorted(blocks, key=lambda block: block[1]))
    found = Planner(PlanRecord(Facts(traces.job(traces.ranks(ahead, ahead, steps=3))))).sharded
    assert found is not None
    # Of forward's the first one alone has nothing before it; of backward's, the first.
    assert (found.late_gathers, found.late_ms) == (2, 14 + 22)


#: A unit of two layers, and one of one, whose gradients have sizes; collectives of n million elements take 10 + 4 n ms.
LAYERS = drawn(
    ("host", 0, 5, "ag0"), ("nccl", 0, 18, "ag0@2"), ("host", 5, 11, "fwd0"), ("gpu", 18, 38, "fwd0"),
    ("host", 11, 16, "ag1"), ("nccl", 18, 44, "ag1@4"), ("host", 16, 22, "fwd1"), ("gpu", 44, 84, "fwd1"),
    ("autograd", 22, 27, "ag2"), ("nccl", 44, 70, "ag2@4"),
    ("autograd", 27, 31, "b2"), ("gpu", 84, 104, "b2"), ("autograd", 31, 39, "grad@2"),
    ("autograd", 39, 43, "b1"), ("gpu", 104, 124, "b1"), ("autograd", 43, 51, "grad@2"),
    ("autograd", 51, 56, "rs1"), ("nccl", 124, 150, "rs1@4"), ("autograd", 56, 61, "ag3"), ("nccl", 150, 168, "ag3@2"),
    ("autograd", 61, 65, "b0"), ("gpu", 168, 188, "b0"), ("autograd", 65, 73, "grad@2"),
    ("autograd", 73, 78, "rs0"), ("nccl", 188, 206, "rs0@2"),
    ("host", 78, 83, "opt"), ("gpu", 206, 211, "opt"), ("host", 83, 211, "sync"), width=211,
)  # fmt: skip


def test_gradients_tell_the_parts_of_a_unit() -> None:
    """The unit of 4 million elements as two of 2: each waits 18 ms for its all-gather, not 26.

    Forward ends 6 ms sooner. Backward scatters the first one and gathers the second one between their computes, 36 ms,
    and then waits for 18 + 18 ms before the last unit, not for 26 + 18.
    """
    plan = Planner(PlanRecord(Facts(traces.job(traces.ranks(LAYERS, LAYERS, steps=3)))))
    then, now = played_ms(plan, Question(sharding="zero3", bucket_mb=7.0))
    assert now == pytest.approx(211, abs=2)
    # 3 ms of the second part's kernels do not wait: they are cut by the CPU's time, some of which launches the gather.
    assert then - now == pytest.approx(-6 + 36 - 8, abs=4)
    found = plan.predict(Question(sharding="zero3", bucket_mb=7.0))
    (one,) = (each for each in found.rests if "Smaller" in each.what)
    assert one.detail.startswith("3 units instead, by the gradients of each unit")
    with pytest.raises(
        CannotPlanError, match=r"No unit of this record, of 8\.0 MB or more, has several parts of 7\.9 MiB"
    ):
        plan.predict(Question(sharding="zero3", bucket_mb=7.9))


def test_gradients_of_the_root_are_in_no_other_unit() -> None:
    """The root's first gradient comes before those of the last block, as that of a head does."""
    recorded = units(PlanRecord(Facts(traces.job(traces.ranks(LAYERS, LAYERS, steps=3)))))
    sizes = np.array([9, 2, 2, 2]) * 1_000_000
    ready = np.array([-30, -20, 0, 10]) * traces.MS + recorded.ready_ns[0, 0]
    assert list(_of_units(recorded, 2, sizes, ready)) == [(1, 2), (3, 3)]
    with pytest.raises(CannotPlanError, match="are not those of its unit"):
        list(_of_units(recorded, 2, sizes[[0, 1, 3]], ready[[0, 1, 3]]))


def test_units_whose_gathers_are_hidden_begin_where_the_next_ones_are_launched() -> None:
    """One unit ahead, with a sync after each unit: all-gathers of 8 ms hide behind 30 ms of compute.

    Nothing is seen to wait for those of units 1 and 2. Unit 1 begins once gather 2 is launched, not with its own.
    """
    step = drawn(
        ("host", 0, 5, "ag0"), ("nccl", 0, 8, "ag0@2"),
        ("host", 5, 10, "ag1"), ("nccl", 8, 16, "ag1@2"), ("host", 10, 14, "fwd0"), ("gpu", 11, 41, "fwd0"),
        ("host", 14, 41, "sync"),
        ("host", 41, 46, "ag2"), ("nccl", 41, 49, "ag2@2"), ("host", 46, 50, "fwd1"), ("gpu", 48, 78, "fwd1"),
        ("host", 50, 78, "sync"),
        ("host", 78, 82, "fwd2"), ("gpu", 79, 109, "fwd2"), ("host", 82, 109, "sync"),
        ("autograd", 109, 113, "b2"), ("gpu", 110, 130, "b2"),
        ("autograd", 113, 118, "rs2"), ("nccl", 130, 138, "rs2@2"),
        ("autograd", 118, 122, "b1"), ("gpu", 130, 150, "b1"),
        ("autograd", 122, 127, "rs1"), ("nccl", 150, 158, "rs1@2"),
        ("autograd", 127, 131, "b0"), ("gpu", 150, 170, "b0"),
        ("autograd", 131, 136, "rs0"), ("nccl", 170, 178, "rs0@2"),
        ("host", 136, 140, "opt"), ("gpu", 178, 183, "opt"), ("host", 140, 183, "sync"), width=190,
    )  # fmt: skip
    plan = Planner(PlanRecord(Facts(traces.job(traces.ranks(step, step, steps=3)))))
    found = units(plan.record)
    assert found.ahead[0] == 1
    begins = (found.forward_ns[0, ::-1] - found.forward_ns[0].min()) / traces.MS
    # Unit 2 has no gather ahead of it: it takes as long as unit 1 did.
    assert begins == pytest.approx([0, 36, 72], abs=6)
    assert played_ms(plan, Question(prefetch=1))[0] == pytest.approx(183, abs=3)
    # Each gather then waits for the CPU after its sync: 8 ms, of which it launches for 5.
    then, now = played_ms(plan, Question(prefetch=0))
    assert then - now == pytest.approx(2 * 3, abs=3)


def test_larger_units_save_the_latency_of_their_collectives(sharded: Planner) -> None:
    """Units of 3 and 2 million elements as one: collectives of n million elements take 10 + 4 n ms.

    Forward waits for one gather of 30 ms, not for 22 and 18. Backward waits for 30 ms, computes both, and scatters
    once: it ends 20 ms sooner.
    """
    then, now = played_ms(sharded, Question(sharding="zero3", bucket_mb=13.0))
    assert then - now == pytest.approx(-(10 + 20), abs=4)
    with pytest.raises(CannotPlanError, match=r"The units of this record have 4\.0 MB or more"):
        sharded.predict(Question(sharding="zero3", bucket_mb=1.0))
    (one,) = (
        each for each in sharded.predict(Question(sharding="zero3", bucket_mb=13.0)).rests if "Larger" in each.what
    )
    assert one.detail.startswith("2 units instead")


def test_gathers_issued_in_time_wait_for_no_launch(sharded: Planner) -> None:
    """Those of units 1 and 2 in forward follow the first one; of backward's, the first stays, and the second waits for
    the reduce-scatter before it, not for the CPU.
    """
    then, now = played_ms(sharded, Question(gathers_in_time=True))
    assert then - now == pytest.approx(-(13 + 17), abs=3)
    predicted = sharded.predict(Question(gathers_in_time=True))
    assert predicted.change_ms == pytest.approx(-(13 + 17), abs=4)
    assert {"Units", "All-gathers in time"} <= {one.what for one in predicted.rests}
    # All three units are gathered together: none is computed before the last one is launched.
    assert predicted.rank_bytes is not None
    assert predicted.rank_bytes.gathered == 24e6


def test_gathers_are_in_time_as_recorded_only(sharded: Planner, reduced: Planner) -> None:
    for other in (Question(prefetch=1), Question(sharding="zero2"), Question(bucket_mb=13.0)):
        with pytest.raises(CannotPlanError, match="ask for them in time without another sharding, prefetch or units"):
            sharded.predict(msgspec.structs.replace(other, gathers_in_time=True))
    with pytest.raises(CannotPlanError, match="This job shards no parameters"):
        reduced.predict(Question(gathers_in_time=True))
    with pytest.raises(CannotPlanError, match="ask with --sharding zero3"):
        sharded.predict(Question(gathers_in_time=True, sharding="ddp"))


def hybrid(rank: int, slow: int = 1) -> str:
    """A rank of two that shard and two copies (HSDP): FSDP's step four times as long, with an AllReduce of each unit's
    shard between copies after its reduce-scatter, on a stream of its own. AllReduces of n million elements take
    `slow` * (10 + 10 n) ms, all-gathers and reduce-scatters of n million 40 + 8 n.
    """
    blocks, free = [], 0
    for lane, begin, end, name in FSDP_BLOCKS:
        start, stop = 4 * begin, 4 * end
        of_shards = re.sub(r"^(ag|rs)\d", rf"\g<0>/s{rank // 2}", name)
        if "@" in name:
            of_shards = of_shards[:-1] + str(2 * int(name[-1]))
        if lane == "autograd" and name.startswith("rs"):
            blocks += [(lane, start, start + 10, of_shards), (lane, start + 10, stop, f"ar{name[2]}/c{rank % 2}")]
            continue
        if (lane, name) == ("gpu", "opt"):
            start, stop = free, free + 20
        elif (lane, name) == ("host", "sync") and begin > 140:
            stop = free + 20
        blocks.append((lane, start, stop, of_shards))
        if name.startswith("rs"):
            begins = max(stop, free)
            free = begins + slow * (10 + 10 * int(name[-1]))
            blocks.append(("comm", begins, free, f"ar{name[2]}/c{rank % 2}@{name[-1]}"))
    return drawn(*blocks, width=1300).replace("#", str(rank))


def of_copies(slow: int = 1) -> Planner:
    text = traces.repeat("".join(hybrid(rank, slow) for rank in range(4)), 3)
    return Planner(PlanRecord(Facts(traces.job(text))))


@pytest.fixture(scope="module")
def copied() -> Planner:
    return of_copies()


def test_of_hsdp_the_record_is_told(copied: Planner) -> None:
    found = copied.sharded
    assert found is not None
    assert (found.stage, found.shards, found.copies, found.units) == ("zero3", 2, 2, 3)
    assert (found.gathers, found.late_gathers) == (5, 4)


@pytest.mark.parametrize(("slow", "step"), [(1, 984 + 20), (5, 1158 + 20)])
def test_the_recorded_copies_give_the_recorded_steps(slow: int, step: int) -> None:
    """With slow AllReduces the last two follow each other on their stream, which the step ends with."""
    plan = of_copies(slow)
    for same in (Question(prefetch=0), Question(sharding="zero3"), Question(sharding="hsdp")):
        then, now = played_ms(plan, same)
        assert now == pytest.approx(step, rel=0.01)
        assert then == pytest.approx(now, abs=0.1)


def test_of_copies_gathers_and_units_are_planned_as_without(copied: Planner) -> None:
    """As FSDP's step, four times as long: what the last AllReduce waits for ends so much sooner.

    With one unit for two, 4 ms of that are lost: its AllReduce of 60 ms is over only after the last reduce-scatter.
    """
    for asked, saved in (
        (Question(prefetch=1), 4 * (13 + 17 + 38)),
        (Question(sharding="zero2"), 4 * (17 + 38)),
        (Question(gathers_in_time=True), 4 * (13 + 17)),
        (Question(sharding="zero3", bucket_mb=26.0), 4 * (10 + 20) - 4),
    ):
        then, now = played_ms(copied, asked)
        assert then - now == pytest.approx(-saved, abs=20), asked


def test_all_reduces_between_copies_follow_each_other_beside_the_shards() -> None:
    """AllReduces of 200, 150 and 100 ms, the first as soon as its reduce-scatter is over.

    Without resharding after forward that is at 616 ms, not at 684, and all three follow each other: they end at 1,066
    ms, not at 1,158, since the second one waits no more for its reduce-scatter.
    """
    then, now = played_ms(of_copies(5), Question(sharding="zero2"))
    assert then - now == pytest.approx(-(1158 - 1066), abs=8)


def test_copies_are_kept_or_refused(copied: Planner) -> None:
    kept = copied.predict(Question(sharding="zero2")).rank_bytes
    assert kept is not None
    # Half of 12 million float32 gradients.
    assert kept.gradients == pytest.approx(24e6)
    with pytest.raises(CannotPlanError, match="5 ranks are not whole copies of 2 shards"):
        copied.predict(Question(sharding="zero2", ranks=5))
    text = traces.repeat("".join(map(hybrid, range(4))), 3)
    fewer = re.sub(r"\[ar1/c\d(@2)?\.*\]", lambda block: " " * len(block[0]), text)
    with pytest.raises(CannotPlanError, match="do not have one AllReduce between copies for each ReduceScatter"):
        Planner(PlanRecord(Facts(traces.job(fewer)))).predict(Question(prefetch=1))


def played_ms(plan: Planner, question: Question) -> tuple[float, float]:
    """The second step as asked, and as the recorded sharding gives it; nothing is slower beside communication."""
    then, now = (steps.windows_ns(Otherwise())[0, 1] / 1e6 for steps in plan.resharding(question).steps("likely"))
    return then, now


def test_the_recorded_sharding_gives_the_recorded_steps(sharded: Planner) -> None:
    assert played_ms(sharded, Question(prefetch=0))[1] == pytest.approx(246, rel=0.02)
    for same in (Question(sharding="zero3"), Question(prefetch=0)):
        assert sharded.predict(same).change_ms == pytest.approx(0, abs=0.1)


def test_gathering_a_unit_ahead_hides_it_behind_the_one_before(sharded: Planner) -> None:
    # In forward 18 and 22 ms run alone, of which the CPU needs 5 each; in backward what follows b2 begins 38 ms sooner.
    then, now = played_ms(sharded, Question(prefetch=1))
    assert then - now == pytest.approx(-(13 + 17 + 38), abs=3)


def test_without_resharding_backward_gathers_nothing(sharded: Planner) -> None:
    then, now = played_ms(sharded, Question(sharding="zero2"))
    assert then - now == pytest.approx(-(17 + 38), abs=4)


def test_ddp_sends_one_bucket_and_gathers_nothing(sharded: Planner) -> None:
    asked = Question(sharding="ddp", bucket_mb=100.0)
    # The CPU launches fwd1, fwd2 and b2 5 ms after the GPU is done with what is before them, less what fully_shard took
    # of it; then one AllReduce takes as long as both halves of a ring.
    compute, late, overhead = 5 + 12 + 26 + 15 + 20 + 20 + 5, 3 * 5, 4 * 1.14
    then, _ = played_ms(sharded, asked)
    assert then == pytest.approx(compute + late - overhead + 2 * (10 + 4 * 6) + 5, abs=2)
    found = sharded.predict(asked).rank_bytes
    assert found is not None
    assert found.sent == pytest.approx(24e6)


def test_layers_of_a_ddp_record_become_units(reduced: Planner) -> None:
    found = units(reduced.record)
    assert found.elements.tolist() == [4_000_000] * 3
    # Forward is taken to compute them in the reverse order, each for as long.
    begins = found.forward_ns[0]
    assert (np.diff(begins) < 0).all()


def test_sharding_a_ddp_record_rests_on_assumptions_and_says_so(reduced: Planner) -> None:
    found = reduced.predict(Question(sharding="zero3"))
    assert found.low_ms <= found.step_ms <= found.high_ms
    assert {"Units", "CPU time of fully_shard", "Optimizer's states"} <= {one.what for one in found.rests}
    assert found.rank_bytes is not None
    assert found.rank_bytes.parameters == pytest.approx(48e6 / 2)


def test_zero1_gathers_the_parameters_after_the_update(reduced: Planner) -> None:
    # Half of what the recorded AllReduce of as many bytes takes.
    assert reduced.predict(Question(sharding="zero1")).change_ms == pytest.approx(36 / 2, abs=0.5)


def test_sharding_combines_with_other_changes(reduced: Planner) -> None:
    slow, fast = (reduced.predict(Question(sharding="zero3", links=links)).step_ms for links in (1.0, 4.0))
    assert fast < slow


@pytest.mark.parametrize(
    ("question", "why"),
    [
        (Question(sharding="zero4"), "there are: ddp, zero1"),
        (Question(sharding="hsdp"), "Each node has one rank"),
        (Question(prefetch=1), "ask with --sharding zero3"),
        (Question(sharding="zero3", prefetch=9), "units to gather ahead"),
        (Question(sharding="zero3", accumulate=2), "cannot be planned together: ask for one at a time"),
        (Question(sharding="zero3", dtype="int3"), "no dtype"),
    ],
)
def test_what_sharding_cannot_be_predicted_is_refused(reduced: Planner, question: Question, why: str) -> None:
    with pytest.raises(CannotPlanError, match=why):
        reduced.predict(question)


def test_shards_within_a_node_need_the_links_within_one() -> None:
    text = traces.ranks(DDP, DDP, DDP, DDP, steps=3)
    job = {"nodes": {0: "a", 1: "a", 2: "b", 3: "b"}}
    with pytest.raises(CannotPlanError, match="links within a node"):
        Planner(PlanRecord(Facts(traces.job(text, **job)))).predict(Question(sharding="hsdp"))
    points = [Point(bytes=size, count=3, time_us=20 + size / 1e5, low_us=1, high_us=1) for size in (10**6, 10**8)]
    fast = curve("all_reduce", "node", range(2), 2, points)
    known = Calibration(source="check", world_size=4, nodes=("a", "a", "b", "b"), curves=(fast,))
    plan = Planner(PlanRecord(Facts(traces.job(text, calibration=known, **job))))
    hybrid, full = (plan.predict(Question(sharding=name)) for name in ("hsdp", "zero3"))
    assert hybrid.step_ms < full.step_ms
    assert hybrid.rank_bytes is not None
    assert hybrid.rank_bytes.parameters == pytest.approx(48e6 / 2)


def test_each_stage_of_zero_shards_one_thing_more() -> None:
    # Mixed precision with Adam, as in figure 1 of the paper: 7.5 billion parameters, 64 ranks, 16 bytes each.
    whole = States(15e9, 15e9, 90e9, "assumed", "")
    held = [of_rank(whole, name, 64, 64, 0.0) for name in ("ddp", "zero1", "zero2", "zero3")]
    total = [(one.parameters + one.gradients + one.optimizer_states) / 1e9 for one in held]
    assert total == pytest.approx([120, 31.4, 16.6, 1.9], abs=0.05)
    # Section 7: stages 1 and 2 send as much as AllReduce, stage 3 half as much again; torch's stage 1 reduces fully.
    assert [round(one.sent / held[0].sent, 2) for one in held] == [1.0, 1.5, 1.0, 1.5]
    assert offloaded(held[3]).on_cpu == pytest.approx(1.875e9)


def test_sizes_that_repeat_are_layers() -> None:
    block = [16, 1, 64, 4]
    found = repeated_layers(np.array([512, 9, *block * 3, 300]))
    assert found.tolist() == [1, 5, 9, 13]
    assert repeated_layers(np.array([5, 4, 3, 2, 1])).tolist() == []
    assert repeated_layers(np.array([], np.int64)).tolist() == []


def test_a_record_that_keeps_parameters_gathered_is_zero2() -> None:
    kept = re.sub(r"\[ag[56][^]]*\]", lambda block: " " * len(block[0]), FSDP)
    plan = Planner(PlanRecord(Facts(traces.job(traces.ranks(kept, kept, steps=3)))))
    assert not units(plan.record).regathers
    assert plan.predict(Question(sharding="zero2")).change_ms == pytest.approx(0, abs=0.1)


def test_a_job_without_communication_is_refused_in_a_sentence() -> None:
    silent = traces.ranks("\n".join(line for line in DDP.splitlines() if "nccl" not in line) + "\n", steps=3)
    with pytest.raises(CannotPlanError, match=r"\.$"):
        Planner(PlanRecord(Facts(traces.job(silent)))).predict(Question(ranks=8))


def test_passes_of_steps_that_the_job_leaves_out_do_not_hinder_sharding() -> None:
    job = engine.diagnose(only_run(str(Path(__file__).parent.parent / "demo_logs" / "four_workers"))).job
    assert job.left_out
    found = units(PlanRecord(Facts(job)))
    assert len(found.rank) > len(job.ranks) * len(job.steps)
    assert set(found.step.tolist()) >= set(range(len(job.steps)))
