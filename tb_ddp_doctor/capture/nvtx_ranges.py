"""Steps, phases and modules as NVTX ranges, named as torch's profiler names them, for recordings of Nsight Systems.

Forward and modules are hooks of a model, the optimizer's step one of torch's. Backward begins with the first gradient
of the model's output, and ends when autograd does.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

_log = logging.getLogger(__name__)
#: Of a model's output, so many tensors are looked for.
_MOST_OUTPUTS = 1000


class _Open(threading.local):
    """The ranges of this thread that were pushed and not popped: modules may be within each other."""

    def __init__(self) -> None:
        self.names: list[str] = []


class NvtxRanges:
    """Ranges around steps, phases and modules; without NVTX none, which is said once. Raises nothing."""

    def __init__(self, nvtx: Any = None) -> None:
        self._nvtx = nvtx
        self._step_is_open = False
        self._open = _Open()
        self._backward: Any = None
        self._hooks: list[Any] = []
        self._is_off = False
        if nvtx is None:
            self._try(self._load)

    def begin(self, step: int) -> None:
        """A step begins, and the one before it ends."""
        self.end()
        self._step_is_open = self._try(lambda: self._nvtx.range_push(f"step {step}"))

    def end(self) -> None:
        """The step ends."""
        if self._step_is_open:
            self._try(self._end_last)
        self._step_is_open = False

    def watch(self, model: Any, modules: Mapping[str, Any]) -> None:
        """Mark the passes of a model, and the calls of its modules, by the name that each is to have."""
        self._try(lambda: self._hook(model, modules))

    def watch_optimizers(self) -> None:
        """Mark the steps of all optimizers."""
        self._try(self._hook_optimizers)

    def close(self) -> None:
        """End the step, and mark nothing more."""
        self.end()
        self._is_off = True
        while self._hooks:
            self._hooks.pop().remove()

    def _load(self) -> None:
        from torch.cuda import nvtx

        self._nvtx = nvtx

    def _hook_optimizers(self) -> None:
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

        self._hooks += [
            register_optimizer_step_pre_hook(lambda optimizer, *_: self._push(_update(optimizer))),
            register_optimizer_step_post_hook(lambda optimizer, *_: self._pop(_update(optimizer))),
        ]

    def _hook(self, model: Any, modules: Mapping[str, Any]) -> None:
        for name, module in {"forward": model, **modules}.items():
            self._hooks += [
                module.register_forward_pre_hook(lambda *_, name=name: self._push(name)),
                module.register_forward_hook(lambda *_, name=name: self._pop(name), always_call=True),
            ]
        self._hooks.append(model.register_forward_hook(lambda _model, _inputs, output: self._await_backward(output)))

    def _push(self, name: str) -> None:
        if self._try(lambda: self._nvtx.range_push(name)):
            self._open.names.append(name)

    def _pop(self, name: str) -> None:
        # Hooks of calls that began before the first error have nothing to end.
        if self._open.names[-1:] == [name]:
            self._open.names.pop()
            self._try(self._end_last)

    def _end_last(self) -> None:
        self._nvtx.range_pop()

    def _await_backward(self, output: Any) -> None:
        for tensor in _tensors(output):
            if tensor.requires_grad:
                tensor.register_hook(self._enter_backward)

    def _enter_backward(self, _gradient: Any) -> None:
        """Called on the thread that computes gradients; a range that is started may end on any."""
        if self._backward is None:
            self._try(self._begin_backward)

    def _begin_backward(self) -> None:
        from torch.autograd import Variable

        Variable._execution_engine.queue_callback(self._leave_backward)
        self._backward = self._nvtx.range_start("backward")

    def _leave_backward(self) -> None:
        number, self._backward = self._backward, None
        if number is not None:
            self._try(lambda: self._nvtx.range_end(number))

    def _try(self, act: Callable[[], object]) -> bool:
        """Whether it was done; after the first error nothing is."""
        if self._is_off:
            return False
        try:
            act()
        except Exception as error:
            self._is_off = True
            _log.warning(
                "ddp-doctor: no more NVTX ranges are made, and the training goes on without (%s: %s).",
                type(error).__name__,
                error,
            )
            return False
        return True


def _update(optimizer: Any) -> str:
    """What torch's own annotation of it is called."""
    return f"Optimizer.step#{type(optimizer).__name__}.step"


def _tensors(output: Any) -> Iterator[Any]:
    """The tensors in what a model returns: one, or some in lists, tuples and dictionaries."""
    import torch

    ahead, count = [output], 0
    while ahead and count < _MOST_OUTPUTS:
        value = ahead.pop()
        count += 1
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            ahead += value
        elif isinstance(value, Mapping):
            ahead += value.values()
