"""Plans of jobs of any number of ranks, with the native library and without it: the same answers to all questions."""

from __future__ import annotations

import io

import msgspec
import pytest
import traces

from tb_ddp_doctor.cache import digest_version
from tb_ddp_doctor.commands.options import parser
from tb_ddp_doctor.digest import native
from tb_ddp_doctor.digest.model import RankDigest
from tb_ddp_doctor.facts import Facts
from tb_ddp_doctor.planning.answer import CURVES, OVERVIEW, answer
from tb_ddp_doctor.planning.model import PlanResult, Question
from tb_ddp_doctor.planning.predict import Planner
from tb_ddp_doctor.planning.record import PlanRecord
from tb_ddp_doctor.replay import native_library
from tb_ddp_doctor.storage import column_file

#: Two buckets, the second exposed, and a loader in the training process.
STEP = """
    rank# step     |2
          host     [load][fwd]                                    [opt][sync...............]
          autograd            [bwd_a][grad@4][ar1][bwd_b][grad@4][ar2]
          gpu            [fwd......][bwd_a......][bwd_b......]                    [opt...]
          nccl                                   [ar1@4...]         [ar2@4.......]
"""
#: Each field of a question, alone.
QUESTIONS = (
    Question(bucket_mb=1.0),
    Question(ranks=128),
    Question(ranks=128, strong=True),
    Question(mesh="dp=128"),
    Question(links=2.0),
    Question(links_of="fast"),
    Question(dtype="bfloat16"),
    Question(sharding="zero1"),
    Question(sharding="zero3", prefetch=2, offload=True),
    Question(sharding="hsdp"),
    Question(gathers_in_time=True),
    Question(accumulate=4),
    Question(workers=4),
    Question(pin_memory=False),
    Question(device="H200"),
    Question(graphs=True),
    Question(fixed=("dataloader-stall",)),
    Question(bucket_mb=5.0, links=2.0, dtype="bfloat16", workers=2),
)


def test_every_field_of_a_question_is_asked() -> None:
    asked = {name for one in QUESTIONS for name in msgspec.to_builtins(one)}
    assert asked == set(Question.__struct_fields__)


def test_every_option_of_the_command_is_a_field_that_is_asked() -> None:
    commands = next(action for action in parser()._actions if action.dest == "command").choices
    options = {action.dest for action in commands["plan"]._actions} - {
        action.dest for action in commands["merge"]._actions
    }
    fields = {"pin_memory" if name == "no_pin_memory" else name for name in options - {"json"}}
    # --links takes a calibration, too.
    assert fields | {"links_of"} == set(Question.__struct_fields__)


def answers(size: int) -> list[PlanResult]:
    job = traces.alike(traces.ranks(STEP), size)
    planner = Planner(PlanRecord(Facts(job)))
    return [answer(job, lambda: planner, one, {}) for one in QUESTIONS] + [
        answer(job, lambda: planner, Question(), curves) for curves in (OVERVIEW, CURVES)
    ]


def test_ranks_that_look_alike_are_those_that_are_drawn_one_by_one() -> None:
    drawn, alike = traces.job(traces.ranks(*[STEP] * 3)), traces.alike(traces.ranks(STEP), 3)
    assert [written(digest) for digest in alike.digests] == [written(digest) for digest in drawn.digests]
    assert alike.nodes == drawn.nodes and alike.world_size == drawn.world_size


def written(digest: RankDigest) -> bytes:
    file = io.BytesIO()
    column_file.dump(digest, digest_version(), file)
    return file.getvalue()


@pytest.mark.parametrize("size", [1, 2, 63, 64, 65, 512])
def test_plans_are_the_same_with_the_native_library_and_without(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    found = answers(size)
    with monkeypatch.context() as patch:
        patch.setattr(native, "library", lambda: None)
        patch.setattr(native_library, "is_available", lambda: False)
        assert found == answers(size)
    asked = [question for question, one in zip(QUESTIONS, found, strict=False) if one.prediction is not None]
    # A single rank sends nothing.
    assert len(asked) >= (1 if size == 1 else 10)
