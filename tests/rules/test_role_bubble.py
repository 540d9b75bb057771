"""Roles of reinforcement learning that wait for each other are found with what their running at once would save."""

from __future__ import annotations

import re

import numpy as np
import pytest
from msgspec.structs import replace
from traces import digests, finding, findings, in_row, job, lies_in_its_step, outcome, ranks

from tb_ddp_doctor import engine
from tb_ddp_doctor.digest.model import CpuTime
from tb_ddp_doctor.findings import Diagnosis
from tb_ddp_doctor.job.build import build
from tb_ddp_doctor.job.rl_roles import of_roles, roles
from tb_ddp_doctor.replay.change import Change
from tb_ddp_doctor.replay.schedule import schedule
from tb_ddp_doctor.replay.tied_tracks import HAND_OVER
from tb_ddp_doctor.replay.whatif import WhatIf

RULE = "role-bubble"
#: Two ranks generate, then two train on the samples, and send the weights.
GENERATES = """
    rank# step |1
          host   [own_generate_sequences...........................]
          within [attend][sync..............] [sync................]
          gpu      [attend..................]
          nccl                               [bc...................]
"""
UPDATES = """
    rank# step |1
          host                                [own_update_actor....]
          within                              [fwd][sync....] [sync]
          gpu                                  [fwd.........]
          nccl                                               [bc...]
"""
#: Ranks that train on the samples of the step before, and wait for those that generate.
UPDATES_EARLY = """
    rank# step |1
          host   [own_update_actor.................................]
          within [fwd][sync......]         [sync...................]
          gpu     [fwd...........]
          nccl                    [bc..............................]
"""
#: A rollout with an answer that is much longer than the others.
LONGER = """
    rank# step |1
          host   [own_generate_sequences...........................]
          within [attend][sync...............................] [sync]
          gpu      [attend*2..............................]
          nccl                                             [bc.....]
"""
#: The same at once, on the samples of the step before.
BESIDE = """
    rank# step   |1
          host   [own_generate_sequences...........]
          within [attend][sync..............] [sync]
          gpu      [attend..................]
          nccl                               [bc...]
"""
AHEAD = """
    rank# step   |1
          host   [own_update_actor.................]
          within [fwd][sync......]            [sync]
          gpu     [fwd...........]
          nccl                               [bc...]
"""
FAULTY, HEALTHY = ([first, first, second, second] for first, second in ((GENERATES, UPDATES), (BESIDE, AHEAD)))


def test_roles_one_after_the_other_are_found_with_what_running_at_once_saves() -> None:
    found = finding(RULE, ranks(*FAULTY))
    # The rollouts alone take 38 of 53 ms.
    assert found.cost_ms == pytest.approx(15, rel=0.02)
    assert found.ranks == (0, 1, 2, 3)
    assert found.title.startswith("Roles wait for each other: rollout (ranks 0 and 1) computes 26.0 ms and update (")
    assert "off_policy" in found.fix


def test_the_roles_are_the_verdict_and_no_rank_is_accused() -> None:
    diagnosis = engine.examine(job(ranks(*FAULTY)))
    assert (diagnosis.kind, diagnosis.verdict) == ("RL", RULE)
    assert not [one for one in diagnosis.findings if one.rule != RULE and one.severity not in ("info", "minor")]


def test_roles_at_once_are_clear() -> None:
    assert outcome(RULE, ranks(*HEALTHY)).status == "clear"


def test_all_roles_in_turn_are_clear() -> None:
    in_turn = """
        rank# step |1
              host [own_generate_sequences][own_update_actor..]
              within [attend]               [fwd]
              gpu    [attend..............][fwd..............]
    """
    assert outcome(RULE, ranks(in_turn, in_turn)).reason.startswith("The same GPUs do all roles in turn")


def with_gpus(of_rank: tuple[int, ...], nodes: dict[int, str], *, joined: bool = False) -> Diagnosis:
    """Two ranks that generate and two that train, on these GPUs and nodes; `joined` by the broadcast of the weights."""
    drawn = FAULTY if joined else [re.sub(r"nccl.*", "", text) for text in FAULTY]
    each = digests(ranks(*drawn))
    placed = {rank: replace(one, device_number=of_rank[rank]) for rank, one in each.items()}
    return engine.examine(build("drawn", placed, nodes, len(each)))


@pytest.mark.parametrize("nodes", [{}, {0: "a", 1: "a", 2: "a", 3: "a"}, {2: "a", 3: "a"}])
def test_roles_on_the_same_gpus_take_turns(nodes: dict[int, str]) -> None:
    """Two processes on each GPU: one generates while the other one sleeps. Some files may not name the only node."""
    diagnosis = with_gpus((0, 1, 0, 1), nodes)
    assert not [one for one in diagnosis.findings if one.rule == RULE]
    assert "All roles are on the same GPUs, in turn." in diagnosis.headline + str(diagnosis.warnings)


@pytest.mark.parametrize(
    ("of_rank", "nodes", "joined"),
    [
        ((0, 1, 0, 1), {0: "a", 1: "a", 2: "b", 3: "b"}, False),
        # NCCL takes no GPU twice.
        ((0, 1, 0, 1), {}, True),
    ],
)
def test_roles_on_gpus_of_their_own_wait_for_each_other(
    of_rank: tuple[int, ...], nodes: dict[int, str], *, joined: bool
) -> None:
    diagnosis = with_gpus(of_rank, nodes, joined=joined)
    assert "on the same GPUs" not in diagnosis.headline + str(diagnosis.warnings)
    assert not any("on the same GPUs" in one.why for one in diagnosis.findings)


def test_roles_that_compute_at_once_have_gpus_of_their_own() -> None:
    """Of two nodes that no file names, the GPUs have the same numbers."""
    each = digests(ranks(*(re.sub(r"nccl.*", "", text) for text in HEALTHY)))
    placed = {rank: replace(one, device_number=rank % 2) for rank, one in each.items()}
    diagnosis = engine.examine(build("drawn", placed, {}, len(each)))
    assert "on the same GPUs" not in diagnosis.headline + str(diagnosis.warnings)


def test_where_each_process_sees_one_gpu_roles_may_share_them() -> None:
    """Ray shows each process its own GPU as number 0; weights go by CUDA IPC or files."""
    generates, updates = (re.sub(r"nccl.*", "", text) for text in (GENERATES, UPDATES))
    generates = generates.replace("[sync................]", "").replace(
        "sequences...........................", "sequences...."
    )
    each = digests(ranks(generates, generates, updates, updates, steps=4))
    alone = {rank: replace(one, device_number=0) for rank, one in each.items()}
    (bubble,) = (one for one in engine.examine(build("drawn", alone, {}, len(each))).findings if one.rule == RULE)
    assert bubble.confidence == "low"
    assert "if the roles take turns on the same GPUs, this costs nothing." in bubble.why


def test_other_jobs_have_no_roles() -> None:
    text = ranks(*FAULTY).replace("own_", "any_")
    assert outcome(RULE, text).reason == "This job does no reinforcement learning."


def test_the_share_of_weight_sync_is_said() -> None:
    syncs = GENERATES.replace("[own_generate_sequences....", "[own_generate_sequences][own_update_weights..")
    said = of_roles(job(ranks(syncs, syncs, UPDATES, UPDATES))) or ""
    assert "Weight sync takes " in said


def test_a_long_tail_of_generation_is_said() -> None:
    even = of_roles(job(ranks(GENERATES, GENERATES, GENERATES, UPDATES))) or ""
    assert "long tail" not in even
    one = of_roles(job(ranks(LONGER, GENERATES, GENERATES, UPDATES))) or ""
    assert "Generation has a long tail: in each step the longest rollout computes " in one
    assert "the longest is always that of one rank." in one
    turns = in_row(
        ranks(LONGER, GENERATES, GENERATES, UPDATES, steps=1), ranks(GENERATES, LONGER, GENERATES, UPDATES, steps=1)
    )
    assert "the longest is in turn on 2 ranks." in (of_roles(job(turns)) or "")


def test_ranks_that_nothing_tells_the_role_of_are_another_role() -> None:
    drawn = ranks(GENERATES, UPDATES, UPDATES.replace("own_update_actor", "own_work........"))
    assert "; another role on rank 2 (computes " in (of_roles(job(drawn)) or "")
    assert "another role (rank 2) computes 1" in finding(RULE, drawn).title


def test_each_role_says_which_role_it_waits_for() -> None:
    said = of_roles(job(ranks(UPDATES_EARLY, UPDATES_EARLY, GENERATES, GENERATES))) or ""
    assert "update on ranks 0 and 1 (computes " in said
    assert "waits for rollout " in said.partition("update on")[2]
    assert "waits for other ranks 0 %" in said.partition("rollout on")[2].partition(";")[0]


#: A rollout that generates twice as long as two others; the update begins when the last one is done.
TAIL = """
    rank# step |1
          host   [own_generate_sequences....................................]
          within [attend][sync............................] [sync...........]
          gpu      [attend*16.............................]
          nccl                                             [bc..............]
"""
SHORT = """
    rank# step |1
          host   [own_generate_sequences....................................]
          within [attend][sync.......] [sync................................]
          gpu      [attend*8.........]
          nccl                        [bc...................................]
"""
TRAINS = """
    rank# step |1
          host                                              [own_update_actor]
          within                                            [fwd][sync][sync]
          gpu                                                [fwd.....]
          nccl                                                         [bc..]
"""
#: All three rollouts take as long.
EVEN = [TAIL, TAIL, TAIL, TRAINS]
TAILS = [TAIL, SHORT, SHORT, TRAINS]


def tails_in_turn() -> str:
    orders = ([TAIL, SHORT, SHORT], [SHORT, TAIL, SHORT], [SHORT, SHORT, TAIL])
    return in_row(*[ranks(*order, TRAINS, steps=1) for order in orders])


@pytest.mark.parametrize(
    ("text", "of_ranks", "said"),
    [(ranks(*TAILS), (0,), "It is always on one rank."), (tails_in_turn(), (0, 1, 2), "It is in turn on 3 ranks.")],
)
def test_a_long_tail_of_generation_costs_what_it_takes_beyond_the_median(
    text: str, of_ranks: tuple[int, ...], said: str
) -> None:
    found = findings(RULE, text)
    assert isinstance(found, tuple)
    tail, bubble = sorted(found, key=lambda one: one.cause is None)
    assert (tail.cause, bubble.cause) == ("long_tail", None)
    # The longest rollout takes 41 ms, the others 20. With the update beside the rollouts 11 ms more go.
    assert tail.alone_ms == pytest.approx(21, rel=0.03)
    assert tail.cost_ms + bubble.cost_ms == pytest.approx(21 + 11, rel=0.03)
    assert tail.ranks == of_ranks and said in tail.why
    assert "partial" in tail.fix
    assert all(lies_in_its_step(window, text) for window in tail.evidence)


def test_a_long_tail_is_told_once() -> None:
    """By the finding, with its cost; what is said of the roles adds it only where it costs too little to be found."""
    diagnosis = engine.examine(job(tails_in_turn()))
    assert {one.cause for one in diagnosis.findings} >= {"long_tail", None}
    said = [diagnosis.headline, *(one.message for one in diagnosis.warnings)]
    assert "This job does reinforcement learning. Roles: " in diagnosis.headline
    assert not any("Generation has a long tail" in one for one in said)
    assert sum("long tail" in one for one in said) == 1, said


def test_rollouts_that_take_as_long_have_no_tail() -> None:
    found = finding(RULE, ranks(*EVEN))
    assert found.cause is None and found.cost_ms == pytest.approx(11, rel=0.02)


#: The same roles where the weights go from one process to another without a collective: one after the other, at once.
ROLLS_OUT = """
    rank# step |1
          host   [own_generate_sequences...........................]
          within [attend][sync..............]
          gpu      [attend..................]
"""
TRAINS_LATER = """
    rank# step |1
          host                                [own_update_actor....]
          within                              [fwd][sync...........]
          gpu                                  [fwd................]
"""
ROLLS_ON = """
    rank# step |1
          host   [own_generate_sequences]
          within [attend][sync............................]
          gpu     [attend.................................]
"""
TRAINS_BESIDE = """
    rank# step |1
          host   [own_update_actor.....]
          within [fwd][sync...........]
          gpu     [fwd................]
"""


def test_roles_without_a_collective_between_them_at_once_are_clear() -> None:
    text = ranks(ROLLS_ON, ROLLS_ON, TRAINS_BESIDE, TRAINS_BESIDE)
    assert outcome(RULE, text).status == "clear"


def test_roles_without_a_collective_between_them_cost_no_more_than_the_longest_one_idles() -> None:
    text = ranks(ROLLS_OUT, ROLLS_OUT, TRAINS_LATER, TRAINS_LATER)
    found = finding(RULE, text)
    # The rollout computes and loads for 31 of the 53 ms of a round that is recorded as a whole.
    assert found.cost_ms == pytest.approx(22, rel=0.02)


def test_who_waits_for_another_role_without_a_collective_gains_with_it() -> None:
    """Samples and weights go by a queue or a file: a pause ends as much earlier as the others are done."""
    drawn = job(ranks(ROLLS_OUT, ROLLS_OUT, TRAINS_LATER, TRAINS_LATER))
    played = WhatIf.of(drawn)
    work = np.zeros(played.shape, np.int64)
    work[2:] = 5_000_000
    assert played.cost_ns(Change(device_ns=work)) == pytest.approx(5e6, rel=0.35)
    # What the CPUs of one role do sooner does not end the wait for the other one. (What begins or ends with the record
    # is not known to be a wait.)
    within = np.zeros(played.shape)
    within[:, 1] = 1
    assert played.cost_ns(Change(host={CpuTime.STALL: within})) < 1e6


#: Rollouts that wait for the weights, and ranks that train on the samples of the round before and wait for none. One of
#: them copies the weights out and saves them, and its peer meets it in a barrier then.
WAITS_FOR_WEIGHTS = """
    rank# step |1
          host   [own_generate_sequences.................]
          within [attend][sync.....]
          gpu     [attend..........]
"""
SAVES = """
    rank# step |1
          host   [own_update_actor.......................]
          within [fwd][sync.....][ar][offload][sync]  [ar][sy]
          gpu     [fwd..........]    [offload.....]
          nccl                       [ar]                 [ar]
"""
MEETS_IT = """
    rank# step |1
          host   [own_update_actor.......................]
          within [fwd][sync.....][ar][ar][sync...............]
          gpu     [fwd..........]
          nccl                       [ar][ar.................]
"""


def test_what_a_role_begins_next_needs_what_the_other_one_had_done_before_it_waited() -> None:
    """Nobody waits for samples in the record: all are there before the update needs them."""
    trains = WAITS_FOR_WEIGHTS.replace("generate_sequences", "update_actor......").replace("attend", "fwd*2.")
    longer = trains.replace("[sync.....]", "[sync....................]").replace(
        "[fwd*2...........]", "[fwd*2..........................]"
    )
    tables = schedule(job(ranks(WAITS_FOR_WEIGHTS, WAITS_FOR_WEIGHTS, longer, longer, steps=4)))
    waits = tables.parts.row[tables.rows.awaits] == HAND_OVER
    assert set(tables.rows.rank[waits].tolist()) >= {2, 3}


def test_who_sends_the_weights_alone_is_no_straggler() -> None:
    text = ranks(WAITS_FOR_WEIGHTS, WAITS_FOR_WEIGHTS, SAVES, MEETS_IT, steps=4)
    sending_ns = WhatIf.of(job(text)).sending_ns
    assert sending_ns.any(axis=1).tolist() == [False, False, True, False]
    assert sending_ns[2].tolist() == pytest.approx([17e6] * 4, rel=0.2)
    assert outcome("straggler", text).status == "clear"
    found = finding(RULE, text)
    assert (found.cause, found.ranks) == ("weight_sync", (2,))


def test_what_one_rank_of_a_role_stalls_is_no_wait_for_another_role() -> None:
    stalls = TRAINS_BESIDE.replace("host   [own_update_actor.....]", "host          [own_update_actor]").replace(
        "within [fwd][sync...........]", "within        [fwd][sync......]"
    )
    drawn = job(ranks(ROLLS_ON, ROLLS_ON, TRAINS_BESIDE, stalls.replace("gpu     [fwd", "gpu            [fwd")))
    played = WhatIf.of(drawn)
    work = np.zeros(played.shape, np.int64)
    work[:2] = 10_000_000
    # Were it a wait, it would end sooner with less work of the rollouts.
    assert (played.unbound_ns(Change(device_ns=work)) - played.recorded_ns)[3].tolist() == pytest.approx(
        [0, 0, 0], abs=1e5
    )


#: A round in which ranks that train wait until a reward model, which gets no weights, has judged the answers.
GETS_WEIGHTS = """
    rank# step   |1
          host   [own_generate_sequences.......................................]
          within [attend][sync..............] [sync............................]
          gpu      [attend..................]
          nccl                               [bc/w.............................]
"""
SCORES = """
    rank# step   |1
          host                                [attend][sync...]
          gpu                                  [attend........]
"""
TRAINS_ON_SCORES = """
    rank# step   |1
          host                                                  [own_update_actor]
          within                                                [fwd][sync][sync]
          gpu                                                    [fwd....]
          nccl                                                            [bc/w]
"""


#: The same as a server of its own, which generates the judgement.
JUDGES = """
    rank# step   |1
          host                                [own_context_0_generation_8]
          within                              [attend][sync...]
          gpu                                  [attend........]
"""


def scored(judge: str, gets: str = GETS_WEIGHTS) -> str:
    return ranks(gets, gets, TRAINS_ON_SCORES, TRAINS_ON_SCORES, judge)


# What forward passes alone score waits for the answers: in the first round that began before the record.
@pytest.mark.parametrize(("judge", "rounds"), [(SCORES, 2), (JUDGES, 3)])
def test_ranks_that_all_wait_for_and_that_get_no_weights_score(judge: str, rounds: int) -> None:
    text = scored(judge)
    assert roles(job(text)) == ["rollout", "rollout", "update", "update", "reward"]
    (found,) = [one for one in findings(RULE, text) if one.cause == "reward"]
    assert found.ranks == (4,)
    assert found.title.startswith("The update waits for the scores: reward (rank 4) computes 16.0 ms of a step of 63")
    # From the end of the answers until the scores are there.
    assert found.alone_ms == pytest.approx(17 * rounds / 3, rel=0.05)


def test_scores_beside_generation_cost_nothing() -> None:
    """Each answer is scored as soon as it ends; the last scores are there when the last answer is."""
    early = JUDGES.replace(" " * 26 + "[", "[").replace(" " * 27 + "[", " [")
    assert not [one for one in engine.examine(job(scored(early))).findings if one.cause == "reward"]


def test_servers_score_only_where_most_others_get_weights_in_collectives() -> None:
    elsewhere = GETS_WEIGHTS.replace("[bc/w.", "[bc/t.")
    assert roles(job(scored(JUDGES, elsewhere)))[4] == "rollout"


#: The roles at once, but the weights take long.
SLOW_SYNC = [text.replace("[sync]", "[sync.....]").replace("[bc...]", "[bc........]") for text in (BESIDE, AHEAD)]


def test_a_long_weight_sync_is_found_with_what_it_is_exposed() -> None:
    found = finding(RULE, ranks(SLOW_SYNC[0], SLOW_SYNC[0], SLOW_SYNC[1], SLOW_SYNC[1]))
    assert found.cause == "weight_sync"
    assert found.cost_ms == pytest.approx(11, rel=0.1)
    assert "bucket" in found.fix and " at " in found.why


def test_a_rollout_that_is_slow_with_as_many_kernels_has_no_tail() -> None:
    """Its GPU is slow: its answers are as long as the others'."""
    slow = ranks(*[text.replace("attend*8.", "attend*16") for text in TAILS])
    found = findings(RULE, slow)
    assert not isinstance(found, tuple) or "long_tail" not in {one.cause for one in found}
    assert "long tail" not in (of_roles(job(slow)) or "")


#: A rollout of 60 ms beside four of 30, which wait for it through the rank that trains: that one trains for 44 ms.
LONG_ANSWERS = f"""
    rank# step |1{" " * 66}
          host    [own_rollout{"." * 47}]
          within  [attend][sync{"." * 46}]
          gpu      [attend*16{"." * 48}]
"""
SHORT_ANSWERS = f"""
    rank# step |1{" " * 66}
          host    [own_rollout{"." * 17}]
          within  [attend][sync{"." * 16}]
          gpu      [attend*8{"." * 18}]
"""
TRAINS_THEN = f"""
    rank# step |1{" " * 66}
          host   {" " * 16}[own_update_actor{"." * 26}]
          within {" " * 16}[fwd][sync{"." * 33}]
          gpu     {" " * 16}[fwd{"." * 38}]
"""


def test_what_roles_wait_for_one_long_rollout_is_no_bubble() -> None:
    """With answers as long as the others' the roles wait no longer: what the tail costs is not charged to them."""
    found = findings(RULE, ranks(LONG_ANSWERS, *[SHORT_ANSWERS] * 4, TRAINS_THEN, steps=6))
    bubble = [one for one in (found if isinstance(found, tuple) else [found]) if getattr(one, "cause", "") is None]
    assert not bubble, found
