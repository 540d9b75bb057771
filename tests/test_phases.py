"""Every nanosecond of a step has one phase, on the host and on the device."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from random_traces import OF_JOBS, TRACES
from traces import MS, digests

from tb_ddp_doctor.digest.build import digest
from tb_ddp_doctor.digest.model import RankOwner
from tb_ddp_doctor.findings import PHASES
from tb_ddp_doctor.trace.model import RankTrace
from tb_ddp_doctor.trace.names import Phase, is_backward, phase


def phases(column: str, text: str, step: int = 0) -> dict[str, float]:
    """The phases of rank 0's step, ms, without those that take none; calls of microseconds are left out."""
    row = getattr(digests(text)[0].work.phases, column)[step] / MS
    return {name: round(ms, 1) for name, ms in zip(PHASES, row.tolist(), strict=True) if ms >= 0.05}


def host(text: str, step: int = 0) -> dict[str, float]:
    return phases("host_ns", text, step)


def device(text: str, step: int = 0) -> dict[str, float]:
    return phases("device_ns", text, step)


LOOP = """
    rank0 step     |1
          host     [load....][ddp.][loss]            [update]
          within              [fwd]
          autograd                       [bwd......]
          gpu                 [fwd.......][bwd.........]
"""


def test_annotations_and_autograds_nodes_cut_the_hosts_step() -> None:
    assert host(LOOP) == {"loading": 10, "forward": 12, "backward": 11, "optimizer": 8, "other": 1}


def test_the_device_is_in_the_phase_that_launched() -> None:
    assert device(LOOP) == {"loading": 10, "forward": 13, "backward": 14}


def test_phases_are_named_alike_everywhere() -> None:
    assert tuple(each.name.lower() for each in Phase) == PHASES


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        ("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", Phase.LOADING),
        ("## data_load ##", Phase.LOADING),
        ("## wait_for_training_batch ##", Phase.LOADING),
        ("[pl][profile][_TrainingEpochLoop].train_dataloader_next", Phase.LOADING),
        ("DistributedDataParallel.forward", Phase.FORWARD),
        ("FullyShardedDataParallel.forward", Phase.FORWARD),
        ("## forward ##", Phase.FORWARD),
        ("forward-compute", Phase.FORWARD),
        # DeepSpeed's ranges are called as their functions, Megatron-LM's by file, function and what it does there.
        ("DeepSpeedEngine.forward", Phase.FORWARD),
        ("DeepSpeedEngine.backward", Phase.BACKWARD),
        ("DeepSpeedEngine.step", Phase.OPTIMIZER),
        ("PipelineEngine.step", Phase.OPTIMIZER),
        ("DeepSpeedZeroOptimizer_Stage3.step", Phase.OPTIMIZER),
        ("DeepSpeedZeroOptimizer.step", Phase.OPTIMIZER),
        ("DeepSpeedZeroOptimizer_Stage3.backward", Phase.BACKWARD),
        ("FP16_Optimizer.backward", Phase.BACKWARD),
        ("BF16_Optimizer.step", Phase.OPTIMIZER),
        ("DeepSpeedEngine.allreduce_gradients", Phase.OTHER),
        ("PartitionedParameterCoordinator.fetch_sub_module", Phase.OTHER),
        ("DeepSpeedZeRoOffload.pre_sub_module_forward_function", Phase.OTHER),
        ("LLMEngine.step", Phase.OTHER),
        ("megatron.core.transformer.transformer_layer._forward_attention.self_attention", Phase.FORWARD),
        ("megatron.core.pipeline_parallel.schedules.forward_backward_no_pipelining.warmup", Phase.OTHER),
        ("layer_3f-layer_5b", Phase.OTHER),
        ("transformer_engine._Linear.forward.gemm", Phase.FORWARD),
        ("transformer_engine._Linear.backward.wgrad_gemm", Phase.BACKWARD),
        ("## Backward ##", Phase.BACKWARD),
        ("[pl][profile][Strategy]DDPStrategy.backward", Phase.BACKWARD),
        ("Optimizer.step#AdamW.step", Phase.OPTIMIZER),
        ("Optimizer.zero_grad#AdamW.zero_grad", Phase.OPTIMIZER),
        ("## optimizer ##", Phase.OPTIMIZER),
        ("## zero_grad ##", Phase.OPTIMIZER),
        ("FSDP::pre_forward (b.0)", Phase.OTHER),
        ("FSDP::post_backward_reduce", Phase.OTHER),
        ("forward_backward", Phase.OTHER),
        ("ProfilerStep#3", Phase.OTHER),
        ("nccl:all_reduce", Phase.OTHER),
        ("## Call CompiledFxGraph fabc ##", Phase.OTHER),
        ("## metrics_update ##", Phase.OTHER),
        ("", Phase.OTHER),
    ],
)
def test_what_an_annotation_says(annotation: str, expected: Phase) -> None:
    assert phase(annotation) is expected


@pytest.mark.parametrize(
    ("operator", "expected"),
    [
        ("autograd::engine::evaluate_function: CompiledFunctionBackward", True),
        ("CompiledFunctionBackward", True),
        ("CudnnBatchNormBackward", True),
        ("NllLossBackward0", True),
        ("torch::autograd::AccumulateGrad", True),
        ("CompiledFunction", False),
        ("Torch-Compiled Region: 0/0", False),
        ("aten::convolution_backward", False),
    ],
)
def test_what_a_node_of_autograd_is(operator: str, expected: bool) -> None:
    assert is_backward(operator) is expected


def test_python_beside_all_phases_is_other() -> None:
    assert host("""
        step     |1
        host     [load][ddp]               [update]      [log.]
        autograd            [bwd....]
        gpu                       [bwd....]
    """) == {"loading": 6, "forward": 5, "backward": 9, "optimizer": 8, "other": 18}


def test_operators_before_backward_are_forward_without_any_annotation() -> None:
    assert host("""
        step     |1
        host     [load][embed][attn.][loss]         [update]
        autograd                           [bwd...]
        gpu             [embed]            [bwd......]
    """) == {"loading": 6, "forward": 20, "backward": 8, "optimizer": 8, "other": 1}


def test_operators_before_the_optimizers_step_belong_to_it() -> None:
    assert host("""
        step     |1
        host     [ddp.]           [clip..][update][metrics]
        autograd       [bwd.....]
        gpu            [bwd......]
    """) == {"forward": 6, "backward": 10, "optimizer": 16, "other": 10}


def test_zeroing_gradients_does_not_make_what_is_before_it_the_optimizers() -> None:
    assert host("""
        step     |1
        host     [prepare][zero][model...]
        autograd                          [bwd...]
        gpu                               [bwd...]
    """) == {"forward": 19, "backward": 8, "optimizer": 6}


def test_bringing_the_batch_to_the_device_is_loading() -> None:
    text = """
        step     |1
        host     [fetch.][pinned][ddp..]
        autograd                        [bwd...]
        gpu              [pinned]       [bwd...]
    """
    assert host(text) == {"loading": 16, "forward": 7, "backward": 8}
    assert device(text) == {"loading": 16, "forward": 7, "backward": 8}


def test_accumulated_micro_steps_are_forward_and_backward_in_turn() -> None:
    assert host("""
        step     |1
        host     [ddp]       [ddp]       [update]
        autograd      [bwd..]     [bwd..]
        gpu           [bwd..]     [bwd..]
    """) == {"forward": 10, "backward": 14, "optimizer": 8}


def test_a_hook_between_nodes_is_backward() -> None:
    assert host("""
        step     |1
        host     [ddp]                    [update]
        autograd      [bwda]      [bwdb..]
        gpu                       [bwdb..]
    """) == {"forward": 5, "backward": 20, "optimizer": 8}


def test_an_optimizer_that_runs_a_closure_is_left_what_comes_after_backward() -> None:
    assert host("""
        step     |1
        host     [update....................]
        within    [ddp]         [adam]
        autograd       [bwd....]
        gpu            [bwd....]
    """) == {"forward": 5, "backward": 9, "optimizer": 13, "other": 1}


def test_an_optimizer_within_backward_is_the_optimizer() -> None:
    assert host("""
        step     |1
        host     [ddp]  [update]
        autograd      [bwd.........]
        gpu           [bwd.........]
    """) == {"forward": 5, "backward": 6, "optimizer": 8}


def test_backward_on_the_training_thread_is_backward() -> None:
    assert host("""
        step     |1
        host     [ddp.][own_backward][update]
        gpu            [bwd.........]
    """) == {"forward": 6, "backward": 14, "optimizer": 8}


def test_a_device_that_waits_for_a_launch_is_in_the_hosts_phase() -> None:
    assert device("""
        step     |1
        host     [load....][ddp......][fwd]
        gpu                           [fwd...]
    """) == {"loading": 10, "forward": 11, "other": 8}


def test_a_device_that_is_behind_is_in_its_own_phase_while_it_idles() -> None:
    assert device("""
        step     |1
        host     [ddp.][update][load..........]
        within   [a][b]
        gpu      [a......]   [b.......]
    """) == {"forward": 22}


def test_waiting_for_others_is_of_the_phase_that_communicates() -> None:
    text = """
        rank0 step     |1
              host     [ddp]
              autograd      [bwd....][ar]
              gpu           [bwd....]
              nccl                   [ar........]
        rank1 step     |1
              host     [ddp]
              autograd      [bwd........][ar]
              gpu           [bwd........]
              nccl                       [ar....]
    """
    assert device(text) == {"forward": 5, "backward": 21}
    assert phases("exposed_ns", text) == {"backward": 12}


def test_backward_waits_for_the_collectives_that_it_began() -> None:
    assert host("""
        step     |1
        host     [ddp.]                       [update]
        autograd       [bwd...]
        gloo                    [ar......]
    """) == {"forward": 6, "backward": 19, "optimizer": 8, "other": 4}


def test_backward_ends_where_the_loop_goes_on_whatever_still_communicates() -> None:
    assert host("""
        step     |1
        host     [ddp.]            [update]
        autograd       [bwd...]
        gloo               [ar...........]
    """) == {"forward": 6, "backward": 12, "optimizer": 8}


def test_cpus_have_one_cut_for_both() -> None:
    text = """
        step |1
        host [load..][ddp.....][own_backward......][update]
        gloo                      [ar.......]
    """
    assert host(text) == {"loading": 8, "forward": 10, "backward": 20, "optimizer": 8}
    assert device(text) == host(text)
    assert phases("exposed_ns", text) == {"backward": 11}


@OF_JOBS
@given(TRACES)
def test_the_phases_of_any_ranks_steps_sum_to_their_windows(random: RankTrace) -> None:
    found = digest(random)
    steps, times, owner_ns = found.steps, found.work.phases, found.work.owner_ns
    assert (times.host_ns >= 0).all() and (times.device_ns >= 0).all() and (times.exposed_ns >= 0).all()
    assert times.host_ns.sum(axis=1).tolist() == (steps.host_end_ns - steps.host_start_ns).tolist()
    assert times.device_ns.sum(axis=1).tolist() == (steps.end_ns - steps.start_ns).tolist()
    assert times.exposed_ns.sum(axis=1).tolist() == owner_ns[:, RankOwner.COMMUNICATION].tolist()
    assert np.all(times.exposed_ns <= times.device_ns)
    assert (times.stalled_ns >= 0).all()
    assert (times.stalled_ns.sum(axis=1) <= owner_ns[:, RankOwner.HOST]).all()
