"""Trains small models on the CPU, whose bytes are known, and traces them with profile_memory=True.

    python memory_job.py OUT

Writes a folder for each scenario with one trace, and `known.json`: how many steps, what leaks in each, and what each
scenario has of parameters, gradients, optimizer state and saved activations, by torch's own count. `test_memory_job`
runs it; by hand it makes traces to look at.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

STEPS = 10
LEAKED = 1 << 20


class Block(nn.Module):
    """Attention and a feed-forward part, each added to its input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Shape (batch, length, width), as the input."""
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        result: torch.Tensor = x + self.feed(self.norm2(x))
        return result


def perceptron() -> tuple[nn.Module, torch.Tensor]:
    """A perceptron, and a batch for it."""
    layers = [layer for _ in range(5) for layer in (nn.Linear(256, 256), nn.ReLU())]
    return nn.Sequential(*layers), torch.randn(500, 256)


def transformer() -> tuple[nn.Module, torch.Tensor]:
    """A small transformer, and a batch for it."""
    return nn.Sequential(*(Block(64) for _ in range(4))), torch.randn(8, 96, 64)


#: What is trained, how, and whether a tensor more is kept in each step.
SCENARIOS: dict[str, tuple[Callable[[], tuple[nn.Module, torch.Tensor]], Callable[..., Any], bool]] = {
    "adam": (perceptron, torch.optim.Adam, False),
    "transformer": (transformer, torch.optim.AdamW, False),
    "momentum": (perceptron, lambda some: torch.optim.SGD(some, lr=1e-3, momentum=0.9), False),
    "plain_sgd": (perceptron, lambda some: torch.optim.SGD(some, lr=1e-3), False),
    "leak": (perceptron, lambda some: torch.optim.SGD(some, lr=1e-3), True),
}


def train(model: nn.Module, optimizer: Any, batch: torch.Tensor, keep: list[torch.Tensor] | None) -> Iterator[None]:
    """A loop that ends a step at each yield."""
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        del loss
        if keep is not None:
            keep.append(torch.zeros(LEAKED, dtype=torch.uint8))
        yield


def count(model: nn.Module, optimizer: Any, batch: torch.Tensor) -> dict[str, int]:
    """Bytes of the model's states, and of what one forward pass saves for backward besides parameters and the batch."""
    own = {each.untyped_storage().data_ptr() for each in (*model.parameters(), batch)}
    saved: dict[int, int] = {}

    def save(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
        loss = model(batch).square().mean()
        loss.backward()
    states = [value for state in optimizer.state.values() for value in state.values() if torch.is_tensor(value)]
    return {
        "parameter": sum(each.nbytes for each in model.parameters()),
        "gradient": sum(each.grad.nbytes for each in model.parameters() if each.grad is not None),
        "optimizer_state": sum(each.nbytes for each in states),
        "activation": sum(saved.values()),
    }


def main() -> None:
    """Capture all scenarios."""
    out = Path(sys.argv[1])
    torch.manual_seed(0)
    torch.set_num_threads(1)
    known = {}
    for name, (make, optimize, leaks) in SCENARIOS.items():
        keep: list[torch.Tensor] | None = [] if leaks else None
        with profile(
            activities=[ProfilerActivity.CPU], profile_memory=True, record_shapes=True, with_stack=leaks
        ) as profiler:
            model, batch = make()
            optimizer = optimize(model.parameters())
            for _ in train(model, optimizer, batch, keep):
                profiler.step()
        (out / name).mkdir(parents=True)
        profiler.export_chrome_trace(str(out / name / "rank0.pt.trace.json"))
        known[name] = count(model, optimizer, batch)
        # The CPU's allocator would go on counting them.
        del model, optimizer, batch, keep
    (out / "known.json").write_text(json.dumps({"steps": STEPS, "leaked": LEAKED, "bytes": known}))


if __name__ == "__main__":
    main()
