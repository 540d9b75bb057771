"""Step times in Lightning's metrics.csv and Hugging Face's trainer_state.json, where these have any.

    Lightning     `train/time` (or train|time ...) of ThroughputMonitor: s of training since the job began, by `step`
    Hugging Face  `train_runtime` in log_history, with include_num_input_tokens_seen: s since the job began, by `step`

Without those neither has a clock; rows without these columns are passed over.
"""

from __future__ import annotations

import csv
import io
import math
import re
from pathlib import Path
from typing import Any

import msgspec

from tb_ddp_doctor.history.logs.points import LoggedStep
from tb_ddp_doctor.known_type import known
from tb_ddp_doctor.storage.plain_file import open_plain

METRICS, TRAINER_STATE = "metrics.csv", "trainer_state.json"
_MOST_BYTES = 1 << 28
#: ThroughputMonitor's name of the stage, a separator of the user's, and the name of the measure.
_TIME = re.compile(r"train[^A-Za-z0-9]time")


class _TrainerState(msgspec.Struct):
    log_history: list[dict[str, Any]] = []


def read_metrics(path: Path) -> list[LoggedStep]:
    """The rows of a metrics.csv that say how long the job had trained. Raises OSError."""
    rows = csv.DictReader(io.StringIO(_read(path).decode("utf-8", "replace")))
    try:
        named = next((name for name in rows.fieldnames or () if _TIME.fullmatch(name)), None)
        if named is None:
            return []
        # Steps are counted from 0: after step 9 ten have ended.
        return [
            LoggedStep(int(step) + 1, at_s)
            for row in rows
            if math.isfinite(step := _float(row.get("step"))) and math.isfinite(at_s := _float(row.get(named)))
        ]
    except csv.Error:
        return []


def read_trainer_state(path: Path) -> list[LoggedStep]:
    """The entries of a log_history that say how long the job had run. Raises OSError."""
    try:
        state = msgspec.json.decode(_read(path), type=known(_TrainerState))
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return []
    steps = []
    for entry in state.log_history:
        step, at_s = _float(entry.get("step")), _float(entry.get("train_runtime"))
        # The last entry is about the whole job, from which train_loss is.
        if math.isfinite(step) and math.isfinite(at_s) and "train_loss" not in entry:
            steps.append(LoggedStep(int(step), at_s))
    return steps


def _read(path: Path) -> bytes:
    with open_plain(path) as file:
        return file.read(_MOST_BYTES)


def _float(value: object) -> float:
    if not isinstance(value, (str, int, float)):
        return math.nan
    try:
        return float(value)
    except (ValueError, OverflowError):
        return math.nan
