"""`ddp-doctor`: what it prints, and how it exits."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace
from rich.console import Console
from traces import draw, ranks, write

from tb_ddp_doctor import __version__
from tb_ddp_doctor.cli import main
from tb_ddp_doctor.commands.output import progress
from tb_ddp_doctor.digest.model import MEANING
from tb_ddp_doctor.findings import OWNERS, PHASES, SCHEMA_VERSION
from tb_ddp_doctor.report.escape import printable, printable_lines
from tb_ddp_doctor.rules import CATALOGUE

HEALTHY = """
    rank# step |1
          gpu  [fwd....][bwd.]
          nccl                [ar........]
"""
SLOW = """
    rank# step |1
          gpu  [fwd........][bwd.]
          nccl                    [ar....]
"""
#: What a terminal obeys: colours, its title, moving the cursor.
ESCAPES = "\x1b[31mred\x1b]0;title\x07\x9b2J\r\b"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DDP_DOCTOR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def slow(tmp_path: Path) -> Path:
    return write(tmp_path / "job", ranks(HEALTHY, SLOW, HEALTHY))


@pytest.fixture
def healthy(tmp_path: Path) -> Path:
    return write(tmp_path / "job", ranks(HEALTHY, HEALTHY))


def diagnosed(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    """The only run in what `--json` prints."""
    main(["diagnose", *map(str, arguments), "--json"])
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    assert isinstance(run, dict)
    return run


# ------------------------------------------------------------------------------------------------- which run


def names(capsys: pytest.CaptureFixture[str], *arguments: object) -> list[str]:
    """The runs in what `--json` prints."""
    assert main(["diagnose", *map(str, arguments), "--json"]) == 0
    return [run["name"] for run in json.loads(capsys.readouterr().out)["runs"]]


@pytest.fixture
def captures(tmp_path: Path) -> Path:
    """Two jobs; one has two starts with captures, whose folders were copied in another order than they were made."""
    logs = tmp_path / "logs"
    folders = ["train/start_2/step_100", "train/step_2000", "train/step_900", "old"]
    for age_s, folder in enumerate(folders):
        write_at(write(logs / folder, HEALTHY.replace("#", "0")), 1_800_000_000 - age_s)
    return logs


def write_at(folder: Path, time_s: int) -> None:
    """Give the traces of a folder another time, which torch writes into their names."""
    for path in folder.iterdir():
        path.rename(path.with_name(re.sub(r"\d{19}", f"{time_s}000000000", path.name)))


def test_one_run_of_many_is_diagnosed_by_its_name(captures: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(names(capsys, captures)) == 4
    assert names(capsys, captures, "--run", "train/step_900") == ["train/step_900"]


def test_the_last_run_is_the_newest_capture_of_the_last_start(
    captures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert names(capsys, captures, "--last") == ["train/start_2/step_100"]
    shutil.rmtree(captures / "train" / "start_2")
    # The file of step 900 is newer than that of step 2000 once the directory was copied.
    write_at(captures / "train" / "step_900", 1_900_000_000)
    assert names(capsys, captures, "--last") == ["train/step_2000"]


def test_the_last_run_is_of_the_job_that_wrote_last(captures: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_at(captures / "old", 1_900_000_000)
    assert names(capsys, captures, "--last") == ["old"]


def test_the_last_run_of_one_is_that_one(slow: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert names(capsys, slow, "--last") == ["job"]


def test_a_run_that_is_not_there_exits_with_2(captures: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", str(captures), "--run", "train/step_901"]) == 2
    assert "There is no run 'train/step_901'. Did you mean 'train/step_900'?" in capsys.readouterr().err


def test_a_job_of_dumps_is_chosen_by_its_name_too(captures: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(Path(__file__).parent / "flight_recorder" / "gpu_error_1st", captures / "hung")
    assert main(["diagnose", str(captures), "--run", "hung", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["runs"], [job["name"] for job in found["stuck"]]) == ([], ["hung"])


# ------------------------------------------------------------------------------------------------- cache


def test_the_cache_says_its_size_and_is_cleared(slow: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["diagnose", str(slow)])
    cache = tmp_path / "cache"
    other = next(cache.glob("??")) / "notes.txt"
    other.write_text("of somebody else")
    capsys.readouterr()
    assert main(["cache"]) == 0
    assert re.fullmatch(rf"{cache}: \d+ entries, [\d.]+ kB\n", capsys.readouterr().out)
    assert main(["cache", "--clear"]) == 0
    assert "removed" in capsys.readouterr().out
    assert [path for path in cache.glob("??/*") if path != other] == []
    assert other.exists()
    assert main(["cache"]) == 0
    assert capsys.readouterr().out == f"{cache}: 0 entries, 0 bytes\n"


# ------------------------------------------------------------------------------------------------- exit status


def test_alone_it_says_where_to_begin(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "ddp-doctor diagnose LOGDIR" in capsys.readouterr().out


def test_it_exits_with_0_whatever_it_finds(slow: Path) -> None:
    assert main(["diagnose", str(slow)]) == 0


@pytest.mark.parametrize(("severity", "status"), [("info", 1), ("minor", 1), ("major", 1), ("critical", 0)])
def test_fail_on_exits_with_1_from_that_severity_on(slow: Path, severity: str, status: int) -> None:
    assert main(["diagnose", str(slow), "--fail-on", severity]) == status


def test_fail_on_passes_a_healthy_job(healthy: Path) -> None:
    assert main(["diagnose", str(healthy), "--fail-on", "info"]) == 0


def test_fail_on_exits_with_3_where_the_traces_cannot_tell(tmp_path: Path) -> None:
    few = write(tmp_path / "few", ranks(HEALTHY, HEALTHY), world_size=8)
    assert main(["diagnose", str(few), "--fail-on", "critical"]) == 3
    assert main(["diagnose", str(few)]) == 0


@pytest.mark.parametrize(("severity", "status"), [("info", 1), ("minor", 1), ("major", 1), ("critical", 0)])
def test_what_nothing_explains_fails_by_its_share(slow: Path, severity: str, status: int) -> None:
    unseen = ["--set", "straggler.min_excess=0.5"]
    assert main(["diagnose", str(slow), *unseen, "--fail-on", severity]) == status


def test_a_finding_fails_before_what_cannot_be_told(tmp_path: Path) -> None:
    write(tmp_path / "few", ranks(HEALTHY, HEALTHY), world_size=8)
    write(tmp_path / "slow", ranks(HEALTHY, SLOW, HEALTHY))
    assert main(["diagnose", str(tmp_path), "--fail-on", "minor"]) == 1
    assert main(["diagnose", str(tmp_path), "--fail-on", "critical"]) == 3


def test_what_cannot_be_read_fails_before_what_cannot_be_told(tmp_path: Path) -> None:
    write(tmp_path / "few", ranks(HEALTHY, HEALTHY), world_size=8)
    nonsense(tmp_path / "broken", "no trace")
    assert main(["diagnose", str(tmp_path), "--fail-on", "critical"]) == 2


def command(*arguments: object, **options: Any) -> subprocess.Popen[bytes]:
    code = "import sys; from tb_ddp_doctor.cli import main; sys.exit(main())"
    return subprocess.Popen([sys.executable, "-c", code, *map(str, arguments)], stderr=subprocess.PIPE, **options)


@pytest.mark.parametrize("form", [[], ["--json"], ["--markdown"]], ids=["text", "json", "markdown"])
def test_a_reader_that_has_seen_enough_is_no_failure(slow: Path, form: list[str]) -> None:
    process = command("diagnose", slow, *form, stdout=subprocess.PIPE)
    assert process.stdout
    process.stdout.close()
    _, errors = process.communicate(timeout=300)
    assert (process.returncode, errors) == (0, b"")


def test_a_closed_standard_output_is_told(slow: Path) -> None:
    process = command("diagnose", slow, preexec_fn=lambda: os.close(1))
    _, errors = process.communicate(timeout=300)
    assert (process.returncode, errors) == (
        2,
        b"ddp-doctor: standard output is closed: there is nowhere to print to.\n",
    )


def test_the_version_says_the_reader_and_the_numbers_of_digests_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    numbers = rf"digests {MEANING}\.[0-9a-f]{{16}}, JSON schema {SCHEMA_VERSION}"
    assert re.fullmatch(rf"ddp-doctor {__version__} \((native|msgspec) reader, {numbers}\)\n", capsys.readouterr().out)


def test_a_directory_without_a_name_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", ""]) == 2
    assert capsys.readouterr().err == "ddp-doctor: The name of the log directory is empty.\n"


@pytest.mark.parametrize("size", ["nan", "-1", "inf", "much"])
def test_a_cache_has_a_size_that_makes_sense(slow: Path, capsys: pytest.CaptureFixture[str], size: str) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["diagnose", str(slow), f"--cache-size={size}"])
    assert f"argument --cache-size: takes a size in GiB, 0 or more, not '{size}'" in capsys.readouterr().err


def nonsense(folder: Path, kind: str) -> Path:
    match kind:
        case "absent":
            return folder / "absent"
        case "empty":
            folder.mkdir()
        case "no trace":
            folder.mkdir()
            (folder / "rank0.pt.trace.json").write_text("not json")
        case "a file":
            folder.write_text("hello")
        case "nulls":
            folder.mkdir()
            (folder / "rank0.pt.trace.json").write_bytes(b"\0" * 4096)
        case "events of no kind":
            folder.mkdir()
            (folder / "rank0.pt.trace.json").write_text('{"traceEvents": [{"ph": "X"}, {"ph": 5}, null]}')
    return folder


@pytest.mark.parametrize("kind", ["absent", "empty", "no trace", "a file", "nulls", "events of no kind"])
@pytest.mark.parametrize("json_too", [[], ["--json"]], ids=["text", "json"])
def test_nonsense_exits_with_2_and_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, json_too: list[str]
) -> None:
    assert main(["diagnose", str(nonsense(tmp_path / "logs", kind)), *json_too]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("ddp-doctor: ") and output.err.rstrip().endswith(".")
    assert "Traceback" not in output.err


@pytest.mark.parametrize(
    "assignment", ["straggler.min_excess", "straggler.min_excess=much", "=", "straggler.min_excess=nan", "a.b=inf"]
)
def test_a_setting_that_is_none_exits_with_2(slow: Path, capsys: pytest.CaptureFixture[str], assignment: str) -> None:
    assert main(["diagnose", str(slow), "--set", assignment]) == 2
    assert "--set takes RULE.THRESHOLD=NUMBER" in capsys.readouterr().err


@pytest.mark.parametrize("assignment", ["nothing.min_excess=1", "straggler.nothing=1", "min_excess=1"])
def test_a_setting_of_nothing_exits_with_2(slow: Path, capsys: pytest.CaptureFixture[str], assignment: str) -> None:
    assert main(["diagnose", str(slow), "--set", assignment]) == 2
    assert re.search("There is no rule|has no threshold", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("assignment", "sentence"),
    [
        ("straggler.min_steps=3", "straggler.min_steps is from 0 to 1 (of the steps), not 3."),
        ("straggler.min_excess=-1", "straggler.min_excess is from 0 to 1 (of the step), not -1."),
        ("slow-link.min_slowdown=-0.5", "slow-link.min_slowdown is 0 or more (times as long), not -0.5."),
    ],
)
def test_a_setting_that_makes_no_sense_exits_with_2(
    slow: Path, capsys: pytest.CaptureFixture[str], assignment: str, sentence: str
) -> None:
    assert main(["diagnose", str(slow), "--set", assignment]) == 2
    assert sentence in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("arguments", [["diagnose"], ["nonsense"], ["diagnose", ".", "--fail-on", "never"]])
def test_wrong_arguments_exit_with_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)


def test_a_run_that_cannot_be_read_hides_no_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "logs" / "good", ranks(HEALTHY, SLOW))
    (tmp_path / "logs" / "bad").mkdir()
    (tmp_path / "logs" / "bad" / "rank0.pt.trace.json").write_text("not json")
    assert main(["diagnose", str(tmp_path / "logs"), "--json"]) == 0
    output = capsys.readouterr()
    assert [run["name"] for run in json.loads(output.out)["runs"]] == ["good"]
    assert "bad" in output.err
    assert main(["diagnose", str(tmp_path / "logs"), "--fail-on", "minor"]) == 1
    assert main(["diagnose", str(tmp_path / "logs"), "--fail-on", "critical"]) == 2


# -------------------------------------------------------------------------------------------------------- JSON

NUMBER = (int, float)
EVIDENCE = {"rank": int, "step": int, "start_ns": int, "end_ns": int, "what": str, "source": (dict, type(None))}
EVIDENCE |= {"op_before": str, "op_after": str}
MEASUREMENT = {
    "name": str,
    "value": NUMBER,
    "unit": str,
    "ranks": [int],
    "steps": [int],
    "count": (*NUMBER, type(None)),
    "owner": (str, type(None)),
}
FINDING = {
    "id": str,
    "rule": str,
    "severity": str,
    "cost_ms": NUMBER,
    "alone_ms": NUMBER,
    "range_ms": [NUMBER],
    "ranks": [int],
    "steps": [int],
    "cause": (str, type(None)),
    "confidence": str,
    "title": str,
    "headline": str,
    "why": str,
    "fix": str,
    "evidence": [EVIDENCE],
    "measurements": [MEASUREMENT],
    "thresholds": [{"name": str, "value": NUMBER, "unit": str, "reason": str}],
    "together": (dict, type(None)),
    "headline_parts": (dict, type(None)),
    "fix_parts": {"first": str, "advice": str, "ended": str, "code": str},
    "modules": [str],
}
UNKNOWN = (*NUMBER, type(None))
TRAFFIC = {
    "kind": str,
    "group": str,
    "parallelism": str,
    "ranks": [int],
    "size": int,
    "dtypes": [str],
    "calls": NUMBER,
    "megabytes": UNKNOWN,
    "wait_ms": NUMBER,
    "transfer_ms": NUMBER,
    "hidden_share": NUMBER,
    "algorithm_gb_s": UNKNOWN,
    "bus_gb_s": UNKNOWN,
    "fit": (dict, type(None)),
}
PIECE = {
    "rank": int,
    "owner": str,
    "phase": (str, type(None)),
    "what": str,
    "start_ms": NUMBER,
    "ms": NUMBER,
}
RUN = {
    "name": str,
    "world_size": int,
    "ranks": [int],
    "missing_ranks": [int],
    "incomplete": [str],
    "steps": [int],
    "step_ms": NUMBER,
    "verdict": str,
    "headline": str,
    "account": {
        "method": str,
        "total_ns": int,
        "lines": [
            {"kind": str, "finding": (str, type(None)), "total_ns": int, "ms": NUMBER, "share": NUMBER},
        ],
        "unexplained": (dict, type(None)),
        "left_out": [{"step": int, "ms": NUMBER, "reason": str}],
        "no_replay": str,
        "floor_lines": [
            {
                "kind": str,
                "total_ns": int,
                "ms": NUMBER,
                "share": NUMBER,
                "range_ms": [NUMBER],
                "by_class": dict,
                "note": str,
            }
        ],
    },
    "budget_ms": {"0": dict.fromkeys(OWNERS, NUMBER)},
    "phases_ms": {"0": dict.fromkeys(PHASES, NUMBER)},
    "host_phases_ms": {"0": dict.fromkeys(PHASES, NUMBER)},
    "clock": {"residual_us": UNKNOWN, "offset_us": {"0": NUMBER}},
    "communication": [TRAFFIC],
    "network": (dict, type(None)),
    "setting": dict,
    "contradictions": [str],
    "headline_parts": (dict, type(None)),
    "headline_rest": str,
    "memory": (dict, type(None)),
    "memory_snapshots": [dict],
    "findings": [FINDING],
    "opportunities": [FINDING],
    "rates": (dict, type(None)),
    "mesh": (dict, type(None)),
    "layers": (dict, type(None)),
    "config": list,
    "kind": str,
    "iterations": list,
    "outcomes": [{"rule": str, "status": str, "reason": str}],
    "warnings": [{"file": str, "message": str, "kind": str}],
    "critical_path": [{"step": int, "start_ns": int, "end_ns": int, "pieces": [PIECE]}],
}


def conforms(value: Any, schema: Any, path: str = "") -> None:
    """Check a JSON value against keys and types; lists and objects keyed by ranks have one schema for all items."""
    if isinstance(schema, list):
        assert isinstance(value, list), path
        for item in value:
            conforms(item, schema[0], f"{path}[]")
    elif isinstance(schema, dict) and list(schema) == ["0"]:
        assert all(key.isdigit() for key in value), path
        for key in value:
            conforms(value[key], schema["0"], f"{path}.{key}")
    elif isinstance(schema, dict):
        assert isinstance(value, dict) and set(value) == set(schema), path
        for key, of_key in schema.items():
            conforms(value[key], of_key, f"{path}.{key}")
    else:
        assert isinstance(value, schema) and not isinstance(value, bool), (path, value)


@pytest.mark.parametrize(
    "drawing",
    [
        ranks(HEALTHY, SLOW, HEALTHY),
        ranks(HEALTHY, HEALTHY),
        ranks(SLOW),
        "rank0 host [a]",
        "rank1 gpu [a]\nrank4 gpu [a]",
    ],
    ids=["finding", "healthy", "one rank", "one event", "missing ranks"],
)
def test_json_has_the_keys_and_types_of_the_schema(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], drawing: str
) -> None:
    assert main(["diagnose", str(write(tmp_path / "job", drawing)), "--json"]) == 0
    output = capsys.readouterr()
    report = json.loads(output.out)
    conforms(report, {"schema_version": int, "runs": [RUN]})
    assert report["schema_version"] == 2
    assert output.err == ""


def test_json_names_the_straggler(slow: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = diagnosed(capsys, slow)
    assert run["verdict"] == "straggler"
    assert run["findings"][0]["ranks"] == [1]
    assert run["findings"][0]["severity"] in ("info", "minor", "major", "critical")
    assert {outcome["rule"] for outcome in run["outcomes"]} == set(CATALOGUE)
    ended = {outcome["status"] for outcome in run["outcomes"]}
    assert ended <= {"finding", "opportunity", "clear", "not-applicable", "error"}


def test_json_has_what_each_collective_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    two_sizes = HEALTHY.replace("[ar........]", "[ar@1....][ar@8.............]")
    (traffic,) = diagnosed(capsys, write(tmp_path / "job", ranks(two_sizes, two_sizes)))["communication"]
    fit = traffic.pop("fit")
    assert traffic == {
        "kind": "all_reduce",
        "group": "0",
        "parallelism": "",
        "ranks": [0, 1],
        "size": 2,
        "dtypes": ["Float"],
        "calls": 2,
        "megabytes": 36,
        "wait_ms": 0,
        "transfer_ms": 29,
        "hidden_share": 0,
        "algorithm_gb_s": pytest.approx(36 / 29),
        "bus_gb_s": pytest.approx(36 / 29),
    }
    assert fit == {
        "alpha_us": pytest.approx(10e3 - 9e3 / 7),
        "bandwidth_gb_s": pytest.approx(28 / 9),
        "r2": pytest.approx(1),
        "residual_us": pytest.approx(0, abs=1e-3),
        "spread": 8,
        "significant": True,
    }


def test_json_has_no_communication_where_none_was_matched(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert diagnosed(capsys, write(tmp_path / "job", ranks(HEALTHY)))["communication"] == []


def test_json_is_the_only_thing_on_standard_output(slow: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tb_ddp_doctor.cli", "diagnose", str(slow), "--json"]
    done = subprocess.run(command, capture_output=True, check=True)
    assert json.loads(done.stdout)["schema_version"] == 2
    assert done.stderr == b""


def test_names_that_are_no_text_are_printed_on_any_terminal(tmp_path: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/b\xffd"))
    write(folder, ranks(HEALTHY, SLOW), world_size=3)
    ascii_only = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0"}
    for options in ([], ["--json"]):
        command = [sys.executable, "-m", "tb_ddp_doctor.cli", "diagnose", str(folder), *options]
        done = subprocess.run(command, capture_output=True, check=False, env=ascii_only)
        assert (done.returncode, done.stderr.decode()) == (0, "")


def test_a_reader_that_stops_early_sees_no_traceback(slow: Path) -> None:
    for option in ("", "--json"):
        command = f"{sys.executable} -m tb_ddp_doctor.cli diagnose {slow} {option} | true"
        done = subprocess.run(["bash", "-c", command], capture_output=True, check=True)
        assert done.stderr == b""


# -------------------------------------------------------------------------------------------------------- text


def test_the_text_has_verdict_findings_and_budget(slow: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["diagnose", str(slow), "-v"])
    text = capsys.readouterr().out
    assert "Rank 1 is the straggler: the other ranks wait 4.0 ms of every 27.0 ms." in text
    costs = "straggler (slow device), costs 4.0 ms a step (15 %), 80 % interval 3.8 to 4.2 ms, confidence high"
    assert costs in text
    assert "nvidia-smi -q -d PERFORMANCE" in text
    assert re.search(r"rank +compute +wait +transfer +step", text)
    assert re.search(r"1 +19\.00 +0\.00 +8\.00 +27\.00", text)


def test_the_text_has_the_account(slow: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["diagnose", str(slow), "-v"])
    text = capsys.readouterr().out
    assert "Where the step goes: floor + tracing + findings + unexplained" in text
    for name, cells in (("floor", "23.0 ms 85 %"), ("tracing", "0.0 ms 0 %"), ("straggler", "4.0 ms 15 %")):
        assert f"{name} {cells}" in " ".join(text.split())
    assert "Costs come from busy times. The steps cannot be replayed: " in text
    assert "stays in the floor (ddp-doctor explain floor)." in text


@pytest.mark.parametrize("form", [["-v"], ["--markdown"]], ids=["text", "markdown"])
def test_what_nothing_explains_is_said(slow: Path, capsys: pytest.CaptureFixture[str], form: list[str]) -> None:
    main(["diagnose", str(slow), "--set", "straggler.min_excess=0.5", *form])
    text = capsys.readouterr().out
    assert "4.0 ms of every 27.0 ms (15 %) is unexplained: mostly kernels that take longer" in " ".join(text.split())
    assert re.search(r"unexplained[ |]+4\.0 ms[ |]+15 %", text)


@pytest.mark.parametrize("form", [["-v"], ["--markdown"]], ids=["text", "markdown"])
def test_what_cannot_be_told_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str], form: list[str]) -> None:
    few = write(tmp_path / "few", ranks(HEALTHY, HEALTHY), world_size=8)
    main(["diagnose", str(few), *form])
    text = capsys.readouterr().out
    assert "Healthy" not in text and "2 of 8 ranks" in text
    assert re.search(r"floor[ |]+\d", text)


def test_whatif_takes_rules_and_ids(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slow_host = SLOW.replace("[fwd........]", "[fwd....]    ")
    job = write(tmp_path / "job", ranks(HEALTHY, SLOW, HEALTHY, slow_host, HEALTHY))
    ids = [finding["id"] for finding in diagnosed(capsys, job)["findings"]]
    assert ids[:2] == ["straggler:1", "straggler:2"]

    def fixed(names: str) -> list[str]:
        assert main(["whatif", str(job), "--json", "--without", names]) == 0
        (prospect,) = json.loads(capsys.readouterr().out)["job"]
        return list(prospect["fixed"])

    assert fixed("straggler:2") == ["straggler:2"]
    assert fixed("straggler") == ["straggler:1", "straggler:2"]
    assert main(["whatif", str(job), "--without", "straggler:x"]) == 2


def test_the_title_of_a_finding_that_is_not_the_verdict_is_printed(
    slow: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tb_ddp_doctor.findings.Severity.least_share", property(lambda self: 0.5 * self))
    monkeypatch.setattr("tb_ddp_doctor.account.verdict.MOST_UNEXPLAINED", 1.0)
    main(["diagnose", str(slow), "-v"])
    text = capsys.readouterr().out
    assert "Healthy" in text
    assert "Rank 1 is the straggler" in text


def test_the_text_says_what_could_not_be_seen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["diagnose", str(write(tmp_path / "job", ranks(HEALTHY, SLOW), world_size=4)), "-v"])
    text = capsys.readouterr().out
    assert "Not checked (lacks data)" in text
    assert "2 of 4 ranks have no usable trace here (2, 3)" in text
    assert "dataloader-stall: No DataLoader appears" in text


def test_communication_is_a_table_where_it_is_asked_for(slow: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["diagnose", str(slow)])
    assert "Communication in a step" not in capsys.readouterr().out
    main(["diagnose", str(slow), "--communication"])
    table = capsys.readouterr().out
    assert re.search(r"collective +group +ranks +calls +MB +wait +transfer +hidden +busbw +latency", table)
    assert re.search(r"all_reduce +0 +3 +1 +4\.00 +2\.67 +8\.00 +0 % +0\.67 +-", table)


LOOP = """
    rank# step     |1
          host     [load....][ddp....]          [update]
          autograd                    [bwd.....]
          gpu                         [bwd................]
"""


def test_the_step_by_phase_is_a_line_and_a_table_where_it_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = write(tmp_path / "job", ranks(LOOP, LOOP))
    main(["diagnose", str(job), "-v"])
    text = capsys.readouterr().out
    assert "on the CPU: loading 25 %, forward 22 %, backward 25 %, optimizer 20 %, other 7.5 %" in text
    assert "Each rank's step by phase" not in text
    main(["diagnose", str(job), "--phases"])
    table = capsys.readouterr().out
    assert re.search(r"rank +on +loading +forward +backward +optimizer +other +step", table)
    assert re.search(r"1 +CPU +10\.00 +9\.00 +10\.00 +8\.00 +3\.00 +40\.00", table)


def test_the_critical_path_is_a_table_where_it_is_asked_for(
    tmp_path: Path, slow: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = write(tmp_path / "loop", ranks(LOOP, LOOP))
    main(["diagnose", str(job)])
    assert "Critical path" not in capsys.readouterr().out
    main(["diagnose", str(job), "--critical-path"])
    table = capsys.readouterr().out
    assert re.search(r"step +rank +on the path +phase +ms +share", table)
    assert re.search(r"2 +0 +input: DataLoader.__next__ +loading +10\.00 +25 %", table)
    main(["diagnose", str(job), "--json"])
    path = json.loads(capsys.readouterr().out)["runs"][0]["critical_path"]
    assert [step["step"] for step in path] == [1, 2, 3]
    for step in path:
        total = sum(piece["ms"] for piece in step["pieces"])
        assert total == pytest.approx((step["end_ns"] - step["start_ns"]) / 1e6)
    # Nobody launches its kernels, as far as the traces tell.
    main(["diagnose", str(slow), "--critical-path"])
    assert "No critical path. The steps cannot be replayed: " in capsys.readouterr().out


def test_phases_that_take_too_much_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["diagnose", str(write(tmp_path / "loading", ranks(LOOP, LOOP))), "-v"])
    assert "optimizer 0 %, other 0 % (loading over 20 %: input-bound)\n" in capsys.readouterr().out
    python = """
        rank# step     |1
              host     [ddp]              [step]
              gpu      [ddp...]           [step.....]
    """
    main(["diagnose", str(write(tmp_path / "other", ranks(python, python))), "-v"])
    assert "(other over 20 %: Python outside forward/backward/optimizer)\non the CPU: " in capsys.readouterr().out


def test_a_job_without_a_device_has_its_phases_on_the_host_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cpus = """
        rank# step |1
              host [load....][ddp....]      [update]
    """
    main(["diagnose", str(write(tmp_path / "job", ranks(cpus, cpus))), "--phases"])
    text = capsys.readouterr().out
    assert re.search(r"1 +CPU +10\.00 +9\.00", text)
    assert not re.search(r"1 +GPU", text)


def test_traces_that_show_no_phase_have_none(slow: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = diagnosed(capsys, slow)
    assert run["phases_ms"] == run["host_phases_ms"] == {}


def test_set_changes_a_threshold(slow: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert diagnosed(capsys, slow, "--set", "straggler.min_excess=0.5")["verdict"] == "unexplained"
    run = diagnosed(capsys, slow, "--set", "straggler.min_excess=0.1", "--set", "straggler.min_steps=0.5")
    shown = {limit["name"]: limit["value"] for limit in run["findings"][0]["thresholds"]}
    assert (shown["min_excess"], shown["min_steps"]) == (0.1, 0.5)


def test_what_a_terminal_obeys_is_neutralised(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / f"job{ESCAPES}"
    write(folder, ranks(HEALTHY, SLOW), world_size=4)
    (folder / f"rank2{ESCAPES}.pt.trace.json").write_text("not json")
    main(["diagnose", str(folder)])
    main(["diagnose", str(tmp_path / f"absent{ESCAPES}")])
    output = capsys.readouterr()
    assert "red" in output.out and "red" in output.err
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", output.out + output.err)


def test_markup_in_names_is_not_obeyed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["diagnose", str(write(tmp_path / "[red]job[", ranks(HEALTHY, SLOW)))])
    assert "[red]job[" in capsys.readouterr().out


@pytest.mark.parametrize("letter", ["\x1b", "\x07", "\x9b", "\u202e", "\u200b", "\udcff", "\r", "\n"])
def test_letters_that_are_not_printed_are_replaced(letter: str) -> None:
    assert printable(f"a{letter}b") == "a\N{REPLACEMENT CHARACTER}b"


def test_text_stays_as_it_is() -> None:
    assert printable("Größe 5 µs 日本 [x]") == "Größe 5 µs 日本 [x]"
    assert printable_lines("a\n\n b\n") == "a\n\n b\n"


def test_only_the_slowest_of_many_ranks_are_in_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = draw(ranks(HEALTHY))[0]
    (tmp_path / "job").mkdir()
    for rank in range(40):
        data = one.replace(b'"rank":0,"world_size":1', b'"rank":%d,"world_size":40' % rank)
        (tmp_path / "job" / f"host_{rank}.1700000000000000000.pt.trace.json").write_bytes(data)
    main(["diagnose", str(tmp_path / "job"), "-v"])
    text = capsys.readouterr().out
    assert "The 32 ranks with the longest busy time, of 40." in " ".join(text.split())
    assert len(re.findall(r"(?m)^ *\d+ +15\.00", text)) == 32


# ------------------------------------------------------------------------------------------------- slice and merge


def perfetto_names(path: Path) -> list[str]:
    """What the slices of a native trace are called, those of the doctor first."""
    trace = Trace.FromString(path.read_bytes())
    own = [packet.track_event.name for packet in trace.packet if packet.track_event.name]
    return own + [entry.name for packet in trace.packet for entry in packet.interned_data.event_names]


def test_slice_writes_what_proves_a_finding(slow: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new" / "out.pftrace"
    out.parent.mkdir()
    assert main(["slice", str(slow), "-o", str(out)]) == 0
    assert "straggler: rank 1, step" in capsys.readouterr().err
    names = perfetto_names(out)
    assert names[0] == "slice of job"
    assert any(name.startswith("rank 1: ") for name in names)
    assert [path.name for path in out.parent.iterdir()] == ["out.pftrace"]


def test_merge_writes_all_ranks_whole(slow: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    assert main(["merge", str(slow), "-o", str(out)]) == 0
    events = json.loads(out.read_bytes())["traceEvents"]
    counts = {
        pid: sum(event["ph"] == "X" and event["pid"] == pid for event in events)
        for pid in {event["pid"] for event in events}
    }
    drawn = [json.loads(trace)["traceEvents"] for trace in draw(ranks(HEALTHY, SLOW, HEALTHY)).values()]
    assert [counts[pid] for pid in (1, 2, 3)] == [len(events) for events in drawn]
    ends = [
        event["ts"] + event["dur"] for event in events if event["ph"] == "X" and event["args"].get("collective") == 0
    ]
    assert len(ends) == 3 and max(ends) - min(ends) < 1


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["slice", "{job}", "-o", "out.txt"], "must end in one of"),
        (["slice", "{job}", "-o", "{job}/out.pftrace"], "is inside of the log directory"),
        (["slice", "{job}", "-o", "out.pftrace", "--finding", "99"], "--finding 99: "),
        (
            ["slice", "{job}", "-o", "out.pftrace", "--run", "nosuch"],
            "--run: There is no run 'nosuch'. There are: ",
        ),
        (["slice", "{job}", "-o", "out.pftrace", "--evidence", "999"], "--evidence 999: "),
        (["merge", "{job}", "-o", "out.pftrace", "--run", "other"], "There is no run 'other'. There are: job"),
        (["merge", "{job}", "-o", "out.pftrace", "--run", "jop"], "Did you mean 'job'?"),
        (["merge", "/nowhere", "-o", "out.pftrace"], "/nowhere"),
    ],
)
def test_what_cannot_be_written(
    slow: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    sentence: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*.pftrace"))
    assert main([option.format(job=slow) for option in options]) == 2
    assert sentence in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*.pftrace")) == before


def test_files_are_counted_on_a_terminal_without_a_thread() -> None:
    """Processes that read cannot be forked under one."""
    drawn, before = io.StringIO(), threading.active_count()
    with progress(Console(file=drawn, force_terminal=True, width=80)) as counting:
        done = counting("logs", 3)
        assert "0/3" in plain(drawn)
        done(1)
        assert "1/3" in plain(drawn) and threading.active_count() <= before


def plain(drawn: io.StringIO) -> str:
    """What was drawn, without the colours."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", drawn.getvalue())
