"""Every figure that is shown: what it is, of which ranks and steps, and where its cell is.

The tab's "?", `ddp-doctor explain` and docs/quantities.md are made from this table, so a figure has one definition.
What a term of docs/glossary.md defines already is not said again here: `meaning` is "" then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from tb_ddp_doctor.step_parts import MEMORY, OWNERS, PHASES


class Quantity(msgspec.Struct, frozen=True, kw_only=True):
    """What a figure is."""

    #: Its definition or formula; "" where the glossary's term of the same name has it.
    meaning: str = ""
    #: Of which ranks and steps it is, and whether it is a mean, a median or a sum; ends without a full stop.
    over: str
    #: The view of the tab that has its cell (frontend/src/views), and the field of the JSON; "" where there is none.
    view: str
    field: str = ""
    #: Headings of tables that mean it, beside its name, with the unit where they have one: "step, ms".
    heads: tuple[str, ...] = ()


_OF_RANK = "mean over the kept steps, of each rank; of several ranks their mean"
_OF_FINDING = "a step, mean over ranks and kept steps"
_OF_CALLS = "of one call; of a kind and group the mean over calls"
_OF_KERNELS = "a step, mean over ranks and kept steps"
_AT_PEAK = "of one rank, at its peak of allocated bytes"


def _step_quantities() -> Iterator[tuple[str, Quantity]]:
    yield (
        "step time",
        Quantity(
            over="mean over the kept steps; of the job the mean over ranks",
            view="ranks",
            field="step_ms",
            heads=("step, ms", "Step now"),
        ),
    )
    yield "busy time", Quantity(over=_OF_RANK, view="ranks", field="budget_ms")
    for name, owner in OWNERS.items():
        view = "ranks" if name in ("compute", "copy", "wait", "transfer") else "budget"
        heads = ("exposed",) if name == "transfer" else ()
        yield (
            owner.title,
            Quantity(meaning=owner.when, over=_OF_RANK, view=view, field=f"budget_ms.*.{name}", heads=heads),
        )
    for name, phase in PHASES.items():
        yield f"{name} (phase)", Quantity(meaning=phase.when, over=_OF_RANK, view="budget", heads=(f"{name}, ms",))
    yield "GPU idle", Quantity(over=_OF_RANK, view="ranks", heads=("idle",))
    yield (
        "communication",
        Quantity(
            meaning="from this rank's arrival to the end, straggler wait included, hidden or exposed (as in HTA)",
            over=_OF_RANK,
            view="ranks",
            heads=("comm.",),
        ),
    )
    yield (
        "communication without wait",
        Quantity(
            meaning="from the last arrival, by the common clock, to the end on this rank, hidden or exposed; the time "
            "of a call in Communication needs no clock, since it is that of the rank that arrives last",
            over=_OF_RANK,
            view="ranks",
            heads=("comm. without wait", "without wait"),
        ),
    )
    yield (
        "overlap",
        Quantity(
            meaning="share of communication without wait that runs beside compute or a copy",
            over=_OF_RANK,
            view="ranks",
        ),
    )
    yield (
        "share of the step",
        Quantity(meaning="exposed communication / step time", over=_OF_RANK, view="mesh", field="mesh.dimensions"),
    )
    yield "critical path", Quantity(over="of one step, across ranks", view="verdict", field="critical_path")


def _account_quantities() -> Iterator[tuple[str, Quantity]]:
    yield "account", Quantity(over=_OF_FINDING, view="verdict", field="account.lines")
    for name in ("floor", "tracing", "unexplained"):
        yield name, Quantity(over=_OF_FINDING, view="verdict", field=f"account.lines[kind={name}].ms")
    yield "limit", Quantity(over=_OF_FINDING, view="verdict", field="account.floor_lines")
    yield "cost", Quantity(over=_OF_FINDING, view="findings", field="findings[].cost_ms", heads=("cost, ms",))
    yield "if fixed alone", Quantity(over=_OF_FINDING, view="findings", field="findings[].alone_ms")
    yield (
        "80 % interval",
        Quantity(
            over="of a cost", view="findings", field="findings[].range_ms", heads=("80 % interval from", "to, ms")
        ),
    )
    yield "opportunity", Quantity(over=_OF_FINDING, view="findings", field="opportunities[].cost_ms")
    yield "step with the fixes", Quantity(over=_OF_FINDING, view="findings", field="account.lines")
    yield "GPU-hours lost a day", Quantity(over="of all ranks of the job", view="verdict")
    yield "rank, world size", Quantity(over="of the job", view="quality", field="world_size")
    for name in ("tokens/s per GPU", "samples/s per GPU", "energy a day", "money a day", "MFU"):
        yield name, Quantity(over="of the job, by what the user says that a step does", view="verdict", field="rates")
    yield "check", Quantity(over="of one run", view="quality", field="outcomes")


def _communication_quantities() -> Iterator[tuple[str, Quantity]]:
    view = "communication"
    yield (
        "straggler wait of a call",
        Quantity(
            meaning="from a rank's arrival at a collective to the arrival of the last rank",
            over="mean over the ranks of a call; of a kind and group the mean over calls",
            view=view,
            field="communication[]",
        ),
    )
    yield (
        "time of a call",
        Quantity(
            meaning="communication without wait: how long the call is for the rank that arrives last",
            over=_OF_CALLS,
            view=view,
        ),
    )
    for name in ("size", "algbw", "busbw"):
        heads = () if name == "size" else (f"{name}, GB/s",)
        yield name, Quantity(over=_OF_CALLS, view=view, field="communication[]", heads=heads)
    yield (
        "possible busbw",
        Quantity(
            meaning="what the links could do: as a calibration measured it for such groups, or between GPUs of a node "
            "by the table of devices",
            over="of groups with as many ranks and nodes",
            view=view,
            heads=("possible busbw, GB/s",),
        ),
    )
    yield (
        "latency, busbw at large size",
        Quantity(
            over="fitted over the calls of a kind and group",
            view=view,
            heads=("latency", "busbw at large size, GB/s"),
        ),
    )


def _group_quantities() -> Iterator[tuple[str, Quantity]]:
    view = "communication"
    yield (
        "bytes in a step",
        Quantity(meaning="bytes of all calls of a group", over="of one group of a dimension, a step", view="mesh"),
    )
    yield (
        "straggler wait in a dimension",
        Quantity(
            meaning="from a rank's arrival until the last one has arrived, exposed or hidden",
            over="a step, mean over ranks",
            view="mesh",
        ),
    )
    yield (
        "outliers",
        Quantity(
            meaning="calls that take much longer than other calls of their size", over="a number of calls", view=view
        ),
    )
    yield (
        "vs comparable groups",
        Quantity(
            meaning="time without straggler wait / the median of comparable groups, at the same size",
            over=_OF_CALLS,
            view=view,
        ),
    )
    yield (
        "calls",
        Quantity(
            meaning="how many are made a step: 2.5 where every second step makes one more", over=_OF_KERNELS, view=view
        ),
    )
    yield (
        "arrives last",
        Quantity(
            meaning="share of a node's collectives in which other nodes wait for one of its ranks",
            over="of all calls",
            view=view,
        ),
    )
    yield (
        "wait caused",
        Quantity(
            meaning="straggler wait of the other nodes for this one",
            over="a step, mean over the ranks that wait",
            view=view,
        ),
    )


def _compute_quantities() -> Iterator[tuple[str, Quantity]]:
    yield (
        "GPU time",
        Quantity(meaning="time in kernels of a name, also beside other kernels", over=_OF_KERNELS, view="operators"),
    )
    yield "share of GPU time", Quantity(meaning="GPU time / that of all rows", over=_OF_KERNELS, view="operators")
    yield (
        "mean length",
        Quantity(
            meaning="GPU time, or Self CPU, / calls",
            over="over all calls",
            view="operators",
            heads=("mean, µs", "mean Self CPU, µs"),
        ),
    )
    yield "occupancy", Quantity(over="over a kernel's calls, weighted by time", view="operators")
    yield (
        "tensor cores",
        Quantity(
            meaning="share of the time in kernels that use tensor cores, judged by kernel name",
            over=_OF_KERNELS,
            view="operators",
        ),
    )
    yield "Self CPU, Self CUDA", Quantity(over=_OF_KERNELS, view="operators", heads=("Self CPU", "Self CUDA"))
    yield (
        "max",
        Quantity(
            meaning="the largest of all ranks, with the rank that has it",
            over="a step, mean over steps",
            view="operators",
        ),
    )
    yield "attainable", Quantity(over=_OF_KERNELS, view="operators", heads=("above",))
    yield "time of a kernel", Quantity(meaning="time of the kernels of an operator", over=_OF_KERNELS, view="operators")
    yield "reached", Quantity(meaning="attainable time / time", over=_OF_KERNELS, view="operators")
    yield (
        "rate",
        Quantity(meaning="what is reached of FLOPS, or of the memory's bandwidth", over=_OF_KERNELS, view="operators"),
    )
    yield (
        "work",
        Quantity(meaning="FLOP, and bytes that have to be read and written", over="of one call", view="operators"),
    )


def _module_quantities() -> Iterator[tuple[str, Quantity]]:
    yield (
        "time of a module",
        Quantity(
            meaning="GPU time of a module with all modules within it", over="a step, median over ranks", view="layers"
        ),
    )
    yield "share of a module", Quantity(meaning="time of a module / step time", over="median over ranks", view="layers")
    yield (
        "part of a module's time",
        Quantity(
            meaning="the part of a module's time in forward, backward, or exposed communication",
            over="a step, median over ranks",
            view="layers",
        ),
    )
    yield (
        "longest",
        Quantity(
            meaning="the largest time of a module of all ranks, with the rank that has it",
            over="a step, mean over steps",
            view="layers",
        ),
    )


def _memory_quantities() -> Iterator[tuple[str, Quantity]]:
    yield (
        "allocated, reserved",
        Quantity(
            over="of one rank, at a time",
            view="memory",
            field="memory",
            heads=("allocated", "allocated, GB", "reserved, GB", "max allocated", "max reserved", "peak"),
        ),
    )
    yield "reserved but unallocated", Quantity(over=_AT_PEAK, view="memory", field="memory")
    yield (
        "share of the GPU's memory",
        Quantity(
            meaning="reserved / the memory of the GPU",
            over="of one rank, at its peak",
            view="memory",
            heads=("reserved, share of GPU",),
        ),
    )
    yield "share of allocated", Quantity(meaning="bytes / allocated bytes", over=_AT_PEAK, view="memory")
    yield (
        "change in a phase",
        Quantity(meaning="allocated bytes at its end minus those at its beginning", over=_AT_PEAK, view="memory"),
    )
    yield "size of a block", Quantity(meaning="bytes of one tensor or buffer", over=_AT_PEAK, view="memory")
    yield (
        "more than the median",
        Quantity(
            meaning="allocated bytes above the median rank's",
            over="of one rank, at its peak",
            view="memory",
        ),
    )
    for part in MEMORY.values():
        yield (
            f"{part.title} (memory)",
            Quantity(meaning=part.when, over=_AT_PEAK, view="memory", heads=(f"{part.title}, GB",)),
        )


def _compared_quantities() -> Iterator[tuple[str, Quantity]]:
    view = "compare"
    yield (
        "before, after, change",
        Quantity(
            meaning="the same figure of the earlier run, of the later run, and their difference",
            over=_OF_KERNELS,
            view=view,
            heads=(
                "before",
                "after",
                "change",
                "lost",
                *(f"{what} {when}" for what in ("Self CPU", "Self CUDA") for when in ("before", "after", "change")),
                *(f"{what} {when}" for what in ("calls", "reached") for when in ("before", "after")),
            ),
        ),
    )
    yield (
        "loss",
        Quantity(meaning="what a run's findings cost a step, or what nothing explains", over=_OF_FINDING, view=view),
    )


def _quality_quantities() -> Iterator[tuple[str, Quantity]]:
    yield (
        "clock offset",
        Quantity(
            meaning="what is subtracted from a rank's clock to align it",
            over="of one rank",
            view="quality",
            field="clock",
        ),
    )
    yield (
        "drift",
        Quantity(
            meaning="change of the clock offset from the first step to the last",
            over="of one rank",
            view="quality",
            field="clock",
        ),
    )


def _evidence_quantities() -> Iterator[tuple[str, Quantity]]:
    yield (
        "length of evidence",
        Quantity(
            meaning="from its beginning to its end",
            over="of one rank in one step",
            view="findings",
            field="findings[].evidence[]",
            heads=("length", "from \N{EN DASH} to, in the step"),
        ),
    )
    yield (
        "measured",
        Quantity(
            meaning="a number that a finding rests on, of the ranks and steps in its row",
            over="as its row says",
            view="findings",
            field="findings[].measurements[]",
            heads=("measured value",),
        ),
    )


def _history_quantities() -> Iterator[tuple[str, Quantity]]:
    yield (
        "step times of a block",
        Quantity(
            meaning="the shortest, median, 99th percentile and longest step",
            over="of the steps of a block of the history, over its ranks",
            view="history",
            heads=("minimum, ms", "median, ms", "p99, ms", "maximum, ms"),
        ),
    )


#: By name.
QUANTITIES: Mapping[str, Quantity] = dict(
    [
        *_step_quantities(),
        *_account_quantities(),
        *_communication_quantities(),
        *_group_quantities(),
        *_compute_quantities(),
        *_module_quantities(),
        *_memory_quantities(),
        *_compared_quantities(),
        *_quality_quantities(),
        *_evidence_quantities(),
        *_history_quantities(),
    ]
)
