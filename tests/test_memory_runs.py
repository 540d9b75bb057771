"""Jobs with snapshots of memory and no traces: what held memory, what a failed request lacked, how ranks differ."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from pathlib import Path

import pytest
from test_memory_snapshot import MB, snapshot
from traces import ranks, write

from tb_ddp_doctor import memory_runs
from tb_ddp_doctor.cli import main
from tb_ddp_doctor.discover.runs import DiscoverError, discover
from tb_ddp_doctor.findings import MemoryRun
from tb_ddp_doctor.plugin.asking import RunFiles, RunQuestion
from tb_ddp_doctor.plugin.examination import Examination
from tb_ddp_doctor.plugin.runs import Snapshots, with_dumps

#: Segments by rank, as `test_memory_snapshot.snapshot` draws them: rank 2 keeps more activations and asks for 3 MB.
DRAWN = {0: "aaoopp..", 1: "aaoopp..", 2: "aaaaaaoopp..", 3: "aaoopp.."}


def job(folder: Path, drawn: Mapping[int, str] = DRAWN, failed: int | None = 2) -> Path:
    """The snapshots of a job, of which one rank fails."""
    folder.mkdir(parents=True)
    for rank, segment in drawn.items():
        made = snapshot(segment, oom=(3, 0) if rank == failed else None)
        (folder / f"oom_rank{rank}.pickle").write_bytes(pickle.dumps(made))
    return folder


def only(logdir: Path) -> MemoryRun:
    (run,) = memory_runs.find(logdir)
    return memory_runs.examine(run)


def test_a_job_that_ran_out_of_memory_says_who_what_and_why(tmp_path: Path) -> None:
    found = only(job(tmp_path / "job"))
    assert (found.name, found.verdict, found.ranks) == ("job", "out-of-memory", (0, 1, 2, 3))
    assert found.headline == "Rank 2 ran out of memory: a request of 3.0 MB failed, with 10 MB allocated."
    (finding,) = found.findings
    assert (finding.severity, finding.ranks) == ("critical", (2,))
    assert "activations 6.0 MB, parameters 2.0 MB and optimizer states 2.0 MB" in finding.why
    assert "For it 2.0 MB would have to be released" in finding.why
    assert finding.fix_parts.first.startswith("Activations take most")
    assert found.said == ("Rank 2 has 4.0 MB more allocated than the median rank, most of it in activations.",)


def test_where_as_much_is_free_in_pieces_the_allocator_is_to_blame(tmp_path: Path) -> None:
    (finding,) = only(job(tmp_path / "job", {0: "aa..a..a"}, failed=0)).findings
    assert "expandable_segments" in finding.fix_parts.code


@pytest.mark.parametrize(
    ("segments", "more", "advice"),
    [
        (["aa..a..a"], {"is_expandable": True}, "torch.cuda.empty_cache()"),
        (["aaaaaaaa", "...x"], {"segment_pool_id": (0, 1)}, "torch.cuda.graph_pool_handle()"),
        (["aaaaaaaa", "...x"], {"device": 1}, "checkpoint(block"),
        # Where little is free, the next request fails, whatever the pieces.
        (["aa.a.a.a" + 64 * "a"], {}, "checkpoint(block"),
        (["a" * 64, "...x"], {"segment_pool_id": (0, 1)}, "checkpoint(block"),
        (["nnnnnnnn"], {}, "_record_memory_history"),
        (["xxxxxxxx"], {}, "release them earlier"),
    ],
)
def test_the_fix_is_for_what_keeps_the_memory(
    tmp_path: Path, segments: list[str], more: dict[str, object], advice: str
) -> None:
    made = snapshot(*segments, oom=(3, 0))
    made["segments"][-1] |= more
    (tmp_path / "oom_rank0.pickle").write_bytes(pickle.dumps(made))
    (finding,) = only(tmp_path).findings
    assert advice in finding.fix and "expandable_segments:True" not in finding.fix


def test_a_server_that_ran_out_of_memory_has_advice_for_servers(tmp_path: Path) -> None:
    made = snapshot("xxxxxxa.", oom=(3, 0))
    where = ("/site-packages/vllm/v1/worker/gpu_model_runner.py", "_allocate_kv_cache_tensors")
    made["segments"][0]["blocks"][0]["frames"] = [{"filename": where[0], "name": where[1], "line": 7}]
    (tmp_path / "oom_rank0.pickle").write_bytes(pickle.dumps(made))
    (finding,) = only(tmp_path).findings
    assert "--gpu-memory-utilization" in finding.fix and "keys and values" in finding.fix


def test_a_job_that_went_on_after_a_failed_request_is_unknown(tmp_path: Path) -> None:
    made = snapshot("aa..", oom=(3, 0))
    made["device_traces"][0].append({"action": "alloc", "addr": 1, "size": 4 * MB})
    (tmp_path / "rank0.pickle").write_bytes(pickle.dumps(made))
    found = only(tmp_path)
    assert (found.verdict, found.findings) == ("unknown", ())
    assert "the job went on" in found.snapshots[0].said[-1]


def test_a_job_in_which_no_request_failed_is_unknown(tmp_path: Path) -> None:
    found = only(job(tmp_path / "job", {0: "aaoo", 1: "aaoo"}, failed=None))
    assert (found.verdict, found.findings) == ("unknown", ())
    assert (
        found.headline
        == "Rank 0 has 4.0 MB allocated of 4.0 MB reserved: optimizer states 2.0 MB and activations 2.0 MB."
    )
    assert found.said == ("The ranks have 4.0 MB to 4.0 MB allocated: none stands out.",)


def test_folders_of_ranks_and_steps_are_of_the_folder_above(tmp_path: Path) -> None:
    for place in ("big/memory_snapshot/step_10", "big/memory_snapshot/step_20", "other/rank_0"):
        job(tmp_path / place, {0: "aa"}, failed=None)
    assert [(run.name, len(run.files)) for run in memory_runs.find(tmp_path)] == [("big", 2), ("other", 1)]
    assert [len(memory_runs.examine(run).snapshots) for run in memory_runs.find(tmp_path)] == [1, 1]


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (("oom_0", "oom_1", "oom_2"), (0, 1, 2)),
        (("oom_1", "oom_2"), ()),
        (("oom_step_0", "oom_step_1"), ()),
        (("before_0", "after_1"), ()),
        (("oom_0_gpu1", "oom_1_gpu0"), (0, 1)),
    ],
)
def test_numbers_that_count_from_0_are_ranks(tmp_path: Path, names: tuple[str, ...], found: tuple[int, ...]) -> None:
    for name in names:
        (tmp_path / f"{name}.pickle").write_bytes(pickle.dumps(snapshot("aa")))
    assert only(tmp_path).ranks == found


def test_what_a_run_of_traces_reads_is_no_job_of_its_own(tmp_path: Path) -> None:
    write(tmp_path / "traced" / "traces", ranks("rank# step |1\n host [fwd]\n gpu [fwd....]", steps=2))
    job(tmp_path / "traced" / "memory_snapshot" / "step_1")
    job(tmp_path / "alone" / "oom")
    found = memory_runs.find(tmp_path)
    assert [run.name for run in found] == ["alone/oom", "traced"]
    assert [run.name for run in memory_runs.alone(found, discover(tmp_path))] == ["alone/oom"]


def test_other_pickles_are_no_snapshots(tmp_path: Path) -> None:
    (tmp_path / "weights.pkl").write_bytes(pickle.dumps({"weights": [1]}))
    assert memory_runs.find(tmp_path) == []
    with pytest.raises(DiscoverError):
        discover(tmp_path / "nowhere")
    assert memory_runs.find(tmp_path / "nowhere") == []


def test_snapshots_of_which_none_can_be_read_cost_their_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rank0.pickle").write_bytes(pickle.dumps({"segments": 3, "device_traces": []}))
    assert main(["diagnose", str(tmp_path), "--no-cache"]) == 2
    assert "None of its 1 snapshots of memory can be read" in " ".join(capsys.readouterr().err.split())


def test_diagnose_prints_a_job_of_snapshots_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logs = job(tmp_path / "logs")
    assert main(["diagnose", str(logs), "--no-cache", "--fail-on", "critical"]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "4 snapshots of torch.cuda.memory, no traces" in said
    assert "Fix: Activations take most" in said
    assert "category rank 0 rank 1 rank 2 rank 3 parameters 2.0 2.0 2.0 2.0" in said
    assert "6.0 60 % activations 1 train.py:7 (forward)" in said
    assert main(["diagnose", str(logs), "--no-cache", "--markdown"]) == 0
    assert "**Rank 2 ran out of memory" in capsys.readouterr().out
    assert main(["diagnose", str(logs), "--no-cache", "--github"]) == 0
    assert "::error title=logs%3A out-of-memory::Rank 2" in capsys.readouterr().out
    assert main(["diagnose", str(logs), "--no-cache", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["runs"] == [] and "stuck" not in told
    (run,) = told["memory_runs"]
    assert sum(run["snapshots"][2]["categories"].values()) == run["snapshots"][2]["allocated"] == 10 * MB


def test_a_job_of_snapshots_is_chosen_by_its_name_and_is_never_the_last_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("one", "two"):
        job(tmp_path / "logs" / name)
    assert main(["diagnose", str(tmp_path / "logs"), "--no-cache", "--json", "--run", "two"]) == 0
    assert [run["name"] for run in json.loads(capsys.readouterr().out)["memory_runs"]] == ["two"]
    assert main(["diagnose", str(tmp_path / "logs"), "--no-cache", "--last"]) == 2
    assert "holds no profiler traces" in " ".join(capsys.readouterr().err.split())


def test_a_file_that_has_not_changed_is_not_opened_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job(tmp_path / "logs")
    found = memory_runs.find(tmp_path)
    monkeypatch.setattr(memory_runs.walk, "begins", lambda *_: pytest.fail("opened again"))
    assert memory_runs.find(tmp_path) == found


def test_a_report_holds_a_job_of_snapshots(tmp_path: Path) -> None:
    logs, page, tests = job(tmp_path / "logs"), tmp_path / "page.html", tmp_path / "junit.xml"
    assert main(["diagnose", str(logs), "--no-cache", "--html", str(page), "--junit", str(tests)]) == 0
    assert "Rank 2 ran out of memory" in page.read_text()
    assert 'name="out-of-memory"' in tests.read_text() and "<failure" in tests.read_text()


def test_the_tab_lists_and_shows_a_job_of_snapshots(tmp_path: Path) -> None:
    logs = job(tmp_path / "logs")
    (run,) = with_dumps(str(logs), lambda: discover(logs))
    assert isinstance(run, Snapshots) and len(run.files) == 4
    examination = Examination()
    shown = examination.show(RunFiles(1, run))
    assert (shown.summary["kind"], shown.summary["verdict"], shown.summary["severity"]) == (
        "memory", "out-of-memory", "critical",
    )  # fmt: skip
    answer = examination.reply(RunQuestion("detail", RunFiles(1, run), {"of": "memory"}))
    assert (answer.code, json.loads(answer.content)["error"]) == (409, "logs has snapshots of memory and no steps.")
