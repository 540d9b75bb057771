"""Captures while a job trains: the same steps on all ranks, reduced to digests and diagnosed. See docs/capturing.md."""

from tb_ddp_doctor.capture.doctor import Doctor

__all__ = ["Doctor"]
