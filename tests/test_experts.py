"""Expert parallelism: what sending tokens to their experts and back takes is said."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from traces import draw, ranks

from tb_ddp_doctor.digest.build import digest
from tb_ddp_doctor.facts.unrecognised import of_experts
from tb_ddp_doctor.job.build import build
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.trace.reader import decode

KERNELS = {
    "there_kernel": "void deep_ep::internode_ll::dispatch<true, 3, 10, 7168>(void*, float*)",
    "back_kernel": "void deep_ep::internode_ll::combine<3, 10, 7168, 9>(void*, void*)",
}
LAYER = """
    rank0 step |1
          gpu  [attend........]         [expert........]          [next]
          gpu2                 [there..]                [back....]
    rank1 step |1
          gpu  [attend...]              [expert........]          [next]
          gpu2            [there.......]                [back....]
"""


def job(text: str, kernels: dict[str, str], change: Callable[[dict[str, Any]], Any] = lambda event: event) -> Job:
    """The drawn job with kernels of other names."""
    digests = {}
    for rank, data in draw(text).items():
        trace = msgspec.json.decode(data)
        for event in trace["traceEvents"]:
            event["name"] = kernels.get(event["name"], event["name"])
            change(event)
        digests[rank] = digest(decode([msgspec.json.encode(trace)], f"rank{rank}.json"))
    return build("drawn", digests, {}, 2)


def test_what_dispatch_and_combine_take_is_said_with_the_waiting_in_them() -> None:
    said = of_experts(job(ranks(LAYER), KERNELS))
    assert said == (
        "DeepEP dispatch and combine (expert parallelism) take 21.5 ms of 57.0 ms, 2.5 ms of it waiting for the last "
        "rank to arrive (0 to 5 ms by rank): dispatch waits 2.5 ms and transfers 9.0 ms; combine waits 0 ms and "
        "transfers 10.0 ms."
    )


def test_other_kernels_are_no_exchange() -> None:
    assert of_experts(job(ranks(LAYER), {})) is None


def test_an_exchange_that_takes_next_to_nothing_is_not_said() -> None:
    attend = f"[attend{'.' * 110}]"
    text = f"""
        rank# step |1
              gpu  {attend}
              gpu2 {" " * len(attend)}[b]
    """
    assert of_experts(job(ranks(text, text), {"b_kernel": KERNELS["back_kernel"]})) is None
