"""See `RoleBubble`."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np

from tb_ddp_doctor import wording
from tb_ddp_doctor.digest.model import CpuTime
from tb_ddp_doctor.facts.evidence_locator import Places
from tb_ddp_doctor.facts.frame import Frame
from tb_ddp_doctor.findings import Measurement
from tb_ddp_doctor.job.model import Budget
from tb_ddp_doctor.replay.change import Change
from tb_ddp_doctor.replay.whatif import WhatIf
from tb_ddp_doctor.rules.support import long_tail
from tb_ddp_doctor.rules.support.base import Clear, Fault, NotApplicable, Result, Rule, threshold
from tb_ddp_doctor.rules.support.host_work import shares
from tb_ddp_doctor.trace.model import Flags, Ints
from tb_ddp_doctor.trace.program_names import Program, Role


class _Roles(msgspec.Struct, frozen=True, eq=False):
    """A job of several roles. R = ranks, S = steps."""

    frame: Frame
    whatif: WhatIf
    places: Places
    #: How long GPUs work, and wait for other ranks, shape (R, S), ns.
    busy_ns: Ints
    wait_ns: Ints
    #: The ranks (indices) of each role.
    ranks: Mapping[str, Ints]


class RoleBubble(Rule):
    """Roles of reinforcement learning wait for each other: the GPUs of one idle while those of another compute.

    What:
        Ranks that generate and ranks that train (or score), one after the other in each step. The cost is what the step
        would save if the shorter roles ran beside the longest one: at most the idle time of that one. And the long tail
        of generation (`long_tail`): all ranks wait for the longest rollout. Its cost is what the step would save if all
        took as long as the median one.
    Why:
        The update needs the samples, and the next rollout needs the new weights. If both wait for each other in every
        step, the step takes as long as all roles together, and each GPU idles while the others compute.
    Evidence:
        The step in which the longest role waits longest.
    Fix:
        Rollouts one step ahead of the update (asynchronous, one step off-policy), all roles on the same GPUs in turn,
        or fewer GPUs for the shorter role. For the tail: answers that go on in the next step (partial rollouts), or
        more prompts than needed.
    Limits:
        Annotations (`generate_sequences`, `update_actor`) say the role of a rank, else what it does. The samples of a
        rollout that is a step ahead are of older weights: whether training takes that is not in the traces. Half of the
        cost is the lower end of its interval, since roles that run at once share links and hosts.
    """

    id = "role-bubble"
    subject = "Waiting of roles for each other"
    refines = (
        "communication-bound", "host-stall", "load-imbalance", "no-overlap", "op-stall", "host-sync", "straggler",
    )  # fmt: skip

    min_cost: float = threshold(
        0.1, "of the step", "Roles that hand over samples and weights wait a little for each other."
    )

    tail: float = threshold(1.2, "times as long", "Rollouts of even batches differ by a tenth.", least=1.0)

    def check(self, *, frame: Frame, whatif: WhatIf, budget: Budget, places: Places) -> Result:
        if frame.program != Program.RL.value:
            return Clear("This job does no reinforcement learning.")
        busy = budget.of("compute") + budget.of("copy")
        of_role = {role: np.flatnonzero(np.array(frame.roles) == role) for role in dict.fromkeys(frame.roles) if role}
        if len(of_role) < 2:
            return Clear("All ranks do the same roles in turn: none waits for another role.")
        if not whatif.plays:
            return NotApplicable(
                "Steps cannot be replayed, so it is not known what roles cost that wait for each other."
            )
        roles = _Roles(frame, whatif, places, busy, budget.of("wait"), of_role)
        bubble, tail = self._bubble(roles), self._long_tail(roles)
        if tail is None:
            return bubble
        return (bubble, tail) if isinstance(bubble, Fault) else tail

    def _bubble(self, roles: _Roles) -> Fault | Clear:
        """What roles cost that wait for each other."""
        frame, whatif, busy, of_role = roles.frame, roles.whatif, roles.busy_ns, roles.ranks
        takes = {role: float(busy[ranks].mean(axis=1).max()) for role, ranks in of_role.items()}
        longest = max(takes, key=lambda role: takes[role])
        mine = np.isin(np.arange(len(frame.ranks)), of_role[longest])
        others = round(sum(takes[role] for role in of_role if role != longest))
        waits = np.where(mine[:, None], np.maximum(others - roles.wait_ns, 0), 0)
        idle = frame.window_ns - busy
        idles = float(idle[of_role[longest]].mean())
        # Ranks that no collective joins to the longest role would seem to gain all that they do.
        saved = whatif.cost_ns(_at_once(whatif, mine, waits, 1.0))
        most = min(idles / max(saved, 1.0), 1.0)
        change, half = (_at_once(whatif, mine, waits, most * share) for share in (1.0, 0.5))
        cost = whatif.cost_ns(change)
        if cost < self.min_cost * frame.step_ns:
            return Clear(f"Roles that wait for each other cost {wording.ms(cost)} a step.")
        rank = int(of_role[longest][idle[of_role[longest]].mean(axis=1).argmax()])
        return Fault(
            change=change,
            confidence="medium" if len(frame.steps) > 1 else "low",
            title=f"Roles wait for each other: {_listed(takes, of_role, frame)}, one after the other in a step of "
            f"{wording.ms(frame.step_ns)}.",
            why=f"The GPUs of {longest}, the longest role, wait or idle {wording.ms(idles)} a step. If all roles ran "
            f"at once, on batches that are a step apart, the step would take about as long as {longest} alone.",
            fix=_FIX,
            evidence=(
                roles.places.window(rank, int(idle[rank].argmax()), f"The step in which {longest} waits longest."),
            ),
            measurements=tuple(
                Measurement(f"compute of {role}", takes[role] / 1e6, "ms", frame.rank_numbers(ranks), frame.all_steps)
                for role, ranks in of_role.items()
            ),
            between=(half, change),
        )

    def _long_tail(self, roles: _Roles) -> Fault | None:
        """What it costs that all wait for the longest rollout; None where rollouts take about as long.

        Ranks that do not wait in a collective wait on the CPU, outside any op: for samples that a queue hands over.
        Such a stall begins in the step before, so that of all steps the same share goes.
        """
        frame, whatif, busy = roles.frame, roles.whatif, roles.busy_ns
        rollouts = roles.ranks.get(Role.ROLLOUT.value, np.empty(0, np.int64))
        if len(rollouts) < _FEWEST_ROLLOUTS:
            return None
        own, more = busy[rollouts], np.zeros_like(busy)
        typical = np.median(own, axis=0)
        more[rollouts] = np.where(own > self.tail * typical, own - typical, 0)
        waits = np.maximum(more.max(axis=0) - more - roles.wait_ns, 0)
        stalls = whatif.host_ns(CpuTime.STALL).sum(axis=1)
        share = np.minimum(waits.sum(axis=1) / np.maximum(stalls, 1), 1.0)[:, None]
        change = Change({CpuTime.STALL: np.broadcast_to(share, whatif.shape)}, device_ns=more)
        cost, late = whatif.cost_ns(change), more.any(axis=0)
        if cost < self.min_cost * frame.step_ns:
            return None
        longest, step = rollouts[own.argmax(axis=0)], int(more.max(axis=0).argmax())
        ranks = np.unique(longest[late])
        whose = "always on one rank" if len(ranks) == 1 else f"in turn on {len(ranks)} ranks"
        return Fault(
            change=change,
            ranks=frame.rank_numbers(ranks),
            steps=tuple(frame.steps[late].tolist()),
            cause=long_tail.CAUSE,
            subject="The long tail of generation",
            confidence="medium" if late.sum() > 1 else "low",
            title=f"Generation has a long tail: the longest rollout of a step computes "
            f"{wording.ms(float(own.max(axis=0)[late].mean()))}, the median one "
            f"{wording.ms(float(typical[late].mean()))}.",
            why=f"All other ranks wait for its longest answers. It is {whose}.",
            fix=long_tail.FIX,
            evidence=(roles.places.window(int(longest[step]), step, "The step with the longest tail, on its rank."),),
        )


def _at_once(whatif: WhatIf, longest: Flags, waits_ns: Ints, share: float) -> Change:
    """The steps if a share of the other roles' work ran beside that of the longest role, whose ranks are flagged.

    The longest role's CPUs then do not wait for it, outside any op, for up to `waits_ns`, shape (R, S).
    """
    rows = np.where(longest, 0.0, share)[:, None]
    host = {kind: np.broadcast_to(rows, whatif.shape).copy() for kind in CpuTime if whatif.host_ns(kind).any()}
    for kind, part in shares(whatif, waits_ns, (CpuTime.STALL,)).items():
        host[kind] = host[kind] + share * part
    return Change(host=host, device_ns=(whatif.device_ns * rows).astype(np.int64))


def _listed(takes: Mapping[str, float], of_role: Mapping[str, Ints], frame: Frame) -> str:
    """Each role with its ranks and what it computes, the longest first."""
    return wording.listing(
        [
            f"{role} ({wording.ranks(frame.rank_numbers(of_role[role]))}) computes {wording.ms(takes[role])}"
            for role in sorted(takes, key=lambda role: -takes[role])
        ]
    )


#: A median of two rollouts says nothing of a tail.
_FEWEST_ROLLOUTS = 3
_FIX = """\
Let the rollout run a step ahead of the update (asynchronous), or all roles on the same GPUs in turn, or give the \
shorter role fewer GPUs.

# verl
python -m recipe.one_step_off_policy.main_ppo ...
# OpenRLHF
... --async_train    # or all roles on the same GPUs: --colocate_all_models"""
