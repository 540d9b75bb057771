"""The doctor from Python."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from traces import draw, ranks, write

import tb_ddp_doctor
from tb_ddp_doctor.api import DoctorWarning
from tb_ddp_doctor.discover.runs import DiscoverError
from tb_ddp_doctor.engine import RunError
from tb_ddp_doctor.workers import pool

ROOT = Path(__file__).parent.parent
#: Those of trackers, which are extras, run in tests/test_snippets.py.
EXAMPLES = [
    text
    for text in re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "python.md").read_text(), re.DOTALL)
    if "trackers" not in text
]
HOSTILE = "<img src=x onerror=alert(1)>"
SLOW = """
    rank# step |1
          gpu  [fwd........][bwd.]
          nccl                    [ar....]
"""
USUAL = """
    rank# step |1
          gpu  [fwd....][bwd.]
          nccl                [ar........]
"""
JOB = ranks(USUAL, SLOW, USUAL)


def damaged(folder: Path) -> None:
    folder.mkdir()
    (folder / "host_1.1.pt.trace.json").write_bytes(draw("rank0 gpu [a]")[0][:40])


@pytest.mark.parametrize("example", EXAMPLES, ids=[str(i) for i in range(len(EXAMPLES))])
def test_the_examples_run(example: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    exec(compile(example, "docs/python.md", "exec"), {})


def test_runs_come_in_the_order_of_their_names(tmp_path: Path) -> None:
    for name in ("b", "a"):
        write(tmp_path / name, JOB)
    found = tb_ddp_doctor.diagnose(tmp_path, cache=False)
    assert [(run.name, run.verdict) for run in found] == [("a", "straggler"), ("b", "straggler")]


def test_a_script_without_a_guard_may_use_processes(tmp_path: Path) -> None:
    """Spawned processes run the main module again, unless they are not told of it."""
    write(tmp_path / "logs", JOB)
    script = tmp_path / "script.py"
    script.write_text(
        "import tb_ddp_doctor\n"
        "from tb_ddp_doctor.workers import pool\n"
        "pool._WORTH_PROCESSES = 0\n"
        "print('once')\n"
        f"print(tb_ddp_doctor.diagnose({str(tmp_path / 'logs')!r}, cache=False)[0].ranks)\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout, done.stderr) == ("once\n(0, 1, 2)\n", "")
    assert pool._WORTH_PROCESSES > 0


def test_what_was_read_is_kept_where_one_says(tmp_path: Path) -> None:
    write(tmp_path / "logs", JOB)
    tb_ddp_doctor.diagnose(tmp_path / "logs", cache=tmp_path / "kept")
    assert any((tmp_path / "kept").rglob("*.digest"))


def test_no_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DiscoverError, match="holds no profiler traces"):
        tb_ddp_doctor.diagnose(tmp_path)


def test_no_run_that_can_be_diagnosed_is_an_error(tmp_path: Path) -> None:
    damaged(tmp_path / "bad")
    with pytest.raises(RunError, match=r"^bad: "):
        tb_ddp_doctor.diagnose(tmp_path, cache=False)


def test_a_bad_run_beside_a_good_one_is_a_warning(tmp_path: Path) -> None:
    write(tmp_path / "good", JOB)
    damaged(tmp_path / "bad")
    with pytest.warns(DoctorWarning, match=r"^bad: "):
        (run,) = tb_ddp_doctor.diagnose(tmp_path, cache=False)
    assert run.name == "good"


def test_settings_that_name_nothing_are_refused(tmp_path: Path) -> None:
    write(tmp_path, JOB)
    with pytest.raises(ValueError, match="There is no rule 'straggle'"):
        tb_ddp_doctor.diagnose(tmp_path, settings={"straggle": {}}, cache=False)


def test_tables_of_a_diagnosis(tmp_path: Path) -> None:
    write(tmp_path, JOB)
    (run,) = tb_ddp_doctor.diagnose(tmp_path, cache=False)
    assert run.to_pandas()["rule"].tolist() == [finding.rule for finding in run.findings]
    budget = run.to_pandas("budget")
    assert budget.index.tolist() == [0, 1, 2] and budget.index.name == "rank"
    assert budget.sum(axis=1).tolist() == pytest.approx([run.step_ms] * 3)
    assert len(run.to_pandas("outcomes")) == len(run.outcomes)
    assert run.to_pandas("communication")["kind"].tolist() == ["all_reduce"]


def test_a_notebook_shows_text_as_text(tmp_path: Path) -> None:
    write(tmp_path / HOSTILE, JOB)
    (run,) = tb_ddp_doctor.diagnose(tmp_path, cache=False)
    shown = run._repr_html_()
    assert "&lt;img" in shown and "<img" not in shown
    assert "straggler" in shown and "<table>" in shown


def test_the_package_has_no_other_names() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = tb_ddp_doctor.nonsense


def test_a_comparison_as_data_frames_and_in_a_notebook(tmp_path: Path) -> None:
    places = [write(tmp_path / name, ranks(text, text)) for name, text in (("usual", USUAL), (HOSTILE, SLOW))]
    change = tb_ddp_doctor.compare(*places, cache=False)
    assert change.to_pandas().set_index("name").loc["compute"].tolist() == [15, 19]
    for table in ("findings", "communication", "kernels", "operators"):
        assert len(change.to_pandas(table)) == len(getattr(change, table))
    shown = change._repr_html_()
    assert "Compute rose from 15.0 to 19.0 ms" in shown and "<td>+4.00</td>" in shown
    assert "&lt;img" in shown and "<img" not in shown
