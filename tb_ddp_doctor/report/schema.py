"""The JSON Schemas of `ddp-doctor diagnose --json` and `ddp-doctor compare --json`."""

from __future__ import annotations

from typing import Any

import msgspec

from tb_ddp_doctor.comparison.model import Comparison
from tb_ddp_doctor.findings import SCHEMA_VERSION
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


#: By name, as docs/NAME.schema.json has them.
SCHEMAS = {"diagnosis": diagnosis, "comparison": comparison}


def text(name: str) -> str:
    """A schema as its file has it."""
    return msgspec.json.format(msgspec.json.encode(SCHEMAS[name]())).decode() + "\n"
