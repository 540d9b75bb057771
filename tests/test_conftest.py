"""A skipped test passes on a laptop and fails in CI."""

from __future__ import annotations

from pathlib import Path

import pytest

CONFTEST = Path(__file__).with_name("conftest.py")
SKIPS = (
    "def test_it():\n    import pytest\n    pytest.skip('no browser')",
    "import pytest\npytest.importorskip('absent')",
)


@pytest.fixture(params=SKIPS, ids=["test", "module"])
def skipping(request: pytest.FixtureRequest, pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makeconftest(CONFTEST.read_text())
    pytester.makepyfile(request.param)
    return pytester


def test_skip_fails_in_ci(skipping: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    assert skipping.runpytest().ret != pytest.ExitCode.OK


def test_skip_is_a_skip_elsewhere(skipping: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    skipping.runpytest().assert_outcomes(skipped=1)
