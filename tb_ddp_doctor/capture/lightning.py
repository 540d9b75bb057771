"""The doctor in Lightning: `Trainer(..., callbacks=[DoctorCallback("logs/my_job", every=1000)])`."""

from __future__ import annotations

from typing import Any

try:
    from lightning.pytorch import Callback
except ImportError:
    from pytorch_lightning import Callback

from tb_ddp_doctor.capture.doctor import Doctor


class DoctorCallback(Callback):  # type: ignore[misc]
    """Counts training batches, of all epochs; takes what `Doctor` takes."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.doctor = Doctor(*arguments, **options)

    def on_train_batch_end(self, trainer: Any, *_: Any, **__: Any) -> None:
        # Not the global step, which counts optimizer steps, and several a batch where there are several optimizers.
        self.doctor.step(trainer.fit_loop.total_batch_idx)

    def on_train_end(self, *_: Any) -> None:
        self.doctor.close()
