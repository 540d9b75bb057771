"""What all tests share: in CI a skipped test fails, and no test fails for being slow."""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import TypeVar

import pytest
from hypothesis import settings

pytest_plugins = ["pytester"]

# A machine that runs a browser and a build beside the tests is slow at times.
settings.register_profile("patient", settings(), deadline=None)
settings.load_profile("patient")


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Generator[None]:
    """No test reads what the user's own runs have kept."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DDP_DOCTOR_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    return _fail_skips_in_ci((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    return _fail_skips_in_ci((yield))


def _fail_skips_in_ci(report: Report) -> Report:
    """A machine that lost its browser must not pass for one on which the browser tests pass."""
    if os.environ.get("CI") and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
        report.longrepr = f"In CI this fails. {reason}"
    return report
