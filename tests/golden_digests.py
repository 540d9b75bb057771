"""What golden traces digest to, a hash for each column: a change of its meaning does not go unnoticed.

Golden are a rank of each demo job, an export of Nsight Systems, and `golden/traces.zip`: drawn faults as torch would
write them, once and for all. `python tests/generate.py` writes what they digest to.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import tempfile
import zipfile
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tb_ddp_doctor.digest.build import digest
from tb_ddp_doctor.digest.model import MEANING, RankDigest
from tb_ddp_doctor.discover.runs import discover
from tb_ddp_doctor.trace.reader import decode, read

TESTS = Path(__file__).resolve().parent
GOLDEN = TESTS / "golden" / "digests.json"
TRACES = TESTS / "golden" / "traces.zip"
#: Fields that say where a trace lies and not what it holds.
_OF_PLACE = ("file", "source")
CHANGED = (
    "traces digest to other values than before in {}: raise MEANING in tb_ddp_doctor/digest/model.py, so that digest "
    "files of before are not taken for those of today, then run python tests/generate.py (docs/releasing.md)"
)
STALE = "columns came or went, which digest files notice by themselves: run python tests/generate.py"


@cache
def digests() -> tuple[RankDigest, ...]:
    """The digests of the golden traces."""
    return tuple(_digests())


def _digests() -> Iterator[RankDigest]:
    for folder in sorted((TESTS.parent / "demo_logs").iterdir()):
        for trace in sorted(folder.glob("*.pt.trace.json.gz"))[:1]:
            yield digest(read(trace))
    with tempfile.TemporaryDirectory() as place:
        for export in sorted((TESTS / "nsight_systems").glob("*.sqlite.xz")):
            (Path(place) / export.stem).write_bytes(lzma.decompress(export.read_bytes()))
        for run in discover(Path(place)):
            for file in run.files:
                yield digest(read(file.path))
    with zipfile.ZipFile(TRACES) as traces:
        for name in sorted(traces.namelist()):
            yield digest(decode([traces.read(name)], name))


def columns() -> dict[str, str]:
    """A hash of what each field of a digest holds in all golden traces, by its place, such as work.copies.pinned_ns."""
    hashes: defaultdict[str, Any] = defaultdict(hashlib.sha256)
    for made in digests():
        for place, value in _fields(made, ""):
            hashes[place].update(value.replace(made.file.encode(), b""))
    return {place: hashes[place].hexdigest()[:16] for place in sorted(hashes)}


def _fields(value: msgspec.Struct, place: str) -> Iterator[tuple[str, bytes]]:
    """Each field of a struct and of those within it, by its place, as bytes that do not depend on the machine."""
    for name in value.__struct_fields__:
        field, inner = getattr(value, name), f"{place}.{name}".lstrip(".")
        if isinstance(field, msgspec.Struct):
            yield from _fields(field, inner)
        elif isinstance(field, np.ndarray):
            told = [f"{number:.6g}" for number in field.ravel().tolist()] if field.dtype.kind == "f" else field.tolist()
            yield inner, repr((field.shape, told)).encode()
        elif inner not in _OF_PLACE:
            yield inner, msgspec.json.encode(field)


def recorded() -> tuple[int, dict[str, str]]:
    """The number of the meaning when the columns were written, and their hashes."""
    found = json.loads(GOLDEN.read_text())
    return found["meaning"], found["columns"]


def changed(now: dict[str, str]) -> list[str]:
    """The columns that are there as before, with other values, though the number of their meaning is the same."""
    meaning, before = recorded()
    return [place for place in now if meaning == MEANING and before.get(place, now[place]) != now[place]]


def write() -> None:
    """Write what the golden traces digest to. Raises SystemExit where the meaning changed and its number did not."""
    now = columns()
    if GOLDEN.exists() and (others := changed(now)):
        raise SystemExit(CHANGED.format(", ".join(others)))
    GOLDEN.write_text(json.dumps({"meaning": MEANING, "columns": now}, indent=1) + "\n")
