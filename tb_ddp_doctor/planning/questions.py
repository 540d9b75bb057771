"""Reads questions from what users type, and shows them in a few words."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

import msgspec

from tb_ddp_doctor.choices import did_you_mean, refusal
from tb_ddp_doctor.planning.model import SHARDINGS, Question

#: Sharding with units of parameters, whose size `bucket_mb` is then.
_OF_UNITS, _UNITS = ("zero2", "zero3", "hsdp"), "units of {} MiB"
_DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "fp8": "float8"}


class Field(msgspec.Struct, frozen=True):
    """A field of a question that can have several values."""

    #: Name on the command line.
    option: str
    #: How a value is shown, as a format string.
    shown: str
    #: Reads a value from text or a Python object; raises ValueError if the field does not take it.
    parse: Callable[[object], object]
    #: The option's text in the command's help.
    help: str
    #: The values that it takes, as they follow its name and "takes" in a sentence.
    takes: str
    #: What is between several values.
    between: str = ","


def _number(value: object) -> float:
    number = float(str(value))
    if isinstance(value, bool) or not math.isfinite(number) or number <= 0:
        raise ValueError
    return number


def _count(least: int) -> Callable[[object], int]:
    def count(value: object) -> int:
        number = int(str(value))
        if isinstance(value, bool) or number < least:
            raise ValueError
        return number

    return count


def _times(value: object) -> float:
    return _number(value.strip().removesuffix("x").removeprefix("x") if isinstance(value, str) else value)


def _named(names: Iterable[str], short: Mapping[str, str] = MappingProxyType({})) -> Callable[[object], str]:
    """A parser that accepts some names and short forms of them, in upper or lower case."""
    by_letters = {name.casefold(): full for name, full in {**{name: name for name in names}, **short}.items()}

    def name(value: object) -> str:
        if not isinstance(value, str) or value.casefold() not in by_letters:
            raise _UnknownError(did_you_mean(value, by_letters))
        return by_letters[value.casefold()]

    return name


def _mesh(value: object) -> str:
    # Imported only here: see below.
    from tb_ddp_doctor.planning.mesh.sizes import parsed, written

    return written(parsed(str(value)))


def _device(value: object) -> str:
    # Imported only here: the command line imports this module before all else, and facts take long to import.
    from tb_ddp_doctor.facts.peaks import DEVICES, limits

    if not isinstance(value, str) or limits(value) is None:
        raise _UnknownError(did_you_mean(value, DEVICES) or f" It knows {', '.join(DEVICES)}.")
    return value


class _UnknownError(ValueError):
    """An unknown name. Its text is a sentence with the nearest known name, or with all of them, or ""."""


#: By name in `Question`.
FIELDS: Mapping[str, Field] = {
    "bucket_mb": Field(
        "--bucket-mb",
        "bucket_cap_mb={}",
        _number,
        "bucket_cap_mb of DistributedDataParallel, MiB",
        "a number of MiB above 0, such as 25",
    ),
    "ranks": Field(
        "--ranks",
        "{} ranks",
        _count(1),
        "train on so many ranks, each with as much work as now (see --strong)",
        "a whole number of ranks, 1 or more",
    ),
    "mesh": Field(
        "--mesh",
        "mesh {}",
        _mesh,
        "train the same model with so many ranks along each dimension, such as dp=16,tp=4,pp=4; several with ';'",
        "dimensions (dp, tp, pp, cp, ep) and their ranks, such as dp=16,tp=4,pp=4",
        ";",
    ),
    "links": Field(
        "--links",
        "links {}x as fast",
        _times,
        "links that are so many times as fast, such as 2x; or those that a calibration.json measured",
        "how many times as fast links are, such as 2x, or the name of a calibration.json that there is",
    ),
    "dtype": Field(
        "--dtype",
        "gradients in {}",
        _named(_DTYPES.values(), _DTYPES),
        f"send gradients as one of: {', '.join(_DTYPES)}",
        f"one of {', '.join(_DTYPES)}",
    ),
    "sharding": Field(
        "--sharding",
        "{}",
        _named(SHARDINGS),
        f"shard parameters, gradients and optimizer states as one of: {', '.join(SHARDINGS)}",
        f"one of {', '.join(SHARDINGS)}",
    ),
    "prefetch": Field(
        "--prefetch",
        "prefetch={}",
        _count(0),
        "with --sharding: FSDP gathers the parameters of so many units ahead",
        "a whole number of units of FSDP, 0 or more",
    ),
    "accumulate": Field(
        "--accumulate",
        "{} passes for each AllReduce",
        _count(1),
        "accumulate the gradients of so many backward passes for each AllReduce",
        "a whole number of backward passes, 1 or more",
    ),
    "workers": Field(
        "--workers",
        "num_workers={}",
        _count(0),
        "load with so many workers of the DataLoader (num_workers)",
        "a whole number of workers, 0 or more",
    ),
    "device": Field(
        "--device",
        "on {}",
        _device,
        "train on another GPU, such as H200",
        "the name of a GPU whose peak rates the doctor knows",
    ),
}


def values(name: str, text: str) -> list[object]:
    """The values of a field, from text with commas, or what else is between them. Raises ValueError with a sentence."""
    field = FIELDS[name]
    parsed = [
        _value(field, field.option, part) for part in filter(None, (one.strip() for one in text.split(field.between)))
    ]
    if not parsed:
        raise ValueError(f"{field.option} takes {field.takes}.")
    return parsed


def _value(field: Field, called: str, given: object) -> object:
    try:
        return field.parse(given)
    except _UnknownError as near:
        raise ValueError(f"{called} takes {field.takes}, not {given!r}.{near}") from None
    except ValueError:
        raise ValueError(f"{called} takes {field.takes}, not {given!r}.") from None


def checked(
    question: Question, curves: Mapping[str, Sequence[object]] | None = None
) -> tuple[Question, dict[str, Sequence[object]]]:
    """A question and curves with their values in the form that the planner uses: "bfloat16" for "bf16".

    Raises ValueError with a sentence for unknown values and curves.
    """
    given = {name: value for name in FIELDS if (value := getattr(question, name)) is not None}
    single = {name: _value(FIELDS[name], name, value) for name, value in given.items()}
    of_curves: dict[str, Sequence[object]] = {}
    for name, several in (curves or {}).items():
        if name not in FIELDS:
            raise ValueError(refusal("A curve's name", name, FIELDS))
        of_curves[name] = tuple(_value(FIELDS[name], name, value) for value in several)
    return msgspec.structs.replace(question, **single), of_curves


def question_of(given: Mapping[str, str], **more: object) -> Question:
    """The question with one value for each given field. Raises ValueError with a sentence."""
    single = {}
    for name, text in given.items():
        given_values = values(name, text)
        if len(given_values) != 1:
            raise ValueError(f"{name} takes one value, not {text!r}.")
        single[name] = given_values[0]
    return msgspec.structs.replace(Question(), **single, **more)


def asked(given: Mapping[str, Sequence[object]], **more: object) -> tuple[Question, dict[str, Sequence[object]]]:
    """The question of the fields with one value, and the values of those with several, for curves."""
    single = {name: values_of[0] for name, values_of in given.items() if len(values_of) == 1}
    question = msgspec.structs.replace(Question(), **single, **more)
    return question, {name: values_of for name, values_of in given.items() if len(values_of) > 1}


def shown(question: Question) -> str:
    """A question in a few words, such as "bucket_cap_mb 50, 16 ranks"."""
    has_units = question.bucket_mb is not None and question.sharding in _OF_UNITS
    parts = [
        (_UNITS if has_units and name == "bucket_mb" else field.shown).format(
            f"{value:g}" if isinstance(value, float) else value
        )
        for name, field in FIELDS.items()
        if (value := getattr(question, name)) is not None
    ]
    if question.strong:
        parts.append("the same work in all")
    if question.links_of is not None:
        parts.append(f"links as in {question.links_of}")
    if question.pin_memory is not None:
        parts.append(f"pin_memory={question.pin_memory}")
    if question.gathers_in_time:
        parts.append("all-gathers issued in time")
    if question.offload:
        parts.append("shards on the CPU")
    if question.graphs:
        parts.append("launches by CUDA graphs")
    parts += [f"{name} fixed" for name in question.fixed]
    return ", ".join(parts) or "as recorded"
