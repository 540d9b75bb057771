"""Reads `ddp-doctor.toml` of the project, which is the user's own, and beside traces, which may be a stranger's.

    calibration = "calibration.json"     # relative to the file

    [thresholds.straggler]
    min_excess = 0.05

    [workload]
    tokens_per_step = 98304
    samples_per_step = 96
    model_flops_per_step = 5.2e15

    [price]
    gpu_hour = 2.50
    currency = "EUR"

What a file sets is listed with it, and shown wherever the diagnosis is. The project's values go before those beside the
traces; what the command line says goes before both. A file beside traces can name no calibration outside of its folder,
and one of a user who owns neither the process nor the traces is ignored. A file that is not right costs a warning.
"""

from __future__ import annotations

import codecs
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import msgspec

from tb_ddp_doctor.findings import ConfigUse, FileWarning, Workload
from tb_ddp_doctor.known_type import known
from tb_ddp_doctor.storage.message import REFUSALS
from tb_ddp_doctor.storage.plain_file import open_plain

NAME = "ddp-doctor.toml"
#: A file with every threshold takes a tenth.
_MOST_BYTES = 64 << 10
#: EUR, USD, or a sign.
_CURRENCY = re.compile(r"[A-Za-z]{3}|[$€£¥₹]")


class _Work(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a step of the whole job does."""

    tokens_per_step: float | None = None
    samples_per_step: float | None = None
    model_flops_per_step: float | None = None


class _Price(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a GPU costs an hour."""

    gpu_hour: float | None = None
    currency: str = ""


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The tables of a file."""

    thresholds: dict[str, dict[str, float]] = {}
    workload: _Work = _Work()
    price: _Price = _Price()
    calibration: str = ""


#: Thresholds by rule id, then by their name.
Settings: TypeAlias = Mapping[str, Mapping[str, float]]


class Config(msgspec.Struct, frozen=True):
    """What files set, those of the project first."""

    #: Thresholds by rule and name.
    thresholds: dict[str, dict[str, float]] = {}
    workload: Workload = Workload()
    currency: str = ""
    calibration: Path | None = None
    #: Each file that sets something, and what.
    used: tuple[ConfigUse, ...] = ()
    warnings: tuple[FileWarning, ...] = ()


def is_currency(text: str) -> bool:
    """Whether a text is a currency's three letters, or its sign."""
    return _CURRENCY.fullmatch(text) is not None


def read_config(places: Sequence[Path], project: Path | None) -> Config:
    """What the file of a project and the first one in `places`, folders beside the traces, set."""
    named = [project / NAME] if project else []
    beside = next((folder / NAME for folder in places if (folder / NAME).is_file()), None)
    if beside and not any(_is_same(beside, one) for one in named):
        named.append(beside)
    files, warnings = [], []
    for path in filter(Path.is_file, named):
        is_own = project is not None and path.parent == project
        try:
            files.append((path, _checked(path, is_own=is_own)))
        except (OSError, ValueError, ImportError, *REFUSALS) as error:
            warnings.append(FileWarning(str(path), f"Its settings are ignored: {error}"))
    return _joined(files, tuple(warnings))


def _is_same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False


def _checked(path: Path, *, is_own: bool) -> _File:
    """The tables of a file. Raises OSError, ValueError and msgspec's errors with a sentence."""
    if not is_own and not _may_be_trusted(path):
        raise ValueError("it belongs to another user than you and the traces.")
    with open_plain(path) as file:
        data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise ValueError(f"it is larger than {_MOST_BYTES:,} bytes.")
    # Editors of Windows begin a file with U+FEFF.
    read = msgspec.toml.decode(data.removeprefix(codecs.BOM_UTF8), type=known(_File))
    for name, value in _values(read):
        if isinstance(value, float) and not (math.isfinite(value) and value >= 0):
            raise ValueError(f"{name} is a number from 0 on, not {value:g}.")
    if read.price.currency and not is_currency(read.price.currency):
        raise ValueError(f"price.currency is three letters, such as EUR, or a sign, not {read.price.currency!r}.")
    if read.calibration and not is_own:
        real = Path(os.path.realpath(path.parent / read.calibration))
        if not real.is_relative_to(os.path.realpath(path.parent)):
            raise ValueError("its calibration lies outside of its folder.")
    return read


def _may_be_trusted(path: Path) -> bool:
    """Whether a file beside traces is the user's, root's, or of whoever owns the folder that it lies in."""
    if not hasattr(os, "getuid"):
        return True
    return path.stat().st_uid in (os.getuid(), 0, path.parent.stat().st_uid)


def _values(read: _File) -> Iterator[tuple[str, float | str]]:
    """Each value that a file sets, by its name in the file."""
    for rule, limits in read.thresholds.items():
        yield from ((f"{rule}.{name}", value) for name, value in limits.items())
    for table in (read.workload, read.price):
        given = msgspec.structs.asdict(table)
        yield from ((name, value) for name, value in given.items() if value not in (None, ""))
    if read.calibration:
        yield "calibration", read.calibration


def _joined(files: Sequence[tuple[Path, _File]], warnings: tuple[FileWarning, ...]) -> Config:
    """The files together: of a value that both set, the first one's is taken."""
    thresholds: dict[str, dict[str, float]] = {}
    known: dict[str, float] = {}
    currency, calibration = "", None
    used = []
    for path, read in files:
        for rule, limits in read.thresholds.items():
            thresholds[rule] = {**limits, **thresholds.get(rule, {})}
        given = {**msgspec.structs.asdict(read.workload), "gpu_hour": read.price.gpu_hour}
        known = {**{name: value for name, value in given.items() if value is not None}, **known}
        currency = currency or read.price.currency
        calibration = calibration or (path.parent / read.calibration if read.calibration else None)
        values = dict(_values(read))
        if values:
            used.append(ConfigUse(str(path), values))
    return Config(thresholds, Workload(**known), currency, calibration, tuple(used), warnings)
