"""Which part of the model each kernel within a CUDA graph is of, as the capture of the graph named it.

A graph is launched by one call, so that no call of a module is around the launch of a single kernel. What does name
parts are `mark_kernels` of torch.cuda during the capture, and recorders that write its names to the kernels:

    annotation: [{"name": "attention", "autograd_phase": "backward"}]

The part is a module within the one that launches the graph. "autograd_phase" says that a kernel is of backward; kernels
of the same part without it are then of forward.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from tb_ddp_doctor.digest.device_events import DeviceEvents
from tb_ddp_doctor.digest.module_paths import GUESSED, ROOT, ModuleCalls
from tb_ddp_doctor.trace.args import value
from tb_ddp_doctor.trace.model import Ints
from tb_ddp_doctor.trace.names import Phase, is_collective_call

#: What names parts of graphs, where nothing names modules.
NAMED_BY = "CUDA graph annotations"
_BACKWARD = "backward"


class GraphParts(msgspec.Struct, frozen=True, eq=False):
    """The parts of graphs that a device's events are of."""

    #: Each name once, as "attention".
    names: tuple[str, ...]
    #: Index into `names` of each event, -1 for none; shape (events,).
    part: Ints
    #: The phase of each event, -1 where its annotation does not say it; shape (events,).
    phase: Ints

    @classmethod
    def of(cls, device: DeviceEvents) -> GraphParts:
        """The parts that a trace names."""
        events, strings = device.trace.events, device.trace.strings
        part, phase = np.full((2, len(device)), -1, np.int64)
        annotation, autograd = _without_collectives(device), events.types[device.row]
        named = np.flatnonzero((annotation >= 0) | (autograd >= 0))
        if not len(named):
            return cls((), part, phase)
        each, which = np.unique(np.stack([annotation[named], autograd[named]]), axis=1, return_inverse=True)
        texts = [[strings[index] if index >= 0 else "" for index in pair] for pair in each.T.tolist()]
        read = [_read(*pair) for pair in texts]
        numbers = {name: number for number, name in enumerate(dict.fromkeys(name for name, _ in read if name))}
        part[named] = np.array([numbers.get(name, -1) for name, _ in read], np.int64)[which.ravel()]
        backward = np.zeros(len(device), np.bool_)
        backward[named] = np.array([is_backward for _, is_backward in read], np.bool_)[which.ravel()]
        has_backward = np.bincount(part[backward & (part >= 0)], minlength=len(numbers)) > 0
        phase[(part >= 0) & np.append(has_backward, False)[part]] = Phase.FORWARD
        phase[backward] = Phase.BACKWARD
        return cls(tuple(numbers), part, phase)

    def phases(self, launched: Ints) -> Ints:
        """The phase of each event, given the one that launched it."""
        return np.where(self.phase >= 0, self.phase, launched)

    def calls(self, calls: ModuleCalls) -> ModuleCalls:
        """The calls of modules; none in place of guesses, where parts have names."""
        if not self.names or calls.named_by not in ("", GUESSED):
            return calls
        return ModuleCalls.without_calls(calls.host, NAMED_BY)

    def modules(self, calls: ModuleCalls, device: DeviceEvents) -> Ints:
        """The module of each event of the device, an index into `calls.table`; ROOT outside of all; shape (events,)."""
        host, launched = calls.host, np.flatnonzero(device.is_launched)
        by = device.launch[launched]
        module = np.full(len(device), ROOT, np.int64)
        module[launched] = calls.at(host.start_ns[by], host.thread[by])
        named = np.flatnonzero(self.part >= 0)
        each, which = np.unique(np.stack([module[named], self.part[named]]), axis=1, return_inverse=True)
        within = [calls.table.below(around, self.names[part]) for around, part in each.T.tolist()]
        module[named] = np.array(within, np.int64)[which.ravel()]
        return module


def _without_collectives(device: DeviceEvents) -> Ints:
    """The annotation of each event, as `Events.values`; -1 where it is the name of a collective and no part of a model.

    torch's CUPTI monitor writes the call's name to communication kernels, where `mark_kernels` writes that of a part.
    """
    annotation: Ints = device.trace.events.values[device.row].astype(np.int64)
    named = np.flatnonzero(device.communicates & (annotation >= 0))
    for index in np.unique(annotation[named]).tolist():
        if is_collective_call(_read(device.trace.strings[index], "")[0]):
            annotation[named[annotation[named] == index]] = -1
    return annotation


def _read(annotation: str, autograd_phase: str) -> tuple[str, bool]:
    """The name in an annotation, "" for none, and whether it is of backward; of several annotations the last counts."""
    given: Any = value(annotation.encode(errors="replace"))
    if isinstance(given, str):
        decoded = value(given.encode(errors="replace"))
        given = decoded if isinstance(decoded, list | dict) else given
    members: dict[Any, Any] = {"autograd_phase": value(autograd_phase.encode(errors="replace"))}
    for one in given if isinstance(given, list) else [given]:
        members |= one if isinstance(one, dict) else {"name": one}
    name = members.get("name", members.get("str"))
    return name if isinstance(name, str) else "", members["autograd_phase"] == _BACKWARD
