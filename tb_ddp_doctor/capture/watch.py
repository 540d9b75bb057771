"""What a job shows of itself when it is asked to: the modules that run, and how long batches take to load.

Modules are marked in the trace while it is recorded, and only then have hooks. DataLoader workers note the times of
their last batches in a small file each, all the time: nobody can tell them when a capture begins.
"""

from __future__ import annotations

import contextlib
import logging
import os
import statistics
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tb_ddp_doctor.evidence.model import Loading

_log = logging.getLogger(__name__)
#: Start and length of a batch, ns; as many as each worker remembers.
_BATCH = struct.Struct("<qq")
_REMEMBERED = 32
#: Deeper modules are within these; each costs a microsecond or two while it is recorded.
_MOST_MODULES = 1000


class Watched:
    """The modules and loaders that a job handed over."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._modules: dict[str, Any] = {}
        #: Those that `module.compile()` compiled, by path: a hook would have them compiled anew.
        self._compiled: dict[str, Any] = {}
        self._hooks: list[Any] = []
        self._loaders = 0

    def watch_model(self, model: Any, depth: int) -> None:
        """Mark the modules of a model, to a depth, while it is recorded."""
        if _is_compiled(model):
            _log.warning(
                "ddp-doctor: the model that watch() is to mark is compiled as one: modules within its graphs leave no "
                "marks. Compile its layers (`layer.compile()` for each) and each is marked as a whole."
            )
        left_out = 0
        for name, module in model.named_modules():
            # DDP's and torch.compile's wrappers are no level of their own.
            parts = [
                part for part in name.split(".") if part not in ("", "module", "_orig_mod", "_fsdp_wrapped_module")
            ]
            path = ".".join(parts)
            if not parts or len(parts) > depth or any(path.startswith(f"{outer}.") for outer in self._compiled):
                continue
            if _is_compiled(module):
                if getattr(module, "_compiled_call_impl", None) is not None:
                    self._compiled[path] = module
                continue
            if path in self._modules or len(self._modules) < _MOST_MODULES:
                self._modules[path] = module
            else:
                left_out += 1
        if left_out:
            _log.warning(
                "ddp-doctor: watch() marks %d modules at most: the time of %d others counts for the modules around "
                "them. Pass a smaller depth than %d.",
                _MOST_MODULES,
                left_out,
                depth,
            )

    def modules(self) -> dict[str, Any]:
        """The modules that are marked, by what a trace calls them."""
        return {f"nn.Module: {name}": module for name, module in self._modules.items()}

    def watch_loader(self, loader: Any) -> None:
        """Time the batches of a DataLoader in its workers; without workers, the trace itself shows them."""
        if not getattr(loader, "num_workers", 0):
            return
        folder = self._scratch / f"loader{self._loaders}"
        folder.mkdir(parents=True, exist_ok=True)
        self._loaders += 1
        loader.worker_init_fn = _TimedWorker(loader.worker_init_fn, str(folder))

    def start(self) -> None:
        """Mark modules from now on."""
        for name, module in self.modules().items():
            marks = _Marks(name)
            # What other hooks run, as FSDP's gathers of parameters, is of the module, too.
            self._hooks.append(module.register_forward_pre_hook(marks.enter, prepend=True))
            self._hooks.append(module.register_forward_hook(marks.leave, always_call=True))
        for path, module in self._compiled.items():
            self._hooks.append(_MarkedCall(module, _Marks(f"nn.Module: {path}")))

    def stop(self) -> None:
        while self._hooks:
            self._hooks.pop().remove()

    def loading(self) -> Loading | None:
        """The last batches of all workers; None where none was timed."""
        files = [path for number in range(self._loaders) for path in (self._scratch / f"loader{number}").glob("*")]
        by_worker = [times for path in files if (times := list(_batches(path)))]
        all_ns = [length for times in by_worker for length in times]
        if not all_ns:
            return None
        return Loading(len(by_worker), len(all_ns), statistics.median(all_ns) / 1e6, max(all_ns) / 1e6)

    def close(self) -> None:
        """Remove what workers noted."""
        for number in range(self._loaders):
            folder = self._scratch / f"loader{number}"
            for path in folder.glob("*"):
                path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                folder.rmdir()


def watch_first_gradient(model: Any, ready: Callable[[], None]) -> None:
    """Call `ready` in each backward pass once the first gradients exist: collectives of gradients come after that.

    That is the gradient of the last parameter. Parameters that take no such hook, as some
    that are sharded, call nothing.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    with contextlib.suppress(AttributeError, RuntimeError):
        for parameter in trained[-1:]:
            parameter.register_post_accumulate_grad_hook(lambda _: ready())


class _Marks:
    """Marks the calls of a module, which may be within each other."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._open: list[Any] = []

    def enter(self, *_: Any) -> None:
        from torch.profiler import record_function

        mark = record_function(self._name)
        mark.__enter__()
        self._open.append(mark)

    def leave(self, *_: Any) -> None:
        if self._open:
            self._open.pop().__exit__(None, None, None)


class _MarkedCall:
    """Marks the calls of a compiled module from outside of its graph, until it is removed."""

    def __init__(self, module: Any, marks: _Marks) -> None:
        self._module = module
        self._call = call = module._compiled_call_impl

        def marked(*arguments: Any, **named: Any) -> Any:
            marks.enter()
            try:
                return call(*arguments, **named)
            finally:
                marks.leave()

        module._compiled_call_impl = marked

    def remove(self) -> None:
        self._module._compiled_call_impl = self._call


class _TimedWorker:
    """A worker_init_fn that times batches after the one that was there; it goes to workers by pickle, too."""

    def __init__(self, then: Callable[[int], None] | None, folder: str) -> None:
        self._then = then
        self._folder = folder

    def __call__(self, worker: int) -> None:
        if self._then is not None:
            self._then(worker)
        with contextlib.suppress(Exception):
            self._time_batches(worker)

    def _time_batches(self, worker: int) -> None:
        """In this process alone, note when each batch was fetched."""
        from torch.utils.data._utils import fetch

        # A worker that took the place of another one takes its file.
        file = os.open(os.path.join(self._folder, str(worker)), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        number = 0

        def timed(load: Callable[..., Any]) -> Callable[..., Any]:
            def fetched(*arguments: Any) -> Any:
                nonlocal number
                start, begun = time.time_ns(), time.perf_counter_ns()
                batch = load(*arguments)
                with contextlib.suppress(OSError):
                    noted = _BATCH.pack(start, time.perf_counter_ns() - begun)
                    os.pwrite(file, noted, number % _REMEMBERED * _BATCH.size)
                number += 1
                return batch

            return fetched

        for kind in (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher):
            kind.fetch = timed(kind.fetch)


def _batches(path: Path) -> Iterator[int]:
    """How long the batches took that a worker noted, ns."""
    data = path.read_bytes()
    for _, length in _BATCH.iter_unpack(data[: len(data) // _BATCH.size * _BATCH.size]):
        yield length


def _is_compiled(module: Any) -> bool:
    """Whether a hook would have it compiled anew."""
    return getattr(module, "_compiled_call_impl", None) is not None or hasattr(module, "_orig_mod")
