"""The members of a trace's JSON around its events: to a `Header`, and a `Header` to them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tb_ddp_doctor.findings import Workload
from tb_ddp_doctor.trace import model
from tb_ddp_doctor.trace.losses import Loss, Losses
from tb_ddp_doctor.trace.times import MAX_NS

#: Beyond, a sum of two numbers would not fit 64 bits.
MOST_NUMBER = 1 << 62
#: No step has more tokens, samples or operations.
_MOST_AMOUNT = 1e30
#: What the user may tell the `Doctor` of a step.
_AMOUNTS = ("tokens_per_step", "samples_per_step", "model_flops_per_step")


def header_of(members: Mapping[str, Any], losses: Losses) -> model.Header:
    """The header from untrusted members: what has the wrong type is missing."""
    distributed = _dict(members.get("distributedInfo"))
    groups = [
        (str(group["pg_name"])[: model.MOST_HEADER_LETTERS], group)
        for group in map(_dict, _list(distributed.get("pg_config")))
        if isinstance(group.get("pg_name"), str | int)
    ]
    devices = [_dict(device) for device in _list(members.get("deviceProperties"))]
    base = members.get("baseTimeNanoseconds", 0)
    base_ns = _natural(base)
    if base_ns is None or base_ns > MAX_NS:
        losses.add(Loss.HEADER, 0, f"baseTimeNanoseconds is {str(base)[:32]}")
        base_ns = 0
    return model.Header(
        rank=_claimed(distributed, "rank", losses),
        world_size=_claimed(distributed, "world_size", losses),
        backend=_text(distributed.get("backend")),
        groups={
            name: tuple(rank for rank in _list(group.get("ranks")) if _natural(rank) is not None)
            for name, group in groups
        },
        group_descriptions={name: said for name, group in groups if (said := _text(group.get("pg_desc")))},
        devices={
            device["id"]: _text(device.get("name")) for device in devices if _natural(device.get("id")) is not None
        },
        device_bytes={
            device["id"]: size
            for device in devices
            if _natural(device.get("id")) is not None
            and 0 < (size := _natural(device.get("totalGlobalMem")) or 0) < 2**63
        },
        multiprocessors={
            device["id"]: size
            for device in devices
            if _natural(device.get("id")) is not None and 0 < (size := _natural(device.get("numSms")) or 0) < 1 << 16
        },
        capabilities={
            device["id"]: major + (_natural(device.get("computeMinor")) or 0) / 10
            for device in devices
            if _natural(device.get("id")) is not None and (major := _natural(device.get("computeMajor"))) is not None
        },
        host=_text(members.get("host_name")),
        base_ns=base_ns,
        has_shapes=_is_set(members.get("record_shapes")),
        has_stacks=_is_set(members.get("with_stack")),
        workload=_workload(_dict(members.get("ddp_doctor"))),
    )


def members_of(header: model.Header) -> dict[str, Any]:
    """The members that `header_of` reads the header from, but for the time that all times count from."""
    groups = [
        {
            "pg_name": name,
            "pg_desc": header.group_descriptions.get(name, ""),
            "pg_size": len(ranks),
            "ranks": list(ranks),
        }
        for name, ranks in header.groups.items()
    ]
    claims = {"rank": header.rank, "world_size": header.world_size, "backend": header.backend or None}
    known = {name: value for name, value in claims.items() if value is not None}
    amounts = {name: getattr(header.workload, name) for name in _AMOUNTS}
    members = {
        "distributedInfo": known | ({"pg_config": groups} if groups else {}),
        "deviceProperties": [_device(header, number) for number in header.devices],
        "host_name": header.host,
        "record_shapes": int(header.has_shapes),
        "with_stack": int(header.has_stacks),
        "ddp_doctor": {name: amount for name, amount in amounts.items() if amount is not None},
    }
    return {name: value for name, value in members.items() if value}


def _device(header: model.Header, number: int) -> dict[str, Any]:
    """A device's properties, those that are known."""
    capability = header.capabilities.get(number)
    major = None if capability is None else int(capability)
    properties = {
        "id": number,
        "name": header.devices[number],
        "totalGlobalMem": header.device_bytes.get(number),
        "numSms": header.multiprocessors.get(number),
        "computeMajor": major,
        "computeMinor": None if capability is None or major is None else round((capability - major) * 10),
    }
    return {name: value for name, value in properties.items() if value is not None}


def _workload(metadata: Mapping[str, Any]) -> Workload:
    """What the user told of a step; what is no number above 0 is missing."""
    return Workload(*(_amount(metadata.get(name)) for name in _AMOUNTS))


def _amount(value: Any) -> float | None:
    """A number above 0; the readers of JSON leave numbers with a fraction as they are spelled."""
    if not isinstance(value, int | float | str) or isinstance(value, bool):
        return None
    try:
        amount = float(value)
    except (ValueError, OverflowError):
        return None
    return amount if 0 < amount <= _MOST_AMOUNT else None


def _claimed(distributed: Mapping[str, Any], key: str, losses: Losses) -> int | None:
    """A number of "distributedInfo"; what is none is told."""
    value = distributed.get(key)
    number = _natural(value)
    if number is None and value is not None:
        losses.add(Loss.HEADER, 0, f"{key} is {json.dumps(value)[:32]}")
    return number


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: Any) -> str:
    return value[: model.MOST_HEADER_LETTERS] if isinstance(value, str) else ""


def _natural(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_NUMBER else None


def _is_set(value: Any) -> bool:
    return isinstance(value, int) and bool(value)
