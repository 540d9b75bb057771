"""torch.compile's logs of TORCH_TRACE, which tlparse reads."""

from __future__ import annotations

from tb_ddp_doctor.discover.recorder import Beside

_BEGINNING = "dedicated_log_torch_trace_"


class TorchTraces(Beside):
    """`dedicated_log_torch_trace_rank_3_x7s9.log`, beside the traces or in a folder with "torch_trace" in its name."""

    name = "torch.compile"
    within = "torch_trace"
    depth = 1

    def matches(self, name: str) -> bool:
        return is_torch_trace(name)


def is_torch_trace(name: str) -> bool:
    """Whether a file is a log of TORCH_TRACE by its name."""
    return name.startswith(_BEGINNING) and name.endswith(".log")
