"""See `ShardingWait`."""

from __future__ import annotations

import numpy as np

from tb_ddp_doctor import wording
from tb_ddp_doctor.digest.model import KernelWork
from tb_ddp_doctor.facts.evidence_locator import Places
from tb_ddp_doctor.facts.frame import Frame
from tb_ddp_doctor.facts.sharding import Sharding
from tb_ddp_doctor.planning.fact import Plans
from tb_ddp_doctor.planning.model import Question, ShardedRecord
from tb_ddp_doctor.replay.change import Change
from tb_ddp_doctor.replay.whatif import WhatIf
from tb_ddp_doctor.rules.support import certainty, limits, part
from tb_ddp_doctor.rules.support.base import Clear, Fault, Result, Rule, threshold
from tb_ddp_doctor.rules.support.exposed import most_exposed
from tb_ddp_doctor.trace.model import Floats, Ints


class ShardingWait(Rule):
    """All-gathers and reduce-scatters are exposed that compute could hide (FSDP, ZeRO).

    What:
        All-gathers and reduce-scatters of sharded training that are exposed although there is compute that could hide
        them: in the forward pass (cause forward) or in the backward pass (backward).
    Why:
        FSDP gathers the parameters of a unit before it computes the unit, and can gather those of the next unit at the
        same time. Without that prefetch, or if a unit computes for less time than the next all-gather takes, the GPU
        waits at each unit.
    Evidence:
        The longest exposed communication on the slowest rank of the step; the stage of ZeRO, how many units ahead
        parameters are gathered, all-gathers that wait for the CPU to launch them, and the share of latency in them. The
        cost is what more overlap would hide, without straggler wait. The first all-gather of a step and the last
        reduce-scatter cannot be hidden, and are not counted. An all-gather that is launched only when the unit before
        has computed would be hidden behind that unit with prefetching.
    Fix:
        Prefetch in both directions; larger units; parameters kept after the forward pass where memory allows; shards
        within a node (HYBRID_SHARD) where the links between nodes are the slow ones.
    Limits:
        Judged on the slowest rank. A launch-bound CPU exposes communication as well. Communication that takes longer
        than compute, so that overlap cannot hide it, is communication-bound. Groups with reduce-scatters in the forward
        pass too (tensor parallelism) are not judged.
    """

    id = "sharding-wait"
    subject = "Waiting for sharded parameters"
    refines = "communication-bound"

    achievable: float = threshold(*limits.ACHIEVABLE_OVERLAP)
    min_cost: float = threshold(0.02, "of the step", "Every sharded job exposes a little at each unit's edges.")

    def check(
        self,
        *,
        frame: Frame,
        whatif: WhatIf,
        sharding: Sharding | None,
        computed: KernelWork,
        plans: Plans,
        places: Places,
    ) -> Result:
        if sharding is None:
            return Clear("No group gathers parameters and scatters gradients: nothing is sharded.")
        forward, backward = self._savings(whatif, sharding, computed)
        moved = float(whatif.at_slowest(sharding.forward_ns + sharding.backward_ns).mean())
        alone = whatif.at_slowest(sharding.forward_exposed_ns + sharding.backward_exposed_ns)
        change = Change(transfer_ns=np.broadcast_to((forward + backward).astype(np.int64), whatif.shape))
        cost = whatif.cost_ns(change)
        if cost < self.min_cost * frame.step_ns:
            return Clear(
                f"{wording.ms(float(alone.mean()))} of {wording.ms(moved)} of all-gathers and reduce-scatters a step "
                f"are exposed, and overlap would hide {wording.ms(cost)} of it."
            )
        seen = int((forward + backward > 0.5 * self.min_cost * frame.step_ns).sum())
        level, basis = certainty.confidence(frame, cost, seen, on_host=True, of_transfer=True)
        cause = "forward" if forward.mean() >= backward.mean() else "backward"
        of_cause = sharding.forward_exposed_ns if cause == "forward" else sharding.backward_exposed_ns
        size = f" of {wording.size(sharding.bytes)}" if sharding.bytes else ""
        return Fault(
            change=change,
            cause=cause,
            confidence=level,
            title=f"Compute waits for sharded tensors: {part.mean(alone, whatif.at_slowest(frame.window_ns))} "
            f"on the slowest rank are exposed all-gathers and reduce-scatters, most of it in the {cause} pass.",
            why=f"{wording.decimals(sharding.gathers, 0)} all-gathers{size} a step, and the reduce-scatters, take "
            f"{wording.ms(moved)}; in the {cause} pass {wording.ms(float(whatif.at_slowest(of_cause).mean()))} are "
            f"exposed. Overlap would hide {wording.ms(float(forward.mean()))} more in the forward and "
            f"{wording.ms(float(backward.mean()))} more in the backward pass. {_as_sharded(plans.sharded, sharding)}"
            f"{basis}",
            fix=_fix(cause, sharding, plans, len(set(frame.nodes)) > 1),
            evidence=most_exposed(alone, whatif, places),
        )

    def _savings(self, whatif: WhatIf, sharding: Sharding, computed: KernelWork) -> tuple[Floats, Floats]:
        """What more overlap would hide in forward and in backward, shape (S,) each, ns.

        Where steps can be replayed, at least what collectives begin late because the host launches them late.
        """
        in_backward = whatif.at_slowest(computed.backward_compute_ns)
        in_forward = whatif.at_slowest(computed.kernel_ns) - in_backward
        forward = self._saving(whatif, sharding.forward_ns, sharding.forward_exposed_ns, sharding.first_ns, in_forward)
        backward = self._saving(
            whatif, sharding.backward_ns, sharding.backward_exposed_ns, sharding.last_ns, in_backward
        )
        if whatif.replay is None:
            return forward, backward
        calls, schedule = sharding.calls, whatif.replay.schedule
        return (
            np.maximum(forward, whatif.at_slowest(calls.late_ns(schedule, forward=True))),
            np.maximum(backward, whatif.at_slowest(calls.late_ns(schedule, forward=False))),
        )

    def _saving(self, whatif: WhatIf, total_ns: Ints, exposed_ns: Ints, bare_ns: Ints, compute_ns: Ints) -> Floats:
        """What more overlap with so much compute would hide, shape (S,), ns; `bare_ns` cannot be hidden."""
        total, exposed, bare = (whatif.at_slowest(values) for values in (total_ns, exposed_ns, bare_ns))
        hideable = np.minimum(np.maximum(total - bare, 0), np.maximum(compute_ns, 0))
        saving: Floats = np.clip(self.achievable * hideable - (total - exposed), 0, np.maximum(exposed - bare, 0))
        return saving


def _fix(cause: str, sharding: Sharding, plans: Plans, has_nodes: bool) -> str:
    if cause == "forward" and sharding.calls.follow_the_update:
        return _AFTER_THE_UPDATE
    between = _BETWEEN_NODES if has_nodes else ""
    smaller = _FLOAT32 if "Float" in sharding.dtypes else ""
    advice, code = (_FORWARD if cause == "forward" else _BACKWARD).split("\n\n", 1)
    predicted = plans.said(*map(plans.predict, _ASKED), plans.larger_units())
    return f"{advice}{predicted}\n\n{code}{smaller}{between}"


#: What the fix changes, one by one: all-gathers that never wait for the CPU, units gathered ahead, and parameters kept
#: after the forward pass.
_ASKED = (Question(gathers_in_time=True), Question(prefetch=1), Question(prefetch=2), Question(sharding="zero2"))
#: Latency takes more than this share of the all-gathers where units are small.
_SMALL = 0.3
_STAGES = {
    "zero2": "ZeRO stage 2 (SHARD_GRAD_OP: parameters stay gathered after the forward pass)",
    "zero3": "ZeRO stage 3 (FULL_SHARD: the backward pass gathers parameters again)",
}


def _as_sharded(recorded: ShardedRecord | None, sharding: Sharding) -> str:
    """How the job shards, and what its all-gathers wait for, sentences and a space; "" where that does not show."""
    if recorded is None:
        return ""
    size = wording.size(recorded.least_bytes)
    if recorded.most_bytes > recorded.least_bytes:
        size += f" to {wording.size(recorded.most_bytes)}"
    copies = f" and {recorded.copies} copies (HSDP)" if recorded.copies > 1 else ""
    said = (
        f"The job shards as {_STAGES[recorded.stage]} among {recorded.shards} ranks{copies}, in "
        f"{_units(recorded.units)} of {size}; {_ahead(recorded)}. "
    )
    if recorded.late_gathers >= 0.5:
        said += (
            f"{wording.decimals(recorded.late_gathers, 0)} of {wording.decimals(recorded.gathers, 0)} all-gathers a "
            f"step start only when the CPU launches them, with the GPU idle ({wording.ms(1e6 * recorded.late_ms)} "
            "exposed). "
        )
    if sharding.latency_share > _SMALL:
        said += f"Units are small: latency takes {wording.percent(sharding.latency_share)} of the all-gathers. "
    return said


def _units(count: int) -> str:
    return f"{count} unit{'' if count == 1 else 's'}"


def _ahead(recorded: ShardedRecord) -> str:
    forward, backward = recorded.ahead_forward, recorded.ahead_backward
    if recorded.stage == "zero2":
        return f"forward gathers {_units(forward)} ahead"
    return f"forward gathers {_units(forward)} ahead, backward {backward}"


_FORWARD = """\
Gather the next unit's parameters while this one computes. If every unit computes for less time than the next \
all-gather takes, wrap more layers in one unit. If the GPU is launch-bound, fix that first.

# FSDP2: each block gathers the next one's parameters
for block, following in zip(blocks, blocks[1:]):
    block.set_modules_to_forward_prefetch([following])

# FSDP1
model = FullyShardedDataParallel(model, forward_prefetch=True, limit_all_gathers=True, ...)"""

_AFTER_THE_UPDATE = """\
Gather the updated parameters while the next forward pass computes, those of a layer before it needs them, instead of \
all of them after the optimizer's step.

# Megatron-LM
--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather

# FSDP2 gathers unit by unit in forward; parameters stay for backward, as without it
fully_shard(block, reshard_after_forward=False)"""

_BACKWARD = """\
Gather the next unit's parameters before this one's gradients are computed, so that the all-gather overlaps compute. \
If memory allows, keep parameters after the forward pass: backward then gathers nothing. Larger units help if a unit \
computes for less time than the next all-gather takes.

# FSDP2: each block gathers the parameters of the one before it
for block, following in zip(blocks[1:], blocks):
    block.set_modules_to_backward_prefetch([following])
fully_shard(block, reshard_after_forward=False)  # more memory, no all-gather in backward

# FSDP1
from torch.distributed.fsdp import BackwardPrefetch, ShardingStrategy
model = FullyShardedDataParallel(
    model,
    backward_prefetch=BackwardPrefetch.BACKWARD_PRE,
    sharding_strategy=ShardingStrategy.SHARD_GRAD_OP,  # more memory, no all-gather in backward
    ...
)"""

_FLOAT32 = """

# parameters are gathered as float32: half the bytes as bfloat16
fully_shard(block, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))"""

_BETWEEN_NODES = """

# shards within a node, copies between nodes, if memory allows: no all-gather crosses the slow links
mesh = init_device_mesh("cuda", (nodes, gpus_per_node), mesh_dim_names=("replicate", "shard"))
fully_shard(block, mesh=mesh)  # FSDP1: sharding_strategy=ShardingStrategy.HYBRID_SHARD"""
