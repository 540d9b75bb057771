"""Memory by category, of models that are trained on the spot and whose bytes torch itself counts."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from tb_ddp_doctor.digest.build import digest
from tb_ddp_doctor.digest.model import MemoryCategory, RankDigest
from tb_ddp_doctor.trace.reader import read

SCENARIOS = ("adam", "transformer", "momentum", "plain_sgd", "leak")


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the captured scenarios."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("needs PyTorch: pip install -e '.[test,torch]'")
    out = tmp_path_factory.mktemp("memory")
    job = Path(__file__).with_name("memory_job.py")
    subprocess.run([sys.executable, str(job), str(out)], check=True, capture_output=True, timeout=300)
    return out


@cache
def digested(captured: Path, scenario: str) -> RankDigest:
    return digest(read(captured / scenario / "rank0.pt.trace.json"))


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_categories_are_what_torch_counts(captured: Path, scenario: str) -> None:
    known = json.loads((captured / "known.json").read_text())["bytes"][scenario]
    got = digested(captured, scenario).memory
    most = got.category_peaks.max(axis=0)
    for name, bytes_ in known.items():
        tolerance = 0.05 if name == "activation" else 0.02
        assert most[MemoryCategory[name.upper()]] == pytest.approx(bytes_, rel=tolerance), name


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_what_is_allocated_is_the_sum_of_its_categories(captured: Path, scenario: str) -> None:
    got = digested(captured, scenario).memory
    assert got.categories.sum(axis=1).tolist() == got.peak_allocated.tolist()
    assert (got.series.sum(axis=1) == got.allocated).all()
    assert (got.series >= 0).all()


def test_a_leak_is_found_at_its_op_and_function(captured: Path) -> None:
    known = json.loads((captured / "known.json").read_text())
    found = digested(captured, "leak")
    kept, text = found.memory.kept, found.strings
    assert text[kept.op[0]] == "aten::zeros"
    assert text[kept.own[0]].endswith(": train")
    assert kept.bytes[0] == kept.count[0] * known["leaked"]
    # In all steps but the first and the last.
    assert kept.steps[0] >= len(found.steps) - 2 >= known["steps"] - 3
    assert set(np.diff(found.memory.end_allocated).tolist()) == {known["leaked"]}


def test_what_does_not_leak_is_not_kept(captured: Path) -> None:
    for scenario in SCENARIOS[:-1]:
        found = digested(captured, scenario).memory
        assert not len(found.kept)
        assert not np.diff(found.end_allocated).any()
