"""What all tests share: in CI a skipped test fails, and no test fails for being slow.

The tests run in two processes more than there are cores (pytest-xdist), since many wait: for a browser, a server or a
job. Those that need all cores are marked `alone`: while one of them runs, no other process runs a test.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from fcntl import LOCK_EX, LOCK_SH, LOCK_UN, flock
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import settings

pytest_plugins = ["pytester", "tab"]
#: Tests of packages that CI does not install: whoever has them says where.
collect_ignore = [] if "DDP_DOCTOR_TRAINERS_PYTHON" in os.environ else ["test_trainers.py"]

#: Files with tests of half a minute and more in all. Those that mostly wait, for the end of a time limit, of a job that
#: sleeps or of a rank that never comes (hostile_tab, check, history_summary, hang, first_hour), are between those that
#: need the cores: side by side they would leave the cores idle. The first four begin with tests of less than a second,
#: since the first of all waits until no other runs.
LONGEST = (
    "test_gloo", "test_any_job", "test_reader", "test_savings", "test_tab_every_view", "test_hostile_tab", "test_wheel",
    "test_tab", "test_capture_gloo", "test_hostile", "test_check", "test_perfetto", "test_history_summary",
    "test_tab_selection", "test_tab_runs", "test_capture_beside", "test_stuck_tab", "test_hang", "test_adding_a_rule",
    "test_tab_tasks", "test_first_hour", "test_terminal", "test_native", "test_brief", "test_plan_tab",
    "test_memory_tab", "test_memory_job", "test_tab_numbers", "test_stuck_gloo",
)  # fmt: skip

# Containers often say that byte code is not to be written: each of the hundreds of processes that tests start would
# compile the package, and each worker rewrite the assertions of all files.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Of the CPU time of thousands of small tests, a tenth went into looking for cycles among what the collection leaves.
gc.disable()

# A machine that runs a browser and a build beside the tests is slow at times.
settings.register_profile("patient", settings(), deadline=None)
settings.load_profile("patient")


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Generator[None]:
    """No test reads what the user's own runs have kept."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DDP_DOCTOR_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def pytest_xdist_auto_num_workers() -> int:
    return (os.cpu_count() or 1) + 2


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The files that take longest begin first, so that no process is left with one of them at the end; browsers beside
    what needs none. What is to run alone begins at once: later, all processes would wait for the tests under way.
    """

    def turn(item: pytest.Item) -> tuple[bool, int]:
        name = item.path.stem
        return item.get_closest_marker("alone") is None, LONGEST.index(name) if name in LONGEST else len(LONGEST)

    items.sort(key=turn)


def pytest_collection_finish() -> None:
    """What all tests share is looked through once, and cycles are looked for after 10,000 objects more, not 700."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)
    gc.enable()


@contextmanager
def locked(path: Path, kind: int) -> Iterator[None]:
    """Hold a lock on a file or folder, against other processes, until the end of the block."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        flock(descriptor, kind)
        yield
    finally:
        # By its name: a process that a test started may still have the descriptor.
        flock(descriptor, LOCK_UN)
        os.close(descriptor)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Let a test that is marked `alone` run alone, and any others side by side."""
    if not hasattr(item.config, "workerinput"):
        return (yield)
    folder = Path(__file__).parent
    with ExitStack() as held:
        # While a test waits until it is alone, no other one begins.
        with locked(folder / "conftest.py", LOCK_EX):
            held.enter_context(locked(folder, LOCK_EX if item.get_closest_marker("alone") else LOCK_SH))
        return (yield)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Where a test may patch the code that makes digests, what it draws is digested anew."""
    if drawn := sys.modules.get("traces"):
        drawn.KEPT[0] = "monkeypatch" not in getattr(item, "fixturenames", ())


Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    return _fail_skips_in_ci((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    with ExitStack() as held:
        if isinstance(collector, pytest.Module) and hasattr(collector.config, "workerinput"):
            # One process rewrites the assertions of a file, the others read what it kept.
            held.enter_context(locked(collector.path, LOCK_EX))
        return _fail_skips_in_ci((yield))


def _fail_skips_in_ci(report: Report) -> Report:
    """A machine that lost its browser must not pass for one on which the browser tests pass."""
    if os.environ.get("CI") and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
        report.longrepr = f"In CI this fails. {reason}"
    return report
