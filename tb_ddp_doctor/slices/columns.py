"""A slice as columns in JSON, compact, for a page that draws it itself.

    {
      "start_ns": "1700000000000000000", "end_ns": "...",     the window on the common clock, as text: JavaScript's
                                                              numbers do not hold it
      "owners": ["compute", "copy", "communication", ...],    what `owner` indexes; the last one is "profiler", the
                                                              profiler's own work
      "collectives": {"7": {"kind", "group", "bytes", "size", "last_rank", "last_us", "transfer_us", "bus_factor"}},
                                                              size: ranks of its group; transfer: after the last arrival
      "labels": [{"title", "rank", "start_us", "end_us", "what"}],
      "left_out": "",                                         a sentence if events were left out
      "ranks": [{
        "rank": 3, "node": "node1", "left_out": 0,
        "names": ["aten::mm", ...],                           what `name` indexes
        "modules": ["layers.0.mlp", ...],                     what `module` indexes
        "memory": {"time_us", "allocated", "reserved"},       of the device's allocator, bytes, in order of time; of
                                                              traces with profile_memory=True
        "gpu": {"time_us", "sm_mhz", "power_w"},              as a capture saw it, null where that is unknown
        "lanes": [{
          "title": "GPU 0 stream 7: compute", "role": "main" | "autograd" | "thread" | "stream",
          "start_us": [...], "length_us": [...], "depth": [...], "name": [...], "owner": [...],
          "collective": [...],                                key into `collectives`, or -1
          "module": [...],                                    the innermost that it, or its launch, is of; or -1
          "launch": [...]                                     equal for a launch and what it launched, or -1
        }]
      }]
    }

Times are us from the start of the window, and negative before it. The events of a lane stand in order of time, the
outer ones first.
"""

from __future__ import annotations

from typing import IO, Any

import msgspec
import numpy as np

from tb_ddp_doctor.calibration.model import bus_factor
from tb_ddp_doctor.digest.model import RankOwner
from tb_ddp_doctor.slices import event_text
from tb_ddp_doctor.slices.model import RankSlice, Slice
from tb_ddp_doctor.trace.model import Category, Ints

CONTENT_TYPE = "application/json"


def write(part: Slice, file: IO[bytes]) -> None:
    """Write the slice to a binary file."""
    ranks = list(part.ranks)
    origin = part.start_ns
    metadata = {
        "start_ns": str(part.start_ns),
        "end_ns": str(part.end_ns),
        "owners": [*(owner.name.lower() for owner in RankOwner), "profiler"],
        "collectives": {
            str(row): {
                "kind": event_text.label(one.kind),
                "group": event_text.label(one.group),
                "bytes": one.bytes,
                "last_rank": one.last_rank,
                "last_us": (one.last_ns - origin) / 1e3,
                "size": one.size,
                "transfer_us": one.transfer_ns / 1e3,
                "bus_factor": bus_factor(one.kind, one.size),
            }
            for row, one in part.collectives.items()
        },
        "labels": [
            {
                "title": label.title,
                "rank": label.rank,
                "start_us": (label.start_ns - origin) / 1e3,
                "end_us": (label.end_ns - origin) / 1e3,
                "what": event_text.label(label.what),
            }
            for label in part.labels
        ],
        "left_out": event_text.left_out({rank.rank: rank.left_out for rank in ranks}),
        "ranks": [_rank(rank, origin) for rank in ranks],
    }
    file.write(msgspec.json.encode(metadata))


def _rank(rank: RankSlice, origin: int) -> dict[str, Any]:
    used, name = np.unique(rank.name, return_inverse=True)
    edges = np.searchsorted(rank.lane, np.arange(len(rank.lanes) + 1))
    by_profiler = rank.category == Category.OVERHEAD
    by_profiler |= (rank.owner == RankOwner.SYNC) & (rank.start_ns >= rank.steps_end_ns)
    owner = np.where(by_profiler, len(RankOwner), rank.owner)
    lanes = []
    for i, lane in enumerate(rank.lanes):
        here = slice(edges[i], edges[i + 1])
        lanes.append(
            {
                "title": event_text.label(lane.title),
                "role": lane.role.name.lower(),
                "start_us": _us(rank.start_ns[here] - origin),
                "length_us": _us(rank.end_ns[here] - rank.start_ns[here]),
                "depth": rank.depth[here].tolist(),
                "name": name[here].tolist(),
                "owner": owner[here].tolist(),
                "collective": rank.collective[here].tolist(),
                "module": rank.module[here].tolist(),
                "launch": rank.correlation[here].tolist(),
            }
        )
    return {
        "rank": rank.rank,
        "node": event_text.label(rank.node),
        "left_out": rank.left_out,
        "names": [event_text.label(rank.strings[index]) for index in used],
        "modules": [event_text.label(path) for path in rank.modules],
        "memory": {
            "time_us": _us(rank.memory.time_ns - origin),
            "allocated": rank.memory.allocated.tolist(),
            "reserved": rank.memory.reserved.tolist(),
        },
        "gpu": {
            "time_us": _us(rank.gpu.time_ns - origin),
            "sm_mhz": rank.gpu.sm_mhz.tolist(),
            "power_w": rank.gpu.power_w.tolist(),
        },
        "lanes": lanes,
    }


def _us(ns: Ints) -> list[float]:
    microseconds: list[float] = (ns / 1e3).tolist()
    return microseconds
