"""What is said of Flight Recorder dumps: terminal, JSON, Markdown, report, from Python, and beside traces."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import pytest
from dumps import drawn, write
from test_report import JOB, Tags
from traces import ranks
from traces import write as write_traces

import tb_ddp_doctor
from tb_ddp_doctor import cli
from tb_ddp_doctor.discover.runs import DiscoverError
from tb_ddp_doctor.report import html, schema
from tb_ddp_doctor.stuck import text
from tb_ddp_doctor.stuck.run import StuckError, examine_all

REAL = Path(__file__).parent / "flight_recorder"
HOSTILE = "</script><script>alert(1)</script> `a` | b\x1b[31m\n# c <img src=x onerror=g>"
STUCK = """
    groups: dp=0,1,2
    rank0: all_reduce@dp+ all_reduce@dp
    rank1: all_reduce@dp+
    rank2: all_reduce@dp+ all_reduce@dp
    """
WELL = """
    groups: dp=0,1
    rank0: all_reduce@dp+
    rank1: all_reduce@dp+
    """


def test_the_terminal_names_the_ranks_and_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["diagnose", str(REAL / "gpu_error_1st"), "--no-cache"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "Stuck: Rank 12 launched _all_gather_base 42806 of TENSOR_MODEL_PARALLEL_GROUP" in said
    assert "One more fault beside it: rank 14." in said
    assert "Look for GPU faults of rank 14" in said
    assert "rank 8 rank 12 came, does not complete receive 13694 from rank 12" in said
    assert "EXPERT_MODEL_PARALLEL_GROUP (74) ranks 12-15 20538 rank 12 at 20536" in said


def test_what_shows_the_ranks_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "hang").mkdir()
    for rank, function in enumerate(("save", "all_reduce", "all_reduce")):
        frames = f"    {function} (x.py:1)\n    step (train.py:30)"
        stack = f'Process 7: python\nPython v3.11.2\n\nThread 7 (active): "MainThread"\n{frames}\n'
        (tmp_path / "hang" / f"rank_{rank}.stacks.txt").write_text(stack.replace("x.py", "torch/distributed/c10d.py"))
    assert cli.main(["diagnose", str(tmp_path / "hang"), "--no-cache"]) == 0
    assert "3 of 3 ranks, Python stacks\n" in capsys.readouterr().out
    assert cli.main(["diagnose", str(REAL / "gpu_error_1st"), "--no-cache"]) == 0
    assert "16 of 16 ranks, Flight Recorder dumps, NCCL 2.27.3\n" in capsys.readouterr().out


def test_sentences_are_wrapped_between_words_that_do_not_belong_together(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.main(["diagnose", str(REAL / "gpu_error_1st"), "--no-cache"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(line == line.rstrip() for line in lines)
    # Not in the cells of tables, which are narrower.
    assert not any(re.search(r"^  .*(\brank|\d of)$", line) for line in lines)


def test_commands_are_not_wrapped(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    assert cli.main(["diagnose", str(REAL / "gpu_error_1st"), "--no-cache"]) == 0
    commands = ["dmesg -T | grep -i xid", "nvidia-smi -q | grep -iE -A4 'ecc errors|retired|remapped'"]
    assert set(commands) <= {line.strip() for line in capsys.readouterr().out.splitlines()}


@pytest.mark.parametrize(
    ("odd", "said", "process"),
    [
        ([9], "what rank 9 does: it waits in no collective. Its Python stack shows", "-e RANK=9 /proc"),
        ([9, 14], "what ranks 9 and 14 do: they wait in no collective. Their Python", "-e RANK=9 -e RANK=14 /proc"),
    ],
)
def test_advice_agrees_with_the_number_of_ranks_and_finds_their_processes(
    odd: list[int], said: str, process: str
) -> None:
    advice = text.advice("missing", odd)
    assert said in advice and process in advice
    assert not re.search(r"[\[\]{}|]", advice.partition("\n\n")[0])


@pytest.mark.parametrize(
    ("drawing", "limit", "status"),
    [(STUCK, "critical", 1), (STUCK, None, 0), (WELL, "info", 0), ("groups: dp=0,1\nrank0: \nrank1: ", "info", 3)],
)
def test_exit_status(tmp_path: Path, drawing: str, limit: str | None, status: int) -> None:
    write(tmp_path / "logs", drawing, status=False)
    options = ["--fail-on", limit] if limit else []
    assert cli.main(["diagnose", str(tmp_path / "logs"), "--no-cache", *options]) == status


def test_dumps_that_cannot_be_read_are_input_that_cannot_be_diagnosed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "nccl_trace_rank_0").write_bytes(b"\x80\x02}X\x07\x00\x00\x00version")
    assert cli.main(["diagnose", str(tmp_path), "--no-cache"]) == 2
    assert "None of its 1 Flight Recorder dumps can be read." in capsys.readouterr().err


def test_json_is_as_its_schema_says(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    assert cli.main(["diagnose", str(REAL), "--json", "--no-cache"]) == 0
    told = json.loads(capsysbinary.readouterr().out)
    jsonschema.validate(told, schema.schema("diagnosis"))
    assert told["runs"] == []
    assert {one["name"]: [each["ranks"] for each in one["findings"]] for one in told["stuck"]} == {
        "gpu_error_1st": [[12], [14]],
        "lock_gil_2nd": [[10], [15]],
    }


def test_traces_and_dumps_of_a_job_lead_to_each_other(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    write_traces(tmp_path / "job", ranks(JOB, JOB))
    write(tmp_path / "job" / "comm_traces", STUCK, "rank_")
    write(tmp_path / "other" / "comm_traces", WELL, "rank_")
    assert cli.main(["diagnose", str(tmp_path), "--json", "--no-cache"]) == 0
    told = json.loads(capsysbinary.readouterr().out)
    assert [run["name"] for run in told["runs"]] == ["job"]
    assert {one["name"]: one["traces"] for one in told["stuck"]} == {
        "job/comm_traces": ["job"],
        "other/comm_traces": [],
    }


def test_dumps_beside_traces_in_one_folder_have_a_name_of_their_own(tmp_path: Path) -> None:
    write(tmp_path / "job", STUCK)
    (run,) = examine_all(tmp_path, {"job"})
    assert (run.name, run.traces) == ("job (dumps)", ("job",))


def test_without_dumps_the_json_is_as_before(tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    write_traces(tmp_path / "job", ranks(JOB, JOB))
    assert cli.main(["diagnose", str(tmp_path), "--json", "--no-cache"]) == 0
    assert set(json.loads(capsysbinary.readouterr().out)) == {"schema_version", "runs"}


def _hostile(folder: Path) -> Path:
    import pickle

    folder.mkdir()
    for rank, content in drawn(STUCK).items():
        content["pg_config"]["0"]["desc"] = HOSTILE
        for entry in content["entries"]:
            entry["process_group"] = ("0", HOSTILE)
            entry["profiling_name"] = f"nccl:{HOSTILE}"
            entry["frames"] = [{"name": HOSTILE, "filename": HOSTILE, "line": 3}]
        (folder / f"dump_{rank}").write_bytes(pickle.dumps(content, protocol=2))
    return folder


def test_text_from_a_dump_is_not_obeyed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = _hostile(tmp_path / "logs")
    assert cli.main(["diagnose", str(folder), "--html", str(tmp_path / "report.html")]) == 0
    assert "\x1b[31m" not in capsys.readouterr().out
    assert cli.main(["diagnose", str(folder), "--markdown"]) == 0
    said = capsys.readouterr().out
    assert "<script>" not in said and "<img" not in said
    tags = [tag for tag, _ in Tags((tmp_path / "report.html").read_text()).found]
    assert tags.count("script") == 2 and "img" not in tags


def test_markdown_and_report_hold_the_findings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["diagnose", str(REAL / "lock_gil_2nd"), "--markdown", "--html", str(tmp_path / "a.html")]) == 0
    said = capsys.readouterr().out
    assert "**Stuck: Rank 10 never came to all\\_to\\_all 20947" in said
    assert "| ranks 12-14 | rank 15 | has not come |" in said
    assert "py-spy dump" in said
    page = (tmp_path / "a.html").read_text()
    assert "Stuck: Rank 10 never came" in page


def test_a_report_has_an_entry_for_each_job() -> None:
    page = html.page([], str(REAL), examine_all(REAL))
    assert page.count('"kind":"dumps"') == 2


def test_from_python(tmp_path: Path) -> None:
    gpu, gil = tb_ddp_doctor.examine_dumps(REAL)
    assert (gpu.verdict, gil.findings[0].ranks) == ("stuck", (10,))
    assert "Stuck: Rank 12" in gpu._repr_html_()
    with pytest.raises(DiscoverError, match="holds no Flight Recorder dumps"):
        tb_ddp_doctor.examine_dumps(tmp_path)
    (tmp_path / "dump_0").write_bytes(b"\x80\x02}X\x07\x00\x00\x00version")
    with pytest.raises(StuckError):
        tb_ddp_doctor.examine_dumps(tmp_path)
    write(tmp_path / "well", WELL)
    with pytest.warns(UserWarning, match="None of its 1"):
        (well,) = tb_ddp_doctor.examine_dumps(tmp_path)
    assert well.verdict == "healthy"
