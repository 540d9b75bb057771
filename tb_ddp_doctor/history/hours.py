"""A job's hours for Python: what they say, and the numbers as data frames."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, get_args

import msgspec
import numpy as np

from tb_ddp_doctor.choices import refusal
from tb_ddp_doctor.history.collectives import CollectiveHours
from tb_ddp_doctor.history.job import JobHistory
from tb_ddp_doctor.history.summary import Summary

if TYPE_CHECKING:
    import pandas as pd

Table = Literal["events", "steps", "ranks"]


class Hours(msgspec.Struct, frozen=True):
    """What a job's step times say, and the step times."""

    summary: Summary
    job: JobHistory
    #: What the Inspector of NCCL or RCCL wrote there; None where it wrote nothing.
    collectives: CollectiveHours | None = None

    def to_pandas(self, table: Table = "events") -> pd.DataFrame:
        """A row for each event, each step, or each bin of steps with a column for each rank; times in ms.

        Raises ImportError where pandas is not installed, and ValueError for a table that there is not.
        """
        if table not in get_args(Table):
            raise ValueError(refusal("A table", table, get_args(Table)))
        import pandas as pd

        if table == "events":
            return pd.DataFrame([msgspec.to_builtins(event) for event in self.summary.events])
        return pd.DataFrame(self._steps() if table == "steps" else self._ranks())

    def _steps(self) -> dict[str, Any]:
        steps, of_column = self.job.pyramid.steps, self.job.steps_a_column
        return {
            "step": self.job.pyramid.first_step + np.arange(len(steps.length_us)) * of_column,
            "begin_s": steps.begins_ns / 1e9,
            "length_ms": steps.length_us / of_column / 1000,
            "largest_busy_ms": steps.largest_us / of_column / 1000,
            "median_busy_ms": steps.median_us / of_column / 1000,
        }

    def _ranks(self) -> dict[str, Any]:
        pyramid, of_column = self.job.pyramid, self.job.steps_a_column
        first = pyramid.first_step + of_column * pyramid.width * np.arange(pyramid.median_us.shape[1])
        medians_ms = pyramid.median_us / of_column / 1000
        of_ranks = {f"rank {rank}": row for rank, row in zip(pyramid.ranks, medians_ms, strict=True)}
        return {"first_step": first, **of_ranks}
