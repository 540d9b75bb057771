"""What no stack shows, inferred from sizes: parameters and gradients from the optimizer's states, and states from both.

An optimizer allocates each kind of state at a line of its own, a tensor as large as each parameter:

    adam.py:174 exp_avg       4 MB  1 MB  1 MB      so there is one parameter of 4 MB and two of 1 MB
    adam.py:178 exp_avg_sq    4 MB  1 MB  1 MB
    no stack                  4 MB  1 MB  1 MB  7 MB      these three are the parameters; 7 MB are something else

Parameters and gradients may be half as large as the states, or twice: bfloat16 beside float32. Where the record began
after the first update, states have no stacks either. Then updates in the record show the sizes of the parameters, and
of three that Adam updates one is the parameter. Updates in place (SGD, optimizers of 8 bits) show none: parameters are
as large as the gradients that a backward pass leaves. What else is of these sizes may be averages of the parameters, or
another model: gradients only where the record shows that they are kept.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence

import msgspec

from tb_ddp_doctor.flight.model import StackFrame
from tb_ddp_doctor.memory_snapshot.categories import is_own
from tb_ddp_doctor.memory_snapshot.history import Updates
from tb_ddp_doctor.memory_snapshot.without_stacks import by_count, by_order

#: Sizes of parameters or gradients over those of states: 1, 1/2 and 2.
_RATIOS = ((1, 1), (1, 2), (2, 1))
#: Of the bytes that parameters, or gradients, are expected to have, this share has to be there.
_LEAST_SHARE = 0.5
#: Sums this close are the same but for padding.
_CLOSE = 0.05
#: Gradients may also lie in what reduce-scatter wrote.
_MAY_BE = {"parameters": ("parameters", ""), "gradients": ("gradients", "", "communication")}
#: What functions allocate in the order of their lines that allocate it; the last alone if there is but one such line.
_IN_ORDER = (
    # Of Megatron-LM's distributed optimizer parameters lie in a buffer, too.
    (re.compile(r"param_and_grad_buffer\.py"), "__init__", ("parameters", "gradients")),
    # Of ZeRO 3 a bucket that is reduced, and the gradients of this rank.
    (re.compile(r"zero/stage3\.py"), "_setup_for_real_optimizer", ("communication", "gradients")),
)
#: What copies a parameter.
_COPIES = "__deepcopy__"
#: Where Megatron-LM allocates one buffer for all gradients.
_OF_ALL = re.compile(r"param_and_grad_buffer\.py$")
#: FSDP's and Megatron-LM's gradients are of many parameters, or of all ranks'.
_OWN_SIZES = re.compile(r"torch/distributed/fsdp/|param_and_grad_buffer\.py|megatron/core/optimizer/|deepspeed/")
_NO_UPDATES = Updates()
#: A reduce-scatter's buffers are released after the next one: more of one line are what it leaves.
_MOST_SCATTERED = 2


class Allocation(msgspec.Struct, frozen=True):
    """A block that is allocated."""

    #: As it was asked for, bytes.
    requested: int
    #: As its stack shows; "" if it does not.
    category: str
    #: When it was allocated, µs; 0 if that was before the record.
    time_us: int
    #: The function that shows the category.
    frame: StackFrame | None
    #: Where FSDP allocates what a reduce-scatter reads or writes.
    scatters: StackFrame | None = None
    #: Of C++ functions alone that show nothing counts as none.
    has_stack: bool = True
    #: Whether nothing shows a category, and there is no function at all.
    is_blank: bool = False


def inferred(allocations: Sequence[Allocation], updates: Updates = _NO_UPDATES) -> dict[int, str]:
    """The categories that differ from what stacks show, by index.

    Where most of the gradients that the optimizer's states ask for are found, what else the backward pass allocated is
    temporary; where at least the parameters are found, what is of no parameter's size.
    """
    category_of = dict.fromkeys(_scattered(allocations), "gradients") | dict(_in_order(allocations))
    sizes = _parameter_sizes(allocations)
    if sizes:
        parameters = _most(sizes, "parameters", allocations, category_of) or _in_one(sizes, allocations)
        category_of.update(dict.fromkeys(_copies(sizes, allocations), "other"))
    else:
        category_of |= (
            _before_the_record(allocations, updates)
            or _without_stacks(allocations)
            or _before_the_record(allocations, Updates(sizes=updates.left))
        )
        parameters = {i for i, one in enumerate(allocations) if category_of.get(i, one.category) == "parameters"}
        sizes = Counter(allocations[i].requested for i in parameters)
    category_of.update(dict.fromkeys(parameters, "parameters"))
    old = set() if updates.keeps_gradients else {i for i, one in enumerate(allocations) if _is_old(one)}
    gradients = _most(sizes, "gradients", allocations, category_of.keys() | old)
    gradients |= {i for i, category in category_of.items() if category == "gradients" and _is_of_all(allocations[i])}
    category_of.update(dict.fromkeys(gradients, "gradients"))
    # A gradient is as large as a parameter; those that are not known are among what is older.
    owned = sizes + Counter(one.requested for one in allocations if _is_old(one))
    if gradients or parameters or (owned and not sizes):
        known = {size * times // over for size in owned for times, over in _RATIOS}
        has_stacks = any(one.has_stack for one in allocations)
        category_of.update(
            (i, "temporary")
            for i, one in enumerate(allocations)
            if i not in category_of and _is_of_backward(one, has_stacks=has_stacks)
            if gradients or one.requested not in known
        )
    return _differing(category_of, allocations)


def _without_stacks(allocations: Sequence[Allocation]) -> dict[int, str]:
    """What counts of sizes tell of blocks from before the record, else the order of blocks that have no stack."""
    unknown = [(i, one) for i, one in enumerate(allocations) if not one.has_stack and not one.category]
    if before := by_count({i: one.requested for i, one in unknown if not one.time_us}):
        return before
    recorded = sorted(((i, one) for i, one in unknown if one.time_us), key=lambda pair: pair[1].time_us)
    category_of = by_order([one.requested for _, one in recorded])
    return {recorded[place][0]: category for place, category in category_of.items()}


def _is_of_backward(one: Allocation, *, has_stacks: bool) -> bool:
    """Whether a backward pass allocated it, and not a function that keeps gradients in sizes of its own.

    Its threads run no Python: where others have stacks, of Python alone, it has none.
    """
    if one.category == "gradients":
        return not (one.frame and _OWN_SIZES.search(one.frame.file))
    return has_stacks and one.is_blank and one.time_us > 0


def _is_of_all(one: Allocation) -> bool:
    """Whether it is a buffer for all gradients of a rank."""
    return one.frame is not None and _OF_ALL.search(one.frame.file) is not None


def _differing(category_of: Mapping[int, str], allocations: Sequence[Allocation]) -> dict[int, str]:
    return {i: category for i, category in category_of.items() if category != allocations[i].category}


def _scattered(allocations: Sequence[Allocation]) -> Iterator[int]:
    """Gradients that FSDP's reduce-scatter left, those of a group of parameters in one buffer."""
    of_line: defaultdict[StackFrame, list[int]] = defaultdict(list)
    for i, one in enumerate(allocations):
        if one.scatters:
            of_line[one.scatters].append(i)
    for left in of_line.values():
        if len(left) > _MOST_SCATTERED:
            yield from left


def _in_order(allocations: Sequence[Allocation]) -> Iterator[tuple[int, str]]:
    """What functions allocate that allocate several things, by their lines."""
    for file, function, categories in _IN_ORDER:
        own = [
            (i, one.frame.line)
            for i, one in enumerate(allocations)
            if one.frame and one.frame.function == function and file.search(one.frame.file)
        ]
        lines = sorted({line for _, line in own})
        of_line = dict(zip(reversed(lines), reversed(categories), strict=False))
        yield from ((i, of_line[line]) for i, line in own if line in of_line)


def _parameter_sizes(allocations: Sequence[Allocation]) -> Counter[int]:
    """How many parameters there are of each size: of each optimizer, by the kind of state that has the most bytes."""
    lines: defaultdict[str, defaultdict[StackFrame, Counter[int]]] = defaultdict(lambda: defaultdict(Counter))
    for one in allocations:
        if one.category == "optimizer_states" and one.frame:
            lines[one.frame.file][one.frame][one.requested] += 1
    total: Counter[int] = Counter()
    for of_file in lines.values():
        sizes: Counter[int] = max(of_file.values(), key=_bytes)
        total += sizes
    return total


def _is_old(one: Allocation) -> bool:
    """Whether it was allocated before the record, and no stack shows anything."""
    return not one.time_us and not one.has_stack and not one.category


def _copies(sizes: Counter[int], allocations: Sequence[Allocation]) -> Iterator[int]:
    """Copies of parameters, where more have a size than the optimizer updates: averages, a model to compare with."""
    shown = [(i, one) for i, one in enumerate(allocations) if one.category == "parameters"]
    more = Counter(one.requested for _, one in shown) - sizes
    for i, one in sorted(shown, key=lambda pair: -pair[1].time_us):
        if sizes[one.requested] and more[one.requested] and one.frame and _is_of_a_copy(one.frame):
            more[one.requested] -= 1
            yield i


def _is_of_a_copy(frame: StackFrame) -> bool:
    """Whether a function may copy a parameter: a class of one's own may, torch's layers make a model's parameters."""
    return frame.function == _COPIES or (frame.function == "__init__" and is_own(frame))


def _before_the_record(allocations: Sequence[Allocation], updates: Updates) -> dict[int, str]:
    """Of what was allocated before the record, in the sizes that updates show, parameters and their states."""
    of_size: defaultdict[int, list[int]] = defaultdict(list)
    for i, one in enumerate(allocations):
        if not one.has_stack and not one.category and one.requested in updates.sizes:
            of_size[one.requested].append(i)
    category_of: dict[int, str] = {}
    for size, same in of_size.items():
        counted = updates.sizes[size]
        count = len(same) // (updates.states + 1) if updates.states else counted
        count = min(count, counted or count)
        category_of.update(dict.fromkeys(same[:count], "parameters"))
        category_of.update(dict.fromkeys(same[count : count * (updates.states + 1)], "optimizer_states"))
    return category_of


def _most(sizes: Counter[int], category: str, allocations: Sequence[Allocation], taken: Collection[int]) -> set[int]:
    """The allocations that fit the sizes of all parameters, at the ratio at which most do; none if too few do."""
    best: tuple[float, set[int]] = (0.0, set())
    for times, over in _RATIOS:
        wanted = Counter({size * times // over: number for size, number in sizes.items()})
        some = set(_fitting(wanted, category, allocations, taken))
        share = sum(allocations[i].requested for i in some) / max(_bytes(wanted), 1)
        if share > best[0]:
            best = (share, some)
    return best[1] if best[0] >= _LEAST_SHARE else set()


def _in_one(sizes: Counter[int], allocations: Sequence[Allocation]) -> set[int]:
    """What was allocated before the record, if that is as large as all parameters: FSDP keeps many in one tensor."""
    before = {i for i, one in enumerate(allocations) if not one.has_stack and not one.category}
    total, wanted = sum(allocations[i].requested for i in before), _bytes(sizes)
    is_as_large = any(abs(total * over - wanted * times) <= _CLOSE * total * over for times, over in _RATIOS)
    return before if is_as_large else set()


def _fitting(
    wanted: Counter[int], category: str, allocations: Sequence[Allocation], taken: Collection[int]
) -> Iterator[int]:
    """Of each size as many as are wanted: those that stacks show first, then the oldest."""
    remaining = Counter(wanted)
    order = _MAY_BE[category]
    candidates = [i for i, one in enumerate(allocations) if one.category in order and i not in taken]
    for i in sorted(candidates, key=lambda i: (order.index(allocations[i].category), allocations[i].time_us)):
        if remaining[allocations[i].requested] > 0:
            remaining[allocations[i].requested] -= 1
            yield i


def _bytes(sizes: Counter[int]) -> int:
    return sum(size * number for size, number in sizes.items())
