"""Guesses the layers of a model that nothing names: forward's operators repeat from layer to layer.

A forward pass is the outermost operators of the training thread in a step, between two backward passes. Where a pass
has layers 1 to n, so has each further pass with the same operators, as micro-batches have; ranks that run the same
model number their layers alike. Backward follows from forward (`digest.module_paths`).
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from tb_ddp_doctor.digest.columns import searchsorted
from tb_ddp_doctor.digest.host_calls import HostCalls
from tb_ddp_doctor.digest.model import Steps
from tb_ddp_doctor.digest.phases import HostPhases
from tb_ddp_doctor.digest.repeats import SequenceRepeats, repeats
from tb_ddp_doctor.digest.vocabulary import Mask
from tb_ddp_doctor.storage.column_table import ColumnTable
from tb_ddp_doctor.trace import names
from tb_ddp_doctor.trace.model import Ints
from tb_ddp_doctor.trace.names import Phase

#: Fewer repeats are no layers, nor are repeats with less of a pass's operators, nor those of which fewer are the same,
#: or multiply matrices: data is prepared by operators that repeat, too.
_LEAST_LAYERS = 3
_LEAST_SHARE = 0.5
_LEAST_SAME = 0.5
#: Different passes that are searched for layers, those with most operators in the trace.
_MOST_PASSES = 8
#: An operator with more of a pass's operators in it wraps the model (DDP's forward, a compiled function): what it calls
#: counts. Its time would not do: that of an operator whose thread has to wait for a core may be most of a pass's.
_WRAPS = 0.5
_MOST_WRAPPERS = 4


class LayerCalls(ColumnTable, frozen=True, eq=False):
    """The calls of layers on the thread that trains; shape (calls,)."""

    #: From 1 on, in the order of forward.
    number: Ints
    #: The first operator of each and the last one, as indices into `HostCalls`.
    first: Ints
    last: Ints


def layer_calls(host: HostCalls, phases: HostPhases, steps: Steps) -> LayerCalls:
    """The calls of a rank's layers in forward; none where too little repeats."""
    passes = _passes(host, phases, steps)
    texts = [host.name[one].tobytes() for one in passes]
    by_text = dict(zip(texts, passes, strict=True))
    count = Counter(texts)
    known: dict[bytes, list[tuple[int, int, int]]] = {}
    # Short ones first: a pass may be several others.
    for text in sorted(sorted(count, key=lambda text: -len(text) * count[text])[:_MOST_PASSES], key=len):
        known[text] = _several(text, known, host.name.itemsize) or _layers(host, by_text[text])
    tables = {text: np.array(layers, np.int64).reshape(-1, 3).T for text, layers in known.items() if layers}
    calls = [np.empty((3, 0), np.int64)]
    for text, one in zip(texts, passes, strict=True):
        if text in tables:
            number, begin, end = tables[text]
            calls.append(np.stack((number, one[begin], one[end - 1])))
    return LayerCalls(*np.concatenate(calls, axis=1))


def _several(text: bytes, known: dict[bytes, list[tuple[int, int, int]]], size: int) -> list[tuple[int, int, int]]:
    """The layers of a pass that is several known ones after each other, as a pipeline begins a step; none of others."""
    for single, layers in known.items():
        if layers and len(text) > len(single) and single * (len(text) // len(single)) == text:
            at = range(0, len(text) // size, len(single) // size)
            return [(layer, start + begin, start + end) for start in at for layer, begin, end in layers]
    return []


def _layers(host: HostCalls, operators: Ints) -> list[tuple[int, int, int]]:
    """Number, first operator and the one behind the last of each layer of a pass."""
    tokens = host.name[operators]
    adds = host.names.among(tokens, names.adds)
    # A residual's addition ends a layer more often than it begins one.
    cuts = repeats(tokens, set(tokens[adds].tolist()))
    if len(cuts) < _LEAST_LAYERS or cuts.same < _LEAST_SAME * len(cuts):
        return []
    first, end = _with_attention(cuts, host.names.among(tokens, names.attends))
    if len(first) < _LEAST_LAYERS:
        return []
    edges = np.stack((first, end), axis=1).reshape(-1)
    # An operator that is called again and again counts once.
    changes = np.append(np.append(True, tokens[1:] != tokens[:-1]), False).astype(np.int64)
    covered = np.add.reduceat(changes, edges)[::2]
    multiply = host.is_operator & host.named(names.multiplies_matrices)
    products = np.append(_within(host, operators, multiply), 0)
    with_products = np.add.reduceat(products, edges)[::2] > 0
    if covered.sum() < _LEAST_SHARE * changes.sum() or (multiply.any() and with_products.mean() < _LEAST_SAME):
        return []
    return list(zip(range(1, len(first) + 1), first.tolist(), end.tolist(), strict=True))


def _with_attention(cuts: SequenceRepeats, attends: Mask) -> tuple[Ints, Ints]:
    """First operator and the one behind the last of each layer: two pieces where only every other one has attention.

    A transformer's layer has two halves that begin and end alike: "norm mm attention mm add | norm mm gelu mm add".
    """
    counted = np.append(0, np.cumsum(attends))
    has = counted[cuts.end] > counted[cuts.first]
    joined = len(cuts) % 2 == 0 and bool((cuts.first[1:] == cuts.end[:-1]).all())
    if joined and has[::2].all() and not has[1::2].any():
        return cuts.first[::2], cuts.end[1::2]
    return cuts.first, cuts.end


def _within(host: HostCalls, operators: Ints, chosen: Mask) -> Ints:
    """How many of the chosen calls each of some operators of a thread calls, itself among them; shape (operators,)."""
    places = np.flatnonzero(chosen)
    # Calls stand in the order of their starts, so that what an operator calls follows it.
    first, last = np.searchsorted(host.thread, host.thread[operators[0]] + np.array((0, 1), host.thread.dtype))
    until = first + searchsorted(host.start_ns[first:last], host.end_ns[operators])
    inside: Ints = np.maximum(searchsorted(places, until) - searchsorted(places, operators), 0)
    return inside


def _passes(host: HostCalls, phases: HostPhases, steps: Steps) -> list[Ints]:
    """The operators of each forward pass that no other operator of it holds, but for what wraps the model."""
    thread = host.training_thread if host.training_thread >= 0 else _busiest(host)
    backward = np.sort(host.start_ns[host.is_operator & host.named(names.is_backward)])
    phase = Phase.FORWARD if len(backward) else Phase.OTHER
    chosen = host.is_operator & (host.thread == thread)
    passes: list[Ints] = []
    for _ in range(_MOST_WRAPPERS):
        operators = host.outermost(chosen)
        is_in_phase = phases.at(host.start_ns[operators]) == phase
        operators = operators[is_in_phase]
        if not len(operators):
            return []
        start = host.start_ns[operators]
        between = searchsorted(backward, start) + searchsorted(steps.host_start_ns, start, side="right")
        cuts = np.flatnonzero(np.diff(between)) + 1
        passes = np.split(operators, cuts)
        wraps = _wrappers(passes, np.split(_within(host, operators, host.is_operator), cuts))
        if not len(wraps):
            break
        chosen[wraps] = False
    return passes


def _wrappers(passes: list[Ints], calls: list[Ints]) -> Ints:
    """Operators with most of a pass's operators in them; `calls` is how many each operator of each pass calls."""
    wrappers = []
    for one, within in zip(passes, calls, strict=True):
        largest = int(within.argmax())
        if within[largest] > max(_WRAPS * within.sum(), 1):
            wrappers.append(int(one[largest]))
    return np.array(wrappers, np.int64)


def _busiest(host: HostCalls) -> int:
    """The thread with most operators; -1 for none."""
    threads = host.thread[host.is_operator]
    return int(np.bincount(threads).argmax()) if len(threads) else -1
