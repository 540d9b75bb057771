"""What is kept of torch.compile's logs."""

from __future__ import annotations

from typing import Literal

import msgspec


class CompileReason(msgspec.Struct, frozen=True):
    """Why a function was compiled again, or why its graph was broken."""

    kind: Literal["recompile", "graph-break"]
    rank: int
    #: The compiled function, "" where the log does not name it; of a graph break, the rest of it from there on has a
    #: name of its own ("torch_dynamo_resume_in_forward_at_8").
    function: str
    #: Where the function begins, or where its graph breaks, as "train.py:8"; "" if unknown.
    place: str
    #: As torch words it: "tensor 'x' size mismatch at index 0. expected 4, actual 6".
    reason: str
    #: What torch advises, "" without advice.
    hint: str
    #: When the compilation began, since 1970, and how long it took, ns; 0 where the log does not say.
    start_ns: int
    duration_ns: int
