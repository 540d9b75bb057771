"""Which folders hold ranks of one job: `rank_0/`, `rank_1/` ..., or one folder per node."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable

import msgspec

from tb_ddp_doctor.discover.names import CAPTURE_FOLDER, RANK_FOLDER, START_FOLDER, natural
from tb_ddp_doctor.discover.trace_file import Parts, TraceFile

#: Ranks write the same profiler cycle within seconds; a trace of gigabytes takes minutes.
SAME_TIME_NS = 600 * 10**9


class FolderGroup(msgspec.Struct):
    """The files of one folder, or of several folders of one job."""

    parts: Parts
    files: list[TraceFile]
    ranks: set[int]
    world_size: int | None
    #: First and last time in the file names; None where there is none.
    times: tuple[int, int] | None

    @classmethod
    def of(cls, parts: Parts, files: list[TraceFile]) -> FolderGroup:
        """With what the files tell."""
        times = [file.time_ns for file in files if file.time_ns is not None]
        return cls(
            parts=parts,
            files=files,
            ranks={file.rank for file in files if file.rank is not None},
            world_size=most_claimed(file.world_size for file in files),
            times=(min(times), max(times)) if times else None,
        )

    @property
    def is_partial(self) -> bool:
        """Whether it holds some but not all ranks of a job, as far as the files say."""
        return bool(self.ranks) and (self.world_size is None or len(self.ranks) < self.world_size)

    def is_near(self, other: FolderGroup) -> bool:
        """Whether the times in the file names, where there are some, allow that both are of one job."""
        if not self.times or not other.times:
            return True
        return max(self.times[0], other.times[0]) <= min(self.times[1], other.times[1]) + SAME_TIME_NS

    def absorb(self, other: FolderGroup) -> None:
        """Take over what tells which folders can join, without the files."""
        self.ranks |= other.ranks
        self.world_size = self.world_size or other.world_size
        self.times = self.times or other.times


def most_claimed(world_sizes: Iterable[int | None]) -> int | None:
    """The most common claim; the larger of equals, so that a rank is rather called missing than forgotten."""
    claims = Counter(size for size in world_sizes if size is not None)
    return max(claims, key=lambda size: (claims[size], size)) if claims else None


def merge_folders(groups: list[FolderGroup]) -> list[FolderGroup]:
    """Join folders of one job whose paths differ in one part; deepest first, since ranks lie inside nodes."""
    for level in reversed(range(max((len(group.parts) for group in groups), default=0))):
        comparable: dict[tuple[Parts, Parts], list[FolderGroup]] = defaultdict(list)
        done = []
        for group in groups:
            if len(group.parts) > level and group.is_partial:
                comparable[group.parts[:level], group.parts[level + 1 :]].append(group)
            else:
                done.append(group)
        taken = {group.parts for group in done}
        for (before, after), candidates in comparable.items():
            for job in _jobs_across(candidates, level):
                if len(job) > 1:
                    parts = (*before, *after)
                    if parts in taken:
                        parts = (*before, f"{job[0].parts[level]}..{job[-1].parts[level]}", *after)
                    taken.add(parts)
                    done.append(_join(parts, level, job))
                else:
                    done += job
        groups = done
    return groups


def _jobs_across(candidates: list[FolderGroup], level: int) -> list[list[FolderGroup]]:
    """Partition folders into those that can be of one job: different ranks, equal world size, close in time."""
    jobs: list[tuple[FolderGroup, list[FolderGroup]]] = []
    for group in sorted(candidates, key=lambda group: natural(group.parts[level])):
        for whole, members in jobs:
            if _is_same_job(whole, group, members[0].parts[level], group.parts[level]):
                whole.absorb(group)
                members.append(group)
                break
        else:
            jobs.append((FolderGroup.of(group.parts, group.files), [group]))
    return [members for _, members in jobs]


def _is_same_job(job: FolderGroup, group: FolderGroup, folder_of_job: str, folder: str) -> bool:
    apart = (CAPTURE_FOLDER, START_FOLDER)
    if job.ranks & group.ranks or any(kind.fullmatch(folder_of_job) and kind.fullmatch(folder) for kind in apart):
        return False
    if job.world_size is None or group.world_size is None:
        # The files alone do not tell, so the folders must: "node0", "node1".
        if re.sub(r"\d+", "0", folder_of_job) != re.sub(r"\d+", "0", folder):
            return False
    elif job.world_size != group.world_size:
        return False
    return bool(RANK_FOLDER.fullmatch(folder)) or job.is_near(group)


def _join(parts: Parts, level: int, job: list[FolderGroup]) -> FolderGroup:
    for group in job:
        folder = group.parts[level]
        for file in group.files:
            if not file.node and not RANK_FOLDER.fullmatch(folder):
                file.node = folder
    return FolderGroup.of(parts, [file for group in job for file in group.files])
