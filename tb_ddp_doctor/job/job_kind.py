"""What kind of job it is, and what each rank does in it.

Pure: a job in; its program, its kind, roles and words out.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from tb_ddp_doctor.digest.model import RankDigest
from tb_ddp_doctor.findings import JobKind
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.trace.program_names import Program, Role


class Words(msgspec.Struct, frozen=True):
    """How sentences speak of a program that does not train."""

    #: "This program ... and does not train."
    does: str
    #: What its steps are called.
    unit: str


_WORDS = {
    Program.SERVING: Words("serves requests", "iteration"),
    Program.DIFFUSION: Words("is a diffusion pipeline", "iteration"),
    Program.INFERENCE: Words("runs forward passes only", "iteration"),
    Program.BENCHMARK: Words("is a benchmark", "iteration"),
}
#: Of forward passes alone, as many steps tell that no backward pass follows, though the file is cut off.
_LEAST_STEPS = 2
_FORWARD = Program.INFERENCE.value
_KINDS: dict[Program, JobKind] = {
    Program.TRAINING: "training",
    Program.RECOMMENDER: "recommender",
    Program.RL: "RL",
    Program.SERVING: "inference server",
    Program.DIFFUSION: "diffusion",
    Program.INFERENCE: "inference",
    Program.BENCHMARK: "benchmark",
    Program.UNKNOWN: "unknown",
}
#: What a process does in reinforcement learning by its program, where no annotation says so.
_ROLES = {
    Program.SERVING: Role.ROLLOUT,
    Program.TRAINING: Role.UPDATE,
    Program.RECOMMENDER: Role.UPDATE,
    Program.INFERENCE: Role.LOG_PROB,
}

#: Programs of ranks that generate, alone or in turn with other roles.
_GENERATES = (Program.SERVING.value, Program.RL.value)


def program(job: Job) -> Program:
    """What the job does, from what its ranks do."""
    return program_of(job.digests)


def program_of(digests: Collection[RankDigest]) -> Program:
    """What a job of these ranks does. Ranks whose traces do not tell it do not count.

    Where some ranks serve and others train, or marks name a rollout and another role, the job does reinforcement
    learning. Otherwise the ranks agree, or it is not known; forward passes alone, or a few kernels, are a part of
    whatever the others do.
    """
    named = {digest.contents.program for digest in digests}
    if _FORWARD in named and all(_may_go_on(one) for one in digests if one.contents.program == _FORWARD):
        named.remove(_FORWARD)
    programs = {Program(name) for name in named} - {Program.UNKNOWN}
    roles = {name for digest in digests for name in digest.contents.roles}
    if Program.RL in programs or {Program.SERVING, Program.TRAINING} <= programs or _are_of_rl(roles):
        return Program.RL
    for part in (Program.BENCHMARK, Program.INFERENCE):
        programs -= {part} if len(programs) > 1 else set()
    return programs.pop() if len(programs) == 1 else Program.UNKNOWN


def is_cut(digest: RankDigest) -> bool:
    """Whether the end of the rank's file is missing."""
    return any(warning.kind == "lost-end" for warning in digest.warnings)


def _may_go_on(digest: RankDigest) -> bool:
    """Whether a backward pass may follow what shows forward passes alone: the file is cut off in its first steps."""
    return len(digest.steps) < _LEAST_STEPS and is_cut(digest)


def _are_of_rl(roles: Collection[str]) -> bool:
    return Role.ROLLOUT.value in roles and len(roles) > 1


def kind(job: Job) -> JobKind:
    """The kind of job as users get it."""
    return _KINDS[program(job)]


def trains(job: Job) -> bool:
    """Whether the job has a training loop, as far as its traces show: advice on it cannot apply to others."""
    return program(job) not in _WORDS


def words(job: Job) -> Words | None:
    """How sentences speak of the job; None for one that trains."""
    return _WORDS.get(program(job))


def unit(job: Job) -> str:
    """What the job's steps are called in a sentence: a server has no training steps."""
    known = words(job)
    return known.unit if known else "step"


def role(digest: RankDigest) -> str:
    """What a rank of reinforcement learning does most of the time, as `Role` calls it; "" where nothing shows that.

    Every role takes part in the weight sync, and whoever waits for another one there is in it for longest: it is the
    role of a rank that nothing else tells one of.
    """
    times = {name: ns for name, ns in digest.contents.roles.items() if name != Role.WEIGHT_SYNC.value}
    if times:
        return max(times, key=lambda name: times[name])
    known = _ROLES.get(Program(digest.contents.program))
    return known.value if known else next(iter(digest.contents.roles), "")


def generates(digest: RankDigest) -> bool:
    """Whether a rank of reinforcement learning generates answers, alone or in turn with other roles."""
    return digest.contents.program in _GENERATES or Role.ROLLOUT.value in digest.contents.roles
