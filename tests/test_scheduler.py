"""Reading on a Dask cluster."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import traces
from test_store import JOB

from tb_ddp_doctor import cli, engine
from tb_ddp_doctor.cache import Cache
from tb_ddp_doctor.digest.model import RankDigest
from tb_ddp_doctor.discover.runs import discover
from tb_ddp_doctor.workers.cluster import SchedulerError, executor

distributed = pytest.importorskip("distributed")


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """A scheduler with two workers, each a process of its own."""
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, host="127.0.0.1"
    ) as local:
        yield local.scheduler_address


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    rank = JOB.replace("rank0", "rank{}")
    return traces.write(tmp_path / "job", "".join(rank.format(number) for number in range(4)))


def test_a_cluster_says_the_same_as_this_machine(cluster: str, logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["diagnose", str(logs), "--json", "--no-cache"]) == 0
    here = capsys.readouterr().out
    assert cli.main(["diagnose", str(logs), "--json", "--no-cache", "--scheduler", cluster]) == 0
    assert capsys.readouterr().out == here


def work_elsewhere(path: Path) -> int:
    return os.getpid()


def test_the_workers_do_the_reading(cluster: str) -> None:
    with executor(cluster) as workers:
        assert workers is not None
        assert workers.submit(work_elsewhere, Path("x")).result() != os.getpid()


class DyingOnce(Cache):
    """A cache whose first user's process is killed."""

    def digest(self, path: Path) -> RankDigest:
        assert self.directory is not None
        try:
            (self.directory / "died").touch(exist_ok=False)
        except FileExistsError:
            return super().digest(path)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError


def test_a_lost_worker_is_retried(cluster: str, logs: Path, tmp_path: Path) -> None:
    (tmp_path / "mark").mkdir()
    with executor(cluster) as workers:
        reading = engine.Reading(DyingOnce(tmp_path / "mark"), workers)
        diagnosis = engine.diagnose(discover(logs)[0], reading=reading).diagnosis
    assert (tmp_path / "mark" / "died").exists()
    assert diagnosis.ranks == (0, 1, 2, 3)
    assert not diagnosis.warnings


def test_no_scheduler_there_is_a_sentence(capsys: pytest.CaptureFixture[str], logs: Path) -> None:
    assert cli.main(["diagnose", str(logs), "--scheduler", "tcp://127.0.0.1:1"]) == 2
    assert "no Dask scheduler answers" in capsys.readouterr().err


def test_without_dask_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "distributed", None)
    with pytest.raises(SchedulerError, match="pip install"), executor("tcp://127.0.0.1:1"):
        pass


def test_without_an_address_there_is_no_executor() -> None:
    with executor(None) as workers:
        assert workers is None
