"""Which Python function the host is in, where stacks were recorded: over time, and while the device has nothing.

Without stacks, the modules that `Doctor.watch` marks stand for the user's own functions. What a node of autograd does
is of the function that called its operator in forward.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.digest.autograd_nodes import follows, nodes
from tb_ddp_doctor.digest.device_events import DeviceEvents
from tb_ddp_doctor.digest.host_calls import HostCalls
from tb_ddp_doctor.digest.model import Code, CodeOf, Pieces, RankOwner, Stalled
from tb_ddp_doctor.digest.nesting import enclosing
from tb_ddp_doctor.digest.sums import summed
from tb_ddp_doctor.digest.vocabulary import Mask, Vocabulary
from tb_ddp_doctor.trace import names
from tb_ddp_doctor.trace.model import Indices, Ints

#: Stalls are looked at every so often, ns, and each at most so many times: a stall is of what it is in at most of them.
_EVERY_NS = 1_000_000
_MOST_LOOKS = 64
#: Stretches of code of each kind that are kept, the longest: a digest stays small.
_MOST_CODE = 2_000
#: And of compiled kernels that no function of the user's own launches.
_MOST_COMPILED = 256


def own_function(host: HostCalls, instant: Ints, thread: Indices) -> Ints:
    """The innermost function of the user's own code around each instant: an index into `strings`, or -1."""
    return _Functions.own(host).innermost(instant, thread)


def has_functions(host: HostCalls) -> bool:
    """Whether the trace names functions or modules of the user's own code."""
    return len(host.trace.frames) > 0 or any(map(names.is_module, host.trace.strings))


def launching_functions(host: HostCalls, device: DeviceEvents) -> Ints:
    """The user's own function that launched each event of the device: an index into `strings`, or -1; shape (events,).

    What backward launches on a thread of autograd's own, in no node of a known operator, is of the function that waits.
    """
    function = np.full(len(device), -1, np.int64)
    if not has_functions(host):
        return function
    launched = np.flatnonzero(device.is_launched)
    by = device.launch[launched]
    around = own_function(host, host.start_ns[by], host.thread[by])
    waits = own_function(host, host.start_ns[by], np.full(len(by), host.training_thread, np.int32))
    function[launched] = np.where(around >= 0, around, waits)
    return function


def of_stacks(host: HostCalls, function: Ints) -> Ints:
    """The functions where stacks were recorded: without, marks of modules stand for functions, which paths have."""
    return function if len(host.trace.frames) else np.full(len(function), -1, np.int64)


def kernel_files(host: HostCalls, device: DeviceEvents) -> Ints:
    """The kernel of torch.compile's, with its file, that each event is: an index into `strings`, or -1."""
    file = np.full(len(device), -1, np.int64)
    if (host.kernel_file >= 0).any():
        launched = np.flatnonzero(device.is_launched)
        file[launched] = np.append(host.kernel_file, -1)[host.around(device.launch[launched], host.is_operator)]
    return file


def code(host: HostCalls, device: DeviceEvents, function: Ints, file: Ints, words: Vocabulary) -> Code:
    """The user's own functions over time, of the host and of the device's events.

    `function` launched each of the device's events (`launching_functions`). Where there is none, and the event is a
    kernel of torch.compile's, it is this kernel with its file (`kernel_files`); of these the longest few are kept.
    """
    compiled = (function < 0) & (file >= 0)
    if not has_functions(host) and not compiled.any():
        nothing, no_words = np.empty(0, np.int64), np.empty(0, np.int32)
        return Code(no_words, no_words, nothing, nothing)
    launched = np.flatnonzero(device.is_launched)
    parts = [_host_code(host)] if has_functions(host) else []
    if compiled.any():
        chosen = np.flatnonzero(compiled)
        longest = np.argsort(device.start_ns[chosen] - device.end_ns[chosen], kind="stable")[:_MOST_COMPILED]
        kept = chosen[np.sort(longest)]
        parts.append(_device_code(device, kept, file[kept], CodeOf.COMPUTE))
    for kind in (CodeOf.COMPUTE, CodeOf.COMMUNICATION):
        chosen = launched[device.communicates[launched] == (kind is CodeOf.COMMUNICATION)]
        parts.append(_device_code(device, chosen, function[chosen], kind))
    of, index, start, end = np.concatenate(parts, axis=1)
    return Code(of.astype(np.int32), _texts(host, index, words), start, end)


def _host_code(host: HostCalls) -> NDArray[np.int64]:
    """Shape (4, rows): kind, function, start and end on the training thread."""
    functions, thread = _Functions.own(host), host.training_thread
    here = functions.thread == thread
    start, end = functions.start_ns[here], functions.end_ns[here]
    edges = np.unique(np.concatenate((start, end)))
    middle = edges[:-1] + np.diff(edges) // 2
    function = functions.innermost(middle, np.full(len(middle), thread, np.int32))
    return _runs(function, edges[:-1], edges[1:], CodeOf.HOST)


def _device_code(device: DeviceEvents, events: Ints, function: Ints, kind: CodeOf) -> NDArray[np.int64]:
    """The same of the device's events: what follows each other and is of one function is one stretch."""
    order = np.argsort(device.start_ns[events], kind="stable")
    return _runs(function[order], device.start_ns[events[order]], device.end_ns[events[order]], kind)


def _runs(function: Ints, start: Ints, end: Ints, kind: CodeOf) -> NDArray[np.int64]:
    if not len(function):
        return np.empty((4, 0), np.int64)
    first = np.flatnonzero(np.diff(function, prepend=-2))
    run = np.stack(
        (np.full(len(first), kind, np.int64), function[first], start[first], np.maximum.reduceat(end, first))
    )
    run = run[:, run[1] >= 0]
    longest = np.argsort(run[2] - run[3], kind="stable")[:_MOST_CODE]
    return run[:, np.sort(longest)]


def stalled(host: HostCalls, pieces: Pieces, words: Vocabulary) -> Stalled:
    """What the host does in those pieces in which it is outside operators for long, by stacks and annotations."""
    long = (pieces.owner == RankOwner.HOST) & (pieces.end_ns - pieces.start_ns >= _EVERY_NS)
    start, length = pieces.start_ns[long], (pieces.end_ns - pieces.start_ns)[long]
    looks = np.minimum(length // _EVERY_NS, _MOST_LOOKS)
    piece = np.repeat(np.arange(len(start)), looks)
    ordinal = np.arange(len(piece)) - np.repeat(np.cumsum(looks) - looks, looks)
    share = length[piece] // looks[piece]
    instant = start[piece] + ordinal * share + share // 2
    thread = np.full(len(instant), host.training_thread, np.int32)
    functions = _Functions.of(host)
    activity = functions.activities()
    doing = np.full(len(instant), -1, np.int64)
    for kind in range(len(names.Activity)):
        innermost = functions.only(activity == kind).innermost(instant, thread)
        doing = np.where(doing >= 0, doing, innermost)
    own = own_function(host, instant, thread)
    known = doing >= 0
    kinds, which = np.unique(np.stack([doing, own])[:, known], axis=1, return_inverse=True)
    which = which.reshape(-1)
    total = summed(which, share[known], kinds.shape[1])
    # The last one of each kind in the order of length is its longest.
    order = np.lexsort((length[piece[known]], which))
    longest = piece[known][order[np.searchsorted(which[order], np.arange(len(total)), side="right") - 1]]
    return Stalled(
        doing=_texts(host, kinds[0], words),
        own=_texts(host, kinds[1], words),
        total_ns=total,
        longest_start_ns=start[longest],
        longest_end_ns=start[longest] + length[longest],
    )


class _Functions(msgspec.Struct, frozen=True, eq=False):
    """What has the name of a function; shape (functions,)."""

    strings: tuple[str, ...]
    #: Index into `strings`.
    name: Indices
    start_ns: Ints
    end_ns: Ints
    thread: Indices

    @classmethod
    def of(cls, host: HostCalls) -> _Functions:
        """Annotations but steps, and Python functions, in the order of the file."""
        frames = host.trace.frames
        notes = np.flatnonzero(host.is_annotation & ~host.named(names.is_step))
        notes = notes[np.argsort(host.row[notes])]
        return cls(
            host.trace.strings,
            np.concatenate((host.name[notes], frames.name)),
            np.concatenate((host.start_ns[notes], frames.start_ns)),
            np.concatenate((host.end_ns[notes], frames.start_ns + frames.duration_ns)),
            np.concatenate((host.thread[notes], frames.thread)),
        )

    @classmethod
    def own(cls, host: HostCalls) -> _Functions:
        """The user's own functions, and autograd's nodes by the function that called their operator."""
        functions = cls.of(host)
        is_own = names.is_own_code if len(host.trace.frames) else names.is_module
        own = functions.only(functions._classified(is_own) > 0)
        if not len(own.name):
            return own
        node, operator = nodes(host)
        function = np.full(len(node), -1, np.int32)
        made = operator >= 0
        function[made] = own.innermost(host.start_ns[operator[made]], host.thread[operator[made]])
        goes_on = follows(host, node) & (np.diff(function, prepend=-1) == 0)
        first = np.flatnonzero(~goes_on)
        last = np.append(first[1:], len(node)) - 1
        first, last = first[function[first] >= 0], last[function[first] >= 0]
        return cls(
            own.strings,
            np.concatenate((own.name, function[first])),
            np.concatenate((own.start_ns, host.start_ns[node[first]])),
            np.concatenate((own.end_ns, host.end_ns[node[last]])),
            np.concatenate((own.thread, host.thread[node[first]])),
        )

    def only(self, chosen: Mask) -> _Functions:
        """The chosen ones."""
        return _Functions(
            self.strings, self.name[chosen], self.start_ns[chosen], self.end_ns[chosen], self.thread[chosen]
        )

    def activities(self) -> Ints:
        """The `names.Activity` of each, by its place among them."""
        places = {kind: place for place, kind in enumerate(names.Activity)}
        return self._classified(lambda name: places[names.activity(name)])

    def _classified(self, classify: Callable[[str], int]) -> Ints:
        used, which = np.unique(self.name, return_inverse=True)
        return np.array([classify(self.strings[name]) for name in used.tolist()], np.int64)[which]

    def innermost(self, instant: Ints, thread: Indices) -> Ints:
        """The innermost around each instant: an index into `strings`, or -1."""
        row = enclosing(self.start_ns, self.end_ns, self.thread, instant, thread)
        function = np.full(len(instant), -1, np.int64)
        function[row >= 0] = self.name[row[row >= 0]]
        return function


def _texts(host: HostCalls, indices: Ints, words: Vocabulary) -> Indices:
    return words.indices(host.trace.strings[i] if i >= 0 else "" for i in indices.tolist())
