"""What the program of a trace does, from its operators, annotations, kernels, Python functions and their structure."""

from __future__ import annotations

from collections import Counter

import msgspec
import numpy as np

from tb_ddp_doctor.digest.host_calls import HostCalls
from tb_ddp_doctor.digest.intervals import Intervals
from tb_ddp_doctor.digest.sums import count
from tb_ddp_doctor.digest.vocabulary import Mask
from tb_ddp_doctor.trace import names, program_names, role_names
from tb_ddp_doctor.trace.model import Category
from tb_ddp_doctor.trace.program_names import Program, Role

#: A trace of forward passes has more kinds of operators than this; fewer tell nothing.
_LEAST_OPERATORS = 20
#: A benchmark runs no more kinds of kernels than this over and over, each so often at least, beside collectives or not;
#: or products of matrices of any sizes, which are at least this share of the runs: others fill buffers between them.
_MOST_KINDS = 3
_LEAST_RUNS = 20
_PRODUCTS = 0.9
#: A recommender looks up more than one table for this number of products of matrices, backward passes counted; language
#: models have dozens of products for each lookup.
_PRODUCTS_OF_LOOKUP = 2


class UsedNames(msgspec.Struct, frozen=True):
    """The different names in a trace, by what has them; operators and kernels with the number of their runs."""

    operators: dict[str, int]
    annotations: list[str]
    kernels: dict[str, int]
    functions: list[str]
    #: Whether operators may have made nodes for a backward pass: with gradients off none has a sequence number. Nsight
    #: Systems does not record these.
    may_need_backward: bool

    @classmethod
    def of(cls, host: HostCalls) -> UsedNames:
        """The names of one trace."""
        events, strings = host.trace.events, host.trace.strings
        runs = np.bincount(events.name[events.category == Category.KERNEL], minlength=len(strings))
        frames = np.bincount(host.trace.frames.name, minlength=len(strings))
        return cls(
            _texts(host, host.is_operator),
            list(_texts(host, host.is_annotation)),
            {strings[index]: int(runs[index]) for index in np.flatnonzero(runs).tolist()},
            [strings[index] for index in np.flatnonzero(frames).tolist()],
            bool(host.trace.header.recorder) or bool((events.sequence[events.category == Category.OP] >= 0).any()),
        )


def program(used: UsedNames, roles: dict[str, int]) -> Program:
    """What the program does that has these names; `roles` as `role_times` has them.

    1. Whatever has marks of both generating and another role of reinforcement learning, or trains and generates with a
       paged cache, does RL.
    2. Whatever works on a recommender's embedding tables is one, and so is what trains and looks up more tables than it
       has layers. What else has a backward pass or an optimizer trains. Kernels tell that of what is captured in a
       graph.
    3. Of the others, their own names tell, else their structure.
    """
    everything = (*used.operators, *used.annotations, *used.kernels)
    trains = _trains(used)
    if (Role.ROLLOUT.value in roles and len(roles) > 1) or (trains and any(map(program_names.generates, everything))):
        return Program.RL
    if any(map(program_names.is_of_embeddings, everything)) or (trains and _mostly_looks_up(used)):
        return Program.RECOMMENDER
    if trains:
        return Program.TRAINING
    kinds = Counter(kind for text in (*everything, *used.functions) if (kind := program_names.program(text)))
    return kinds.most_common(1)[0][0] if kinds else _by_structure(used)


def role_times(host: HostCalls) -> dict[str, int]:
    """How long each role of reinforcement learning took on the host, ns, by the role's name: from annotations, and from
    functions of trainers, as stacks have them.
    """
    strings, frames = host.trace.strings, host.trace.frames
    annotations = np.flatnonzero(count(host.name, host.is_annotation, len(strings))).tolist()
    of_text = role_names.roles(strings[index] for index in annotations)
    functions = np.unique(frames.name).tolist()
    of_function = {index: known for index in functions if (known := role_names.role_of_function(strings[index]))}
    times: dict[str, int] = {}
    if not of_text and not of_function:
        return times
    for role in Role:
        marks = np.isin(host.name, [index for index in annotations if of_text.get(strings[index]) is role])
        marks &= host.is_annotation
        calls = np.isin(frames.name, [index for index, known in of_function.items() if known is role])
        start = np.concatenate((host.start_ns[marks], frames.start_ns[calls]))
        end = np.concatenate((host.end_ns[marks], frames.start_ns[calls] + frames.duration_ns[calls]))
        if len(start):
            times[role.value] = Intervals.union(start, end).total
    return times


def _trains(used: UsedNames) -> bool:
    """Whether anything is of a backward pass or of an optimizer."""
    phases = (names.Phase.BACKWARD, names.Phase.OPTIMIZER)
    return (
        any(map(program_names.trains, (*used.operators, *used.annotations)))
        or any(names.phase(name) in phases for name in used.annotations)
        or any(map(program_names.is_training_kernel, used.kernels))
    )


def _mostly_looks_up(used: UsedNames) -> bool:
    """Whether a program looks up many tables, each with few products of matrices."""
    lookups = sum(runs for name, runs in used.operators.items() if program_names.looks_up(name))
    products = sum(runs for name, runs in used.kernels.items() if _multiplies(name))
    return lookups >= _LEAST_RUNS and _PRODUCTS_OF_LOOKUP * lookups >= products


def _multiplies(kernel: str) -> bool:
    return names.product(kernel) is not names.Product.NONE or names.is_compiled_product(kernel)


def _by_structure(used: UsedNames) -> Program:
    """Forward passes alone have many kinds of operators; a benchmark has few of them, and repeats a few kernels.

    Forward passes that communicate may be cut from training, unless gradients are off in all of them.
    """
    computing = {name: runs for name, runs in used.kernels.items() if not names.is_communication_kernel(name)}
    talks = len(computing) < len(used.kernels) or any(
        names.launches_collective(name) for name in (*used.operators, *used.annotations)
    )
    if len(used.operators) >= _LEAST_OPERATORS:
        return Program.UNKNOWN if talks and used.may_need_backward else Program.INFERENCE
    return Program.BENCHMARK if _repeats(used.kernels, computing) else Program.UNKNOWN


def _repeats(kernels: dict[str, int], computing: dict[str, int]) -> bool:
    """Whether kernels are the same few over and over, collectives and what fills their buffers, or products alone."""
    computed = sum(computing.values())
    products = sum(runs for name, runs in computing.items() if _multiplies(name))
    if len(computing or kernels) <= _MOST_KINDS:
        communicated = 0 if products else sum(kernels.values()) - computed
        # Each kind of what fills buffers runs once for a collective: what computes between collectives is no benchmark.
        filled = computed <= len(computing) * communicated
        return max(min((computing or kernels).values(), default=0), communicated if filled else 0) >= _LEAST_RUNS
    return products >= max(_PRODUCTS * computed, _LEAST_RUNS)


def _texts(host: HostCalls, chosen: Mask) -> dict[str, int]:
    """The different names of some calls, each with the number of these calls."""
    strings = host.trace.strings
    calls = count(host.name, chosen, len(strings))
    return {strings[index]: int(calls[index]) for index in np.flatnonzero(calls).tolist()}
