"""See `CommunicationBound`."""

from __future__ import annotations

import numpy as np

from tb_ddp_doctor import wording
from tb_ddp_doctor.facts.evidence_locator import Places
from tb_ddp_doctor.facts.expected import Expected
from tb_ddp_doctor.facts.frame import Frame
from tb_ddp_doctor.facts.links import Link, excess_ns
from tb_ddp_doctor.facts.modules import ModuleTree
from tb_ddp_doctor.facts.needless_allreduces import RepeatedAllReduces
from tb_ddp_doctor.facts.traffic import Traffic
from tb_ddp_doctor.facts.transfers import Transfers
from tb_ddp_doctor.findings import Network, Setting
from tb_ddp_doctor.job.model import Budget
from tb_ddp_doctor.planning.fact import Plans
from tb_ddp_doctor.planning.model import Question
from tb_ddp_doctor.replay.change import Change
from tb_ddp_doctor.replay.whatif import WhatIf
from tb_ddp_doctor.rules.support import certainty, layers, limits, part, tuner
from tb_ddp_doctor.rules.support.base import Clear, Fault, NotApplicable, Result, Rule, threshold
from tb_ddp_doctor.rules.support.exposed import most_exposed
from tb_ddp_doctor.trace.model import Ints
from tb_ddp_doctor.trace.program_names import Program

#: At most so many kinds of a server's collectives are named.
_KINDS = 3
#: What costs the time where ranks have no usable trace: a wait that is as long in each call looks like transfer.
_OR_WAIT = "Exposed communication, or straggler wait for ranks without a usable trace,"
#: Kinds of a server's collectives that send tokens to their experts and back.
_EXCHANGES = ("dispatch", "combine", "all_to_all")
#: A job that is faster than its calibration by this has another one.
_NOT_OF_THESE_LINKS = 1.25


class CommunicationBound(Rule):
    """Communication takes longer than the compute that could hide it.

    What:
        Communication without straggler wait that is exposed although it overlaps as much as it can.
    Why:
        When communication takes longer than the compute beside it, the links set the step time.
    Evidence:
        The longest exposed communication on the slowest rank of the step; the measured busbw, beside that of a
        calibration where there is one (`torchrun ... -m tb_ddp_doctor.check`); the modules or guessed layers whose
        backward launches it; and the time that communication would
        take as bfloat16, by the latency and busbw fitted to the trace. Of a server or pipeline, and of forward passes
        alone: what is exposed in an iteration, by AllReduces of tensor parallelism (NCCL's, custom, one- and two-shot,
        NVLS), by dispatch and combine, or by other collectives.
    Fix:
        Send fewer bytes (compress to bfloat16, accumulate gradients), compute more per byte (a larger local batch),
        or use faster links. On a server, two batches in turns, or AllReduces made for small messages. The cost is what
        half of it would save.
    Limits:
        Judged on the slowest rank, which waits for no other rank. Not judged where most ranks of the groups that
        communicate have no trace, since the last of them may be late. Time that overlap alone would hide is reported by
        no-overlap, AllReduces that are not needed by redundant-allreduce, waits between pipeline stages by
        pipeline-bubble, and the cost of slow links by slow-link.
    """

    id = "communication-bound"
    subject = "Communication that compute cannot hide"
    of_every_program = True

    min_exposed: float = threshold(
        0.20, "of the step", "Healthy DDP jobs expose up to 18 % even over slow links: the tail of their last bucket."
    )
    achievable: float = threshold(*limits.ACHIEVABLE_OVERLAP, least=0.01)
    slow_link: float = threshold(*limits.SLOW_LINK)
    slow_steps: float = threshold(*limits.SLOW_RANK_STEPS)
    bytes_saved: float = threshold(0.5, "of the bytes", "float32 gradients sent as bfloat16, or every second step.")

    def check(
        self,
        *,
        frame: Frame,
        budget: Budget,
        whatif: WhatIf,
        transfers: Transfers,
        communication: tuple[Traffic, ...],
        network: Network | None,
        links: tuple[Link, ...],
        repeats: RepeatedAllReduces,
        expected: Expected | None,
        modules: ModuleTree | None,
        places: Places,
        plans: Plans,
    ) -> Result:
        slowed = excess_ns([link for link in links if link.is_slow(self.slow_link, self.slow_steps)], *whatif.shape)
        exposed, needed = _at_slowest(whatif, budget, transfers, repeats.exposed_ns + slowed)
        least = self.min_exposed * frame.step_ns
        if float(np.median(np.minimum(whatif.at_slowest(transfers.untraced_exposed_ns), exposed))) >= least:
            return NotApplicable(
                "Most ranks of the groups that communicate have no trace: when their last rank arrives is not known."
            )
        if frame.program == Program.BENCHMARK.value:
            return NotApplicable("This program is a benchmark: its communication is what it measures.")
        if not frame.trains or frame.program_of(whatif.slowest) == Program.SERVING.value:
            return self._of_forward_passes(frame, whatif, exposed, communication, network, places)
        # One slow collective in some steps is no fault of all of them: the median step is judged.
        total, median = float(np.median(needed)), float(np.median(exposed))
        compute = float(np.median(whatif.at_slowest(budget.of("compute"))))
        share = part.median(exposed, whatif.at_slowest(frame.window_ns))
        if median - self._would_hide(total, median, compute, transfers, whatif) < least:
            return Clear(
                f"{wording.ms(median)} of {wording.ms(total)} of communication are exposed in the median step "
                f"({wording.percent(share.share)} of it)."
            )
        fewer_bytes = np.minimum(self.bytes_saved * needed, exposed).astype(np.int64)
        change = Change(transfer_ns=np.broadcast_to(fewer_bytes, whatif.shape))
        level, basis = certainty.confidence(
            frame, whatif.cost_ns(change), int((exposed > least).sum()), of_transfer=True
        )
        return Fault(
            change=change,
            modules=_in_modules(modules).modules,
            confidence=level,
            title=f"Communication takes longer than compute can hide: {share} "
            "is exposed communication on the slowest rank.",
            why=f"Communication takes {wording.ms(total)} a step{_for(transfers.allreduce_bytes)}, compute "
            f"{wording.ms(compute)}. {_link(communication, expected)}{self._prospects(communication, total, compute)}"
            f"{wording.network(network)}"
            f"{tuner.choice(network, communication[0]) if communication else ''}{_in_modules(modules)}{basis}",
            fix=_fix(transfers, frame.setting, network, plans),
            evidence=most_exposed(exposed, whatif, places),
            subject=_OR_WAIT if frame.missing_ranks else "",
        )

    def _would_hide(
        self, total_ns: float, exposed_ns: float, compute_ns: float, transfers: Transfers, whatif: WhatIf
    ) -> float:
        """What more overlap would hide of the median step's communication, ns.

        A ring of context parallelism sends each block while the one before it is computed: with nothing else.
        """
        total = total_ns - float(np.median(whatif.at_slowest(transfers.ring_ns)))
        exposed = exposed_ns - float(np.median(whatif.at_slowest(transfers.ring_exposed_ns)))
        return max(self.achievable * min(total, compute_ns) - (total - exposed), 0.0)

    def _of_forward_passes(
        self,
        frame: Frame,
        whatif: WhatIf,
        exposed: Ints,
        communication: tuple[Traffic, ...],
        network: Network | None,
        places: Places,
    ) -> Result:
        """What is exposed in iterations that do not train, shape (S,): within one, compute needs what is sent. So it
        is of ranks that only generate, and are the slowest, in reinforcement learning.
        """
        median = float(np.median(exposed))
        if median < self.min_exposed * frame.step_ns:
            return Clear(f"{wording.ms(median)} of communication are exposed in the median iteration.")
        program = frame.program_of(whatif.slowest)
        is_of_program = frame.runs(program)
        change = Change(transfer_ns=(self.bytes_saved * is_of_program[:, None] * exposed).astype(np.int64))
        seen = int((exposed > self.min_exposed * frame.step_ns).sum())
        level, basis = certainty.confidence(frame, whatif.cost_ns(change), seen, of_transfer=True)
        share = part.median(exposed, whatif.at_slowest(frame.window_ns))
        kinds = list(dict.fromkeys(one.kind for one in communication))[:_KINDS]
        longest = f"It is of {wording.listing(kinds)}{', the longest first' * (len(kinds) > 1)}. " if kinds else ""
        return Fault(
            change=change,
            ranks=frame.rank_numbers(np.flatnonzero(is_of_program)),
            confidence=level,
            title=f"Communication is exposed within iterations: {share} on the slowest rank.",
            why=f"{longest}Compute of an iteration waits for it, unless another batch computes meanwhile. "
            f"{wording.network(network)}{tuner.choice(network, communication[0]) if communication else ''}{basis}",
            fix=_OF_EXPERTS
            if program == Program.SERVING.value and communication and communication[0].kind in _EXCHANGES
            else _OF_FORWARD_PASSES[program],
            evidence=most_exposed(exposed, whatif, places),
            subject=_OR_WAIT if frame.missing_ranks else "",
        )

    def _prospects(self, communication: tuple[Traffic, ...], total_ns: float, compute_ns: float) -> str:
        """What fewer bytes and more compute would give, a sentence and a space each; "" where nothing is known."""
        said = ""
        saved = sum(_saved_as_bfloat16(traffic) for traffic in communication)
        if saved > 0:
            said = f"As bfloat16 it would take {wording.ms(max(total_ns - saved, 0))}. "
        if compute_ns > 0:
            times = total_ns / (self.achievable * compute_ns)
            said += f"To hide it, compute would have to take {wording.decimals(times, 1)} times as long. "
        return said


def _at_slowest(whatif: WhatIf, budget: Budget, transfers: Transfers, others_ns: Ints) -> tuple[Ints, Ints]:
    """What communication takes of each step on its slowest rank: exposed, and in all; ns, shape (S,) each.

    Without point-to-point transfers, and without `others_ns`, shape (R, S), which is other findings'.
    """
    others = whatif.at_slowest(others_ns + transfers.messages_exposed_ns)
    exposed = np.maximum(whatif.at_slowest(budget.of("transfer")) - others, 0)
    return exposed, np.maximum(whatif.at_slowest(transfers.total_ns) - others, 0)


def _for(gradients: float) -> str:
    """How many bytes of gradients communication is for; "" where that is not known."""
    return f" for {wording.size(gradients)} of gradients" if gradients else ""


def _in_modules(modules: ModuleTree | None) -> layers.Where:
    """In which modules exposed communication is launched, and a space; nothing where that is not known."""
    place = layers.where(modules, layers.exposed_ns(modules)) if modules else layers.Where()
    return place.within("Of all communication with nothing beside it, ", ". ")


def _link(communication: tuple[Traffic, ...], expected: Expected | None) -> str:
    """The busbw of what transfers longest, beside what it could be, and a space; "" where it is unknown."""
    if not communication or not communication[0].has_bytes:
        return ""
    longest = communication[0]
    reached = f"{longest.kind} reaches a busbw of {wording.gigabytes_per_second(longest.bus_rate)}"
    if expected is None:
        return f"{reached}. What these links can do is not known: no calibration.json lies beside the traces. "
    possible = expected.bus_rate(longest)
    if possible is None:
        return f"{reached}; the calibration has no {longest.kind} of {longest.size} ranks. "
    given = wording.gigabytes_per_second(possible)
    if longest.bus_rate > _NOT_OF_THESE_LINKS * possible:
        return f"{reached}, above the {given} of the calibration, which was measured on other links or beside a job. "
    share = wording.percent(longest.bus_rate / possible)
    return f"{reached}, {share} of the {given} that the calibration gave at these sizes. "


def _saved_as_bfloat16(traffic: Traffic) -> float:
    """What a step's transfers would take less with half the bytes, ns: latency stays, as far as it is known."""
    if traffic.dtypes != ("Float",) or not traffic.has_bytes:
        return 0.0
    line = traffic.line
    if line and line.is_significant:
        return line.beta_ns * traffic.bytes_per_step / 2
    return traffic.transfer_per_step_ns / 2


def _fix(transfers: Transfers, setting: Setting, network: Network | None, plans: Plans) -> str:
    if not setting.uses_nccl:
        return _OF_CPUS.format(
            check=_ITS_INTERFACE if setting.may_use_network else "",
            interface=_CHOOSE_INTERFACE if setting.may_use_network else "",
            backend=setting.backend,
        )
    float32 = "Float" in transfers.dtypes
    advice, code = (_FLOAT32 if float32 else _OTHER).split("\n\n", 1)
    smaller = plans.predict(Question(dtype="bfloat16")) if float32 else None
    fix = f"{advice}{plans.said(smaller, plans.predict(Question(accumulate=4)))}\n\n{code}"
    return _SOCKETS + fix if wording.uses_sockets(network) else fix


_SOCKETS = """\
First give NCCL a faster transport than sockets: InfiniBand or RoCE (its drivers inside the container, \
/dev/infiniband, no NCCL_IB_DISABLE), or the cloud's plugin (EFA, GPUDirect-TCPX); otherwise more sockets \
(NCCL_SOCKET_NTHREADS, NCCL_NSOCKS_PERTHREAD) on the fastest interface (NCCL_SOCKET_IFNAME). """

_OF_CPUS = """\
Send less often or compute more per byte: accumulate over micro-steps without AllReduce, raise the local batch, or \
send gradients as float16. {check}Check that {backend}'s threads have a core to run on beside the ranks'.

# DDP; for FSDP2: model.set_requires_gradient_sync(False)
with model.no_sync():
    loss(model(micro_batch)).backward()  # all but the last micro-step

from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
model.register_comm_hook(state=None, hook=default_hooks.fp16_compress_hook)  # bf16 is refused on CPUs{interface}"""
_OF_SERVERS = """\
Use AllReduces made for small messages (one- and two-shot, NVLS), fused with the norm behind them; let two batches \
take turns, so that one computes while the other communicates; or use fewer GPUs for each copy of the model.

python -m sglang.launch_server ... --flashinfer-allreduce-fusion-backend auto
vllm serve ... --tensor-parallel-size 4  # half as many; and without --disable-custom-all-reduce"""
_OF_EXPERTS = """\
Let two batches take turns, so that one computes while the experts' tokens of the other are sent; or use fewer GPUs \
for each copy of the model.

python -m sglang.launch_server ... --enable-two-batch-overlap
vllm serve ... --enable-dbo
python -m lightllm.server.api_server ... --enable_decode_microbatch_overlap --enable_prefill_microbatch_overlap"""
_ITS_INTERFACE = "Check that it uses the network interface you think it does. "
_CHOOSE_INTERFACE = "\n\nGLOO_SOCKET_IFNAME=<the fast interface> torchrun ..."

_FLOAT32 = """\
Gradients are sent as float32: send them as bfloat16. Then accumulate over micro-steps without AllReduce, or raise the \
local batch, so that there is more compute per byte. Check that NCCL uses the links you think it does \
(NCCL_DEBUG=INFO).

from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
model.register_comm_hook(state=None, hook=default_hooks.bf16_compress_hook)

with model.no_sync():         # for all but the last micro-step
    loss(model(micro_batch)).backward()"""

_OTHER = """\
Send less often or compute more per byte: accumulate over micro-steps without AllReduce, or raise the local batch. \
Check that NCCL uses the links you think it does (NCCL_DEBUG=INFO).

# DDP; for FSDP2: model.set_requires_gradient_sync(False)
with model.no_sync():
    loss(model(micro_batch)).backward()  # all but the last micro-step"""

#: By program.
_OF_FORWARD_PASSES = {
    Program.SERVING.value: _OF_SERVERS,
    Program.DIFFUSION.value: """\
Divide each image over fewer GPUs, and make more images at the same time: parallel guidance and copies of the model \
send next to nothing, and ring attention sends while it computes.

# xDiT
--use_cfg_parallel --data_parallel_degree 2 --ring_degree 2 --ulysses_degree 1""",
    Program.INFERENCE.value: """\
Run a copy of the model on each GPU, or on few of them, with samples of its own. Of sharded parameters, gather those \
of the next layer while this one computes.

samples = samples[rank::world_size]""",
}
