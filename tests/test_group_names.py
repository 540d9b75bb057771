"""What process groups are for, by their descriptions."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from traces import digests, ranks

from tb_ddp_doctor.facts.traffic import communication
from tb_ddp_doctor.job.build import build
from tb_ddp_doctor.trace.names import parallelism
from tb_ddp_doctor.trace.reader import decode


@pytest.mark.parametrize(
    ("description", "kind"),
    [
        ("mesh_tp", "TP"),
        ("mesh_dp_shard", "DP"),
        ("TENSOR_MODEL_PARALLEL_GROUP", "TP"),
        ("PIPELINE_MODEL_PARALLEL_GROUP", "PP"),
        ("EXPERT_MODEL_PARALLEL_GROUP", "EP"),
        ("DATA_PARALLEL_GROUP_WITH_CP", "DP+CP"),
        ("default_pg", ""),
        ("undefined", ""),
        ("update_steps", ""),
    ],
)
def test_a_description_says_what_a_group_is_for(description: str, kind: str) -> None:
    assert parallelism(description) == kind


def test_descriptions_are_read_from_the_header() -> None:
    header = decode(
        [
            b'{"distributedInfo": {"rank": 0, "pg_config": [{"pg_name": "3", "pg_desc": "mesh_tp", "ranks": [0]},'
            b' {"pg_name": "4", "pg_desc": 7}, {"pg_desc": "x"}]}, "traceEvents": []}'
        ],
        "rank0.json",
    ).header
    assert header.group_descriptions == {"3": "mesh_tp"}


def test_collectives_are_of_what_their_ranks_say() -> None:
    found = digests(
        ranks(
            *[
                """
                rank# step |1
                      host [fwd][ar]
                      gpu   [fwd..]
                      nccl         [ar/tp@8]
                """
            ]
            * 2
        )
    )
    told = {
        number: replace(digest, header=replace(digest.header, group_descriptions={"tp": "mesh_tp"}))
        for number, digest in found.items()
    }
    (traffic,) = communication(build("job", told, dict.fromkeys(told, ""), 2))
    assert (traffic.group, traffic.parallelism) == ("tp", "TP")
