"""Which kernels move data between ranks, by their names; those of DeepEP from its own profile data."""

from __future__ import annotations

import pytest

from tb_ddp_doctor.trace.names import is_communication_kernel


@pytest.mark.parametrize(
    "kernel",
    [
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "void dpsk::ep::internode::dispatch<false, 8, true, 8>(int4*, float*, long*)",
        "void dpsk::ep::internode::notify_dispatch<false, 4>(int const*, long*)",
        "void dpsk::ep::internode::combine<false, 4, __nv_bfloat16, 24>(int4*, float*)",
        "void dpsk::ep::internode::cached_notify<true>(int, int)",
        "void dpsk::ep::internode::dispatch_ll<true, 8>(void*, float*)",
        "void deep_ep::intranode::combine<__nv_bfloat16, 8, 768>(__nv_bfloat16*, float*)",
        "deep_ep::internode_ll::dispatch",
        "void primus_turbo::deep_ep::intranode::notify_dispatch<8>(int const*)",
    ],
)
def test_moves_data_between_ranks(kernel: str) -> None:
    assert is_communication_kernel(kernel)


@pytest.mark.parametrize(
    "kernel",
    [
        "void dpsk::ep::cuda::get_dispatch_layout<256, 32, 8>(long const*, int*, int*)",
        "void deep_ep::layout::get_dispatch_layout<256, 4, 8>(long const*, int*)",
        "void dpsk::ep::CUB_200500_900_NS::DeviceScanKernel<dpsk::ep::CUB_200500_900_NS::DeviceScanPolicy<int>>(int*)",
        "void cub::DeviceScanKernel<deep_ep::internode::dispatch>(int*)",
        "void moe::combine_kernel(float*)",
    ],
)
def test_stays_on_its_device(kernel: str) -> None:
    assert not is_communication_kernel(kernel)
