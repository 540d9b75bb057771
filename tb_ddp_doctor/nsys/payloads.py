"""What NCCL says of its calls by NVTX payloads: communicator, bytes, peer and rank (NCCL 2.20 and later).

The export holds them as JSON (`nsys export --include-json=true`), or as bytes (`--include-blobs=true`): a header of 32
bytes (domain, schema and sizes), then the payload's fields at the offsets that NVTX_PAYLOAD_SCHEMA_ENTRIES tells.
"""

from __future__ import annotations

import re
import struct
from collections import defaultdict
from typing import Any, NamedTuple

import msgspec

from tb_ddp_doctor.nsys.database import NVTX, Database
from tb_ddp_doctor.storage.message import REFUSALS

#: Domain, reserved, schema, reserved, bytes of the payload, bytes in all.
_HEADER = struct.Struct("<IIIIQQ")
#: Formats by NVTX's number of a type: NVTX_PAYLOAD_ENTRY_TYPE_INT, ...UINT, LONG ..., INT8 ..., SIZE.
_FORMATS = {
    5: "<i", 6: "<I", 7: "<q", 8: "<Q", 9: "<q", 10: "<Q", 11: "<b", 12: "<B",
    13: "<h", 14: "<H", 15: "<i", 16: "<I", 17: "<q", 18: "<Q", 22: "<Q",
}  # fmt: skip
#: Fields by the words in their labels, whatever NCCL's version calls them.
_FIELDS = (
    ("communicator", re.compile(r"communicator|comm(?:_|\b)", re.IGNORECASE)),
    ("ranks", re.compile(r"no\. of ranks|nranks|number of ranks", re.IGNORECASE)),
    ("bytes", re.compile(r"message size|\bbytes\b|msg ?size", re.IGNORECASE)),
    ("peer", re.compile(r"peer", re.IGNORECASE)),
    ("rank", re.compile(r"^rank$", re.IGNORECASE)),
)
_MOST = (1 << 63) - 1


class Payload(NamedTuple):
    """What a call says; -1 where it does not."""

    communicator: int = -1
    ranks: int = -1
    rank: int = -1
    bytes: int = -1
    peer: int = -1


def has_payloads(database: Database) -> bool:
    """Whether an export may hold payloads: it says whether it was asked for them."""
    table = "META_DATA_EXPORT"
    if not database.has(NVTX, "jsonText", "binaryData") or not database.has(table, "name", "value"):
        return database.has(NVTX, "jsonText", "binaryData")
    query = f"SELECT value FROM {table} WHERE name IN ('EXPORT_PARAM_INCLUDE_JSON', 'EXPORT_PARAM_INCLUDE_BLOBS')"
    said = [value for (value,) in database.rows(query)]
    return "true" in said or not said


class Payloads:
    """Reads payloads by the schemas of a file."""

    def __init__(self, database: Database) -> None:
        #: By domain and schema: field, format and offset of each.
        self._schemas: defaultdict[tuple[int, int], list[tuple[str, struct.Struct, int]]] = defaultdict(list)
        table = "NVTX_PAYLOAD_SCHEMA_ENTRIES"
        if database.has(table, "domainId", "schemaId", "type", "name", "offset"):
            query = f"SELECT DISTINCT domainId, schemaId, type, name, coalesce(offset, 0) FROM {table}"
            for domain, schema, kind, name, offset in database.rows(query):
                field = _field(name)
                if field and kind in _FORMATS and isinstance(offset, int) and 0 <= offset < 1 << 16:
                    self._schemas[domain, schema].append((field, struct.Struct(_FORMATS[kind]), offset))

    def read(self, json: Any, binary: Any) -> Payload | None:
        """The payload of an event; None where it has none that can be read."""
        fields = _of_json(json) if json else self._of_bytes(binary)
        return Payload(**fields) if fields else None

    def _of_bytes(self, data: Any) -> dict[str, int]:
        if not isinstance(data, bytes) or len(data) < _HEADER.size:
            return {}
        domain, _, schema, *_ = _HEADER.unpack_from(data)
        fields = {}
        for field, form, offset in self._schemas.get((domain, schema), ()):
            if _HEADER.size + offset + form.size <= len(data):
                # A communicator's number is a hash of 64 bits; columns are signed.
                fields[field] = form.unpack_from(data, _HEADER.size + offset)[0] & _MOST
        return fields


def _of_json(text: Any) -> dict[str, int]:
    """Fields of {"Message size [bytes]": 4096, ...}, at any depth."""
    try:
        ahead = [msgspec.json.decode(str(text))]
    except REFUSALS:
        return {}
    fields: dict[str, int] = {}
    while ahead:
        value = ahead.pop()
        if isinstance(value, list):
            ahead += value
        elif isinstance(value, dict):
            named = value.get("name"), value.get("value")
            for key, each in [*value.items(), named]:
                field = _field(key)
                number = _integer(each)
                if field and number is not None:
                    fields.setdefault(field, number & _MOST)
                elif isinstance(each, dict | list):
                    ahead.append(each)
    return fields


def _field(name: Any) -> str:
    return next((field for field, label in _FIELDS if isinstance(name, str) and label.search(name)), "")


def _integer(value: Any) -> int | None:
    if isinstance(value, str) and re.fullmatch(r"0x[0-9a-fA-F]{1,16}", value):
        return int(value, 16)
    if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,20}", value):
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
