"""Diagnoses distributed PyTorch training from its profiler traces: TensorBoard's Diagnosis tab, and `ddp-doctor`."""

from typing import TYPE_CHECKING, Any

from tb_ddp_doctor.version import __version__

if TYPE_CHECKING:
    from tb_ddp_doctor.api import compare, diagnose, examine_dumps, plan
    from tb_ddp_doctor.findings import Workload
    from tb_ddp_doctor.planning.model import Question

__all__ = ["Question", "Workload", "__version__", "compare", "diagnose", "examine_dumps", "hours", "plan"]


def __getattr__(name: str) -> Any:
    # Imported when it is asked for: TensorBoard imports this package with each of its plugins.
    if name in __all__:
        from tb_ddp_doctor import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
