"""Whose a Python function is, and what it does, by its name alone."""

from __future__ import annotations

import pytest

from tb_ddp_doctor.trace.names import Activity, activity, is_own_code


@pytest.mark.parametrize("frame", [
    "train.py(41): step", "src/models/net.py(7): forward", "/home/me/job/train.py(41): <module>",
    "C:\\job\\train.py(3): step", "transformers/trainer.py(2100): train", "torchtitan/train.py(9): main",
    "/usr/lib/python3.11/site-packages/transformers/trainer.py(2100): train",
])  # fmt: skip
def test_functions_of_ones_own(frame: str) -> None:
    assert is_own_code(frame)


@pytest.mark.parametrize("frame", [
    "torch/nn/modules/module.py(1775): _call_impl", "logging/__init__.py(1080): emit", "threading.py(973): run",
    "/usr/lib/python3.11/multiprocessing/spawn.py(122): spawn_main", "<frozen os>(680): __getitem__",
    "/opt/venv/lib/python3.12/site-packages/torch/_ops.py(3): __call__", "<built-in function len>",
    "nn.Module: Linear_0", "<string>(1): <module>", "", "step", "train.py: step",
])  # fmt: skip
def test_functions_of_others(frame: str) -> None:
    assert not is_own_code(frame)


@pytest.mark.parametrize(("name", "kind"), [
    ("<built-in function collect>", Activity.GARBAGE),
    ("<built-in function sleep>", Activity.SLEEP),
    ("torch/serialization.py(944): save", Activity.CHECKPOINT),
    ("save_checkpoint", Activity.CHECKPOINT),
    ("async_save", Activity.CHECKPOINT),
    ("train.py(88): write_ckpt", Activity.CHECKPOINT),
    ("torch/autograd/function.py(40): unpack_saved", Activity.PYTHON),
    ("torch/utils/checkpoint.py(500): checkpoint", Activity.PYTHON),
    ("logging/__init__.py(1080): emit", Activity.LOGGING),
    ("<built-in function print>", Activity.LOGGING),
    ("train.py(3): log_metrics", Activity.LOGGING),
    ("<built-in method write of _io.TextIOWrapper object at 0x7f>", Activity.INPUT_OUTPUT),
    ("ssl.py(1100): read", Activity.INPUT_OUTPUT),
    ("train.py(3): logits", Activity.PYTHON),
    ("train.py(3): login", Activity.PYTHON),
    ("train.py(41): step", Activity.PYTHON),
    ("", Activity.PYTHON),
])  # fmt: skip
def test_what_a_function_does(name: str, kind: Activity) -> None:
    assert activity(name) is kind
