"""What `fuzzing` runs: digests, Flight Recorder dumps, snapshots of memory, exports of Nsight Systems, texts, traces of
both formats, and files of step times and logs.
"""

from __future__ import annotations

import io
import json
import pickle
import random
import shutil
import sqlite3
import struct
import zlib
from contextlib import closing, suppress
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Any

import dumps
import fuzz_mutations as mutations
import msgspec
import nsys_files
import numpy as np
import pftrace_files
import traces
from fuzzing import Target
from msgspec.structs import replace
from rich.console import Console
from test_history_logs import START_S, megatron, records, scalars, titan, wandb_file

from tb_ddp_doctor import engine
from tb_ddp_doctor.account import memory_text
from tb_ddp_doctor.cache import Cache, digest_version, write_digest
from tb_ddp_doctor.calibration import load as calibrations
from tb_ddp_doctor.digest import valid
from tb_ddp_doctor.digest.build import digest
from tb_ddp_doctor.digest.model import RankDigest
from tb_ddp_doctor.discover.head import peek
from tb_ddp_doctor.discover.runs import discover
from tb_ddp_doctor.evidence import find as evidence
from tb_ddp_doctor.findings import Diagnosis, MemorySnapshot
from tb_ddp_doctor.flight import load as flight
from tb_ddp_doctor.flight import ras, stacks
from tb_ddp_doctor.flight.model import Dump as RankDump
from tb_ddp_doctor.history import blocks, sentences
from tb_ddp_doctor.history.logs.find import log_files, read_log
from tb_ddp_doctor.history.read import history_files
from tb_ddp_doctor.history.summary import summarise
from tb_ddp_doctor.history.windows import read_job
from tb_ddp_doctor.memory_snapshot.read import read_one
from tb_ddp_doctor.memory_snapshot.summary import SnapshotError
from tb_ddp_doctor.nccl_logs.read import read_logs
from tb_ddp_doctor.nsys import processes
from tb_ddp_doctor.nsys.database import NsysError
from tb_ddp_doctor.report.escape import printable_json
from tb_ddp_doctor.report.stuck import print_run
from tb_ddp_doctor.slices import chrome, cut, native
from tb_ddp_doctor.storage import column_file
from tb_ddp_doctor.storage.message import packed, unpacked
from tb_ddp_doctor.storage.paths import ProcessPath
from tb_ddp_doctor.storage.unpickle import PickleError, loads
from tb_ddp_doctor.stuck.build import build
from tb_ddp_doctor.stuck.threads import examined, with_threads
from tb_ddp_doctor.trace import reader
from tb_ddp_doctor.trace.model import TraceError
from tb_ddp_doctor.trace.nsys import read as nsys
from tb_ddp_doctor.view.details import DETAILS

#: A rank with something in most tables of a digest.
RANK = """
    rank# step     |1                                          |2
          host     [load.][fwd][walk][bwd][item....][update]    [load.][fwd][bwd]     [sync.....]
          autograd             [grad@2]
          gpu             [pinned][fwd....][bwd.....]                  [fwd....][bwd*20.]
          nccl                     [ar@8....][ag/tp]                              [ar@8.......]
          memory   [2of4a]     [3of4b]  [2of4b]                       [3of4c]
          python   [step........................]                [gc...]
"""
JOB = traces.ranks(RANK, RANK, RANK, steps=2)
SMALL = """
    rank0 step   |1                |2
          host   [load.][fwd][item]  [fwd][sync]
          gpu           [fwd...]     [fwd....]
          nccl           [p2p]  [ar@8]  [s1r1]
          memory [2of4a]        [3of4b]
          gloo   [ar/cpu]
"""
#: Values of a text of JSON.
_MOST_WRITTEN = 20_000


def _errors(found: Diagnosis) -> list[str]:
    """Rules that failed; that a fix would save more than it removes is told of records that contradict themselves."""
    failed = [one for one in found.outcomes if one.status == "error"]
    return [f"{one.rule}: {one.reason}" for one in failed if "save more time than it removes" not in one.reason]


def is_sentence(text: str) -> str:
    """A refusal, which is to be a sentence of some length."""
    assert text.rstrip().endswith((".", ")", "?")), text
    assert len(text) < 2_000, text[:2_000]
    return text


class Digest(Target):
    """Digest files: one of three ranks is hostile, the two others are to be diagnosed with it or without."""

    suffix = ".json"

    @cached_property
    def _good(self) -> RankDigest:
        drawn = traces.read(JOB, device_gb=8)
        (self.folder / "job").mkdir()
        for rank in (0, 1):
            write_digest(digest(drawn[rank]), self.folder / f"job/rank{rank}.pt.trace.json.digest")
        return digest(drawn[2])

    def seeds(self) -> list[bytes]:
        return [b"[]"]

    def changed(self, case: bytes, draw: random.Random) -> bytes:
        edits = json.loads(case)
        if edits and draw.random() < 0.2:
            del edits[draw.randrange(len(edits))]
        column = draw.choice(valid.columns())
        size = attrgetter(column.path)(self._good).shape[0]
        kind = draw.choice(("set", "set", "set", "set", "fill", "fill", "length", "type", "plain", "index", "byte"))
        at = draw.randrange(max(size, 1))
        edit: list[Any] = [kind, column.path]
        if kind == "set":
            edit += [at, draw.choice((1, 1, 3, 1000)), self._number(column, draw)]
        elif kind == "fill":
            edit += [draw.randrange(1, 12), draw.randrange(1 << 30)]
        elif kind == "length":
            edit += [draw.choice((0, 1, size + 1, size * 2, 70_000))]
        elif kind == "type":
            edit += [draw.choice(("<i4", "<i8", "<f8", "|b1", "<u8", ">i8"))]
        elif kind == "plain":
            edit = ["plain", draw.randrange(1 << 30)]
        elif kind == "index":
            edit = ["index", draw.randrange(1 << 30)]
        else:
            edit = ["byte", draw.randrange(1 << 20), draw.randrange(256), draw.random() < 0.8]
        return json.dumps([*edits, edit][-12:]).encode()

    def _number(self, column: valid.ColumnType, draw: random.Random) -> int:
        """Something that the column's table may hold, or not."""
        if draw.random() < 0.2:
            return draw.choice(mutations.INTEGERS[:19])
        if column.dtype != np.int64:
            return draw.randrange(-2, 8)
        base = int(self._good.steps.start_ns[0])
        return draw.choice((0, 1, -1, base, base + draw.randrange(10**8), draw.randrange(10**9), 1 << 61, -(1 << 61)))

    def run(self, case: bytes) -> str:
        good, folder = self._good, self.folder / "job"
        data = self.made(good, json.loads(case))
        (folder / "rank2.pt.trace.json.digest").write_bytes(data)
        (run,) = discover(folder)
        result = engine.diagnose(run, reading=engine.Reading(Cache()))
        found = result.diagnosis
        assert {0, 1} <= set(found.ranks) or any("rank2" not in one.file for one in found.warnings), found.ranks
        assert not _errors(found), _errors(found)
        for make in DETAILS.values():
            msgspec.json.encode(make(result))
        for one in found.findings:
            result.savings.without([one.id])
        msgspec.json.decode(printable_json(found), type=Diagnosis)
        said = [one.message for one in found.warnings]
        assert not any("please report" in one for one in said), said
        return f"{found.verdict} {sorted(one.rule for one in found.findings)} {said}"

    def made(self, good: RankDigest, edits: list[list[Any]]) -> bytes:
        """The file of a digest with changes."""
        one = good
        late = []
        for edit in edits:
            if edit[0] in ("plain", "index", "byte"):
                late.append(edit)
            else:
                with suppress(OverflowError, ValueError, AttributeError):
                    one = _edited(one, edit)
        file = io.BytesIO()
        column_file.dump(one, digest_version(), file)
        data = file.getvalue()
        for kind, *how in late:
            if kind == "byte":
                place, byte, right = how
                place %= len(data)
                data = data[:place] + bytes([byte]) + data[place + 1 :]
                data = _with_checksums(data) if right else data
            else:
                data = _with_index(data, random.Random(how[0]), all_of_it=kind == "index")
        return data


def _edited(one: RankDigest, edit: list[Any]) -> RankDigest:
    kind, path, *how = edit
    column = attrgetter(path)(one)
    if kind == "set":
        at, count, number = how
        column = column.copy()
        flat = column.reshape(-1)
        flat[at : at + count] = number if column.dtype != np.bool_ else bool(number)
    elif kind == "length":
        column = np.resize(column, (how[0], *column.shape[1:])) if column.size else np.zeros(how[0], column.dtype)
    elif kind == "type":
        column = column.astype(how[0])
    else:
        return _filled(one, path.rpartition(".")[0], how[0], np.random.default_rng(how[1]))
    return _replaced(one, path, column)


def _replaced(value: Any, path: str, column: Any) -> Any:
    name, _, rest = path.partition(".")
    return replace(value, **{name: _replaced(getattr(value, name), rest, column) if rest else column})


def _filled(one: RankDigest, table: str, rows: int, draw: np.random.Generator) -> RankDigest:
    """With so many rows in a table, that point to what is there."""
    into = {path: what for what, paths in valid.INTO.items() for path in paths.split()}
    sizes = {"steps": len(one.steps), "collectives": len(one.collectives), "strings": len(one.strings), "flags": 2}
    sizes["collectives and host meetings"] = sizes["collectives"] + len(one.host_meetings)
    sizes["strings of calls"] = sizes["strings"]
    sizes |= {"track": rows if table == "track" else len(one.track), "": 5}
    sizes |= {"calls": rows if table == "roofline.calls" else len(one.roofline.calls)}
    sizes |= {"modules": rows if table == "modules.paths" else len(one.modules.paths)}
    first = int(one.steps.start_ns[0]) if len(one.steps) else 0
    for column in valid.columns():
        if column.path.rpartition(".")[0] != table:
            continue
        known = attrgetter(column.path)(one)
        shape = (rows, *known.shape[1:])
        if column.dtype == np.bool_:
            made = draw.random(shape) < 0.5
        elif column.path in into or (column.members and known.ndim == 1):
            most = len(column.members) if column.members else sizes[into[column.path]]
            made = draw.integers(-1, max(most, 1), shape)
        elif column.path.endswith(("start_ns", "end_ns", "arrival_ns")):
            made = np.sort(first + draw.integers(0, 10**8, shape), axis=0)
        else:
            made = draw.integers(0, 10 ** int(draw.integers(1, 10)), shape)
        one = _replaced(one, column.path, made.astype(column.dtype))
    return one


def _with_checksums(data: bytes) -> bytes:
    """A digest file whose checksums are those of what it holds."""
    size = int.from_bytes(data[8:16], "little")
    index, rest = data[24 : 24 + size], data[24 + size :]
    sums = zlib.crc32(index).to_bytes(4, "little") + zlib.crc32(rest).to_bytes(4, "little")
    return data[:16] + sums + index + rest


def _with_index(data: bytes, draw: random.Random, *, all_of_it: bool) -> bytes:
    """A digest file with a change in its plain values, or anywhere in its index."""
    size = int.from_bytes(data[8:16], "little")
    with suppress(ValueError, KeyError, TypeError, RecursionError):
        index = json.loads(data[24 : 24 + size])
        part = index if all_of_it else index["values"]
        mutations.changed(part, draw)
        if mutations.written_out(index) > _MOST_WRITTEN:
            return data
        made = json.dumps(index).encode("utf-8", "replace")
        made += b" " * (-(24 + len(made)) % 64)
        rest = data[24 + size + index["read"] + (-(24 + size + index["read"]) % 4096) :] if not all_of_it else b""
        small = data[24 + size : 24 + size + index["read"]] if not all_of_it else data[24 + size :]
        padding = bytes(-(24 + len(made) + len(small)) % 4096) if rest else b""
        return _with_checksums(data[:8] + len(made).to_bytes(8, "little") + data[16:24] + made + small + padding + rest)
    return data


class _Pickles(Target):
    """Pickles: their values are changed, and sometimes their bytes."""

    def changed(self, case: bytes, draw: random.Random) -> bytes:
        if draw.random() < 0.15:
            return mutations.bytes_changed(case, draw)
        is_pickle = case.startswith(b"\x80")
        try:
            value = loads(case) if is_pickle else json.loads(case)
            value = mutations.changed(value, draw)
            if is_pickle if draw.random() < 0.9 else not is_pickle:
                return pickle.dumps(value, protocol=draw.choice((2, 4)))
            if mutations.written_out(value) < _MOST_WRITTEN:
                return json.dumps(value).encode()
        except (PickleError, ValueError, RecursionError, TypeError, OverflowError, MemoryError):
            pass
        return mutations.bytes_changed(case, draw)


class Dump(_Pickles):
    """Dumps of the Flight Recorder: pickles and JSON, beside those of other ranks."""

    @cached_property
    def _others(self) -> list[RankDump]:
        return dumps.read(
            self.folder / "others",
            """
            groups: dp=0,1,2,3 tp=0,1 pp=1,2
            rank1: all_reduce@dp*3+ all_reduce@dp:4096 send(1)@pp
            rank2: all_reduce@dp*3+ 40s all_reduce@dp:64x64/Half recv(0)@pp
            """,
        )

    def seeds(self) -> list[bytes]:
        drawn = dumps.drawn(
            """
            groups: dp=0,1,2,3 tp=0,1 pp=0,3
            rank0: all_reduce@dp*3+ send(1)@pp all_reduce@tp> lost all_reduce@dp:4096 active
            rank3: all_reduce@dp*2+ 40s all_gather@dp:64x64/Half
            """
        )
        gloo = json.loads(json.dumps(drawn[3]).replace("nccl:", "gloo:"))
        real = (Path(__file__).with_name("flight_recorder") / "lock_gil_2nd" / "_dump_10").read_bytes()
        pickles = [pickle.dumps(one, protocol=2) for one in (*drawn.values(), gloo)]
        return [*pickles, json.dumps(drawn[0]).encode(), real]

    def run(self, case: bytes) -> str:
        path = self.folder / "nccl_trace_rank_0"
        path.write_bytes(case)
        try:
            read = unpacked(packed(flight.read(path)), list[RankDump])
            own = [flight.named(one, rank, "") for rank, one in enumerate(read)]
        except flight.DumpError as error:
            return is_sentence(str(error))
        known = {one.rank: one for one in [*self._others, *own]}
        return _stuck(build("job", list(known.values())))


def _stuck(run: Any) -> str:
    printable_json(run)
    with open("/dev/null", "w") as nowhere:
        print_run(Console(file=nowhere, width=100), run)
    return f"{run.level} {[(one.cause, len(one.ranks)) for one in run.findings]} {len(run.warnings)}"


class Snapshot(_Pickles):
    """Snapshots of the memory of a GPU."""

    def seeds(self) -> list[bytes]:
        from test_memory_snapshot import MB, snapshot

        allocation = {"action": "alloc", "addr": 1 << 30, "size": MB, "time_us": 50, "frames": []}
        notes = [
            {"stage": stage, "name": "## forward ##", "device": 0, "time_us": time}
            for stage, time in (("START", 40), ("START", 45), ("END", 55), ("END", 60))
        ]
        drawn = (
            snapshot("aaag.oopcx", "n.n", oom=(3, 1)),
            snapshot("n.") | {"device_traces": [[allocation, allocation]], "external_annotations": notes},
        )
        return [pickle.dumps(one, protocol=protocol) for one in drawn for protocol in (2, 4)]

    def run(self, case: bytes) -> str:
        path = self.folder / "rank0_snapshot.pickle"
        path.write_bytes(case)
        try:
            found = unpacked(packed(read_one(path)), MemorySnapshot)
        except (SnapshotError, PickleError) as error:
            return is_sentence(str(error))
        sentences = memory_text.snapshot_sentences(found)
        printable_json(found)
        return " ".join(sentences)


class Sqlite(Target):
    """Exports of Nsight Systems: SQL that changes a good one, then bytes that are changed in the file."""

    suffix = ".sql"

    @cached_property
    def _good(self) -> Path:
        path = self.folder / "good.sqlite"
        nsys_files.write(path, traces.read(JOB), payloads=True)
        with closing(sqlite3.connect(path)) as file:
            file.execute("PRAGMA page_size = 512")
            file.execute("PRAGMA journal_mode = DELETE")
            file.execute("VACUUM")
        return path

    def seeds(self) -> list[bytes]:
        return [b"", b"ALTER TABLE NVTX_EVENTS DROP COLUMN jsonText"]

    def changed(self, case: bytes, draw: random.Random) -> bytes:
        lines = case.splitlines()
        if lines and draw.random() < 0.2:
            del lines[draw.randrange(len(lines))]
        table, columns = draw.choice(list(nsys_files._TABLES.items()))
        column = draw.choice([one.split()[0] for one in columns.split(", ")])
        where = draw.choice(("", " WHERE rowid % 2", f" WHERE rowid = {draw.randrange(1, 40)}"))
        kind = draw.randrange(10)
        if kind < 4:
            line = f"UPDATE OR IGNORE {table} SET {column} = {self._value(draw)}{where}"
        elif kind == 4:
            line = f"DELETE FROM {table}{where}"
        elif kind == 5:
            line = draw.choice(
                (
                    f"ALTER TABLE {table} DROP COLUMN {column}",
                    f"DROP TABLE {table}",
                    f"ALTER TABLE {table} RENAME COLUMN {column} TO other",
                    f"ALTER TABLE {table} ADD COLUMN made AS (zeroblob(1000000000))",
                    f"ALTER TABLE {table} RENAME TO kept; CREATE VIEW {table} AS SELECT * FROM kept, kept AS other",
                    f"INSERT OR IGNORE INTO {table} SELECT * FROM {table}",
                )
            )
        elif kind == 6:
            line = (
                "PRAGMA writable_schema = ON; UPDATE sqlite_master SET "
                + draw.choice(
                    ("rootpage = 1 + abs(random() % 9)", "sql = replace(sql, 'INTEGER', 'BLOB')", "type = 'x'")
                )
                + f" WHERE name = '{table}'"
            )
        else:
            line = f"-- byte {draw.randrange(1 << 20)} {draw.randrange(256)} {draw.choice((1, 1, 4, 100))}"
        return b"\n".join([*lines, line.encode("utf-8", "replace")][-12:])

    def _value(self, draw: random.Random) -> str:
        if draw.random() < 0.3:
            return draw.choice(
                (
                    "x'00ff'", "zeroblob(100)", "NULL", "1e308", "-9e999", "rowid", "rowid * 1000", "-rowid",
                    "'{\"NCCL communicator ID\": 1, \"Rank\": 0, \"No. of ranks\": 1048577}'", "'ncclCommInitRank'",
                    "'ProfilerStep#1'", "'aten::add, op_id = 3, sizes = [[2], [2]]'", "281474976710656",
                )
            )  # fmt: skip
        value = mutations.scalar(draw)
        if isinstance(value, int):
            return str(int(value))
        text = value if isinstance(value, str) else json.dumps(str(value))
        return "'" + text.encode("utf-8", "replace").decode().replace("'", "''").replace("\0", "") + "'"

    def run(self, case: bytes) -> str:
        path = self.folder / "case.sqlite"
        shutil.copy(self._good, path)
        lines = case.decode("utf-8", "replace").splitlines()
        with closing(sqlite3.connect(path, isolation_level=None)) as file:
            for line in lines:
                if not line.startswith("-- "):
                    with suppress(sqlite3.Error, sqlite3.Warning):
                        file.executescript(line)
        data = bytearray(path.read_bytes())
        for line in lines:
            words = line.split()
            if line.startswith("-- byte ") and len(words) == 5 and all(word.isdecimal() for word in words[2:]):
                place, byte, count = (int(word) for word in words[2:])
                place %= len(data)
                data[place : place + count] = bytes([byte % 256]) * len(data[place : place + count])
            elif line.startswith("-- replace ") and len(words) == 4:
                data = data.replace(words[2].encode(), bytes.fromhex(words[3]))
        path.write_bytes(data)
        try:
            recording = processes.read(path)
        except NsysError as error:
            return is_sentence(str(error))
        said = [f"{len(recording.processes)} processes"]
        for one in recording.processes[:3]:
            try:
                trace = nsys.read(ProcessPath(path, one.number, one.pid))
                made = unpacked(packed(digest(trace)), RankDigest)
                valid.check(made)
                said += [warning.message for warning in made.warnings]
            except (NsysError, TraceError) as error:
                said.append(is_sentence(str(error)))
        return " ".join(said)


class Text(Target):
    """Texts beside traces and dumps: tables of torchfrtrace, stacks, NCCL's RAS and logs, nvidia-smi, calibrations."""

    def seeds(self) -> list[bytes]:
        return []

    def changed(self, case: bytes, draw: random.Random) -> bytes:
        if case[:1] == b"{" and draw.random() < 0.6:
            with suppress(ValueError, RecursionError, TypeError):
                value = mutations.changed(json.loads(case), draw)
                if mutations.written_out(value) < _MOST_WRITTEN:
                    return json.dumps(value).encode("utf-8", "replace")
        return mutations.lines_changed(case, draw)

    def run(self, case: bytes) -> str:
        path = self.folder / "node0_rank0.txt"
        path.write_bytes(case)
        said = [self._flight(path), self._stacks(case), self._calibration(path)]
        try:
            said.append(str(len(ras.read(path, 4))))
        except ValueError as error:
            said.append(is_sentence(str(error)[:1_000]))
        network = read_logs([path], {"426", "427"}, 4)
        ranks = [evidence.Rank(number, "node0", str(426 + number)) for number in (0, 1)]
        known = evidence.find([self.folder], ranks, [path])
        printable_json((network, known))
        packed((network, known))
        return " ".join((*said, type(network).__name__, str(len(known))))

    def _flight(self, path: Path) -> str:
        try:
            read = unpacked(packed(flight.read(path)), list[RankDump])
            own = [flight.named(one, None, "") for one in read]
        except flight.DumpError as error:
            return is_sentence(str(error))
        return _stuck(build("job", list({one.rank: one for one in own}.values())))

    def _stacks(self, case: bytes) -> str:
        one = stacks.parse(case.decode("utf-8", "replace"), "rank_0.stacks.txt", 0)
        if one is None:
            return "no stack"
        other = one._replace(rank=one.rank + 1, frames=one.frames[::-1])
        run = examined("job", {each.rank: each for each in (one, other)}, [], ())
        return _stuck(with_threads(run, {one.rank: one}))

    def _calibration(self, path: Path) -> str:
        try:
            found = calibrations.load(path)
        except calibrations.CalibrationError as error:
            return is_sentence(str(error))
        return f"{len(found.curves)} curves {len(printable_json(found)) > 0}"


class Trace(Target):
    """Kineto's traces, from the text to a digest that is valid."""

    def seeds(self) -> list[bytes]:
        return list(traces.draw(SMALL, device_gb=8).values())

    def changed(self, case: bytes, draw: random.Random) -> bytes:
        if draw.random() < 0.85:
            with suppress(ValueError, RecursionError, TypeError):
                value = json.loads(case)
                events = value.get("traceEvents") if isinstance(value, dict) else None
                mutations.changed(draw.choice(events) if events and draw.random() < 0.8 else value, draw)
                if mutations.written_out(value) < _MOST_WRITTEN:
                    return json.dumps(value).encode()
        return mutations.bytes_changed(case, draw)

    def run(self, case: bytes) -> str:
        return self.diagnosed(self.folder / "rank0.pt.trace.json", case)

    def diagnosed(self, path: Path, case: bytes) -> str:
        """What is said of a trace in this file."""
        path.write_bytes(case)
        peek(path)
        try:
            made = unpacked(packed(digest(reader.read(path))), RankDigest)
            valid.check(made)
        except TraceError as error:
            return is_sentence(str(error))
        (run,) = discover(self.folder)
        try:
            job = engine.build("job", {0: made, 1: made}, {0: "", 1: ""}, None, ())
        except engine.JobError as error:
            return str(error)
        found = engine.examine(job)
        assert not _errors(found), _errors(found)
        printable_json(found)
        return f"{len(run.files)} {found.verdict} {sorted(one.rule for one in found.findings)}" + " ".join(
            one.message for one in made.warnings
        )


class Pftrace(Trace):
    """The same in Perfetto's packets: of changed events, or changed bytes of good packets."""

    def seeds(self) -> list[bytes]:
        written = [pftrace_files.of_json(data, interned=True) for data in traces.draw(SMALL, device_gb=8).values()]
        return [*super().seeds(), *written]

    def changed(self, case: bytes, draw: random.Random) -> bytes:
        return super().changed(case, draw) if case[:1] == b"{" else mutations.bytes_changed(case, draw)

    def run(self, case: bytes) -> str:
        if case[:1] == b"{":
            try:
                case = pftrace_files.of_json(case, interned=len(case) % 2 == 0)
            except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
                return f"no packets: {type(error).__name__}"
        return self.diagnosed(self.folder / "rank0.pftrace", case)


class OwnSlice(Pftrace):
    """What `ddp-doctor merge` wrote of a job, in both formats, changed: each rank that it says it holds is read."""

    def seeds(self) -> list[bytes]:
        (run,) = discover(traces.write(self.folder / "job", SMALL, device_gb=8, clock_ms={0: 3.0}))
        result = engine.diagnose(run, reading=engine.Reading(Cache()))
        written = []
        for form in (chrome, native):
            file = io.BytesIO()
            form.write(cut.cut(result, Cache(), cut.whole(result.job), None), file)
            written.append(file.getvalue())
        return written

    def changed(self, case: bytes, draw: random.Random) -> bytes:
        if case[:1] != b"{" or draw.random() < 0.2:
            return mutations.bytes_changed(case, draw)
        with suppress(ValueError, RecursionError, TypeError):
            value = json.loads(case)
            said = [value.get("ddp_doctor_slice"), *value.get("ddp_doctor_ranks", [])]
            mutations.changed(draw.choice(said) if draw.random() < 0.7 else value, draw)
            if mutations.written_out(value) < _MOST_WRITTEN:
                return json.dumps(value).encode()
        return mutations.bytes_changed(case, draw)

    def run(self, case: bytes) -> str:
        path = self.folder / ("all.json" if case[:1] == b"{" else "all.pftrace")
        path.write_bytes(case)
        said = []
        for number, part in enumerate(peek(path).parts[:4]):
            try:
                made = unpacked(packed(digest(reader.read(ProcessPath(path, number, part)))), RankDigest)
                valid.check(made)
            except TraceError as error:
                said.append(is_sentence(str(error)))
            else:
                said.append(f"{len(made.steps)} steps, " + " ".join(one.message for one in made.warnings))
        return f"{len(said)} {said}"


class History(Target):
    """Files of step times, as JSON of their blocks, whose checksums are right; and logs of other programs: the first
    line of such a case is the file's name.
    """

    def seeds(self) -> list[bytes]:
        steps = np.array([1_000_000] * 20 + [900_000] * 20, "<u4").tobytes()
        times = [
            [blocks.STEPS, blocks.HAS_BUSY, 20, 20 * i, int(START_S * 1e9) + 20 * i, steps.hex()] for i in range(9)
        ]
        phase = np.array([(int(START_S * 1e9), int(START_S * 1e9) + 5, b"evaluation")], blocks.PHASE_ROW)
        times.append([blocks.PHASES, 0, 1, 0, 0, phase.tobytes().hex()])
        sample = np.array([(int(START_S * 1e9), 2, 3e9)] * 3, blocks.SAMPLE_ROW)
        times.append([blocks.SAMPLES, 0, 3, 0, 0, sample.tobytes().hex()])
        logged = {
            "train.log": "\n".join(
                write(10 * i, START_S + 20 * i, 2.0) for write in (megatron, titan) for i in range(30)
            ),
            "metrics.csv": "step,train/time\n" + "\n".join(f"{10 * i},{20 * i}" for i in range(30)),
            "trainer_state.json": json.dumps(
                {"logging_steps": 10, "log_history": [{"step": 10 * i, "train_runtime": 20 * i} for i in range(30)]}
            ),
        }
        rows = [{"loss": 1.0, "_step": step, "_timestamp": START_S + step} for step in range(30)]
        data = {"events.out.tfevents.1": records(*[*scalars("loss")][:30]), "run.wandb": wandb_file(*rows)}
        data |= {name: text.encode() for name, text in logged.items()}
        rank = json.dumps({"head": [0, 2, int(START_S * 1e9), "node0"], "blocks": times}).encode()
        return [rank, *(name.encode() + b"\n" + content for name, content in data.items())]

    def changed(self, case: bytes, draw: random.Random) -> bytes:
        if case[:1] == b"{":
            with suppress(ValueError, RecursionError, TypeError):
                value = mutations.changed(json.loads(case), draw)
                if mutations.written_out(value) < _MOST_WRITTEN:
                    return json.dumps(value).encode()
        name, _, content = case.partition(b"\n")
        change = mutations.lines_changed if draw.random() < 0.6 else mutations.bytes_changed
        return name + b"\n" + change(content, draw)

    def run(self, case: bytes) -> str:
        shutil.rmtree(self.folder)
        self.folder.mkdir()
        if case[:1] == b"{":
            (self.folder / f"rank0{blocks.SUFFIX}").write_bytes(self._step_times(case))
        else:
            name, _, content = case.partition(b"\n")
            (self.folder / Path(name.decode("utf-8", "replace")[:40].replace("\0", "") or "a.log").name).write_bytes(
                content
            )
        # Without processes, which thousands of cases would start.
        logs = [log for files in log_files(self.folder) if (log := read_log(files))]
        job, said = (logs[0].job, []) if logs else read_job(history_files(self.folder))
        if job is None:
            return " ".join(said)
        found = summarise(job)
        printable_json(found)
        lines = [sentences.headline(found), sentences.trend(found)]
        lines += [sentences.sentence(event, found, None) for event in found.events]
        return " ".join((*said, *lines))

    def _step_times(self, case: bytes) -> bytes:
        """The file that a case describes, as far as it can be packed."""
        data = b""
        with suppress(ValueError, TypeError, KeyError, IndexError, AttributeError, struct.error, OverflowError):
            value = json.loads(case)
            data += blocks.file_head(*value["head"])
            for kind, columns, rows, first, begin, payload in value["blocks"]:
                content = bytes.fromhex(payload)
                head = blocks.BLOCK_HEAD.pack(blocks.BLOCK_MAGIC, kind, columns, rows, first, begin)
                data += head + blocks.CHECKSUM.pack(zlib.crc32(content, zlib.crc32(head))) + content
        return data


TARGETS = (Digest, Dump, History, OwnSlice, Pftrace, Snapshot, Sqlite, Text, Trace)
