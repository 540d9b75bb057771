"""Which ranks and steps are compared with each other."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace
from traces import check, digests, findings, in_row, job, outcome, ranks, repeat

from tb_ddp_doctor.findings import Finding, RuleOutcome
from tb_ddp_doctor.job.build import build
from tb_ddp_doctor.replay.comparable import comparable
from tb_ddp_doctor.replay.lengths import expected_ns
from tb_ddp_doctor.replay.schedule import schedule


def block(name: str, ms: int) -> str:
    return f"[{name}".ljust(ms - 1, ".") + "]"


def worker(compute: int, group: str, longest_of_group: int = 16, longest: int = 24) -> str:
    """A rank that sums with its group, and then with all."""
    own = block(f"ar/{group}", longest_of_group - compute + 10)
    return f"""
        rank# step |1
              host [fwd] {block("sync", longest + 8)}
              gpu  {block("fwd", compute)}
              nccl {" " * compute}{own}{block("ar", longest - longest_of_group + 4)}
    """


def roles(*compute: int, critics: int = 8) -> str:
    actors = [worker(each, "actor", max(compute), max(compute)) for each in compute]
    return ranks(*actors, *[worker(critics, "critic", critics, max(compute))] * 3, steps=4)


def test_ranks_with_other_work_have_other_roles() -> None:
    sequence = schedule(job(roles(16, 16, 16))).frame.sequence
    assert [len(set(row)) for row in sequence.tolist()] == [1] * 6
    assert len(set(sequence[:3, 0])) == len(set(sequence[3:, 0])) == 1
    assert sequence[0, 0] != sequence[3, 0]


def test_groups_that_do_the_same_work_are_compared() -> None:
    assert len(np.unique(schedule(job(roles(16, 16, 16, critics=16))).frame.sequence)) == 1


def test_one_slow_actor_is_the_straggler_and_no_other() -> None:
    found = findings("straggler", roles(16, 24, 16))
    assert not isinstance(found, RuleOutcome)
    assert [one.ranks for one in found] == [(1,)]


def test_actors_are_not_slow_beside_critics() -> None:
    assert outcome("straggler", roles(16, 16, 16)).status == "clear"


def of_length(grid: int, ms: int) -> str:
    text = f"""
        rank# step |1
              host [fwd]
              gpu  {block(f"fwd@{grid}", ms)}
              nccl {" " * ms}[ar]
    """
    return ranks(text, text, text, steps=1)


def test_where_shapes_are_recorded_flops_tell_the_length_of_kernels_that_are_as_large_as_the_device() -> None:
    each = digests(in_row(*[of_length(132, 10)] * 2, of_length(132, 30), *[of_length(132, 10)] * 2))

    def lengths(*flops: int) -> list[float]:
        work = np.array(flops, np.int64) * 10**9
        of_shapes = {
            rank: replace(one, work=replace(one.work, flops=replace(one.work.flops, model_flops=work)))
            for rank, one in each.items()
        }
        made = build("drawn", of_shapes, {}, len(each))
        return comparable(made, np.zeros(made.step_index.shape, np.int64)).length.tolist()

    assert lengths(0, 0, 0, 0, 0) == [1, 1, 1, 1, 1]
    assert lengths(2, 2, 6, 2, 2) == [1, 1, 3, 1, 1]


@pytest.mark.parametrize(("grid", "is_slow"), [(300, False), (100, True)])
def test_a_step_is_slow_only_where_its_kernels_are_no_larger(grid: int, is_slow: bool) -> None:
    usual = [of_length(100, 10)] * 2
    found = check("slow-step", in_row(*usual, of_length(grid, 30), *usual))
    assert isinstance(found, Finding) == is_slow


@pytest.mark.parametrize(("ms", "is_slow"), [(12, False), (30, True)])
def test_a_step_that_alone_has_its_length_is_slow_only_if_other_lengths_let_expect_less(ms: int, is_slow: bool) -> None:
    # 10 ms for 100 blocks, in steps of which no two are equally long.
    others = [of_length(grid, grid // 10) for grid in (80, 100, 160, 200, 250)]
    found = check("slow-step", in_row(*others[:3], of_length(120, ms), *others[3:]))
    assert isinstance(found, Finding) == is_slow
    if isinstance(found, Finding):
        assert found.steps == (4,)
        assert found.cost_ms == pytest.approx(18 / 6, rel=0.1)


def test_what_takes_as_long_in_steps_of_any_length_is_slow_where_it_takes_longer() -> None:
    length = np.array([0.5, 0.7, 1.0, 1.3, 1.7, 2.0])
    taken = np.array([10, 10, 10, 30, 10, 10]) * 1_000_000
    assert expected_ns(taken, length) == pytest.approx([10_000_000] * 6)


def test_attention_takes_the_square_of_the_length() -> None:
    length = np.array([0.5, 0.7, 1.0, 1.3, 1.7, 2.0])
    taken = np.rint(1e7 * length**2 * [1, 1, 1, 1, 1, 3]).astype(np.int64)
    assert expected_ns(taken, length) == pytest.approx(1e7 * length**2, rel=0.1)


@pytest.mark.parametrize(("messages", "roles"), [("[sTWINrTWIN]", 1), ("", 2)])
def test_ranks_that_share_sequences_have_one_role_though_they_only_send_to_each_other(
    messages: str, roles: int
) -> None:
    """Ranks 1 and 3 hold the second halves of sequences and compute twice as long: they are slow, no other role."""
    drawn = ""
    for rank in range(4):
        compute, own = (block("bwd", 20), "[ar/odd...]") if rank & 1 else (block("bwd", 10), "[ar/even..]")
        drawn += f"""
            rank{rank} step |1
                  host     [fwd]{messages.replace("TWIN", str(rank ^ 1)):12}{block("sync", 50)}
                  autograd                         [bwd][{own[1:-1].rstrip(".")}]
                  gpu      {" " * 5}[fwd.......]    {" " * 8}{compute}
                  nccl     {" " * 5}{messages.replace("TWIN", str(rank ^ 1)):12}{" " * 11}{" " * len(compute)}{own}
        """
    sequence = schedule(job(repeat(drawn, 3))).frame.sequence
    assert len(np.unique(sequence)) == roles


#: A rank that generates, and one that trains and may send the weights then.
ROLLS_OUT = """
    rank# step |1
          host   [own_generate_sequences.............]
          within [attend][sync......][sync...........]
          gpu      [attend..........]
          nccl                       [bc/sync........]
"""
TRAINS = """
    rank# step |1
          host   [own_update_actor...................]
          within [fwd]            [sync..............]
          gpu     [fwd............]
          nccl                    [ar/train]
"""


def test_who_sends_the_weights_trains_as_its_peers_do() -> None:
    """A collective with ranks of another role says nothing of the work of a step."""
    text = ranks(ROLLS_OUT, ROLLS_OUT, TRAINS.replace("[ar/train]", "[ar/train][bc/sync]"), TRAINS, TRAINS, steps=4)
    sequence = schedule(job(text)).frame.sequence
    assert len(np.unique(sequence[2:])) == 1
    assert sequence[0, 0] != sequence[2, 0]


#: Ranks that train, the first of which sends the weights.
SEND = TRAINS.replace("[ar/train]", "[ar/train][bc/sync]"), TRAINS
#: Engines of two ranks each, which reduce once for each of their tokens; and engines that only read prompts.
OF_TWO = """
    rank# step |1
          host   [own_generate_sequences.............]
          within [attend][sync...........] [sync.....]
          gpu      [attend............]
          comm            TOKENS
          nccl                             [bc/sync..]
"""
LONG, SHORT = (OF_TWO.replace("TOKENS", "[ar/tp]" * many) for many in (2, 1))


@pytest.mark.parametrize("of_rounds", [True, False])
def test_engines_are_compared_however_many_tokens_they_generate(*, of_rounds: bool) -> None:
    drawn = [each.replace("/tp", f"/tp{engine}") for engine, each in enumerate((LONG, SHORT)) for _ in range(2)]
    text = ranks(*drawn, *SEND, steps=4)
    # Without roles, other collectives are other work.
    sequence = schedule(job(text if of_rounds else text.replace("own_", "any_"))).frame.sequence
    assert (sequence[0, 0] == sequence[2, 0]) == of_rounds


def test_ranks_that_only_read_prompts_are_compared_with_each_other() -> None:
    """Their attention has other kernels than that of ranks that generate."""
    kernels = {"attend": "flash_fwd_kernel", "generate": "flash_fwd_splitkv_kernel"}
    answers = ROLLS_OUT.replace("attend", "generate").replace("[generate][sync......]", "[generate][sync....]")
    answers = answers.replace("[generate..........]", "[generate........]")
    text = ranks(ROLLS_OUT, answers, answers, ROLLS_OUT, *SEND, steps=4)
    sequence = schedule(job(text, kernels=kernels)).frame.sequence[:, 0].tolist()
    assert sequence[0] == sequence[3] != sequence[1] == sequence[2]


def of_tokens(rank: int, *tokens: int) -> list[str]:
    """A rank of two with tensor parallelism, of two such groups, that sums so many activations in each step."""
    return [
        f"""
        rank# step |1
              host [fwd]       [sync............]
              gpu  [fwd.....]
              nccl           [ar/tp{rank // 2}@{many}][ar.....]
        """
        for many in tokens
    ]


@pytest.mark.parametrize(("first", "second", "same"), [((3, 5), (4, 2), 1), ((3, 3), (4, 4), 2)])
def test_batches_that_differ_in_tokens_do_not_change_what_is_compared(
    first: tuple[int, int], second: tuple[int, int], same: int
) -> None:
    """Ranks whose activations have another size in all steps are stages with other work."""
    steps = zip(*(of_tokens(rank, *(first if rank < 2 else second)) for rank in range(4)), strict=True)
    sequence = schedule(job(in_row(*(ranks(*each, steps=1) for each in steps)))).frame.sequence
    assert len(np.unique(sequence)) == same
