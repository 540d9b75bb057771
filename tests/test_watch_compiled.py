"""`Doctor.watch` and torch.compile: between captures a watched model has no graph breaks."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tb_ddp_doctor.capture import Doctor  # noqa: E402


def net() -> torch.nn.Module:
    """Blocks of a norm, two linear layers and an activation."""
    blocks = [
        torch.nn.Sequential(torch.nn.LayerNorm(8), torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 8))
        for _ in range(4)
    ]
    return torch.nn.Sequential(*blocks)


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
