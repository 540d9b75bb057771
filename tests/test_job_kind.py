"""The kind of a job, told from its operators, annotations, kernels and their structure."""

from __future__ import annotations

import numpy as np
import pytest
from traces import draw, job, ranks

from tb_ddp_doctor import engine, wording
from tb_ddp_doctor.digest.build import digest
from tb_ddp_doctor.findings import JobKind
from tb_ddp_doctor.job import job_kind
from tb_ddp_doctor.job.build import build
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.job.rl_roles import of_roles
from tb_ddp_doctor.replay.comparable import comparable
from tb_ddp_doctor.trace import program_names
from tb_ddp_doctor.trace.program_names import Iteration, Role
from tb_ddp_doctor.trace.reader import decode

TRAINING = """
    rank# step     |1
          host     [fwd..]
          autograd        [bwd.......]
          gpu      [fwd..........][bwd.]
          nccl                [ar.......]
"""
ROLLOUT = """
    rank# host [attend..][attend..]
          gpu  [attend..][attend..]
"""


def named(text: str, changes: dict[str, str], **options: object) -> Job:
    """The drawn job with other names of operators and kernels."""
    digests = {}
    for rank, data in draw(text, **options).items():
        for name, other in changes.items():
            data = data.replace(f'"{name}'.encode(), f'"{other}'.encode())
        digests[rank] = digest(decode([data], f"rank{rank}.json"))
    return build("drawn", digests, {}, len(digests))


def test_a_backward_pass_is_training() -> None:
    assert job_kind.kind(job(ranks(TRAINING, TRAINING))) == "training"


@pytest.mark.parametrize(
    "kernel",
    [
        "cudnn_generated_fort_native_sdpa_sm100_flash_bprop_f16_knob_2",
        "void at::native::batch_norm_backward_kernel<float>",
        "triton_red_fused_native_layer_norm_backward_3",
        "igemm_wrw_gtcx2_nhwc_bf16",
        "void multi_tensor_apply_kernel<FusedAdamMathFunctor<float, 4>>",
    ],
)
def test_kernels_of_a_graph_tell_that_it_trains(kernel: str) -> None:
    found = named(ranks(ROLLOUT), {"attend_kernel": kernel, "attend": "aten::copy_"}, world_size=1)
    assert job_kind.kind(found) == "training"


@pytest.mark.parametrize(
    "kernel",
    [
        "cutlass_cudnn_infer::Kernel<cutlass_tensorop_s1688dgrad_optimized_tf32>",
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<TensorListMetadata, CopyFunctor>",
        "nvjet_sm100_tst_128x256_64x6_2x1_2cta_v_bz_TNT",
    ],
)
def test_kernels_that_inference_has_too_are_no_training(kernel: str) -> None:
    assert not program_names.is_training_kernel(kernel)


@pytest.mark.parametrize("name", ["split_embedding_codegen_forward", "fbgemm_gpu::permute_2D_sparse_data"])
def test_sharded_embedding_tables_make_a_recommender_which_trains(name: str) -> None:
    found = named(ranks(TRAINING, TRAINING), {"fwd": name})
    assert job_kind.kind(found) == "recommender"
    assert job_kind.trains(found)


@pytest.mark.parametrize("name", ["vllm::unified_kv_cache_update", "void paged_attention_kernel<1>"])
def test_attention_to_a_cache_in_pages_is_a_server(name: str) -> None:
    assert job_kind.kind(named(ranks(ROLLOUT), {"attend": name}, world_size=1)) == "inference server"


def test_a_denoising_loop_is_diffusion() -> None:
    text = ranks("""
        rank# host   [own_denoise_step........]
              within [op][op]
              gpu      [op...................]
    """)
    assert job_kind.kind(job(text, world_size=1)) == "diffusion"


def test_a_few_kernels_over_and_over_are_a_benchmark() -> None:
    text = f"rank0 host {'[mm]' * 30}\n      gpu  {'[mm]' * 30}"
    found = job(text, world_size=1)
    assert job_kind.kind(found) == "benchmark"
    diagnosis = engine.examine(found)
    assert (diagnosis.kind, diagnosis.verdict) == ("benchmark", "unknown")
    assert "This program is a benchmark and does not train." in diagnosis.headline


def test_too_few_runs_are_no_benchmark() -> None:
    text = f"rank0 host {'[mm]' * 9}\n      gpu  {'[mm]' * 9}"
    assert job_kind.kind(job(text, world_size=1)) == "unknown"


# ----------------------------------------------------------------------------------------------- reinforcement learning

#: A process that generates with the same steps as those that train.
ROLE = """
    rank# step |1
          host [attend...............]
          gpu  [attend...............]
          nccl                [ar....]
"""
#: A process that does all roles in turn, each marked.
IN_TURN = """
    rank# step     |1
          host     [own_generate_sequences......][own_compute_log_prob.......][own_update_actor...........]
          within   [attend...................]   [fwd....................]    [fwd......]
          autograd                                                                       [bwd........]
          gpu      [attend......................][fwd........................][fwd.......][bwd.........]
"""


def test_ranks_that_generate_beside_ranks_that_train_are_rl_with_a_role_each() -> None:
    found = named(ranks(TRAINING, ROLE), {"attend": "vllm::unified_attention"})
    assert job_kind.kind(found) == "RL"
    assert job_kind.trains(found)
    assert [job_kind.role(one) for one in found.digests] == ["update", "rollout"]
    said = of_roles(found) or ""
    assert "rollout on rank 1 (computes " in said
    assert said.index("rollout on rank 1") < said.index("update on rank 0")
    assert said in engine.examine(found).headline or any(said == one.message for one in engine.examine(found).warnings)


def test_roles_of_one_process_in_turn_are_told_by_its_marks() -> None:
    found = job(ranks(IN_TURN, IN_TURN))
    assert job_kind.kind(found) == "RL"
    assert set(found.digests[0].contents.roles) == {"rollout", "log-prob", "update"}
    assert of_roles(found) == (
        "This job does reinforcement learning, all ranks in turn. Of the record: rollout 34 %, log-prob 33 % and "
        "update 33 %."
    )


def test_a_process_that_trains_and_generates_from_a_cache_in_pages_is_rl() -> None:
    assert job_kind.kind(named(ranks(TRAINING, TRAINING), {"fwd": "_C_cache_ops::reshape_and_cache_flash"})) == "RL"


def test_ranks_of_different_roles_are_not_compared() -> None:
    apart = named(ranks(TRAINING, ROLE), {"attend": "vllm::unified_attention"})
    alike = job(ranks(TRAINING, ROLE))
    same = np.zeros(apart.step_index.shape, np.int64)
    assert [len(set(comparable(one, same).same[:, 0].tolist())) for one in (apart, alike)] == [2, 1]


@pytest.mark.parametrize(
    ("annotation", "role"),
    [
        ("generate_sequences", Role.ROLLOUT),
        ("rollout_step", Role.ROLLOUT),
        ("compute_rewards", Role.REWARD),
        ("compute_ref_log_prob", Role.LOG_PROB),
        ("update_actor", Role.UPDATE),
        ("critic_update", Role.UPDATE),
        ("broadcast_weights", Role.WEIGHT_SYNC),
        ("update_weights_from_distributed", Role.WEIGHT_SYNC),
        ("sync_rollout_weights", Role.WEIGHT_SYNC),
        ("_broadcast_to_vllm", Role.WEIGHT_SYNC),
        ("## forward ##", None),
        ("Optimizer.step#AdamW.step", None),
        ("DistributedDataParallel.forward", None),
    ],
)
def test_roles_by_their_marks(annotation: str, role: Role | None) -> None:
    assert program_names.role(annotation) is role


@pytest.mark.parametrize(
    ("annotation", "found"),
    [
        ("execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk32785)", Iteration(0, 32)),
        ("execute_context_3(4096)_generation_12(12)", Iteration(3, 12)),
        ("execute_new_2_cached_7", Iteration(2, 7)),
        ("step[DECODE bs=32]", Iteration(0, 32)),
        ("step[EXTEND bs=4 toks=812]", Iteration(4, 0)),
        ("step[MIXED bs=5]", Iteration(1, 4)),
        ("ProfilerStep#3", None),
        ("execute_model", None),
    ],
)
def test_marks_of_servers_tell_what_an_iteration_works_on(annotation: str, found: Iteration | None) -> None:
    assert program_names.iteration(annotation) == found


def test_every_kind_has_words() -> None:
    kinds: tuple[JobKind, ...] = ("training", "RL", "unknown")
    assert [wording.kind(one) for one in kinds] == ["training", "RL", "unknown kind of job"]
