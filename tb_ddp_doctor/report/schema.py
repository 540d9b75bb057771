"""The JSON Schema of `ddp-doctor diagnose --json`.

python -m tb_ddp_doctor.report.schema > docs/diagnosis.schema.json
"""

from __future__ import annotations

import sys
from typing import Any

import msgspec

from tb_ddp_doctor.findings import SCHEMA_VERSION, Report


def schema() -> dict[str, Any]:
    """Made of the structs that the JSON is made of."""
    made = msgspec.json.schema(Report)
    made["$defs"]["Report"]["properties"]["schema_version"] = {"const": SCHEMA_VERSION}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "ddp-doctor diagnose --json",
        **made,
    }


def text() -> str:
    """As docs/diagnosis.schema.json has it."""
    return msgspec.json.format(msgspec.json.encode(schema())).decode() + "\n"


if __name__ == "__main__":
    sys.stdout.write(text())
