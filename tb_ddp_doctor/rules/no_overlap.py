"""See `NoOverlap`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from tb_ddp_doctor import wording
from tb_ddp_doctor.digest.model import KernelWork
from tb_ddp_doctor.facts.arrivals import Absent
from tb_ddp_doctor.facts.evidence_locator import Places
from tb_ddp_doctor.facts.frame import Frame
from tb_ddp_doctor.facts.links import Link, excess_ns, excess_share
from tb_ddp_doctor.facts.needless_allreduces import UnusedSearch
from tb_ddp_doctor.facts.transfers import LastBuckets, Transfers
from tb_ddp_doctor.planning.buckets import MIB
from tb_ddp_doctor.planning.fact import Plans
from tb_ddp_doctor.replay.change import Change
from tb_ddp_doctor.replay.whatif import WhatIf
from tb_ddp_doctor.rules.support import certainty, limits, part
from tb_ddp_doctor.rules.support.base import Clear, Fault, NotApplicable, Result, Rule, threshold
from tb_ddp_doctor.rules.support.exposed import most_exposed
from tb_ddp_doctor.trace.model import Ints


class NoOverlap(Rule):
    """AllReduce runs after the backward pass instead of beside it.

    What:
        AllReduces that are exposed, although the backward pass is long enough to hide them.
    Why:
        DDP sends a bucket of gradients as soon as it is full, while backward goes on. During one large bucket, or one
        that is complete only at the end, the GPU has nothing else to do.
    Evidence:
        The longest exposed communication on the slowest rank of the step.
        The cause is `one_bucket` (nearly all bytes are in one), `few_buckets` (several that overlap, and a large last
        one that cannot), `after_backward` (the backward pass launches none of them), `ready_at_end` (its gradients are
        ready together, when it ends), `unused_search` (several, but DDP searches for unused parameters, and so never
        orders its buckets as gradients become ready) or `late_buckets` (several, for another reason).
    Fix:
        By cause: smaller buckets; DDP instead of a loop over gradients; a backward pass in parts; no search for unused
        parameters, or a static graph.
    Limits:
        AllReduces of gradients only, and backward kernels must be joined to their launches. Judged on the slowest rank:
        a rank that waits for it exposes communication that would otherwise be hidden. The last bucket is always
        exposed: `few_buckets` is what it exposes beyond a bucket of DDP's default size, or of its largest gradient
        (without record_shapes, its mean one). Where gradients accumulate, only passes that send
        count. If the backward pass is short compared to the communication, it is communication-bound.
    """

    id = "no-overlap"
    subject = "AllReduce without overlap"
    refines = "communication-bound"

    max_hidden: float = threshold(
        0.25, "of what could hide", "Overlapping DDP jobs hide 0.5 to 0.8 of it; one bucket hides none."
    )
    achievable: float = threshold(*limits.ACHIEVABLE_OVERLAP)
    min_backward: float = threshold(
        0.2, "of the communication", "A shorter backward pass could hide at best an eighth of the communication."
    )
    at_end: float = threshold(
        0.1, "of the backward pass", "Layer by layer, gradients become ready over most of it; of one graph all at once."
    )
    one_bucket: float = threshold(0.8, "of the bytes", "DDP's default first bucket of 1 MB leaves less to the largest.")
    default_bucket: float = threshold(25.0, "MiB", "DDP's default bucket_cap_mb: the tail of such a bucket is usual.")
    min_cost: float = threshold(0.01, "of the step", "Less is the tail that every DDP job exposes.")
    max_absent: float = threshold(*limits.MISSING_STRAGGLER)
    slow_link: float = threshold(*limits.SLOW_LINK)
    slow_steps: float = threshold(*limits.SLOW_RANK_STEPS)

    def check(
        self,
        *,
        frame: Frame,
        whatif: WhatIf,
        transfers: Transfers,
        last_buckets: LastBuckets | None,
        absent: Absent,
        unused_search: UnusedSearch,
        links: tuple[Link, ...],
        computed: KernelWork,
        places: Places,
        plans: Plans,
    ) -> Result:
        slow = [link for link in links if link.is_slow(self.slow_link, self.slow_steps)]
        transfers = _at_median_rate(transfers, excess_ns(slow, *whatif.shape))
        total = float(whatif.at_slowest(transfers.allreduce_ns).mean())
        exposed = float(whatif.at_slowest(transfers.allreduce_exposed_ns).mean())
        backward = float(whatif.at_slowest(computed.backward_compute_ns).mean()) * transfers.sending_passes
        hideable = min(total, backward)
        if total <= 0:
            return Clear("There is no AllReduce.")
        waits = float(absent.wait_ns.min(axis=0).mean()) if absent.ranks else 0.0
        if waits >= self.max_absent * frame.step_ns:
            return NotApplicable(
                f"All ranks with a trace wait for one without, {wording.ms(waits)} a step: overlap cannot be judged."
            )
        hidden = total - exposed
        saving = np.minimum(self.achievable * hideable - hidden, exposed)
        if hideable <= 0:
            return NotApplicable(
                "No kernel was launched by a backward pass, so there is nothing to hide AllReduce behind."
            )
        if hideable < self.min_backward * total:
            return Clear(
                f"The backward pass computes for {wording.ms(backward)}, too short to hide {wording.ms(total)} of "
                "AllReduce."
            )
        if hidden > self.max_hidden * hideable or saving < self.min_cost * frame.step_ns:
            return self._few_buckets(last_buckets, slow, hideable - hidden, frame, whatif, places, plans) or Clear(
                f"{wording.ms(hidden)} of {wording.ms(total)} of AllReduce are hidden behind compute "
                f"({wording.percent(hidden / hideable)} of what the backward pass could hide)."
            )
        change = Change(transfer_ns=np.full(whatif.shape, round(saving)))
        by_step = whatif.at_slowest(transfers.allreduce_exposed_ns)
        seen = int((by_step > 0.5 * total).sum())
        level, basis = certainty.confidence(frame, whatif.cost_ns(change), seen, of_transfer=True)
        cause = self._cause(transfers, unused_search, backward)
        return Fault(
            change=change,
            cause=cause,
            confidence=level,
            title=f"AllReduce runs after backward instead of beside it: "
            f"{part.mean(by_step, whatif.at_slowest(frame.window_ns))} is exposed on the slowest rank.",
            why=f"{_seen(cause, transfers)} Backward computes for {wording.ms(backward)} and hides "
            f"{wording.ms(max(hidden, 0))} of it. {basis}",
            fix=_fix(cause, transfers.allreduce_bytes, plans),
            evidence=most_exposed(by_step, whatif, places, "AllReduce: backward is over."),
        )

    def _few_buckets(
        self,
        last: LastBuckets | None,
        slow: Sequence[Link],
        hideable_ns: float,
        frame: Frame,
        whatif: WhatIf,
        places: Places,
        plans: Plans,
    ) -> Fault | None:
        """The finding on a last bucket that is larger than it need be; None where it costs little.

        It is full when backward is over, so all of it is exposed. What a smaller one leaves for earlier ones is hidden
        as far as backward has compute to hide it, `hideable_ns`. What the `slow` links take longer is slow-link's.
        """
        if last is None or not whatif.plays:
            return None
        exposed = whatif.at_slowest(np.maximum(last.exposed_ns - excess_ns(slow, *whatif.shape), 0))
        mean = float(exposed.mean())
        share = 1 - max(self.default_bucket * MIB, last.least_bytes) / last.bytes
        saving = min(share * mean, hideable_ns)
        if saving <= 0 or saving < self.min_cost * frame.step_ns:
            return None
        longer = excess_share(slow)
        at_median = np.array([1 - longer.get(row, 0.0) for row in last.rows.tolist()])
        change = whatif.shorter_transfers(last.rows, saving / mean * at_median)
        level, basis = certainty.confidence(
            frame, whatif.cost_ns(change), int((exposed > 0.5 * mean).sum()), of_transfer=True
        )
        return Fault(
            change=change,
            cause="few_buckets",
            confidence=level,
            title="The last bucket of gradients is large, and no compute is left beside it: "
            f"{part.mean(exposed, whatif.at_slowest(frame.window_ns))} is exposed on the slowest rank.",
            why=f"It has {wording.size(last.bytes)}, and is full only when backward is over. {basis}",
            fix=_fix("few_buckets", last.bytes, plans),
            evidence=most_exposed(exposed, whatif, places, "last AllReduce: backward is over."),
        )

    def _cause(self, transfers: Transfers, search: UnusedSearch, backward_ns: float) -> str:
        if not transfers.from_backward:
            return "after_backward"
        if transfers.ready_within_ns is not None and transfers.ready_within_ns < self.at_end * backward_ns:
            return "ready_at_end"
        if transfers.largest_share > self.one_bucket:
            return "one_bucket"
        return "unused_search" if search.walks.any() else "late_buckets"


def _at_median_rate(transfers: Transfers, longer_ns: Ints) -> Transfers:
    """The transfers without what slow links take longer, `longer_ns` of shape (R, S), ns: that is slow-link's."""
    return replace(
        transfers,
        allreduce_ns=np.maximum(transfers.allreduce_ns - longer_ns, 0),
        allreduce_exposed_ns=np.maximum(transfers.allreduce_exposed_ns - longer_ns, 0),
    )


def _seen(cause: str, transfers: Transfers) -> str:
    """What was seen that shows the cause, a sentence."""
    size = f" of {wording.size(transfers.allreduce_bytes)}" if transfers.allreduce_bytes else ""
    calls = f"{transfers.allreduces} AllReduce{'s' if transfers.allreduces > 1 else ''} a step"
    if cause == "after_backward":
        return f"The gradients{size} go in {calls}, and the backward pass launches none of them."
    if cause == "ready_at_end":
        return (
            f"The gradients{size} go in {calls}, and are ready together, when backward has ended: it is one piece, as "
            "a compiled or captured graph is."
        )
    if cause == "one_bucket":
        if transfers.allreduces == 1:
            return f"The gradients{size} go in one bucket, which is full only when backward is over."
        largest = wording.percent(transfers.largest_share)
        return f"Of the gradients{size}, {largest} go in one bucket, which is full only when backward is over."
    if cause == "unused_search":
        return (
            f"The gradients{size} go in {calls}, none beside backward: with the search for unused parameters, DDP "
            "keeps its first order of buckets and does not adapt it to the order in which gradients become ready."
        )
    return f"The gradients{size} go in {calls}, none beside backward."


def _fix(cause: str, size: int, plans: Plans) -> str:
    """With the buckets that are predicted to be best; else of a fifth of the gradients, which overlap."""
    if cause == "ready_at_end":
        return _IN_PARTS
    best = None if cause == "after_backward" else plans.best_buckets()
    bucket = min(max(round(size / 5 / 2**20), 1), 25) if size else 5
    if best and best.question.bucket_mb:
        bucket = round(best.question.bucket_mb)
    return f"""\
{_ADVICE[cause]}{plans.said(best)}

model = DistributedDataParallel(
    model,
    device_ids=[local_rank],
    bucket_cap_mb={bucket},
    gradient_as_bucket_view=True,
    find_unused_parameters=False,
    static_graph=True,  # if the graph never changes
)"""


_IN_PARTS = """\
Let backward run in parts, so that the gradients of one are sent while the next one runs: wrap the model in \
DistributedDataParallel first and compile it then, since torch.compile splits its graph at DDP's buckets only if it \
sees them; or compile each layer.

torch._dynamo.config.optimize_ddp = "ddp_optimizer"  # the default: one graph for each bucket
model = torch.compile(DistributedDataParallel(model, device_ids=[local_rank], gradient_as_bucket_view=True))"""

_ADVICE = {
    "one_bucket": """\
Let DDP send gradients while backward goes on: about five buckets or more, and nothing that delays the first. Set \
find_unused_parameters only if the model needs it.""",
    "few_buckets": """\
Make buckets smaller: the last one is then full soon after the one before it, and only its few bytes are sent when \
backward is over.""",
    "after_backward": """\
Let the backward pass send gradients as they become ready: wrap the model in DistributedDataParallel instead of \
reducing gradients after it, or start each AllReduce from the parameter's register_post_accumulate_grad_hook with \
async_op=True.""",
    "unused_search": """\
Turn the search for unused parameters off, or declare the graph static if the same ones are unused in all steps; then \
DDP orders its buckets by the first backward pass.""",
    "late_buckets": """\
Look at what delays the first bucket: parameters that are registered first but used last, a module that is used twice, \
or a communication hook that waits. Set find_unused_parameters only if the model needs it.""",
}
