"""What `Doctor.watch` marks of a model, and what it says where that is not all of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tb_ddp_doctor.capture.watch import Watched


class Model:
    """A model of so many layers."""

    def __init__(self, layers: int) -> None:
        self._layers = layers

    def named_modules(self) -> Iterator[tuple[str, object]]:
        yield "", self
        for number in range(self._layers):
            yield f"layers.{number}", object()


@pytest.mark.parametrize(("layers", "left_out"), [(1000, 0), (1003, 3)])
def test_modules_that_are_too_many_are_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, layers: int, left_out: int
) -> None:
    watched = Watched(tmp_path)
    watched.watch_model(Model(layers), depth=2)
    assert len(watched.modules()) == 1000
    said = f"watch() marks 1000 modules at most: the time of {left_out} others counts for the modules around them."
    assert (said in caplog.text) == (left_out > 0)
    assert len(caplog.records) == (left_out > 0)


def test_a_model_that_is_watched_twice_has_its_modules_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    watched = Watched(tmp_path)
    for _ in range(2):
        watched.watch_model(Model(1000), depth=2)
    assert len(watched.modules()) == 1000
    assert not caplog.records
