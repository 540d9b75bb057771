"""V-shaped schedules of pipelines, played and drawn in the order of actions that torch.distributed.pipelining has."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import pytest
from traces import job, outcome, repeat

from tb_ddp_doctor import engine
from tb_ddp_doctor.facts import Facts
from tb_ddp_doctor.facts.pipeline import Pipeline, pipeline
from tb_ddp_doctor.mesh.mesh import mesh
from tb_ddp_doctor.mesh.schedules import OF_BUBBLE
from tb_ddp_doctor.planning.model import Question
from tb_ddp_doctor.planning.predict import Planner
from tb_ddp_doctor.planning.record import PlanRecord
from tb_ddp_doctor.planning.refusal import CannotPlanError

#: Forward and each half of backward of a chunk take so long, ms, their kernel begins so long after, a message takes
#: so long.
TURN, LAUNCH, SENDS = 7, 1, 4
#: torch's names of what an action computes: the drawn kernels. What is sent then is that of the halves before weights.
DRAWN = {
    "FORWARD": ("fwd",),
    "BACKWARD_INPUT": ("bwd",),
    "BACKWARD_WEIGHT": ("wgt",),
    "FULL_BACKWARD": ("bwd", "wgt"),
}
#: "zero-bubble V": the class's name.
CLASSES = {"zero-bubble V": "ScheduleZBVZeroBubble", "DualPipeV": "ScheduleDualPipeV"}
Action = tuple[str, int, int]


def order(schedule: str, ranks: int, batches: int) -> list[list[tuple[Action, ...]]]:
    """What each rank computes: (kernel, chunk, micro-batch), those together whose results are sent together."""
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    made: Any = object.__new__(getattr(schedules, CLASSES[schedule]))
    made.pp_group_size, made.num_stages, made._num_stages, made._n_microbatches = ranks, 2 * ranks, 2 * ranks, batches
    every = []
    for rank in range(ranks):
        actions = [one for one in made._calculate_single_rank_operations(rank) if one is not None]
        every.append(
            [
                tuple(
                    (kernel, part.stage_index, part.microbatch_index)
                    for part in one.sub_actions or (one,)
                    for kernel in DRAWN[part.computation_type.name]
                )
                for one in actions
            ]
        )
    return every


class Played:
    """A step of a schedule, ms: when what is computed, sent and received."""

    def __init__(self, schedule: str, ranks: int, batches: int, sends: int) -> None:
        self.ranks, self.chunks, self.sends = ranks, 2 * ranks, sends
        self.kernels: defaultdict[int, list[tuple[str, int, int]]] = defaultdict(list)
        #: Of each rank: (other rank, begin, end).
        self.sent: defaultdict[int, list[tuple[int, int, int]]] = defaultdict(list)
        #: Of each rank: (other rank, end): when it has nothing else to do but to receive that.
        self.received: defaultdict[int, dict[tuple[int, int], int]] = defaultdict(dict)
        self._done: dict[Action, int] = {}
        left, now = order(schedule, ranks, batches), [0] * ranks
        while any(left):
            ready = [rank for rank in range(ranks) if left[rank] and self._are_there(left[rank][0], rank)]
            assert ready, "the order deadlocks"
            for rank in ready:
                now[rank] = self._play(left[rank].pop(0), rank, now[rank])
        self.step = max(now)

    def home(self, chunk: int) -> int:
        return min(chunk, self.chunks - 1 - chunk)

    def _needed(self, action: Action) -> Action | None:
        """What has to be there before: the chunk before's forward, the chunk behind's gradients."""
        kernel, chunk, batch = action
        if kernel == "fwd":
            return ("fwd", chunk - 1, batch) if chunk else None
        if kernel == "wgt":
            return None
        return ("fwd", chunk, batch) if chunk == self.chunks - 1 else ("bwd", chunk + 1, batch)

    def _are_there(self, actions: tuple[Action, ...], rank: int) -> bool:
        needed = [self._needed(one) for one in actions]
        return all(one is None or one in self._done or one in actions for one in needed)

    def _play(self, actions: tuple[Action, ...], rank: int, now: int) -> int:
        begin = now
        arrives = {one: self._done[one] for one in map(self._needed, actions) if one in self._done}
        start = max([now, *arrives.values()])
        for one in arrives:
            if (other := self.home(one[1])) != rank:
                self.received[rank][other, self._done[one]] = min(begin, self._done[one] - self.sends)
        ends = start
        for kernel, chunk, _ in actions:
            is_loss = kernel == "fwd" and chunk == self.chunks - 1
            self.kernels[rank].append(("loss" if is_loss else kernel, ends + LAUNCH, ends + TURN))
            ends += TURN
        for kernel, chunk, batch in actions:
            other = self.home(chunk + (1 if kernel == "fwd" else -1)) if 0 <= chunk < self.chunks else rank
            last = chunk == (self.chunks - 1 if kernel == "fwd" else 0)
            arrival = ends
            if kernel != "wgt" and not last and other != rank and self.sends:
                previous = self.sent[rank][-1][2] if self.sent[rank] else 0
                arrival = max(ends, previous) + self.sends
                self.sent[rank].append((other, arrival - self.sends, arrival))
            self._done[kernel, chunk, batch] = arrival
        return ends

    def drawing(self) -> str:
        """The step as `traces` draws it, with receives from each neighbour on a stream of their own."""
        lines = []
        for rank in range(self.ranks):
            on_host = [one for one in self.kernels[rank] if one[0] in ("fwd", "loss")]
            after = [one for one in self.kernels[rank] if one[0] in ("bwd", "wgt")]
            lanes: Mapping[str, list[tuple[str, int, int]]] = {
                "host": on_host,
                "thread2": [(f"s{other}", begin, end) for other, begin, end in self.sent[rank]],
                "autograd": after,
                "gpu": self.kernels[rank],
                "nccl": [(f"s{other}", begin, end) for other, begin, end in self.sent[rank]],
                "comm": self._receives(rank, rank - 1),
                "comm2": self._receives(rank, rank + 1),
            }
            lines.append(f"rank{rank} step     |1".ljust(16 + self.step + 5))
            lines += [f"rank{rank} {name:<8} {_lane(blocks, self.step)}" for name, blocks in lanes.items()]
        return "\n".join(lines)

    def _receives(self, rank: int, other: int) -> list[tuple[str, int, int]]:
        """What a rank receives from one of its neighbours: it waits for one after the other."""
        ends = sorted(end for it, end in self.received[rank] if it == other)
        begins = [max(self.received[rank][other, end], last) for last, end in pairwise([0, *ends])]
        return [(f"r{other}", begin, end) for begin, end in zip(begins, ends, strict=True)]


def _lane(blocks: list[tuple[str, int, int]], step: int) -> str:
    """Blocks as text, a character a millisecond, two into the step."""
    text = [" "] * (step + 6)
    for name, begin, end in blocks:
        text[begin + 2 : end + 2] = f"[{name}".ljust(end - begin - 1, ".") + "]"
    return "".join(text)


LOSS = {"loss": "nll_loss_forward_reduce_cuda_kernel_2d"}


def found_in(text: str, **options: Any) -> Pipeline:
    drawn = job(repeat(text, 3), **options)
    found = pipeline(drawn, mesh(drawn))
    assert found is not None
    return found


@pytest.mark.parametrize("schedule", list(CLASSES))
@pytest.mark.parametrize(("ranks", "batches"), [(2, 4), (2, 8), (4, 8), (4, 16), (8, 32)])
def test_the_bubble_is_what_the_order_of_torch_takes(schedule: str, ranks: int, batches: int) -> None:
    played = Played(schedule, ranks, batches, sends=0)
    computes = 2 * batches * 3 * TURN
    assert played.step - computes == pytest.approx(computes * OF_BUBBLE[schedule] * (ranks - 1) / batches)


@pytest.mark.parametrize("schedule", list(CLASSES))
@pytest.mark.parametrize(("ranks", "batches"), [(2, 4), (3, 6), (4, 8)])
def test_a_v_is_recognised_by_the_loss_on_the_first_rank(schedule: str, ranks: int, batches: int) -> None:
    found = found_in(Played(schedule, ranks, batches, SENDS).drawing(), kernels=LOSS)
    assert (found.stages, found.micro_batches, found.schedule) == (ranks, batches, schedule)
    assert found.stage.tolist() == list(range(ranks))


def test_without_a_loss_a_v_is_not_called_1f1b() -> None:
    found = found_in(Played("zero-bubble V", 3, 6, SENDS).drawing())
    assert found.schedule == "V-shaped with half the micro-batches, or zero-bubble H2"
    assert found.micro_batches == 12
    # Of one as the other: DualPipeV of 6 micro-batches has (p - 1) / 3m.
    assert found.least_wait == pytest.approx(2 / 18)


def test_the_rule_says_which_v_it_is_and_other_meshes_are_refused() -> None:
    text = repeat(Played("DualPipeV", 2, 4, SENDS).drawing(), 3)
    # Each rank computes 144 ms, a twelfth of which is 12 ms.
    assert (
        "the bubble of 2 stages and 4 micro-batches (DualPipeV) is 12.0 ms"
        in outcome("pipeline-bubble", text, kernels=LOSS).reason
    )
    found = engine.examine(job(text, kernels=LOSS)).mesh
    assert found is not None
    (advice,) = (one.advice[0] for one in found.dimensions if one.name == "pp")
    assert "its bubble, (p - 1) / 3m of what a stage computes, is 12.0 ms" in advice
    planner = Planner(PlanRecord(Facts(job(text, kernels=LOSS))))
    with pytest.raises(CannotPlanError, match="DualPipeV: each rank has a chunk from both ends"):
        planner.predict(Question(mesh="dp=2,pp=1"))
