"""The verdict in TensorBoard: time series of its numbers, and its text, by tensorboard's own writer."""

from __future__ import annotations

from pathlib import Path

from tb_ddp_doctor.capture.directory import SCALARS_FOLDER, Verdict
from tb_ddp_doctor.engine import Result
from tb_ddp_doctor.report import markdown


def write(logdir: Path, verdict: Verdict, result: Result) -> None:
    """Add one point to each series, in an event file of its own. Raises OSError.

    The files lie in a folder of their own: beside a job's event file, TensorBoard would take ours for its successor.
    """
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.scalar.metadata import create_summary_metadata as of_scalar
    from tensorboard.plugins.text.metadata import create_summary_metadata as of_text
    from tensorboard.summary.writer.event_file_writer import EventFileWriter
    from tensorboard.util.tensor_util import make_tensor_proto

    values = [
        Summary.Value(
            tag=f"ddp_doctor/{name}",
            metadata=of_scalar(display_name="", description=""),
            tensor=make_tensor_proto(value, dtype="float32"),
        )
        for name, value in verdict.scalars.items()
    ]
    values.append(
        Summary.Value(
            tag="ddp_doctor/verdict",
            metadata=of_text(display_name="", description=""),
            tensor=make_tensor_proto(markdown.document([result])),
        )
    )
    writer = EventFileWriter(str(logdir / SCALARS_FOLDER))
    try:
        writer.add_event(Event(wall_time=_time(result), step=verdict.step, summary=Summary(value=values)))
    finally:
        writer.close()


def _time(result: Result) -> float:
    """When the first rank's first step began, s since the epoch."""
    return float(result.job.digests[0].steps.start_ns[0]) / 1e9
