"""Questions in words and as arguments: what a user types, and what is shown of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import msgspec

from tb_ddp_doctor.planning.model import Question

_DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "fp8": "float8"}


class Field(msgspec.Struct, frozen=True):
    """A field of a question that can have several values."""

    #: Name on the command line, and as it is shown with a value.
    option: str
    shown: str
    parse: Callable[[str], object]
    help: str


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value) or value <= 0:
        raise ValueError(text)
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise ValueError(text)
    return value


def _times(text: str) -> float:
    return _number(text.removesuffix("x").removeprefix("x"))


def _dtype(text: str) -> str:
    return _DTYPES.get(text, text)


#: By name in `Question`.
FIELDS: Mapping[str, Field] = {
    "bucket_mb": Field("--bucket-mb", "bucket_cap_mb={}", _number, "bucket_cap_mb of DistributedDataParallel, MiB"),
    "ranks": Field("--ranks", "{} ranks", _count, "ranks, each with as much work as now (see --strong)"),
    "links": Field("--links", "links {}x as fast", _times, "times as fast, such as 2x; or a calibration.json"),
    "dtype": Field("--dtype", "gradients in {}", _dtype, "what gradients are sent as: fp32, fp16, bf16 or fp8"),
    "sharding": Field("--sharding", "{}", str, "how states are sharded: ddp, zero1, zero2, zero3 or hsdp"),
    "prefetch": Field("--prefetch", "prefetch={}", _count, "units of FSDP that are gathered ahead"),
    "accumulate": Field("--accumulate", "{} passes for each AllReduce", _count, "backward passes for each AllReduce"),
    "workers": Field("--workers", "num_workers={}", _count, "workers of the DataLoader"),
    "device": Field("--device", "on {}", str, "another GPU, by name, such as H200"),
}


def values(name: str, text: str) -> list[object]:
    """The values of a field from a text with commas. Raises ValueError, with a sentence."""
    field, found = FIELDS[name], []
    for part in filter(None, (one.strip() for one in text.split(","))):
        try:
            found.append(field.parse(part))
        except ValueError:
            raise ValueError(f"{field.option} takes {field.help}, not {part!r}.") from None
    if not found:
        raise ValueError(f"{field.option} takes {field.help}.")
    return found


def question_of(given: Mapping[str, str], **more: object) -> Question:
    """A question of one value for each field. Raises ValueError, with a sentence."""
    single = {}
    for name, text in given.items():
        found = values(name, text)
        if len(found) != 1:
            raise ValueError(f"{name} takes one value, not {text!r}.")
        single[name] = found[0]
    return msgspec.structs.replace(Question(), **single, **more)


def asked(given: Mapping[str, Sequence[object]], **more: object) -> tuple[Question, dict[str, Sequence[object]]]:
    """A question of the fields with one value, and the fields with several, for curves."""
    single = {name: found[0] for name, found in given.items() if len(found) == 1}
    question = msgspec.structs.replace(Question(), **single, **more)
    return question, {name: found for name, found in given.items() if len(found) > 1}


def shown(question: Question) -> str:
    """What a question asks, in a few words."""
    parts = [
        field.shown.format(f"{value:g}" if isinstance(value, float) else value)
        for name, field in FIELDS.items()
        if (value := getattr(question, name)) is not None
    ]
    if question.strong:
        parts.append("the same work in all")
    if question.links_of is not None:
        parts.append(f"links as in {question.links_of}")
    if question.pin_memory is not None:
        parts.append(f"pin_memory={question.pin_memory}")
    if question.offload:
        parts.append("shards on the CPU")
    if question.graphs:
        parts.append("launches by CUDA graphs")
    parts += [f"{name} fixed" for name in question.fixed]
    return ", ".join(parts) or "as recorded"
