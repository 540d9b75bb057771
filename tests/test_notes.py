"""Notes on findings: one file beside the logs, written on a click from the tab's own page, and read as text."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorboard.plugins import base_plugin
from werkzeug.test import Client, TestResponse

from tb_ddp_doctor.plugin.notes import MOST_ASKED, MOST_READ, NAME, Notes
from tb_ddp_doctor.plugin.plugin import DiagnosisPlugin

HERE = "http://localhost"
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def client(logdir: str) -> Client:
    return Client(DiagnosisPlugin(base_plugin.TBContext(logdir=logdir)).get_plugin_apps()["/notes"])


def sent(logdir: Path | str, origin: str | None = HERE, **note: Any) -> TestResponse:
    headers = {} if origin is None else {"Origin": origin}
    return client(str(logdir)).post("/notes", json=note, headers=headers)


def test_a_note_is_kept_beside_the_logs_and_removed_when_it_is_empty(tmp_path: Path) -> None:
    kept = {"comment": "GC: <b>see</b> #12", "pinned": True, "fixed_in": "run_7"}
    assert sent(tmp_path, key="straggler host 1", **kept).get_json()["notes"] == {"straggler host 1": kept}
    assert json.loads((tmp_path / NAME).read_text())["notes"] == {"straggler host 1": kept}
    assert client(str(tmp_path)).get("/notes").get_json() == {"writable": True, "notes": {"straggler host 1": kept}}
    sent(tmp_path, key="straggler host 1", comment="", pinned=False, fixed_in="")
    assert client(str(tmp_path)).get("/notes").get_json()["notes"] == {}
    assert os.listdir(tmp_path) == [NAME]


@pytest.mark.parametrize("origin", [None, "null", "http://evil.example", "http://localhost.evil.example", "localhost"])
def test_a_page_from_elsewhere_writes_nothing(tmp_path: Path, origin: str | None) -> None:
    answer = sent(tmp_path, origin, key="straggler", comment="x")
    assert answer.status_code == 403 and not os.listdir(tmp_path)


def test_only_posts_of_json_write(tmp_path: Path) -> None:
    form = client(str(tmp_path)).post("/notes", data={"key": "a", "comment": "b"}, headers={"Origin": HERE})
    assert form.status_code == 403
    client(str(tmp_path)).put("/notes", json={"key": "a", "comment": "b"}, headers={"Origin": HERE})
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize(
    "note", [{}, {"key": 1}, {"key": "a" * 301}, {"key": "a", "comment": "x" * 1001}, {"key": "a", "comment": None}]
)
def test_what_is_no_note_is_refused(tmp_path: Path, note: dict[str, Any]) -> None:
    answer = sent(tmp_path, **note)
    assert answer.status_code == 400 and answer.get_json()["error"].startswith("This is no note")
    assert not os.listdir(tmp_path)


def test_a_long_request_is_not_read(tmp_path: Path) -> None:
    assert sent(tmp_path, key="a", comment="x" * MOST_ASKED).status_code == 413


@pytest.mark.parametrize("logdir", ["", "gs://bucket/logs", "/nowhere/at/all"])
def test_where_nothing_can_be_written_the_browser_is_told(logdir: str) -> None:
    assert client(logdir).get("/notes").get_json() == {"writable": False, "notes": {}}
    answer = sent(logdir, key="a", comment="b")
    assert answer.status_code == 409 and "this browser" in answer.get_json()["error"]


@given(JSON_VALUES)
def test_any_file_is_read_as_notes_or_as_none(tmp_path_factory: pytest.TempPathFactory, content: Any) -> None:
    folder = tmp_path_factory.mktemp("logs")
    for written in (content, {"notes": content}, {"notes": {"a": content}}):
        (folder / NAME).write_text(json.dumps(written))
        for key, note in Notes(folder).all().items():
            assert isinstance(key, str) and isinstance(note["comment"], str) and note["pinned"] in (True, False)


def test_a_file_that_is_too_large_or_no_file_is_not_read(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text(json.dumps({"notes": {"a": {"comment": "b"}}}) + " " * MOST_READ + "x")
    assert Notes(tmp_path).all() in ({}, {"a": {"comment": "b", "pinned": False, "fixed_in": ""}})
    (tmp_path / NAME).unlink()
    (tmp_path / NAME).mkdir()
    assert Notes(tmp_path).all() == {}
    (tmp_path / NAME).rmdir()
    (tmp_path / NAME).write_text("[" * 100_000)
    assert Notes(tmp_path).all() == {}


def test_so_many_notes_are_kept(tmp_path: Path) -> None:
    every = {f"rule {i}": {"comment": "x", "pinned": False, "fixed_in": ""} for i in range(500)}
    (tmp_path / NAME).write_text(json.dumps({"version": 1, "notes": every}))
    assert sent(tmp_path, key="one more", comment="x").status_code == 409
    assert sent(tmp_path, key="rule 7", comment="y").get_json()["notes"]["rule 7"]["comment"] == "y"
