"""What each operator's kernels have to do at least, beside how long they took: the digest's part of the roofline.

A call is one run of an operator of the table in `operator_work`, with all kernels that it launched:

    aten::convolution_backward   [nchwToNhwc][dgrad......][wgrad.........]   one call, named after the longest kernel

A kernel outside of such operators is a call of its own, and not modelled. How fast a device could run a call is not
known here: peaks come with the job (`facts.peaks`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace

from tb_ddp_doctor.digest import operator_work
from tb_ddp_doctor.digest.attention import OnScores
from tb_ddp_doctor.digest.columns import distinct
from tb_ddp_doctor.digest.device_events import DeviceEvents
from tb_ddp_doctor.digest.embedding_lookups import embedding_lookups
from tb_ddp_doctor.digest.embedding_work import takes_index_list
from tb_ddp_doctor.digest.fused_linear import fused_linears
from tb_ddp_doctor.digest.fusion import FUSED, Loop, LoopCalls, avoidable
from tb_ddp_doctor.digest.host_calls import HostCalls
from tb_ddp_doctor.digest.least_work import Work
from tb_ddp_doctor.digest.model import GpuTime, Gradients, Roofline, RooflineCalls, Track
from tb_ddp_doctor.digest.numbering import numbered
from tb_ddp_doctor.digest.operator_inputs import Dims, Inputs, LinearSizes, LookupSizes, inputs
from tb_ddp_doctor.digest.operator_work import element_text
from tb_ddp_doctor.digest.row_calls import calls_of_rows
from tb_ddp_doctor.digest.shapes import dims
from tb_ddp_doctor.digest.sums import longest_of, summed
from tb_ddp_doctor.digest.vocabulary import Mask, Vocabulary
from tb_ddp_doctor.storage.column_table import ColumnTable, empty
from tb_ddp_doctor.trace import names
from tb_ddp_doctor.trace.model import Category, Ints

#: Tensors of a call that are spelled out, and letters of the longest text.
_INPUTS, _LETTERS = 3, 120
_NUMBER = re.compile(r"_\d+$")


class CallEvents(ColumnTable, frozen=True, eq=False):
    """Each call of an operator by its longest kernel; shape (calls,)."""

    #: Index of `DeviceEvents`.
    event: Ints
    #: Row of `RooflineCalls`.
    call: Ints
    #: Time of all of its kernels.
    ns: Ints


class _Signature(msgspec.Struct, frozen=True):
    """What calls with the same operator, inputs and kernel have in common."""

    work: Work | None
    inputs: str
    dtype: str
    precision: str
    loop: Loop


class _Beside(NamedTuple):
    """What is known of a call beside its operator's inputs (see `Inputs`)."""

    linear: LinearSizes | None
    looked_up: LookupSizes | None
    grid: Dims


class FixedEvents(NamedTuple):
    """Which device events fixes remove or shorten, shape (events,) each."""

    #: Those on attention scores (see `digest.attention`).
    scores: OnScores
    #: An optimizer's updates of single tensors (see `digest.optimizer`).
    updates: Mask
    #: Those that autotuning times (see `digest.compiled`).
    tuned: Mask


def roofline(
    host: HostCalls,
    device: DeviceEvents,
    track: Track,
    track_row: Ints,
    parameters: Gradients,
    fixed: FixedEvents,
    phase: Ints,
    words: Vocabulary,
) -> tuple[Roofline, CallEvents]:
    """The work of the steps' kernels, and which kernel stands for each call.

    `track_row` is the row of `track` that launches each device event, -1 for none, and `phase` is what launched
    each.
    """
    events = np.flatnonzero((device.step >= 0) & ~device.communicates)
    if not len(events):
        return empty(Roofline), empty(CallEvents)
    calls = _Calls.of(host, device, events)
    signature, work, table = calls.signatures(_elements(parameters))
    row = track_row[calls.longest]
    mine = np.flatnonzero(row >= 0)
    mine = mine[np.lexsort((device.launch_ns[calls.longest[mine]], row[mine]))]
    rows, stretches = calls_of_rows(row[mine], track.step[row[mine]], signature[mine], work[mine], calls.total_ns[mine])
    loops = _loop_calls(calls, signature, row, phase)
    made = Roofline(
        calls=_table(calls, signature, table, fixed, words),
        rows=rows,
        stretches=stretches,
        avoidable=avoidable(loops, [one.loop for one in table]),
    )
    return made, CallEvents(calls.longest, signature, calls.total_ns)


def _table(
    calls: _Calls,
    signature: Ints,
    table: Sequence[_Signature],
    fixed: FixedEvents,
    words: Vocabulary,
) -> RooflineCalls:
    """A row for each signature."""
    device, size = calls.device, len(table)
    column = {
        name: np.array([getattr(one.work, name) if one.work else 0 for one in table], np.int64)
        for name in ("flops", "most_flops", "read", "written")
    }
    names_of = {key: words.indices(texts) for key, texts in calls.texts(signature).items()}
    longest = longest_of(signature, signature >= 0, calls.total_ns, size)
    return RooflineCalls(
        name=names_of["name"],
        operator=names_of["operator"],
        inputs=words.indices(one.inputs for one in table),
        dtype=words.indices(one.dtype for one in table),
        precision=words.indices(one.precision for one in table),
        kind=np.array([one.work.kind if one.work else GpuTime.NOT_MODELLED for one in table], np.int32),
        count=np.bincount(signature, minlength=size).astype(np.int64),
        kernels=np.bincount(signature, calls.kernels, size).astype(np.int64),
        total_ns=summed(signature, calls.total_ns, size),
        score_products_ns=summed(signature, calls.time_of(fixed.scores.products), size),
        score_passes_ns=summed(signature, calls.time_of(fixed.scores.passes), size),
        updates_ns=summed(signature, calls.time_of(fixed.updates), size),
        tuned_ns=summed(signature, calls.time_of(fixed.tuned), size),
        flops=column["flops"],
        most_flops=np.maximum(column["flops"], column["most_flops"]),
        read_bytes=column["read"],
        written_bytes=column["written"],
        longest_start_ns=device.start_ns[calls.first[longest]],
        longest_end_ns=device.end_ns[calls.last[longest]],
    )


def _loop_calls(calls: _Calls, signature: Ints, row: Ints, phase: Ints) -> LoopCalls:
    device, first = calls.device, calls.first
    return LoopCalls(
        loop=signature,
        stream=device.stream[first],
        step=device.step[first],
        start_ns=device.start_ns[first],
        total_ns=calls.total_ns,
        row=row,
        is_late=np.isin(phase[first], (names.Phase.BACKWARD, names.Phase.OPTIMIZER)),
        computes=device.computes[first],
    )


class _Calls(msgspec.Struct, frozen=True, eq=False):
    """Calls and what they launched; shape (calls,)."""

    host: HostCalls
    device: DeviceEvents
    #: The operator, an index of `HostCalls`; -1 for a kernel outside of the table's operators.
    operator: Ints
    #: Indices of `DeviceEvents`: the longest kernel, the first and the last one.
    longest: Ints
    first: Ints
    last: Ints
    kernels: Ints
    total_ns: Ints
    #: The device events of all calls, one call after the other.
    events: Ints

    @classmethod
    def of(cls, host: HostCalls, device: DeviceEvents, events: Ints) -> _Calls:
        """The calls that some device events make up."""
        operator = np.full(len(events), -1, np.int64)
        launched = device.is_launched[events] & device.computes[events]
        if launched.any() and (host.shape >= 0).any():
            chosen = host.is_operator & (host.shape >= 0) & _has_work(host, device)
            operator[launched] = host.around(device.launch[events[launched]], chosen)
        order = _by_operator(operator, device.start_ns[events])
        events, operator = events[order], operator[order]
        begins = np.ones(len(events), np.bool_)
        begins[1:] = (operator[1:] != operator[:-1]) | (operator[1:] < 0)
        call = np.cumsum(begins) - 1
        size, length = int(call[-1]) + 1, device.length_ns[events]
        most = np.zeros(size, np.int64)
        np.maximum.at(most, call, length)
        at = np.flatnonzero(length == most[call])
        longest = np.zeros(size, np.int64)
        longest[call[at[::-1]]] = events[at[::-1]]
        first = np.flatnonzero(begins)
        last = np.append(first[1:], len(events)) - 1
        return cls(
            host=host,
            device=device,
            operator=operator[first],
            longest=longest,
            first=events[first],
            last=events[last],
            kernels=np.diff(np.append(first, len(events))),
            total_ns=_sum_from(length, first),
            events=events,
        )

    def time_of(self, chosen: Mask) -> Ints:
        """The time of each call's chosen device events."""
        here = chosen[self.events]
        if not here.any():
            return np.zeros(len(self.kernels), np.int64)
        return _sum_from(self.device.length_ns[self.events] * here, np.cumsum(self.kernels) - self.kernels)

    def signatures(self, parameters: int) -> tuple[Ints, Ints, list[_Signature]]:
        """The signature of each call, a number that calls of the same operator and inputs share, and what the
        signatures are; `parameters` are the model's, in elements.
        """
        host, device, operator = self.host, self.device, self.operator
        strings, events = host.trace.strings, host.trace.events
        known = operator >= 0
        row = np.zeros(len(operator), np.int64)
        row[known] = host.row[operator[known]]
        which, besides = _besides(self)
        columns = [*self._shared_columns(row, known), which]
        signature = numbered(*columns)
        one = _first_of(signature)
        groups, outputs = self._groups(), self._outputs(one[known[one]])
        signatures = []
        for at in one.tolist():
            kernel = strings[device.name[self.longest[at]]]
            if operator[at] < 0:
                of = self.longest[at]
                signatures.append(_of_copy(kernel, int(device.category[of]), int(device.bytes[of])))
                continue
            texts = self._texts_of_inputs(int(row[at]))
            name = strings[events.name[row[at]]]
            listed = parameters // groups if names.updates_lists(name) else 0
            output = outputs.get(_first_two(*texts)) if operator_work.is_forward_convolution(name) else None
            signatures.append(_signature(name, *texts, kernel, listed, output or (), besides[which[at]]))
        return signature, _works(columns, known, one)[signature], signatures

    def _texts_of_inputs(self, row: int) -> tuple[str, str, str]:
        """Sizes, types and values of the inputs of an event, "" for what is not recorded."""
        strings, events = self.host.trace.strings, self.host.trace.events
        sizes, types, values = (
            strings[column[row]] if column[row] >= 0 else "" for column in (events.shape, events.types, events.values)
        )
        return sizes, types, values

    def _shared_columns(self, row: Ints, known: Mask) -> list[Ints]:
        """What calls of one signature share; `known` flags those with an operator, whose row of events is `row`."""
        device, events = self.device, self.host.trace.events
        return [
            device.name[self.longest] + 1,
            *(
                np.where(known, column[row] + 1, 0)
                for column in (events.name, events.shape, events.types, events.values)
            ),
            np.where(known, 0, device.bytes[self.longest] + 1),
            np.where(known, 0, device.category[self.longest]),
        ]

    def _outputs(self, one: Ints) -> dict[tuple[Dims, Dims], Dims | None]:
        """Sizes of convolutions' outputs by those of their inputs and weights; None where backward tells several.

        `one` is a call of each signature that has an operator.
        """
        strings, events = self.host.trace.strings, self.host.trace.events
        output_of: dict[tuple[Dims, Dims], Dims | None] = {}
        for row in self.host.row[self.operator[one]].tolist():
            name = strings[events.name[row]]
            if name.endswith("convolution_backward"):
                sizes, types, _ = self._texts_of_inputs(row)
                if outputs := operator_work.convolved(name, inputs(sizes, types, "", "")):
                    key, output = outputs[:2], outputs[2]
                    output_of[key] = output if output_of.get(key, output) == output else None
        return output_of

    def _groups(self) -> int:
        """Groups of parameters that the optimizer updates by themselves: calls a step of its rarest operator."""
        mine = self.operator[self.operator >= 0]
        mine = mine[self.host.named(names.updates_lists)[mine]]
        counts = np.bincount(self.host.name[mine])
        steps = int((np.bincount(self.device.step[self.longest]) > 0).sum())
        return max(round(int(counts[counts > 0].min(initial=len(mine))) / max(steps, 1)), 1)

    def texts(self, signature: Ints) -> dict[str, list[str]]:
        """Of each signature the names of the longest kernel and of the operator, "" where that is none of the table."""
        one = _first_of(signature)
        operator = self.operator[one]
        return {
            "name": self.device.texts(self.longest[one]),
            "operator": self.host.texts(operator),
        }


def _besides(calls: _Calls) -> tuple[Ints, list[_Beside]]:
    """What is known of calls beside their operators' inputs, and which of these each call has."""
    host, device, operator = calls.host, calls.device, calls.operator
    linears, lookups = fused_linears(host), embedding_lookups(host)
    linear, lookup = linears.of(operator), lookups.of(operator)
    # Only where it tells something: calls with the same inputs and other grids are one signature elsewhere.
    # A call without an operator has -1: the last place, which a trace without any calls of the CPU has, too.
    of_operator = np.append(host.named(takes_index_list), False)[operator]
    gathers = device.named(names.gathers_slices)[calls.longest] & of_operator
    grid = np.where(gathers, device.trace.events.shape[device.row[calls.longest]], -1)
    which = numbered(linear + 1, lookup + 1, grid + 1)
    one = _first_of(which)
    texts = [device.trace.strings[index] if index >= 0 else "" for index in grid[one].tolist()]
    return which, [
        _Beside(linears.at(of_linear), lookups.at(of_lookup), next(iter(dims(f"[{text}]")), ()))
        for of_linear, of_lookup, text in zip(linear[one].tolist(), lookup[one].tolist(), texts, strict=True)
    ]


def _works(columns: Sequence[Ints], known: Mask, one: Ints) -> Ints:
    """A number of one call of each signature, from all calls' columns: its operator and inputs, or else its kernel.

    Of an operator's kernels not always the same one is the longest, so that signatures differ where work does not.
    """
    kernel, *others = (column[one] for column in columns)
    return numbered(np.where(known[one], 0, kernel), *others)


def _by_operator(operator: Ints, start_ns: Ints) -> Ints:
    """The order of events by their operator, then by start; those without an operator (-1) first, in any order."""
    alone, others = operator < 0, np.flatnonzero(operator >= 0)
    # Both sorts find times and operators mostly in order, since a device runs what it is given in turn.
    others = others[np.argsort(start_ns[others], kind="stable")]
    return np.concatenate((np.flatnonzero(alone)[::-1], others[np.argsort(operator[others], kind="stable")]))


def _sum_from(values: Ints, first: Ints) -> Ints:
    """Sums of stretches of values, each from its first value up to the next stretch's."""
    until = np.append(0, np.cumsum(values))
    sums: Ints = np.diff(until[np.append(first, len(values))])
    return sums


def _elements(parameters: Gradients) -> int:
    """Elements of all parameters that a backward pass has gradients of, at most 2 ** 48; 0 where that is not known."""
    known = (parameters.elements >= 0) & (parameters.backward >= 0)
    if not known.any():
        return 0
    _, which = np.unique(parameters.backward[known], return_inverse=True)
    return int(min(np.bincount(which, parameters.elements[known]).max(), 2.0**48))


def _first_of(signature: Ints) -> Ints:
    """A call of each signature."""
    first = np.empty(int(signature.max()) + 1, np.int64)
    first[signature[::-1]] = np.arange(len(signature))[::-1]
    return first


def _has_work(host: HostCalls, device: DeviceEvents) -> Mask:
    """Which calls have a name in the table, or a kernel's, as Triton's have; a number may follow there."""
    strings = device.trace.strings
    kernels = {strings[name] for name in distinct(device.name[device.computes], len(strings))[0].tolist()}

    def test(operator: str) -> bool:
        if operator_work.is_modelled(operator):
            return True
        return operator in kernels or _NUMBER.sub("", operator) in kernels

    return host.named(test)


def _first_two(sizes: str, types: str, values: str) -> tuple[Dims, Dims]:
    """Sizes of a call's first two tensors; () for what is none."""
    first = [some[0].sizes if some else () for some in inputs(sizes, types, values, "").tensors[:2]]
    return (*first, (), ())[0], (*first, (), ())[1]


@lru_cache(1 << 14)
def _signature(
    operator: str,
    sizes: str,
    types: str,
    values: str,
    kernel: str,
    listed: int,
    output: Dims,
    beside: _Beside,
) -> _Signature:
    """What a call's raw inputs say, and of a convolution its backward. Remembered: all ranks have the same."""
    given = inputs(sizes, types, values, kernel, listed)
    given = replace(given, output=output, linear=beside.linear, looked_up=beside.looked_up, grid=beside.grid)
    work = operator_work.work(operator, given, kernel)
    dtype = element_text(given)
    shown = [one.sizes for one in given.every() if one.sizes][:_INPUTS]
    return _Signature(
        work=work,
        inputs=", ".join("x".join(map(str, sizes)) for sizes in shown)[:_LETTERS],
        dtype=dtype,
        precision=_precision(dtype, kernel) if work and work.flops else "",
        loop=_loop(operator, given, work),
    )


def _loop(operator: str, given: Inputs, work: Work | None) -> Loop:
    if work is None or (work.kind not in FUSED and not operator.startswith("aten::_foreach_")):
        return Loop(work, (), False)
    # A copy is given its destination first.
    sources = [*given.every()][operator == "aten::copy_" :]
    return Loop(work, tuple((one.elements, one.bytes) for one in sources), names.saves_output(operator))


def _precision(dtype: str, kernel: str) -> str:
    """In what a kernel multiplies: by its name, else by its operator's inputs; "" if neither tells."""
    if (known := names.precision(kernel)) is not None:
        return known.value
    if dtype.startswith("float8"):
        return names.Precision.FP8.value
    if dtype in ("bfloat16", "float16"):
        return names.Precision.HALF.value
    return names.Precision.FLOAT32.value if dtype == "float32" else ""


def _of_copy(kernel: str, category: int, size: int) -> _Signature:
    """An event of no operator: a copy within the device reads and writes its bytes, a memset writes them."""
    work = None
    if category == Category.MEMSET and size > 0:
        work = Work(GpuTime.COPY, 0, 0, size)
    elif category == Category.MEMCPY and size > 0 and "DtoD" in kernel:
        work = Work(GpuTime.COPY, 0, size, size)
    return _Signature(work, "", "", "", Loop(work, (), False))
