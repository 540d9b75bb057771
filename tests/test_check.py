"""A check of real ranks on CPUs over gloo: what it finds, who does not answer, and that nothing stays behind."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import jsonschema
import pytest

from tb_ddp_doctor.calibration.load import load
from tb_ddp_doctor.report.schema import calibration as schema

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="needs PyTorch: pip install -e '.[test,torch]'"
)
#: A rank that waits for another one longer is not waiting for the machine, s.
PATIENCE_S = 120


def started(*options: str, ranks: int, absent: Sequence[int] = ()) -> list[subprocess.Popen[str]]:
    """The processes of a check that measures little."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    job = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks), "OMP_NUM_THREADS": "1"}
    command = [
        sys.executable,
        "-m",
        "tb_ddp_doctor.check",
        "--seconds",
        "0.5",
        "--repeat",
        "0.01",
        "--max-bytes",
        "16K",
        *options,
    ]
    return [
        subprocess.Popen(
            command,
            env={**os.environ, **job, "RANK": str(rank), "LOCAL_RANK": str(rank), "GLOO_SOCKET_IFNAME": "lo"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
        if rank not in absent
    ]


def test_all_ranks_are_measured_and_the_calibration_is_read_again(tmp_path: Path) -> None:
    page = tmp_path / "check.html"
    processes = started("-o", str(tmp_path), "--html", str(page), "--patience", "120", ranks=3)
    said = [process.communicate(timeout=300) for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], said
    found = load(tmp_path / "calibration.json")
    jsonschema.validate(json.loads((tmp_path / "calibration.json").read_bytes()), schema())
    assert (found.world_size, found.backend, found.source) == (3, "gloo", "check")
    measures = {measure.name: measure for measure in found.measures}
    for name in ("GEMM float32", "memory bandwidth", "launch latency"):
        assert all(value is not None and value > 0 for value in measures[name].values)
        assert all(spread is not None for spread in measures[name].spreads)
    assert {curve.kind for curve in found.curves} == {"all_reduce", "all_gather", "reduce_scatter"}
    for curve in found.curves:
        sizes = [point.bytes for point in curve.points]
        assert curve.ranks == (0, 1, 2) and sizes[0] >= 1024 and all(point.count >= 3 for point in curve.points)
    assert [pair.ranks for pair in found.pairs] == [(0, 1), (0, 2)]
    assert found.curve("all_reduce", 3, within_node=True)
    text = page.read_text()
    assert text.count("<svg") == 2 and "rank 2 on" in text and "<script" not in text
    assert "3 ranks on 1 node" in said[0][0] and not any(out for out, _ in said[1:])


def test_a_rank_that_never_starts_is_named() -> None:
    processes = started("--patience", "1", "--json", ranks=3, absent=[1])
    # Ranks that import torch long after each other would be named too: the first has four times that patience.
    said = [process.communicate(timeout=300)[0] for process in processes]
    assert max(process.returncode for process in processes) == 3
    (found,) = [json.loads(text) for text in said if text]
    assert {"rank": 1, "phase": "start"} in found["no_answer"]


def test_a_rank_that_stops_is_named_by_those_that_wait_for_it() -> None:
    processes = started("--patience", "15", "--json", "--seconds", "60", ranks=3)
    try:
        until = time.monotonic() + PATIENCE_S
        # It measures once it takes longer than to import torch.
        while time.monotonic() < until and not _measures(processes[2]):
            time.sleep(0.1)
        processes[2].send_signal(signal.SIGSTOP)
        said = [process.communicate(timeout=300)[0] for process in processes[:2]]
        assert processes[0].returncode == 3
        assert [one["rank"] for one in json.loads(said[0])["no_answer"]] == [2]
        assert not said[1] and processes[1].returncode == 0
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def _measures(process: subprocess.Popen[str]) -> bool:
    """Whether a rank has a connection to the store and to others: it is past the start."""
    return sum(map(_is_socket, Path(f"/proc/{process.pid}/fd").iterdir())) >= 4


def _is_socket(link: Path) -> bool:
    try:
        return os.readlink(link).startswith("socket:")
    except FileNotFoundError:  # closed since
        return False
