"""The doctor in Hugging Face's Trainer: `Trainer(..., callbacks=[DoctorCallback("logs/my_job", every=1000)])`."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from tb_ddp_doctor.capture.doctor import Doctor


class DoctorCallback(TrainerCallback):  # type: ignore[misc]
    """Counts optimizer steps, as the Trainer does; takes what `Doctor` takes."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.doctor = Doctor(*arguments, **options)

    def on_step_end(self, _arguments: Any, state: Any, _control: Any, **_: Any) -> None:
        self.doctor.step(state.global_step - 1)

    def on_train_end(self, *_: Any, **__: Any) -> None:
        self.doctor.close()
