"""What a comparison says: frozen structs, which are its JSON too."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Literal, get_args

import msgspec

from tb_ddp_doctor import wording
from tb_ddp_doctor.choices import refusal
from tb_ddp_doctor.findings import Source
from tb_ddp_doctor.notebook_html import table

if TYPE_CHECKING:
    import pandas as pd

#: What a comparison has as a table.
Table = Literal["owners", "findings", "communication", "kernels", "operators", "roofs", "modules", "module_kernels"]
Fate = Literal["fixed", "better", "same", "worse", "new"]


class Compared(msgspec.Struct, frozen=True):
    """What one of the two runs is."""

    name: str
    #: Ranks that have a trace here, of so many.
    ranks: int
    world_size: int
    #: Steps that all of them have.
    steps: int
    #: The devices' name, "" for a job without.
    device: str


class ComparedAmount(msgspec.Struct, frozen=True):
    """One amount in both runs, mean over ranks and steps, ms."""

    name: str
    before_ms: float
    after_ms: float

    @property
    def change_ms(self) -> float:
        return self.after_ms - self.before_ms


class FindingChange(msgspec.Struct, frozen=True):
    """What became of the findings of one rule."""

    rule: str
    fate: Fate
    before_ms: float
    after_ms: float
    #: Of the costliest of them, in the later run where it is still there.
    title: str


class KernelChange(msgspec.Struct, frozen=True):
    """Kernels of one name: time and launches of a rank's step. The name "" sums up all that are not listed."""

    name: str
    before_ms: float
    after_ms: float
    before_count: float
    after_count: float


class OperatorChange(msgspec.Struct, frozen=True):
    """An operator, annotation or runtime call: what a rank's step spends in it and in nothing within it.

    The device's time is that of what was launched directly inside; of collectives it counts their waiting too. The name
    "" sums up all that are not listed.
    """

    name: str
    before_host_ms: float
    after_host_ms: float
    before_device_ms: float
    after_device_ms: float
    before_count: float
    after_count: float


class RoofChange(msgspec.Struct, frozen=True):
    """Calls of an operator with the same inputs in both runs: how close they come to their attainable speed."""

    operator: str
    #: Sizes of its first tensors, as "16x5185x64, 16x64x5185", and the type of the first.
    inputs: str
    dtype: str
    #: Share of the attainable speed, 0 to 1; beyond 1 where the cache helps.
    before_share: float
    after_share: float
    #: Time of a rank's step.
    before_ms: float
    after_ms: float

    @property
    def lost_ms(self) -> float:
        """How much shorter a step of the later run would be at the earlier share; below 0 if longer."""
        return self.after_ms * (1 - self.after_share / self.before_share)


class ModuleChange(msgspec.Struct, frozen=True):
    """A module of the model in both runs: time of a step with all modules within it, the median over ranks, ms."""

    #: "layers.0.mlp", "" for the whole step; 0 ms where a run has none, or too little of it.
    path: str
    #: How many modules are around it.
    level: int
    before_ms: float
    after_ms: float


class ModuleKernelChange(msgspec.Struct, frozen=True):
    """A kernel of a module in both runs: its time in a step without modules within, the median over ranks, ms."""

    #: The module's, as in `ModuleChange`; then as in `findings.LayerKernel`.
    path: str
    part: str
    operator: str
    kernel: str
    source: Source | None
    before_ms: float
    after_ms: float


class StepTime(msgspec.Struct, frozen=True):
    """The mean step time of both runs."""

    before_ms: float
    after_ms: float
    #: Share of the earlier step that the later one is longer; and where it lies with 95 % confidence (`chance`), None
    #: where a run has one step.
    change: float
    interval: tuple[float, float] | None
    #: Whether the change is more than chance and `least_change` or more.
    tells: bool
    #: A smaller change, as a share of the earlier step, of it or of one of its parts is never significant.
    least_change: float
    #: Why there is no interval, or a wide one; "" where there are steps enough.
    doubt: str


class Comparison(msgspec.Struct, frozen=True):
    """Everything that differs between two runs."""

    before: str
    after: str
    #: Both, the earlier one first; and what else than the step time sets them apart, in sentences.
    runs: tuple[Compared, Compared]
    unlike: tuple[str, ...]
    #: One sentence on the step time, then one for each thing that made most of the difference.
    headline: str
    story: tuple[str, ...]
    step: StepTime
    owners: tuple[ComparedAmount, ...]
    #: Copies between host and device; the part of them that nothing hides; the host's time in those that block it.
    copies: ComparedAmount
    exposed_copies: ComparedAmount
    blocking_copies: ComparedAmount
    findings: tuple[FindingChange, ...]
    #: By kind of collective: what its transfers take, hidden or not, without the waiting.
    communication: tuple[ComparedAmount, ...]
    #: The 96 that changed most, and the sum of the others.
    kernels: tuple[KernelChange, ...]
    operators: tuple[OperatorChange, ...]
    #: Calls whose share of their attainable speed changed by a tenth of it or more, those that lost most time first.
    roofs: tuple[RoofChange, ...] = ()
    #: The model's modules as a tree, each followed by those within it; none where a run names none, or in another way.
    modules: tuple[ModuleChange, ...] = ()
    #: The 256 kernels of modules that changed most; none where `modules` has none.
    module_kernels: tuple[ModuleKernelChange, ...] = ()

    def to_pandas(self, table: Table = "owners") -> pd.DataFrame:
        """One of its tables as a data frame, a row per name.

        Raises ImportError where pandas is not installed, and ValueError for a table that there is not.
        """
        if table not in get_args(Table):
            raise ValueError(refusal("A table", table, get_args(Table)))
        import pandas as pd

        return pd.DataFrame([msgspec.to_builtins(row) for row in getattr(self, table)])

    def _repr_html_(self) -> str:
        """What a notebook shows: the sentences, and the owners. Names come from traces: all is escaped."""
        sentences = "".join(f"<li>{escape(sentence)}</li>" for sentence in (*self.story, *self.unlike))
        rows = [
            (
                owner.name,
                wording.decimals(owner.before_ms, 2),
                wording.decimals(owner.after_ms, 2),
                wording.decimals(owner.change_ms, 2, "+"),
            )
            for owner in self.owners
        ]
        owners = table(("ms a step", "before", "after", "change"), rows, left=(0,))
        return f"<p><b>{escape(self.headline)}</b></p><ul>{sentences}</ul>{owners}"
