"""What an operator has to do at least: the result of every function of `operator_work` and what it joins."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import msgspec

from tb_ddp_doctor.digest.model import GpuTime
from tb_ddp_doctor.digest.operator_inputs import Inputs


class Work(msgspec.Struct, frozen=True):
    """What an operator has to do at least."""

    kind: GpuTime
    flops: int
    read: int
    written: int
    #: Elements that it writes where it is a loop over elements, or a reduction: what a next one may take over.
    elements: int = 0
    #: The most operations that it may be, where lengths that are not recorded leave a range; 0 where there is none.
    most_flops: int = 0


#: Work of some inputs. Raises LookupError, ValueError or ZeroDivisionError where these do not tell.
WorkOf: TypeAlias = Callable[[Inputs], Work]


def aten(function: WorkOf, words: str, ending: str = "") -> dict[str, WorkOf]:
    """What some of torch's operators do, by their names: `words`, each with the ending."""
    return {f"aten::{word}{ending}": function for word in words.split()}


def each(function: WorkOf, *operators: str) -> dict[str, WorkOf]:
    """What several operators do alike, by their names."""
    return dict.fromkeys(operators, function)
