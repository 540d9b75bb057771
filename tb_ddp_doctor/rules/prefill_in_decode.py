"""See `PrefillInDecode`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor import wording
from tb_ddp_doctor.digest.model import CpuTime
from tb_ddp_doctor.facts.evidence_locator import Places
from tb_ddp_doctor.facts.frame import Frame
from tb_ddp_doctor.facts.iterations import Iterations
from tb_ddp_doctor.findings import Measurement
from tb_ddp_doctor.job.model import Budget
from tb_ddp_doctor.replay.change import Change
from tb_ddp_doctor.replay.whatif import WhatIf
from tb_ddp_doctor.rules.support.base import Clear, Fault, NotApplicable, Result, Rule, threshold
from tb_ddp_doctor.trace.model import Flags, Ints


class PrefillInDecode(Rule):
    """Prefill delays decode: requests wait for their next token while the server reads the prompts of others.

    What:
        Iterations that mix prefill with decode and take much longer than those that only decode, or a tenth longer,
        where these come so often that they cost a tenth. And iterations of prefill alone while requests are in decode.
        The cost is what GPU, launches and exposed communication take more in mixed ones, and all that they take in
        those of prefill alone.
    Why:
        All requests in decode wait for such an iteration: their time between tokens is that of the prefill (and of
        an iteration that decodes, where it is alone), and not that of a decode step.
    Evidence:
        The longest such iteration.
    Fix:
        Smaller chunks of prompts in an iteration, or prefill on GPUs of its own.
    Limits:
        Needs three iterations that only decode, and marks of vLLM, SGLang or TensorRT-LLM, which say how many requests
        of each kind an iteration has. Without marks kernels tell prompts from answers where attention has a kernel for
        each, or where a CUDA graph replays answers alone; the confidence is less, and an iteration of which they do not
        tell whether it also decodes counts as mixed. Prefill has to be done somewhere: smaller chunks make the first
        token of a request later.
    """

    id = "prefill-in-decode"
    subject = "Prefill between decode iterations"
    of_every_program = True

    min_times: float = threshold(
        1.5, "times as long", "Chunks of prompts that fit beside decode make an iteration longer by less than half."
    )
    often: float = threshold(
        0.1, "longer, and of the mean iteration", "Chunks that fit beside decode make tokens late if they come often."
    )
    min_cost: float = threshold(0.03, "of the mean iteration", "Below this, few tokens are late.")

    def check(
        self,
        *,
        frame: Frame,
        whatif: WhatIf,
        iterations: Iterations,
        budget: Budget,
        places: Places,
    ) -> Result:
        if not iterations.kind:
            return Clear("This job serves no requests.")
        decode = iterations.are("decode")
        if decode.sum() < _FEWEST:
            return NotApplicable("Fewer than three iterations only decode.")
        if not whatif.plays:
            return NotApplicable("Steps cannot be replayed, so it is not known what prefill costs.")
        alone = iterations.are("prefill")

        def above_decode(time_ns: Ints) -> Ints:
            typical = np.median(time_ns[:, decode], axis=1, keepdims=True).astype(np.int64)
            return np.where(alone, time_ns, np.maximum(time_ns - typical, 0))

        computing, sending = above_decode(whatif.device_ns), above_decode(budget.of("transfer"))
        launching = whatif.host_ns(CpuTime.WORK)
        more = above_decode(launching) / np.maximum(launching, 1)

        def without(steps: Flags) -> Change:
            return Change(
                device_ns=np.where(steps, computing, 0),
                transfer_ns=np.where(steps, sending, 0),
                shared={CpuTime.WORK: np.where(steps, more, 0.0)},
            )

        # Behind prefill alone, requests wait for an iteration of theirs as well.
        length = frame.window_ns.mean(axis=0)
        decoding = float(np.median(length[decode]))
        waited = length + np.where(alone, decoding, 0)
        late, longer = (iterations.delays & (waited > times * decoding) for times in (self.min_times, 1 + self.often))
        if whatif.cost_ns(without(longer)) >= self.often * frame.step_ns:
            late = longer
        change = without(late)
        cost = whatif.cost_ns(change)
        if cost < self.min_cost * frame.step_ns:
            return Clear(f"Prefill delays decode by {wording.ms(cost)} an iteration.")
        numbers = frame.steps[late]
        worst = int(np.where(late, length, 0).argmax())
        rank = int(frame.window_ns[:, worst].argmax())
        many = int(late.sum())
        return Fault(
            change=change,
            steps=tuple(numbers.tolist()),
            confidence="high" if many > 1 and iterations.counted else "medium",
            title=f"Prefill delays decode: {many} of {len(decode)} iterations read prompts and take "
            f"{wording.ms(float(length[late].mean()))}, where those that only decode take "
            f"{wording.ms(float(length[decode].mean()))}.",
            why=f"{_waiting(iterations, late)} get their next token only after such an iteration.",
            fix=_FIX,
            evidence=(places.window(rank, worst, "The longest iteration with prefill."),),
            measurements=tuple(_measured(frame, length, step) for step in np.flatnonzero(late).tolist()),
        )


#: Iterations that only decode: fewer have no typical length.
_FEWEST = 3


def _measured(frame: Frame, length_ns: NDArray[np.float64], step: int) -> Measurement:
    """How long a step with prefill takes."""
    return Measurement("iteration with prefill", float(length_ns[step]) / 1e6, "ms", (), (int(frame.steps[step]),))


def _waiting(iterations: Iterations, late: Flags) -> str:
    """Who waits for late steps, with how many requests the last step before each has in decode, if that is known."""
    if not iterations.counted:
        return "Requests in decode"
    step = np.arange(len(iterations.kind))
    before = np.maximum.accumulate(np.where(iterations.decodes > 0, step, 0))
    requests = float(iterations.decodes[before[late]].mean())
    return f"About {wording.decimals(requests, 0)} requests in decode"


_FIX = """\
Read prompts in smaller chunks beside decode, or on GPUs of their own (disaggregated prefill).

vllm serve ... --enable-chunked-prefill --max-num-batched-tokens 2048
python -m sglang.launch_server ... --chunked-prefill-size 2048 --enable-mixed-chunk"""
