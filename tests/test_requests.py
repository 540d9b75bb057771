"""The time in which a server has no request is a line of the account: no fault, and not unexplained."""

from __future__ import annotations

import pytest
from test_round_trips import ITERATION, NAMES
from traces import finding, in_row, job, outcome, ranks

from tb_ddp_doctor import engine
from tb_ddp_doctor.findings import Diagnosis

DECODE = """
    rank# host   [own_context_0_generation_8.]
          within [attend][sync.............]
          gpu      [attend.................]
"""
#: The prompts of eight new requests.
PREFILL = DECODE.replace("context_0_generation_8", "context_8_generation_0")
#: vLLM's engine, blocked where it takes requests.
TAKES = """
    rank# python  [step.................................]
          inner   [nap.................................]
"""
#: SGLang's scheduler, which looks for requests again and again.
LOOKS = """
    rank# python  [step] [step]    [step]          [step]
"""
#: It only looks for a moment, and works for the rest.
WORKS = """
    rank# python  [step][call...........................]
          inner   [nap]
"""
STEP, CALL = "train.py(4): step", "torch/nn/modules/module.py(1775): _call_impl"
SLEEP = {STEP: "lightllm/server/router/model_infer/mode_backend/chunked_prefill/impl.py(80): infer_loop"}
TAKE = {STEP: "vllm/v1/engine/core.py(1174): _process_input_queue"}
LOOK = {STEP: "sglang/srt/managers/scheduler.py(800): self_check_during_idle"}


def served(*drawings: str) -> str:
    """Two ranks that do one after the other."""
    return in_row(*[ranks(one, one, steps=1) for one in drawings])


def diagnosed(text: str, **options: object) -> Diagnosis:
    return engine.examine(job(text, **options))


def line(found: Diagnosis, kind: str) -> float:
    return sum(one.ms for one in found.account.lines if one.kind == kind) * len(found.steps)


def idle(between: str, prompts: str = PREFILL) -> str:
    """Requests end; what comes `between`, and new ones come."""
    return served(*[DECODE] * 4, *([between] if between else []), prompts, *[DECODE] * 4)


def later(text: str, first: str) -> str:
    """The drawing with 40 ms of nothing after what is drawn `first`."""
    at = len(first.split("\n", maxsplit=1)[0])
    return "\n".join(row[:at] + " " * 40 + row[at:] for row in text.split("\n"))


IDLE = later(idle(""), served(*[DECODE] * 4))


def test_new_requests_after_all_others_have_ended_were_awaited() -> None:
    found = diagnosed(IDLE)
    assert line(found, "no-requests") == pytest.approx(40, abs=1)
    assert found.verdict == "unknown" and line(found, "unexplained") < 20
    assert "The server has no request for " in found.headline
    assert all(one.severity == "info" for one in found.findings)
    assert sum(one.total_ns for one in found.account.lines) == found.account.total_ns


def test_with_requests_in_decode_a_gap_is_the_schedulers() -> None:
    """Two of eight requests are new: the others wait for as long as nothing runs."""
    found = diagnosed(IDLE.replace("context_8", "context_2"))
    assert line(found, "no-requests") == 0 and "no request" not in found.headline
    assert found.verdict == "iteration-gap"


def test_a_slow_scheduler_is_found_beside_the_wait() -> None:
    text = served(*[DECODE] * 4)
    for more in (PREFILL, *[DECODE] * 4):
        text = later(in_row(text, ranks(more, more, steps=1)), text)
    text = later(text.replace(" " * 40, " " * 20), served(*[DECODE] * 4))
    # After every iteration from the fourth on the CPU takes 20 ms, and once no request is there for 40 ms more.
    found = finding("iteration-gap", text)
    assert found.cost_ms * 8 == pytest.approx(5 * 20, rel=0.2)
    assert line(diagnosed(text), "no-requests") == pytest.approx(40, abs=5)


def unmarked(between: str) -> str:
    """A server that marks nothing: each iteration brings copies to the GPU, and its tokens back."""
    return served(*[ITERATION] * 5, between, *[ITERATION] * 5)


@pytest.mark.parametrize(("between", "names"), [(TAKES, TAKE), (LOOKS, LOOK), (TAKES, SLEEP)])
def test_stacks_show_the_wait_without_marks(between: str, names: dict[str, str]) -> None:
    text, names = unmarked(between), NAMES | names
    found = diagnosed(text, names=names)
    assert found.kind == "inference server"
    assert line(found, "no-requests") == pytest.approx(38, abs=4)
    assert outcome("iteration-gap", text, names=names).status == "clear"


def test_a_server_that_works_before_it_goes_on_does_not_wait() -> None:
    names = NAMES | TAKE | {CALL: "vllm/v1/core/sched/scheduler.py(240): schedule"}
    assert line(diagnosed(unmarked(WORKS), names=names), "no-requests") < 8
