"""Files that are made to harm, each beside the good traces of a job: docs/reliability.md has the table."""

from __future__ import annotations

import gzip
import json
import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from soak import HEALTHY, SLOW
from traces import in_row, ranks, write

DOC = Path(__file__).parent.parent / "docs" / "reliability.md"
#: Of the command as a whole, that reads four files one after the other.
MOST_S, MOST_BYTES = 60, 3 << 30
HEAD = b'{"schemaVersion": 1, "distributedInfo": {"rank": 3, "world_size": 4}, "traceEvents": ['
KERNEL = '{"ph":"X","cat":"kernel","name":"%s","pid":0,"tid":%d,"ts":%s,"dur":%s,"args":{"device":0,"stream":%d}}'


def kernels(times: list[tuple[str, str]]) -> bytes:
    return HEAD + ",".join(KERNEL % ("k", 7, ts, dur, 7) for ts, dur in times).encode() + b"]}"


def gzip_bomb() -> bytes:
    """A megabyte that becomes a gigabyte."""
    return gzip.compress(HEAD + b" " * (1 << 30) + b"]}", 6)


def deep_json() -> bytes:
    return HEAD + b"[" * 10_000_000


def long_name() -> bytes:
    return HEAD + (KERNEL % ("n" * 100_000_000, 7, "1", "2", 7)).encode() + b"]}"


def a_million_streams() -> bytes:
    return HEAD + ",".join(KERNEL % ("k", i, i, "0.5", i) for i in range(1_000_000)).encode() + b"]}"


def odd_times() -> bytes:
    times = ("-1", "-1e30", "1e308", "1e999", "9223372036854775807", "-9223372036854775808", "NaN", '"soon"', "0")
    return kernels([(ts, dur) for ts in times for dur in times])


BAD = {f.__name__: f for f in (gzip_bomb, deep_json, long_name, a_million_streams, odd_times)}


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))


@pytest.mark.parametrize("make", BAD.values(), ids=BAD)
def test_a_bad_file_harms_no_other(tmp_path: Path, make: Callable[[], bytes]) -> None:
    folder = write(tmp_path / "job", in_row(ranks(HEALTHY, SLOW, HEALTHY)))
    bad = folder / "host3_103.1700000000000000000.pt.trace.json"
    bad.write_bytes(make())
    began = time.monotonic()
    command = [sys.executable, "-m", "tb_ddp_doctor.cli", "diagnose", str(tmp_path), "--json", "--no-cache"]
    ran = subprocess.run(command, capture_output=True, check=False, timeout=MOST_S, preexec_fn=_limit)
    assert ran.returncode == 0, ran.stderr.decode()[-2000:]
    assert time.monotonic() - began < MOST_S
    runs: list[dict[str, Any]] = json.loads(ran.stdout)["runs"]
    (run,) = runs
    assert {0, 1, 2} <= set(run["ranks"])
    assert run["world_size"] >= 3
    assert any(str(bad) in warning["file"] or "rank 3" in warning["message"].lower() for warning in run["warnings"])
    assert len(ran.stdout) < 1 << 20


def test_the_table_names_tests_that_exist() -> None:
    named = re.findall(r"`(test_\w+)\.py::(test_\w+)(?:\[(\w+)\])?`", DOC.read_text())
    assert len(named) > 15
    for module, test, case in named:
        source = (Path(__file__).parent / f"{module}.py").read_text()
        assert f"def {test}(" in source, f"{module}.py has no {test}"
        assert not case or case in source


def test_a_full_disk_is_no_error(tmp_path: Path) -> None:
    """The command's own limit of a file's size stands for the disk's."""
    write(tmp_path / "job", in_row(ranks(HEALTHY, SLOW, HEALTHY)))
    command = [sys.executable, "-m", "tb_ddp_doctor.cli", "diagnose", str(tmp_path), "--cache", str(tmp_path / "cache")]
    ran = subprocess.run(
        [*command, "--json"],
        capture_output=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)),
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr.count(b"Nothing can be kept in the cache") == 1
    assert len(json.loads(ran.stdout)["runs"]) == 1
    assert not list((tmp_path / "cache").rglob(".new-*"))


def test_a_killed_writer_loses_its_own_entry_only(tmp_path: Path) -> None:
    write(tmp_path / "logs" / "job", in_row(ranks(HEALTHY, SLOW, HEALTHY)))
    cache = tmp_path / "cache"
    command = [sys.executable, "-m", "tb_ddp_doctor.cli", "diagnose", str(tmp_path / "logs"), "--json", "--cache"]
    wanted = subprocess.run([*command, str(tmp_path / "whole")], capture_output=True, check=True).stdout
    for delay_s in (0.4, 0.5, 0.6, 0.7):
        process = subprocess.Popen([*command, str(cache)], stdout=subprocess.DEVNULL)
        time.sleep(delay_s)
        process.kill()
        process.wait()
    ran = subprocess.run([*command, str(cache)], capture_output=True, check=True)
    assert ran.stdout == wanted
