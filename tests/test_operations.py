"""What operators, calls and kernels take by themselves, on one rank and over all."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from traces import MS, digests, job

from tb_ddp_doctor.digest import operators as module
from tb_ddp_doctor.digest.model import RankDigest
from tb_ddp_doctor.job.operator_times import operators

NESTED = """
    rank0 step   |1                            |2
          host   [outer.............][after]
          within   [inner...]
          gpu         [inner.....]  [outer....]
"""


def told(digest: RankDigest) -> Mapping[tuple[str, int], tuple[float, float]]:
    """Host and device time in ms, by name and place."""
    table = digest.operators
    return {
        (digest.strings[name], place): (host / MS, device / MS)
        for name, place, host, device in zip(
            table.name.tolist(),
            table.on_device.tolist(),
            table.host_ns.tolist(),
            table.device_ns.tolist(),
            strict=True,
        )
    }


def test_an_operator_is_charged_without_those_within_it() -> None:
    found = told(digests(NESTED)[0])
    host = {name: times[0] for (name, place), times in found.items() if not place}
    assert host["aten::outer"] == pytest.approx(20 - 10, abs=0.1)
    assert host["aten::inner"] == pytest.approx(10, abs=0.1)


def test_the_device_is_charged_to_the_innermost_operator() -> None:
    found = told(digests(NESTED)[0])
    assert found["aten::inner", 0][1] == pytest.approx(12)
    assert sum(device for (_, place), (_, device) in found.items() if place) == pytest.approx(12 + 11)


def test_operators_that_take_as_long_as_each_other_are_in_the_order_of_their_names() -> None:
    """Readers number the names of a trace in other orders."""
    digest = digests("""
        rank0 step |1
              host [zeta..][beta..][alpha]
    """)[0]
    names = [digest.strings[name] for name in digest.operators.name]
    assert names[:3] == ["aten::beta", "aten::zeta", "aten::alpha"]


def test_what_is_not_kept_by_name_is_summed(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = digests(NESTED)[0].operators
    monkeypatch.setattr(module, "MOST", 1)
    digest = digests(NESTED)[0]
    names = [digest.strings[name] for name in digest.operators.name]
    assert names.count("") == 2 and len(names) == 4
    for column in ("count", "host_ns", "device_ns"):
        assert getattr(digest.operators, column).sum() == getattr(whole, column).sum()


def test_ranks_are_joined_by_name_and_the_slowest_is_named() -> None:
    read = job("""
        rank0 step |1         |2
              gpu  [fwd...][bwd]
        rank1 step |1         |2
              gpu  [fwd][bwd]
    """)
    spent = operators(read)
    row = next(i for i, name in enumerate(spent.names) if "fwd" in name and spent.on_device[i])
    assert spent.ranks[row] == 2
    assert spent.device_ns[row] == (8 + 5) * MS
    assert (spent.most_rank[row], spent.most_ns[row]) == (0, 8 * MS)
