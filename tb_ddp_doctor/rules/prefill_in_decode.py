"""See `PrefillInDecode`."""

from __future__ import annotations

import numpy as np

from tb_ddp_doctor import wording
from tb_ddp_doctor.facts.evidence_locator import Places
from tb_ddp_doctor.facts.frame import Frame
from tb_ddp_doctor.facts.iterations import Iterations
from tb_ddp_doctor.findings import Measurement
from tb_ddp_doctor.replay.change import Change
from tb_ddp_doctor.replay.whatif import WhatIf
from tb_ddp_doctor.rules.support.base import Clear, Fault, NotApplicable, Result, Rule, threshold
from tb_ddp_doctor.trace.model import Flags


class PrefillInDecode(Rule):
    """Prefill delays decode: requests wait for their next token while the server reads the prompts of others.

    What:
        Iterations that mix prefill with decode and take much longer than those that only decode, or a tenth longer,
        where these come so often that they cost a tenth. And iterations of prefill alone between those that decode. The
        cost is what the GPU works more in mixed ones, and all that it works in those of prefill alone.
    Why:
        All requests in decode wait for such an iteration: their time between tokens is that of the prefill (and of
        an iteration that decodes, where it is alone), and not that of a decode step.
    Evidence:
        The longest such iteration.
    Fix:
        Smaller chunks of prompts in an iteration, or prefill on GPUs of its own.
    Limits:
        Needs the marks of vLLM or SGLang, which say how many requests of each kind an iteration has, and three
        iterations that only decode. Prefill has to be done somewhere: smaller chunks make the first token of a request
        later.
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

    def check(self, *, frame: Frame, whatif: WhatIf, iterations: Iterations, places: Places) -> Result:
        if not iterations.kind:
            return Clear("This job serves no requests.")
        decode = iterations.are("decode")
        if decode.sum() < _FEWEST:
            return NotApplicable("Fewer than three iterations only decode.")
        if not whatif.plays:
            return NotApplicable("Steps cannot be replayed, so it is not known what prefill costs.")
        work = whatif.device_ns
        typical = np.median(work[:, decode], axis=1, keepdims=True).astype(np.int64)
        alone = iterations.are("prefill")
        excess = np.where(alone, work, np.maximum(work - typical, 0))
        # Behind prefill alone, requests wait for an iteration of theirs as well.
        waited = np.median(work, axis=0) + np.where(alone, np.median(typical), 0)
        late, longer = (
            _between_decodes(iterations) & (waited > times * np.median(typical))
            for times in (self.min_times, 1 + self.often)
        )
        if whatif.cost_ns(Change(device_ns=np.where(longer, excess, 0))) >= self.often * frame.step_ns:
            late = longer
        change = Change(device_ns=np.where(late, excess, 0))
        cost = whatif.cost_ns(change)
        if cost < self.min_cost * frame.step_ns:
            return Clear(f"Prefill delays decode by {wording.ms(cost)} an iteration.")
        length = frame.window_ns.mean(axis=0)
        numbers = frame.steps[late]
        waiting = iterations.decodes[_decodes_before(iterations)[late]]
        worst = int(np.where(late, length, 0).argmax())
        rank = int(frame.window_ns[:, worst].argmax())
        many = int(late.sum())
        return Fault(
            change=change,
            steps=tuple(numbers.tolist()),
            confidence="high" if many > 1 else "medium",
            title=f"Prefill delays decode: {many} of {len(decode)} iterations read prompts and take "
            f"{wording.ms(float(length[late].mean()))}, where those that only decode take "
            f"{wording.ms(float(length[decode].mean()))}.",
            why=f"About {wording.decimals(float(waiting.mean()), 0)} requests in decode get their next token only "
            "after such an iteration.",
            fix=_FIX,
            evidence=(places.window(rank, worst, "The longest iteration with prefill."),),
            measurements=tuple(
                Measurement("iteration with prefill", float(length[step]) / 1e6, "ms", (), (int(frame.steps[step]),))
                for step in np.flatnonzero(late).tolist()
            ),
        )


#: Iterations that only decode: fewer have no typical length.
_FEWEST = 3


def _decodes_before(iterations: Iterations) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The last step up to each one that has requests in decode, shape (S,); 0 where there is none."""
    step = np.arange(len(iterations.kind))
    return np.maximum.accumulate(np.where(iterations.decodes > 0, step, 0))


def _between_decodes(iterations: Iterations) -> Flags:
    """Which steps have prefill while requests are in decode: mixed ones, and prefill with decode before and after."""
    decodes = iterations.decodes > 0
    before = np.logical_or.accumulate(decodes)
    after = np.logical_or.accumulate(decodes[::-1])[::-1]
    return (iterations.prefills > 0) & before & after


_FIX = """\
Read prompts in smaller chunks beside decode, or on GPUs of their own (disaggregated prefill).

vllm serve ... --enable-chunked-prefill --max-num-batched-tokens 2048
python -m sglang.launch_server ... --chunked-prefill-size 2048 --enable-mixed-chunk"""
