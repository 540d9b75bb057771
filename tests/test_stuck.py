"""Jobs that are stuck, drawn as text: which ranks are at the root, and what is not concluded."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
from dumps import START_NS, drawn, examined, faults, read, write
from msgspec.structs import replace

from tb_ddp_doctor.flight.load import load
from tb_ddp_doctor.stuck.build import build
from tb_ddp_doctor.stuck.run import examine_all


def test_missing_rank(tmp_path: Path) -> None:
    run = examined(
        tmp_path,
        """
        groups: dp=0,1,2,3
        rank0: all_reduce@dp*5+ all_reduce@dp:4096
        rank1: all_reduce@dp*5+ all_reduce@dp:4096
        rank2: all_reduce@dp*5+
        rank3: all_reduce@dp*5+ all_reduce@dp:4096
        """,
    )
    assert run.verdict == "stuck"
    assert faults(run) == [("missing", (2,))]
    (finding,) = run.findings
    assert finding.title == "Rank 2 never came to all_reduce 6 of dp."
    assert finding.confidence == "high" and finding.severity == "critical"
    assert finding.waiting == (0, 1, 3)
    assert finding.call.site is not None and finding.call.site.file == "/job/train.py"
    assert finding.call.timeout_s == 600
    assert finding.since_ns == START_NS + 6 * 10**6
    assert [(wait.rank, wait.targets, wait.why) for wait in run.waits] == [
        (0, (2,), "absent"),
        (1, (2,), "absent"),
        (3, (2,), "absent"),
    ]


def test_missing_rank_of_dumps_without_what_completed(tmp_path: Path) -> None:
    run = examined(
        tmp_path,
        """
        groups: dp=0,1,2
        rank0: all_reduce@dp*5+ all_reduce@dp active
        rank1: all_reduce@dp*5+ all_reduce@dp active
        rank2: all_reduce@dp*5+ active
        """,
    )
    assert faults(run) == [("missing", (2,))]


@pytest.mark.parametrize(
    ("odd", "difference", "said"),
    [
        ("all_reduce@dp:2048", "size", "another size"),
        ("all_reduce@dp:1024/BFloat16", "dtype", "another element type"),
        ("broadcast@dp:1024", "collective", "another collective"),
    ],
)
def test_mismatch(tmp_path: Path, odd: str, difference: str, said: str) -> None:
    run = examined(
        tmp_path,
        f"""
        groups: dp=0,1,2
        rank0: all_reduce@dp*3+ all_reduce@dp:1024
        rank1: all_reduce@dp*3+ {odd}
        rank2: all_reduce@dp*3+ all_reduce@dp:1024
        """,
    )
    assert faults(run) == [("mismatch", (1,))], difference
    assert said in run.findings[0].title
    assert ("sizes and types" in run.findings[0].fix) == (difference != "collective")
    assert ("call the same collective" in run.findings[0].fix) == (difference == "collective")
    assert run.findings[0].waiting == (0, 2)


def test_sizes_that_may_differ(tmp_path: Path) -> None:
    run = examined(
        tmp_path,
        """
        groups: ep=0,1,2
        rank0: all_to_all@ep:40
        rank1: all_to_all@ep:70
        rank2:
        """,
    )
    assert faults(run) == [("missing", (2,))]


def test_wrong_order_in_a_group(tmp_path: Path) -> None:
    run = examined(
        tmp_path,
        """
        groups: dp=0,1
        rank0: all_reduce@dp:64+ all_reduce@dp:100 all_reduce@dp:200
        rank1: all_reduce@dp:64+ broadcast@dp:8 all_reduce@dp:100
        """,
    )
    assert faults(run) == [("mismatch", (0, 1))]
    run = examined(
        tmp_path,
        """
        groups: dp=0,1
        rank0: all_reduce@dp:64+ all_reduce@dp:100 broadcast@dp:8
        rank1: all_reduce@dp:64+ broadcast@dp:8 all_reduce@dp:100
        """,
    )
    assert faults(run) == [("wrong-order", (0, 1))]


@pytest.mark.parametrize("blocking", [True, False])
def test_wrong_order_of_two_groups(tmp_path: Path, blocking: bool) -> None:
    second = ["", ""] if blocking else ["all_reduce@b", "all_reduce@a"]
    run = examined(
        tmp_path,
        f"""
        groups: a=0,1 b=0,1
        rank0: all_reduce@a*3+ all_reduce@b*3+ all_reduce@a {second[0]}
        rank1: all_reduce@a*3+ all_reduce@b*3+ all_reduce@b {second[1]}
        """,
    )
    assert faults(run) == [("wrong-order", (0, 1))]
    assert run.findings[0].confidence == "medium"


def test_collective_against_point_to_point(tmp_path: Path) -> None:
    run = examined(
        tmp_path,
        """
        groups: dp=0,1,2,3
        rank0: all_reduce@dp*3+ all_reduce@dp
        rank1: all_reduce@dp*3+ recv(0)@dp
        rank2: all_reduce@dp*3+ all_reduce@dp
        rank3: all_reduce@dp*3+ all_reduce@dp
        """,
    )
    assert faults(run) == [("p2p-in-collective", (1,))]
    assert run.findings[0].waiting == (0, 2, 3)


def test_two_independent_faults(tmp_path: Path) -> None:
    run = examined(
        tmp_path,
        """
        groups: ep=0,1 fp=2,3,4 dp=0,1,2,3,4
        rank0: all_reduce@dp*3+ all_reduce@ep+ all_reduce@ep
        rank1: all_reduce@dp*3+ all_reduce@ep+
        rank2: all_reduce@dp*3+ all_reduce@fp:64
        rank3: all_reduce@dp*3+ all_reduce@fp:32
        rank4: all_reduce@dp*3+ all_reduce@fp:64
        """,
    )
    assert sorted(faults(run)) == [("mismatch", (3,)), ("missing", (1,))]
    assert "One more fault beside it: rank" in run.headline


def test_waiting_is_followed_through_groups_to_its_root(tmp_path: Path) -> None:
    run = examined(
        tmp_path,
        """
        groups: tp=0,1 up=2,3 dp=0,2 eq=1,3
        rank0: all_reduce@tp*3+ all_reduce@dp+ all_reduce@tp*2+ all_reduce@dp
        rank1: all_reduce@tp*3+ all_reduce@eq+ all_reduce@tp*2+ all_reduce@eq
        rank2: all_reduce@up*3+ all_reduce@dp+ all_reduce@up
        rank3: all_reduce@up*3+ all_reduce@eq+
        """,
    )
    assert faults(run) == [("missing", (3,))]
    assert run.findings[0].waiting == (0, 1, 2)
    assert {wait.rank: wait.targets for wait in run.waits} == {0: (2,), 1: (3,), 2: (3,)}


def test_a_rank_that_died_left_no_dump(tmp_path: Path) -> None:
    run = examined(
        tmp_path,
        """
        groups: dp=0,1,2
        rank0: all_reduce@dp*3+ all_reduce@dp
        rank2: all_reduce@dp*3+ all_reduce@dp
        """,
    )
    assert faults(run) == [("no-dump", (1,))]
    assert run.missing_ranks == (1,)
    assert run.findings[0].confidence == "medium"
    assert run.findings[0].waiting == (0, 2)
    assert "1 of 3 ranks left no dump" in run.warnings[0].message


def test_a_missing_dump_is_no_second_fault(tmp_path: Path) -> None:
    run = examined(
        tmp_path,
        """
        groups: dp=0,1,2,3
        rank0: all_reduce@dp*3+ all_reduce@dp
        rank1: all_reduce@dp*3+
        rank2: all_reduce@dp*3+ all_reduce@dp
        """,
    )
    assert faults(run) == [("missing", (1,))]
    assert run.missing_ranks == (3,)
    assert run.findings[0].waiting == (0, 2)


def test_circle_of_sends_and_receives(tmp_path: Path) -> None:
    run = examined(
        tmp_path,
        """
        groups: pp=0,1,2
        rank0: send(1)@pp+ recv(2)@pp
        rank1: recv(0)@pp+ recv(0)@pp
        rank2: recv(1)@pp
        """,
    )
    assert faults(run) == [("p2p-circle", (0, 1, 2))]
    assert "circle: rank 0 for rank 2 (receive 2 from rank 2 in pp)" in run.findings[0].why


def test_both_send_first(tmp_path: Path) -> None:
    run = examined(
        tmp_path,
        """
        groups: pp=0,1
        rank0: send(1)@pp recv(1)@pp
        rank1: send(0)@pp recv(0)@pp
        """,
    )
    assert faults(run) == [("p2p-circle", (0, 1))]


def test_a_send_larger_than_its_receive(tmp_path: Path) -> None:
    run = examined(
        tmp_path,
        """
        groups: pp=0,1
        rank0: send(1)@pp:64+ send(1)@pp:4096
        rank1: recv(0)@pp:64+ recv(0)@pp:2048
        """,
    )
    assert faults(run) == [("mismatch", (0, 1))]
    assert "4,096 elements sent" in run.findings[0].why


def test_a_gpu_that_never_completes_what_its_partners_did(tmp_path: Path) -> None:
    run = examined(
        tmp_path,
        """
        groups: tp=0,1 ep=0,1,2,3
        rank0: all_reduce@tp*3+ all_to_all@ep*2+ all_reduce@tp+ all_to_all@ep
        rank1: all_reduce@tp*3+ all_to_all@ep*2 all_reduce@tp all_to_all@ep  # enqueued everything
        rank2: all_to_all@ep*2+ all_to_all@ep
        rank3: all_to_all@ep*2+ all_to_all@ep
        """,
    )
    assert faults(run) == [("not-completed", (1,))]
    assert run.findings[0].waiting == (0, 2, 3)


def test_a_broadcast_is_completed_by_its_root_alone(tmp_path: Path) -> None:
    run = examined(
        tmp_path,
        """
        groups: dp=0,1,2
        rank0: all_reduce@dp+ broadcast@dp+ all_reduce@dp
        rank1: all_reduce@dp+ broadcast@dp all_reduce@dp
        rank2: all_reduce@dp+
        """,
    )
    assert faults(run) == [("missing", (2,))]


def test_a_kernel_that_never_started_on_one_rank(tmp_path: Path) -> None:
    run = examined(
        tmp_path,
        """
        groups: dp=0,1,2
        rank0: all_reduce@dp*3+ all_reduce@dp>
        rank1: all_reduce@dp*3+ all_reduce@dp
        rank2: all_reduce@dp*3+ all_reduce@dp>
        """,
    )
    assert faults(run) == [("not-started", (1,))]


def test_a_receive_that_is_posted_early_stops_nobody(tmp_path: Path) -> None:
    # Ranks 0 and 1 post a receive from the next stage and go on; rank 1 stops on its CPU before the all_reduce.
    run = examined(
        tmp_path,
        """
        groups: dp=0,1 pp.0=0,2 pp.1=1,3
        rank0: send(1)@pp.0+ recv(1)@pp.0 all_reduce@dp
        rank1: send(1)@pp.1+ recv(1)@pp.1
        rank2: recv(0)@pp.0+ recv(0)@pp.0
        rank3: recv(0)@pp.1+ recv(0)@pp.1
        """,
    )
    assert faults(run) == [("missing", (1,))]
    assert run.findings[0].waiting == (0, 2, 3)


def test_a_pending_send_hides_no_other_reason(tmp_path: Path) -> None:
    # Rank 1 is blocked in tp by rank 0, which waits for rank 2. The send that it has pending too stops nobody: rank 4
    # came to ep with its own pending.
    run = examined(
        tmp_path,
        """
        groups: tp.0=0,1 tp.1=4,5 ep=0,1,4 pp.0=0,2 pp.1=1,3 pp.2=4,6 last=2,3,6
        rank0: send(1)@pp.0 recv(1)@pp.0 all_reduce@tp.0
        rank1: send(1)@pp.1 all_reduce@tp.0
        rank2: all_reduce@last+
        rank3: all_reduce@last+ all_reduce@last recv(0)@pp.1
        rank4: send(1)@pp.2 all_reduce@tp.1+ all_reduce@ep
        rank5: all_reduce@tp.1+
        rank6: all_reduce@last+ all_reduce@last recv(0)@pp.2
        """,
    )
    assert faults(run) == [("missing", (2,))]
    assert run.findings[0].waiting == (0, 1, 3, 4, 6)


def test_what_all_enqueued_and_nobody_completed_is_not_concluded_from(tmp_path: Path) -> None:
    run = examined(
        tmp_path,
        """
        groups: dp=0,1,2
        rank0: all_reduce@dp*3+ all_reduce@dp
        rank1: all_reduce@dp*3+ all_reduce@dp
        rank2: all_reduce@dp*3+ all_reduce@dp
        """,
    )
    assert run.verdict in ("unknown", "late")
    write(
        tmp_path / "old",
        "groups: dp=0,1\nrank0: all_reduce@dp\nrank1: all_reduce@dp",
    )
    for path in (tmp_path / "old").iterdir():
        os.utime(path, ns=(START_NS, START_NS + 700 * 10**9))
    (timed_out,) = examine_all(tmp_path / "old")
    assert timed_out.verdict == "stuck"
    assert faults(timed_out) == [("stalled", (0, 1))]
    assert timed_out.findings[0].confidence == "low"
    assert timed_out.findings[0].waited_at_most_s == pytest.approx(699.999)


def test_a_slow_rank_that_is_only_late(tmp_path: Path) -> None:
    text = """
        groups: dp=0,1,2
        rank0: all_reduce@dp*5+ all_reduce@dp
        rank1: all_reduce@dp*5+
        rank2: all_reduce@dp*5+ all_reduce@dp
        """
    write(tmp_path, text)
    for path in tmp_path.iterdir():
        os.utime(path, ns=(START_NS, START_NS + 4 * 10**9))
    (run,) = examine_all(tmp_path)
    assert run.verdict == "late"
    assert run.headline.startswith("Not stuck so far: Rank 1 never came")
    assert not run.findings
    assert run.level == "info"


def test_a_rank_that_came_late_and_completed(tmp_path: Path) -> None:
    run = examined(
        tmp_path,
        """
        groups: dp=0,1,2
        rank0: all_reduce@dp*5+ all_reduce@dp+
        rank1: all_reduce@dp*5+ 40s all_reduce@dp+
        rank2: all_reduce@dp*5+ all_reduce@dp+
        """,
    )
    assert run.verdict == "healthy"
    assert any("Rank 1 came 40 s later than usual to collective 6 of dp" in one.message for one in run.warnings)


def test_clocks_that_differ_are_no_lateness(tmp_path: Path) -> None:
    run = examined(
        tmp_path,
        """
        groups: dp=0,1
        rank0: all_reduce@dp*6+
        rank1: 300s all_reduce@dp*6+
        """,
    )
    assert run.verdict == "healthy" and not run.warnings


def test_all_is_well(tmp_path: Path) -> None:
    run = examined(
        tmp_path,
        """
        groups: dp=0,1 tp=0,1
        rank0: all_reduce@dp*3+ all_reduce@tp+
        rank1: all_reduce@dp*3+ all_reduce@tp+
        """,
    )
    assert (run.verdict, run.level, faults(run), run.warnings) == ("healthy", "healthy", [], ())
    assert run.headline == "No rank is stuck: 2 of 2 ranks completed all that they enqueued."


def test_an_overrun_buffer_is_said_and_never_concluded_from(tmp_path: Path) -> None:
    text = """
        groups: dp=0,1 tp=0,1
        rank0: all_reduce@tp*9+ all_reduce@dp
        rank1: all_reduce@tp*3+ lost all_reduce@tp*6+
        """
    run = examined(tmp_path, text, status=False)
    assert run.verdict == "unknown"
    assert not run.findings
    said = " ".join(one.message for one in run.warnings)
    assert "ring buffers of rank 1 were overrun" in said and "nothing is concluded" in said
    # With the group's counters, it is known.
    assert faults(examined(tmp_path, text)) == [("missing", (1,))]


def test_no_status_and_a_whole_buffer(tmp_path: Path) -> None:
    run = examined(
        tmp_path,
        """
        groups: dp=0,1
        rank0: all_reduce@dp+ all_reduce@dp
        rank1: all_reduce@dp+
        """,
        status=False,
    )
    assert faults(run) == [("missing", (1,))]


def test_members_of_a_coalesced_call_have_its_state(tmp_path: Path) -> None:
    content = drawn(
        """
        groups: pp=0,1
        rank0: send(1)@pp recv(1)@pp
        rank1: send(0)@pp recv(0)@pp
        """
    )
    for dump in content.values():
        for entry in dump["entries"]:
            entry["p2p_seq_id"] = 1
        whole = dump["entries"][-1] | {"profiling_name": "nccl:coalesced", "state": "completed", "record_id": 2}
        dump["entries"].append(whole)
    for rank, dump in content.items():
        (tmp_path / f"dump_{rank}").write_bytes(pickle.dumps(dump, protocol=2))
    run = build("job", [load(tmp_path / f"dump_{rank}", rank) for rank in content])
    assert run.verdict == "healthy"


def test_ranks_of_a_whole_node_are_one_finding(tmp_path: Path) -> None:
    run = build(
        "job",
        read(
            tmp_path,
            """
            groups: dp=0,1,2,3
            rank0: all_reduce@dp+ all_reduce@dp
            rank1: all_reduce@dp+ all_reduce@dp
            rank2: all_reduce@dp+
            rank3: all_reduce@dp+
            """,
        ),
    )
    assert faults(run) == [("missing", (2, 3))]


def test_gloo_has_no_gpu_to_look_at(tmp_path: Path) -> None:
    drawing = """
        groups: dp=0,1,2
        rank0: all_reduce@dp*3+ all_reduce@dp
        rank1: all_reduce@dp*3+ all_reduce@dp
        rank2: all_reduce@dp*3+ all_reduce@dp
        """
    dumps = read(tmp_path, drawing)
    for backend, looks_at_gpus in (("nccl", True), ("gloo", False)):
        of_backend = [
            replace(dump, operations=tuple(one._replace(backend=backend) for one in dump.operations)) for dump in dumps
        ]
        (finding,) = build("job", of_backend).findings
        assert finding.cause == "stalled"
        assert any(word in finding.fix for word in ("GPU", "NCCL")) == looks_at_gpus
