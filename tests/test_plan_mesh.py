"""The same model on another mesh: sizes, links, the pipeline's bubble, and what a record cannot tell."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from msgspec.structs import replace
from traces import digests, repeat

from tb_ddp_doctor.facts import Facts
from tb_ddp_doctor.job.build import build
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.mesh.mesh import mesh
from tb_ddp_doctor.planning.answer import answer
from tb_ddp_doctor.planning.mesh.calls import dimension_of_calls
from tb_ddp_doctor.planning.mesh.sizes import changed, parsed, written
from tb_ddp_doctor.planning.model import Prediction, Question
from tb_ddp_doctor.planning.predict import Planner
from tb_ddp_doctor.planning.questions import values
from tb_ddp_doctor.planning.record import PlanRecord
from tb_ddp_doctor.planning.refusal import CannotPlanError

#: Eight ranks as dp 2, pp 2, tp 2: tp is (0, 1), (2, 3) ..., pp is (0, 2), (1, 3) ..., dp is (0, 4), (1, 5) ... A step
#: of 105 ms has one micro-batch. Both stages compute 9 ms forward and backward, with an AllReduce of tp of 10 ms after
#: each; messages take 6 ms, and the AllReduce of gradients 10 ms.
_FIRST = """
rank# step     |1
      host     [fwd][arf/TP][sN][rN]                           [sync...................................................]
      autograd                      [bwd][arb/TP][arg/DP][arn]
      gpu        [fwd....]                                                            [bwd....]
      nccl                [arf/TP@4][sN@2][rN@2......................................]         [arb/TP@4][arg/DP@8][arn]
"""
_LAST = """
rank# step     |1
      host     [rN][fwd][arf/TP]                               [sync...................................................]
      autograd                  [bwd][arb/TP][sN][arg/DP][arn]
      gpu                                 [fwd....]          [bwd....]
      nccl       [rN@2...................]         [arf/TP@4]         [arb/TP@4][sN@2][arg/DP@8][arn...................]
"""


def drawn(nodes: Mapping[int, str] | None = None, device: str = "") -> Job:
    """The job with groups that DeviceMesh names, on one node, or on these."""
    text = ""
    for rank in range(8):
        named = {"#": str(rank), "TP": f"t{rank // 2}", "DP": f"d{rank % 4}", "N": str(rank ^ 2)}
        drawing = _LAST if rank & 2 else _FIRST
        for short, name in named.items():
            drawing = drawing.replace(short, name)
        text += drawing
    found = {}
    for rank, one in digests(repeat(text, 3)).items():
        tp, dp = f"t{rank // 2}", f"d{rank % 4}"
        groups = {tp: (rank & ~1, rank | 1), dp: (rank % 4, rank % 4 + 4)}
        header = replace(one.header, groups=groups, group_descriptions={tp: "mesh_tp", dp: "mesh_dp"})
        found[rank] = replace(one, header=header, device=device or one.device)
    return build("job", found, dict(nodes or dict.fromkeys(found, "one")), 8)


def planner(**options: object) -> Planner:
    return Planner(PlanRecord(Facts(drawn(**options))))  # type: ignore[arg-type]


def predicted(asked: str, **options: object) -> Prediction:
    return planner(**options).predict(Question(mesh=asked))


def refused(asked: str, **options: object) -> str:
    with pytest.raises(CannotPlanError) as error:
        predicted(asked, **options)
    return str(error.value)


@pytest.mark.parametrize(
    ("asked", "step_ms"),
    [
        ("dp=2,tp=2,pp=2", 105),
        # Without tp the four AllReduces on the way are gone, messages are half as large, and 64 MB of gradients among
        # 4 ranks take three times as long as 32 MB among 2: 9 + 3 + 9 + 9 + 3 + 9 + 30 and 7 at both ends.
        ("dp=4,tp=1", 79 + 1),
        # One stage has twice the layers and half the batch: its AllReduces take as long, and the bubble is gone.
        ("dp=4,pp=1", 9 + 10 + 9 + 10 + 30 + 7),
        # Both: 128 MB among 8 ranks take 7 / 4 * 4 times as long.
        ("dp=8,tp=1,pp=1", 9 + 9 + 70 + 7),
    ],
)
def test_a_step_on_another_mesh_is_that_of_its_parts(asked: str, step_ms: float) -> None:
    found = predicted(asked)
    assert found.step_ms == pytest.approx(step_ms, rel=0.03)
    assert found.low_ms <= found.step_ms <= found.high_ms


def test_the_recorded_mesh_gives_the_recorded_step() -> None:
    found = predicted("dp=2,tp=2,pp=2")
    assert found.step_ms == pytest.approx(105, abs=1e-6)
    assert found.change_ms == pytest.approx(0, abs=1e-6)


def test_owners_sum_to_the_predicted_step() -> None:
    of = planner()
    question = Question(mesh="dp=4,pp=1")
    step_ms = of.predict(question).step_ms
    owners_ms = of.owners_ms(question, step_ms)
    assert sum(owners_ms.values()) == pytest.approx(step_ms)
    assert owners_ms["wait"] < of.owners_ms(Question(), 105)["wait"]


def test_calls_are_of_the_dimension_of_their_groups_and_messages_of_their_peers() -> None:
    record = planner().record
    found = mesh(record.job)
    names = [one.name for one in found.dimensions]
    (table, *_), of_rows = record.job.digests, dimension_of_calls(record, found)
    by_size: dict[tuple[str, int], set[str]] = {}
    for kind, size, dimension in zip(table.collectives.kind, table.collectives.bytes, of_rows[0].tolist(), strict=True):
        by_size.setdefault((table.strings[kind], int(size)), set()).add(names[dimension] if dimension >= 0 else "")
    assert by_size["all_reduce", 16_000_000] == {"tp"}
    assert by_size["all_reduce", 32_000_000] == {"dp"}
    assert by_size["send", 8_000_000] == by_size["recv", 8_000_000] == {"pp"}
    # The AllReduce of all ranks is of no dimension.
    assert {name for (kind, size), its in by_size.items() if size not in (8e6, 16e6, 32e6) for name in its} == {""}


def test_what_a_rank_has_of_the_model_and_the_batch() -> None:
    now = {"dp": 2, "tp": 4, "pp": 2, "cp": 1, "ep": 1}
    found = changed(now, {"dp": 4, "tp": 2}, strong=False, micro_batches=8)
    assert (found.ranks, found.work, found.batch) == ((16, 16), 1.0, 0.5)
    assert (found.micro_batches, found.activations, found.calls, found.parameters) == (4, 1.0, 0.5, 2.0)
    longer = changed(now, {"pp": 4}, strong=True, micro_batches=8)
    assert (longer.ranks, longer.work, longer.batch) == ((16, 32), 0.5, 1.0)
    assert (longer.micro_batches, longer.calls, longer.parameters) == (8, 0.5, 0.5)
    weak = changed(now, {"pp": 4}, strong=False, micro_batches=8)
    assert (weak.work, weak.batch, weak.micro_batches, weak.calls) == (1.0, 2.0, 16, 1.0)


def test_meshes_are_read_and_written() -> None:
    assert values("mesh", "DP=16, tp=4,pp=4; dp=8,tp=8,pp=4") == ["dp=16,tp=4,pp=4", "dp=8,tp=8,pp=4"]
    assert written(parsed("tp=2")) == "tp=2"
    for text in ("dp", "dp=0", "dp=x", "dp=2,dp=4", "xp=2", "dp=-1", "dp=2.5"):
        with pytest.raises(ValueError, match="--mesh takes dimensions"):
            values("mesh", text)


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ("cp=2", "This job has cp=1: what attention or experts take with cp=2"),
        ("ep=4", "with ep=4 cannot be told"),
        ("dp=32", "less than one"),
    ],
)
def test_what_a_record_cannot_tell_is_refused(asked: str, reason: str) -> None:
    now = {"dp": 2, "tp": 4, "pp": 2, "cp": 1, "ep": 1}
    with pytest.raises(CannotPlanError, match=reason):
        changed(now, parsed(asked), strong=True, micro_batches=8)


@pytest.mark.parametrize("name", ["dp", "tp", "pp"])
def test_a_dimension_that_the_record_lacks_is_refused(name: str) -> None:
    now = {"dp": 2, "tp": 2, "pp": 2, "cp": 1, "ep": 1} | {name: 1}
    with pytest.raises(CannotPlanError, match=f"This job has {name}=1: .* Record a few steps with {name}=2"):
        changed(now, {name: 2}, strong=False, micro_batches=1)


def test_a_mesh_and_ranks_are_not_predicted_together() -> None:
    with pytest.raises(CannotPlanError, match="A mesh is predicted without ranks"):
        planner().predict(Question(mesh="dp=4", ranks=16))
    with pytest.raises(CannotPlanError, match="A mesh is predicted without offload"):
        planner().predict(Question(mesh="dp=4", offload=True))


#: Each group of tp and of dp is across two nodes.
ACROSS = {rank: "one" if rank in (0, 2, 5, 7) else "other" for rank in range(8)}


def test_links_within_a_node_that_no_group_shows_are_those_of_the_data_sheet() -> None:
    found = predicted("dp=2,tp=4,pp=1", nodes=ACROSS, device="NVIDIA H100 80GB HBM3")
    taken = next(one for one in found.rests if one.what == "Links of tp")
    assert (taken.basis, taken.detail) == (
        "assumed",
        "80 % (60 % to 95 %) of the 450 GB/s that NVIDIA H100 80GB HBM3 has to other GPUs of its node",
    )
    # All of tp's 40 ms go to links that are a hundred times as fast.
    assert found.step_ms < predicted("dp=2,tp=4,pp=1", nodes=dict.fromkeys(range(8), "one")).step_ms
    assert "groups of tp use links" in refused("dp=2,tp=4,pp=1", nodes=ACROSS)


def test_groups_that_come_to_lie_across_nodes_need_links_between_them() -> None:
    two = {rank: f"node{rank // 4}" for rank in range(8)}
    # dp is across nodes: its links are those of the AllReduces of tp=8.
    assert predicted("dp=1,tp=4", nodes=two).step_ms > 105
    slow = predicted("dp=1,tp=8,pp=1", nodes=two)
    assert any(one.what == "Links of tp" and "all_reduce" in one.detail for one in slow.rests)
    # On one node, whose links between nodes nobody measured, sixteen ranks are refused.
    assert "that no data sheet has" in refused("dp=4,tp=4,pp=1")


def test_a_report_says_what_it_rests_on_and_curves_compare_meshes() -> None:
    job = drawn()
    found = answer(
        job, lambda: Planner(PlanRecord(Facts(job))), Question(), {"mesh": ("dp=4,tp=1", "dp=4,pp=1", "cp=2")}
    )
    (curve,), refusal = found.curves, next(one for one in found.refusals if one.question == "mesh")
    assert (curve.field, curve.values, curve.best) == ("mesh", ("dp=4,tp=1", "dp=4,pp=1"), "dp=4,pp=1")
    assert refusal.values == ("cp=2",)
    rests = {one.what: one for one in curve.points[1].rests}
    assert "2 times as many parameters" in rests["The model and its batch"].detail
    assert "1 micro-batches instead of 1" in rests["Pipeline"].detail
    assert "dp=2, tp=2, pp=2 (inferred)" in rests["The recorded mesh"].detail
