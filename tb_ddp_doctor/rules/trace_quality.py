"""See `TraceQuality`."""

from __future__ import annotations

from collections.abc import Sequence

from tb_ddp_doctor import record_again, wording
from tb_ddp_doctor.facts.frame import Frame, Quality
from tb_ddp_doctor.facts.unrecognised import MOST_UNMATCHED
from tb_ddp_doctor.findings import Setting
from tb_ddp_doctor.replay.change import Change
from tb_ddp_doctor.rules.support.base import Clear, Fault, Result, Rule, threshold


class TraceQuality(Rule):
    """The traces lack data that a better capture would have.

    What:
        Ranks without a trace, files that are cut or damaged, no ProfilerSteps, few steps, no launches, clocks that
        cannot be aligned, collectives that cannot be matched, no shapes.
    Why:
        Faults that are not in the traces cannot be found, and "no data" is not "healthy".
    Evidence:
        What is missing, in numbers.
    Fix:
        Code for the next capture, with what this one lacks.
    Limits:
        It costs no time, so it is info. Data that only one rule needs (memory, stacks) is named by that rule.
    """

    id = "trace-quality"
    subject = "What the traces lack"
    of_every_device = True
    of_every_program = True

    min_steps: float = threshold(3.0, "steps", "Fewer steps do not separate what happens in every step from noise.")
    max_residual: float = threshold(
        0.03,
        "of the step",
        "With a larger clock skew it is not known which rank was late by as much as a minor finding costs.",
    )
    max_unmatched: float = threshold(
        MOST_UNMATCHED, "of the collectives", "Straggler wait in those counts as exposed communication."
    )

    def check(self, *, frame: Frame, quality: Quality) -> Result:
        lacks = self._lacks(frame, quality)
        if not lacks:
            return Clear(f"All ranks have complete traces with enough steps, and are aligned.{_ties(quality)}")
        causes, sentences = zip(*lacks, strict=True)
        return Fault(
            change=Change(),
            cause=causes[0],
            confidence="high",
            title=f"The traces lack data: {wording.listing(sentences)}.",
            why=f"Faults that are not in the traces cannot be found.{_ties(quality)}",
            fix=_fix(causes, frame),
            evidence=(),
        )

    def _lacks(self, frame: Frame, quality: Quality) -> list[tuple[str, str]]:
        """What is missing, gravest first: the cause, and the words for it."""
        steps, unmatched = len(frame.steps), quality.unmatched_share
        several = len(frame.ranks) > 1
        lack = "has" if frame.missing_ranks == 1 else "have"
        possible = [
            (
                frame.missing_ranks > 0,
                "missing_ranks",
                f"{frame.missing_ranks} of {frame.missing_ranks + len(frame.ranks)} ranks {lack} no usable trace",
            ),
            (
                quality.damaged > 0,
                "damaged_files",
                f"{quality.damaged} file{'s are' if quality.damaged > 1 else ' is'} cut off or damaged",
            ),
            (not frame.has_steps, "no_steps", "no ProfilerStep marks the steps"),
            (frame.is_sampled, "sampled", "the files are sampled or filtered"),
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
            (
                several and not quality.matched and not quality.only_messages,
                "no_matches",
                "no collective could be matched between ranks",
            ),
            (
                several and quality.matched > 0 and unmatched > self.max_unmatched,
                "unmatched",
                f"{wording.percent(unmatched)} of the collectives have no match on another rank",
            ),
            (
                frame.residual_ns > self.max_residual * frame.step_ns,
                "clocks",
                f"the {frame.setting.skew} is ±{wording.ms(frame.residual_ns)}",
            ),
            (
                not quality.has_shapes,
                "no_shapes",
                "operator shapes were not recorded, so their FLOP is not known",
            ),
        ]
        return [(cause, sentence) for is_so, cause, sentence in possible if is_so]


def _ties(quality: Quality) -> str:
    """Of how many blocking calls it is known what they wait for, as a sentence behind a space; "" where none blocks."""
    if not quality.blocking_calls:
        return ""
    blocking = f"{quality.blocking_calls:,} call{'s that block' if quality.blocking_calls > 1 else ' that blocks'}"
    return f" Of {blocking} a CPU, {quality.tied_calls:,} end with the GPU work that the CPU waits for."


def _fix(lacks: Sequence[str], frame: Frame) -> str:
    """Code for the next capture: what was lacking, each with its reason, and what that needs around it."""
    parts = []
    if "clocks" in lacks:
        parts.append(_CLOCKS if frame.setting.may_use_network else _CORES)
    if frame.program == "serving" and not frame.missing_ranks:
        shapes = "no_shapes" in lacks
        parts.insert(0, f"{_UNDER_LOAD}{record_again.of_server(steps=10, stacks=False, shapes=shapes)}\n{_MARKED}")
    elif set(lacks) - {"clocks"}:
        parts.insert(0, _capture(frozenset(lacks), frame))
    return "\n\n".join([_INTRODUCTION, *parts])


def _capture(lacks: frozenset[str], frame: Frame) -> str:
    if frame.setting.has_doctor:
        return _capture_again(lacks, frame.setting)
    if frame.setting.recorder == "nsys":
        return _record_with_nsys(lacks, frame)
    loop = ("for batch in loader:", "train(batch)") if frame.trains else ("for batch in batches:", "model(batch)")
    activities = "[ProfilerActivity.CPU, ProfilerActivity.CUDA]" if frame.has_device else "[ProfilerActivity.CPU]"
    handler = "handler(logdir, use_gzip=True)"
    if "missing_ranks" in lacks:
        handler = 'handler(logdir, worker_name=f"{socket.gethostname()}_{rank}", use_gzip=True)'
    has_loop = bool(lacks & {"no_steps", "few_steps"})
    wanted = [
        ("missing_ranks" in lacks, "import socket"),
        (True, f"from torch.profiler import ProfilerActivity, profile{', schedule' * has_loop}"),
        (True, "from torch.profiler import tensorboard_trace_handler as handler"),
        (True, ""),
        (
            bool(lacks & {"no_matches", "unmatched"}),
            "# all ranks start on the same step; torch 2.2 records groups and sizes",
        ),
        (bool(lacks & {"no_matches", "unmatched"}), "torch.distributed.barrier()"),
        (True, "with profile("),
        ("no_launches" in lacks, "    # the host as well: it launches the kernels"),
        (True, f"    activities={activities},"),
        ("few_steps" in lacks, "    # more steps: what is in all of them is no noise"),
        (has_loop, "    schedule=schedule(wait=5, warmup=3, active=5, repeat=1),"),
        ("no_shapes" in lacks, "    # operator shapes: how much work they are"),
        ("no_shapes" in lacks, "    record_shapes=True,"),
        ("missing_ranks" in lacks, "    # on every rank, into one directory that all share, or copied together"),
        (True, f"    on_trace_ready={handler},"),
        (True, ") as prof:"),
        (True, f"    {loop[0]}"),
        (True, f"        {loop[1]}"),
        (True, "        prof.step()" + "  # marks the steps" * ("no_steps" in lacks)),
        ("damaged_files" in lacks, "# copy files, and let processes end, only when all ranks have written theirs"),
        ("damaged_files" in lacks, "torch.distributed.barrier()"),
    ]
    return "\n".join(line for wants, line in wanted if wants)


def _capture_again(lacks: frozenset[str], setting: Setting) -> str:
    """The same for a job that has a `Doctor`."""
    wanted = [
        (bool(lacks & {"missing_ranks", "no_matches", "unmatched"}), "# all ranks, with one log directory for all"),
        ("damaged_files" in lacks, "# let the job train on until the verdict is there"),
        (True, record_again.command(setting, steps=5 if lacks & {"no_steps", "few_steps"} else None)),
    ]
    return "\n".join(line for wants, line in wanted if wants)


def _record_with_nsys(lacks: frozenset[str], frame: Frame) -> str:
    """The same for a job that Nsight Systems recorded."""
    loop, work = (
        ("for step, batch in enumerate(loader):", "train(batch)")
        if frame.trains
        else ("for step, batch in enumerate(batches):", "model(batch)")
    )
    wanted = [
        ("missing_ranks" in lacks, "# on every node, and all exports in one directory"),
        (True, f"{record_again.NSYS} --cuda-graph-trace=node {record_again.NSYS_OUTPUT}"),
        ("damaged_files" in lacks, "# when nsys has ended on all nodes"),
        (True, f"{record_again.NSYS_EXPORT}  # with the payloads of NCCL: ranks, groups, sizes"),
        (True, ""),
        ("no_shapes" in lacks, "# operators, with the shapes of their inputs: how much work they are"),
        ("no_shapes" in lacks, "with torch.autograd.profiler.emit_nvtx(record_shapes=True):"),
        ("few_steps" in lacks, "# record more steps: what is in all of them is no noise"),
        (True, loop),
        (True, '    with torch.cuda.nvtx.range(f"step {step}"):' + "  # marks the steps" * ("no_steps" in lacks)),
        (True, f"        {work}"),
    ]
    lines = [line for wants, line in wanted if wants]
    inside = next((i + 1 for i, line in enumerate(lines) if line.startswith("with torch.autograd")), len(lines))
    return "\n".join([*lines[:inside], *(f"    {line}" for line in lines[inside:])])


_INTRODUCTION = "Capture again, like this:"
_UNDER_LOAD = "# several iterations under load in one trace\n"
_MARKED = """\
curl -X POST http://localhost:8000/start_profile; sleep 1; curl -X POST http://localhost:8000/stop_profile

# a server of your own: what repeats marks the steps
with torch.profiler.record_function("iteration"):
    ..."""
_CLOCKS = """\
# on every node: keep the clocks together
chronyc tracking"""
_CORES = """\
# one host has one clock: its ranks see the end of a collective late where their threads wait for a core
pidstat -wt -p <pid of a rank> 1           # nvcswch/s: preempted that often
OMP_NUM_THREADS=<cores per rank> torchrun ..."""
