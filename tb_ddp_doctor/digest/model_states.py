"""What parameters, gradients and the optimizer's state take, by what the trace shows of one backward pass.

Gradients are the key: a parameter that is trained has a gradient of its size, and the optimizer keeps so many tensors
of that size for it. Their bytes are what backward leaves behind; where it leaves nothing, since gradients lie in DDP's
buckets or are set to zero instead of None, they are what is all-reduced, or what AccumulateGrad is given.
"""

from __future__ import annotations

import re

import numpy as np

from tb_ddp_doctor.digest.collectives import count_elements
from tb_ddp_doctor.digest.host_calls import HostCalls
from tb_ddp_doctor.digest.model import Collectives, MemoryCategory, StateBytes
from tb_ddp_doctor.digest.phases import HostPhases
from tb_ddp_doctor.trace import names
from tb_ddp_doctor.trace.model import Ints
from tb_ddp_doctor.trace.names import Phase

#: What backward leaves is all gradients, if it is at least this share of what is all-reduced or accumulated.
_ALL = 0.5
_OPTIMIZER = re.compile(r"Optimizer\.step#(?P<name>\w{1,100})\.step")
#: Tensors of the size of a parameter that torch's optimizers keep for it: their own documentation, and source.
_TENSORS = {
    "Adadelta": 2, "Adagrad": 1, "Adam": 2, "AdamW": 2, "Adamax": 2, "ASGD": 1, "FusedAdam": 2, "Lion": 1, "Muon": 1,
    "NAdam": 2, "RAdam": 2, "RMSprop": 1, "Rprop": 2, "SGD": 0,
}  # fmt: skip
#: With these operators in its step an optimizer keeps one more: the momentum of SGD, the maximum of AMSGrad.
_ONE_MORE = {"SGD": re.compile(r"^aten::(_foreach_)?mul_$"), "Adam": re.compile(r"^aten::(_foreach_)?maximum_?$")}
_ONE_MORE["AdamW"] = _ONE_MORE["Adam"]


def states(
    host: HostCalls, phases: HostPhases, collectives: Collectives, words: tuple[str, ...], remaining: int
) -> StateBytes:
    """The model's states; `left` is what one backward pass leaves behind, bytes."""
    reduced, element = _reduced(collectives, words)
    accumulated = _accumulated(host, phases) * (element or 4)
    known = max(reduced, accumulated)
    shards = any(words[kind] == "reduce_scatter" for kind in np.unique(collectives.kind).tolist())
    gradients = remaining if remaining and (shards or remaining >= _ALL * known) else known
    if accumulated and gradients == remaining and not element:
        # float32, or a half of it.
        element = 2 if gradients <= 0.75 * accumulated else 4
    name, tensors = optimizer_tensors(host)
    if not gradients:
        return StateBytes(-1, -1, -1, 0, name)
    return StateBytes(gradients, gradients, tensors * gradients if tensors >= 0 else -1, element, name)


def _reduced(collectives: Collectives, words: tuple[str, ...]) -> tuple[int, int]:
    """Bytes that are all-reduced in a backward pass, the median; and of an element."""
    kinds = np.array(words, object)[collectives.kind] if len(collectives) else np.empty(0, object)
    chosen = (
        (kinds == "all_reduce") & (collectives.backward >= 0) & (collectives.bytes > 0) & (collectives.elements > 0)
    )
    if not chosen.any():
        return 0, 0
    sums = np.bincount(collectives.backward[chosen], weights=collectives.bytes[chosen].astype(np.float64))
    sums = sums[sums > 0]
    median = np.sort(sums[sums >= _ALL * sums.max()])
    largest = np.flatnonzero(chosen)[collectives.bytes[chosen].argmax()]
    return int(median[len(median) // 2]), int(collectives.bytes[largest] // collectives.elements[largest])


def _accumulated(host: HostCalls, phases: HostPhases) -> int:
    """Elements of the gradients that a backward pass accumulates, the median; 0 where shapes are not recorded."""
    calls = np.flatnonzero(host.is_operator & host.named(names.accumulates_gradient) & (host.shape >= 0))
    if not len(calls):
        return 0
    used, which = np.unique(host.shape[calls], return_inverse=True)
    elements = np.array([max(count_elements(host.trace.strings[shape]), 0) for shape in used.tolist()], np.float64)
    passes = phases.start_ns[phases.phase == Phase.BACKWARD]
    of = np.searchsorted(passes, host.start_ns[calls], side="right")
    sums = np.sort(np.bincount(of, weights=elements[which]))
    sums = sums[sums >= _ALL * sums.max()]
    return int(sums[len(sums) // 2])


def optimizer_tensors(host: HostCalls) -> tuple[str, int]:
    """The optimizer's class, and how many tensors it keeps for each parameter; "" and -1 where that is not known."""
    steps = host.is_annotation & host.named(names.is_optimizer_step)
    match = _OPTIMIZER.match(host.texts(np.flatnonzero(steps)[:1])[0]) if steps.any() else None
    if not match:
        return "", -1
    name = match["name"]
    tensors = _TENSORS.get(name, -1)
    if more := _ONE_MORE.get(name):
        calls = np.flatnonzero(host.is_operator & host.named(lambda op: bool(more.match(op))))
        tensors += bool((host.around(calls, steps) >= 0).any())
    return name, tensors


def persistent(base: int, states: StateBytes, seen: Ints, has_buckets: bool) -> Ints:
    """What was allocated before the recording and stays, by `MemoryCategory`; it sums to `base`.

    `seen` are the bytes of each category that were allocated while recording and stay or come again in each step.
    """
    split = np.zeros(len(MemoryCategory), np.int64)

    def take(category: MemoryCategory, wanted: int) -> None:
        taken = max(min(wanted - int(seen[category]), base - int(split.sum())), 0)
        split[category] += taken

    if states.gradients > 0:
        take(MemoryCategory.PARAMETER, states.parameters)
        take(MemoryCategory.GRADIENT, states.gradients)
        if has_buckets and seen[MemoryCategory.GRADIENT] >= _ALL * states.gradients:
            # Else the gradients lie in the buckets.
            take(MemoryCategory.COMMUNICATION, states.gradients)
        rest = base - int(split.sum())
        take(MemoryCategory.OPTIMIZER_STATE, states.optimizer if states.optimizer >= 0 else rest)
    split[MemoryCategory.OTHER] += base - split.sum()
    return split
