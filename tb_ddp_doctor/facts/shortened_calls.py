"""The calls of operators that a fix would shorten, so that what it removes is removed there. R = ranks, S = steps."""

from __future__ import annotations

from collections.abc import Collection

import msgspec
import numpy as np

from tb_ddp_doctor.digest.model import RankDigest, RooflineCalls
from tb_ddp_doctor.facts import Facts, fact
from tb_ddp_doctor.trace import names
from tb_ddp_doctor.trace.model import Floats, Ints


class ShortenedCalls(msgspec.Struct, frozen=True, eq=False):
    """The calls of all ranks; shares are as `Change.of_calls` has them."""

    digests: tuple[RankDigest, ...]

    def on_scores(self, removed_ns: Floats, taken_ns: Ints) -> Floats:
        """The shares that go if the ops on attention scores, which take `taken_ns`, lose `removed_ns`, (R, S) each."""
        return self._shares([one.roofline.calls.score_passes_ns for one in self.digests], removed_ns, taken_ns)

    def of_updates(self, removed_ns: Floats, taken_ns: Ints) -> Floats:
        """The same of an optimizer's updates of single tensors."""
        return self._shares([one.roofline.calls.updates_ns for one in self.digests], removed_ns, taken_ns)

    def tuned(self, taken_ns: Ints) -> Floats:
        """The same of the kernels that autotuning times, all of which the fix removes."""
        return self._shares([one.roofline.calls.tuned_ns for one in self.digests], taken_ns, taken_ns)

    def of_products(self, kind: names.Product, removed_ns: Ints, taken_ns: Ints) -> Floats:
        """The same of products of a kind."""
        return self._shares([_products(one, kind) for one in self.digests], removed_ns, taken_ns)

    def of_copies(self, removed_ns: Ints, taken_ns: Ints, *memories: names.HostMemory) -> Floats:
        """The same of copies between the device and such memory of the host."""
        return self._shares([_copies(one, memories) for one in self.digests], removed_ns, taken_ns)

    def _shares(self, part_ns: list[Ints], removed_ns: Floats | Ints, taken_ns: Ints) -> Floats:
        """`part_ns` is the time of each rank's calls that the fix shortens."""
        share = removed_ns.sum(axis=1) / np.maximum(taken_ns.sum(axis=1), 1)
        every_ns = np.concatenate([one.roofline.calls.total_ns for one in self.digests])
        of_rank = np.repeat(share, [len(part) for part in part_ns])
        shares: Floats = np.clip(of_rank * np.concatenate(part_ns) / np.maximum(every_ns, 1), 0.0, 1.0)
        return shares


def _products(digest: RankDigest, kind: names.Product) -> Ints:
    """The time of the calls whose longest kernel is a product of a kind."""
    calls: RooflineCalls = digest.roofline.calls
    known = {name: names.product(digest.strings[name]) is kind for name in np.unique(calls.name).tolist()}
    chosen = np.array([known[name] for name in calls.name.tolist()], np.bool_)
    return np.where(chosen, calls.total_ns, 0)


def _copies(digest: RankDigest, memories: Collection[names.HostMemory]) -> Ints:
    """The time of the calls that are copies between the device and such memory of the host."""
    calls: RooflineCalls = digest.roofline.calls
    known = {name: names.host_memory(digest.strings[name]) in memories for name in np.unique(calls.name).tolist()}
    chosen = np.array([known[name] for name in calls.name.tolist()], np.bool_)
    return np.where(chosen, calls.total_ns, 0)


@fact
def calls(facts: Facts) -> ShortenedCalls:
    """The calls of the job."""
    return ShortenedCalls(tuple(facts.job.digests))
