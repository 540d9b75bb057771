"""The plugin's route `detail`, on a job that the real engine read."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import frontend_sources
import numpy as np
import pytest
from msgspec.structs import replace
from tensorboard.plugins import base_plugin
from traces import in_row, job, ranks, write
from werkzeug.test import Client, TestResponse

from tb_ddp_doctor import engine
from tb_ddp_doctor.account.savings import Savings
from tb_ddp_doctor.cache import Cache
from tb_ddp_doctor.discover.runs import discover
from tb_ddp_doctor.facts import Facts
from tb_ddp_doctor.facts.iterations import workloads
from tb_ddp_doctor.facts.traffic import communication, measured
from tb_ddp_doctor.plugin.plugin import DiagnosisPlugin
from tb_ddp_doctor.replay.whatif import WhatIf
from tb_ddp_doctor.view.details import DETAILS, _family, _outliers

USUAL = """
    rank# step   |1                                  |2
          host   [fwd][bwd.]
          gpu    [fwd....][bwd.]
          nccl                  [ar@8........][ar2@4.]
          memory   [1of4] [3of4]
"""
SLOW = """
    rank# step   |1                                  |2
          host   [fwd][bwd.]
          gpu    [fwd........][bwd.]
          nccl                      [ar@8....][ar2@4.]
          memory   [1of4] [3of5]
"""
Get = Callable[..., TestResponse]


@pytest.fixture(scope="module")
def get(tmp_path_factory: pytest.TempPathFactory) -> Get:
    logs = tmp_path_factory.mktemp("logs")
    write(logs / "job", in_row(ranks(USUAL, SLOW, USUAL)), clock_ms={1: 500.0})
    apps = DiagnosisPlugin(base_plugin.TBContext(logdir=str(logs))).get_plugin_apps()

    def ask(route: str, **query: str) -> TestResponse:
        return Client(apps[route]).get(route, query_string=query)

    until = time.monotonic() + 60
    while ask("/run", run="job").status_code != 200:
        assert time.monotonic() < until
        time.sleep(0.05)
    return ask


def detail(get: Get, of: str) -> Any:
    response = get("/detail", run="job", of=of)
    assert response.status_code == 200
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    return response.get_json()


def test_operations_are_the_mean_of_a_step(get: Get) -> None:
    found = detail(get, "operators")
    lengths = {len(column) for column in found.values() if isinstance(column, list)}
    assert len(lengths) == 1
    row = next(i for i, name in enumerate(found["names"]) if "fwd" in name and found["on_device"][i])
    assert found["device_ms"][row] == pytest.approx((9 + 13 + 9) / 3, abs=0.01)
    assert (found["most_rank"][row], found["most_ms"][row]) == (1, 13)
    annotations = {name for name, is_one in zip(found["names"], found["is_annotation"], strict=True) if is_one}
    assert "ProfilerStep" in annotations and not any(name.startswith("aten::") for name in annotations)


def test_a_collectives_wait_is_told_apart_from_its_transfer(get: Get) -> None:
    found, told = detail(get, "operators"), detail(get, "ranks")
    waits = {name: wait for name, wait in zip(found["names"], found["wait_ms"], strict=True) if wait is not None}
    (name,) = waits
    assert "AllReduce" in name
    # What is left of the kernel's time is communication without wait, as the view Ranks has it.
    left = found["device_ms"][found["names"].index(name)] - waits[name]
    assert waits[name] > 1 and left == pytest.approx(np.mean(told["moving_ms"]), abs=0.01)


def test_kernels_and_their_waits_are_of_all_recorded_steps() -> None:
    """Where steps are left out of the job, the operators still have them: what waits there is no transfer."""
    (run,) = discover(Path(__file__).parents[1] / "demo_logs" / "four_workers")
    result = engine.diagnose(run, reading=engine.Reading(cache=Cache(None)))
    found = DETAILS["operators"](result)
    assert (found["recorded_steps"], found["compared_steps"]) == (3, 2)
    wait = next(wait for wait in found["wait_ms"] if wait)
    job = result.job
    # All its collectives are matched within recorded steps.
    waits = measured(job, np.arange(len(job.matched.step)))[2]
    assert wait == pytest.approx(waits.sum() / sum(len(digest.steps) for digest in job.digests) / 1e6, abs=0.001)
    compared = communication(job)[0].wait_per_step_ns / 1e6
    assert compared < wait / 2


def test_communication_has_a_point_for_each_collective(get: Get) -> None:
    (family,) = detail(get, "communication")["families"]
    assert family["kind"] == "all_reduce" and family["ranks"] == [0, 1, 2]
    assert family["bytes"] == [32_000_000, 16_000_000] * 3
    assert family["transfer_us"] == pytest.approx([10_000, 8_000] * 3, abs=1)
    assert family["outlier"] == [0] * 6 and family["far"] == 0
    assert family["mean_transfer_us"] == pytest.approx(9_000, abs=1)
    assert family["nodes"] == ["host0", "host1", "host2"]
    assert (family["peers"], family["slowdown"]) == (0, None)
    assert (family["possible_bus_rate"], family["possible_by"]) == (None, "")


def test_communication_compares_the_nodes(get: Get) -> None:
    """The slow rank is the last in each first collective of a step, and the others wait for it there."""
    found = detail(get, "communication")["nodes"]
    assert [(node["name"], node["ranks"], node["calls"]) for node in found] == [
        ("host0", [0], 2),
        ("host1", [1], 2),
        ("host2", [2], 2),
    ]
    assert [node["waited_for_ms"] for node in found] == pytest.approx([0, 4, 0], abs=0.01)
    assert [node["stands_out"] for node in found] == [False, True, False]
    assert found[1]["last"] == pytest.approx(0.5)


def test_outliers_are_among_the_few_points_of_many_collectives() -> None:
    text = """
        rank# step |1
              gpu  [work]
              nccl       [ar.]
    """
    made = job(ranks(text, text, steps=30))
    (usual,) = communication(made)
    transfer_ns = usual.transfer_ns.copy()
    transfer_ns[17] *= 3
    longer = replace(usual, transfer_ns=transfer_ns)
    family = _family(made, longer, None, _outliers(longer, np.zeros(30, np.int64)), 5, 0)
    assert (len(family["step"]), family["calls"], family["far"]) == (6, 30, 1)
    assert family["step"][family["outlier"].index(1)] == made.steps[17]


def test_iterations_that_read_prompts_have_no_outliers_where_sizes_are_not_known() -> None:
    """They send more than those that decode: all of their AllReduces were outliers."""
    decode = """
        rank# host [own_context_0_generation_8..]
              gpu  [fwd]
              nccl      [ar@0]
    """
    prefill = decode.replace("context_0", "context_1").replace("[ar@0]", "[ar@0................]")
    made = job(in_row(*[ranks(*[one] * 2, steps=1) for one in (decode, decode, prefill, decode) * 3]))
    (family,) = communication(made)
    family = replace(family, bytes=np.zeros_like(family.bytes))
    assert _outliers(family, Facts(made).get(workloads).number).sum() == 0
    assert _outliers(family, np.zeros(len(made.steps), np.int64)).sum() == 3


def test_ranks_take_the_waiting_out(get: Get) -> None:
    found = detail(get, "ranks")
    assert found["wait_ms"] == pytest.approx([4, 0, 4], abs=0.01)
    own = [step - wait for step, wait in zip(found["step_ms"], found["wait_ms"], strict=True)]
    assert found["busy_ms"] == pytest.approx(own, abs=0.001)
    for i in range(3):
        assert found["communication_ms"][i] == pytest.approx(found["moving_ms"][i] + found["wait_ms"][i], abs=0.01)
        assert found["moving_ms"][i] == pytest.approx(found["hidden_ms"][i] + found["transfer_ms"][i], abs=0.01)


def test_memory_is_on_the_common_clock(get: Get) -> None:
    found = detail(get, "memory")
    assert found["ranks_told"] == 3
    first, slow, _ = found["curves"]
    assert max(slow["reserved"]) == 5_000_000_000
    assert slow["time_ms"] == pytest.approx(first["time_ms"], abs=0.1)


def test_quality_says_what_each_file_holds(get: Get) -> None:
    files = detail(get, "quality")["files"]
    assert [one["rank"] for one in files] == [0, 1, 2]
    assert [one["steps"] for one in files] == [[1, 3, 5]] * 3
    assert all(one["memory"] and one["matched"] == 6 for one in files)


@pytest.mark.parametrize(
    ("of", "key", "file", "typedef"),
    [
        ("compute", None, "compute/kernels.js", "Roofline"),
        ("communication", "families", "communication/family.js", "Family"),
        ("communication", "nodes", "communication/family.js", "Node"),
        ("memory", "curves", "views/memory.js", "Curve"),
        ("operators", None, "views/operators.js", "Operations"),
        ("quality", "files", "files.js", "File"),
    ],
)
def test_the_page_has_the_types_of_what_is_answered(
    get: Get, of: str, key: str | None, file: str, typedef: str
) -> None:
    found = detail(get, of)
    keys = found if key is None else found[key][0]
    assert set(frontend_sources.properties(file, typedef)) == set(keys)


@pytest.mark.parametrize(
    ("query", "status", "words"),
    [
        ({"of": "ranks"}, 404, "has been diagnosed"),
        ({"run": "other", "of": "ranks"}, 404, "has been diagnosed"),
        ({"run": "job"}, 400, "Ask for one of: operators"),
        ({"run": "job", "of": "../ranks"}, 400, "Ask for one of"),
    ],
)
def test_what_there_is_not_is_said(get: Get, query: dict[str, str], status: int, words: str) -> None:
    response = get("/detail", **query)
    assert response.status_code == status
    assert words in response.get_json()["error"]


@pytest.mark.parametrize("of", DETAILS)
def test_a_job_of_cpus_has_every_view(of: str) -> None:
    read = job("""
        rank0 step |1            |2
              host [fwd.][bwd.]
        rank1 step |1            |2
              host [fwd.][bwd..]
    """)
    savings = Savings([], WhatIf.of(read), read)
    assert DETAILS[of](engine.Result(engine.examine(read), savings, read, (), True))
