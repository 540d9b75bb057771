"""Steps predicted with other numbers of DataLoader workers."""

from __future__ import annotations

import pytest
import traces
from msgspec.structs import replace

from tb_ddp_doctor.evidence.model import Loading, RankEvidence
from tb_ddp_doctor.facts import Facts
from tb_ddp_doctor.planning.model import Question
from tb_ddp_doctor.planning.predict import Planner
from tb_ddp_doctor.planning.record import PlanRecord
from tb_ddp_doctor.planning.refusal import CannotPlanError

#: Of 45 ms the loader takes 25, in which the GPU is done with the step before.
STARVED = """
    rank# step     |2
          host     [KIND..................][fwd]     [opt]
          autograd                              [bwd]
          gpu                              [fwd][bwd][opt]
          nccl                                            [ar@1]
"""


def plan(kind: str, *loading: Loading) -> Planner:
    job = traces.job(traces.ranks(*[STARVED.replace("KIND", kind)] * 2, steps=4))
    evidence = {rank: RankEvidence(loading=one) for rank, one in enumerate(loading)}
    return Planner(PlanRecord(Facts(replace(job, rank_evidence=evidence))))


def loading(workers: int, median_ms: float) -> Loading:
    return Loading(workers=workers, batches=20, median_ms=median_ms, longest_ms=2 * median_ms)


def test_workers_load_in_place_of_the_training_process() -> None:
    one, many = (plan("load").predict(Question(workers=workers)) for workers in (1, 8))
    assert one.step_ms == pytest.approx(24, abs=1)
    assert many.step_ms == pytest.approx(45 - 24, abs=1)


def test_more_workers_than_now_deliver_as_much_more_often() -> None:
    found = plan("fetch", loading(2, 96.0), loading(2, 60.0))
    # The slower rank's two workers deliver a batch every 48 ms, four every 24.
    assert found.predict(Question(workers=2)).step_ms == pytest.approx(48, abs=1)
    four = found.predict(Question(workers=4))
    assert four.step_ms == pytest.approx(24, abs=1)
    assert any("96.0 ms in each of 2 workers" in one.detail for one in four.rests)
    assert found.predict(Question(workers=32)).step_ms == pytest.approx(45 - 24, abs=1)


def test_without_workers_the_training_process_loads_besides_its_work() -> None:
    assert plan("fetch", loading(2, 80.0)).predict(Question(workers=0)).step_ms > 80


def test_workers_whose_batches_are_not_recorded_are_refused_with_what_to_record() -> None:
    with pytest.raises(CannotPlanError, match=r"Doctor\.watch\(model, loader\).* num_workers=0.* 25\.0 ms a step"):
        plan("fetch").predict(Question(workers=4))
