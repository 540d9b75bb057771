"""See `RoleBubble`."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np

from tb_ddp_doctor import wording
from tb_ddp_doctor.digest.model import CpuTime, KernelWork
from tb_ddp_doctor.facts.evidence_locator import Places
from tb_ddp_doctor.facts.frame import Frame
from tb_ddp_doctor.facts.transfers import WeightSync
from tb_ddp_doctor.findings import Measurement
from tb_ddp_doctor.job.model import Budget
from tb_ddp_doctor.job.rl_roles import MORE_KERNELS, NO_NAME
from tb_ddp_doctor.replay.change import Change
from tb_ddp_doctor.replay.whatif import WhatIf
from tb_ddp_doctor.rules.support import long_tail, part
from tb_ddp_doctor.rules.support.base import Clear, Fault, NotApplicable, Result, Rule, threshold
from tb_ddp_doctor.trace.model import Ints
from tb_ddp_doctor.trace.program_names import Program, Role


class _Roles(msgspec.Struct, frozen=True, eq=False):
    """A job of several roles. R = ranks, S = steps."""

    frame: Frame
    whatif: WhatIf
    places: Places
    #: How long GPUs work, shape (R, S), ns.
    busy_ns: Ints
    #: The ranks (indices) of each role.
    ranks: Mapping[str, Ints]


class RoleBubble(Rule):
    """Roles of reinforcement learning wait for each other: the GPUs of one idle while those of another compute.

    What:
        Ranks that generate and ranks that train (or score), one after the other in each step. The cost is what the step
        would save if it took as long as the longest role alone takes, without what the other ranks do (replay). The
        long tail of generation (`long_tail`): all ranks wait for the longest rollout. Its cost is what the step would
        save if all took as long as the median one. And the weight sync (`weight_sync`): collectives between ranks of
        different roles, in which no role computes. Its cost is the time that they are exposed, without waiting. And the
        scores (`reward`): the update waits for ranks that only judge the answers. Its cost is what the step would save
        if these ranks had nothing to do.
    Why:
        The update needs the samples, and the next rollout needs the new weights. If both wait for each other in every
        step, the step takes as long as all roles together, and each GPU idles while the others compute.
    Evidence:
        The step in which the longest role waits longest; that of the longest rollout, and of the longest weight sync.
    Fix:
        Rollouts one step ahead of the update (asynchronous, one step off-policy), all roles on the same GPUs in turn,
        or fewer GPUs for the shorter role. For the tail: answers that go on in the next step (partial rollouts), or
        more prompts than needed. For the sync: weights that are sent while rollouts go on, in large buckets, over
        faster links, in fewer bytes.
    Limits:
        Annotations (`generate_sequences`, `update_actor`) say the role of a rank, else what it does; ranks of which
        nothing says it are "another role" together. The samples of a rollout that is a step ahead are of older weights:
        whether training takes that is not in the traces. Half of the cost is the lower end of its interval, since roles
        that run at once share links and hosts. What a role waits for without a collective is known by its pauses, which
        at least half of its ranks, and more than one, end together; the stalls of one rank are its own. A rollout that
        takes longer for as many kernels is `straggler`'s, and so is what roles wait that would not if all ranks of a
        role took as long. Roles on the same GPUs take turns; that is known where the traces number the GPUs of a host
        differently, and that they do not, where collectives join them or both compute at once.
    """

    id = "role-bubble"
    subject = "Waiting of roles for each other"
    refines = (
        "communication-bound", "host-stall", "load-imbalance", "no-overlap", "op-stall", "host-sync", "straggler",
    )  # fmt: skip

    min_cost: float = threshold(
        0.1, "of the step", "Roles that hand over samples and weights wait a little for each other."
    )

    min_sync: float = threshold(0.2, "of the step", "Broadcasts over fast links take a twentieth of a round or less.")

    tail: float = threshold(1.2, "times as long", "Rollouts of even batches differ by a tenth.", least=1.0)

    more_kernels: float = threshold(
        MORE_KERNELS, "times as many", "With longer answers a rollout launches more.", least=1.0
    )

    def check(
        self,
        *,
        frame: Frame,
        whatif: WhatIf,
        budget: Budget,
        computed: KernelWork,
        weight_sync: WeightSync | None,
        places: Places,
    ) -> Result:
        if frame.program != Program.RL.value:
            return Clear("This job does no reinforcement learning.")
        busy = budget.of("compute") + budget.of("copy")
        if len(set(frame.roles) - {""}) < 2 or frame.roles_share_gpus:
            return Clear("The same GPUs do all roles in turn: none waits for another role.")
        if not whatif.plays:
            return NotApplicable(
                "Steps cannot be replayed, so it is not known what roles cost that wait for each other."
            )
        names = np.array(frame.roles)
        of_role = {role or NO_NAME: np.flatnonzero(names == role) for role in dict.fromkeys(frame.roles)}
        roles = _Roles(frame, whatif, places, busy, of_role)
        scoring = self._scoring(roles)
        bubble, tail = self._bubble(roles, scoring), self._long_tail(roles, computed.kernels)
        sync = self._weight_sync(roles, weight_sync) if weight_sync else self._sending(roles)
        faults = tuple(one for one in (bubble, scoring, tail, sync) if isinstance(one, Fault))
        return faults or bubble

    def _bubble(self, roles: _Roles, scoring: Fault | None) -> Fault | Clear:
        """What roles cost that wait for each other; beyond what they wait for scores, if that is found."""
        frame, whatif, busy = roles.frame, roles.whatif, roles.busy_ns
        of_role = {role: ranks for role, ranks in roles.ranks.items() if not scoring or role != Role.REWARD.value}
        takes = {role: float(busy[ranks].mean(axis=1).max()) for role, ranks in of_role.items()}
        idle = frame.window_ns - busy
        every = np.setdiff1d(np.arange(len(busy)), roles.ranks[Role.REWARD.value] if scoring else [])
        longest, _ = _longest(whatif, of_role, every)
        others = np.setdiff1d(every, of_role[longest])
        change, half = (_without(whatif, others, share) for share in (1.0, 0.5))
        even = _if_even(whatif, scoring.change if scoring else Change())
        cost = min(whatif.cost_ns(change), _longest(even, of_role, every)[1])
        idles = float(idle[of_role[longest]].mean())
        if cost < self.min_cost * frame.step_ns:
            return Clear(f"Roles that wait for each other cost {wording.ms(cost)} a step.")
        rank = int(of_role[longest][idle[of_role[longest]].mean(axis=1).argmax()])
        in_turn = "" if frame.roles_share_gpus is False else _IN_TURN
        return Fault(
            change=change,
            confidence="medium" if len(frame.steps) > 1 and not in_turn else "low",
            title=f"Roles wait for each other: {_listed(takes, of_role, frame)}, one after the other in a step of "
            f"{wording.ms(frame.step_ns)}.",
            why=f"The GPUs of {longest}, the longest role, wait or idle {wording.ms(idles)} a step. If all roles ran "
            f"at once, on batches that are a step apart, the step would take about as long as {longest} alone."
            f"{in_turn}",
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

    def _scoring(self, roles: _Roles) -> Fault | None:
        """What it costs that others wait for ranks that only score; None where that is little."""
        frame, whatif, busy = roles.frame, roles.whatif, roles.busy_ns
        if Role.REWARD.value not in roles.ranks:
            return None
        ranks = roles.ranks[Role.REWARD.value]
        change, half = (_without(whatif, ranks, share) for share in (1.0, 0.5))
        # Of several, one may be slow; a single one has no peer.
        even = _if_even(whatif, Change()) if len(ranks) > 1 else whatif
        if min(whatif.cost_ns(change), even.cost_ns(change)) < self.min_cost * frame.step_ns:
            return None
        rank, step = (int(index) for index in np.unravel_index(busy[ranks].argmax(), busy[ranks].shape))
        takes = float(busy[ranks].mean(axis=1).max())
        return Fault(
            change=change,
            ranks=frame.rank_numbers(ranks),
            cause="reward",
            subject="Waiting for the scores",
            confidence="medium" if len(frame.steps) > 1 else "low",
            title=f"The update waits for the scores: reward ({wording.ranks(frame.rank_numbers(ranks))}) computes "
            f"{wording.ms(takes)} of a step of {wording.ms(frame.step_ns)}.",
            why="These ranks neither train nor get new weights: they judge the answers, and until they have, those "
            "that train wait. The step would be so much shorter if scores took no time; half of the cost is what twice "
            "as many of these ranks would save.",
            fix=_FIX_OF_SCORING,
            evidence=(roles.places.window(int(ranks[rank]), step, "The step in which it takes longest to score."),),
            between=(half, change),
        )

    def _long_tail(self, roles: _Roles, kernels: Ints) -> Fault | None:
        """What it costs that all wait for the longest rollout; None where rollouts take about as long.

        A rollout that takes longer for as many kernels has no longer answers, but a slow GPU. `kernels` have the shape
        (R, S).
        """
        frame, whatif, busy = roles.frame, roles.whatif, roles.busy_ns
        rollouts = roles.ranks.get(Role.ROLLOUT.value, np.empty(0, np.int64))
        if len(rollouts) < _FEWEST_ROLLOUTS:
            return None
        own, more = busy[rollouts], np.zeros_like(busy)
        typical = np.median(own, axis=0)
        has_more = kernels[rollouts] > self.more_kernels * np.median(kernels[rollouts], axis=0)
        more[rollouts] = np.where(has_more & (own > self.tail * typical), own - typical, 0)
        change = Change(device_ns=more)
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

    def _weight_sync(self, roles: _Roles, sync: WeightSync) -> Fault | None:
        """What the weights cost that are sent while no role computes; None where that is little."""
        frame, whatif = roles.frame, roles.whatif
        change, half = (Change(transfer_ns=np.rint(sync.exposed_ns * share).astype(np.int64)) for share in (1.0, 0.5))
        if whatif.cost_ns(change) < self.min_sync * frame.step_ns:
            return None
        exposed = whatif.at_slowest(sync.exposed_ns)
        rank, step = (int(index) for index in np.unravel_index(sync.exposed_ns.argmax(), whatif.shape))
        rate = sync.bytes_per_step / max(float(exposed.mean()), 1.0) * 1e9
        sent = f" {wording.size(sync.bytes_per_step)} at {wording.gigabytes_per_second(rate)}." if rate else ""
        return Fault(
            change=change,
            cause="weight_sync",
            subject="The weight sync",
            confidence="medium" if len(frame.steps) > 1 else "low",
            title=f"The weight sync is exposed {part.mean(exposed, whatif.at_slowest(frame.window_ns))}: no role "
            "computes meanwhile.",
            why=f"Weights go from role to role in collectives, and their ranks wait until they are there.{sent} Half "
            "of the cost is what half of the bytes or twice the bandwidth would save.",
            fix=_FIX_OF_SYNC,
            evidence=(roles.places.window(rank, step, "The step with the longest weight sync."),),
            between=(half, change),
        )

    def _sending(self, roles: _Roles) -> Fault | None:
        """What the weights cost that one rank sends alone, without a collective; None where that is little."""
        frame, whatif = roles.frame, roles.whatif
        change = whatif.at_the_median(whatif.sending_ns > 0)
        if whatif.cost_ns(change) < self.min_sync * frame.step_ns:
            return None
        rank, step = (int(index) for index in np.unravel_index(whatif.sending_ns.argmax(), whatif.shape))
        takes = whatif.at_slowest(whatif.sending_ns.max(axis=0, keepdims=True).repeat(whatif.shape[0], axis=0))
        return Fault(
            change=change,
            ranks=frame.rank_numbers(np.flatnonzero(whatif.sending_ns.any(axis=1))),
            cause="weight_sync",
            subject="The weight sync",
            confidence="medium" if len(frame.steps) > 1 else "low",
            title=f"The weight sync takes {part.mean(takes, whatif.at_slowest(frame.window_ns))}: one rank sends the "
            "weights alone.",
            why="From its last collective with its peers until the other role goes on with the new weights, this rank "
            "copies, saves or sends them, and all others wait.",
            fix=_FIX_OF_SENDING,
            evidence=(roles.places.window(rank, step, "The step with the longest weight sync."),),
        )


def _longest(whatif: WhatIf, of_role: Mapping[str, Ints], every: Ints) -> tuple[str, float]:
    """The role whose ranks (indices) take longest for a step without what the other ones of `every` do, and how much
    longer they take with that, in the mean, ns.
    """
    # In the first step a role may wait for what others did before the record.
    steps = slice(min(1, whatif.shape[1] - 1), None)
    alone_ns = {
        role: float(whatif.unbound_ns(_without(whatif, np.setdiff1d(every, ranks), 1.0))[ranks, steps].mean())
        for role, ranks in of_role.items()
    }
    longest = max(alone_ns, key=lambda role: alone_ns[role])
    return longest, float(whatif.unbound_ns(Change())[of_role[longest], steps].mean()) - alone_ns[longest]


def _if_even(whatif: WhatIf, fixed: Change) -> WhatIf:
    """The job with a change, if all ranks of each role took as long: nobody waits for one slow rank of another role."""
    return whatif.after(fixed | whatif.at_the_median(np.ones(whatif.shape, np.bool_)), supposed=True)


def _without(whatif: WhatIf, ranks: Ints, share: float) -> Change:
    """The steps if a share of what these ranks (indices) do ran beside what all others do."""
    chosen = np.zeros(whatif.shape)
    chosen[ranks] = share
    return Change(
        host={kind: chosen for kind in CpuTime if whatif.host_ns(kind).any()},
        device_ns=np.rint(whatif.device_ns * chosen).astype(np.int64),
        transfers=chosen,
    )


def _listed(takes: Mapping[str, float], of_role: Mapping[str, Ints], frame: Frame) -> str:
    """Each role with its ranks and what it computes, the longest first."""
    return wording.listing(
        [
            f"{role} ({wording.ranks(frame.rank_numbers(of_role[role]))}) computes {wording.ms(takes[role])}"
            for role in sorted(takes, key=lambda role: -takes[role])
        ]
    )


_FIX_OF_SYNC = """\
Send the weights while the rollouts go on with the old ones (in-flight updates), in large buckets, over the fastest \
links there are (NCCL_DEBUG=INFO says which), in the precision that the rollouts compute in; or sync less often.

# verl
... actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes=2048
# slime
python train_async.py ... --update-weights-interval 2
# OpenRLHF
... --vllm_sync_backend nccl    # not gloo"""
_FIX_OF_SENDING = """\
Send the weights from GPU to GPU (NCCL, CUDA IPC, RDMA) in place of files and the CPU's memory, or save them from \
another thread while the update goes on, with each rank its own shard; or sync less often.

# verl
... actor_rollout_ref.rollout.checkpoint_engine.backend=nccl
# OpenRLHF
... --vllm_sync_backend nccl"""
_FIX_OF_SCORING = """\
Score each answer as soon as it ends, while others are generated, and let the update run a step behind. Else give the \
reward model more GPUs or replicas, a smaller model or shorter judgements (max_tokens), on a server that batches.

# verl
... reward_model.launch_reward_fn_async=True
# slime
... --custom-rm-path my_rm.score    # an async function: it is called for each answer as it ends"""
#: A median of two rollouts says nothing of a tail.
_FEWEST_ROLLOUTS = 3
#: What is said where each process may see one GPU alone.
_IN_TURN = (
    " No collective joins the roles, and each process calls its GPU 0: if the roles take turns on the same GPUs, this "
    "costs nothing."
)

_FIX = """\
Let the rollout run a step ahead of the update (asynchronous), or all roles on the same GPUs in turn, or give the \
shorter role fewer GPUs.

# verl
python -m recipe.one_step_off_policy.main_ppo ...
# OpenRLHF
... --async_train    # or all roles on the same GPUs: --colocate_all_models"""
