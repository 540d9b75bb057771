"""What the captures around a change differ in, and a job's hours from Python."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_history_summary import QUIET, drawn, written
from traces import in_row, ranks, write

import tb_ddp_doctor
from tb_ddp_doctor import cli
from tb_ddp_doctor.comparison.of_ranks import changes_of, sentence
from tb_ddp_doctor.discover.runs import DiscoverError, discover
from tb_ddp_doctor.engine import diagnose

USUAL = """
    rank# step   |1                        |2
          host   [fwd][bwd.]
          gpu    [fwd........][bwd.]
          nccl                      [ar@8.]
"""
SLOW = """
    rank# step   |1                        |2
          host   [fwd][bwd.]
          gpu    [fwd............][bwd.]
          nccl                          [ar@8.]
"""
SLOWED = QUIET + "b ....................####################"


@pytest.fixture(scope="module")
def logdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rank 3 computes longer from step 2,000 on; captures lie on either side."""
    folder = tmp_path_factory.mktemp("job")
    write(folder / "step_1000", in_row(ranks(USUAL, USUAL, USUAL, USUAL)))
    write(folder / "step_2500", in_row(ranks(USUAL, USUAL, USUAL, SLOW)))
    return written(folder, drawn(SLOWED))


def test_the_owners_of_the_ranks_that_an_event_names_are_compared(logdir: Path) -> None:
    before, after = (diagnose(run) for run in discover(logdir))
    (most, *_) = changes_of(before, after, [3])
    assert (most.name, round(most.change_ms, 2)) == ("compute", 4.0)
    assert sentence(before, after, [3]).startswith("of rank 3, compute 19.0 ms -> 23.0 ms (21 % more)")
    assert "compute" not in sentence(before, after, [0])
    assert changes_of(before, after, [99]) == ()


def test_a_change_says_what_its_captures_differ_in(logdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["history", str(logdir), "--no-cache", "--compare"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "Captures:" in line]
    assert "of rank 3, compute 19.0 ms -> 23.0 ms (21 % more)" in line
    assert "Compare: ddp-doctor" not in line
    assert cli.main(["history", str(logdir), "--no-cache", "--compare", "--json"]) == 0
    assert "of rank 3" in json.loads(capsys.readouterr().out)["compared"]["0"]


def test_captures_that_cannot_be_read_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = written(tmp_path, drawn(SLOWED))
    for step in (1000, 2500):
        (folder / f"step_{step}").mkdir()
    assert cli.main(["history", str(folder), "--no-cache", "--compare"]) == 0
    printed = capsys.readouterr()
    assert "step_1000" in printed.err
    assert "Captures:" not in printed.out


def test_hours_from_python(logdir: Path, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    hours = tb_ddp_doctor.hours(logdir, cache=False)
    assert hours.summary.steps == 4000
    events = hours.to_pandas()
    assert isinstance(events, pandas.DataFrame)
    assert events.kind.tolist() == ["change"]
    assert [list(found) for found in events.ranks] == [[3]]
    assert len(hours.to_pandas("steps")) == 4000
    medians = hours.to_pandas("ranks")
    late = medians[medians.first_step >= 2100]
    assert late["rank 3"].mean() == pytest.approx(1.2 * late["rank 0"].mean(), rel=0.01)
    with pytest.raises(ValueError, match="A table"):
        hours.to_pandas("kernels")
    with pytest.raises(DiscoverError, match="has no step times"):
        tb_ddp_doctor.hours(tmp_path)
