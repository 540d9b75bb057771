"""Facts of a job, each made when it is first asked for and then kept; facts may ask for facts."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TypeVar, cast
from weakref import WeakSet

from tb_ddp_doctor.job.model import Job

T = TypeVar("T")
#: Makes a fact of others, and of the job.
Fact = Callable[["Facts"], object]
#: Functions that `fact` marked.
_MARKED: WeakSet[Fact] = WeakSet()


def fact(make: Callable[[Facts], T]) -> Callable[[Facts], T]:
    """Let rules ask for what a function makes: by the type that it returns, which no other fact has."""
    _MARKED.add(make)
    return make


def is_fact(value: object) -> bool:
    """Whether it is a function that is marked with `@fact`."""
    return inspect.isfunction(value) and value in _MARKED


class MissingFactError(Exception):
    """A fact that this job cannot give. Its text says what would be needed, for users."""


class Facts:
    """The facts of one job."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._made: dict[object, object] = {}

    def get(self, fact: Callable[[Facts], T]) -> T:
        """What a function makes of these facts. Raises what it raises, such as MissingFactError."""
        if fact not in self._made:
            self._made[fact] = fact(self)
        return cast(T, self._made[fact])

    def replaced(self, fact: Callable[[Facts], T], value: T) -> Facts:
        """The facts made so far, with another value of one."""
        later = Facts(self.job)
        later._made = {**self._made, fact: value}
        return later


def needs_matches(job: Job) -> None:
    """Raise MissingFactError unless collectives could be matched."""
    if not any(len(digest.collectives) for digest in job.digests):
        raise MissingFactError("No communication between ranks appears in the traces.")
    if not len(job.matched):
        raise MissingFactError(
            "No collective could be matched between ranks, so straggler wait and transfer cannot be separated."
        )


def needs_device(job: Job) -> None:
    """Raise MissingFactError unless a device computes."""
    if not job.has_device:
        raise MissingFactError("It is about the GPU, and these traces have none (CPU only).")
