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


#: Title and what the JSON is made of, by name, as docs/NAME.schema.json has them.
SCHEMAS: dict[str, tuple[str, type]] = {
    "diagnosis": ("ddp-doctor diagnose --json", Report),
    "comparison": ("ddp-doctor compare --json", Comparison),
    "calibration": ("calibration.json of tb_ddp_doctor.check", Calibration),
    "plan": ("ddp-doctor plan --json", PlanReport),
    "history": ("ddp-doctor history --json", HistoryAnswer),
}


def schema(name: str) -> dict[str, Any]:
    """A schema, made of the structs that the JSON is made of."""
    title, kind = SCHEMAS[name]
    made = msgspec.json.schema(kind)
    if kind is Report:
        made["$defs"]["Report"]["properties"]["schema_version"] = {"const": SCHEMA_VERSION}
    return {"$schema": _DIALECT, "title": title, **made}


def text(name: str) -> str:
    """A schema as its file has it."""
    return msgspec.json.format(msgspec.json.encode(schema(name))).decode() + "\n"
