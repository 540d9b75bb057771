"""Reading a trace: one file, or one stream of bytes, to a `RankTrace`.

Supported: Chrome-trace JSON as torch.profiler (Kineto) has written it since 2021, plain or gzipped, and the ranks of
one into which several were merged; the same in Perfetto's format (`pftrace`); processes in the files of other
recorders, by the readers that `discover.recorders` name.
Whatever a file is like, reading it either gives a `RankTrace`, whose warnings say what it lacks, or `TraceError`.
"""

from __future__ import annotations

import importlib
import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import msgspec
import numpy as np
from msgspec.structs import replace

from tb_ddp_doctor.discover.names import PACKETS_NAME, has_packets
from tb_ddp_doctor.discover.recorders import recorder_of
from tb_ddp_doctor.storage.paths import FilePath, ProcessPath, RemotePath, identity
from tb_ddp_doctor.trace import model, native, own_slice
from tb_ddp_doctor.trace.args import MISSING
from tb_ddp_doctor.trace.columns import Columns
from tb_ddp_doctor.trace.document import Document
from tb_ddp_doctor.trace.header import MOST_NUMBER, header_of
from tb_ddp_doctor.trace.losses import Loss, Losses
from tb_ddp_doctor.trace.merged import check_one_process, only
from tb_ddp_doctor.trace.names import OWN
from tb_ddp_doctor.trace.own_slice import RankOfSlice
from tb_ddp_doctor.trace.pftrace.read import PacketsAsColumns, PacketsAsJson
from tb_ddp_doctor.trace.stream import MAX_BYTES, StreamCutError, chunks, open_trace

_log = logging.getLogger(__name__)

Blocks: TypeAlias = Iterable[memoryview | bytes]
Table = TypeVar("Table", model.Events, model.CommArgs, model.MemoryEvents)


def read_rank(path: FilePath) -> model.RankTrace:
    """The trace of one rank. TraceError, with a sentence, as `read`, and for the events of several ranks."""
    if isinstance(path, ProcessPath):
        return read(path)
    _MERGED.forget()
    file = _read(path, str(path), MAX_BYTES)
    if not file.ranks and not file.trace.dropped.get(OWN):
        check_one_process(file.trace, is_remote=isinstance(path, RemotePath))
    return file.trace


def read(path: str | FilePath, *, name: str | None = None, max_bytes: int = MAX_BYTES) -> model.RankTrace:
    """Read one trace file, of which at most `max_bytes` of JSON; `name` is what warnings call it.

    TraceError, with a sentence, for a file that cannot be read or is no trace.
    """
    if isinstance(path, ProcessPath) and (recorder := recorder_of(path.file.name)):
        return _reader(recorder.reader)(path)
    if isinstance(path, ProcessPath):
        return _MERGED.read(path.file, max_bytes).part(path.label, name or str(path))
    _MERGED.forget()
    return _read(path, name or str(path), max_bytes).trace


class _File(msgspec.Struct, frozen=True, eq=False):
    """A file, read: all of it as one trace, and what it says of its ranks where ddp-doctor wrote it."""

    trace: model.RankTrace
    ranks: dict[str, RankOfSlice]

    def part(self, label: str, name: str) -> model.RankTrace:
        """The rank of that label."""
        if declared := self.ranks.get(label):
            return own_slice.only(self.trace, declared, name)
        if self.trace.dropped.get(OWN):
            raise model.TraceError(f"What it says of {label} is damaged: diagnose the traces that it was cut from.")
        return only(self.trace, label, name)


def _read(path: str | Path | RemotePath, name: str, max_bytes: int) -> _File:
    if _has_packets(path):
        return _read_packets(path, name, max_bytes)
    with open_trace(path) as file:
        return _decode(chunks(file, max_bytes), name)


class _MergedTrace:
    """The merged file that was read last: its ranks are asked for one after the other, and one reading serves all.

    It stays in memory until another file is read, or its process, which reads nothing else, ends.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: tuple[tuple[str, int], _File] | None = None

    def read(self, path: Path, max_bytes: int) -> _File:
        """All ranks of the file, anew where it has changed. Raises TraceError."""
        try:
            asked = (identity(path), max_bytes)
        except OSError:
            return _read(path, str(path), max_bytes)  # which says what is wrong with it
        with self._lock:
            if self._found is None or self._found[0] != asked:
                self._found = None
                self._found = (asked, _read(path, str(path), max_bytes))
            return self._found[1]

    def forget(self) -> None:
        with self._lock:
            self._found = None


_MERGED = _MergedTrace()


@cache
def _reader(name: str) -> Callable[[ProcessPath], model.RankTrace]:
    """The function of "module:function"."""
    module, _, function = name.partition(":")
    reader: Callable[[ProcessPath], model.RankTrace] = getattr(importlib.import_module(module), function)
    return reader


def _has_packets(path: str | Path | RemotePath) -> bool:
    file_name = os.path.basename(str(path))
    if not PACKETS_NAME.fullmatch(file_name):
        return False
    with open_trace(path) as file, suppress(StreamCutError):
        return has_packets(file_name, bytes(next(chunks(file), b"")))
    return True


def _read_packets(path: str | Path | RemotePath, name: str, max_bytes: int) -> _File:
    """Read a trace in Perfetto's format."""
    packets = PacketsAsColumns() if _chosen() == "native" else PacketsAsJson()
    with open_trace(path) as file:
        packets.survey(chunks(file, max_bytes))
    with open_trace(path) as file:
        blocks = chunks(file, max_bytes)
        if isinstance(packets, PacketsAsColumns):
            losses = Losses()
            trace = of_columns({}, packets.columns(blocks, losses), losses, name)
        else:
            trace = decode(packets.json(blocks), name)
    trace = replace(trace, warnings=(*trace.warnings, *packets.warnings(name)))
    return _File(trace, own_slice.of_file(packets.ranks))


def decode(blocks: Blocks, file: str) -> model.RankTrace:
    """Decode the JSON text that comes in `blocks`, cut anywhere; each may be reused once the next is asked for."""
    return _decode(blocks, file).trace


def _decode(blocks: Blocks, file: str) -> _File:
    losses = Losses()
    members, columns = _read_columns()(blocks, losses)
    said = members.get(own_slice.MEMBER)
    ranks = own_slice.of_file(said if isinstance(said, list) else ())
    return _File(of_columns(members, columns, losses, file), ranks)


def of_columns(
    members: Mapping[str, Any], columns: Columns | native.NativeColumns, losses: Losses, file: str
) -> model.RankTrace:
    """The trace of a file's columns and the members around its events; `losses` are those of both."""
    header = header_of(members, losses)
    events = _with_possible_numbers(
        columns.events(header.base_ns), ("stream", "correlation", "bytes", "sequence"), losses
    )
    sizes = ("group_size", "elements_in", "elements_out", "sequence", "peer")
    comms = _with_possible_numbers(columns.comms(), sizes, losses)
    memory = _with_possible_numbers(columns.memory(header.base_ns), ("bytes", "allocated", "reserved"), losses)
    # Before 2023 the file did not say so itself.
    shaped = bool((events.shape[events.category == model.Category.OP] >= 0).any())
    header = replace(header, has_shapes=header.has_shapes or shaped)
    return model.RankTrace(
        file=file,
        header=header,
        strings=tuple(columns.strings),
        threads=tuple(columns.threads.texts),
        events=events,
        comms=comms,
        memory=memory,
        frames=columns.frames(header.base_ns),
        dropped=dict(columns.dropped),
        warnings=losses.warnings(file),
    )


def _with_possible_numbers(table: Table, columns: Sequence[str], losses: Losses) -> Table:
    """The table with MISSING in place of numbers in some of its columns that are so large that sums of two overflow."""
    changed = {}
    for name in columns:
        column = getattr(table, name)
        if len(column) and (column.max() > MOST_NUMBER or column.min() < -MOST_NUMBER):
            impossible = (column > MOST_NUMBER) | (column < -MOST_NUMBER)
            losses.add(Loss.ARGUMENTS, 0, f"{name} is {column[impossible][0]}", int(np.count_nonzero(impossible)))
            changed[name] = np.where(impossible, MISSING, column)
    return replace(table, **changed) if changed else table


def name() -> str:
    """The reader in use: "native", or "msgspec" where the scanner was not built; DDP_DOCTOR_READER chooses another."""
    return os.environ.get("DDP_DOCTOR_READER") or ("native" if native.is_available() else "msgspec")


_ReadColumns: TypeAlias = Callable[[Blocks, Losses], tuple[dict[str, Any], Columns | native.NativeColumns]]


def _chosen() -> str:
    """The reader's name. Raises TraceError for one that is not to be had."""
    chosen = name()
    _log.debug("Traces are read by the %s reader.", chosen)
    if (chosen == "native" and native.is_available()) or chosen == "msgspec":
        return chosen
    raise model.TraceError(f'DDP_DOCTOR_READER asks for "{chosen[:32]}", which is not to be had here: leave it unset.')


def _read_columns() -> _ReadColumns:
    return native.read_columns if _chosen() == "native" else _read_columns_by_msgspec


def _read_columns_by_msgspec(blocks: Blocks, losses: Losses) -> tuple[dict[str, Any], Columns]:
    document = Document(blocks, losses)
    columns = Columns(losses)
    for position, batch in document.batches():
        columns.add(batch, position)
    return document.members, columns
