"""How well the roofline fits real traces: lines against floors, calls above their roof, and what is modelled.

    python benchmarks/roofline.py [FOLDER ...]

For every job below the folders (by default the shared traces): whether the floor's lines sum to it; the share of the
GPU's kernel time that is modelled, where shapes are recorded; and each operator whose calls run above 105 % of their
roof on average, with the likely reason. A wrong model of bytes shows there.

    python benchmarks/roofline.py --pairs [CORPUS]

Pairs of jobs of a corpus, by default the shared traces, whose steps were timed without the profiler: what a fix is
predicted to save beside what it truly saves.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tb_ddp_doctor import engine
from tb_ddp_doctor.cache import Cache
from tb_ddp_doctor.digest.model import GpuTime
from tb_ddp_doctor.discover.runs import DiscoverError, discover
from tb_ddp_doctor.facts import Facts
from tb_ddp_doctor.facts.roofline import JobRoofline, KernelRoof, roofline
from tb_ddp_doctor.facts.without_faults import whatif
from tb_ddp_doctor.rules import CATALOGUE
from tb_ddp_doctor.rules.support.base import run

FOLDERS = ("/work/shared/traces", "/work/shared/public_traces")
#: Calls above this share of their roof are listed.
ABOVE = 1.05
#: Jobs without shapes or without operators are not judged.
LEAST_MODELLED = 0.95
#: Steps of the corpus that were timed twice differ by no more, ms.
_NOISE_MS = 0.5


class Pair(msgspec.Struct, frozen=True):
    """Two jobs that differ by a fix; the second computes `times` the samples in a step."""

    before: str
    rule: str
    after: str
    times: float = 1.0


PAIRS = (
    Pair("fp32_no_tensor_core", "no-tensor-cores", "small_batch"),
    Pair("small_batch", "larger-batch", "healthy", 24 / 8),
    Pair("tiny_batch", "larger-batch", "small_batch", 8 / 3),
    Pair("tiny_batch", "larger-batch", "healthy", 24 / 3),
)


def pairs(corpus: Path) -> int:
    """Print a line for each pair; the exit code is 1 if some interval does not hold the truth."""
    truth = msgspec.json.decode((corpus / "truth.json").read_bytes())
    wrong = 0
    for pair in PAIRS:
        (result,) = (found for _, found in _results(corpus / pair.before))
        facts = Facts(result.job)
        played = facts.get(whatif)
        rule = CATALOGUE[pair.rule]
        if pair.rule == "larger-batch":
            rule = dataclasses.replace(rule, supposed=pair.times, most=pair.times, min_cost=0.0)
        _, found = run(rule, facts)
        if found is None or found.faults[0].between is None:
            raise SystemExit(f"{pair.rule} finds nothing in {pair.before}")
        saved = played.cost_ns(found.change) / 1e6
        # An end may be a share of what the fix saves.
        ends = found.faults[0].between
        least, most = (end * saved if isinstance(end, float) else played.cost_ns(end) / 1e6 for end in ends)
        true = truth[pair.before]["step_ms"] - truth[pair.after]["step_ms"] / pair.times
        holds = least - _NOISE_MS <= true <= most + _NOISE_MS
        wrong += not holds
        print(
            f"{pair.before} to {pair.after}, {pair.rule}: {saved:.1f} ms a step predicted, {least:.1f} to {most:.1f}; "
            f"{true:.1f} true{'' if holds else ' (outside)'}"
        )
    return int(wrong > 0)


def main(folders: list[str]) -> int:
    """Print a line for each job; the exit code is 1 if some floor's lines do not sum to it."""
    wrong = 0
    for folder in folders:
        for path in sorted(Path(folder).iterdir()):
            for name, result in _results(path):
                floor = result.diagnosis.account.line("floor").total_ns
                lines = result.diagnosis.account.floor_lines
                wrong += sum(line.total_ns for line in lines) != floor
                found = Facts(result.job).get(roofline)
                shaped = any(digest.header.has_shapes for digest in result.job.digests)
                told = ", ".join(f"{line.kind} {line.ms:.2f}" for line in lines)
                print(f"{name}: floor {floor / 1e6:.1f} ms in all; {told}; {_share(found, shaped=shaped)}")
                for one in found.kernels:
                    if one.of_attainable > ABOVE and one.limit in ("compute", "memory"):
                        print(f"    {_above(one, found.roofs.part if found.roofs else 1.0)}")
                if shaped:
                    for one in sorted(_unmodelled(found), key=lambda one: -one.step_ns)[:3]:
                        print(f"    not modelled: {one.step_ns / 1e3:.0f} us a step in {one.operator or one.name[:60]}")
    return int(wrong > 0)


def _results(path: Path) -> Iterator[tuple[str, engine.Result]]:
    try:
        runs = discover(str(path), peek=Cache(None).peek)
    except DiscoverError:
        return
    for one in runs:
        try:
            yield one.name, engine.diagnose(one, reading=engine.Reading(Cache(None)))
        except engine.RunError as error:
            print(f"{one.name}: {error}")


def _compute(found: JobRoofline) -> list[KernelRoof]:
    """Kernels alone: copies from and to the host are no compute."""
    return [one for one in found.kernels if not one.name.startswith(("Memcpy", "Memset", "Copy"))]


def _unmodelled(found: JobRoofline) -> list[KernelRoof]:
    return [one for one in _compute(found) if one.kind is GpuTime.NOT_MODELLED]


def _share(found: JobRoofline, *, shaped: bool) -> str:
    if not shaped:
        return "no shapes"
    if not any(one.operator for one in found.kernels):
        return "no operators"
    unknown, every = (sum(one.step_ns for one in some) for some in (_unmodelled(found), _compute(found)))
    share = 1 - unknown / max(every, 1.0)
    return f"{share:.1%} of compute modelled{'' if share >= LEAST_MODELLED else ' (below the bar)'}"


def _reason(one: KernelRoof) -> str:
    if one.kind is GpuTime.CONVOLUTION and one.limit == "compute":
        return "Winograd multiplies less"
    return "its tensors fit the L2 cache" if one.fits_cache else "the L2 cache has a part of its tensors"


def _above(one: KernelRoof, part: float) -> str:
    """A call above its roof, and why that may be."""
    reason = "the GPU is shared, and others were idle" if part < 1 else _reason(one)
    return (
        f"{one.of_attainable:.0%} of its roof ({reason}): {one.operator} {one.inputs} {one.dtype}, "
        f"{one.step_ns / 1e3:.1f} us a step, {one.bytes / 1e6:.1f} MB, limited by {one.limit}"
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--pairs"]:
        sys.exit(pairs(Path((sys.argv[2:] or [FOLDERS[0]])[0])))
    sys.exit(main(sys.argv[1:] or list(FOLDERS)))
