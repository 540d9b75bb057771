"""What NCCL's example profiler plugin writes says what NCCL chose, and is no rank's trace."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_nccl import BOUND, are_matched, diagnose, last_call
from traces import ranks, write

from tb_ddp_doctor.discover.recorders.nccl_logs import NcclLogs
from tb_ddp_doctor.discover.runs import discover
from tb_ddp_doctor.findings import NcclCalls, NcclChoice
from tb_ddp_doctor.nccl_logs.read import read_logs


def profile(
    communicator: int,
    sizes: list[int],
    *,
    name: str = "AllReduce",
    pid: str = "7",
    rank: int = 0,
    type_: str = "ncclFloat32",
    algorithm: str = "RING",
    channels: str = "nChannels",
) -> str:
    """The file of a communicator's rank with a call for each size, in elements."""
    lines = ["["]
    for number, size in enumerate(sizes):
        place = f'"id": {number}, "pid": {pid}, "tid": 1, "ts": {number}.500000'
        lines += [
            f'{{"name": "Group", "cat": "GROUP", "ph": "b", {place}, "args": {{"groupId": {number}}}}},',
            f'{{"name": "{name}", "cat": "COLL", "ph": "b", {place}, "args": {{"SeqNum": {number}, "CommHash": '
            f'{communicator}, "Rank": {rank}, "Count": {size}, "Datatype": "{type_}", "Algorithm": "{algorithm}", '
            f'"Protocol": "LL", "{channels}": 2}}}},',
            f'{{"name": "KernelCh", "cat": "GPU", "ph": "b", {place}, "args": {{"Channel": 0}}}},',
            f'{{"name": "{name}", "cat": "COLL", "ph": "e", {place}}},',
            f'{{"name": "Group", "cat": "GROUP", "ph": "e", {place}}},',
        ]
    return "\n".join([*lines, "{}]"])


@pytest.mark.parametrize("channels", ["nChannels", "nMaxChannels"])
def test_calls_and_choices_are_read(tmp_path: Path, channels: str) -> None:
    path = tmp_path / "prof_123_0.json"
    path.write_text(profile(123, [10, 20, 10], type_="ncclBfloat16", channels=channels))
    network = read_logs([path], {"7"}, 2)
    assert network
    assert network.calls == (NcclCalls("all_reduce", 20, 2), NcclCalls("all_reduce", 40, 1))
    assert network.choices == (
        NcclChoice("all_reduce", 20, "ring", "LL", 2, 2),
        NcclChoice("all_reduce", 40, "ring", "LL", 2, 1),
    )
    assert network.warnings == ()


def test_a_choice_has_the_larger_side_of_a_collective(tmp_path: Path) -> None:
    """As NCCL's log does."""
    paths = [tmp_path / f"prof_5_{rank}.json" for rank in range(4)]
    for rank, path in enumerate(paths):
        path.write_text(profile(5, [10], name="AllGather", rank=rank))
    network = read_logs(paths, {"7"}, 4)
    assert network
    assert network.calls == (NcclCalls("all_gather", 40, 4),)
    assert network.choices == (NcclChoice("all_gather", 160, "ring", "LL", 2, 4),)


def test_profiles_of_other_jobs_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "prof_5_0.json"
    path.write_text(profile(5, [10], pid="8"))
    assert read_logs([path], {"7"}, 2) is None


def test_calls_are_matched_to_collectives_by_their_number(tmp_path: Path) -> None:
    inside, across = [1, 2, 3, 5] * 9, [2, 1, 5, 3] * 9
    paths = [tmp_path / "prof_10_0.json", tmp_path / "prof_11_0.json"]
    paths[0].write_text(profile(10, inside))
    paths[1].write_text(profile(11, across, algorithm="TREE"))
    are_matched(paths, inside, across)


def test_damaged_calls_are_left_out_and_said(tmp_path: Path) -> None:
    path = tmp_path / "prof_5_0.json"
    text = profile(5, [10, 20, 30]).replace('"Count": 20', '"Count": ' + "9" * 40).replace('"Count": 30', '"Cou')
    path.write_text(text)
    network = read_logs([path], {"7"}, 2)
    assert network
    assert network.calls == (NcclCalls("all_reduce", 40, 1),)
    assert network.warnings == ("prof_5_0.json: 2 of the calls in this profile are damaged and left out",)


def test_a_profile_that_ends_early_has_the_calls_before(tmp_path: Path) -> None:
    path = tmp_path / "prof_5_0.json"
    text = profile(5, [10, 20])
    path.write_text(text[: text.index('"Count": 20')])
    network = read_logs([path], {"7"}, 2)
    assert network and network.calls == (NcclCalls("all_reduce", 40, 1),)


@pytest.mark.parametrize("name", ["prof_rank0_123_0.json", "rank_0_1.json", "nccl_5_1.json"])
def test_a_profile_is_no_trace_of_a_rank(tmp_path: Path, name: str) -> None:
    folder = write(tmp_path / "job", ranks(BOUND, BOUND))
    before = [file.path for file in discover(folder)[0].files]
    (folder / name).write_text(profile(123, [10]))
    assert [file.path for file in discover(folder)[0].files] == before
    (tmp_path / "alone").mkdir()
    (tmp_path / "alone" / name).write_text(profile(123, [10]))
    assert discover(tmp_path / "alone") == []


def test_a_finding_says_what_nccl_chose_for_its_group(tmp_path: Path) -> None:
    folder = write(tmp_path / "job", ranks(BOUND, BOUND), sequence=True)
    pid, last, elements = last_call(folder)
    (folder / "prof_10_0.json").write_text(profile(10, [elements] * (last + 1), pid=pid, algorithm="TREE"))
    # Another communicator has more calls of this kind and size, at other numbers.
    (folder / "prof_11_0.json").write_text(profile(11, [5] * (last + 20) + [elements] * 100, pid=pid))
    (found,) = [one for one in diagnose(folder).findings if one.rule == "communication-bound"]
    assert "For all_reduce NCCL chose tree, LL, " in found.why


@pytest.mark.parametrize(
    ("name", "matches"),
    [
        ("prof_1234567890123456789_0.json", True),
        ("prof-ab12cd-31.json", True),
        ("nccl_settings.json", False),
        ("config.json", False),
        ("host_1.17.pt.trace.json", False),
    ],
)
def test_profiles_are_told_by_their_names(name: str, matches: bool) -> None:
    assert NcclLogs().matches(name) is matches
