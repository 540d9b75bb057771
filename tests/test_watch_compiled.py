"""`Doctor.watch` and torch.compile: between captures a watched model has no graph breaks."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tb_ddp_doctor.capture import Doctor  # noqa: E402
from tb_ddp_doctor.capture.watch import Watched  # noqa: E402


def net() -> torch.nn.Module:
    """Blocks of a norm, two linear layers and an activation."""
    blocks = [
        torch.nn.Sequential(torch.nn.LayerNorm(8), torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 8))
        for _ in range(4)
    ]
    return torch.nn.Sequential(*blocks)


def test_while_recorded_compiled_modules_are_marked_without_being_compiled_anew(tmp_path: Path) -> None:
    model = net()
    for block in model:
        block.compile(backend="eager")
    batch = torch.randn(2, 8)
    try:
        model(batch)
        before, compiled = [block._compiled_call_impl for block in model], torch._dynamo.utils.counters["frames"]["ok"]
        watched = Watched(tmp_path)
        watched.watch_model(model, depth=4)
        watched.start()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True) as recorded:
            model(batch)
        watched.stop()
        marks = {event.name for event in recorded.events() if event.name.startswith("nn.Module: ")}
        assert marks == {f"nn.Module: {number}" for number in range(4)}
        assert torch._dynamo.utils.counters["frames"]["ok"] == compiled
        assert [block._compiled_call_impl for block in model] == before
    finally:
        torch._dynamo.reset()


@pytest.mark.parametrize("depth", [2, 4])
def test_between_captures_a_watched_model_is_one_graph(tmp_path: Path, depth: int) -> None:
    model = net()
    doctor = Doctor(tmp_path)
    try:
        doctor.watch(model, depth=depth)
        doctor.step()
        assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
        explained = torch._dynamo.explain(model)(torch.randn(2, 8))
        assert (explained.graph_count, explained.graph_break_count) == (1, 0)
    finally:
        doctor.close()
        torch._dynamo.reset()
