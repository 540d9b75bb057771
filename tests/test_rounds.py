"""Reinforcement learning without ProfilerSteps: its rounds are the steps, by the annotations of its roles."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace
from traces import MS, digests, in_row, job, ranks, write

from tb_ddp_doctor import engine
from tb_ddp_doctor.cache import Cache
from tb_ddp_doctor.digest.rounds import SHARED_ROUND
from tb_ddp_doctor.digest.steps import FIRST_PART
from tb_ddp_doctor.discover.runs import discover
from tb_ddp_doctor.findings import Diagnosis
from tb_ddp_doctor.job.rl_pauses import _ends_at_work, ends_apart
from tb_ddp_doctor.job.shared_calls import calls_of
from tb_ddp_doctor.job.step_numbers import same_numbers

#: Two ranks generate, then two train on the samples and send the weights; then the next round begins.
GENERATES = """
    rank# host   [own_generate_sequences][own_sync_weights..................]
          within [attend][sync.........][sync..............................]
          gpu      [attend.............]
          nccl                          [bc................................]
"""
TRAINS = """
    rank# host                           [own_update_actor][own_sync_weights]
          within                         [fwd][sync......]         [sync...]
          gpu                             [fwd...........]
          nccl                                                   [bc.......]
"""
#: One process does both.
IN_TURN = """
    rank# host   [own_generate_sequences][own_update_actor.]
          within [attend][sync.........]  [fwd][sync......]
          gpu      [attend.............]    [fwd..........]
"""


def test_rounds_end_with_the_sync_of_weights_on_all_ranks() -> None:
    text = ranks(GENERATES, GENERATES, TRAINS, TRAINS, steps=5)
    found = engine.examine(job(text))
    # Four rounds end with a sync; what comes before the end of the first sync is of none.
    assert (found.kind, found.ranks, found.steps) == ("RL", (0, 1, 2, 3), (0, 1, 2, 3))
    assert found.verdict == "role-bubble"
    # The update alone takes 42 of 60 ms, with what it idles itself.
    assert {one.cause: one.cost_ms for one in found.findings}[None] == pytest.approx(18, rel=0.03)


def test_a_process_of_all_roles_begins_a_round_with_each_rollout() -> None:
    found = engine.examine(job(ranks(IN_TURN, IN_TURN, steps=5)))
    assert (found.kind, len(found.steps)) == ("RL", 4)


def test_a_role_alone_makes_no_rounds() -> None:
    text = ranks(GENERATES, GENERATES, steps=5).replace("sync_weights", "any_other_name_at_all")
    assert len(job(text).steps) == 1


#: Ranks that do all roles in turn. One of them generates longer answers, by more kernels.
LONG_ANSWERS = """
    rank# host   [own_generate_sequences..............][own_update_actor..]
          within [attend][attend][attend][attend][sy.] [fwd][sync.........]
          gpu      [attend][attend][attend][attend...]   [fwd....]
          nccl                                                    [ar...]
"""
SHORT_ANSWERS = """
    rank# host   [own_generate_sequences..............][own_update_actor..]
          within [attend][sync......]                  [fwd][sync.........]
          gpu      [attend..........]                    [fwd....]
          nccl                                                    [ar...]
"""
#: Kernels of one of them take longer.
LONG_KERNELS = """
    rank# host   [own_generate_sequences..............][own_update_actor..]
          within [attend][sync.......................] [fwd][sync.........]
          gpu      [attend...........................]   [fwd....]
          nccl                                                    [ar...]
"""


@pytest.mark.parametrize(("long", "is_of_answers"), [(LONG_ANSWERS, True), (LONG_KERNELS, False)])
def test_ranks_in_turn_generate_longer_answers_where_they_run_more_kernels(long: str, *, is_of_answers: bool) -> None:
    turns = [[long if rank == turn else SHORT_ANSWERS for rank in range(4)] for turn in (0, 1, 2, 3, 0)]
    found = engine.examine(job(in_row(*[ranks(*each, steps=1) for each in turns])))
    assert (found.kind, found.findings[0].rule) == ("RL", "load-imbalance"), found.headline
    assert ("generates longer answers" in found.findings[0].why) is is_of_answers
    assert ("partial-rollout" in found.findings[0].fix) is is_of_answers
    assert "DataLoader(" not in found.findings[0].fix


#: Ranks that nothing marks: two generate with launches of graphs, and two train. All send the weights together.
ROLLS_OUT = """
    rank# host   [g1][sync...][g2][sync...][g3][sync...][sync.....................]
          gpu     [g1.......]  [g2.......]  [g3.......]
          nccl                                           [bc......................]
"""
UPDATES = """
    rank# host                                            [fwd]      [update][sync]
          autograd                                             [bwd.]
          gpu                                              [fwd][bwd.]
          nccl                                                               [bc..]
"""
SERVER = dict.fromkeys(("aten::g1", "aten::g2", "aten::g3"), "vllm::unified_attention")


def examined(folder: Path, *drawings: str, steps: int = 5, **options: object) -> Diagnosis:
    """The diagnosis of drawn files: rounds that nothing marks are known only once all are read."""
    write(folder, ranks(*drawings, steps=steps), names=SERVER, **options)
    return diagnosed(folder)


def diagnosed(folder: Path) -> Diagnosis:
    (run,) = discover(folder)
    return engine.diagnose(run, reading=engine.Reading(cache=Cache(folder / "cache"))).diagnosis


@pytest.mark.parametrize("metadata", ["kernel", "nowhere"])
def test_rounds_that_nothing_marks_end_with_the_sync_of_weights(tmp_path: Path, metadata: str) -> None:
    found = examined(tmp_path, ROLLS_OUT, ROLLS_OUT, UPDATES, UPDATES, metadata=metadata)
    assert (found.kind, found.ranks, found.incomplete) == ("RL", (0, 1, 2, 3), ())
    # Five syncs end four rounds; what comes before the first is of none.
    assert (found.verdict, found.steps) == ("role-bubble", (0, 1, 2, 3)), found.headline
    # The rollouts take 47 of 66 ms with what they idle; no update runs beside them.
    assert found.findings[0].cost_ms == pytest.approx(19, rel=0.02)
    # Read again it is the same, from what is kept.
    assert examined(tmp_path, ROLLS_OUT, ROLLS_OUT, UPDATES, UPDATES, metadata=metadata) == found


def test_a_rank_that_takes_no_part_in_the_sync_has_the_rounds_of_its_peer(tmp_path: Path) -> None:
    """It shares the AllReduce of gradients with the rank that sends the weights."""
    rolls = """
        rank# host   [g1][sync...][g2][sync...][g3][sync...][sync............................]
              gpu     [g1.......]  [g2.......]  [g3.......]
              nccl                                           [bc/sync........................]
    """
    sends = """
        rank# host                                            [fwd]      [update]    [sync]
              autograd                                             [bwd.]
              gpu                                              [fwd][bwd.]
              comm                                                      [ar/data]
              nccl                                                                   [bc/sync]
    """
    beside = sends.replace("[bc/sync]", "         ").replace("[sync]", "      ")
    found = examined(tmp_path, rolls, rolls, sends, beside)
    assert (found.kind, found.ranks, found.incomplete) == ("RL", (0, 1, 2, 3), ())
    assert found.steps == (0, 1, 2, 3)


@pytest.mark.parametrize("metadata", ["kernel", "nowhere"])
def test_a_record_that_begins_after_a_sync_has_the_rounds_of_the_others(tmp_path: Path, metadata: str) -> None:
    """Not all ranks have as many collectives then."""
    write(tmp_path, ranks(ROLLS_OUT, ROLLS_OUT, UPDATES, UPDATES, steps=5), names=SERVER, metadata=metadata)
    late = next(tmp_path.glob("host1_*"))
    trace = json.loads(late.read_text())
    timed = [event["ts"] for event in trace["traceEvents"] if event["ph"] == "X"]
    # Its record begins in the second of five rounds, of 66 ms each.
    trace["traceEvents"] = [event for event in trace["traceEvents"] if event.get("ts", 0) >= min(timed) + 70_000]
    late.write_text(json.dumps(trace))
    found = diagnosed(tmp_path)
    assert (found.kind, found.ranks, found.incomplete) == ("RL", (0, 1, 2, 3), ())
    assert found.steps == (0, 1, 2)


def test_numbers_of_shared_rounds_stay_however_far_apart_they_end() -> None:
    """A rank that takes no part in the sync ends a round long before those that wait in it for the longest rollout."""
    text = """
        rank# step |NUMBER
              gpu  [fwd][bwd]
              nccl           [ar......]
    """
    text = ranks(text.replace("NUMBER", "1"), text.replace("NUMBER", "5"))
    drawn = digests(text)
    of_job = {
        rank: replace(digest, contents=replace(digest.contents, steps_from=SHARED_ROUND))
        for rank, digest in drawn.items()
    }
    numbers = [[of.steps.number.tolist() for of in same_numbers(each)[0].values()] for each in (drawn, of_job)]
    assert numbers == [[[1, 2, 3], [1, 2, 3]], [[1, 2, 3], [5, 6, 7]]]


#: The same without a collective: the update waits for samples, the rollouts for weights.
ROLLS_OUT_ALONE, UPDATES_ALONE = (re.sub(r"nccl .*", "", text) for text in (ROLLS_OUT, UPDATES))
ROLLS_OUT_ALONE = ROLLS_OUT_ALONE.replace("[sync.....................]", "                           ")


def test_roles_that_share_no_collective_have_rounds_by_their_waits(tmp_path: Path) -> None:
    found = examined(tmp_path, ROLLS_OUT_ALONE, ROLLS_OUT_ALONE, UPDATES_ALONE, UPDATES_ALONE, steps=6)
    assert (found.kind, found.ranks, found.incomplete) == ("RL", (0, 1, 2, 3), ())
    assert len(found.steps) > 1
    assert found.findings[0].rule == "role-bubble"


def test_rounds_by_waits_are_those_of_the_whole_record_where_some_ranks_are_marked(tmp_path: Path) -> None:
    """The digest of a marked rank has no waits outside of its steps."""
    rolls, updates = ROLLS_OUT_ALONE, UPDATES_ALONE
    plain = examined(tmp_path / "plain", rolls, rolls, updates, updates, steps=6)
    marked = updates.replace("rank# host  ", "rank# step |1\n          host  ")
    found = examined(tmp_path / "marked", rolls, rolls, marked, marked, steps=6)
    assert found.steps == plain.steps


def test_ranks_that_generate_without_collectives_are_not_damaged(tmp_path: Path) -> None:
    """All ranks that train have as many, in a group that has no name."""
    train = UPDATES_ALONE + "          nccl                                                        [ar]\n"
    options = {"metadata": "nowhere", "world_size": 4}
    found = examined(tmp_path, ROLLS_OUT_ALONE, ROLLS_OUT_ALONE, train, train, **options)
    assert (found.kind, found.ranks, found.incomplete) == ("RL", (0, 1, 2, 3), ())


def test_roles_that_neither_meet_nor_wait_are_one_step(tmp_path: Path) -> None:
    rolls = """
        rank# host   [g1][sync...][g2][sync...][g3][sync...]
              gpu     [g1.......]  [g2.......]  [g3.......]
    """
    updates = """
        rank# host   [fwd]              [update][sync......]
              autograd    [bwd..........]
              gpu     [fwd][bwd....................]
    """
    found = examined(tmp_path, rolls, rolls, updates, updates)
    assert (found.kind, found.ranks, found.incomplete, len(found.steps)) == ("RL", (0, 1, 2, 3), (), 1)


def test_steps_of_all_ranks_that_are_marked_stay(tmp_path: Path) -> None:
    marked = [text.replace("rank# host  ", "rank# step |1\n          host  ") for text in (ROLLS_OUT, UPDATES)]
    found = examined(tmp_path, *marked)
    assert (found.kind, found.steps) == ("RL", (1, 2, 3, 4, 5))


def test_rounds_of_ranks_of_which_some_are_marked_end_with_the_sync(tmp_path: Path) -> None:
    marked = UPDATES.replace("rank# host  ", "rank# step |1\n          host  ")
    found = examined(tmp_path, ROLLS_OUT, ROLLS_OUT, marked, marked)
    assert (found.kind, found.ranks, found.incomplete) == ("RL", (0, 1, 2, 3), ())
    assert (found.verdict, found.steps) == ("role-bubble", (0, 1, 2, 3)), found.headline


#: Ranks that train with tensor and data parallelism: every two share a group, and all four a barrier alone. The first
#: one sends the weights.
OF_MESH = """
    rank# host                                            [fwd]            [update]    SYNC
          autograd                                             [bwd..]
          gpu                                              [fwd][bwd.]
          comm                                                        [ar/tpX]
          comm2                                                               [ar/dpY]BARR
          nccl                                                                         BCAST
"""
#: Rounds that end together with a barrier of all.
BESIDE_SYNC = OF_MESH.replace("SYNC", "    ").replace("BCAST", "     ").replace("BARR", "            [ar/all]")
SENDS = OF_MESH.replace("SYNC", "[sync...]").replace("BCAST", "[bc/sync]").replace("BARR", "            [ar/all]")
ENGINE = """
    rank# host   [g1][sync...][g2][sync...][g3][sync...][sync.....................................]
          gpu     [g1.......]  [g2.......]  [g3.......]
          nccl                                           [bc/sync.................................]
"""


@pytest.mark.parametrize("metadata", ["kernel", "nowhere"])
def test_ranks_of_a_mesh_have_the_rounds_of_the_rank_that_sends(tmp_path: Path, metadata: str) -> None:
    """The last collective that a rank shares with it may be the barrier of the round before."""
    mesh = [SENDS, BESIDE_SYNC, BESIDE_SYNC, BESIDE_SYNC]
    drawn = [each.replace("tpX", f"tp{i // 2}").replace("dpY", f"dp{i % 2}") for i, each in enumerate(mesh)]
    write(tmp_path, ranks(*drawn, ENGINE, ENGINE, steps=5), names=SERVER, metadata=metadata)
    (run,) = discover(tmp_path)
    result = engine.diagnose(run, reading=engine.Reading(cache=Cache(tmp_path / "cache")))
    assert (result.diagnosis.kind, result.diagnosis.incomplete, len(result.diagnosis.steps)) == ("RL", (), 4)
    # The last barrier comes after the last sync.
    assert sum(result.job.matched.unmatched) <= 4


#: Actor and critic, which share no collective: the critic begins later, and waits for samples as well.
ACTOR = """
    rank# host                                            [fwd]      [update]
          autograd                                             [bwd.]
          gpu                                              [fwd][bwd.]
          nccl                                                        [ar/actor]
"""
CRITIC = """
    rank# host                [fwd]      [update]
          autograd                 [bwd.]
          gpu                  [fwd][bwd.]
          nccl                            [ar/critic]
"""


def test_groups_of_a_role_that_share_no_collective_have_rounds_of_their_own(tmp_path: Path) -> None:
    found = examined(tmp_path, ROLLS_OUT_ALONE, ROLLS_OUT_ALONE, ACTOR, ACTOR, CRITIC, CRITIC, steps=6)
    assert (found.kind, found.ranks, found.incomplete) == ("RL", tuple(range(6)), ())
    assert len(found.steps) > 1


#: Ranks of a mesh that train all the time, and wait for nobody; those that generate wait for weights from a file.
BUSY = """
    rank# host   [fwd]                                                   [update]
          autograd    [bwd..]
          gpu     [fwd][bwd................................................]
          comm         [ar/dpY]
          comm2                [ar/tpX]                          [ar/all]
"""


def test_ranks_of_a_mesh_that_wait_for_nobody_have_the_same_rounds() -> None:
    """Rounds of others end with collectives that all of them share, not with the last that two of them share."""
    drawn = [BUSY.replace("tpX", f"tp{i // 2}").replace("dpY", f"dp{i % 2}") for i in range(4)]
    calls = [calls_of(digest) for digest in digests(ranks(*drawn, steps=6)).values()]
    barriers = next(its for kind, its in calls[0].items() if kind[0] == "all")[0].arrival_ns
    # Half a round after each barrier, and after the other collectives of the next round.
    ends = barriers[1:4] + 40_000_000
    assert [its.tolist() for its in _ends_at_work(calls, ends)] == [barriers[1:4].tolist()] * 4


def test_rounds_end_with_the_weights_that_each_rank_gets_from_its_own_sender(tmp_path: Path) -> None:
    """Each rank that trains sends them to one that generates; no message goes from the others to the first sender."""
    rolls = ROLLS_OUT.replace("[bc......................]", "[rSENDER...................]")
    sends = """
        rank# host                                            [fwd]      [update]    [sync.]
              autograd                                             [bwd.]
              gpu                                              [fwd][bwd.]
              comm                                                      [ar/data]
              nccl                                                                  [sTO....]
    """
    drawn = ranks(
        *(rolls.replace("SENDER", rank) for rank in "23"), *(sends.replace("TO", rank) for rank in "01"), steps=5
    )
    write(tmp_path, drawn, names=SERVER, metadata="kernel")
    found = diagnosed(tmp_path)
    assert (found.kind, found.ranks, found.incomplete) == ("RL", (0, 1, 2, 3), ())
    assert found.steps == (0, 1, 2, 3)


def test_ranks_that_share_no_collective_have_rounds_by_their_own_waits_beside_a_sync(tmp_path: Path) -> None:
    """The sync tells those of all others: a reward model gets samples by a queue, and scores them in each round."""
    scores = """
        rank# host   [own_rewards.......]
              within [a][b][c][sync....]
              gpu     [a........][b...][c..]
    """
    rolls, updates = (re.sub(r"\[bc(\.*)", r"[bc/sync\1", text) for text in (ROLLS_OUT, UPDATES))
    found = examined(tmp_path, rolls, rolls, updates, updates, scores, scores, metadata="kernel")
    assert (found.kind, found.ranks, found.incomplete) == ("RL", tuple(range(6)), ())
    # By the waits alone there are two.
    assert found.steps == (0, 1, 2, 3)


def test_rounds_of_a_rank_by_its_own_waits_hold_what_it_did() -> None:
    """A reward model waits before its work and after it. Either wait may end its rounds: that by which they hold most
    of its record, which begins and ends with its work.

        sync    |                  |                  |                  |
        reward  ........[a.][b....]........[a.][b....]........[a.][b....]
                                   |0                  |1                |
    """
    scores = """
        rank# host   [a][b][sync....]                  [a][b][sync....]                  [a][b][sync....]
              gpu     [a..][b.......]                   [a..][b.......]                   [a..][b.......]
    """
    (digest,) = digests(ranks(scores, steps=1)).values()
    begin, end = int(digest.steps.host_start_ns[0]), int(digest.steps.end_ns[-1])
    ends = begin - 7_000_000 + 34_000_000 * np.arange(4)
    (own,) = ends_apart({0: digest}, {0: ""}, ends).values()
    assert own[0] < begin and own[-2] < end <= own[-1] + 1_000


def test_what_a_round_awaits_that_the_record_begins_within_is_played_too(tmp_path: Path) -> None:
    """The first wait of those that train awaits a generation before the first wait of those that generate."""
    rolls, updates = ROLLS_OUT_ALONE, UPDATES_ALONE
    write(tmp_path, ranks(rolls, rolls, updates, updates, steps=6), names=SERVER)
    (run,) = discover(tmp_path)
    result = engine.diagnose(run, reading=engine.Reading(cache=Cache(tmp_path / "cache")))
    assert [digest.steps.number.tolist()[0] for digest in result.job.digests] == [FIRST_PART] * 4
    assert FIRST_PART not in result.diagnosis.steps
    whatif = result.savings.whatif
    saved = (whatif.recorded_ns - whatif.step_ns(whatif.faultless))[2:]
    assert saved == pytest.approx(saved.mean(), rel=0.01)


def test_rounds_of_a_rank_by_its_own_waits_end_within_its_record() -> None:
    """Either of its two waits may end its rounds. Those after the syncs hold as much of its record, but the last of
    them would end behind it.
    """
    scores = f"""
        rank# host   [c]{"".join("[a][b][sync....]" + " " * gap for gap in (14, 18, 11))}[c]
              gpu    [c]{"".join(" [a..][b.......]" + " " * gap for gap in (14, 18, 11))}[c{"." * 17}]
    """
    (digest,) = digests(ranks(scores, steps=1)).values()
    begin = int(digest.steps.host_start_ns[0])
    (own,) = ends_apart({0: digest}, {0: ""}, begin + MS * np.array([31, 63, 97])).values()
    assert np.rint((own - begin) / MS).tolist() == [19, 49, 83]
