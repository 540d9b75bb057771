"""What of a comparison is shown where there is little room: tables of text, for the terminal and for Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from tb_ddp_doctor import kernel_names, wording
from tb_ddp_doctor.comparison.model import ComparedAmount, Comparison

#: Kinds of collectives, kernels and operators shown.
_MOST = 10
#: Less than this rounds to nothing.
_LEAST_MS = 0.005
_TIMES = ("", "before", "after", "change")
_TIMES_AND_CALLS = (*_TIMES, "calls")
#: Time and calls before, time and calls after, of a rank's step.
_Amounts = tuple[float, float, float, float]


class ComparedTable(msgspec.Struct, frozen=True):
    """A table; the first column names its rows."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @property
    def align(self) -> str:
        """A letter for each column: names to the left, numbers to the right."""
        return "l" + "r" * (len(self.heads) - 1)


def parts(comparison: Comparison) -> Iterator[ComparedTable]:
    """Those that have something to show."""
    findings = [
        ComparedAmount(f"{each.rule} ({each.fate})", each.before_ms, each.after_ms) for each in comparison.findings
    ]
    tables = (
        ComparedTable("Where a step goes, ms", _TIMES, tuple(_changes(comparison.owners))),
        ComparedTable("Findings, ms", _TIMES, tuple(_changes(findings))),
        ComparedTable(
            "Communication without wait by kind of collective, ms",
            _TIMES,
            tuple(_changes(comparison.communication[:_MOST])),
        ),
        ComparedTable("Modules that changed most, ms", _TIMES, tuple(_modules(comparison))),
        ComparedTable("Kernels that changed most, ms", _TIMES_AND_CALLS, tuple(_kernels(comparison))),
        ComparedTable(
            "Kernels whose share of the attainable speed changed",
            ("", "before", "after", "ms before", "ms after"),
            tuple(_roofs(comparison)),
        ),
        ComparedTable("Operators that changed most, Self CPU, ms", _TIMES_AND_CALLS, tuple(_on_host(comparison))),
        ComparedTable(
            "Operators that changed most, Self CUDA, ms, collectives with straggler wait",
            _TIMES_AND_CALLS,
            tuple(_on_device(comparison)),
        ),
    )
    yield from (part for part in tables if part.rows)


def _changes(changes: Sequence[ComparedAmount]) -> Iterator[tuple[str, ...]]:
    for change in changes:
        if _shows(change.before_ms, change.after_ms):
            yield change.name, *_amounts(change.before_ms, change.after_ms)


def _modules(comparison: Comparison) -> Iterator[tuple[str, ...]]:
    """The modules that changed most; the whole step is none."""
    changes = [ComparedAmount(one.path, one.before_ms, one.after_ms) for one in comparison.modules if one.level]
    changed = [one for one in changes if abs(one.change_ms) >= _LEAST_MS]
    return _changes(sorted(changed, key=lambda one: -abs(one.change_ms))[:_MOST])


def _kernels(comparison: Comparison) -> Iterator[tuple[str, ...]]:
    return _most(
        kernel_names.distinguished([each.name for each in comparison.kernels]),
        [(each.before_ms, each.before_count, each.after_ms, each.after_count) for each in comparison.kernels],
    )


def _roofs(comparison: Comparison) -> Iterator[tuple[str, ...]]:
    for one in comparison.roofs[:_MOST]:
        name = f"{one.operator.rpartition('::')[2]} of {one.inputs} {one.dtype}".rstrip()
        shares = wording.percent(one.before_share), wording.percent(one.after_share)
        yield name, *shares, wording.decimals(one.before_ms, 2), wording.decimals(one.after_ms, 2)


def _on_host(comparison: Comparison) -> Iterator[tuple[str, ...]]:
    return _most(
        [each.name for each in comparison.operators],
        [
            (each.before_host_ms, each.before_count, each.after_host_ms, each.after_count)
            for each in comparison.operators
        ],
    )


def _on_device(comparison: Comparison) -> Iterator[tuple[str, ...]]:
    return _most(
        [each.name for each in comparison.operators],
        [
            (each.before_device_ms, each.before_count, each.after_device_ms, each.after_count)
            for each in comparison.operators
        ],
    )


def _most(names: Sequence[str], amounts: Sequence[_Amounts]) -> Iterator[tuple[str, ...]]:
    """The few rows whose times changed most, by more than rounds to nothing, then the sum of the others."""
    large = [i for i, (before, _, after, _) in enumerate(amounts) if _shows(before, after)]
    large.sort(key=lambda i: (not names[i], -abs(amounts[i][2] - amounts[i][0]), names[i]))
    changed = [i for i in large if abs(amounts[i][2] - amounts[i][0]) >= _LEAST_MS]
    shown = [i for i in changed[:_MOST] if names[i]]
    for i in shown:
        yield names[i], *_row(amounts[i])
    if shown and (others := [amounts[i] for i in large[len(shown) :]]):
        yield "(all others)", *_row([sum(column) for column in zip(*others, strict=True)])


def _row(amounts: Sequence[float]) -> tuple[str, ...]:
    before, before_count, after, after_count = amounts
    was, now = wording.decimals(before_count, 0), wording.decimals(after_count, 0)
    return *_amounts(before, after), was if was == now else f"{was} to {now}"


def _amounts(before: float, after: float) -> tuple[str, str, str]:
    return wording.decimals(before, 2), wording.decimals(after, 2), wording.decimals(after - before, 2, "+")


def _shows(*amounts: float) -> bool:
    return max(amounts) >= _LEAST_MS
