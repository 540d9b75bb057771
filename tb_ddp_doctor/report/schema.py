"""The JSON Schemas of `calibration.json` and of what `diagnose`, `compare`, `plan` and `history --json` print."""

from __future__ import annotations

from typing import Any

import msgspec

from tb_ddp_doctor.calibration.model import Calibration
from tb_ddp_doctor.comparison.model import Comparison
from tb_ddp_doctor.findings import SCHEMA_VERSION
from tb_ddp_doctor.planning.model import PlanReport
from tb_ddp_doctor.report.history import HistoryAnswer
from tb_ddp_doctor.stuck.model import Report

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def diagnosis() -> dict[str, Any]:
    """Made of the structs that the JSON is made of."""
    made = msgspec.json.schema(Report)
    made["$defs"]["Report"]["properties"]["schema_version"] = {"const": SCHEMA_VERSION}
    return {"$schema": _DIALECT, "title": "ddp-doctor diagnose --json", **made}


def comparison() -> dict[str, Any]:
    """Made likewise."""
    return {"$schema": _DIALECT, "title": "ddp-doctor compare --json", **msgspec.json.schema(Comparison)}


def calibration() -> dict[str, Any]:
    """Made likewise."""
    return {"$schema": _DIALECT, "title": "calibration.json of tb_ddp_doctor.check", **msgspec.json.schema(Calibration)}


def plan() -> dict[str, Any]:
    """Made likewise."""
    return {"$schema": _DIALECT, "title": "ddp-doctor plan --json", **msgspec.json.schema(PlanReport)}


def history() -> dict[str, Any]:
    """Made likewise."""
    return {"$schema": _DIALECT, "title": "ddp-doctor history --json", **msgspec.json.schema(HistoryAnswer)}


#: By name, as docs/NAME.schema.json has them.
SCHEMAS = {
    "diagnosis": diagnosis,
    "comparison": comparison,
    "calibration": calibration,
    "plan": plan,
    "history": history,
}


def text(name: str) -> str:
    """A schema as its file has it."""
    return msgspec.json.format(msgspec.json.encode(SCHEMAS[name]())).decode() + "\n"
