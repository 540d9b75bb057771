"""See `PipelineBubble`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tb_ddp_doctor.digest.model import RankOwner
from tb_ddp_doctor.facts.change import Change
from tb_ddp_doctor.facts.evidence_locator import Places
from tb_ddp_doctor.facts.frame import Frame
from tb_ddp_doctor.facts.pipeline import Pipeline
from tb_ddp_doctor.facts.whatif import WhatIf
from tb_ddp_doctor.job.model import Budget
from tb_ddp_doctor.rules.support import text
from tb_ddp_doctor.rules.support.base import Clear, Fault, Result, Rule, threshold


@dataclass(frozen=True)
class PipelineBubble(Rule):
    """Stages of a pipeline wait for each other longer than they must.

    What:
        Ranks that send to and receive from their neighbours, and wait in it beyond what p stages and m micro-batches
        make them wait: because some stages compute longer (cause uneven_stages), because of the schedule and its
        transfers (schedule), or because m is small (few_micro_batches).
    Why:
        A pipeline fills and drains once a step: each stage idles for (p - 1) of the (m + p - 1) turns of a micro-batch,
        whatever the schedule (GPipe, 1F1B). More turns make that share smaller; a stage that takes longer makes every
        turn longer for all.
    Evidence:
        The longest wait on the stage that waits most. The cost is the exposed sends and receives of the mean stage
        beyond (p - 1) / m of its compute; and where that alone is a large share of the step, what twice the
        micro-batches would save.
    Fix:
        Layers moved from the longest stage to others; more and smaller micro-batches; interleaved stages; sends and
        receives that overlap compute.
    Limits:
        Micro-batches are counted as messages between neighbours: if each takes several, the share that cannot be
        avoided is thought too small. What smaller micro-batches lose in the kernels is not counted, and waiting is
        not told from transfer. Two ranks that pass parts of a sequence to and fro (context parallelism of two) look
        like stages. Gloo does not name the other rank, so that it takes traces of all ranks of one pipeline.
    """

    id: ClassVar[str] = "pipeline-bubble"

    min_cost: float = threshold(0.05, "of the step", "Messages and launches between turns take as much in sound jobs.")
    large_bubble: float = threshold(
        0.2, "of the step", "Reached with less than four micro-batches for each other stage."
    )

    def check(
        self, *, frame: Frame, budget: Budget, whatif: WhatIf, pipeline: Pipeline | None, places: Places
    ) -> Result:
        if pipeline is None:
            return Clear("No two ranks send to and receive from each other: there is no pipeline.")
        before, turns = pipeline.stages - 1, pipeline.micro_batches
        compute = budget.of("compute").mean(axis=1)
        waits = float(pipeline.exposed_ns.mean())
        must = float(compute.mean()) * before / turns
        excess = max(waits - must, 0.0)
        uneven = min(float(compute.max() - compute.mean()) * (1 + before / turns), excess)
        share = before / (turns + before)
        more = must / 2 if share > self.large_bubble else 0.0
        shape = f"{pipeline.stages} stages and {turns} micro-batches"
        change = Change(transfer_ns=np.full(whatif.shape, round(excess + min(more, waits))))
        cost = whatif.cost_ns(change)
        if cost < self.min_cost * frame.step_ns:
            return Clear(
                f"Stages wait {text.ms(waits)} in sends and receives; {shape} make it {text.ms(must)} at least "
                f"({text.percent(share)} of such a step)."
            )
        parts = {"uneven_stages": uneven, "schedule": excess - uneven, "few_micro_batches": more}
        cause = max(parts, key=lambda name: parts[name])
        seen = int((pipeline.exposed_ns.mean(axis=0) > must).sum())
        level, basis = text.confidence(frame, cost, seen, of_transfer=True)
        rank = int(pipeline.exposed_ns.mean(axis=1).argmax())
        longest = int(compute.argmax())
        return Fault(
            change=change,
            ranks=frame.rank_numbers(np.array([longest])) if cause == "uneven_stages" else frame.all_ranks,
            steps=frame.all_steps,
            cause=cause,
            confidence=level,
            title=f"Stages of the pipeline wait {text.ms(waits)} of every {text.ms(frame.step_ns)} for each other; "
            f"{shape} need {text.ms(must)}.",
            why=f"Of the wait, {text.ms(must)} is (p - 1) / m = {before} / {turns} of the "
            f"{text.ms(float(compute.mean()))} that a stage computes. The longest stage, rank {frame.ranks[longest]}, "
            f"computes {text.ms(float(compute.max()))}, which costs {text.ms(uneven)}. The schedule and its "
            f"transfers cost {text.ms(excess - uneven)}. Twice the micro-batches would save "
            f"{text.ms(must / 2)}. {basis}",
            fix=_FIXES[cause],
            evidence=(
                places.longest(
                    rank,
                    int(pipeline.exposed_ns[rank].argmax()),
                    RankOwner.COMMUNICATION,
                    "The stage waits in a send or receive, and nothing is computed.",
                ),
            ),
        )


_FIXES = {
    "uneven_stages": """\
Even the stages out: move layers from the longest one to others. The embedding and the loss belong to the first and \
the last stage, which therefore need fewer layers.

# Megatron-LM
--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split

# torch.distributed.pipelining: choose where to split
pipe = pipeline(model, mb_args=(x,), split_spec={"layers.7": SplitPoint.BEGINNING, ...})""",
    "schedule": """\
Let stages do something else while messages travel: give each rank several chunks of layers, and overlap sends and \
receives with compute. Check that the links between stages are the fast ones.

from torch.distributed.pipelining import ScheduleInterleaved1F1B
schedule = ScheduleInterleaved1F1B(stages, n_microbatches)  # two stages or more on each rank

# Megatron-LM
--num-layers-per-virtual-pipeline-stage 2 --overlap-p2p-communication""",
    "few_micro_batches": """\
Cut the batch into more micro-batches, at least four for each stage, as long as kernels stay efficient; or give each \
rank several chunks of layers, which has the same effect at the cost of more messages.

from torch.distributed.pipelining import ScheduleInterleaved1F1B
schedule = ScheduleInterleaved1F1B(stages, n_microbatches=4 * len(stage_ranks))

# Megatron-LM
--micro-batch-size 1 --num-layers-per-virtual-pipeline-stage 2""",
}
