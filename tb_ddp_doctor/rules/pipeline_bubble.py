"""See `PipelineBubble`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tb_ddp_doctor import wording
from tb_ddp_doctor.digest.model import RankOwner
from tb_ddp_doctor.facts.compute import KernelTable
from tb_ddp_doctor.facts.evidence_locator import Places
from tb_ddp_doctor.facts.frame import Frame
from tb_ddp_doctor.facts.modules import ModuleTree
from tb_ddp_doctor.facts.pipeline import Pipeline
from tb_ddp_doctor.findings import Evidence
from tb_ddp_doctor.job.model import Budget
from tb_ddp_doctor.replay.change import Change
from tb_ddp_doctor.replay.whatif import WhatIf
from tb_ddp_doctor.rules.support import certainty, naming, part, stage_layers
from tb_ddp_doctor.rules.support.base import Clear, Fault, Result, Rule, threshold
from tb_ddp_doctor.trace.model import Floats, Ints
from tb_ddp_doctor.trace.program_names import Program

#: A stage with this share more kernels has more layers, or the embedding or the head beside them.
_MORE_KERNELS = 0.05


class PipelineBubble(Rule):
    """Pipeline stages wait for each other longer than the pipeline bubble requires.

    What:
        Stages that send to and receive from their neighbours, and wait there longer than the bubble of p stages and m
        micro-batches: because a stage computes longer (cause uneven_stages), because of the schedule and its
        point-to-point transfers (schedule), or because m is small (few_micro_batches). The
        order of messages shows the schedule: GPipe, 1F1B, interleaved, zero-bubble (ZB-H1, ZB-H2) or V-shaped (ZB-V,
        DualPipeV).
    Why:
        A pipeline fills and drains once a step (a server's, whenever all its batches have to be answered before the
        next one begins): each stage idles for (p - 1) of the (m + p - 1) slots of a micro-batch,
        with any schedule without interleaving (GPipe, 1F1B). More micro-batches make that share smaller; a longer stage
        makes every slot longer for all stages.
    Evidence:
        The longest wait on the stage that waits most; whether the longest stage runs more kernels or slower ones, and
        the split of the model's layers that would balance the stages; how long transfers between stages have nothing
        beside them. The cost is the exposed sends and receives of the mean stage in excess of (p - 1) / m of its
        compute. If that bubble is a large share of the step, the cost also has what twice the micro-batches would save.
    Fix:
        Layers moved from the longest stage to other stages; more and smaller micro-batches; interleaved stages; sends
        and receives that overlap compute.
    Limits:
        The number of micro-batches is that of point-to-point transfers between neighbours: if a micro-batch needs
        several transfers, the bubble is underestimated. Slower kernels of smaller micro-batches are not counted.
        Gloo does not name the other rank, so traces of all ranks of one pipeline are needed. A schedule that splits
        backward is recognised if its last stage computes backward after its last message; its bubble is that of forward
        and both halves of backward that take as long. V-shaped schedules (zero-bubble V, DualPipeV) are recognised by
        a loss on the first rank alone: where no kernel or operator has the name of a loss, they look like 1F1B with
        twice the micro-batches, or like zero-bubble H2.
    """

    id = "pipeline-bubble"
    subject = "The pipeline bubble"
    of_servers = True
    refines = "communication-bound"

    min_cost: float = threshold(
        0.05, "of the step", "Point-to-point transfers and launches take as much in healthy jobs."
    )
    large_bubble: float = threshold(0.2, "of the step", "Reached with fewer than four micro-batches per stage.")

    def check(
        self,
        *,
        frame: Frame,
        budget: Budget,
        whatif: WhatIf,
        pipeline: Pipeline | None,
        kernels: KernelTable,
        modules: ModuleTree | None,
        places: Places,
    ) -> Result:
        if pipeline is None:
            return Clear("No ranks send to each other as the stages of a pipeline do: there is no pipeline.")
        shape, batches = _said(pipeline, frame)
        compute, ranks = pipeline.of_stages(budget.of("compute"))
        waits = float(pipeline.exposed_ns.mean())
        must = pipeline.bubble_ns(float(compute.mean()))
        excess = max(waits - must - self._waits_for_slow_ranks(whatif), 0.0)
        uneven = min(float(compute.max() - compute.mean()) * (1 + pipeline.least_wait), excess)
        share = pipeline.least_wait / (1 + pipeline.least_wait)
        more = must / 2 if share > self.large_bubble else 0.0
        change = _without(excess, min(more, waits), pipeline, whatif)
        cost = whatif.cost_ns(change)
        if cost < self.min_cost * frame.step_ns:
            return Clear(
                f"Stages wait {wording.ms(waits)} in sends and receives; the bubble of {shape} is "
                f"{wording.ms(must)} ({wording.percent(share)} of the step)."
            )
        parts = {"uneven_stages": uneven, "schedule": excess - uneven, "few_micro_batches": more}
        cause = max(parts, key=lambda name: parts[name])
        seen = int((pipeline.exposed_ns.mean(axis=0) > must).sum())
        level, basis = certainty.confidence(frame, cost, seen, of_transfer=True)
        return Fault(
            change=change,
            ranks=frame.rank_numbers(ranks[int(compute.argmax())]) if cause == "uneven_stages" else frame.all_ranks,
            cause=cause,
            confidence=level,
            title=f"Pipeline stages wait for each other {part.mean(pipeline.exposed_ns, frame.window_ns)}; "
            f"the bubble of {shape} is {wording.ms(must)}.",
            why=f"The bubble of {wording.ms(must)} is {pipeline.formula} of the "
            f"{wording.ms(float(compute.mean()))} that a stage computes (p = {pipeline.stages} stages, m = "
            f"{pipeline.micro_batches} {batches}). The longest stage, "
            f"{_longest(compute, ranks, kernels, frame)}. That costs {wording.ms(uneven)}."
            f"{stage_layers.said(modules, ranks)} The schedule and its "
            f"transfers cost {wording.ms(excess - uneven)}; data moves with nothing beside it for "
            f"{wording.ms(float(pipeline.moving_ns.mean()))}. Twice the {batches} would save "
            f"{wording.ms(must / 2)}. {basis}",
            fix=(_FIXES_OF_SERVERS if frame.program == Program.SERVING.value else _FIXES)[cause],
            evidence=(_longest_wait(pipeline, places),),
        )

    def _waits_for_slow_ranks(self, whatif: WhatIf) -> float:
        """How long stages wait because one takes longer than the median by itself (the straggler rule), or because
        experts get unequal loads (moe-imbalance), ns.

        Without a replay the rule itself says which stage computes longer.
        """
        if whatif.replay is None:
            return 0.0
        alone = whatif.busy_ns.mean(axis=1)
        even = Change(balanced=np.ones(whatif.shape, np.bool_))
        of_experts = whatif.cost_ns(even) if len(whatif.replay.routing.rank) else 0.0
        return float(alone.max() - np.median(alone)) + of_experts


def _said(pipeline: Pipeline, frame: Frame) -> tuple[str, str]:
    """The pipeline's shape, and what its micro-batches are called: of a server each batch of requests is one."""
    if frame.program != Program.SERVING.value:
        return pipeline.shape, "micro-batches"
    many = pipeline.micro_batches
    return f"{pipeline.stages} stages and {many} batch{'' if many == 1 else 'es'} in flight", "batches in flight"


def _without(excess_ns: float, bubble_ns: float, pipeline: Pipeline, whatif: WhatIf) -> Change:
    """What goes of a step whose stages wait less: waits beyond the bubble, and a part of the bubble.

    A bubble consists of other stages' work on the first and the last micro-batches, and no transfer is longer for it.
    Played, it becomes shorter where all slots do; a step is (1 + bubble over compute) times the compute of a stage.
    """
    if not whatif.plays:
        return Change(transfer_ns=np.full(whatif.shape, round(excess_ns + bubble_ns)))
    shorter = round(bubble_ns / (1 + pipeline.least_wait))
    return Change(
        transfer_ns=np.full(whatif.shape, round(excess_ns)),
        device_ns=np.full(whatif.shape, shorter) if shorter else None,
    )


def _longest(compute: Floats, ranks: Sequence[Ints], kernels: KernelTable, frame: Frame) -> str:
    """The stage that computes longest, and whether it runs more kernels than the median stage, or longer ones."""
    longest, launches = int(compute.argmax()), kernels.launches()
    said = f"{naming.who(ranks[longest].tolist(), frame)}, computes {wording.ms(float(compute.max()))}"
    counts = [float(launches[its].mean()) for its in ranks]
    others = float(np.median(np.delete(counts, longest))) if len(counts) > 1 else 0.0
    if not others:
        return said
    more = counts[longest] / others - 1
    if more > _MORE_KERNELS:
        more_kernels = f"{wording.percent(more)} more kernels than the median stage"
        return f"{said}: it runs {more_kernels} (layers, the embedding or the head)"
    return f"{said}, though it runs as many kernels as the median stage: its devices are slower, or its batches larger"


def _longest_wait(pipeline: Pipeline, places: Places) -> Evidence:
    """The longest wait on the rank that waits most."""
    rank = int(pipeline.exposed_ns.mean(axis=1).argmax())
    step = int(pipeline.exposed_ns[rank].argmax())
    said = "Exposed send or receive: the stage waits and computes nothing."
    return places.longest(rank, step, RankOwner.COMMUNICATION, said)


_FIXES = {
    "uneven_stages": stage_layers.BALANCED,
    "schedule": """\
Overlap sends and receives with compute, and give each rank several chunks of layers (interleaved stages), so that \
stages compute during transfers. Check that the links between stages are the fast ones.

from torch.distributed.pipelining import ScheduleInterleaved1F1B
schedule = ScheduleInterleaved1F1B(stages, n_microbatches)  # two stages or more on each rank

# Megatron-LM
--num-layers-per-virtual-pipeline-stage 2 --overlap-p2p-communication""",
    "few_micro_batches": """\
Split the batch into more micro-batches, at least four per stage, as long as kernels stay efficient; or give each rank \
several chunks of layers, which has the same effect but needs more point-to-point transfers.

from torch.distributed.pipelining import ScheduleInterleaved1F1B
schedule = ScheduleInterleaved1F1B(stages, n_microbatches=4 * len(stage_ranks))

# Megatron-LM
--micro-batch-size 1 --num-layers-per-virtual-pipeline-stage 2""",
}
_IN_FLIGHT = """\
Have as many batches in flight as there are stages: enough requests at a time, and a scheduler that does not wait for \
the tokens of one batch before it sends the next. Within a node, tensor parallelism has no bubble.

vllm serve MODEL --tensor-parallel-size 4 --pipeline-parallel-size 1 --max-num-seqs 512
python -m sglang.launch_server --model-path MODEL --pp-size 4 --pp-max-micro-batch-size 64"""
_FIXES_OF_SERVERS = {
    "uneven_stages": """\
Give the longest stage fewer layers: the last one also has the output head, and samples.

VLLM_PP_LAYER_PARTITION=17,17,16,14 vllm serve MODEL --pipeline-parallel-size 4""",
    "schedule": _IN_FLIGHT,
    "few_micro_batches": _IN_FLIGHT,
}
