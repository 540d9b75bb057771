"""Steps predicted with other buckets, links and dtypes, on drawn jobs whose other steps follow from the drawing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import traces
from msgspec.structs import replace

from tb_ddp_doctor import api, engine
from tb_ddp_doctor.cache import Cache
from tb_ddp_doctor.calibration.model import Calibration, Point, curve
from tb_ddp_doctor.discover.runs import discover
from tb_ddp_doctor.facts import Facts
from tb_ddp_doctor.planning.answer import OVERVIEW, answer, recorded_buckets, unanswerable
from tb_ddp_doctor.planning.costs.interference import slowdown
from tb_ddp_doctor.planning.costs.messages import messages
from tb_ddp_doctor.planning.model import PlanResult, Question
from tb_ddp_doctor.planning.predict import Planner
from tb_ddp_doctor.planning.record import PlanRecord
from tb_ddp_doctor.planning.refusal import CannotPlanError
from tb_ddp_doctor.planning.steps import Otherwise

#: Two gradients of 4 million float32, 15.3 MiB each, in one bucket, which is sent when backward is over.
ONE_BUCKET = """
    rank# step     |2
          host     [fwd]                                  [opt][sync...............]
          autograd      [bwd_a][grad@4][bwd_b][grad@4][ar]
          gpu       [fwd......][bwd_a......][bwd_b......]                  [opt...]
          nccl                                           [ar@8............]
"""
#: The same with a bucket for each.
TWO_BUCKETS = """
    rank# step     |2
          host     [fwd]                                  [opt][sync.......]
          autograd      [bwd_a][grad@4][ar1][bwd_b][grad@4][ar2]
          gpu       [fwd......][bwd_a......][bwd_b......]          [opt...]
          nccl                             [ar1@4...]     [ar2@4..]
"""
#: What the drawn AllReduce takes, ms; and the kernel beside which half of it could run.
TRANSFER, HIDING = 18, 13
JOB = traces.ranks(ONE_BUCKET, ONE_BUCKET, steps=4)


def planner(text: str = JOB, **options: object) -> Planner:
    return Planner(PlanRecord(Facts(traces.job(text, **options))))


def test_the_recorded_buckets_give_the_recorded_steps() -> None:
    record = planner().record
    found = record.gradients
    assert found.elements.tolist() == [4_000_000, 4_000_000]
    assert found.recorded is not None
    assert found.recorded.tolist() == [1]
    again = record.with_buckets(found.recorded, record.messages)
    assert np.array_equal(again.windows_ns(Otherwise(slowdown=0.3)), record.whatif.recorded_ns)


def test_half_the_gradients_are_sent_while_the_other_half_is_computed() -> None:
    plan = planner()
    record = plan.record
    halves = record.with_buckets(np.array([0, 1]), record.messages).windows_ns(Otherwise())
    saved = (record.whatif.recorded_ns - halves).mean() / 1e6
    alpha = record.messages.alpha_ns / 1e6
    # The first half has all of the second kernel to hide behind; the second half pays the latency again.
    assert saved == pytest.approx(min((TRANSFER - alpha) / 2 + alpha, HIDING) - alpha, abs=0.5)


def test_links_twice_as_fast_halve_what_is_exposed() -> None:
    plan = planner()
    assert plan.predict(Question(links=2.0)).change_ms == pytest.approx(-TRANSFER / 2, abs=0.5)


def test_links_of_a_calibration_take_what_it_measured() -> None:
    sizes = (1_000_000, 8_000_000, 64_000_000)
    points = [Point(bytes=size, count=3, time_us=100 + size / 4e3, low_us=1, high_us=1) for size in sizes]
    made = Calibration(source="check", world_size=2, curves=(curve("all_reduce", "world", range(2), 2, points),))
    plan = Planner(planner().record, calibrations={"fast": made})
    saved = -plan.predict(Question(links_of="fast")).change_ms
    assert saved == pytest.approx(TRANSFER - (0.1 + 32 / 4), abs=0.1)
    with pytest.raises(CannotPlanError, match="no calibration 'slow'"):
        plan.predict(Question(links_of="slow"))
    unlike = Calibration(source="check", world_size=8, curves=())
    with pytest.raises(CannotPlanError, match="no all_reduce of 2 ranks"):
        Planner(plan.record, calibrations={"other": unlike}).predict(Question(links_of="other"))


def test_half_the_bytes_take_half_the_time_but_for_the_latency() -> None:
    plan = planner()
    saved = -plan.predict(Question(dtype="bfloat16")).change_ms
    assert saved == pytest.approx((TRANSFER - plan.record.messages.alpha_ns / 1e6) / 2, abs=0.5)


def test_nothing_asked_changes_nothing() -> None:
    assert planner().predict(Question()).change_ms == 0


def test_changes_combine() -> None:
    plan = planner()
    both = plan.predict(Question(links=2.0, dtype="bfloat16")).step_ms
    assert both < min(plan.predict(one).step_ms for one in (Question(links=2.0), Question(dtype="bfloat16")))


def test_predictions_say_what_they_rest_on_and_lie_in_their_range() -> None:
    found = planner().predict(Question(bucket_mb=10.0))
    assert found.low_ms <= found.step_ms <= found.high_ms
    assert {one.basis for one in found.rests} >= {"measured", "assumed"}
    assert any("alpha is assumed" in one.detail for one in found.rests)


def test_without_shapes_a_plan_says_to_record_them() -> None:
    with pytest.raises(CannotPlanError, match="record_shapes=True"):
        planner(shapes=False).predict(Question(bucket_mb=10.0))


def test_what_cannot_be_answered_is_refused_beside_what_can() -> None:
    job = traces.job(JOB)
    found = answer(job, lambda: Planner(PlanRecord(Facts(job))), Question(), {**OVERVIEW, "workers": (4,)})
    assert isinstance(found, PlanResult)
    assert {one.field for one in found.curves} == set(OVERVIEW)
    assert [one.question for one in found.refusals] == ["workers"]
    assert "DataLoader" in found.refusals[0].reason


@pytest.mark.parametrize(
    "question",
    [
        Question(ranks=0),
        Question(links=0.0),
        Question(links=float("nan")),
        Question(dtype="int3"),
        Question(bucket_mb=-1.0),
        Question(bucket_mb=float("inf")),
        Question(accumulate=0),
        Question(device="Abacus"),
        Question(fixed=("nothing",)),
        Question(pin_memory=True),
    ],
)
def test_nonsense_is_refused_in_a_sentence(question: Question) -> None:
    with pytest.raises(CannotPlanError, match=r"\.$"):
        planner().predict(question)


@pytest.mark.parametrize(
    "question",
    [Question(accumulate=4), Question(bucket_mb=25), Question(dtype="bfloat16"), Question(sharding="zero3")],
)
def test_a_server_has_no_gradients(question: Question) -> None:
    """Four passes for each AllReduce made a server a third faster."""
    text = """
        rank# host [own_context_0_generation_8....]
              within [fwd][ar@8][sync...........]
              gpu    [fwd......]
              nccl              [ar@8.........]
    """
    serves = planner(traces.ranks(text, text, steps=4))
    with pytest.raises(CannotPlanError, match="does not train"):
        serves.predict(question)


def test_a_job_that_cannot_be_played_is_refused() -> None:
    with pytest.raises(CannotPlanError, match="cannot be replayed: that needs the events of GPUs"):
        planner("rank0 step |2\n host [fwd....]\nrank1 step |2\n host [fwd....]\n")


def test_recorded_buckets_have_sizes_and_the_caps_that_give_them() -> None:
    found = recorded_buckets(planner().record.gradients)
    assert found is not None
    assert [one.bytes for one in found.buckets] == [32_000_000]
    assert found.cap_mb is not None
    assert found.cap_mb[1] is None


def test_recorded_buckets_tell_the_layers_inside_by_sizes_that_repeat() -> None:
    found = recorded_buckets(planner().record.gradients)
    assert found is not None
    (bucket,) = found.buckets
    assert (found.layers, bucket.first_layer, bucket.last_layer, bucket.ends_with_layer) == (2, 1, 2, True)


@pytest.mark.parametrize(
    "question",
    [Question(), Question(links=4.0), Question(bucket_mb=10.0), Question(sharding="zero2"), Question(accumulate=4)],
)
def test_the_owners_of_a_predicted_step_sum_to_it(question: Question) -> None:
    job = traces.job(JOB)
    found = answer(job, lambda: Planner(PlanRecord(Facts(job))), question, {})
    assert sum(found.owners_ms.values()) == pytest.approx(found.now_ms)
    if found.prediction:
        assert sum(found.prediction.owners_ms.values()) == pytest.approx(found.prediction.step_ms)
        assert min(found.prediction.owners_ms.values()) >= 0


def test_faster_links_shorten_exposed_communication_and_nothing_else() -> None:
    plan = planner()
    step_ms = plan.predict(Question(links=2.0)).step_ms
    now, then = plan.owners_ms(Question(), 0.0), plan.owners_ms(Question(links=2.0), step_ms)
    assert now["transfer"] - then["transfer"] == pytest.approx(TRANSFER / 2, abs=0.5)
    assert now["compute"] == pytest.approx(then["compute"], abs=0.5)


def test_fields_that_a_record_does_not_answer_are_known_beforehand() -> None:
    refused = unanswerable(planner)
    assert [one.question for one in refused] == ["gathers_in_time", "workers", "device"]


def test_runs_with_other_buckets_are_points_on_the_curve() -> None:
    job = traces.job(JOB)
    halves = replace(traces.job(traces.ranks(TWO_BUCKETS, TWO_BUCKETS, steps=4)), name="halves")
    unlike = replace(traces.job(JOB, world_size=4), name="four ranks")
    found = answer(
        job,
        lambda: Planner(PlanRecord(Facts(job))),
        Question(),
        {"bucket_mb": (15.0, 40.0)},
        {"a": halves, "b": unlike},
    )
    assert [(one.run, round(one.bucket_mb)) for one in found.measured] == [("drawn", 31), ("a", 15)]
    assert (
        answer(job, lambda: Planner(PlanRecord(Facts(job))), Question(), {"links": (2.0,)}, {"a": halves}).measured
        == ()
    )


def test_sizes_that_differ_are_fitted_and_one_size_assumes_a_latency() -> None:
    size = np.array([1_000_000, 2_000_000, 4_000_000])
    line = messages("all_reduce", 4, size, 300_000 + size // 2, None)
    assert (line.basis, round(line.alpha_ns), round(line.beta_ns, 3)) == ("fitted", 300_000, 0.5)
    alike = messages("all_reduce", 4, size[:1], np.array([800_000]), None)
    assert alike.basis == "assumed"
    assert alike.time_ns(size[:1])[0] == pytest.approx(800_000)
    assert alike.quickest().alpha_ns < alike.alpha_ns < alike.slowest().alpha_ns


def test_without_overlap_the_slowdown_beside_communication_is_assumed() -> None:
    assert slowdown(traces.job(JOB).digests).basis == "assumed"


def test_a_plan_with_findings_fixed_begins_at_the_step_that_the_account_predicts() -> None:
    (run,) = discover(Path(__file__).parents[1] / "demo_logs" / "straggler_cpu")
    result = engine.diagnose(run, reading=engine.Reading(cache=Cache(None)))
    plan = api.planner(result)
    for names in (("straggler",), (result.diagnosis.findings[0].id, "profiler-overhead")):
        prospect = result.savings.without(names)
        fixed = plan.predict(Question(fixed=names))
        assert (fixed.step_ms, fixed.low_ms, fixed.high_ms) == pytest.approx((prospect.without_ms, *prospect.range_ms))
        # What changes nothing leaves that step.
        assert plan.predict(Question(fixed=names, links=1.0)).step_ms == pytest.approx(prospect.without_ms)
        assert plan.predict(Question(fixed=names, links=0.5)).step_ms > prospect.without_ms + 1
