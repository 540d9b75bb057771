"""Traces on an S3 server of loopback (moto's), through the command and the plugin."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer
from s3fs import S3FileSystem
from soak import HEALTHY, SLOW, server
from traces import draw, in_row, ranks, write

from tb_ddp_doctor import cli
from tb_ddp_doctor.discover.runs import DiscoverError, discover
from tb_ddp_doctor.storage.paths import RemotePath

TRACES = in_row(ranks(HEALTHY, SLOW, HEALTHY))
KEY = "secret"


@pytest.fixture(scope="module")
def s3() -> Iterator[Any]:
    """A client of the server; what the doctor uses comes from the environment, as its users' does."""
    moto = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    moto.start()
    host, port = moto.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", endpoint)
        patch.setenv("AWS_ACCESS_KEY_ID", KEY)
        patch.setenv("AWS_SECRET_ACCESS_KEY", KEY)
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        patch.setenv("AWS_CONFIG_FILE", "/nowhere")
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
        yield boto3.client("s3", endpoint_url=endpoint)
    moto.stop()


@pytest.fixture(autouse=True)
def _new_connections() -> Iterator[None]:
    """A connection, with its credentials, is kept for who asks again."""
    S3FileSystem.clear_instance_cache()
    yield
    S3FileSystem.clear_instance_cache()


@pytest.fixture
def bucket(s3: Any, request: pytest.FixtureRequest) -> str:
    name = f"bucket-{abs(hash(request.node.name))}"
    s3.create_bucket(Bucket=name)
    return name


def put(s3: Any, bucket: str, folder: str = "logs/job", **options: str) -> None:
    for rank, data in draw(TRACES).items():
        key = f"{folder}/host{rank}_{100 + rank}.1700000000000000000.pt.trace.json.gz"
        s3.put_object(Bucket=bucket, Key=key, Body=gzip.compress(data), **options)


def diagnosed(address: str, capfdbinary: pytest.CaptureFixture[bytes]) -> list[dict[str, Any]]:
    assert cli.main(["diagnose", address, "--json"]) == 0
    runs: list[dict[str, Any]] = json.loads(capfdbinary.readouterr().out)["runs"]
    return runs


def test_a_bucket_is_diagnosed_as_a_folder_is(
    s3: Any, bucket: str, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    put(s3, bucket)
    (there,) = diagnosed(f"s3://{bucket}/logs", capfdbinary)
    (here,) = diagnosed(str(write(tmp_path / "logs" / "job", TRACES).parent), capfdbinary)
    assert there["name"] == "job"
    assert there["findings"]
    assert [there[key] for key in ("verdict", "findings", "budget_ms")] == [
        here[key] for key in ("verdict", "findings", "budget_ms")
    ]


def test_a_report_of_a_bucket(s3: Any, bucket: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(s3, bucket)
    report = tmp_path / "report.html"
    assert cli.main(["diagnose", f"s3://{bucket}/logs", "--html", str(report)]) == 0
    assert "Rank 1 is the straggler" in report.read_text()
    assert cli.main(["diagnose", f"s3://{bucket}/logs", "--markdown"]) == 0
    assert "**Rank 1 (host1) costs " in capsys.readouterr().out


def test_without_credentials(
    s3: Any, bucket: str, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    put(s3, bucket, ACL="public-read")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    assert len(diagnosed(f"s3://{bucket}/logs", capfdbinary)) == 1


def test_in_tensorboard_and_a_file_that_changes(s3: Any, bucket: str) -> None:
    put(s3, bucket)
    get = server(f"s3://{bucket}/logs")

    def ready() -> dict[str, Any]:
        until = time.monotonic() + 60
        while time.monotonic() < until:
            listing = get("/runs", reload="").get_json()
            if listing["runs"] and listing["runs"][0]["state"] == "ready" and not listing["runs"][0]["arriving"]:
                run: dict[str, Any] = listing["runs"][0]
                return run
            time.sleep(0.1)
        raise AssertionError(listing)

    run = ready()
    assert run["ranks"] == 3, get("/run", run="job").get_json()["diagnosis"]["warnings"]
    assert get("/slice", run="job", ranks="0,1", start="0", end=str(2**62)).status_code == 200


def test_a_bucket_of_200_files(s3: Any, bucket: str) -> None:
    traces = draw(TRACES)
    for job in range(50):
        put(s3, bucket, f"jobs/job{job}")
        s3.put_object(Bucket=bucket, Key=f"jobs/job{job}/events.out.tfevents.1", Body=b"no trace")
    runs = discover(f"s3://{bucket}/jobs")
    assert len(runs) == 50
    assert all(len(run.files) == len(traces) for run in runs)


@pytest.mark.parametrize("name", ["a b", "a#b", "50%", "a%20b", "ünï", "a?b", "a&b=c", "quo'te"])
def test_odd_names(s3: Any, bucket: str, name: str) -> None:
    put(s3, bucket, f"logs/{name}")
    (run,) = discover(f"s3://{bucket}/logs")
    assert run.name == name
    assert [file.path.open().read(2) for file in run.files if isinstance(file.path, RemotePath)] == [b"\x1f\x8b"] * 3


def test_a_large_file_is_not_read_to_know_what_it_is(s3: Any, bucket: str) -> None:
    data = draw(TRACES)[0]
    s3.put_object(Bucket=bucket, Key="logs/rank0.json", Body=data + b" " * (40 << 20))
    ((run,),) = ([*discover(f"s3://{bucket}/logs")],)
    assert run.files[0].size > 40 << 20


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("s3://no-such-bucket/logs", "s3://no-such-bucket/logs does not exist."),
        ("gs://bucket/logs", r"Reading gs:// takes another package: pip install 'tb-ddp-doctor\[gcs\]'"),
        ("nonsense://bucket", "nonsense:// cannot be read here"),
    ],
)
def test_what_cannot_be_read_is_said(s3: Any, address: str, sentence: str) -> None:
    with pytest.raises(DiscoverError, match=sentence):
        discover(address)


def test_a_changed_object_is_another_file(s3: Any, bucket: str) -> None:
    put(s3, bucket)
    (before,) = discover(f"s3://{bucket}/logs")
    s3.put_object(Bucket=bucket, Key=before.files[0].path.path.split("/", 1)[1], Body=gzip.compress(draw(TRACES)[0], 1))  # type: ignore[union-attr]
    (after,) = discover(f"s3://{bucket}/logs")
    assert before.files[0] != after.files[0]
    assert before.files[1:] == after.files[1:]


def test_an_sqlite_file_in_a_bucket_is_answered_with_what_to_do(s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="logs/node0.sqlite", Body=b"SQLite format 3\0")
    with pytest.raises(DiscoverError, match="copy it to a local folder and diagnose that"):
        discover(f"s3://{bucket}/logs")
    put(s3, bucket, "logs")
    (run,) = discover(f"s3://{bucket}/logs")
    assert any("node0.sqlite" in warning.file and "copy it" in warning.message for warning in run.warnings)
