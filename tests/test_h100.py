"""Jobs captured on an H100, of which is known what their faults and possible gains cost (h100/README.md)."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from tb_ddp_doctor import api
from tb_ddp_doctor.findings import Diagnosis, Finding

FOLDER = Path(__file__).parent / "h100"


@cache
def diagnosis(job: str) -> Diagnosis:
    return api.diagnose(FOLDER / job, cache=None)[0]


def the(rule: str, job: str) -> Finding:
    (found,) = (one for one in (*diagnosis(job).findings, *diagnosis(job).opportunities) if one.rule == rule)
    return found


def test_what_compiling_saves_is_the_largest_opportunity() -> None:
    found = diagnosis("flash")
    assert found.verdict == "healthy" and found.opportunities[0].rule == "unfused-elementwise"
    least, most = the("unfused-elementwise", "flash").range_ms
    assert least < 28.06 - 21.00 < most


def test_what_an_aligned_vocabulary_saves_is_predicted() -> None:
    found = the("no-tensor-cores", "vocab_odd")
    assert diagnosis("vocab_odd").verdict == "no-tensor-cores" and found.cause == "misaligned"
    assert found.cost_ms == pytest.approx(45.56 - 28.06, abs=1)


def test_a_rank_that_sleeps_is_named_where_the_others_block_in_syncs_until_another_stream_ends() -> None:
    found = the("straggler", "stream_sleep")
    assert diagnosis("stream_sleep").verdict == "straggler" and found.ranks == (2,) and found.cause == "host"
    assert found.cost_ms == pytest.approx(108.7 - 66.9, abs=0.1 * 108.7)


def test_without_the_sleep_no_rank_is_accused() -> None:
    assert all(len(one.ranks) == 4 for one in diagnosis("stream_healthy").findings if one.severity != "info")
