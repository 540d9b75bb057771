"""The least work of operators whose results have sizes of their own: those of torch, as its profiler records calls."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tb_ddp_doctor.digest.least_work import Work
from tb_ddp_doctor.digest.operator_inputs import inputs
from tb_ddp_doctor.digest.operator_work import work

torch = pytest.importorskip("torch")
F = torch.nn.functional


def recorded(operator: str, run: Callable[[], Any], folder: Path) -> list[Work]:
    """The work of each call of an operator, as torch's profiler records what it is given."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profile:
        run()
    file = folder / "trace.json"
    profile.export_chrome_trace(str(file))
    calls = [event["args"] for event in json.loads(file.read_text())["traceEvents"] if event["name"] == operator]
    found = []
    for call in calls:
        given = (json.dumps(call[name]) for name in ("Input Dims", "Input type", "Concrete Inputs"))
        if one := work(operator, inputs(*given, ""), ""):
            found.append(one)
    return found


IMAGE = torch.arange(2 * 6 * 20 * 31, dtype=torch.float32).reshape(2, 6, 20, 31)
VOLUME = torch.ones(2, 3, 8, 10, 13)
ROW = torch.ones(2, 5, 40)
GRID = torch.zeros(2, 7, 9, 2)
TABLE = torch.ones(100, 64)
WAVES = torch.ones(10, 64)
SPECTRA = torch.ones(10, 33, dtype=torch.complex64)

#: What is called, and the tensors that it has to read.
FORWARD: dict[str, tuple[str, Callable[[], Any], list[Any]]] = {
    "max pool": (
        "aten::max_pool2d_with_indices",
        lambda: torch.ops.aten.max_pool2d_with_indices(IMAGE, [3, 3], [2, 2], [1, 1]),
        [IMAGE],
    ),
    "dilated pool": (
        "aten::max_pool2d_with_indices",
        lambda: torch.ops.aten.max_pool2d_with_indices(IMAGE, [3], [2], [0], [2]),
        [IMAGE],
    ),
    "pool of cut windows": (
        "aten::max_pool2d_with_indices",
        lambda: torch.ops.aten.max_pool2d_with_indices(IMAGE, [3, 2], [2, 3], [1, 0], [1, 1], True),
        [IMAGE],
    ),
    "pool of volumes": (
        "aten::max_pool3d_with_indices",
        lambda: torch.ops.aten.max_pool3d_with_indices(VOLUME, [2, 2, 2]),
        [VOLUME],
    ),
    "mean pool": ("aten::avg_pool2d", lambda: F.avg_pool2d(IMAGE, 3, 2, 1), [IMAGE]),
    "mean pool of cut windows": ("aten::avg_pool2d", lambda: F.avg_pool2d(IMAGE, 3, 4, 1, ceil_mode=True), [IMAGE]),
    "mean pool of volumes": ("aten::avg_pool3d", lambda: F.avg_pool3d(VOLUME, 2), [VOLUME]),
    "pool to a size": ("aten::_adaptive_avg_pool2d", lambda: F.adaptive_avg_pool2d(IMAGE, (7, 5)), [IMAGE]),
    "max pool to a size": (
        "aten::adaptive_max_pool2d",
        lambda: torch.ops.aten.adaptive_max_pool2d(IMAGE, [7, 5]),
        [IMAGE],
    ),
    "nearest": ("aten::upsample_nearest2d", lambda: F.interpolate(IMAGE, scale_factor=1.5), [IMAGE]),
    "bilinear": ("aten::upsample_bilinear2d", lambda: F.interpolate(IMAGE, size=(33, 17), mode="bilinear"), [IMAGE]),
    "trilinear": (
        "aten::upsample_trilinear3d",
        lambda: F.interpolate(VOLUME, scale_factor=2, mode="trilinear"),
        [VOLUME],
    ),
    "linear": ("aten::upsample_linear1d", lambda: F.interpolate(ROW, scale_factor=2, mode="linear"), [ROW]),
    "reflection": ("aten::reflection_pad2d", lambda: F.pad(IMAGE, (1, 2, 3, 4), mode="reflect"), [IMAGE]),
    "replication": ("aten::replication_pad3d", lambda: F.pad(VOLUME, (1, 2, 3, 4, 5, 6), mode="replicate"), [VOLUME]),
    "windows": ("aten::im2col", lambda: F.unfold(IMAGE, (3, 2), dilation=2, padding=1, stride=2), [IMAGE]),
    "of windows": (
        "aten::col2im",
        lambda: F.fold(torch.ones(2, 6 * 9, 18 * 29), (20, 31), 3),
        [torch.ones(2, 6 * 9, 18 * 29)],
    ),
    "samples": (
        "aten::grid_sampler_2d",
        lambda: F.grid_sample(IMAGE, GRID, align_corners=False),
        [torch.ones(2, 6, 7, 9), GRID],
    ),
    "frequencies": ("aten::_fft_r2c", lambda: torch.fft.rfft(WAVES), [WAVES]),
    "frequencies of planes": ("aten::_fft_r2c", lambda: torch.fft.rfft2(IMAGE), [IMAGE]),
    "waves": ("aten::_fft_c2r", lambda: torch.fft.irfft(SPECTRA), [SPECTRA]),
    "largest": ("aten::topk", lambda: torch.topk(TABLE, 8, dim=-1), [TABLE]),
    "complex": ("aten::complex", lambda: torch.complex(WAVES, WAVES), [WAVES, WAVES]),
    "rows": ("aten::take", lambda: torch.take(TABLE, torch.arange(30)), [torch.arange(30), torch.ones(30)]),
}


@pytest.mark.parametrize("what", FORWARD)
def test_results_have_the_bytes_that_torch_makes(what: str, tmp_path: Path) -> None:
    operator, run, given = FORWARD[what]
    made = run()
    results = made if isinstance(made, tuple) else (made,)
    found = recorded(operator, run, tmp_path)
    assert found and found[-1].written == sum(one.nbytes for one in results)
    assert found[-1].read == sum(one.nbytes for one in given)


#: What is called forward, and by which operator its gradient is made.
BACKWARD: dict[str, tuple[str, Callable[[Any], Any], Any]] = {
    "mean pool": ("aten::avg_pool2d_backward", lambda image: F.avg_pool2d(image, 3, 2, 1), IMAGE),
    "pool to a size": (
        "aten::_adaptive_avg_pool2d_backward",
        lambda image: F.adaptive_avg_pool2d(image, (7, 5)),
        IMAGE,
    ),
    "nearest": ("aten::upsample_nearest2d_backward", lambda image: F.interpolate(image, scale_factor=2), IMAGE),
    "bilinear": (
        "aten::upsample_bilinear2d_backward",
        lambda image: F.interpolate(image, size=(33, 17), mode="bilinear"),
        IMAGE,
    ),
    "reflection": ("aten::reflection_pad2d_backward", lambda image: F.pad(image, (1, 2, 3, 4), mode="reflect"), IMAGE),
}


@pytest.mark.parametrize("what", BACKWARD)
def test_gradients_are_as_large_as_what_forward_read(what: str, tmp_path: Path) -> None:
    operator, forward, given = BACKWARD[what]
    image = given.clone().requires_grad_()
    made = forward(image)
    found = recorded(operator, lambda: made.sum().backward(), tmp_path)
    assert [(one.read, one.written) for one in found] == [(made.nbytes, image.nbytes)]


def test_gradients_of_samples_are_those_that_are_asked_for(tmp_path: Path) -> None:
    image = IMAGE.clone().requires_grad_()
    made = F.grid_sample(image, GRID, align_corners=False)
    (found,) = recorded("aten::grid_sampler_2d_backward", lambda: made.sum().backward(), tmp_path)
    assert (found.read, found.written) == (made.nbytes + GRID.nbytes, image.nbytes)


def test_bags_of_rows(tmp_path: Path) -> None:
    rows, offsets = torch.arange(60) % 50, torch.arange(0, 60, 10)
    table = TABLE.clone().requires_grad_()
    made: list[Any] = []
    (found,) = recorded(
        "aten::_embedding_bag", lambda: made.append(F.embedding_bag(rows, table, offsets, mode="sum")), tmp_path
    )
    assert (found.read, found.written) == (rows.nbytes + offsets.nbytes + 60 * 64 * 4, made[0].nbytes)
    (found,) = recorded("aten::_embedding_bag_dense_backward", lambda: made[0].sum().backward(), tmp_path)
    # The bag of each row is an index for each of them.
    assert (found.read, found.written) == (made[0].nbytes + 2 * rows.nbytes, table.nbytes)


def test_what_is_put_at_indices_is_read_and_written(tmp_path: Path) -> None:
    rows, given, table = torch.arange(30), torch.ones(30, 64), TABLE.clone()
    (put,) = recorded("aten::_index_put_impl_", lambda: table.index_put_((rows,), given), tmp_path)
    assert (put.read, put.written) == (given.nbytes, given.nbytes)
    (added,) = recorded("aten::_index_put_impl_", lambda: table.index_put_((rows,), given, accumulate=True), tmp_path)
    assert (added.read, added.written) == (2 * given.nbytes, given.nbytes)
    # To how many places one number goes, the trace does not tell.
    assert recorded("aten::_index_put_impl_", lambda: table.index_put_((rows,), torch.tensor(1.0)), tmp_path) == []
