"""See `Recompilation`."""

from __future__ import annotations

import numpy as np

from tb_ddp_doctor import wording
from tb_ddp_doctor.digest.model import CompiledWork, CpuTime
from tb_ddp_doctor.facts.evidence_locator import Places
from tb_ddp_doctor.facts.frame import Frame
from tb_ddp_doctor.facts.host import CompileReasons
from tb_ddp_doctor.facts.shortened_calls import ShortenedCalls
from tb_ddp_doctor.findings import Measurement
from tb_ddp_doctor.replay.change import Change
from tb_ddp_doctor.replay.whatif import WhatIf
from tb_ddp_doctor.rules.support import compile_log, limits
from tb_ddp_doctor.rules.support.base import Clear, Fault, NotApplicable, Result, Rule, threshold
from tb_ddp_doctor.rules.support.host_work import shares


class Recompilation(Rule):
    """torch.compile compiles within recorded steps, on all ranks, or on some ranks for which the rest wait.

    What:
        Time of the training threads in Dynamo, AOTAutograd and Inductor (`recompile`), or in timing kernels to choose
        one (`autotune`), with the time of those kernels on the GPU. The cost is what the steps save without it.
    Why:
        A compiled function is compiled again for an input that its guards reject: another shape, another type, another
        value of a Python variable. A rank whose batches alone have new shapes compiles while the rest of the job waits.
    Evidence:
        The step with the longest compilation, on its rank.
    Fix:
        Mark dimensions that change as dynamic, pad to a few shapes, and tune beforehand.
    Limits:
        Seen are the marks of PyTorch 2.5 and later (`dynamo_timed`), or functions of stacks (`with_stack=True`). The
        first steps of a job compile once; record later ones. Why guards reject an input is said where logs of
        TORCH_TRACE lie beside the traces.
    """

    id = "recompilation"
    subject = "Compiling within steps"
    of_every_program = True
    refines = (
        "straggler", "load-imbalance", "op-stall", "host-stall", "iteration-gap", "host-sync", "launch-bound",
        "slow-step",
    )  # fmt: skip

    min_cost: float = threshold(*limits.LAUNCHES)
    mostly: float = threshold(0.5, "of the time", "Where autotuning takes more of it, that is the cause.")

    def check(
        self,
        *,
        frame: Frame,
        whatif: WhatIf,
        compiled: CompiledWork,
        calls: ShortenedCalls,
        reasons: CompileReasons,
        places: Places,
    ) -> Result:
        spent = compiled.compile_ns + compiled.tune_device_ns
        if not spent.any():
            return Clear("Nothing is compiled in these steps.")
        if frame.has_device and not whatif.plays:
            return NotApplicable("Steps cannot be replayed, so it is not known what compiling costs.")
        # A sync that is gone no longer drains what was launched before, either.
        works, waits = shares(whatif, compiled.compile_ns), shares(whatif, compiled.tune_sync_ns, (CpuTime.SYNC,))
        change = Change(
            host={**works, **waits},
            device_ns=compiled.tune_device_ns,
            of_calls=calls.tuned(compiled.tune_device_ns),
        )
        if not frame.has_device:  # what compiles are operators, and these compute
            change = Change(device_ns=compiled.compile_ns)
        cost = whatif.cost_ns(change)
        if cost < self.min_cost * frame.step_ns:
            return Clear(f"Compiling within steps costs {wording.ms(cost)} a step.")
        ranks, steps = np.flatnonzero(spent.any(axis=1)), np.flatnonzero(spent.any(axis=0))
        tuned = float((compiled.tune_ns + compiled.tune_device_ns).sum())
        cause = "autotune" if tuned > self.mostly * spent.sum() else "recompile"
        worst = places.of_most(spent, "The step with the longest compilation.")
        longest = float(spent.max())
        numbers = frame.rank_numbers(ranks)
        some = 2 * len(ranks) <= len(frame.ranks)
        who = wording.capital(wording.ranks(numbers)) if some else "The job"
        logged = compile_log.reasons(reasons, "recompile", numbers)
        verb = "compile" if some and len(ranks) > 1 else "compiles"
        many = int(compiled.compilations.sum())
        times = f"{many} compilations" if many > 1 else "One compilation" if many else "Autotuning"
        return Fault(
            change=change,
            ranks=numbers,
            steps=tuple(frame.steps[steps].tolist()),
            cause=cause,
            subject=self.subject,
            confidence="high" if len(steps) > 1 else "medium",
            title=f"{who} {verb} within {wording.steps_seen(len(steps), len(frame.steps))}, for up to "
            f"{wording.ms(longest)}{' while the other ranks wait' if some else ''}.",
            why=f"{logged}{times} in these steps: {_WHY[cause]}",
            fix=compile_log.without_log(_FIXES[cause], logged),
            evidence=(worst,),
            measurements=(
                Measurement("compiling", float(spent.sum()) / spent.size / 1e6, "ms", numbers, frame.all_steps),
                Measurement("longest in a step", longest / 1e6, "ms", (worst.rank,)),
            ),
        )


_WHY = {
    "recompile": "an input has another shape, type or Python value than those that were compiled for.",
    "autotune": "kernels of new shapes are timed to choose one.",
}
_FIXES = {
    "recompile": """\
Find what changes, and make it dynamic or constant: mark the dimension, pad to a few shapes, move Python numbers into \
tensors.

export TORCH_TRACE=LOGDIR/torch_trace            # which guard failed: said here next time
torch._dynamo.mark_dynamic(batch, 0)             # before the first call
model = torch.compile(model, dynamic=True)""",
    "autotune": """\
Tune beforehand: run each shape once, keep Inductor's cache on a disk that all ranks share, and record later steps.

export TORCHINDUCTOR_CACHE_DIR=/shared/inductor TORCHINDUCTOR_FX_GRAPH_CACHE=1""",
}
