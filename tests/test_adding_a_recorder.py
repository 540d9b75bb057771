"""docs/adding-a-recorder.md: its recorder, added to a copy of the repository by the page, passes its tests there."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from test_adding_a_rule import LINKED, ROOT, changed, run

from tb_ddp_doctor.discover.recorder import Beside, Recorder, TraceRecorder
from tb_ddp_doctor.discover.recorders import OF_TRACES, recorder_of

TEXT = (ROOT / "docs" / "adding-a-recorder.md").read_text()
RECORDER = Path("tb_ddp_doctor/discover/recorders/event_tables.py")
READER = Path("tb_ddp_doctor/trace/event_tables.py")
TEST = Path("tests/test_event_tables.py")


def test_a_recorder_takes_two_files_and_its_test(tmp_path: Path) -> None:
    for folder in ("tb_ddp_doctor", "tests"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=ignored, symlinks=True)
    for name in LINKED:
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "CHANGELOG.md").write_text((ROOT / "CHANGELOG.md").read_text() + "- Tables of events.\n")
    for path, code in zip((RECORDER, READER, TEST), re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL), strict=True):
        (tmp_path / path).write_text(code)
    run(tmp_path, "ruff", "check", "-q", "--no-cache", str(RECORDER), str(READER))
    printed = run(tmp_path, "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", str(TEST))
    assert re.search(r"^5 passed", printed, re.MULTILINE), printed
    assert changed(tmp_path) == sorted(map(str, (RECORDER, READER, TEST, "CHANGELOG.md")))


def test_the_page_says_all_that_a_recorder_declares() -> None:
    declared = [*Recorder.__annotations__, *TraceRecorder.__annotations__, *Beside.__annotations__]
    assert re.findall(r"^\| `(\w+)` \| ", TEXT, re.MULTILINE) == declared


def test_every_recorder_says_all_of_it() -> None:
    assert OF_TRACES
    for recorder in OF_TRACES:
        assert all(hasattr(recorder, name) for name in TraceRecorder.__annotations__)


def test_traces_of_kineto_are_of_no_other_recorder() -> None:
    names = ("rank0.json", "rank0.json.gz", "a.1.pt.trace.json", "rank0.pftrace.gz", "rank0.pt.trace.json.digest")
    assert [recorder_of(name) for name in names] == [None] * len(names)
    assert recorder_of("job.sqlite") is not None
