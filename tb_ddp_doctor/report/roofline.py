"""The roofline in a terminal: the floor's lines, and the kernels with most time above attainable."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from tb_ddp_doctor import kernel_names, wording
from tb_ddp_doctor.engine import Result
from tb_ddp_doctor.facts import Facts
from tb_ddp_doctor.facts.peaks import Roofs
from tb_ddp_doctor.facts.roofline import KernelRoof, roofline
from tb_ddp_doctor.report.escape import printable
from tb_ddp_doctor.report.wrapping import print_wrapped, titled

#: Kernels that are listed.
_SHOWN = 16


def print_roofline(console: Console, result: Result) -> None:
    """Print what the step could take at these shapes, and which kernels are above it."""
    roofs = Facts(result.job).get(roofline)
    console.print()
    for line in result.diagnosis.account.floor_lines:
        if line.total_ns:
            name = line.kind.replace("-", " ")
            print_wrapped(console, f"{name}: {wording.duration(line.ms)} of the floor ({wording.percent(line.share)})")
    if roofs.roofs:
        print_wrapped(console, printable(_peaks(roofs.device, roofs.roofs)), "dim")
    for note in roofs.notes:
        print_wrapped(console, printable(note), "dim")
    columns = ("operator", "inputs", ">calls", ">ms", ">above", ">reached", ">rate")
    table = titled("Kernels by time above attainable, a step", *columns, no_wrap=True)
    known = [one for one in roofs.kernels if one.limit]
    for one in known[:_SHOWN]:
        table.add_row(
            Text(printable(one.operator.rpartition("::")[2] or kernel_names.short(one.name))),
            Text(printable(one.inputs)),
            wording.decimals(one.count, 0),
            wording.decimals(one.step_ns / 1e6, 2),
            wording.decimals(one.above_ns / 1e6, 2),
            wording.percent(one.of_attainable),
            _rate(one),
        )
    if known:
        console.print(table)


def _peaks(device: str, roofs: Roofs) -> str:
    """The peaks that kernels are compared with, and where they come from, a sentence."""
    rates = [f"{rate / 1e12:,.4g} TFLOPS in {name}" for name, rate in roofs.flops.items() if rate]
    part = f", {wording.percent(roofs.part)} of the GPU" if roofs.part < 1 else ""
    peaks = wording.listing([*rates, f"{wording.memory_rate(roofs.bandwidth)} of memory"])
    return f"Peaks of {device or 'this GPU'}{part}: {peaks} ({roofs.source})."


def _rate(one: KernelRoof) -> str:
    """What it reaches of what limits it."""
    by_flops = one.limit == "compute"
    return wording.flop_rate(one.achieved_flops) if by_flops else wording.memory_rate(one.achieved_bandwidth)
