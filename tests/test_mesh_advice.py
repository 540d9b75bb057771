"""What could be better about each dimension of parallelism, on drawn jobs whose numbers follow from the drawing."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest
import traces
from msgspec.structs import replace
from test_plan_mesh import ACROSS, drawn
from test_plan_sharding import FSDP

from tb_ddp_doctor import engine, wording
from tb_ddp_doctor.account import mesh_advice
from tb_ddp_doctor.account.expert_tokens import ExpertTokens
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.report import markdown

#: A step with a forward and a backward pass, four exchanges of tokens and an AllReduce of gradients of all ranks.
EXCHANGES = """
    rank# step     |1
          host     [fwd][a2aa/ep][a2ab/ep]                           [sync............]
          autograd                        [bwd][a2ac/ep][a2ad/ep][ar/dp]
          gpu      [fwd....]                                 [bwd..]
          nccl              [a2aa/ep@A][a2ab/ep@B]                  [a2ac/ep@C][a2ad/ep@D][ar/dp@9]
"""


def advice(job: Job) -> dict[str, str]:
    """What is said of each dimension."""
    table = engine.examine(job).mesh
    assert table is not None
    return {one.name: " ".join(one.advice) for one in table.dimensions}


def test_tensor_parallelism_without_sequence_parallelism_is_said() -> None:
    found = advice(drawn())
    assert found["tp"].startswith("tp reduces whole activations: with sequence parallelism")
    assert "for 1 / 2 of the sequence" in found["tp"] and "arXiv 2205.05198" in found["tp"]


def test_what_sequence_parallelism_saves_is_predicted_from_kernels_that_it_splits() -> None:
    job = drawn()
    assert "No kernel here has the name of a layer's norm" in advice(job)["tp"]
    named = tuple(
        replace(
            one, strings=tuple("layer_norm_grad_input_kernel" if text == "bwd_kernel" else text for text in one.strings)
        )
        for one in job.digests
    )
    # Backward, 9 ms on each of two stages: without half of it both are 4.5 ms shorter, one after the other.
    assert (
        "Kernels of norms and dropout take 9.0 ms of a step here: without 1 / 2 of that it is predicted to be 9.0 ms "
        "shorter." in advice(replace(job, digests=named))["tp"]
    )


@pytest.mark.parametrize(
    ("kernel", "splits"),
    [
        ("void transformer_engine::normalization::ln_bwd_tuned_kernel<>()", True),
        ("void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float>", True),
        ("void at::native::(anonymous namespace)::GammaBetaBackwardCUDAKernelTemplate<c10::BFloat16>", True),
        ("triton_red_fused__to_copy_native_dropout_3", True),
        ("fused_add_rms_norm_kernel", True),
        ("void at::native::batch_norm_collect_statistics_kernel<>", False),
        ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, NormTwoOps<float>>>", False),
        ("void multi_tensor_apply_kernel<TensorListMetadata<1>, L2NormFunctor<float>>", False),
        ("kln_fwd", False),
    ],
)
def test_kernels_of_norms_and_dropout_are_told_by_their_names(kernel: str, splits: bool) -> None:
    assert bool(mesh_advice._OF_SEQUENCE.search(kernel)) == splits


def test_tensor_parallelism_across_nodes_has_its_cost_and_other_meshes() -> None:
    found = advice(drawn(ACROSS, "NVIDIA H100 80GB HBM3"))["tp"]
    # Two AllReduces of 10 ms with nothing beside them.
    assert "tp goes across nodes, and 20.0 ms of it a step are exposed on links between nodes" in found
    # Without tp: test_plan_mesh has both by hand.
    asked = {text: float(ms) for text, ms in re.findall(r"Mesh (\S+) is predicted to take (\d+\.\d) ms", found)}
    assert asked == {"dp=4,tp=1,pp=2": pytest.approx(80, rel=0.03), "dp=2,tp=1,pp=4": pytest.approx(103, rel=0.03)}
    assert "now 105.0" in found


def test_a_share_beyond_what_a_guide_reports_is_said_with_its_source(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "arXiv 1909.08053" not in advice(drawn())["tp"]
    # tp exposes 20 of 105 ms.
    monkeypatch.setattr(mesh_advice, "_MOST_TENSOR", 0.18)
    found = advice(drawn())["tp"]
    assert "tp exposes 19 % of the step: with 8 ranks on a node Megatron-LM lost 18 % (arXiv 1909.08053" in found
    assert "Mesh dp=4,tp=1,pp=2 is predicted to take" in found


def test_a_pipeline_has_its_bubble_its_messages_and_what_more_micro_batches_save() -> None:
    assert advice(drawn())["pp"] == (
        # Each stage computes 18 ms. The first one is in messages for 6 and 44 ms, the last one for 25 and 6.
        "pp has 2 stages and 1 micro-batch: its bubble, (p - 1) / m of what a stage computes, is 18.0 ms, of which "
        "twice the micro-batches would save 9.0 ms. Sends and receives have nothing beside them for 40.5 ms, in 12.0 "
        "ms of which data moves: that is not overlapped."
    )


def test_data_parallelism_that_shards_has_its_stage_of_zero() -> None:
    sharded = traces.job(traces.ranks(FSDP, FSDP, steps=3))
    assert advice(sharded)["dp"] == (
        "dp shards as ZeRO stage 3: backward gathers parameters again, in 3 units; forward gathers 0 ahead, backward 0."
    )
    kept = re.sub(r"\[ag[56][^]]*\]", lambda block: " " * len(block[0]), FSDP)
    assert (
        "dp shards as ZeRO stage 2: parameters stay gathered after forward"
        in advice(traces.job(traces.ranks(kept, kept, steps=3)))["dp"]
    )


def test_an_optimizer_that_gathers_what_it_updated_is_stage_1() -> None:
    step = """
        rank# step     |1
              host     [fwd]                  [opt][ag]  [sync...................]
              autograd      [bwd][rs1][b2][rs2]
              gpu      [fwd..][bwd..][b2...]          [opt]
              nccl                   [rs1@4] [rs2@4]       [ag1@8................]
    """.replace("[ag]", "[ag1]")
    assert advice(traces.job(traces.ranks(step, step)))["dp"] == (
        "dp shards the optimizer's states, as ZeRO stage 1 does (a distributed optimizer): gradients go by "
        "reduce-scatters, updated parameters by all-gathers, 1 a step."
    )
    one = step.replace("@8", "@4").replace("[rs1]", "     ").replace("[rs1@4]", "       ")
    # As many gathers as scatters, of the same size: what FSDP does is to gather first.
    assert "ZeRO stage 1" in advice(traces.job(traces.ranks(one, one)))["dp"]


def exchanging(sizes: Mapping[int, str]) -> str:
    """Ranks whose four exchanges have these sizes, millions of elements, a digit each."""
    text = ""
    for rank, four in sizes.items():
        step = EXCHANGES.replace("#", str(rank))
        for letter, size in zip("ABCD", four, strict=True):
            step = step.replace(f"@{letter}]", f"@{size}]")
        text += step
    return traces.repeat(text, 3)


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        (
            {0: "4444", 1: "4444"},
            "All parts of AllToAlls have 4,000,000 elements, as where tokens are padded to a capacity, and dropped",
        ),
        (
            {0: "4343", 1: "2434"},
            "No part of an AllToAll has more than 4,000,000 elements, which 50 % of the parts have",
        ),
        ({0: "4567", 1: "2222"}, ""),
    ],
)
def test_sizes_tell_where_a_capacity_pads_or_drops_tokens(sizes: dict[int, str], said: str) -> None:
    found = advice(traces.job(exchanging(sizes)))["ep"]
    assert found.startswith(said) if said else found == ""


#: The same step with a router, the choice of experts, what is sent, and the experts' products.
EXPERTS = """
    rank# step     |1
          host     [mm][gather][index_select][a2aa/ep][_grouped_mm]                        [sync............]
          autograd                                                 [bwd][a2ab/ep][ar/dp]
          gpu      [mm][gather][index_select]         [_grouped_mm]              [bwd..]
          nccl                               [a2aa/ep@A]                [a2ab/ep@B]       [ar/dp@9]
"""
ROUTED = "The router sends each of a rank's 1,000 tokens to 2 of 8 experts, 2,000 rows"
TYPES = {"mm": ["float", "float"], "gather": ["float", "Scalar", "long int", "Scalar"]}
TYPES |= {"index_select": ["float", "Scalar", "long int"], "_grouped_mm": ["float", "float", "int"]}


def experts(sent: list[int] | None, rows: int | None, top: int = 2, sizes: tuple[str, str] = ("45", "23")) -> str:
    """What is said of two ranks with 1,000 tokens of width 64 and four of eight experts each."""
    dims = {
        "mm": [[1000, 64], [64, 8]],
        "gather": [[1000, 8], [], [1000, top], []],
        "index_select": [[1000, 64], [], sent or []],
        "_grouped_mm": [[rows or 0, 64], [4, 64, 256], [4 if rows else 3]],
    }
    dims = {
        name: one for name, one in dims.items() if (name, sent) != ("index_select", None) and (rows or name[0] != "_")
    }
    text = "".join(
        EXPERTS.replace("#", str(rank)).replace("@A", f"@{one[0]}").replace("@B", f"@{one[1]}")
        for rank, one in enumerate(sizes)
    )
    return advice(traces.job(traces.repeat(text, 3), dims=dims, types=TYPES)).get("ep", "")


@pytest.mark.parametrize(
    ("sent", "rows", "said"),
    [
        (
            [1800],
            2400,
            f"{ROUTED}, of which 1,800 are sent: 200 "
            "(10 %) are dropped. Experts multiply 2,400 rows, on the mean rank: 600 (25 %) are padding.",
        ),
        (
            [2000],
            2000,
            f"{ROUTED}, and all are sent: none is dropped.",
        ),
        (
            [2500],
            2500,
            f"{ROUTED}, and 2,500 are sent: at least 500 (20 %) are padding.",
        ),
        (
            None,
            2500,
            f"{ROUTED}. Experts multiply 2,500 rows, on the mean rank: at least 500 (20 %) are padding.",
        ),
        (
            None,
            1600,
            f"{ROUTED}. Experts multiply 1,600 rows, on the mean rank: at least 400 (20 %) are dropped.",
        ),
        # Nothing shows how many experts there are.
        ([1800], None, ""),
    ],
)
def test_shapes_tell_how_many_tokens_are_dropped_and_padded(
    sent: list[int] | None, rows: int | None, said: str
) -> None:
    assert experts(sent, rows) == said


def test_where_shapes_do_not_tell_how_many_experts_a_token_has_nothing_is_said() -> None:
    assert experts([1800], 2400, top=8) == ""


def test_rows_that_equal_exchanges_send_are_their_elements() -> None:
    """Four exchanges of 128,000 elements: 2,000 rows of 64."""
    found = ExpertTokens(tokens=1000, top=2, experts=8, hidden=64, sent=0, multiplied=2200)
    assert [*found.said(128_000 / 64)] == [
        f"{ROUTED}, and all are sent: none is dropped.",
        "Experts multiply 2,200 rows, on the mean rank: 200 (9.1 %) are padding.",
    ]


def test_it_stands_below_the_table_of_dimensions_and_in_markdown() -> None:
    found = engine.examine(drawn())
    assert found.mesh is not None
    sentences = list(wording.dimensions(found.mesh))
    assert any(one.startswith("tp reduces whole activations") for one in sentences)
    assert "tp reduces whole activations" in markdown._dimensions(found.mesh)


def test_collectives_are_counted_in_one_group() -> None:
    """Two groups of data parallelism, each with one all-gather a step."""
    names = {"rs1@4": "rs1/g#@4", "ag1@8": "ag1/g#@8", "[rs1]": "[rs1/g#]", "[ag1]": "[ag1/g#]"}
    step = """
        rank@  step     |1
               host     [fwd]                  [opt][ag1]    [sync.......................]
               autograd      [bwd][rs1]
               gpu      [fwd..][bwd..]                 [opt]
               nccl                   [rs1@4...]            [ag1@8................]
    """
    for short, long in names.items():
        step = step.replace(short, long)
    text = "".join(step.replace("rank@", f"rank{rank}").replace("g#", f"g{rank // 2}") for rank in range(4))
    assert "updated parameters by all-gathers, 1 a step." in advice(traces.job(traces.repeat(text, 3)))["dp"]
