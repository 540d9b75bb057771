"""A training with Lightning or Hugging Face's Trainer, on CPUs over gloo, with the doctor's callback.

    torchrun --nproc-per-node 2 trainers_job.py lightning|transformers FOLDER

`test_trainers` runs it. Two batches are accumulated, so that a global step is not a batch.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

EVERY, STEPS = 8, 2


class Samples(Dataset[Any]):
    def __init__(self, as_fields: bool) -> None:
        self._as_fields = as_fields

    def __len__(self) -> int:
        return 96

    def __getitem__(self, index: int) -> Any:
        return {"x": torch.ones(16)} if self._as_fields else torch.ones(16)


def with_lightning(folder: str) -> None:
    import lightning.pytorch as pl

    from tb_ddp_doctor.capture.lightning import DoctorCallback

    class Model(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(16, 16)

        def training_step(self, batch: torch.Tensor, _index: int) -> torch.Tensor:
            return self.layer(batch).square().mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=1e-3)

    callback = DoctorCallback(f"{folder}/job", every=EVERY, steps=STEPS)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=2,
        accumulate_grad_batches=2,
        callbacks=[callback],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Model(), DataLoader(Samples(False), batch_size=4))
    finish(callback)


def with_transformers(folder: str) -> None:
    from transformers import Trainer, TrainingArguments

    from tb_ddp_doctor.capture.transformers import DoctorCallback

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(16, 16)

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": self.layer(x).square().mean()}

    callback = DoctorCallback(f"{folder}/job", every=EVERY, steps=STEPS)
    arguments = TrainingArguments(
        output_dir=f"{folder}/out",
        use_cpu=True,
        ddp_backend="gloo",
        max_steps=20,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    Trainer(Model(), arguments, train_dataset=Samples(True), callbacks=[callback]).train()
    finish(callback)


def finish(callback: Any) -> None:
    """Wait for the digests, which a training does not."""
    import time
    from pathlib import Path

    from tb_ddp_doctor.capture.directory import CaptureFolder

    folder = CaptureFolder.of(Path(sys.argv[2]) / "job", 2 * EVERY)
    until = time.monotonic() + 60
    while not folder.verdict.exists() and time.monotonic() < until:
        time.sleep(0.1)


if __name__ == "__main__":
    torch.set_num_threads(1)
    {"lightning": with_lightning, "transformers": with_transformers}[sys.argv[1]](sys.argv[2])
