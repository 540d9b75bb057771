"""For each rule a trace in which it finds something and one in which it does not, as docs/rules shows them.

A drawing is a rank's step: a character is a millisecond, a box what runs there. Lanes are threads (host, autograd) and
streams (gpu: compute, copy, nccl: communication); docs/adding-a-rule.md has all of them.
"""

from __future__ import annotations

import importlib
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from traces import finding, in_row, job, outcome, ranks

from tb_ddp_doctor import engine
from tb_ddp_doctor.findings import Diagnosis, Finding, RuleOutcome
from tb_ddp_doctor.rules import CATALOGUE

sys.path.insert(0, str(Path(__file__).parent / "rules"))

import test_allocator_churn as allocator_churn
import test_communication_bound as communication_bound
import test_cuda_graph_breaks as cuda_graph_breaks
import test_dataloader_stall as dataloader_stall
import test_find_unused_parameters as find_unused_parameters
import test_graph_breaks as graph_breaks
import test_host_stall as host_stall
import test_host_sync as host_sync
import test_larger_batch as larger_batch
import test_launch_bound as launch_bound
import test_load_imbalance as load_imbalance
import test_low_mfu as low_mfu
import test_low_occupancy as low_occupancy
import test_lower_precision as lower_precision
import test_memory_fragmentation as memory_fragmentation
import test_missing_straggler as missing_straggler
import test_moe_imbalance as moe_imbalance
import test_no_overlap as no_overlap
import test_no_tensor_cores as no_tensor_cores
import test_op_stall as op_stall
import test_pageable_memcpy as pageable_memcpy
import test_pipeline_bubble as pipeline_bubble
import test_profiler_overhead as profiler_overhead
import test_recompilation as recompilation
import test_redundant_allreduce as redundant_allreduce
import test_repeated_casts as repeated_casts
import test_request_imbalance as request_imbalance
import test_role_bubble as role_bubble
import test_sharding_wait as sharding_wait
import test_slow_kernels as slow_kernels
import test_slow_step as slow_step
import test_small_collectives as small_collectives
import test_small_gemms as small_gemms
import test_straggler as straggler
import test_trace_quality as trace_quality
import test_unfused_attention as unfused_attention
import test_unfused_elementwise as unfused_elementwise
import test_unfused_optimizer as unfused_optimizer
import test_variable_transfers as variable_transfers

#: Two ranks of two pairs; the AllReduce of each pair, then one of all.
FAST_LINK = """
    rank# step |1
          gpu  [fwd..........][bwd...................]
          nccl      [ar/{}@8.]                   [ar.]
"""
#: The same while a pair is slow, and the pair.
WAITING = FAST_LINK.replace("[ar.]", "[ar................]")
SLOW_LINK = """
    rank# step |1
          gpu  [fwd..........]               [bwd...................]
          nccl      [ar/{}@8................]                   [ar.]
"""


def pairs(others: str, last: str) -> list[str]:
    """Three pairs of ranks, the last of which is drawn as `last`."""
    drawings = (others.format("g0"), others.format("g1"), last.format("g2"))
    return [drawing for drawing in drawings for _ in range(2)]


@dataclass(frozen=True)
class Drawn:
    """A job: what each rank does in each of its kinds of steps, in order; a step of every kind, or three of one."""

    steps: Sequence[Sequence[str]]
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        if len(self.steps) == 1:
            return ranks(*self.steps[0])
        return in_row(*(ranks(*step, steps=1) for step in self.steps))

    def shown(self) -> str:
        """The drawings, each once, with the ranks and steps that it is of."""
        places: dict[str, list[tuple[int, int]]] = {}
        for number, step in enumerate(self.steps, 1):
            for rank, drawing in enumerate(step):
                places.setdefault(drawing, []).append((rank, number))
        return "\n".join(f"# {self._named(seen)}\n{_lanes(drawing)}" for drawing, seen in places.items())

    def _named(self, places: Sequence[tuple[int, int]]) -> str:
        """Ranks and steps as text."""
        in_ranks, in_steps = sorted({rank for rank, _ in places}), sorted({step for _, step in places})
        named = f"rank {', '.join(map(str, in_ranks))}"
        if len(self.steps) == 1:
            return named
        if len(places) == len(in_ranks) * len(in_steps):
            return f"{named} in step {', '.join(map(str, in_steps))}"
        each = len(self.steps[0]) * len(self.steps)
        single = ", ".join(f"rank {rank} in step {step}" for rank, step in places)
        return single if 2 * len(places) < each else "all others"


@dataclass(frozen=True)
class Whole:
    """A job whose ranks or steps all differ: as the tests make it, and as it is shown."""

    text: str
    drawing: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def shown(self) -> str:
        return _lanes(self.drawing)


def _lanes(drawing: str) -> str:
    lanes = drawing.replace("rank# step", "      step").replace("|1", "| ")
    return "\n".join(line.rstrip() for line in textwrap.dedent(lanes).strip("\n").splitlines()).rstrip()


@dataclass(frozen=True)
class Example:
    """A job without the fault, and one with it."""

    healthy: Drawn | Whole
    faulty: Drawn | Whole

    def diagnosed(self, *, faulty: bool) -> Diagnosis:
        """What the whole engine says of one of the two jobs."""
        drawn = self.faulty if faulty else self.healthy
        return engine.examine(job(drawn.text, **drawn.options))

    def found(self, rule: str) -> Finding:
        return finding(rule, self.faulty.text, **self.faulty.options)

    def clear(self, rule: str) -> RuleOutcome:
        return outcome(rule, self.healthy.text, **self.healthy.options)


def two(healthy: str, faulty: str) -> Example:
    """The same on two ranks."""
    return Example(Drawn([[healthy] * 2]), Drawn([[faulty] * 2]))


def once(usual: str, odd: str) -> Example:
    """The second of four steps is odd on both ranks."""
    return Example(Drawn([[usual] * 2] * 4), Drawn([[usual] * 2, [odd] * 2, [usual] * 2, [usual] * 2]))


def with_options(example: Example, healthy: Mapping[str, Any], faulty: Mapping[str, Any]) -> Example:
    return Example(replace(example.healthy, options=healthy), replace(example.faulty, options=faulty))


def with_memory(text: str, *steps: str) -> Whole:
    """GB allocated of GB reserved, step by step."""
    return Whole(text, "\n".join(f"memory {drawing}   # step {number}" for number, drawing in enumerate(steps, 1)))


LIGHT, HEAVY = load_imbalance.LIGHT, load_imbalance.HEAVY
HEALTHY, SLOW = straggler.HEALTHY, straggler.SLOW_DEVICE

_LISTED: Mapping[str, Example] = {
    "allocator-churn": two(allocator_churn.HIDDEN, allocator_churn.CHURNS),
    "communication-bound": two(communication_bound.HIDDEN, communication_bound.BOUND),
    "cuda-graph-breaks": once(cuda_graph_breaks.GRAPH, cuda_graph_breaks.CAPTURES),
    "dataloader-stall": two(dataloader_stall.HIDDEN, dataloader_stall.STALLED),
    "find-unused-parameters": two(find_unused_parameters.PLAIN, find_unused_parameters.SEARCHED),
    "host-stall": two(host_stall.AHEAD, host_stall.STALLED),
    "host-sync": two(host_sync.LATE, host_sync.READS),
    "larger-batch": with_options(
        two(larger_batch.HEALTHY, larger_batch.FAULTY), larger_batch.OPTIONS, larger_batch.OPTIONS
    ),
    "moe-imbalance": Example(Drawn([moe_imbalance.DEALT_EVENLY]), Drawn([moe_imbalance.DEALT_UNEVENLY])),
    "launch-bound": two(launch_bound.FED, launch_bound.STARVED),
    "load-imbalance": Example(
        Drawn([[LIGHT] * 3]),
        Drawn([[HEAVY, LIGHT, LIGHT], [LIGHT, HEAVY, LIGHT], [LIGHT, LIGHT, HEAVY]]),
    ),
    "graph-breaks": with_options(
        two(graph_breaks.HEALTHY, graph_breaks.FAULTY), graph_breaks.OPTIONS, graph_breaks.OPTIONS
    ),
    "low-mfu": with_options(two(low_mfu.MODEL, low_mfu.MODEL), low_mfu.of(10), low_mfu.of(2)),
    "low-occupancy": with_options(
        two(low_occupancy.LONG, low_occupancy.LONG), {"occupancy": {"norm": 80}}, {"occupancy": low_occupancy.LOW}
    ),
    "lower-precision": with_options(
        two(lower_precision.HEALTHY, lower_precision.FAULTY), lower_precision.NARROW, lower_precision.WIDE
    ),
    "memory-fragmentation": Example(
        with_memory(memory_fragmentation.STEADY, *["[20of40] [38of40] [20of40]"] * 3),
        with_memory(memory_fragmentation.GROWING, "[20of40] [30of41]", "[20of41] [30of42]", "[20of42] [30of43]"),
    ),
    "missing-straggler": with_options(
        Example(Drawn([[missing_straggler.HIDDEN]]), Drawn([[missing_straggler.EXPOSED]])),
        {"world_size": 2},
        {"world_size": 2},
    ),
    "no-overlap": two(no_overlap.BESIDE, no_overlap.AFTER),
    "no-tensor-cores": two(no_tensor_cores.TENSOR, no_tensor_cores.FLOAT32),
    "op-stall": two(launch_bound.FED, op_stall.ONE_OP),
    "pageable-memcpy": two(pageable_memcpy.PINNED, pageable_memcpy.PAGEABLE),
    "pipeline-bubble": Example(
        *(Whole(pipeline_bubble.steps(drawing), drawing) for drawing in (pipeline_bubble.MANY, pipeline_bubble.GPIPE))
    ),
    "profiler-overhead": two(profiler_overhead.AHEAD, profiler_overhead.STALLED),
    "repeated-casts": with_options(
        two(repeated_casts.HEALTHY, repeated_casts.FAULTY), repeated_casts.OPTIONS, repeated_casts.OPTIONS
    ),
    "recompilation": with_options(
        Example(
            Drawn([[recompilation.USUAL] * 2] * 4),
            Drawn(
                [
                    [recompilation.USUAL] * 2,
                    [recompilation.WAITS, recompilation.COMPILES],
                    [recompilation.USUAL] * 2,
                    [recompilation.USUAL] * 2,
                ]
            ),
        ),
        recompilation.OPTIONS,
        recompilation.OPTIONS,
    ),
    "redundant-allreduce": two(redundant_allreduce.NO_SYNC, redundant_allreduce.SYNCED),
    "request-imbalance": with_options(
        Example(
            Drawn([[request_imbalance.EVEN, request_imbalance.EVEN]]),
            Drawn([[request_imbalance.FULL, request_imbalance.EMPTY]]),
        ),
        request_imbalance.OPTIONS,
        request_imbalance.OPTIONS,
    ),
    "role-bubble": Example(Drawn([role_bubble.HEALTHY]), Drawn([role_bubble.FAULTY])),
    "sharding-wait": two(sharding_wait.PREFETCHED, sharding_wait.LATE_BACKWARD),
    "slow-link": Example(Drawn([pairs(FAST_LINK, FAST_LINK)]), Drawn([pairs(WAITING, SLOW_LINK)])),
    "slow-step": once(slow_step.USUAL, slow_step.SLOW_KERNELS),
    "slow-kernels": with_options(two(slow_kernels.HEALTHY, slow_kernels.FAULTY), slow_kernels.FAST, slow_kernels.SLOW),
    "small-collectives": two(small_collectives.FEW, small_collectives.EXPOSED),
    "small-gemms": with_options(two(small_gemms.HEALTHY, small_gemms.FAULTY), small_gemms.FULL, small_gemms.FEW),
    "straggler": Example(Drawn([[HEALTHY] * 3]), Drawn([[HEALTHY, SLOW, HEALTHY]])),
    "trace-quality": with_options(two(trace_quality.GOOD, trace_quality.GOOD), {}, {"world_size": 4}),
    "unfused-attention": two(unfused_attention.FUSED, unfused_attention.UNFUSED),
    "unfused-elementwise": with_options(
        two(unfused_elementwise.HEALTHY, unfused_elementwise.FAULTY),
        unfused_elementwise.OPTIONS,
        unfused_elementwise.OPTIONS,
    ),
    "unfused-optimizer": two(unfused_optimizer.FOREACH, unfused_optimizer.LOOP),
    "variable-transfers": once(variable_transfers.USUAL, variable_transfers.CONGESTED),
}


def _of_tests(rule: str) -> Example:
    """HEALTHY and FAULTY of a rule's own tests, on two ranks."""
    tests = importlib.import_module(f"test_{rule.replace('-', '_')}")
    return two(tests.HEALTHY, tests.FAULTY)


#: Of every rule.
EXAMPLES: Mapping[str, Example] = {rule: _LISTED.get(rule) or _of_tests(rule) for rule in CATALOGUE}
