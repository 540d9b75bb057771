"""What `ddp-doctor diagnose` prints first, and how its lines end and break."""

from __future__ import annotations

import re
from io import StringIO
from pathlib import Path

import pytest
from msgspec.structs import replace
from rich.console import Console
from test_golden import diagnose, names

from tb_ddp_doctor import engine
from tb_ddp_doctor.cli import main
from tb_ddp_doctor.discover.runs import discover
from tb_ddp_doctor.report.brief import print_brief
from tb_ddp_doctor.report.wrapping import wrapped

DEMO_LOGS = Path(__file__).parents[1] / "demo_logs"


def printed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int, *arguments: str) -> str:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main(["diagnose", *arguments]) == 0
    return capsys.readouterr().out


def test_a_diagnosis_is_six_lines(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    lines = printed(capsys, monkeypatch, 80, str(DEMO_LOGS / "straggler_cpu")).rstrip("\n").split("\n")
    assert lines == [
        "straggler_cpu: training, 4 of 4 ranks, 3 steps, 182.9 ms a step",
        "Rank 1 is the straggler: the other ranks wait 123.2 ms of every 182.9 ms.",
        " 1  Critical    125.2 ms    68 %  straggler (host), rank 1",
        " 2  Info          5.5 ms   3.0 %  profiler-overhead (recording), rank 1",
        " 3  Info      no cost             low-mfu, all 4 ranks",
        "7 opportunities; 3 of 46 checks not made (lack data). -v shows all.",
    ]


@pytest.mark.parametrize("run", names())
def test_findings_are_numbered_as_slice_takes_them(
    run: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = printed(capsys, monkeypatch, 80, str(DEMO_LOGS / run), "-v")
    rules = [finding.rule for finding in diagnose(run).findings]
    brief, _, rest = text.partition("\n\n")
    rows = re.findall(r"(?m)^ ?(\d+)  (?:Critical|Major|Minor|Info) .*?([a-z]+(?:-[a-z]+)*) ?[(,]", brief)
    assert [(int(number), rule) for number, rule in rows] == list(enumerate(rules, 1))[:3]
    heads = re.findall(r"(?m)^ ?(\d+)  (?:Critical|Major|Minor|Info) +([a-z-]+)", rest)
    assert [(int(number), rule) for number, rule in heads] == list(enumerate(rules, 1))


@pytest.mark.parametrize("columns", [50, 66, 80, 120])
@pytest.mark.parametrize("run", names())
def test_lines_end_and_break_well(
    run: str, columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No spaces at the end, no number without its unit, no code in two lines, nothing else wider than the terminal."""
    text = printed(capsys, monkeypatch, columns, str(DEMO_LOGS / run), "-v")
    lines = text.split("\n")
    assert [line for line in lines if line != line.rstrip()] == []
    starts = r"(?m)(?<=\d)\n *(?:%|ms|µs|GB/s|TFLOPS?|MB)(?=[\s,.;)])"
    assert not re.search(starts, text)
    code = [line for finding in diagnose(run).findings for line in finding.fix.partition("\n\n")[2].split("\n")]
    assert [line for line in code if line and f"        {line}" not in lines] == []
    wide = [line for line in lines if len(line) > columns and line.strip() not in map(str.strip, code)]
    assert [line for line in wide if " " in line.strip() and not line.startswith("  ")] == []
    table = text[text.index("Where each rank's step goes") :].split("\n\n")[0]
    assert "…" not in table


@pytest.mark.parametrize(
    ("said", "width", "lines"),
    [
        ("it takes 125.2 ms a step", 14, ["it takes", "125.2 ms a", "step"]),
        ("on rank 12 of all", 9, ["on", "rank 12", "of all"]),
        ("capture with profile(..., with_stack=True).", 24, ["capture with", "profile(..., with_stack=True)."]),
        ("80 % interval", 10, ["80 %", "interval"]),
        ("日本 日本", 5, ["日本", "日本"]),
        ("", 10, [""]),
    ],
)
def test_a_paragraph_is_wrapped_between_what_belongs_together(said: str, width: int, lines: list[str]) -> None:
    assert wrapped(said, width).split("\n") == lines


def test_lines_are_indented() -> None:
    assert wrapped("one two three", 9, indent=4, first=0) == "one two\n    three"


def test_a_word_of_a_million_letters_is_looked_at_once() -> None:
    """A search for calls that began anew at each letter took hours."""
    assert wrapped("N" * 1_000_000, 80) == "N" * 1_000_000


def test_the_first_incomplete_files_are_named_and_none_is_obeyed() -> None:
    (run,) = discover(DEMO_LOGS / "healthy")
    result = engine.diagnose(run)
    files = tuple(f"/logs/rank_{rank}/\x1b]0;trace.json" for rank in range(5))
    result = replace(result, diagnosis=replace(result.diagnosis, incomplete=files))
    printed = StringIO()
    console = Console(file=printed, width=200)
    print_brief(console, result, is_all=False)
    said = printed.getvalue()
    assert "\x1b" not in said
    assert "Incomplete: rank_0/�]0;trace.json, rank_1/�]0;trace.json, rank_2/�]0;trace.json and 2 more." in said
