"""How right `tb_ddp_doctor.check` is on this machine: a slow rank, healthy ranks, and a link of known bandwidth.

    python benchmarks/check.py slow [--runs 20]      # one of four gloo ranks at half speed, by each way in turn
    python benchmarks/check.py healthy [--runs 20]
    python benchmarks/check.py link [--mbit 100]     # two ranks in network namespaces, a veth pair shaped by tc's tbf

Needs PyTorch; `link` needs Linux, root, ip and tc, and says what is missing.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

_OPTIONS = ["-m", "tb_ddp_doctor.check", "--json", "--patience", "90"]
_SHORT, _LONG = ["--seconds", "2", "--max-bytes", "256K"], ["--seconds", "20", "--max-bytes", "16M"]
#: A thread that holds Python's lock half of the time.
_BUSY = """
import runpy, sys, threading
def spin():
    while True: pass
threading.Thread(target=spin, daemon=True).start()
sys.argv = sys.argv[2:]
runpy.run_module("tb_ddp_doctor.check", run_name="__main__")
"""
_GROUP = Path("/sys/fs/cgroup/cpu/ddp_doctor_check")


def checked(ranks: int, prefixes: dict[int, list[str]], options: list[str], **variables: str) -> dict[str, Any]:
    """The calibration of so many ranks, some started by way of another command."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    job = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks), "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [*prefixes.get(rank, [sys.executable]), *_OPTIONS, *options],
            env={**os.environ, **job, **variables, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
        )
        for rank in range(ranks)
    ]
    said = [process.communicate()[0] for process in processes]
    found: dict[str, Any] = json.loads(next(filter(None, said)))
    return found


def slowed() -> dict[str, list[str]]:
    """Ways to run Python at half speed, as commands."""
    ways = {
        # Weight 526 of 1024: half of what the other ranks get of a core that they share.
        "nice 3": ["nice", "-n", "3", sys.executable],
        "busy thread": [sys.executable, "-c", _BUSY],
    }
    try:
        _GROUP.mkdir(exist_ok=True)
        (_GROUP / "cpu.cfs_period_us").write_text("100000")
        (_GROUP / "cpu.cfs_quota_us").write_text("50000")
        inside = f'echo $$ > {_GROUP}/tasks && exec {sys.executable} "$@"'
        ways["half a core by cgroup"] = ["sh", "-c", inside, "sh"]
    except OSError as error:
        print(f"Without control groups (version 1): {error}")
    return ways


def named(runs: int, *, slow: bool) -> None:
    ways = slowed() if slow else {"nothing": [sys.executable]}
    right = 0
    for run in range(runs):
        rank, (way, command) = run % 4, [*ways.items()][run % len(ways)]
        begun = time.perf_counter()
        found = checked(4, {rank: command}, _SHORT, GLOO_SOCKET_IFNAME="lo")
        outliers = sorted({one for outlier in found["outliers"] for one in outlier["ranks"]})
        right += outliers == ([rank] if slow else [])
        by = ", ".join(f"{one['measure']} {one['worse']:.0%}" for one in found["outliers"])
        took, load = time.perf_counter() - begun, os.getloadavg()[0]
        print(f"run {run}: {way} on rank {rank}, named {outliers} ({by}); {took:.0f} s, load {load:.1f}", flush=True)
    print(f"{right} of {runs} right")


def link(mbit: float) -> None:
    """Two nodes, each a network namespace."""
    lacking = [name for name in ("ip", "tc") if shutil.which(name) is None]
    if lacking or os.geteuid():
        sys.exit(f"Skipped: this machine lacks {', '.join(lacking) or 'root'}.")
    names = [f"check{os.getpid()}{side}" for side in "ab"]
    try:
        for name in names:
            _run("ip", "netns", "add", name)
        _run("ip", "link", "add", "veth0", "netns", names[0], "type", "veth", "peer", "veth0", "netns", names[1])
        for i, name in enumerate(names):
            inside = ("ip", "netns", "exec", name)
            _run(*inside, "ip", "addr", "add", f"10.99.0.{i + 1}/24", "dev", "veth0")
            _run(*inside, "ip", "link", "set", "veth0", "up")
            _run(*inside, "ip", "link", "set", "lo", "up")
            shape = ("rate", f"{mbit}mbit", "burst", "64kb", "latency", "100ms")
            _run(*inside, "tc", "qdisc", "add", "dev", "veth0", "root", "tbf", *shape)
        prefixes = {
            i: ["ip", "netns", "exec", name, "env", f"GROUP_RANK={i}", sys.executable] for i, name in enumerate(names)
        }
        found = checked(2, prefixes, _LONG, MASTER_ADDR="10.99.0.1", GLOO_SOCKET_IFNAME="veth0")
    except subprocess.CalledProcessError as error:
        sys.exit(f"Skipped: this machine does not allow {' '.join(error.cmd)}.")
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
    true = mbit / 8e3
    gbs = statistics.median(pair["gbs"] for pair in found["pairs"])
    print(
        f"nodes: {found['nodes']}; pair: {gbs * 1e3:.2f} MB/s, shaped to {true * 1e3:.2f} MB/s: {gbs / true - 1:+.1%}"
    )
    for curve in found["curves"]:
        fit = curve["fit"]
        if fit:
            print(f"{curve['kind']}: alpha {fit['alpha_us']:.0f} µs, busbw {fit['busbw_gbs'] * 1e3:.2f} MB/s, "
                  f"{fit['busbw_gbs'] / true - 1:+.1%}, R² {fit['r2']:.2f}")  # fmt: skip


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["slow", "healthy", "link"])
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--mbit", type=float, default=100.0)
    options = parser.parse_args()
    if options.what == "link":
        link(options.mbit)
    else:
        named(options.runs, slow=options.what == "slow")


if __name__ == "__main__":
    main()
