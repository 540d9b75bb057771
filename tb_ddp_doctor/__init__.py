"""Diagnoses distributed PyTorch training from its profiler traces: TensorBoard's Diagnosis tab, and `ddp-doctor`."""

__version__ = "0.1.0"
