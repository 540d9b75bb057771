"""Every reader of JSON refuses text that msgspec refuses in any of its ways: no UTF-8, too deep, cut off."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from zlib import crc32

import pytest

from tb_ddp_doctor.calibration.load import CalibrationError
from tb_ddp_doctor.calibration.load import load as load_calibration
from tb_ddp_doctor.capture.directory import read_json
from tb_ddp_doctor.commands import answers
from tb_ddp_doctor.discover.head import Head, peek
from tb_ddp_doctor.discover.runs import discover
from tb_ddp_doctor.evidence import find as evidence
from tb_ddp_doctor.evidence.model import RECORD_SUFFIX, CaptureRecord
from tb_ddp_doctor.flight import load as flight
from tb_ddp_doctor.flight import ras
from tb_ddp_doctor.storage.column_file import StoreError, load

#: Values of an object's key "a".
TEXTS = {"no UTF-8": b'"\xa4"', "half a character": b'"\xed\xa0\x80"', "deep": b"[" * 100_000, "cut off": b'"'}


def digest_file(path: Path, value: bytes) -> Path:
    """A digest whose checksums are right and one of whose values is no JSON."""
    index = b'{"kind": "Head", "version": "1", "read": 0, "columns": [], "values": {"header": %s}}' % value
    index += b" " * (-(24 + len(index)) % 64)
    head = b"ddpdoc\0\1" + len(index).to_bytes(8, "little") + crc32(index).to_bytes(4, "little") + bytes(4)
    path.write_bytes(head + index)
    return path


def refuses(kind: type[Exception], read: Callable[[Path], object]) -> Callable[[Path], object]:
    def refused(path: Path) -> None:
        with pytest.raises(kind) as raised:
            read(path)
        assert str(raised.value).endswith((".", ")", "?"))

    return refused


def answer(path: Path) -> object:
    data = b"\x92" + path.read_bytes()
    path.write_bytes(hashlib.sha256(data).digest() + data)
    return answers._load(path)


def deep_answer(path: Path) -> object:
    data = b"\x81\xa1a" + b"\x91" * 100_000
    path.write_bytes(hashlib.sha256(data).digest() + data)
    return answers._load(path)


READERS: dict[str, Callable[[Path], object]] = {
    "calibration": refuses(CalibrationError, load_calibration),
    "record": lambda path: read_json(path, CaptureRecord),
    "dump": refuses(flight.DumpError, flight.read),
    "ras": refuses(ValueError, lambda path: ras.read(path, 2)),
    "answer": answer,
    "deep answer": deep_answer,
}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_text_that_is_no_json_is_refused(tmp_path: Path, text: bytes, read: Callable[[Path], object]) -> None:
    path = tmp_path / "file"
    for key in (b"source", b"host", b"rank", b"entries"):
        path.write_bytes(b'{"%s": %s' % (key, text))
        assert read(path) is None


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_a_record_that_is_no_json_is_passed_over(tmp_path: Path, text: bytes) -> None:
    (tmp_path / f"rank0{RECORD_SUFFIX}").write_bytes(b'{"a": ' + text)
    assert evidence.find([tmp_path], [evidence.Rank(0, "", "1")], []) == {}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_a_digest_whose_index_is_no_json_costs_itself(tmp_path: Path, text: bytes) -> None:
    path = digest_file(tmp_path / "rank0.pt.trace.json.digest", text)
    refuses(StoreError, lambda path: load(Head, "1", path))(path)
    assert peek(path) == Head()
    (run,) = discover(tmp_path)
    assert [file.path for file in run.files] == [path]
