"""See `TraceQuality`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tb_ddp_doctor.rules import words
from tb_ddp_doctor.rules.base import Clear, Fault, Result, Rule, threshold
from tb_ddp_doctor.rules.inputs import Frame, Quality


@dataclass(frozen=True)
class TraceQuality(Rule):
    """The traces leave open what better ones would show.

    What:
        Ranks without a trace, files that are cut or damaged, no ProfilerSteps, few steps, no launches, clocks or
        collectives that cannot be lined up.
    Why:
        What is not in the traces cannot be found, and what was not found is not healthy.
    Evidence:
        What is missing, in numbers.
    Fix:
        What to change in the next capture, as code.
    Limits:
        It costs no time, so it is told for information only. Traces without shapes are mentioned only beside another
        lack: few rules need them.
    """

    id: ClassVar[str] = "trace-quality"

    min_steps: float = threshold(3.0, "steps", "Fewer do not tell what happens in every step from chance.")
    max_residual: float = threshold(
        0.03, "of the step", "Clocks that agree no better leave open who was late by as much as a minor finding costs."
    )
    max_unmatched: float = threshold(0.05, "of the collectives", "Waiting in those counts as transfer.")

    def check(self, *, frame: Frame, quality: Quality) -> Result:
        lacks = self._lacks(frame, quality)
        if not lacks:
            return Clear("All ranks are here, whole, in enough steps, and lined up.")
        causes, sentences = zip(*lacks, strict=True)
        advice = "\n\n".join([_INTRODUCTION, *dict.fromkeys(_FIXES[cause] for cause in causes)])
        shapes = "" if quality.has_shapes else " Shapes were not recorded."
        return Fault(
            cost_ns=0.0,
            ranks=frame.all_ranks,
            steps=frame.all_steps,
            cause=causes[0],
            confidence="high",
            title=f"The traces leave something open: {words.listing(sentences)}.",
            why=f"What is not in the traces cannot be found.{shapes}",
            fix=advice,
            evidence=(),
        )

    def _lacks(self, frame: Frame, quality: Quality) -> list[tuple[str, str]]:
        """What is missing, gravest first: the cause, and the words for it."""
        steps, unmatched = len(frame.steps), quality.unmatched_share
        several = len(frame.ranks) > 1
        found = [
            (
                frame.missing_ranks > 0,
                "missing_ranks",
                f"{frame.missing_ranks} of {frame.missing_ranks + len(frame.ranks)} ranks have no trace",
            ),
            (
                quality.damaged > 0,
                "damaged_files",
                f"{quality.damaged} file{'s are' if quality.damaged > 1 else ' is'} cut off or damaged",
            ),
            (not frame.has_steps, "no_steps", "no ProfilerStep marks the steps"),
            (
                frame.has_steps and steps < self.min_steps,
                "few_steps",
                f"only {steps} step{'s' if steps > 1 else ''} of all ranks can be used",
            ),
            (
                frame.has_device and not quality.has_launches,
                "no_launches",
                "kernels cannot be joined to their launches",
            ),
            (several and not quality.matched, "no_matches", "no collective could be matched between ranks"),
            (
                several and quality.matched > 0 and unmatched > self.max_unmatched,
                "unmatched",
                f"{words.percent(unmatched)} of the collectives found no partner",
            ),
            (
                frame.residual_ns > self.max_residual * frame.step_ns,
                "clocks",
                f"clocks agree only to {words.ms(frame.residual_ns)}",
            ),
        ]
        return [(cause, sentence) for holds, cause, sentence in found if holds]


_INTRODUCTION = "Capture again, like this:"

_SCHEDULE = """\
from torch.profiler import ProfilerActivity, profile, schedule
from torch.profiler import tensorboard_trace_handler as handler

with profile(
    activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA],
    schedule=schedule(wait=5, warmup=3, active=5, repeat=1),
    record_shapes=True,
    on_trace_ready=handler(logdir, use_gzip=True),
) as prof:
    for batch in loader:
        train(batch)
        prof.step()  # after each step"""
_ALL_RANKS = """\
# on every rank, into one directory that all share (or copy the files together)
name = f"{socket.gethostname()}_{rank}"
handler = torch.profiler.tensorboard_trace_handler
handler(logdir, worker_name=name, use_gzip=True)"""
_WHOLE = """\
# let the profiler finish before the process ends, and copy files only then
torch.distributed.barrier()
torch.distributed.destroy_process_group()"""
_TOGETHER = """\
# start and stop on the same step of every rank; torch 2.2 or later tells each collective's group and size
torch.distributed.barrier(); prof.start()"""
_CLOCKS = """\
# on every node: keep the clocks together
chronyc tracking"""

_FIXES = {
    "missing_ranks": _ALL_RANKS,
    "damaged_files": _WHOLE,
    "no_steps": _SCHEDULE,
    "few_steps": _SCHEDULE,
    "no_launches": _SCHEDULE,
    "no_matches": _TOGETHER,
    "unmatched": _TOGETHER,
    "clocks": _CLOCKS,
}
