"""Files that are made to harm, each beside the good traces of a job: docs/reliability.md has the table."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hostile_files import packed
from soak import HEALTHY, SLOW
from traces import in_row, ranks, write

from tb_ddp_doctor.cache import Cache
from tb_ddp_doctor.trace import native

DOC = Path(__file__).parent.parent / "docs" / "reliability.md"
#: Of the command as a whole, that reads four files one after the other: CPU time, and address space.
MOST_S, MOST_BYTES = 60, 3 << 30
HEAD = b'{"schemaVersion": 1, "distributedInfo": {"rank": 3, "world_size": 4}, "traceEvents": ['
KERNEL = '{"ph":"X","cat":"kernel","name":"%s","pid":0,"tid":%d,"ts":%s,"dur":%s,"args":{"device":0,"stream":%d}}'


def kernels(times: list[tuple[str, str]]) -> bytes:
    return HEAD + ",".join(KERNEL % ("k", 7, ts, dur, 7) for ts, dur in times).encode() + b"]}"


def gzip_bomb() -> bytes:
    """A megabyte that becomes a gigabyte."""
    return packed(HEAD, b" " * (1 << 20), 1 << 10, b"]}")


def deep_json() -> bytes:
    return HEAD + b"[" * 10_000_000


def long_name() -> bytes:
    return HEAD + (KERNEL % ("n" * 100_000_000, 7, "1", "2", 7)).encode() + b"]}"


def event_bomb() -> bytes:
    """A third of a megabyte that becomes a million kernels."""
    kernel = (KERNEL % ("k", 7, "1", "2", 7)).encode()
    return packed(HEAD, (kernel + b",") * 10_000, 100, kernel + b"]}")


def deep_arguments() -> bytes:
    levels = 10_000_000
    return HEAD + b'{"ph": "X", "name": "a", "args": ' + b'{"a":' * levels + b"1" + b"}" * levels + b"}]}"


def many_names() -> bytes:
    return HEAD + ",".join(KERNEL % (f"k{i}", 7, i, "0.5", 7) for i in range(100_000)).encode() + b"]}"


def long_paths() -> bytes:
    """Functions whose names take long where a search begins anew at each letter."""
    function = '{"ph":"X","cat":"python_function","name":"%s%d.py(1): f","pid":0,"tid":0,"ts":%d,"dur":100}'
    return HEAD + ",".join(function % ("/" * 14_000, i, i) for i in range(1_000)).encode() + b"]}"


def many_streams() -> bytes:
    return HEAD + ",".join(KERNEL % ("k", i, i, "0.5", i) for i in range(300_000)).encode() + b"]}"


def odd_times() -> bytes:
    times = ("-1", "-1e30", "1e308", "1e999", "9223372036854775807", "-9223372036854775808", "NaN", '"soon"', "0")
    return kernels([(ts, dur) for ts in times for dur in times])


BAD = {
    each.__name__: each
    for each in (
        gzip_bomb, event_bomb, deep_json, deep_arguments, long_name, long_paths, many_names, many_streams,
        odd_times,
    )
}  # fmt: skip


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (MOST_S, MOST_S))


@pytest.mark.parametrize("reader", ["native", "msgspec"] if native.is_available() else ["msgspec"])
@pytest.mark.parametrize("make", BAD.values(), ids=BAD)
def test_a_bad_file_harms_no_other(tmp_path: Path, make: Callable[[], bytes], reader: str) -> None:
    folder = write(tmp_path / "job", in_row(ranks(HEALTHY, SLOW, HEALTHY)))
    data = make()
    suffix = ".gz" if data.startswith(b"\x1f\x8b") else ""
    bad = folder / f"host3_103.1700000000000000000.pt.trace.json{suffix}"
    bad.write_bytes(data)
    environ = {**os.environ, "DDP_DOCTOR_READER": reader}
    command = [sys.executable, "-m", "tb_ddp_doctor.cli", "diagnose", str(tmp_path), "--json", "--no-cache"]
    ran = subprocess.run(command, capture_output=True, check=False, preexec_fn=_limit, env=environ)
    assert ran.returncode == 0, ran.stderr.decode()[-2000:]
    runs: list[dict[str, Any]] = json.loads(ran.stdout)["runs"]
    (run,) = runs
    assert run["ranks"] == [0, 1, 2]
    assert run["verdict"] == "straggler"
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
    # Python would keep byte code of 1,000 bytes, too, which fails whoever imports it next.
    environ = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    ran = subprocess.run(
        [*command, "--json"],
        capture_output=True,
        check=False,
        env=environ,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)),
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr.count(b"Nothing can be kept in the cache") == 1
    assert len(json.loads(ran.stdout)["runs"]) == 1
    assert not list((tmp_path / "cache").rglob(".new-*"))


def test_a_home_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    """A file stands where the home should be: root, too, can make no folder in it."""
    for name in ("one", "two"):
        write(tmp_path / "logs" / name, in_row(ranks(HEALTHY, SLOW, HEALTHY)))
    home = tmp_path / "home"
    home.write_text("")
    places = ("DDP_DOCTOR_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA")
    environ = {name: value for name, value in os.environ.items() if name not in places} | {"HOME": str(home)}
    command = [sys.executable, "-m", "tb_ddp_doctor.cli", "diagnose", str(tmp_path / "logs"), "--json"]
    ran = subprocess.run(command, capture_output=True, check=False, env=environ)
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr.count(b"Nothing can be kept in the cache") == 1
    assert len(json.loads(ran.stdout)["runs"]) == 2


#: Keeps the digests of the traces in a folder, again and again anew, and says of each when it is kept.
KEEPER = """
import sys
from pathlib import Path
from tb_ddp_doctor.cache import Cache
cache = Cache(Path(sys.argv[2]))
for path in sorted(Path(sys.argv[1]).iterdir()):
    cache.digest(path)
    print(path, flush=True)
"""


def test_a_killed_writer_loses_its_own_entry_only(tmp_path: Path) -> None:
    """A real process is killed at some moments; what it kept before is found again."""
    folder = write(tmp_path / "job", ranks(*[HEALTHY] * 20))
    command = [sys.executable, "-c", KEEPER, str(folder)]
    killed = 0
    for round_ in range(4):
        directory = tmp_path / f"cache{round_}"
        with subprocess.Popen([*command, str(directory)], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout
            first = process.stdout.readline()
            time.sleep(0.01 * round_)
            process.kill()
            kept = [Path(line) for line in (first + process.stdout.read()).splitlines()]
        killed += process.returncode == -signal.SIGKILL
        assert kept
        assert all(Cache(directory).kept(path) for path in kept)
        assert len(list(directory.rglob(".new-*"))) <= 1
        entries = [path for path in directory.rglob("*.*") if not path.name.startswith(".new-")]
        assert len(entries) - 2 * len(kept) in (0, 1, 2)  # columns and a digest each
        # The next one goes on from there.
        again = subprocess.run([*command, str(directory)], capture_output=True, check=True, text=True)
        assert len(again.stdout.splitlines()) == 20
    assert killed > 2
