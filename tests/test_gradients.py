"""When backward completes gradients, and which kernels run beside communication."""

from __future__ import annotations

import numpy as np
import traces
from traces import MS

from tb_ddp_doctor.digest.model import RankDigest

DRAWN = """
    rank0 step     |2
          host     [fwd]
          autograd      [bwd_a][grad@2 ][bwd_b][grad@3    ]
          gpu           [fwd.......][bwd_a.......][bwd_b.......]
          nccl                                                  [ar@5...]
"""


def digest(text: str = DRAWN, **options: object) -> RankDigest:
    return traces.digests(text, **options)[0]


def test_gradients_stand_in_the_order_in_which_backward_completes_them() -> None:
    found = digest().gradients
    assert found.elements.tolist() == [2_000_000, 3_000_000]
    assert found.step.tolist() == [0, 0]
    assert found.backward.tolist() == [0, 0]
    assert (np.diff(found.ready_ns) > 0).all()


def test_a_gradient_is_done_when_the_device_has_done_what_was_launched_before() -> None:
    rank = digest()
    origin = int(rank.steps.host_start_ns[0])
    left = DRAWN.splitlines()[1].index("|")
    ends = [line.rindex("]") + 1 for line in ("[fwd.......][bwd_a.......]", "[fwd.......][bwd_a.......][bwd_b.......]")]
    begin = DRAWN.splitlines()[4].index("[fwd") - left
    assert ((rank.gradients.done_ns - origin) // MS).tolist() == [begin + end for end in ends]


def test_without_shapes_sizes_are_unknown() -> None:
    assert digest(shapes=False).gradients.elements.tolist() == [-1, -1]


def test_a_trace_without_autograd_has_no_gradients() -> None:
    assert len(digest("rank0 step |2\n host [fwd]\n gpu  [fwd....]\n").gradients) == 0


def test_kernels_that_run_beside_communication_are_told_from_those_without_any() -> None:
    kernels = digest("""
        rank0 step |2
              host [a][b][c]
              gpu     [work....][work....][work....]
              nccl         [ar.............]
    """).kernels
    assert (kernels.count.tolist(), kernels.beside.tolist(), kernels.alone.tolist()) == ([3], [1], [0])
    assert kernels.beside_ns[0] == 10 * MS
