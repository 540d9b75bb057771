"""Small files beside the good ones of a job, each made to take for ever, all memory, or TensorBoard with it.

    PYTHONPATH=tests python tests/hostile_files.py [NAME ...]

Prints what `ddp-doctor diagnose` takes for a job with each of them: the memory of its largest process, CPU time of all,
and time; and what it says of the file.
"""

from __future__ import annotations

import contextlib
import gzip
import itertools
import json
import os
import pickle
import re
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from dumps import drawn as drawn_dumps
from dumps import write as write_dumps
from msgspec.structs import replace
from nsys_files import computed, endless
from nsys_files import write as write_export
from soak import HEALTHY, SLOW
from traces import digests, draw, in_row, ranks, write
from traces import read as drawn

from tb_ddp_doctor.cache import digest_version
from tb_ddp_doctor.storage import column_file

JOB = in_row(ranks(HEALTHY, SLOW, HEALTHY, HEALTHY))
STUCK = """
    groups: dp=0,1,2,3,4
    rank0: all_reduce@dp*40+ all_reduce@dp
    rank1: all_reduce@dp*40+
    rank2: all_reduce@dp*40+ all_reduce@dp
    rank3: all_reduce@dp*40+ all_reduce@dp
    rank4: all_reduce@dp*40+ all_reduce@dp
"""
#: The rank whose file is the hostile one.
RANK = 3
#: What "small" is.
MOST_BYTES = 2 << 20


# ------------------------------------------------------------------------------------------------------ dumps


def dump(folder: Path, **content: Any) -> Path:
    return pickled(folder, pickle.dumps(drawn_dumps(STUCK)[RANK] | content, protocol=2))


def pickled(folder: Path, data: bytes) -> Path:
    write_dumps(folder, STUCK)
    path = folder / f"nccl_trace_rank_{RANK}"
    path.write_bytes(data)
    return path


def dump_of_shared_lists(folder: Path) -> Path:
    entry = drawn_dumps(STUCK)[RANK]["entries"][0]
    sizes = [[1] * 1000] * 1000
    return dump(folder, entries=[entry | {"record_id": i, "input_sizes": sizes} for i in range(2000)])


def dump_of_ranks(folder: Path) -> Path:
    listed = [*range(100_000)]
    return dump(folder, pg_config={str(i): {"name": str(i), "ranks": listed} for i in range(20_000)})


def dump_of_a_large_group(folder: Path) -> Path:
    """A thousand pending collectives of a group of 60,000 ranks: whether each came to each is a question."""
    whole = drawn_dumps(STUCK)[RANK]
    groups = {name: one | {"ranks": str([*range(60_000)])} for name, one in whole["pg_config"].items()}
    last = whole["entries"][-1]
    entries = [
        last | {"record_id": i, "collective_seq_id": i, "op_id": i, "state": "scheduled"} for i in range(41, 1041)
    ]
    status = {name: one | {"last_enqueued_collective": 1040} for name, one in whole["pg_status"].items()}
    return dump(folder, pg_config=groups, entries=entries, pg_status=status)


def dump_of_one_hash(folder: Path) -> Path:
    """Pairs of numbers, all of one hash, as keys."""
    pairs = itertools.islice(same_hash(), 80_000)
    numbers = b"".join(_long(first) + _long(second) + b"\x86N" for first, second in pairs)
    return pickled(folder, b"\x80\x02}(X\x07\0\0\0versionX\x03\0\0\x002.4X\x07\0\0\0entries](}(" + numbers + b"ueu.")


def same_hash() -> Any:
    """Pairs of numbers with equal hashes: of each first number, the second that makes up for it (xxHash)."""
    mask, one, two, five = (1 << 64) - 1, 11400714785074694791, 14029467366897019727, 2870177450012600261
    turned = lambda value: ((value << 31) | (value >> 33)) & mask  # noqa: E731
    undo_two = pow(two, -1, 1 << 64)
    for first in itertools.count(1):
        begun = turned((five + first * two) & mask) * one & mask
        second = (0x123456789 - begun) * undo_two & mask
        second -= (second >> 63) << 64
        if abs(second) < (1 << 61) - 1 and second != -1:
            yield first, second


def _long(value: int) -> bytes:
    return b"\x8a\x08" + value.to_bytes(8, "little", signed=True)


def answer_of_ras(folder: Path) -> Path:
    write_dumps(folder, STUCK)
    path = folder / "ras.json"
    path.write_text('{"communicators_count": 1, "communicators": [' + "[]," * 600_000 + "[]]}")
    return path


def stacks_that_are_read_over_and_over(folder: Path) -> Path:
    write_dumps(folder, STUCK)
    path = folder / f"rank_{RANK}.stacks.txt"
    line = "    a " + "(a" * 100 + ("(" + ":1" * 200 + ")") * 2 + "x\n"
    path.write_text("Process 1: python\nPython v3.11.7\n" + line * (MOST_BYTES // len(line) // 2))
    return path


# ---------------------------------------------------------------------------------------------------- snapshots

_BLOCK = {"address": 0, "size": 512, "state": "active_allocated", "frames": []}


def snapshot(folder: Path, **content: Any) -> Path:
    write(folder, JOB)
    path = folder / f"rank{RANK}_memory_snapshot.pickle"
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": [], **content}))
    return path


def snapshot_of_shared_blocks(folder: Path) -> Path:
    blocks = [_BLOCK] * 100_000
    segments = [{"address": i, "total_size": 512, "stream": 0, "blocks": blocks} for i in range(5000)]
    return snapshot(folder, segments=segments)


def snapshot_of_unclosed_annotations(folder: Path) -> Path:
    opened = [{"name": f"{i}", "stage": "START", "time_us": i} for i in range(25_000)]
    events = [{"action": "alloc", "addr": i, "time_us": 25_000 + i} for i in range(10_000)]
    return snapshot(folder, external_annotations=opened, device_traces=[events])


# --------------------------------------------------------------------------------------------- SQLite, digests


def _export(folder: Path, harm: Callable[[Path], None]) -> Path:
    write(folder, JOB)
    path = write_export(folder / "job.sqlite", drawn(JOB, metadata="nowhere"))
    harm(path)
    return path


def sqlite_whose_pages_share_a_child(folder: Path) -> Path:
    return _export(folder, endless)


def sqlite_with_a_computed_column(folder: Path) -> Path:
    return _export(folder, computed)


def _digest(folder: Path) -> Path:
    """The job with the digest of the rank in place of its trace."""
    write(folder, JOB)
    next(folder.glob(f"host{RANK}_*.json")).unlink()
    return folder / f"host{RANK}_{100 + RANK}.1700000000000000000.pt.trace.json.digest"


def digest_with_wrong_columns(folder: Path) -> Path:
    path, made = _digest(folder), digests(JOB)[RANK]
    kernels = replace(made.kernels, name=np.full_like(made.kernels.name, 1_000_000))
    with path.open("wb") as file:
        column_file.dump(replace(made, kernels=kernels), digest_version(), file)
    return path


def digest_of_one_column(folder: Path) -> Path:
    """All columns of a step are the same 1.5 MB: 300 MB written out."""
    path, index, _ = _digested(folder)
    values = 190_000
    index["columns"] = [["<i8" if dtype == "<i8" else dtype, [values], 0, False] for dtype, *_ in index["columns"]]
    index["read"] = 0
    return _with_index(path, index, bytes(values * 8))


def digest_of_many_collectives(folder: Path) -> Path:
    """60,000 calls more than other ranks have: which of them are the others' is a question of the square of it."""
    path, made = _digest(folder), digests(JOB)[RANK]
    table = made.collectives
    columns = (getattr(table, name) for name in table.__struct_fields__)
    table = type(table)(*(np.concatenate((column, np.repeat(column[-1:], 60_000))) for column in columns))
    with path.open("wb") as file:
        column_file.dump(replace(made, collectives=table, file=str(path)), digest_version(), file)
    return path


def digests_of_many_messages(folder: Path, count: int = 60_000) -> Path:
    """Digests of all ranks, each of which tells of messages to so many others and of as many collectives more."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank, made in digests(JOB).items():
        path = folder / f"host{rank}_{100 + rank}.1700000000000000000.pt.trace.json.digest"
        tables = {name: _grown(getattr(made, name), count) for name in ("messages", "collectives")}
        tables["messages"] = replace(tables["messages"], peer=np.arange(len(tables["messages"])))
        with path.open("wb") as file:
            column_file.dump(replace(made, file=str(path), **tables), digest_version(), file)
    return path


def _grown(table: Any, rows: int) -> Any:
    """A table with as many more rows as its last one, or as one of zeros, each a microsecond later."""
    columns = {}
    for name in table.__struct_fields__:
        column = getattr(table, name)
        last = column[-1:] if len(column) else np.zeros(1, column.dtype)
        later = np.repeat(last, rows)
        if name.endswith("_ns"):
            later += np.arange(1, rows + 1) * 1000
        columns[name] = np.concatenate((column, later))
    return type(table)(**columns)


def digest_of_one_long_name(folder: Path) -> Path:
    """All of 60,000 kinds of kernels, and what is launched after each gap, have one name of a megabyte."""
    path, made = _digest(folder), digests(JOB)[RANK]
    strings = (*made.strings, "n" * 1_000_000)
    tables = {}
    for name in ("kernels", "gap_ops"):
        table = getattr(made, name)
        columns = {each: np.zeros(60_000, getattr(table, each).dtype) for each in table.__struct_fields__}
        columns |= {each: np.full(60_000, len(strings) - 1, np.int32) for each in ("name", "kernel") if each in columns}
        tables[name] = replace(table, **columns)
    with path.open("wb") as file:
        column_file.dump(replace(made, strings=strings, file=str(path), **tables), digest_version(), file)
    return path


def digest_with_a_large_index(folder: Path) -> Path:
    path, index, columns = _digested(folder)
    index["values"]["strings"] = [[] for _ in range(550_000)]
    return _with_index(path, index, columns)


def _digested(folder: Path) -> tuple[Path, dict[str, Any], bytes]:
    """A good digest: where it is, its index, and what follows."""
    path = digest_that_is_overwritten(folder)
    data = path.read_bytes()
    length = int.from_bytes(data[8:16], "little")
    return path, json.loads(data[24 : 24 + length]), data[24 + length :]


def _with_index(path: Path, index: dict[str, Any], columns: bytes) -> Path:
    text = json.dumps(index, separators=(",", ":")).encode()
    text += b" " * (-(24 + len(text)) % 64)
    if not index["read"]:
        columns = bytes(-(24 + len(text)) % 4096) + columns
    checks = struct.pack("<QII", len(text), zlib.crc32(text), zlib.crc32(columns))
    path.write_bytes(b"ddpdoc\0\1" + checks + text + columns)
    return path


def digest_that_is_overwritten(folder: Path) -> Path:
    """Whole at first: the test shortens it while the tab is open."""
    path = _digest(folder)
    with path.open("wb") as file:
        column_file.dump(digests(JOB)[RANK], digest_version(), file)
    return path


# ------------------------------------------------------------------------------------------------------ traces


def trace(folder: Path, data: bytes, suffix: str = ".gz") -> Path:
    write(folder, JOB)
    path = next(folder.glob(f"host{RANK}_*.json"))
    path.unlink()
    path = path.with_name(path.name + suffix)
    path.write_bytes(data)
    return path


def packed(head: bytes, block: bytes, times: int, tail: bytes) -> bytes:
    """A head, a block again and again, and a tail as gzip: the block is compressed once, however often it stands."""
    parts, check = [], 0
    for data, count in ((head, 1), (block, times), (tail, 1)):
        # After a full flush, no piece refers to what stands before it.
        packer = zlib.compressobj(9, wbits=-zlib.MAX_WBITS)
        parts += [packer.compress(data) + packer.flush(zlib.Z_FULL_FLUSH)] * count
        for _ in range(count):
            check = zlib.crc32(data, check)
    end = zlib.compressobj(wbits=-zlib.MAX_WBITS).flush()
    size = len(head) + times * len(block) + len(tail)
    start = b"\x1f\x8b\x08\0\0\0\0\0\0\xff"
    return b"".join((start, *parts, end, struct.pack("<II", check, size % (1 << 32))))


def trace_of_many_processes(folder: Path) -> Path:
    """As of 12 ranks that somebody merged, 130 MB of them."""
    event = '{"ph":"X","cat":"cpu_op","name":"a","pid":%d,"tid":1,"ts":1,"dur":1,"args":{"rank": 1}},'
    text = "".join(event % (i * 100_000_000 + 7) for i in range(12)).encode() * 830
    return trace(folder, packed(b'{"traceEvents": [', text, 150, b"{}]}"))


def trace_of_250_ranks(folder: Path) -> Path:
    """As of 250 ranks that somebody merged, 90 MB of them."""
    event = '{"ph":"X","cat":"cpu_op","name":"a","pid":%d,"tid":1,"ts":1,"dur":1,"args":{"rank": 1}},'
    text = "".join(event % (i * 100_000_000 + 7) for i in range(250)).encode() * 40
    return trace(folder, packed(b'{"traceEvents": [', text, 100, b"{}]}"))


def trace_of_a_million_kernels(folder: Path) -> Path:
    head = b'{"schemaVersion": 1, "distributedInfo": {"rank": %d, "world_size": 4}, "traceEvents": [' % RANK
    kernel = b'{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":1,"dur":2,"args":{"device":0,"stream":7}}'
    return trace(folder, packed(head, (kernel + b",") * 10_000, 100, kernel + b"]}"))


def trace_of_empty_blocks(folder: Path) -> Path:
    """Compressed text that never comes to a byte of text."""
    return trace(folder, b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + b"\0\0\0\xff\xff" * 380_000)


def trace_of_many_steps(folder: Path) -> Path:
    """One rank has 20,000 steps where others have 3."""
    texts = draw(JOB)
    whole = json.loads(texts[RANK])
    steps = [
        {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{i}", "pid": 1, "tid": 1, "ts": i * 10, "dur": 9}
        for i in range(9, 20_000)
    ]
    whole["traceEvents"] += steps
    return trace(folder, gzip.compress(json.dumps(whole).encode()))


# ------------------------------------------------------------------------------------------------- paths, texts


def _never_answers(path: Path) -> Path:
    """A link to the kernel's log: whoever may read it waits for its next line."""
    with contextlib.suppress(OSError):
        log = os.open("/proc/kmsg", os.O_RDONLY | os.O_NONBLOCK)
        with contextlib.suppress(OSError):
            while os.read(log, 1 << 16):
                pass
        os.close(log)
    path.symlink_to("/proc/kmsg")
    return path


def trace_that_never_answers(folder: Path) -> Path:
    path = trace(folder, b"", "")
    path.unlink()
    return _never_answers(path)


def log_that_never_answers(folder: Path) -> Path:
    write(folder, JOB)
    return _never_answers(folder / "nccl.log")


def snapshot_that_never_answers(folder: Path) -> Path:
    write(folder, JOB)
    return _never_answers(folder / f"rank{RANK}_memory_snapshot.pickle")


def pipes(folder: Path) -> Path:
    """Of all names that are looked at; opened, each waits for who writes."""
    write(folder, JOB)
    names = ("nccl.log", "smi.txt", "calibration.json", "rank9_memory_snapshot.pickle", "rank0.capture", "a.sqlite")
    for name in (*names, "nccl_trace_rank_1", "host9_109.1700000000000000000.pt.trace.json.digest"):
        os.mkfifo(folder / name)
    return folder / "nccl.log"


def link_to_proc(folder: Path) -> Path:
    write(folder, JOB)
    path = folder / "processes"
    path.symlink_to("/proc")
    return path


def calibration(folder: Path) -> Path:
    write(folder, JOB)
    path = folder / "calibration.json"
    path.write_text('{"ranks": [' + "[]," * 600_000 + "[]]}")
    return path


def record(folder: Path) -> Path:
    write(folder, JOB)
    path = folder / f"rank{RANK}.capture"
    path.write_text('{"rank": 3, "files": {' + ",".join(f'"{i}": 1' for i in range(150_000)) + "}}")
    return path


def log_of_many_clocks(folder: Path) -> Path:
    """Lines of a training log that begin over and over and never end."""
    write(folder, JOB)
    path = folder / "train.log"
    lines = ("2026-11-26 12:00:00 step: 1 " * 560 + "tps:\n", "iteration 1/1 |" * 1000 + "elapsed time per iteration\n")
    path.write_text("".join(lines) * 60)
    return path


#: Those of which nothing has to be said: of texts that are none, pipes, and what is only told where it is of use.
SILENT = (
    pipes,
    digest_that_is_overwritten,
    digests_of_many_messages,
    digest_of_one_long_name,
    record,
    trace_of_many_steps,
    snapshot_of_unclosed_annotations,
    log_of_many_clocks,
)
CASES: dict[str, Callable[[Path], Path]] = {
    case.__name__: case
    for case in (
        dump_of_shared_lists, dump_of_ranks, dump_of_a_large_group, dump_of_one_hash, answer_of_ras,
        stacks_that_are_read_over_and_over, snapshot_of_shared_blocks, snapshot_of_unclosed_annotations,
        sqlite_whose_pages_share_a_child, sqlite_with_a_computed_column, digest_with_wrong_columns,
        digest_of_one_column, digest_of_many_collectives, digests_of_many_messages, digest_of_one_long_name,
        digest_with_a_large_index, digest_that_is_overwritten,
        trace_of_many_processes, trace_of_250_ranks, trace_of_a_million_kernels, trace_of_empty_blocks,
        trace_of_many_steps, trace_that_never_answers, log_that_never_answers, snapshot_that_never_answers,
        pipes, link_to_proc, calibration, record, log_of_many_clocks,
    )
}  # fmt: skip


def main() -> int:
    chosen = sys.argv[1:] or list(CASES)
    print(f"{'':38}{'MB':>6}{'CPU s':>7}{'s':>7}")
    with tempfile.TemporaryDirectory() as temporary:
        for name in chosen:
            folder = Path(temporary, name)
            path = CASES[name](folder)
            began = time.monotonic()
            command = [sys.executable, "-m", "tb_ddp_doctor.cli", "diagnose", str(folder), "--json", "--no-cache"]
            with tempfile.TemporaryFile() as out, subprocess.Popen(command, stdout=out, stderr=out) as process:
                rss, cpu_s = _watched(process)
                out.seek(0)
                text = out.read().decode(errors="replace")
            took = time.monotonic() - began
            said = re.search(rf'"file": "[^"]*{re.escape(path.name)}",\s*"message": "([^"]*)', text)
            print(f"{name:38}{rss / 1e6:6.0f}{cpu_s:7.1f}{took:7.1f}  {said[1] if said else '-'}", flush=True)
    return 0


def _watched(process: subprocess.Popen[bytes]) -> tuple[int, float]:
    """The most that one process of a command had, bytes, and the CPU time of all, s, as far as both are seen."""
    most: dict[int, tuple[int, float]] = {}
    while process.poll() is None:
        with contextlib.suppress(psutil.Error):
            command = psutil.Process(process.pid)
            for each in (command, *command.children(recursive=True)):
                with contextlib.suppress(psutil.Error):
                    used = each.cpu_times()
                    before = most.get(each.pid, (0, 0.0))[0]
                    most[each.pid] = max(before, each.memory_info().rss), used.user + used.system
        time.sleep(0.02)
    return max(rss for rss, _ in most.values()), sum(cpu_s for _, cpu_s in most.values())


if __name__ == "__main__":
    sys.exit(main())
