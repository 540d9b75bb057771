"""What is given to others: a run's report and Markdown by the tab, a notebook, numbers for experiment trackers."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import nbformat
import pytest
from nbclient import NotebookClient
from tensorboard.plugins import base_plugin
from traces import ranks, write
from werkzeug.test import Client, TestResponse

from tb_ddp_doctor import findings
from tb_ddp_doctor.api import diagnose
from tb_ddp_doctor.findings import Diagnosis
from tb_ddp_doctor.plugin.plugin import DiagnosisPlugin
from tb_ddp_doctor.trackers import numbers

ROOT = Path(__file__).parents[1]
NOTEBOOK = ROOT / "docs" / "notebook.ipynb"
OTHER = """
    rank# step |1
          gpu  [fwd....][bwd.]
          nccl                [ar........]
"""
SLOW = """
    rank# step |1
          gpu  [fwd........][bwd.]
          nccl                    [ar....]
"""
Get = Callable[..., TestResponse]


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("logs")
    write(folder / "<b>job", ranks(OTHER, SLOW, OTHER))
    return folder


@pytest.fixture(scope="module")
def get(logs: Path) -> Get:
    apps = DiagnosisPlugin(base_plugin.TBContext(logdir=str(logs))).get_plugin_apps()

    def ask(route: str, **query: str) -> TestResponse:
        return Client(apps[route]).get(route, query_string=query)

    until = time.monotonic() + 90
    while ask("/run", run="<b>job").status_code != 200:
        assert time.monotonic() < until
        time.sleep(0.05)
    return ask


@pytest.fixture(scope="module")
def job(logs: Path) -> Diagnosis:
    (diagnosis,) = diagnose(logs, cache=None)
    return diagnosis


def test_the_tab_gives_a_report_to_save_that_needs_no_server(get: Get) -> None:
    response = get("/report", run="<b>job", format="html")
    assert response.status_code == 200
    # Saved, not shown: shown, its scripts would be of TensorBoard's own origin.
    assert response.headers["Content-Disposition"] == "attachment"
    page = response.data.decode()
    assert "Content-Security-Policy" in page and "ddp-doctor-answers" in page and "<b>job" not in page


def test_the_tab_gives_text_for_a_pull_request(get: Get) -> None:
    response = get("/report", run="<b>job", format="markdown")
    assert response.headers["Content-Type"].startswith("text/markdown")
    assert response.data.decode().startswith("## ddp-doctor: &lt;b&gt;job")


def test_what_there_is_not_is_said(get: Get) -> None:
    assert get("/report", run="none", format="html").status_code == 404
    assert get("/report", run="<b>job", format="pdf").status_code == 400


def test_a_notebook_shows_the_account_as_a_bar_whose_parts_are_the_steps(job: Diagnosis) -> None:
    page = job._repr_html_()
    shares = [float(share) for share in re.findall(r"flex:([\d.]+) 1 0", page)]
    assert sum(shares) == pytest.approx(1, abs=0.001)
    assert "<b>&lt;b&gt;job</b>" in page and "straggler" in page


@pytest.mark.parametrize("table", get_args(findings.Table))
def test_every_table_is_a_data_frame(job: Diagnosis, table: Any) -> None:
    frame = job.to_pandas(table)
    rows = {"account": len(job.account.lines), "findings": len(job.findings), "budget": len(job.ranks)}
    assert len(frame) == rows.get(table, len(frame))
    if table == "evidence":
        assert set(frame.finding) >= {"straggler"} and frame.end_ns.gt(frame.start_ns).all()


def test_the_notebook_says_what_it_says_when_it_is_executed() -> None:
    stored = nbformat.read(NOTEBOOK, as_version=4)
    again = nbformat.from_dict({**stored, "cells": [{**cell} for cell in stored.cells]})
    NotebookClient(again, timeout=120, resources={"metadata": {"path": str(ROOT)}}).execute()
    assert said(again) == said(stored), "execute docs/notebook.ipynb again, and look at it"
    assert any("straggler" in text for text in said(stored))


def said(notebook: Any) -> list[str]:
    """What the cells show, without what else a kernel notes."""
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert all(output.output_type == "execute_result" for output in outputs), outputs
    return [output.data.get("text/html", output.data["text/plain"]) for output in outputs]


def test_trackers_get_the_account_and_each_rules_cost(job: Diagnosis) -> None:
    found = numbers(job)
    assert found["ddp_doctor/step_ms"] == job.step_ms
    assert found["ddp_doctor/finding/straggler_ms"] == job.findings[0].cost_ms
    parts = sum(value for name, value in found.items() if name != "ddp_doctor/step_ms")
    assert parts == pytest.approx(job.step_ms)
