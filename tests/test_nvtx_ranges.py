"""NVTX ranges of the capture helper: what steps, phases and modules of a training loop are called."""

from __future__ import annotations

import importlib.util
import threading
from typing import Any

import pytest

from tb_ddp_doctor.capture.nvtx_ranges import NvtxRanges

needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="needs PyTorch: pip install -e '.[test,torch]'"
)


class Nvtx:
    """Records ranges in the order in which they begin and end."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self._pushed: list[tuple[str, int]] = []

    def range_push(self, name: str) -> None:
        self._pushed.append((name, threading.get_ident()))
        self.said.append(name)

    def range_pop(self) -> None:
        name, thread = self._pushed.pop()
        assert thread == threading.get_ident()
        self.said.append(f"end of {name}")

    def range_start(self, name: str) -> str:
        self.said.append(name)
        return name

    def range_end(self, name: str) -> None:
        self.said.append(f"end of {name}")


def test_a_step_ends_where_the_next_one_begins(caplog: pytest.LogCaptureFixture) -> None:
    nvtx = Nvtx()
    ranges = NvtxRanges(nvtx)
    ranges.begin(1)
    ranges.begin(2)
    ranges.close()
    ranges.begin(3)
    ranges.end()
    assert nvtx.said == ["step 1", "end of step 1", "step 2", "end of step 2"]
    assert not caplog.text


@needs_torch
def test_phases_and_modules_are_ranges_named_as_the_profiler_names_them() -> None:
    import torch

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = torch.nn.Linear(4, 4), torch.nn.Linear(4, 2)

        def forward(self, batch: torch.Tensor) -> dict[str, Any]:
            return {"logits": [self.last(self.first(batch))], "loss": None}

    nvtx, model = Nvtx(), Model()
    ranges = NvtxRanges(nvtx)
    optimizer = torch.optim.AdamW(model.parameters())
    ranges.watch_optimizers()
    ranges.watch(model, {f"nn.Module: {name}": module for name, module in model.named_children()})
    ranges.begin(7)
    model(torch.ones(3, 4))["logits"][0].sum().backward()
    optimizer.step()
    step = [
        "forward",
        "nn.Module: first",
        "end of nn.Module: first",
        "nn.Module: last",
        "end of nn.Module: last",
        "end of forward",
        "backward",
        "end of backward",
        "Optimizer.step#AdamW.step",
        "end of Optimizer.step#AdamW.step",
    ]
    assert nvtx.said == ["step 7", *step]
    with torch.no_grad():
        model(torch.ones(3, 4))
    assert nvtx.said[-1] == "end of forward"
    ranges.close()
    before = len(nvtx.said)
    model(torch.ones(3, 4))["logits"][0].sum().backward()
    optimizer.step()
    assert len(nvtx.said) == before


@needs_torch
def test_a_forward_that_raises_ends_its_ranges() -> None:
    import torch

    nvtx, model = Nvtx(), torch.nn.Sequential(torch.nn.Linear(4, 4))
    ranges = NvtxRanges(nvtx)
    ranges.watch(model, {"nn.Module: 0": model[0]})
    with pytest.raises(RuntimeError):
        model(torch.ones(3, 5))
    assert nvtx.said == ["forward", "nn.Module: 0", "end of nn.Module: 0", "end of forward"]


@needs_torch
def test_nvtx_that_fails_within_a_pass_leaves_the_training_alone(caplog: pytest.LogCaptureFixture) -> None:
    import torch

    class Failing(Nvtx):
        def range_start(self, name: str) -> str:
            raise RuntimeError("NVTX functions not installed")

    model = torch.nn.Linear(4, 1)
    ranges = NvtxRanges(Failing())
    ranges.watch(model, {})
    for _ in range(2):
        model(torch.ones(3, 4)).sum().backward()
    assert model.weight.grad is not None
    assert caplog.text.count("NVTX functions not installed") == 1
