"""The kind of a job, told from its operators, annotations, kernels and their structure."""

from __future__ import annotations

import re

import numpy as np
import pytest
from msgspec.structs import replace
from traces import draw, job, ranks

from tb_ddp_doctor import engine, wording
from tb_ddp_doctor.digest.build import digest
from tb_ddp_doctor.findings import JobKind
from tb_ddp_doctor.job import job_kind
from tb_ddp_doctor.job.build import build
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.job.rl_roles import of_roles
from tb_ddp_doctor.replay.comparable import comparable
from tb_ddp_doctor.trace import program_names, role_names
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


@pytest.mark.parametrize(
    "name",
    [
        "void at::native::(anonymous namespace)::EmbeddingBag_updateOutputKernel_sum_mean<float, long>",
        "DynamicEmbeddingBagFunction",
        "void HugeCTR::embedding::multi_to_one_reduce_final<float>",
    ],
)
def test_other_tables_of_recommenders_make_one(name: str) -> None:
    assert job_kind.kind(named(ranks(TRAINING, TRAINING), {"fwd": name})) == "recommender"


def lookups(tables: int, layers: int) -> Job:
    """A training job that looks up so many tables and multiplies so many matrices in each of three steps."""
    forward = "[row]" * tables + "[mm]" * layers
    backward = "[bmm]" * 2 * layers
    text = f"""
        rank# step     |1
              host     {forward}
              autograd {" " * len(forward)}{backward}
              gpu      {forward}{backward}
    """
    names = {"aten::row": "aten::embedding", "mm_kernel": "nvjet_tst_64x8", "bmm_kernel": "nvjet_tst_8x8"}
    return named(ranks(text), names | {"row_kernel": "vectorized_gather_kernel"}, world_size=1)


def test_who_looks_up_many_tables_for_few_layers_is_a_recommender() -> None:
    assert job_kind.kind(lookups(12, 5)) == "recommender"


def test_a_model_of_language_looks_up_few_tables_for_many_layers() -> None:
    assert job_kind.kind(lookups(7, 12)) == "training"
    # Two tables in three steps are too few to tell.
    assert job_kind.kind(lookups(2, 1)) == "training"


@pytest.mark.parametrize("name", ["vllm::unified_kv_cache_update", "void paged_attention_kernel<1>"])
def test_attention_to_a_cache_in_pages_is_a_server(name: str) -> None:
    assert job_kind.kind(named(ranks(ROLLOUT), {"attend": name}, world_size=1)) == "inference server"


@pytest.mark.parametrize("name", ["RegisterPostBackwardFunction", "_DDPSink"])
def test_what_forward_prepares_for_a_backward_pass_is_training(name: str) -> None:
    assert job_kind.kind(named(ranks(ROLLOUT), {"aten::attend": name}, world_size=1)) == "training"


def test_a_denoising_loop_is_diffusion() -> None:
    text = ranks("""
        rank# host   [own_denoise_step........]
              within [op][op]
              gpu      [op...................]
    """)
    assert job_kind.kind(job(text, world_size=1)) == "diffusion"


@pytest.mark.parametrize(
    "module", ["FluxTransformer2DModel_0", "UNet2DConditionModel_0", "AutoencoderKLWan_0", "DiT_0", "MMDiT_1"]
)
def test_modules_of_diffusion_models_are_diffusion(module: str) -> None:
    assert program_names.program(f"nn.Module: {module}") is program_names.Program.DIFFUSION


@pytest.mark.parametrize("module", ["UNet_0", "VisionTransformer_0", "Dithering_0", "Autoencoder_0"])
def test_modules_of_others_are_no_diffusion(module: str) -> None:
    assert program_names.program(f"nn.Module: {module}") is None


def test_a_few_kernels_of_a_server_are_no_benchmark() -> None:
    kernel = "void turbomind::attention_kernel<turbomind::DecodingCtaMap>"
    text = f"rank0 host {'[mm]' * 30}\n      gpu  {'[mm]' * 30}"
    assert job_kind.kind(named(text, {"mm": kernel}, world_size=1)) == "inference server"


def test_a_few_kernels_over_and_over_are_a_benchmark() -> None:
    text = f"rank0 host {'[mm]' * 30}\n      gpu  {'[mm]' * 30}"
    found = job(text, world_size=1)
    assert job_kind.kind(found) == "benchmark"
    diagnosis = engine.examine(found)
    assert (diagnosis.kind, diagnosis.verdict) == ("benchmark", "unknown")
    assert "This program is a benchmark and does not train." in diagnosis.headline


#: Three collectives of five kinds, with something that fills their buffers.
COLLECTIVES = "rank# host [fill]" + " " * 60 + "[fill]\n      gpu  [fill]" + " " * 60 + "[fill]\n      nccl       "
COLLECTIVES += "".join(f"[{kind}]" * 5 for kind in ("ar", "ag", "rs", "bc"))


def test_a_sweep_of_collectives_is_a_benchmark() -> None:
    found = job(ranks(COLLECTIVES, COLLECTIVES))
    assert job_kind.kind(found) == "benchmark"
    assert "compute kernels per trace" in engine.examine(found).headline


def test_collectives_beside_products_are_no_benchmark() -> None:
    found = named(ranks(COLLECTIVES, COLLECTIVES), {"fill_kernel": "nvjet_tst_64x8"})
    assert job_kind.kind(found) == "unknown"


def test_products_of_many_sizes_are_a_benchmark() -> None:
    kinds = "".join(f"[{'mmnopq'[one]}]" * 5 for one in range(6))
    sizes = {f"{each}_kernel": f"nvjet_tst_{each}4x8" for each in "mnopq"}
    assert job_kind.kind(named(f"rank0 host {kinds}\n      gpu  {kinds}", sizes, world_size=1)) == "benchmark"


def test_a_model_of_few_kinds_of_kernels_is_no_benchmark() -> None:
    """It has many kinds of operators."""
    text = "".join(f"[{chr(97 + one)}]" for one in range(22)) + "[mm]" * 30
    found = job(f"rank0 host {text}\n      gpu  {' ' * 66}{'[mm]' * 30}", world_size=1)
    assert job_kind.kind(found) == "inference"


def test_a_rank_with_collectives_alone_is_of_the_others_kind() -> None:
    alone = COLLECTIVES.replace("rank#", "rank1")
    assert job_kind.kind(job(ranks(TRAINING) + alone)) == "training"


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


def test_shares_of_roles_are_of_the_whole_record_and_not_of_its_steps() -> None:
    """Without a ProfilerStep the last round is of no step, as far as it goes."""
    unmarked = re.sub(r"rank# step.*\n +", "rank# ", IN_TURN)
    found = job(ranks(unmarked, unmarked, steps=3))
    assert len(found.steps) == 2
    assert "Of the record: rollout 34 %, log-prob 33 % and update 33 %." in (of_roles(found) or "")


def test_a_rank_that_trains_and_marks_the_sync_alone_updates() -> None:
    (digest,) = job(ranks(TRAINING)).digests
    synced = replace(digest, contents=replace(digest.contents, roles={Role.WEIGHT_SYNC.value: 10_000_000}))
    assert job_kind.role(synced) == Role.UPDATE.value
    # Nothing else tells what this one does.
    unknown = replace(synced, contents=replace(synced.contents, program=program_names.Program.UNKNOWN.value))
    assert job_kind.role(unknown) == Role.WEIGHT_SYNC.value


def test_a_bare_generate_is_a_rollout_beside_other_roles() -> None:
    in_turn = IN_TURN.replace("own_generate_sequences......", "own_generate................")
    found = job(ranks(in_turn, in_turn))
    assert job_kind.kind(found) == "RL"
    assert set(found.digests[0].contents.roles) == {"rollout", "log-prob", "update"}


def test_a_bare_generate_beside_weights_that_are_loaded_is_no_rl() -> None:
    """What inference marks."""
    text = """
        rank# step   |1
              host   [own_load_weights......][own_generate..............]
              within [fwd..............]     [attend................]
              gpu    [fwd...................][attend....................]
    """
    found = job(ranks(text, text))
    assert set(found.digests[0].contents.roles) == {"weight sync"}
    assert job_kind.kind(found) != "RL"


#: A process that computes log-probabilities and trains, seen by its Python functions.
BY_FUNCTIONS = """
    rank# step     |1
          host     [fwd............][fwd............]
          autograd                                   [bwd............]
          gpu      [fwd............][fwd............][bwd............]
          python   [report.........][step............................]
"""
SLIME = {
    "tools/report.py(12): report": "/root/slime/slime/backends/megatron_utils/actor.py(301): compute_log_prob",
    "train.py(4): step": "/root/slime/slime/backends/megatron_utils/model.py(520): train",
}
VERL = {
    "tools/report.py(12): report": "verl/workers/fsdp_workers.py(801): generate_sequences",
    "train.py(4): step": "verl/workers/fsdp_workers.py(700): update_actor",
}


def test_functions_of_trainers_tell_roles_where_nothing_is_marked() -> None:
    slime, verl = (named(ranks(BY_FUNCTIONS, BY_FUNCTIONS), names) for names in (SLIME, VERL))
    assert set(slime.digests[0].contents.roles) == {"log-prob", "update"}
    assert job_kind.role(slime.digests[0]) == "update"
    # With nobody who generates it trains, as far as this shows.
    assert job_kind.kind(slime) == "training"
    assert (job_kind.kind(verl), set(verl.digests[0].contents.roles)) == ("RL", {"rollout", "update"})


def test_functions_of_the_same_names_elsewhere_tell_no_roles() -> None:
    own = {drawn: name.replace("slime", "mine").replace("verl", "mine") for drawn, name in (SLIME | VERL).items()}
    found = named(ranks(BY_FUNCTIONS, BY_FUNCTIONS), own)
    assert found.digests[0].contents.roles == {}
    assert job_kind.kind(found) == "training"


@pytest.mark.parametrize(
    ("function", "role"),
    [
        ("/opt/openrlhf/trainer/ray/ppo_actor.py(480): broadcast_to_vllm", Role.WEIGHT_SYNC),
        ("openrlhf/trainer/ray/ppo_actor.py(120): ppo_train", Role.UPDATE),
        ("C:\\verl\\workers\\megatron_workers.py(9): compute_rm_score", Role.REWARD),
        # It calls what computes log-probabilities, and what trains.
        ("slime/backends/megatron_utils/actor.py(350): train_actor", None),
        ("slime/backends/megatron_utils/actor.py(320): train", None),
        ("slime/backends/megatron_utils/model.py(520): train", Role.UPDATE),
        ("verl/utils/model.py(3): train", None),
        ("my_verl/workers.py(3): update_actor", None),
        ("verl.py(3): update_actor", None),
        ("<built-in method update_actor>", None),
    ],
)
def test_roles_by_functions_of_trainers(function: str, role: Role | None) -> None:
    assert role_names.role_of_function(function) is role


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
        ("train_actor", Role.UPDATE),
        ("actor_train_step", Role.UPDATE),
        ("ppo_update", Role.UPDATE),
        ("dtensor_policy_worker_v2/train", Role.UPDATE),
        ("megatron_policy_worker/train", Role.UPDATE),
        ("megatron_policy_worker/generate", Role.ROLLOUT),
        ("vllm_generation_worker/generate", Role.ROLLOUT),
        ("rollout_generate", Role.ROLLOUT),
        ("vLLM.generate", Role.ROLLOUT),
        ("policy_worker/get_reference_policy_logprobs", Role.LOG_PROB),
        ("fsdp_engine.compute_logp", Role.LOG_PROB),
        ("ref_log_probs", Role.LOG_PROB),
        ("compute_rm_score", Role.REWARD),
        ("vllm_internal_worker_extension/update_weights_via_ipc_zmq", Role.WEIGHT_SYNC),
        ("stream_weights_via_http", Role.WEIGHT_SYNC),
        ("generate", None),
        ("generate_graph", None),
        ("train_step", None),
        ("train_policyholder_model", None),
        ("backlogp", None),
        ("## forward ##", None),
        ("Optimizer.step#AdamW.step", None),
        ("DistributedDataParallel.forward", None),
    ],
)
def test_roles_by_their_marks(annotation: str, role: Role | None) -> None:
    assert role_names.role(annotation) is role


@pytest.mark.parametrize(
    ("annotation", "found"),
    [
        ("execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk32785)", Iteration(0, 32)),
        ("execute_context_3(4096)_generation_12(12)", Iteration(3, 12)),
        ("execute_new_2_cached_7", Iteration(2, 7)),
        ("step[DECODE bs=32]", Iteration(0, 32)),
        ("step[EXTEND bs=4 toks=812]", Iteration(4, 0)),
        ("step[MIXED bs=5]", Iteration(1, 4)),
        ("step[TARGET_VERIFY bs=8]", Iteration(0, 8)),
        ("step[IDLE bs=0]", Iteration(0, 0)),
        ("[Executor] _forward_step 12587: 2 ctx reqs, 1000 ctx tokens, 18 gen reqs", Iteration(2, 18)),
        ("[Executor] _forward_step: 0 ctx reqs, 18 gen reqs", Iteration(0, 18)),
        ("ProfilerStep#3", None),
        ("execute_model", None),
    ],
)
def test_marks_of_servers_tell_what_an_iteration_works_on(annotation: str, found: Iteration | None) -> None:
    assert program_names.iteration(annotation) == found


@pytest.mark.parametrize(
    ("kernel", "found"),
    [
        ("void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<x> > >", True),
        ("void pytorch_flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128, 64> >(Flash_fwd_params)", True),
        ("void flash::flash_fwd_splitkv_mla_fp8_sparse_kernel<KernelTraits<512> >", True),
        ("void flashinfer::mla::hopper::BatchMLAPageAttentionHopperKernel<KernelTraits<true> >", True),
        ("fmhaSm100fKernel_QkvBfloat16OBfloat16H128PagedKvCausalP32VarSeqQ8Kv128StaticSwapsAbForGen", True),
        ("kernel_unified_attention_2d", True),
        ("_fwd_grouped_kernel_stage1", True),
        ("nvjet_tst_64x8_64x16_4x1_v_bz_TNT", False),
        ("void at::native::(anonymous namespace)::cunn_SoftMaxForward<4, float, float, float>", False),
        ("fused_moe_kernel", False),
        ("void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16>", False),
    ],
)
def test_kernels_of_attention_by_their_names(kernel: str, *, found: bool) -> None:
    assert program_names.attends(kernel) is found


def test_vllm_runs_a_dummy_batch_on_a_rank_without_requests() -> None:
    assert program_names.runs_without_requests("vllm/v1/worker/gpu_worker.py(612): execute_dummy_batch")
    assert not program_names.runs_without_requests("vllm/v1/worker/gpu_worker.py(580): execute_model")
    assert not program_names.runs_without_requests("mine/worker.py(612): execute_dummy_batch")


#: Forward passes of a model that is split over two ranks: many kinds of operators, and an AllReduce.
SPLIT = f"""
    rank# step |1
          host {"".join(f"[op{chr(97 + i)}]" for i in range(24))}[ar]
          gpu  {" " * 60}[opa........]
          nccl {" " * 100}[ar]
"""


def with_sequence_numbers(text: str) -> Job:
    """The drawn job, all of whose operators made a node for a backward pass."""
    digests = {}
    for rank, data in draw(text).items():
        trace = decode([data], f"rank{rank}.json")
        digests[rank] = digest(replace(trace, events=replace(trace.events, sequence=np.arange(len(trace.events)))))
    return build("drawn", digests, {}, len(digests))


def test_forward_passes_that_communicate_are_inference_where_gradients_are_off() -> None:
    text = ranks(SPLIT, SPLIT)
    assert job_kind.kind(job(text)) == "inference"
    assert job_kind.kind(with_sequence_numbers(text)) == "unknown"


def test_every_kind_has_words() -> None:
    kinds: tuple[JobKind, ...] = ("training", "RL", "unknown")
    assert [wording.kind(one) for one in kinds] == ["training", "RL", "unknown kind of job"]


@pytest.mark.parametrize(
    ("mark", "said"),
    [
        ("context_0_generation_8", "In one iteration of 15.0 ms (decode: 8 answers; 533 tokens/s) the GPU"),
        ("context_1_generation_3", "(mixed: 1 prompt, 3 answers; 200 tokens/s)"),
        ("context_2_generation_0", "(prefill: 2 prompts)"),
    ],
)
def test_the_only_iteration_of_a_record_says_what_it_works_on(mark: str, said: str) -> None:
    text = f"rank# host   [own_{mark}.....]\n      within  [fwd]\n      gpu     [fwd.........]"
    assert said in engine.examine(job(ranks(text, steps=1), world_size=1)).headline


def test_a_mark_that_begins_long_before_its_step_counts() -> None:
    """The GPU is busy for 60 ms with work of before the record, which belongs to no step."""
    text = """
        rank0 host   [own_context_0_generation_8......................................................]
              within [sync........................................................] [fwd]
              gpu    [?before.....................................................]  [fwd.........]
    """
    assert "8 answers" in engine.examine(job(text, world_size=1)).headline
