"""Which kernels move data between ranks, by their names; those of DeepEP from its own profile data."""

from __future__ import annotations

import pytest

from tb_ddp_doctor.trace.names import collective, exchanges_tokens, is_communication_kernel, is_polled


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
        "void uccl::internode_ll::combine<3, 10, 7168, 9>(void*, void*)",
        "void mori::moe::EpDispatchIntraNodeKernel<__hip_bfloat16>(mori::moe::EpDispatchCombineArgs)",
        "EpCombineInterNodeV1Kernel",
        "void a2a_dispatch_send_kernel<true, 8>(unsigned int*)",
        "void (anonymous namespace)::combineKernel<__nv_bfloat16, 16>(float*, unsigned long)",
        "void tensorrt_llm::kernels::moe_a2a::moeA2ACombineKernel<8>(void*)",
        "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<1, __half, 8>(int)",
        "void tensorrt_llm::kernels::oneShotAllReduceKernel<__half, 8>(void*)",
        "userbuffers_fp16_sum_inplace_gpu_rr_rs_oop",
        "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)",
        "multimem_one_shot_all_reduce_kernel",
        "nvshmemi_proxy_amo_kernel",
        "oneccl_allreduce_pcie<sycl::half>",
        "oneccl_reduce_scatter_large_main<float, true, 4, 8>",
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
        "triton_poi_fused_dispatch_0",
        "void flashinfer::sampling::oneshot_topk<8>(float*)",
        "userbuffers_init",
    ],
)
def test_stays_on_its_device(kernel: str) -> None:
    assert not is_communication_kernel(kernel)


@pytest.mark.parametrize(
    ("kernel", "library", "kind"),
    [
        ("void deep_ep::internode_ll::dispatch<true, 3, 10, 7168>(void*)", "DeepEP", "dispatch"),
        ("void deep_ep::intranode::cached_notify_combine<8>(void**)", "DeepEP", "combine"),
        ("void deep_ep::internode::cached_notify<true>(int)", "DeepEP", "dispatch"),
        ("mori::moe::EpCombineIntraNodeKernel", "MORI", "combine"),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "", "send_recv"),
    ],
)
def test_exchanges_of_tokens_are_named(kernel: str, library: str, kind: str) -> None:
    assert (exchanges_tokens(kernel), collective(kernel)) == (library, kind)


def test_a_cpu_looks_for_the_counts_of_a_dispatch_that_has_no_handle() -> None:
    assert is_polled("void deep_ep::intranode::notify_dispatch<8>(int const*, int*, int const*)")
    assert is_polled("void deep_ep::internode::notify_dispatch<false, 16>(int const*, int*)")
    assert not is_polled("void deep_ep::internode::cached_notify<true>(int, int)")
    assert not is_polled("void deep_ep::intranode::cached_notify_dispatch<8>(int const*)")
    assert not is_polled("void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*)")
