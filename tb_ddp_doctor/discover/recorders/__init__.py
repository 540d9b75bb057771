"""The recorders other than Kineto, one module each: a recorder is found by being here."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

from tb_ddp_doctor.discover.names import TRACE_NAME, trace_name
from tb_ddp_doctor.discover.recorder import Beside, Recorder, TraceRecorder


def _recorders() -> Iterator[Recorder]:
    for file in pkgutil.iter_modules(__path__, f"{__name__}."):
        for value in vars(importlib.import_module(file.name)).values():
            if isinstance(value, type) and issubclass(value, Recorder) and value.__module__ == file.name:
                yield value()


#: Every recorder, in the order of their modules; those of traces, and those whose files lie beside traces.
RECORDERS: tuple[Recorder, ...] = tuple(_recorders())
OF_TRACES = tuple(recorder for recorder in RECORDERS if isinstance(recorder, TraceRecorder))
BESIDE = tuple(recorder for recorder in RECORDERS if isinstance(recorder, Beside))


def recorder_of(name: str) -> TraceRecorder | None:
    """The recorder that may have written a file of events, by its name; None for Kineto's and all others."""
    if TRACE_NAME.fullmatch(trace_name(name)):
        return None
    return next((recorder for recorder in OF_TRACES if recorder.matches(name)), None)
