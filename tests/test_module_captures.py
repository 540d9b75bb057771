"""Traces captured on the spot, of models on the CPU: each operator's time is of the right module.

What is right comes from ranges that the test opens in the call of each module and in the hook of each gradient.
Each model is recorded with Python's stacks, with the marks of `Doctor.watch`, and with neither.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from test_modules import paths

torch = pytest.importorskip("torch")

from torch import distributed, nn  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.profiler import ProfilerActivity, profile, record_function, schedule  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from tb_ddp_doctor.capture.watch import Watched  # noqa: E402
from tb_ddp_doctor.digest.build import digest  # noqa: E402
from tb_ddp_doctor.digest.event_modules import event_modules  # noqa: E402
from tb_ddp_doctor.digest.model import RankDigest  # noqa: E402
from tb_ddp_doctor.trace.model import Category  # noqa: E402
from tb_ddp_doctor.trace.reader import decode  # noqa: E402

#: Ranges around the call of a module, and in the hook of a parameter's gradient.
_CALL, _GRADIENT = "truth: ", "gradient: "
_NODE = "autograd::engine::evaluate_function: "
_STEPS = 2
#: Of the time of the operators in modules, the least that has to be in the right one.
_NAMED, _GUESSED = 0.99, 0.95


# ------------------------------------------------------------------------------------------------ models


class Block(nn.Module):
    """A transformer's layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        value = value + self.attention(self.norm1(value))
        return value + self.mlp(self.norm2(value))


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        batch, length, width = value.shape
        query, key, values = self.qkv(value).view(batch, length, 3, 4, width // 4).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, values, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Gpt(nn.Module):
    """A GPT of 8 layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, 64)
        self.layers = nn.ModuleList(Block(64) for _ in range(8))
        self.norm = nn.LayerNorm(64)
        self.head = nn.Linear(64, 256)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        value = self.embedding(tokens)
        for layer in self.layers:
            value = self.run(layer, value)
        return self.head(self.norm(value))

    def run(self, layer: nn.Module, value: torch.Tensor) -> torch.Tensor:
        return layer(value)


def tokens() -> torch.Tensor:
    return torch.randint(0, 256, (4, 64))


# ------------------------------------------------------------------------------------------------ what is right


class Truth:
    """Opens a range in each call of a model's modules, and knows what stacks call them."""

    def __init__(self, model: nn.Module) -> None:
        #: The path of each module in stacks, by its path in the model.
        self.in_stacks: dict[str, str] = {}
        #: The modules that are layers, in the order of forward.
        self.layers = [path for path, module in model.named_modules() if isinstance(module, (Block, Bottleneck))]
        self._numbers: defaultdict[str, dict[int, int]] = defaultdict(dict)
        self._open: list[str] = []
        #: Within them no range is opened: it would be no part of the graph.
        compiled = [path for path, module in model.named_modules() if module._compiled_call_impl is not None]
        for path, module in model.named_modules():
            if path in compiled:
                module._compiled_call_impl = self._ranged(path, module, module._compiled_call_impl)
            elif not any(path.startswith(f"{around}.") for around in compiled):
                # The whole call, with the hooks of the module, in which FSDP gathers parameters.
                module._call_impl = self._ranged(path, module, module._call_impl)
        for name, parameter in model.named_parameters():
            path = next((around for around in compiled if name.startswith(f"{around}.")), name.rpartition(".")[0])
            parameter.register_post_accumulate_grad_hook(self._gradient(path))

    def _ranged(self, path: str, module: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
        def ranged(*arguments: Any) -> Any:
            with record_function(f"{_CALL}{path}"), self._within(path, module):
                return forward(*arguments)

        return ranged

    @contextmanager
    def _within(self, path: str, module: nn.Module) -> Iterator[None]:
        # Stacks number the modules of a class in the order of their first calls.
        kind = type(module).__name__
        numbers = self._numbers[kind]
        self._open.append(f"{kind}_{numbers.setdefault(id(module), len(numbers))}")
        self.in_stacks.setdefault(path, ".".join(self._open))
        yield
        self._open.pop()

    def _gradient(self, path: str) -> Callable[[torch.Tensor], None]:
        def ranged(_: torch.Tensor) -> None:
            with record_function(f"{_GRADIENT}{path}"):
                pass

        return ranged


class Operator(msgspec.Struct):
    """An operator of a trace."""

    #: Of the operators in the order of the file.
    number: int
    #: Without the operators that it calls, µs.
    own_us: float
    #: The module that it is of by the test's ranges, "" for the model itself; None outside of it.
    path: str | None = None
    #: Whether the test cannot say whose it is. Modules are called in it, as in a checkpoint, so that its own time is
    #: that of Python; or it accumulates a gradient without a hook, as FSDP has them.
    is_unknown: bool = False


class Around(msgspec.Struct):
    """An event that others of its thread are within."""

    end_us: float
    #: The innermost operator, and the innermost node of autograd.
    operator: Operator | None
    node: Operator | None
    #: The module that runs; None outside of the model, and in a node.
    path: str | None


def operators(events: list[dict[str, Any]]) -> list[Operator]:
    """The operators of a trace, each with the module that it is of: of a node, that of its forward operator."""
    rows = [row for row, event in enumerate(events) if event.get("cat") in ("cpu_op", "user_annotation")]
    rows.sort(key=lambda row: (events[row]["ts"], -events[row]["dur"]))
    threads: defaultdict[int, list[Around]] = defaultdict(list)
    number_of = {row: at for at, row in enumerate(row for row in sorted(rows) if events[row]["cat"] == "cpu_op")}
    found: list[Operator] = []
    in_node: list[tuple[Operator, Operator]] = []
    #: The module of the last operator of forward with each sequence number.
    made: dict[int, str | None] = {}
    for row in rows:
        name, start, length = (events[row][key] for key in ("name", "ts", "dur"))
        stack = threads[events[row]["tid"]]
        while stack and stack[-1].end_us < start + length:
            stack.pop()
        inner = stack[-1] if stack else Around(0, None, None, None)
        if events[row]["cat"] == "user_annotation":
            stack.append(within_range(name, start + length, inner, stack))
            continue
        operator = Operator(number_of[row], length, inner.path)
        found.append(operator)
        if inner.operator is not None:
            inner.operator.own_us -= length
        number = events[row]["args"].get("Sequence number")
        if name.startswith(_NODE):
            operator.path, operator.is_unknown = made.get(number), number is None
            stack.append(Around(start + length, operator, operator, None))
            continue
        if inner.node is not None:
            in_node.append((operator, inner.node))
        made[number] = operator.path
        stack.append(Around(start + length, operator, inner.node, inner.path))
    for operator, node in in_node:
        operator.path = node.path
        operator.is_unknown |= node.is_unknown
    return found


def within_range(name: str, end_us: float, inner: Around, stack: list[Around]) -> Around:
    """What runs within an annotation, which may be one of the test's ranges; `inner` is the innermost of `stack`."""
    path, node = inner.path, inner.node
    if name.startswith(_CALL):
        path, node = name.removeprefix(_CALL), None
        for outer in stack:
            if outer.operator is not None:
                outer.operator.is_unknown = True
    elif name.startswith(_GRADIENT) and node is not None and node.is_unknown:
        # FSDP's hooks run in nodes of its own.
        node.path, node.is_unknown = name.removeprefix(_GRADIENT), False
    return Around(end_us, inner.operator, node, path)


# ------------------------------------------------------------------------------------------------ captures

RECORDED_BY = ("stacks", "Doctor.watch", "repeats")


class Captured(msgspec.Struct):
    """What a digest says of a trace, against what is right."""

    said: RankDigest
    #: µs of operators by the right module and the digest's, both by the paths of the model; "" outside of all.
    times: dict[tuple[str, str], float]

    def right(self) -> float:
        """The share of the time of the operators in modules that is of the right one."""
        inside = {pair: time for pair, time in self.times.items() if pair[0]}
        return sum(time for (truth, said), time in inside.items() if truth == said) / sum(inside.values())

    def claimed(self) -> float:
        """The share of the time of the operators outside of all modules that the digest says is of one."""
        outside = {pair: time for pair, time in self.times.items() if not pair[0]}
        return sum(time for (_, said), time in outside.items() if said) / sum(outside.values())


def captured(model: nn.Module, step: Callable[[], None], names: str, folder: Path) -> Captured:
    """Record steps of a model, with what names modules; `names` is one of `RECORDED_BY`."""
    truth = Truth(model)
    trace = recorded(model, step, names, folder)
    right = {
        "stacks": truth.in_stacks,
        "Doctor.watch": {path: path for path in truth.in_stacks},
        "repeats": {path: layer(path, truth.layers) for path in truth.in_stacks},
    }
    return compared(trace, operators(json.loads(trace)["traceEvents"]), right[names])


def recorded(model: nn.Module, step: Callable[[], None], names: str, folder: Path) -> bytes:
    """The trace of some steps."""
    watched, file = Watched(folder), folder / "rank0.json"
    if names == "Doctor.watch":
        watched.watch_model(model, depth=99)
    watched.start()
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=0, warmup=1, active=_STEPS, repeat=1),
        on_trace_ready=lambda done: done.export_chrome_trace(str(file)),
        with_stack=names == "stacks",
    ) as recording:
        for _ in range(1 + _STEPS):
            step()
            recording.step()
    watched.stop()
    return file.read_bytes()


def layer(path: str, layers: list[str]) -> str:
    """The guessed layer that a module is in; "" for none."""
    numbers = (number for number, around in enumerate(layers, 1) if f"{path}.".startswith(f"{around}."))
    return next((f"layer {number}" for number in numbers), "")


def compared(trace: bytes, found: list[Operator], right: dict[str, str]) -> Captured:
    """What the digest of a trace says of its operators.

    `right` is what it should say of the modules by their paths in the model.
    """
    events = json.loads(trace)["traceEvents"]
    least_of_steps(found, [event["name"] for event in events if event.get("cat") == "cpu_op"])
    read = decode([trace], "rank0.json")
    said = digest(read)
    rows = np.flatnonzero(read.events.category == Category.OP)
    of = event_modules(read, said).of_rows(rows[[operator.number for operator in found]])
    times: Counter[tuple[str, str]] = Counter()
    for operator, module in zip(found, of.module.tolist(), strict=True):
        path = "" if operator.path is None else right[operator.path]
        if not operator.is_unknown:
            times[path, of.paths[module] if module >= 0 else ""] += operator.own_us
    return Captured(said, times)


def least_of_steps(found: list[Operator], names: list[str]) -> None:
    """Each operator takes as long as in the step in which it took less: one that waits for a core says nothing.

    All steps run the same operators in the same order.
    """
    alike: defaultdict[str, list[Operator]] = defaultdict(list)
    for operator in found:
        alike[names[operator.number]].append(operator)
    for several in alike.values():
        in_step, odd = divmod(len(several), _STEPS)
        if not odd:
            for at in range(in_step):
                least = min(operator.own_us for operator in several[at::in_step])
                for operator in several[at::in_step]:
                    operator.own_us = least


def check(found: Captured, names: str, layers: int) -> None:
    """The digest names as many layers as there are and gives each operator's time to the right module."""
    assert found.said.modules.named_by == names
    wrong = sorted(((time, pair) for pair, time in found.times.items() if pair[0] != pair[1]), reverse=True)
    assert found.right() >= (_GUESSED if names == "repeats" else _NAMED), wrong[:8]
    assert found.claimed() <= 1 - (_GUESSED if names == "repeats" else _NAMED), wrong[:8]
    if names == "repeats":
        assert paths(found.said) == ["", *(f"layer {number}" for number in range(1, layers + 1))]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Operators that wait for other threads of a busy machine would make the times of a few of them most of all."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def training(model: nn.Module, batch: Callable[[], torch.Tensor]) -> Callable[[], None]:
    """A step of the training of a model."""
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        made = model(batch()).flatten(0, -2)
        functional.cross_entropy(made, torch.zeros(len(made), dtype=torch.long)).backward()
        optimizer.step()

    return step


@pytest.mark.parametrize("names", RECORDED_BY)
def test_a_gpt_of_8_layers(tmp_path: Path, names: str) -> None:
    model = Gpt()
    check(captured(model, training(model, tokens), names, tmp_path), names, 8)


# ------------------------------------------------------------------------------------------------ a ResNet


class Bottleneck(nn.Module):
    """A block of a ResNet."""

    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(width_in, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Module | None = None
        if stride != 1 or width_in != 4 * width:
            convolution = nn.Conv2d(width_in, 4 * width, 1, stride, bias=False)
            self.downsample = nn.Sequential(convolution, nn.BatchNorm2d(4 * width))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        made = self.relu(self.bn1(self.conv1(image)))
        made = self.bn3(self.conv3(self.relu(self.bn2(self.conv2(made)))))
        made += image if self.downsample is None else self.downsample(image)
        return self.relu(made)


class ResNet(nn.Module):
    """A narrow ResNet-50: 16 blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        blocks: list[nn.Module] = []
        width_in = 8
        for number, (width, count) in enumerate(((4, 3), (8, 4), (16, 6), (32, 3))):
            for block in range(count):
                blocks.append(Bottleneck(width_in, width, 2 if number and not block else 1))
                width_in = 4 * width
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(width_in, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.stem(images)).mean((2, 3)))


@pytest.mark.parametrize("names", RECORDED_BY)
def test_a_resnet_of_16_blocks(tmp_path: Path, names: str) -> None:
    model = ResNet()
    found = captured(model, training(model, lambda: torch.randn(4, 3, 32, 32)), names, tmp_path)
    check(found, names, 16)


# ------------------------------------------------------------------------------------------------ recomputation


class CheckpointedGpt(Gpt):
    """Computes its layers again in backward."""

    def __init__(self, use_reentrant: bool) -> None:
        super().__init__()
        self._use_reentrant = use_reentrant

    def run(self, layer: nn.Module, value: torch.Tensor) -> torch.Tensor:
        return checkpoint(layer, value, use_reentrant=self._use_reentrant)


@pytest.mark.parametrize("names", RECORDED_BY)
@pytest.mark.parametrize("use_reentrant", [False, True], ids=["", "reentrant"])
def test_a_gpt_that_computes_its_layers_again(tmp_path: Path, names: str, use_reentrant: bool) -> None:
    model = CheckpointedGpt(use_reentrant)
    found = captured(model, training(model, tokens), names, tmp_path)
    check(found, names, 8)
    assert found.said.modules.times.recomputed.any()


# ------------------------------------------------------------------------------------------------ torch.compile


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("names", RECORDED_BY)
def test_a_gpt_whose_layers_are_compiled(tmp_path: Path, names: str) -> None:
    """Without Inductor, whose kernels take a minute to build: graphs run operator by operator."""
    model = Gpt()
    for block in model.layers:
        block.compile(backend="aot_eager")
    step = training(model, tokens)
    try:
        # As a job is captured: its graphs are there already.
        step()
        check(captured(model, step, names, tmp_path), names, 8)
    finally:
        torch._dynamo.reset()


def by_norms(events: list[dict[str, Any]]) -> list[Operator]:
    """The operators of a trace; those of forward's one graph with the layer that they are of, which begins with a norm.

    A layer has two norms, and what follows the layers has one. No range can be opened in a graph.
    """
    found = operators(events)
    calls = [event for event in events if event.get("cat") == "cpu_op"]
    end_us, norms = 0.0, 0
    for operator in sorted(found, key=lambda one: calls[one.number]["ts"]):
        call = calls[operator.number]
        if call["name"] == "CompiledFunction":
            end_us, norms = call["ts"] + call["dur"], 0
        norms += call["name"] == "aten::native_layer_norm"
        if call["ts"] < end_us and 0 < norms <= 16:
            operator.path = f"layers.{(norms - 1) // 2}"
    return found


@pytest.mark.parametrize("names", RECORDED_BY)
def test_a_gpt_that_is_compiled_as_one(tmp_path: Path, caplog: pytest.LogCaptureFixture, names: str) -> None:
    """Nothing names its modules, whatever records it; its backward is a single node, which is of no layer."""
    model = torch.compile(Gpt(), backend="aot_eager")
    step = training(model, tokens)
    try:
        step()
        trace = recorded(model, step, names, tmp_path)
    finally:
        torch._dynamo.reset()
    right = {f"layers.{number}": f"layer {number + 1}" for number in range(8)}
    check(compared(trace, by_norms(json.loads(trace)["traceEvents"]), right), "repeats", 8)
    assert ("compiled as one" in caplog.text) == (names == "Doctor.watch")


# ------------------------------------------------------------------------------------------------ FSDP2


@pytest.fixture
def one_rank() -> Iterator[None]:
    """A process group of this process alone."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")
@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("names", RECORDED_BY)
def test_a_gpt_whose_layers_are_sharded(tmp_path: Path, names: str) -> None:
    model = Gpt()
    mesh = distributed.init_device_mesh("cpu", (1,))
    for block in model.layers:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    check(captured(model, training(model, tokens), names, tmp_path), names, 8)
