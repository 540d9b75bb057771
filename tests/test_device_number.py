"""Devices whose number in events is none of those that the trace lists: ROCm counts its CPUs before its GPUs."""

from __future__ import annotations

import pytest
from traces import GB, draw

from tb_ddp_doctor.digest.build import digest
from tb_ddp_doctor.digest.model import RankDigest
from tb_ddp_doctor.trace.model import Header
from tb_ddp_doctor.trace.reader import decode

RANK = """
    rank0 step   |1
          host   [fwd...]
          gpu     [fwd......]
          memory [1of4]  [2of4]
"""


def digested(number: int) -> RankDigest:
    """A drawn rank whose kernels run on the device of this number; the trace lists device 0, as the allocator does."""
    (data,) = draw(RANK, world_size=1, device={"name": "AMD Instinct MI300X", "numSms": 304}, device_gb=192).values()
    return digest(decode([data.replace(b'"device":0', f'"device":{number}'.encode())], "rank0.json"))


@pytest.mark.parametrize("number", [0, 2, 9])
def test_a_device_is_the_one_that_is_listed_whatever_number_rocm_gives_it(number: int) -> None:
    found = digested(number)
    assert (found.device, found.device_bytes, found.device_number) == ("AMD Instinct MI300X", 192 * GB, number)
    assert found.memory.peak_allocated.tolist() == [2 * GB]


def test_of_several_kinds_of_devices_none_is_guessed() -> None:
    header = Header(devices={0: "AMD Instinct MI300X", 1: "AMD Instinct MI210"})
    assert [header.listed(number) for number in (0, 1, 2)] == [0, 1, 2]
