"""Step times in the scalars that a job writes for TensorBoard: by a tag that has them, else by when they were written.

An event file is records: length (8 bytes), checksum (4), an Event of protobuf, checksum (4).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

from tb_ddp_doctor.history.logs.points import LoggedStep
from tb_ddp_doctor.storage.plain_file import open_plain

#: Files' names have this in them.
MARK = "tfevents"
#: Tags of the mean time of a step, s: Megatron-LM's and its elders', torchtitan's.
STEP_TIME_TAGS = ("iteration-time", "iteration_time", "time_metrics/end_to_end(s)")
#: What the doctor itself writes, and what is not written as steps end.
_NO_STEPS = ("ddp_doctor", "eval", "val", "test")
_HEAD, _TAIL = struct.Struct("<QL"), 4
#: Longer records are pictures and graphs. Of a file so much is read.
_LONGEST, _MOST_BYTES = 1 << 16, 1 << 32
#: Tags that are kept: of jobs with more, the first.
_MOST_TAGS = 512


def read_event_files(paths: Sequence[Path]) -> list[LoggedStep]:
    """Step times of the event files of a folder, in the order of their names, which begin with when each was made."""
    by_tag: dict[str, list[LoggedStep]] = {}
    for path in paths:
        for tag, step, at_s, value in _scalars(path):
            if tag in by_tag or len(by_tag) < _MOST_TAGS:
                by_tag.setdefault(tag, []).append(LoggedStep(step, at_s, value))
    for tag in STEP_TIME_TAGS:
        if len(by_tag.get(tag, ())) > 1:
            return by_tag[tag]
    of_steps = [points for tag, points in by_tag.items() if not tag.lower().startswith(_NO_STEPS)]
    most = max(of_steps, key=len, default=[])
    return [LoggedStep(point.step, point.at_s) for point in most]


def _scalars(path: Path) -> Iterator[tuple[str, int, float, float]]:
    """Tag, step, time (s since 1970) and value of each scalar of a file, up to where it is damaged. Raises OSError."""
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
    from tensorboard.compat.proto.event_pb2 import Event

    with open_plain(path) as file:
        while file.tell() < _MOST_BYTES and len(head := file.read(_HEAD.size)) == _HEAD.size:
            length, _ = _HEAD.unpack(head)
            if length > _LONGEST:
                file.seek(min(length, _MOST_BYTES) + _TAIL, 1)
                continue
            data = file.read(length)
            file.seek(_TAIL, 1)
            try:
                event = Event.FromString(data)
            except DecodeError:
                return
            for value in event.summary.value:
                number = value.simple_value
                if value.HasField("tensor"):
                    floats = value.tensor.float_val or value.tensor.double_val
                    packed = value.tensor.tensor_content
                    number = floats[0] if floats else struct.unpack("<f", packed)[0] if len(packed) == 4 else 0.0
                    if value.metadata.plugin_data.plugin_name not in ("", "scalars"):
                        continue
                elif not value.HasField("simple_value"):
                    continue
                yield value.tag, event.step, event.wall_time, number
