"""The dimensions of a job and each rank's place in them."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

import numpy as np
import pytest
from msgspec.structs import replace
from traces import digests, repeat

from tb_ddp_doctor import engine, examination, wording
from tb_ddp_doctor.account.headline import headline
from tb_ddp_doctor.facts import Facts
from tb_ddp_doctor.facts.frame import frame as frame_of
from tb_ddp_doctor.facts.traffic import communication, dimensions_of_traffic
from tb_ddp_doctor.job.build import build
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.mesh.dimensions import by_description, by_pattern, carrying
from tb_ddp_doctor.mesh.groups import Group, Uses, ranks_of_groups
from tb_ddp_doctor.mesh.mesh import Dimension, Mesh, _by_pattern, mesh
from tb_ddp_doctor.replay.change import Change
from tb_ddp_doctor.report import markdown
from tb_ddp_doctor.rules import CATALOGUE, slow_link
from tb_ddp_doctor.rules.support import naming
from tb_ddp_doctor.rules.support.base import Fault
from tb_ddp_doctor.rules.support.slow_groups import slow_groups
from tb_ddp_doctor.trace import names

#: Eight ranks: tp is (0, 1), (2, 3) ..., pp is (0, 2), (1, 3), (4, 6), (5, 7), dp is (0, 4), (1, 5) ... Activations are
#: reduced within tp in forward and in backward, gradients within dp by backward alone.
_FIRST = """
    rank#  step     |1
           host     [fwd][ar_f/TP]                                   [sync......]
           autograd                            [bwd][ar_b/TP][ar_g/DP]
           gpu           [fwd..]                    [bwd..]
           nccl             [ar_f/TP.][sNEXT...]          [rNEXT][ar_b/TP]  [ar_g/DP]
"""
_LAST = """
    rank#  step     |1
           host                [fwd][ar_f/TP]                        [sync......]
           autograd                            [bwd][ar_b/TP][ar_g/DP]
           gpu                      [fwd..]         [bwd..]
           nccl      [rNEXT]           [ar_f/TP.]         [sNEXT][ar_b/TP]  [ar_g/DP]
"""


def of_eight(descriptions: Mapping[str, str]) -> Mesh:
    return mesh(eight(descriptions))


def eight(descriptions: Mapping[str, str], traced: Collection[int] = range(8)) -> Job:
    """A job of eight ranks whose process groups "tp0", "dp3" ... have a description by the first two letters."""
    drawing = ""
    for rank in range(8):
        tp, dp = f"tp{rank // 2}", f"dp{rank % 4}"
        stage = _LAST if rank & 2 else _FIRST
        drawing += stage.replace("#", str(rank)).replace("TP", tp).replace("DP", dp).replace("NEXT", str(rank ^ 2))
    found = {}
    for rank, digest in digests(drawing).items():
        if rank not in traced:
            continue
        groups = {f"tp{rank // 2}": (rank & ~1, rank | 1), f"dp{rank % 4}": (rank % 4, rank % 4 + 4)}
        told = {name: descriptions[name[:2]] for name in groups if name[:2] in descriptions}
        found[rank] = replace(digest, header=replace(digest.header, groups=groups, group_descriptions=told))
    return build("job", found, dict.fromkeys(found, ""), 8)


@pytest.mark.parametrize(
    ("description", "dimensions"),
    [
        ("TENSOR_MODEL_PARALLEL_GROUP", {"tp"}),
        ("DATA_PARALLEL_GROUP_WITH_CP", {"dp", "cp"}),
        ("PIPELINE_MODEL_PARALLEL_GROUP", {"pp"}),
        ("EXPERT_MODEL_PARALLEL_GROUP", {"ep"}),
        ("mesh_dp_shard", {"dp_shard"}),
        ("mesh_dp_replicate", {"dp_replicate"}),
        ("mesh_dp_shard_cp", {"dp_shard", "cp"}),
        ("tp:0", {"tp"}),
        ("default_pg", set()),
        ("EMBEDDING_GROUP", set()),
        ("undefined", set()),
    ],
)
def test_descriptions_name_dimensions(description: str, dimensions: set[str]) -> None:
    assert names.dimensions(description) == dimensions


def test_the_groups_of_megatron_are_of_one_dimension_each() -> None:
    """As Megatron-LM describes those of rank 0 of 16, with TP 2, CP 1, DP 2, PP 4 and experts over 4 ranks."""
    described = {
        (0, 2): ("dp",),
        (0, 1): ("tp",),
        (0, 4, 8, 12): ("pp",),
        (0, 1, 2, 3): ("ep",),
    }
    descriptions = {
        tuple(range(16)): ("INTRA_DISTRIBUTED_OPTIMIZER_INSTANCE_GROUP", "default_pg"),
        (0, 2): ("DATA_PARALLEL_GROUP_WITH_CP",),
        (0, 1, 4, 5, 8, 9, 12, 13): ("MODEL_PARALLEL_GROUP",),
        (0, 1): ("TENSOR_AND_CONTEXT_PARALLEL_GROUP", "TENSOR_MODEL_PARALLEL_GROUP"),
        (0, 4, 8, 12): ("PIPELINE_MODEL_PARALLEL_GROUP",),
        (0, 12): ("EMBEDDING_GROUP",),
        (0, 1, 2, 3): ("EXPERT_MODEL_PARALLEL_GROUP", "TENSOR_AND_DATA_PARALLEL_GROUP_WITH_CP"),
    }
    found = by_description([Group(ranks, said) for ranks, said in descriptions.items()])
    assert found == described


def test_experts_spread_over_the_ranks_of_another_dimension_are_one_as_well() -> None:
    group = Group((0, 1), ("DATA_PARALLEL_GROUP", "EXPERT_MODEL_PARALLEL_GROUP"))
    assert by_description([group]) == {(0, 1): ("dp", "ep")}


_REDUCES = ({"all_reduce": Uses(4, 4)},)
_OF_TWO = ("DATA_PARALLEL_GROUP", "EXPERT_MODEL_PARALLEL_GROUP")


@pytest.mark.parametrize(
    ("group", "pairs", "left"),
    [
        (Group((0, 1), ("mesh_tp",)), (), ()),
        (Group((0, 1), ("mesh_tp",), _REDUCES, ("mesh_tp",)), (), ("tp",)),
        (Group((0, 1), ("mesh_pp",)), {(0, 1)}, ("pp",)),
        (Group((0, 1), ("mesh_pp",)), {(1, 2)}, ()),
        # DDP reduces in the group of all ranks, tensor parallelism has the same ranks and is not used.
        (Group((0, 1), ("default_pg", "mesh_tp"), _REDUCES, ("default_pg",)), (), ()),
        # Nothing says which of two groups of these ranks it is.
        (Group((0, 1), ("default_pg", "mesh_tp"), _REDUCES, ("",)), (), ("tp",)),
        (Group((0, 1), _OF_TWO, _REDUCES, _OF_TWO[:1]), (), ("dp",)),
        (Group((0, 1), _OF_TWO, ({"all_to_all": Uses(4, 2)},), ("",)), (), ("ep",)),
        (Group((0, 1), _OF_TWO, ({"all_to_all": Uses(4, 2)}, *_REDUCES), ("",)), (), ("dp", "ep")),
    ],
)
def test_a_dimension_of_which_nothing_is_recorded_is_none(
    group: Group, pairs: Collection[tuple[int, int]], left: tuple[str, ...]
) -> None:
    found = carrying(by_description([group]), [group], pairs)
    assert found == ({group.ranks: left} if left else {})


def test_groups_that_a_job_does_not_use_give_ranks_no_coordinates() -> None:
    """A framework makes groups for context parallelism and experts too, and the job runs nothing in them."""
    job = eight({"tp": "mesh_tp", "dp": "mesh_dp"})
    unused = {f"ep{rank // 2}": (rank & ~1, rank | 1) for rank in range(8)}
    described = []
    for rank, digest in zip(job.ranks.tolist(), job.digests, strict=True):
        header = digest.header
        cross = tuple(sorted({rank, rank ^ 5}))
        more = {f"ep{rank // 2}": unused[f"ep{rank // 2}"], f"cp{min(cross)}": cross}
        told = {**header.group_descriptions, f"ep{rank // 2}": "mesh_ep", f"cp{min(cross)}": "mesh_cp"}
        header = replace(header, groups={**header.groups, **more}, group_descriptions=told)
        described.append(replace(digest, header=header))
    found = mesh(replace(job, digests=tuple(described)))
    assert [one.name for one in found.dimensions] == ["dp", "pp", "tp"]


@pytest.mark.parametrize(
    ("text", "size", "ranks"),
    [
        ("[0, 4, 8]", 3, (0, 4, 8)),
        ("[3, 7, 11, ...]", 5, (3, 7, 11, 15, 19)),
        ("[0, 4, 9, ...]", 5, ()),
        ("[0, 4, 8, ...]", 3, ()),
        ("[...]", 3, ()),
    ],
)
def test_a_list_of_ranks_that_torch_cut_short_goes_on_in_equal_steps(
    text: str, size: int, ranks: tuple[int, ...]
) -> None:
    (digest,) = digests("rank0 step |1\n      nccl [ar/g]\n      gpu  [a]").values()
    table = digest.collectives
    strings = (*digest.strings, text, "g")
    code = np.full_like(table.group, len(strings) - 1)
    sized = replace(table, group=code, group_ranks=code - 1, group_size=np.full_like(table.group_size, size))
    header = replace(digest.header, groups={})
    found = ranks_of_groups(replace(digest, header=header, strings=strings, collectives=sized))
    assert found == ({"g": ranks} if ranks else {})


@pytest.mark.parametrize(("uses", "dimension"), [((), None), (({"all_reduce": Uses(1, 1)},), ("ep+pp+tp",))])
def test_a_group_that_spans_other_dimensions_is_one_if_it_is_used(
    uses: tuple[dict[str, Uses], ...], dimension: tuple[str, ...] | None
) -> None:
    parts = [
        Group((0, 1), ("TENSOR_MODEL_PARALLEL_GROUP",)),
        Group((0, 1, 2, 3), ("EXPERT_MODEL_PARALLEL_GROUP",)),
        Group((0, 4), ("PIPELINE_MODEL_PARALLEL_GROUP",)),
    ]
    every = Group(tuple(range(8)), ("EXPERT_TENSOR_MODEL_PIPELINE_PARALLEL_GROUP",), uses)
    assert by_description([*parts, every]).get(every.ranks) == dimension


def test_named_groups_make_a_mesh() -> None:
    found = of_eight({"tp": "mesh_tp", "dp": "mesh_dp"})
    assert [(one.name, one.size, one.stride) for one in found.dimensions] == [("dp", 2, 4), ("pp", 2, 2), ("tp", 2, 1)]
    assert [bool(one.inferred) for one in found.dimensions] == [False, True, False]
    assert found.coordinates.tolist() == [[rank >> 2, rank >> 1 & 1, rank & 1] for rank in range(8)]
    assert found.place(5) == "dp 1, pp 0, tp 1"


def test_groups_without_names_show_their_dimension_and_it_is_said() -> None:
    found = of_eight({})
    assert [one.name for one in found.dimensions] == ["dp", "pp", "tp"]
    assert all(one.inferred for one in found.dimensions)


@pytest.mark.parametrize(
    ("ranks", "shared"),
    [
        ({2, 3, 6, 7}, "pp 1"),
        ({4, 5, 6, 7}, "dp 1"),
        ({1, 5}, "pp 0, tp 1"),
        ({0, 3}, ""),
        ({0, 1, 2}, ""),
        (set(range(8)), ""),
        ({6}, ""),
    ],
)
def test_what_ranks_alone_share(ranks: set[int], shared: str) -> None:
    assert of_eight({"tp": "mesh_tp", "dp": "mesh_dp"}).shared(ranks) == shared


def test_experts_over_ranks_that_others_divide_are_no_axis() -> None:
    found = of_eight({"tp": "mesh_tp", "dp": "EXPERT_MODEL_PARALLEL_GROUP"})
    assert {one.name: one.is_axis for one in found.dimensions} == {"pp": True, "tp": True, "ep": True}


def test_a_rank_has_a_place_on_the_only_axis_if_there_are_other_dimensions() -> None:
    """Experts over parts of the ranks of data parallelism, as in a job of dp 8 and ep 2."""
    pairs = tuple((rank, rank + 1) for rank in range(0, 8, 2))
    axis = Dimension("dp", 8, 1, "", is_axis=True, groups=(tuple(range(8)),))
    coordinates = np.array([[rank, rank % 2] for rank in range(8)])
    both = Mesh((axis, Dimension("ep", 2, 1, "", is_axis=False, groups=pairs)), coordinates)
    assert both.place(5) == "dp 5"
    assert Mesh((axis,), coordinates[:, :1]).place(5) == ""


def test_the_json_has_what_each_dimension_communicates() -> None:
    job = eight({"tp": "mesh_tp", "dp": "mesh_dp"})
    found = examination.examine(job, CATALOGUE.values(), {})[0].mesh
    assert found is not None and found.coordinates["5"] == {"dp": 1, "pp": 0, "tp": 1}
    calls = {one.name: one.calls for one in found.dimensions}
    # One AllReduce of gradients, and one of activations in each direction.
    assert calls["dp"] == 1 and calls["tp"] == 2
    # A stage sends activations and receives gradients, or the other way around.
    assert calls["pp"] == 2
    assert all(0 <= (one.exposed_ms or 0) <= (one.transfer_ms or 0) for one in found.dimensions)
    tp = next(one for one in found.dimensions if one.name == "tp")
    step_ms = job.step_ns / 1e6
    assert tp.transfer_ms and tp.transfer_share == pytest.approx(tp.transfer_ms / step_ms)
    # Bytes over time, and a ring of two sends as many as there are.
    assert tp.megabytes and tp.bus_gb_s == pytest.approx(tp.megabytes / tp.transfer_ms)
    said = list(wording.dimensions(found))
    assert f"tp takes {wording.percent(tp.transfer_share)} of the step" in " ".join(said)
    assert "pp is inferred: neighbours send to each other, both ways." in said


@pytest.mark.parametrize(
    ("kind", "described", "owner"),
    [
        ("all_to_all", "", {"ep"}),
        ("all_reduce", "", {"dp"}),
        ("all_reduce", "EXPERT_MODEL_PARALLEL_GROUP", {"ep"}),
    ],
)
def test_of_two_dimensions_with_the_same_ranks_each_has_its_own_collectives(
    kind: str, described: str, owner: set[str]
) -> None:
    drawn = eight({"dp": described} if described else {})
    table = [one for one in communication(drawn) if one.group == "dp0"]
    homes = {name: {0: (0, 4), 4: (0, 4)} for name in ("dp", "ep")}
    assert dimensions_of_traffic(drawn, homes, replace(table[0], kind=kind)) == owner


def test_a_dimension_of_which_one_rank_alone_is_traced_has_no_times() -> None:
    job = eight({"tp": "mesh_tp", "dp": "mesh_dp"}, traced=(0, 1))
    found = examination.examine(job, CATALOGUE.values(), {})[0].mesh
    assert found is not None
    calls = {one.name: one.calls for one in found.dimensions}
    assert calls["tp"] == 2 and calls["dp"] is None
    alone = next(one for one in found.dimensions if one.name == "dp")
    assert (alone.megabytes, alone.wait_ms, alone.transfer_ms, alone.exposed_ms, alone.share) == (None,) * 5
    assert (alone.bus_gb_s, alone.wait_share, alone.transfer_share) == (None,) * 3


def test_a_rank_is_named_with_its_coordinates() -> None:
    frame = Facts(eight({"tp": "mesh_tp", "dp": "mesh_dp"})).get(frame_of)
    assert naming.who([5], frame) == "rank 5 (dp 1, pp 0, tp 1)"
    assert naming.who([2, 3, 6, 7], frame) == "ranks 2, 3, 6 and 7 (all of pp 1)"
    assert slow_link._place(np.array([4, 5]), frame) == "ranks 4 and 5 (all of dp 1, pp 0)"


@pytest.mark.parametrize(
    ("ranks", "nodes", "subject"),
    [
        ((5,), 0, "Rank 5 (dp 1, pp 0, tp 1)"),
        ((5,), 2, "Rank 5 (dp 1, pp 0, tp 1, node1)"),
        ((2, 3, 6, 7), 2, "Ranks 2, 3, 6 and 7 (all of pp 1)"),
        ((2, 5), 2, "Ranks 2 and 5 (node0 and node1)"),
    ],
)
def test_the_headline_says_where_in_the_mesh_ranks_are(ranks: tuple[int, ...], nodes: int, subject: str) -> None:
    given = eight({"tp": "tp", "dp": "dp"})
    given = replace(given, nodes=tuple(f"node{rank * nodes // 8}" if nodes else "" for rank in range(8)))
    fault = Fault(Change(), "high", "", "", "", (), ranks=ranks, steps=(1,))
    said = headline(CATALOGUE["straggler"], fault, 1e6, given, mesh(given))
    assert said is not None and said.subject == subject


@pytest.mark.parametrize(
    ("slow", "groups"),
    [
        # A stage, and a rank elsewhere.
        ({2, 3, 6, 7, 0}, [(2, 3, 6, 7), (0,)]),
        # Ranks that share a place, or two of them, or none.
        ({0, 1, 2, 3}, [(0, 1, 2, 3)]),
        ({1, 5}, [(1, 5)]),
        ({0, 3, 5}, [(0, 3, 5)]),
    ],
)
def test_ranks_that_are_all_of_a_place_are_a_finding_of_their_own(slow: set[int], groups: list[object]) -> None:
    frame = Facts(eight({"tp": "tp", "dp": "dp"})).get(frame_of)
    found = slow_groups(dict.fromkeys(sorted(slow), "slow_device"), np.full(8, 1e6), frame)
    assert [tuple(sorted(group.ranks)) for group in found] == groups


def test_markdown_has_what_each_dimension_communicates() -> None:
    table = engine.examine(eight({"tp": "tp", "dp": "dp"})).mesh
    assert table is not None
    told = markdown._dimensions(table)
    assert re.search(r"^\| tp \| 2 \| 1 \| 2 \| ", told, re.MULTILINE)
    assert re.search(r"^- tp takes [\d.]+ % of the step: ", told, re.MULTILINE)


#: Keys and values go around a ring, in forward and in backward, as those of ring attention do.
_RING = """
    rank#  step     |1
           host     [fwd]                      [sync......]
           autograd               [bwd]
           gpu      [fwd..]       [bwd..]
           nccl     [sNEXT][rPREV][sNEXT][rPREV]
"""


@pytest.mark.parametrize(
    ("after", "rings"),
    [
        ((1, 2, 3, 0), [(0, 1, 2, 3)]),
        ((2, 0, 3, 1), [(0, 2, 3, 1)]),
        ((1, 2, 0, 4, 5, 3), [(0, 1, 2), (3, 4, 5)]),
        # Of different sizes.
        ((1, 2, 0, 4, 5, 6, 3), []),
    ],
)
def test_ranks_that_send_around_a_ring_are_context_parallel(after: tuple[int, ...], rings: list[object]) -> None:
    drawing = "".join(
        _RING.replace("#", str(rank)).replace("NEXT", str(its)).replace("PREV", str(after.index(rank)))
        for rank, its in enumerate(after)
    )
    found = digests(drawing)
    dimensions = mesh(build("job", found, dict.fromkeys(found, ""), len(found))).dimensions
    assert [one.groups for one in dimensions if one.name == "cp"] == ([tuple(rings)] if rings else [])
    assert all(one.inferred for one in dimensions)


@pytest.mark.parametrize(
    ("uses", "trains", "dimension"),
    [
        ({"all_reduce": Uses(6, 6)}, True, "dp"),
        # Once backward is over, by hand.
        ({"all_reduce": Uses(6, 0)}, True, "dp"),
        ({"all_reduce": Uses(8, 4)}, True, "tp"),
        ({"all_reduce": Uses(8, 0)}, False, "tp"),
        # FSDP; an optimizer that shards its states; sequence parallelism.
        ({"all_gather": Uses(8, 4), "reduce_scatter": Uses(4, 4)}, True, "dp_shard"),
        ({"all_gather": Uses(8, 0), "reduce_scatter": Uses(8, 0)}, True, "dp_shard"),
        ({"all_gather": Uses(8, 4), "reduce_scatter": Uses(8, 4)}, True, "tp"),
        ({"all_to_all": Uses(4, 2), "all_reduce": Uses(1, 1)}, True, "ep"),
        ({"broadcast": Uses(4, 0)}, True, ""),
    ],
)
def test_what_runs_in_a_group_shows_its_dimension(uses: dict[str, Uses], trains: bool, dimension: str) -> None:
    assert by_pattern(uses, trains=trains)[0] == dimension


#: Two ranks of ring attention, which both send and receive in one kernel.
_RING_OF_TWO = """
    rank#  step     |1
           host     [fwd]                        [sync......]
           autograd               [bwd]
           gpu      [fwd......]   [bwd......]
           nccl     [sOTHERrOTHER][sOTHERrOTHER]
"""


def test_two_ranks_that_send_to_each_other_at_once_are_a_ring_and_no_pipeline() -> None:
    drawing = "".join(_RING_OF_TWO.replace("#", str(rank)).replace("OTHER", str(1 - rank)) for rank in range(2))
    found = digests(drawing)
    dimensions = mesh(build("job", found, dict.fromkeys(found, ""), 2)).dimensions
    assert [(one.name, one.groups) for one in dimensions] == [("cp", ((0, 1),))]


def test_messages_of_context_parallelism_by_description_are_no_pipeline() -> None:
    """One rank first receives, as a stage does."""
    drawing = "".join(
        stage.replace("#", str(rank)).replace("TP", "tp").replace("DP", "dp").replace("NEXT", str(1 - rank))
        for rank, stage in enumerate((_FIRST, _LAST))
    )
    found = {}
    for rank, digest in digests(drawing).items():
        header = replace(digest.header, groups={"0": (0, 1)}, group_descriptions={"0": "mesh_cp"})
        found[rank] = replace(digest, header=header)
    dimensions = mesh(build("job", found, dict.fromkeys(found, ""), 2)).dimensions
    assert [one.name for one in dimensions] == ["cp"]


@pytest.mark.parametrize(
    ("reduced", "names"),
    [
        # HSDP: shards within nodes, gradients reduced across them.
        ([(0, 2), (1, 3)], ["dp_replicate", "dp_shard"]),
        # The norm of gradients over all ranks, which are one dimension.
        ([(0, 1, 2, 3)], ["dp"]),
    ],
)
def test_gradients_that_are_reduced_across_shards_are_another_dimension(
    reduced: list[tuple[int, ...]], names: list[str]
) -> None:
    shards = {"all_gather": Uses(8, 4), "reduce_scatter": Uses(4, 4)}
    groups = [
        *(Group(ranks, uses=(shards,)) for ranks in ((0, 1), (2, 3))),
        *(Group(ranks, uses=({"all_reduce": Uses(4, 4)},)) for ranks in reduced),
    ]
    assert sorted(name for name, _, _ in _by_pattern(groups, trains=True)) == names


def test_two_process_groups_of_the_same_ranks_show_a_dimension_each() -> None:
    group = Group((0, 1), uses=({"all_to_all": Uses(4, 2)}, {"all_reduce": Uses(4, 4)}))
    assert [name for name, _, _ in _by_pattern([group], trains=True)] == ["ep", "dp"]


#: Rank k of context parallelism attends to k + 1 parts of the sequence, one after the other.
_CAUSAL = """
    rank#  step |1
           gpu  [fwd....]PARTS
           nccl SPACE[ar....END
"""


@pytest.mark.parametrize(
    ("parts", "cause", "cost_ms"),
    [
        # 12, 16, 20 and 24 ms: 18 ms each if split evenly.
        ((1, 2, 3, 4), "causal_split", 6),
        # Not in the order of places: rank 1 has more samples.
        ((1, 3, 1, 1), "more_work", 8),
    ],
)
def test_causal_attention_that_is_split_in_order_rises_with_the_place(
    parts: tuple[int, ...], cause: str, cost_ms: float
) -> None:
    drawing = ""
    for rank, many in enumerate(parts):
        done = 8 + 4 * many
        drawing += (
            _CAUSAL.replace("#", str(rank))
            .replace("PARTS", "[a.]" * many)
            .replace("SPACE", " " * done)
            .replace("END", "." * (24 - done) + "]")
        )
    found = {}
    for rank, digest in digests(repeat(drawing, 3)).items():
        header = replace(digest.header, groups={"0": (0, 1, 2, 3)}, group_descriptions={"0": "mesh_cp"})
        found[rank] = replace(digest, header=header)
    said = engine.examine(build("job", found, dict.fromkeys(found, ""), 4)).findings[0]
    assert (said.rule, said.cause, said.cost_ms) == ("straggler", cause, pytest.approx(cost_ms, rel=0.03))
    assert ("Its work rises with its place along cp (" in said.why) == (cause == "causal_split")
