"""What a file's name says of a node: only what names a host does."""

from __future__ import annotations

from pathlib import Path

import pytest
from traces import draw, ranks

from tb_ddp_doctor import engine
from tb_ddp_doctor.cache import Cache
from tb_ddp_doctor.discover.runs import discover

HEALTHY = """
    rank# step |1
          gpu  [fwd....][bwd.]
          nccl                [ar........]
"""


def nodes(folder: Path, *names: str) -> tuple[str, ...]:
    """The nodes of a job whose ranks' files have these names; rank N is process 100 + N."""
    for name, data in zip(names, draw(ranks(*[HEALTHY] * len(names))).values(), strict=True):
        (folder / name).write_bytes(data)
    (run,) = discover(folder)
    return engine.diagnose(run, reading=engine.Reading(cache=Cache(None))).job.nodes


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["gpu7_100.17.pt.trace.json", "gpu8_101.17.pt.trace.json"], ("gpu7", "gpu8")),
        (["gpu7_0.pt.trace.json", "gpu7_1.pt.trace.json"], ("gpu7", "gpu7")),
        (["libkineto_trace_gpu7_100.json", "libkineto_trace_gpu8_101.json"], ("gpu7", "gpu8")),
        (["worker0.pt.trace.json", "worker1.pt.trace.json"], ("", "")),
        (["worker0_7.pt.trace.json", "worker1_7.pt.trace.json"], ("", "")),
        (["profile_0.json", "profile_1.json"], ("", "")),
        (["rank0_trace.json", "rank1_trace.json"], ("", "")),
    ],
    ids=lambda value: value[0],
)
def test_only_what_names_a_host_is_a_node(tmp_path: Path, names: list[str], expected: tuple[str, ...]) -> None:
    assert nodes(tmp_path, *names) == expected
