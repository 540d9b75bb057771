"""Clocks, power and temperature of this process's GPU while it is recorded, by NVML or amdsmi where one is installed.

Both libraries ask the driver, never the GPU's queues: nothing that runs there is held up.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from tb_ddp_doctor.evidence.model import GpuLook, GpuState
from tb_ddp_doctor.evidence.throttling import reasons

_log = logging.getLogger(__name__)


#: Looks that a record keeps: a minute of them. Of more, every second one, or third, and so on.
_MOST_LOOKS = 256


class _Driver(Protocol):
    """How one vendor's library tells the state of a GPU."""

    def look(self) -> GpuState: ...


class Gpu:
    """The GPU of the thread that trains, looked at several times."""

    def __init__(self, driver: _Driver) -> None:
        self._driver = driver
        self._seen: list[tuple[int, GpuState]] = []

    @classmethod
    def of_this_thread(cls) -> Gpu | None:
        """None where there is no GPU, or no library that tells of it. Raises nothing."""
        torch = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_available() or not torch.cuda.is_initialized():
            return None
        try:
            about = torch.cuda.get_device_properties(torch.cuda.current_device())
            address = f"{about.pci_domain_id:04x}:{about.pci_bus_id:02x}:{about.pci_device_id:02x}.0"
        except Exception:
            _log.debug("the GPU's address is unknown", exc_info=True)
            return None
        for driver in (_Nvml, _AmdSmi):
            try:
                return cls(driver(address))
            except Exception:
                _log.debug("%s tells nothing of the GPU", driver.__name__, exc_info=True)
        return None

    def look(self) -> None:
        """See how it runs now."""
        self._seen.append((time.time_ns(), self.now()))

    def now(self) -> GpuState:
        """How it runs now. Raises what the driver's library raises."""
        return self._driver.look()

    def state(self) -> GpuState | None:
        """What was seen: the lowest clock, the highest of the rest, all reasons; None if nobody looked."""
        return summary([state for _, state in self._seen])

    def looks(self) -> tuple[GpuLook, ...]:
        """What was seen at which time, at most `_MOST_LOOKS` times."""
        every = -(-len(self._seen) // _MOST_LOOKS) or 1
        return tuple(GpuLook(at_ns, state.sm_mhz, state.power_w) for at_ns, state in self._seen[::every])


def summary(seen: list[GpuState]) -> GpuState | None:
    """Several looks at a GPU as one."""
    if not seen:
        return None

    def over(name: str, pick: Callable[[list[float]], float]) -> float | None:
        values = [value for state in seen if (value := getattr(state, name)) is not None]
        return pick(values) if values else None

    return GpuState(
        source=seen[0].source,
        sm_mhz=over("sm_mhz", min),
        max_sm_mhz=over("max_sm_mhz", max),
        power_w=over("power_w", max),
        power_limit_w=over("power_limit_w", min),
        temperature_c=over("temperature_c", max),
        throttled=tuple(dict.fromkeys(reason for state in seen for reason in state.throttled)),
    )


class _Nvml:
    def __init__(self, address: str) -> None:
        import pynvml

        self._nvml: Any = pynvml
        pynvml.nvmlInit()
        self._gpu = pynvml.nvmlDeviceGetHandleByPciBusId(address.encode())

    def look(self) -> GpuState:
        nvml, gpu = self._nvml, self._gpu
        ask = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
        bits = _asked(ask or nvml.nvmlDeviceGetCurrentClocksThrottleReasons, gpu)
        milliwatts, limit = (
            _asked(nvml.nvmlDeviceGetPowerUsage, gpu),
            _asked(nvml.nvmlDeviceGetEnforcedPowerLimit, gpu),
        )
        return GpuState(
            source="NVML",
            sm_mhz=_asked(nvml.nvmlDeviceGetClockInfo, gpu, nvml.NVML_CLOCK_SM),
            max_sm_mhz=_asked(nvml.nvmlDeviceGetMaxClockInfo, gpu, nvml.NVML_CLOCK_SM),
            power_w=None if milliwatts is None else milliwatts / 1000,
            power_limit_w=None if limit is None else limit / 1000,
            temperature_c=_asked(nvml.nvmlDeviceGetTemperature, gpu, nvml.NVML_TEMPERATURE_GPU),
            throttled=reasons(int(bits or 0)),
        )


class _AmdSmi:
    def __init__(self, address: str) -> None:
        import amdsmi

        self._smi: Any = amdsmi
        amdsmi.amdsmi_init()
        self._gpu = amdsmi.amdsmi_get_processor_handle_from_bdf(address)

    def look(self) -> GpuState:
        smi, gpu = self._smi, self._gpu
        clock = self._table(smi.amdsmi_get_clock_info, smi.AmdSmiClkType.GFX)
        power = self._table(smi.amdsmi_get_power_info)
        metrics = self._table(smi.amdsmi_get_gpu_metrics_info)
        hot, now = smi.AmdSmiTemperatureType.HOTSPOT, smi.AmdSmiTemperatureMetric.CURRENT
        watts = power.get("current_socket_power", power.get("average_socket_power"))
        limit = _number(power.get("power_limit"))
        throttled = _number(metrics.get("throttle_status"))
        return GpuState(
            source="amdsmi",
            sm_mhz=_number(clock.get("clk")),
            max_sm_mhz=_number(clock.get("max_clk")),
            power_w=_number(watts),
            # Microwatts in some releases.
            power_limit_w=None if limit is None else limit / 1e6 if limit > 1e5 else limit,
            temperature_c=_asked(smi.amdsmi_get_temp_metric, gpu, hot, now),
            throttled=("throttle status of the driver",) if throttled else (),
        )

    def _table(self, ask: Callable[..., Any], *rest: Any) -> dict[str, Any]:
        try:
            table = ask(self._gpu, *rest)
        except Exception:
            return {}
        return table if isinstance(table, dict) else {}


def _asked(ask: Callable[..., Any], *arguments: Any) -> float | None:
    """What the driver says; None for what this GPU does not tell."""
    try:
        return _number(ask(*arguments))
    except Exception:
        return None


def _number(value: Any) -> float | None:
    try:
        return msgspec.convert(value, float)
    except msgspec.ValidationError:
        return None
