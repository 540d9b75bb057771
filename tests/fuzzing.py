"""Fuzz targets of what reads files: what anybody wrote must be read, or be refused with a sentence, within its limits.

    python tests/fuzzing.py [TARGET ...] [--seconds 60] [--cases 0] [--seed 0]

A case is a small file that says how the input is made: the input itself for pickles and texts, and for digests and
exports of Nsight Systems the changes to a good one, so that a kept case means the same when layouts change. A target's
cases are its seeds, which are made here, those in `tests/corpus/TARGET`, and what random changes make of both. Changes
know the format: values of a pickle are swapped for hostile ones, named twice and nested; checksums are set right, so
that what lies behind them is reached; some bytes are flipped all the same.

Whatever a target raises beyond the sentences that its readers promise is a find, and so is a process that ends, be it
by the limits that files of that size have (`workers.limits`). The case is written to build/fuzz; when it is mended it
goes to `tests/corpus/TARGET`, which `test_fuzz.py` runs with some random cases.

libFuzzer (`native/fuzz.sh`) does the same for C, led by coverage. Its like for Python, atheris, has wheels for Linux on
x86-64 alone, and of another release for each Python; and random bytes do not get past a checksum or a B-tree's page.
What leads here is what was said: a case whose answer is new, but for its numbers, is changed further.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cached_property
from pathlib import Path

CORPUS = Path(__file__).with_name("corpus")
FOUND = Path(__file__).parents[1] / "build" / "fuzz"
#: Of a case, bytes, and cases that are kept since what was said of them was new.
_LARGEST, _MOST_KEPT = 1 << 16, 400


class Target(ABC):
    """Something that reads files."""

    #: What a case's file ends with.
    suffix = ""

    def __init__(self, folder: Path) -> None:
        #: A folder of its own.
        self.folder = folder

    @cached_property
    def cases(self) -> list[bytes]:
        """Seeds and kept cases, in a fixed order."""
        kept = CORPUS / self.name()
        return [*self.seeds(), *(path.read_bytes() for path in sorted(kept.glob("*")))]

    @classmethod
    def name(cls) -> str:
        return cls.__name__.lower()

    @abstractmethod
    def seeds(self) -> list[bytes]:
        """Good inputs, as cases."""

    @abstractmethod
    def changed(self, case: bytes, draw: random.Random) -> bytes:
        """Another case."""

    @abstractmethod
    def run(self, case: bytes) -> str:
        """Read the input that a case stands for; returns what came of it, or was said. May raise anything."""


def targets() -> dict[str, type[Target]]:
    """All targets, by name."""
    import fuzz_targets

    found = {each.name(): each for each in fuzz_targets.TARGETS}
    return dict(sorted(found.items()))


def finds(name: str, *, seed: int, cases: int, seconds: float) -> Iterator[tuple[bytes, str]]:
    """Run a target in processes of their own; yields cases that are none, and what happened.

    All seeds and kept cases are run first.
    """
    until = time.monotonic() + seconds
    FOUND.mkdir(parents=True, exist_ok=True)
    first = -1
    while time.monotonic() < until and (not cases or first < cases):
        with tempfile.TemporaryDirectory(prefix="fuzz_") as folder:
            command = [sys.executable, __file__, "--child", folder, name, "--seed", str(seed), "--cases", str(cases)]
            left = until - time.monotonic()
            asked = [*command, "--first", str(first), "--seconds", str(left)]
            with subprocess.Popen(asked, stdout=subprocess.PIPE, text=True) as child:
                for line in child.stdout or ():
                    told = json.loads(line)
                    first = told.get("next", first)
                    if "case" in told:
                        yield bytes.fromhex(told["case"]), told["said"]
            if child.returncode == 0:
                return
            case, number = Path(folder, "case"), Path(folder, "number")
            if not case.exists():
                raise RuntimeError(f"fuzzing {name} failed before its first case")
            first = int(number.read_text()) + 1
            died = signal.Signals(-child.returncode).name if child.returncode < 0 else f"status {child.returncode}"
            yield case.read_bytes(), f"the process ended: {died}"


def _serve(name: str, folder: Path, *, seed: int, cases: int, first: int, seconds: float) -> None:
    """Run the cases of a target from a number on; -1 are those that are kept. Each find is a line of JSON."""
    from tb_ddp_doctor.workers.limits import limit, limits_for

    # What numpy warns of, it would say in the middle of a report.
    warnings.simplefilter("error")
    until = time.monotonic() + seconds
    (folder / "work").mkdir()
    target = targets()[name](folder / "work")
    pool, heard = list(target.cases), set[str]()
    slowest = [0.0, ""]

    def attempt(case: bytes, number: int) -> None:
        (folder / "case").write_bytes(case)
        (folder / "number").write_text(str(number))
        limit(limits_for(_LARGEST, _LARGEST))
        began = time.process_time()
        try:
            said = target.run(case)
        except Exception:
            _tell({"case": case.hex(), "said": traceback.format_exc()})
            return
        took = time.process_time() - began
        if took > slowest[0]:
            slowest[:] = took, hashlib.sha256(case).hexdigest()[:12]
            if took > 1:
                (FOUND / f"slow-{name}-{slowest[1]}").write_bytes(case)
        heard_now = re.sub(r"\d+", "0", said)
        if heard_now not in heard and len(pool) < _MOST_KEPT:
            heard.add(heard_now)
            pool.append(case)

    if first < 0:
        for case in target.cases:
            attempt(case, -1)
        first = 0
    number = first
    while time.monotonic() < until and (not cases or number < cases):
        draw = random.Random(f"{seed}-{number}")
        case = draw.choice(pool)
        for _ in range(draw.choice((1, 1, 2, 4))):
            with suppress(MemoryError):
                case = target.changed(case, draw)[:_LARGEST]
        attempt(case, number)
        number += 1
        _tell({"next": number}) if number % 100 == 0 else None
    _tell({"next": number})
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    _say(f"{name}: {number - first:,} cases, {len(heard)} answers, slowest {slowest[0]:.2f} s, {peak} MB")


def _tell(line: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--cases", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=-1, help=argparse.SUPPRESS)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    asked: Callable[[], list[str]] = lambda: options.targets or list(targets())  # noqa: E731
    if options.child:
        _serve(
            options.targets[0],
            options.child,
            seed=options.seed,
            cases=options.cases,
            first=options.first,
            seconds=options.seconds,
        )
        return 0
    known: dict[str, int] = {}
    for name in asked():
        for case, said in finds(name, seed=options.seed, cases=options.cases, seconds=options.seconds / len(asked())):
            # One find of a kind is enough: where it was raised tells them apart.
            lines = said.strip().splitlines()
            where = "\n".join(
                [*[line for line in lines if line.startswith("  File")][-2:], lines[-1].partition(":")[0]]
            )
            known[where] = known.get(where, 0) + 1
            if known[where] == 1:
                path = FOUND / f"{name}-{hashlib.sha256(case).hexdigest()[:12]}{targets()[name].suffix}"
                path.write_bytes(case)
                _say(f"{path}\n{said}")
    for where, count in known.items():
        last = where.splitlines()[-1]
        _say(f"{count} x {last[:200]}")
    return bool(known)


if __name__ == "__main__":
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    sys.path.insert(0, str(Path(__file__).parent))
    sys.exit(main())
