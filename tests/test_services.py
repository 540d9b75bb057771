"""Storage of clusters other than S3, as fsspec hands it on: a service's paths, what it tells of files, its refusals.

No server of Google's, Azure's or Hadoop's runs here. A folder stands for each, under the service's own name, behind
the calls that fsspec makes of it, and tells of its files in that service's words.
"""

from __future__ import annotations

import gzip
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import _registry
from soak import HEALTHY, SLOW, server
from traces import draw, in_row, ranks, write

from tb_ddp_doctor import cli
from tb_ddp_doctor.discover import runs
from tb_ddp_doctor.discover.runs import DiscoverError

TRACES = in_row(ranks(HEALTHY, SLOW, HEALTHY))


def _stamp(path: Path) -> datetime:
    return datetime.fromtimestamp(path.stat().st_mtime, timezone.utc)


#: What gcsfs, adlfs and pyarrow's HDFS tell of a file beside its name, size and type.
TELLS = {
    "gs": lambda path: {"updated": _stamp(path).isoformat().replace("+00:00", "Z"), "etag": str(path.stat().st_size)},
    "az": lambda path: {"last_modified": _stamp(path), "etag": str(path.stat().st_size)},
    "hdfs": lambda path: {"mtime": _stamp(path)},
}


class Folder(DirFileSystem):  # type: ignore[misc]  # fsspec has no types
    """A folder as a service: `gs://bucket/logs` is `bucket/logs` in it."""

    cachable = False
    root: ClassVar[Path]
    service: ClassVar[str]
    #: Whether only those may read who ask without credentials, as of a public bucket on a machine that has none.
    is_public: ClassVar[bool] = False

    def __init__(self, **options: Any) -> None:
        if self.is_public and not options:
            raise PermissionError("no credentials were found")
        super().__init__(path=str(self.root), fs=LocalFileSystem())

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return path.split("://", 1)[-1].strip("/")

    def find(self, path: str, **options: Any) -> Any:
        about = super().find(path, **options)
        words = {name: TELLS[self.service](self.root / name) for name in about}
        return {name: {"size": each["size"], "type": "file", **words[name]} for name, each in about.items()}


@pytest.fixture(params=sorted(TELLS))
def service(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Folder]]:
    """A service, and a bucket in it with a job."""
    # Processes that read are forked from this one, which alone knows the service.
    monkeypatch.setattr("tb_ddp_doctor.workers.process._has_one_thread", lambda: True)
    folder = type(
        "Service", (Folder,), {"root": tmp_path / "service", "service": request.param, "protocol": request.param}
    )
    before = _registry.get(request.param)
    fsspec.register_implementation(request.param, folder, clobber=True)
    job = write(tmp_path / "service" / "bucket" / "logs" / "job", TRACES)
    for path in job.iterdir():  # of an hour ago, so that nobody waits for more of them
        os.utime(path, (time.time() - 3600,) * 2)
    yield folder
    # Forked from this one, they keep the pipes of what else runs in it, such as a browser, from ending.
    for process in multiprocessing.active_children():
        process.kill()
        process.join()
    del _registry[request.param]
    if before:
        _registry[request.param] = before


def diagnosed(address: str, capfdbinary: pytest.CaptureFixture[bytes]) -> dict[str, Any]:
    assert cli.main(["diagnose", address, "--json"]) == 0
    (run,) = json.loads(capfdbinary.readouterr().out)["runs"]
    return dict(run)


def test_a_service_is_diagnosed_as_a_folder_is(
    service: type[Folder], capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    there = diagnosed(f"{service.service}://bucket/logs", capfdbinary)
    here = diagnosed(str(service.root / "bucket" / "logs"), capfdbinary)
    assert there["name"] == "job"
    assert there["findings"] and there["findings"] == here["findings"]


def test_a_public_bucket_needs_no_credentials(
    service: type[Folder], capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "is_public", True)
    if service.service == "hdfs":  # which has no such thing
        with pytest.raises(DiscoverError, match="no credentials were found"):
            runs.discover("hdfs://bucket/logs")
    else:
        assert diagnosed(f"{service.service}://bucket/logs", capfdbinary)["verdict"] == "straggler"


@pytest.mark.parametrize("name", ["node1.pt.trace.json.zst", "logs.tar"])
def test_what_is_packed_beside_the_traces_is_said(service: type[Folder], name: str) -> None:
    (service.root / "bucket" / "logs" / name).write_bytes(b"")
    write(service.root / "bucket" / "other", TRACES)
    job, other = runs.discover(f"{service.service}://bucket")
    assert [warning.file for warning in job.warnings] == [f"{service.service}://bucket/logs/{name}"]
    assert "unpack it" in job.warnings[0].message
    assert not other.warnings


def test_nothing_but_what_is_packed_is_said_in_a_sentence(service: type[Folder]) -> None:
    (service.root / "packed").mkdir()
    (service.root / "packed" / "all.tgz").write_bytes(b"")
    with pytest.raises(DiscoverError, match=r"packed/all\.tgz: This format is not supported"):
        runs.discover(f"{service.service}://packed")


def test_a_file_that_changes_is_another_file(service: type[Folder]) -> None:
    (before,) = runs.discover(f"{service.service}://bucket/logs")
    first = min((service.root / "bucket" / "logs" / "job").iterdir())
    time.sleep(0.01)
    first.write_bytes(first.read_bytes() + b" ")
    (after,) = runs.discover(f"{service.service}://bucket/logs")
    assert before.files[0] != after.files[0]
    assert before.files[1:] == after.files[1:]


@pytest.mark.parametrize("name", ["a b", "a#b", "50%", "a%20b", "new\nline", "a&b=c?d", "ü", "\udcff", "a\\b", "~"])
def test_odd_names_in_the_tab(service: type[Folder], name: str) -> None:
    """Of runs and of files."""
    job = service.root / "bucket" / "logs" / "job"
    for path in job.iterdir():
        path.rename(path.with_name(name + path.name))
    job.rename(job.with_name(name))
    get = server(f"{service.service}://bucket/logs")
    until = time.monotonic() + 120
    while (
        not (runs := get("/runs", reload="").get_json()["runs"]) or runs[0]["state"] != "ready" or runs[0]["arriving"]
    ):
        assert time.monotonic() < until, runs
        time.sleep(0.05)
    (run,) = runs
    assert run["ranks"] == 3
    assert get("/run", run=run["name"]).get_json()["diagnosis"]["verdict"] == "straggler"
    window = {"ranks": "0,1", "start": "0", "end": str(2**62)}
    assert get("/slice", run=run["name"], **window).status_code == 200


def test_the_memory_of_a_notebook(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    system = MemoryFileSystem()
    for rank, data in draw(TRACES).items():
        system.pipe(f"/logs/job/host{rank}_1.1700000000000000000.pt.trace.json.gz", gzip.compress(data))
    assert diagnosed("memory://logs", capfdbinary)["verdict"] == "straggler"
    system.rm("/logs", recursive=True)


@pytest.mark.parametrize(
    ("address", "package", "extra"),
    [
        ("s3://bucket/logs", "s3fs", "s3"),
        ("gs://bucket/logs", "gcsfs", "gcs"),
        ("az://bucket/logs", "adlfs", "azure"),
        ("hdfs://host/logs", "pyarrow", "hdfs"),
    ],
)
def test_a_package_that_is_missing_is_named(
    address: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(_registry, address.partition(":")[0], raising=False)
    assert cli.main(["diagnose", address]) == 2
    sentence = f"Reading {address.partition(':')[0]}:// takes another package: pip install 'tb-ddp-doctor[{extra}]'"
    assert sentence in " ".join(capsys.readouterr().err.split())
