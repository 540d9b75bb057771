"""The table that `torchfrtrace -j` (`fr_trace.py -j`) prints: a column for each rank, a line for the n-th entry of all.

    Rank 0                                               Rank 1
    ---------------------------------------------------  -------------------------------------------------
    all_reduce(input_sizes=[[1024]], state=completed)    all_reduce(input_sizes=[[1024]], state=completed)
    all_reduce(input_sizes=[[1024]], state=scheduled)

With `-v` a cell also has time, sequence number, and the group's name, description and size. Without it a table is read
only where all ranks completed the same calls in the same order, so that one group of all ranks explains it.

The command leaves out what is older than the oldest entry that all ranks still have; a rank may then have none. It
does not list the ranks of groups: those that used one are taken where they are as many as the group has.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from tb_ddp_doctor.flight.model import ProcessGroup
from tb_ddp_doctor.storage.message import REFUSALS

_HEAD = re.compile(r"^Rank \d{1,7}(?: +Rank \d{1,7})* *\r?\n(?P<rule>-{6,}(?:  -{6,})*) *\r?$", re.MULTILINE)
_STACKS = re.compile(r"^ *stack_id +frame_stack", re.MULTILINE)
_CELL = re.compile(r"(?P<kind>\w{1,80})\((?P<said>.*)\)")
_KEY = re.compile(
    r"(?:^|, )(timestamp_created|s|input_sizes|output_sizes|input_dtypes|output_dtypes|collective_seq_id \| p2p_seq_id|"
    r"pg_name|pg_description|pg_size|stack_id|state)="
)
_ENDS = re.compile(r"(\d{1,7}) d=(\d{1,7})")
#: What the command appends to a group's name: Python's hash of its ranks.
_HASH = re.compile(r"(?<=.)(?:-\d{17,19}|\d{19})$")
_DTYPE = re.compile(r"'([^']*)'")
#: The one group of a table that names none.
_ALONE = "0"


class TableError(ValueError):
    """A table that does not say enough. Its text is a sentence for users."""


class RankEntries(NamedTuple):
    """One rank's column."""

    #: As a dump has it.
    content: dict[str, Any]
    #: Whether older entries are known to be missing.
    is_cut: bool


class _Cell(NamedTuple):
    kind: str
    said: Mapping[str, str]

    @property
    def group(self) -> str:
        return self.said.get("pg_name", _ALONE)

    @property
    def description(self) -> str:
        said = self.said.get("pg_description", "")
        return "" if said in ("None", "undefined") else said

    @property
    def is_pending(self) -> bool:
        return self.said.get("state") != "completed"

    @property
    def ends(self) -> tuple[int, int] | None:
        """Sender and receiver, as ranks of the job."""
        ranks = _ENDS.fullmatch(self.said.get("s", ""))
        return (int(ranks[1]), int(ranks[2])) if ranks else None


def read(text: str) -> list[RankEntries]:
    """Each rank's entries. Raises TableError."""
    columns = _columns(text)
    cells = [cell for own in columns.values() for cell in own]
    if any("pg_name" in cell.said for cell in cells):
        groups = _groups(columns)
    else:
        _check_same(columns)
        groups = {_ALONE: ProcessGroup(_ALONE, "", tuple(sorted(columns)))}
    is_cut = not all(columns.values()) or any(_first(own) > 1 for own in columns.values())
    return [RankEntries(_content(rank, own, groups), is_cut) for rank, own in columns.items()]


def _columns(text: str) -> dict[int, list[_Cell]]:
    """The cells of each rank."""
    head = _HEAD.search(text)
    if head is None:
        raise TableError("It has no whole table of torchfrtrace -j.")
    places = [match.span() for match in re.finditer("-+", head["rule"])]
    ranks = [int(rank) for rank in re.findall(r"\d+", head[0].partition("\n")[0])]
    if len(ranks) != len(places) or len(set(ranks)) != len(ranks):
        raise TableError("The head of its table is damaged.")
    end = _STACKS.search(text, head.end())
    columns: dict[int, list[_Cell]] = {rank: [] for rank in ranks}
    for line in text[head.end() : end.start() if end else None].splitlines():
        for rank, (start, stop) in zip(ranks, places, strict=True):
            if cell := _CELL.fullmatch(line[start:stop].strip()):
                parts = _KEY.split(cell["said"])
                columns[rank].append(_Cell(cell["kind"], dict(zip(parts[1::2], parts[2::2], strict=True))))
    return columns


def _check_same(columns: Mapping[int, Sequence[_Cell]]) -> None:
    """Raises TableError unless all ranks completed the same calls: else there may be several groups."""
    rows = [[cell for cell in row if not cell.is_pending] for row in zip(*columns.values(), strict=False)]
    if not any(rows) or any(len({cell.kind for cell in row}) > 1 for row in rows):
        raise TableError("It names no process groups, and there may be several: print it with torchfrtrace -j -v.")


def _groups(columns: Mapping[int, Sequence[_Cell]]) -> dict[str, ProcessGroup]:
    """Each group by its name in the table. Raises TableError where something is pending in one of unknown ranks."""
    users: defaultdict[str, set[int]] = defaultdict(set)
    of_description: defaultdict[str, set[int]] = defaultdict(set)
    firsts: dict[str, _Cell] = {}
    pending: set[str] = set()
    for rank, cells in columns.items():
        for cell in cells:
            firsts.setdefault(cell.group, cell)
            users[cell.group] |= {rank, *(cell.ends or ())}
            of_description[cell.description].add(rank)
            if cell.is_pending:
                pending.add(cell.group)
    names = _short_names(list(users))
    groups = {}
    for group, known in users.items():
        description, size = firsts[group].description, _number(firsts[group].said.get("pg_size", ""), 0)
        # Groups with one description share no rank.
        others = set(columns) - of_description[description] - known
        if len(known) < size == len(known | others):
            known = known | others
        if len(known) < size and group in pending:
            raise TableError(
                f"It shows {len(known)} of the {size} ranks of {description or 'a group'}, in which some wait: "
                "torchfrtrace leaves out what is older than the oldest entry that all ranks have. "
                "Keep the dumps themselves."
            )
        groups[group] = ProcessGroup(names[group], description, tuple(sorted(known)))
    return groups


def _short_names(names: Sequence[str]) -> dict[str, str]:
    """Names without the hash of ranks, where they then still differ."""
    short = [_HASH.sub("", name) for name in names]
    return dict(zip(names, short if len(set(short)) == len(short) else names, strict=True))


def _first(cells: Sequence[_Cell]) -> int:
    """The largest number with which a group begins on a rank."""
    firsts: dict[tuple[str, bool], int] = {}
    for cell in cells:
        firsts.setdefault((cell.group, cell.ends is not None), _sequence(cell, 1))
    return max(firsts.values(), default=1)


def _sequence(cell: _Cell, absent: int) -> int:
    return _number(cell.said.get("collective_seq_id | p2p_seq_id", ""), absent)


def _number(text: str, absent: int) -> int:
    return int(text) if text.isdecimal() and len(text) < 20 else absent


def _content(rank: int, cells: Sequence[_Cell], groups: Mapping[str, ProcessGroup]) -> dict[str, Any]:
    counts: defaultdict[bool, int] = defaultdict(int)
    entries = []
    for cell in cells:
        is_p2p = cell.ends is not None
        counts[is_p2p] += 1
        entries.append(_entry(cell, groups[cell.group], _sequence(cell, counts[is_p2p])))
    return {
        "rank": rank,
        "pg_config": {
            group.name: {"name": group.name, "desc": group.description, "ranks": list(group.ranks)}
            for group in groups.values()
            if rank in group.ranks
        },
        "entries": entries,
    }


def _entry(cell: _Cell, group: ProcessGroup, sequence: int) -> dict[str, Any]:
    said, name = cell.said, cell.kind
    if cell.ends and all(end in group.ranks for end in cell.ends):
        source, target = (group.ranks.index(end) for end in cell.ends)
        name += f" {source}->{target}" if cell.kind == "send" else f" {target}<-{source}"
    return {
        "process_group": (group.name, group.description),
        "profiling_name": name,
        "is_p2p": cell.ends is not None,
        "collective_seq_id": sequence,
        "p2p_seq_id": sequence,
        "time_created_ns": _number(said.get("timestamp_created", ""), -1),
        "input_sizes": _sizes(said.get("input_sizes", "")),
        "output_sizes": _sizes(said.get("output_sizes", "")),
        "input_dtypes": _DTYPE.findall(said.get("input_dtypes", "")),
        "output_dtypes": _DTYPE.findall(said.get("output_dtypes", "")),
        "state": said.get("state", ""),
    }


def _sizes(text: str) -> Any:
    try:
        return msgspec.json.decode(text.encode())
    except REFUSALS:
        return None
