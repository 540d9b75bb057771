"""What a job may expect of its hardware, by a calibration: how long transfers take, and how fast GEMMs are.

Without a calibration nothing here is known: a trace alone shows what was reached, never what could have been.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from tb_ddp_doctor.calibration.model import Calibration, bus_factor
from tb_ddp_doctor.facts import Facts, fact
from tb_ddp_doctor.facts.links import Link
from tb_ddp_doctor.facts.traffic import Traffic
from tb_ddp_doctor.trace.model import Floats
from tb_ddp_doctor.trace.names import Precision

#: The measures that a kernel of each precision compares with; the faster one counts.
_MEASURES = {
    Precision.HALF: ("GEMM bfloat16", "GEMM float16"),
    Precision.TF32: ("GEMM tf32",),
    Precision.FLOAT32: ("GEMM float32",),
}


class Expected(msgspec.Struct, frozen=True, eq=False):
    """What a calibration says of one job."""

    calibration: Calibration
    #: Node of each rank (index) of the job, "" where unknown.
    nodes: tuple[str, ...]

    def transfer_ns(self, traffic: Traffic) -> Floats | None:
        """How long each of these collectives takes when nothing else runs; None where none alike was measured."""
        if not traffic.has_bytes:
            return None
        places = {self.nodes[rank] for rank in traffic.ranks}
        within_node = len(places) == 1 and "" not in places
        curve = self.calibration.curve(traffic.kind, traffic.size, within_node=within_node)
        return None if curve is None else curve.time_us(traffic.bytes.astype(np.float64)) * 1e3

    def bus_rate(self, traffic: Traffic) -> float | None:
        """The busbw that this traffic would have, bytes per second."""
        expected = self.transfer_ns(traffic)
        if expected is None:
            return None
        return float(traffic.bytes.sum()) / float(expected.sum()) * 1e9 * bus_factor(traffic.kind, traffic.size)

    def links(self, traffic: Sequence[Traffic]) -> tuple[Link, ...]:
        """Kinds and groups beside what the calibration measured of groups of that size, instead of their peers."""
        links = []
        for one in traffic:
            expected = self.transfer_ns(one)
            if expected is not None and len(one.ranks) > 1:
                links.append(
                    Link(
                        traffic=one,
                        peers=0,
                        transfer_ns=np.bincount(one.step, one.transfer_ns, one.steps).astype(np.float64),
                        peer_ns=np.bincount(one.step, expected, one.steps).astype(np.float64),
                        peer_of_each_ns=expected,
                    )
                )
        return tuple(links)

    def gemm_rate(self, precision: str) -> float | None:
        """FLOP per second of large GEMMs on the median rank; None where it was not measured."""
        names = next((names for known, names in _MEASURES.items() if known.value == precision), ())
        rates = [rate for name in names if (rate := self._median(name)) is not None]
        return max(rates) * 1e12 if rates else None

    def memory_rate(self) -> float:
        """Bytes per second of the memory of the median rank's GPU; 0 where it was not measured."""
        return (self._median("memory bandwidth") or 0.0) * 1e9 if self.calibration.backend == "nccl" else 0.0

    def _median(self, name: str) -> float | None:
        """A measure of the median rank, in its unit; None where it was not measured."""
        values = [
            value
            for measure in self.calibration.measures
            if measure.name == name
            for value in measure.values
            if value is not None
        ]
        return float(np.median(values)) if values else None


@fact
def expected(facts: Facts) -> Expected | None:
    """What the job's calibration lets expect; None where it has none."""
    job = facts.job
    return None if job.calibration is None else Expected(job.calibration, job.nodes)
