"""What kernels' and operators' names tell. Names without a source are from `../shared`'s traces."""

from __future__ import annotations

import pytest

from tb_ddp_doctor.trace.names import (
    Precision,
    Product,
    has_bfloat16_cores,
    has_tensor_cores,
    has_tf32,
    launches_kernel,
    launches_work,
    precision,
    product,
)

TENSOR = [
    "ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_32x5_tn",
    "ampere_fp16_s1688gemm_fp16_256x64_ldg8_f2f_tn",
    "volta_h884gemm_64x64_ldg8_nn",
    "turing_s1688cudnn_fp16_128x128_ldg8_relu_exp_medium_nhwc_tn_v1",
    "volta_fp16_s884cudnn_fp16_128x128_ldg8_wgrad_idx_exp_interior_nhwc_nt_v1",
    "sm80_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize192x128x32_stage4_warpsize4x2x1_tensor16x8x16_kernel",
    "sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x64_warpgroupsize1x1x1_g1"
    "_execute_segment_k_off_kernel__5x_cudnn",
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize2x1x1_bias_bf16_execute_kernel__5x_cublas",
    "sm80_xmma_fprop_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize128x128x16_stage4_warpsize2x2x1_g1"
    "_tensor16x8x8_aligna4_alignc4_execute_kernel__5x_cudnn",
    "sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x64_warpgroupsize1x1x1_g1_execute"
    "_segment_k_off_kernel__5x_cudnn_wgmma",
    "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_128x128_16x4_nt_align1>(...)",
    "void cutlass::Kernel2<cutlass_80_tensorop_f16_s16816gemm_relu_f16_128x128_32x5_tn_align8>(...)",
    "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_32x32_128x2_tn_align8>(...)",
    "nvjet_sm90_tst_128x160_64x5_2x1_v_bz_splitK_NTT",
    "nvjet_sm100_tst_mma_128x256x64_2_64x256x64_cta1x2x1_TNN",
    "cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_26_64x64x64_1x4x1_cga1x1x1_kernel0_0",
    "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128, 128, 4>>(...)",
    "fmha_cutlassF_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<cutlass::bfloat16_t>::Params)",
    "fmhaSm100aKernel_QkvBfloat16OBfloat16H128PagedKvCausal",
    "bmm_MxE4m3_MxE4m3Bfloat16_Fp32_t128x8x512_s7_et64x8_m64x8x32_c1x1x1_16dp256b",
    "Cijk_Ailk_Bjlk_BBS_BH_MT32x32x64_MI16x16x16x1_SN_1LDSB0_APM1",
    "Cijk_Alik_Bljk_SB_Bias_AS_SAV_UserArgs_MT64x16x32_MI16x16x1_SN_LDSB0_AFC1",
    "Custom_Cijk_Alik_Bljk_F8BS_BH_Bias_HA_S_SAB_SAV_UserArgs_MT256x256x128_MI16x16x1_shortname1",
    "igemm_fwd_gtcx3_nhwc_bf16_bx0_ex1_bt128x128x32_wt32x32x8_ws1x1_wr2x2",
    "_ZN2ck16tensor_operation6device12_GLOBAL__N_139kernel_grouped_conv_fwd_xdl_cshuffle_v3INS",
]
FLOAT32 = [
    "volta_sgemm_128x32_nt",
    "ampere_sgemm_32x32_sliced1x4_tn",
    "void sgemm_largek_lds64<true, true, 6, 3, 4, 5, 2, 66>(float*, float const*)",
    "void cutlass__5x_cudnn::Kernel<cutlass_simt_sfprop_optimized_128x128_8x2_nhwc>(cutlass_simt_sfprop_optimized)",
    "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x64x8_stage3_warpsize1x4x1_ffma_aligna4_alignc4_execute_kernel",
    "sm80_xmma_wgrad_implicit_gemm_indexed_f32f32_f32f32_f32_nhwckrsc_nhwc_tilesize128x128x8_stage3_warpsize2x2x1_g1"
    "_ffma_aligna4_alignc4_execute_kernel__5x_cudnn",
    "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x256_8x4_nt_align1>(...)",
    "cutlass3x_sm100_simt_sgemm_f32_f32_f32_f32_f32_64x64x16_1x1x1_3_tnn_align1_bias_f32_relu",
    "fmha_cutlassB_f32_aligned_64x64_k64_sm80(PyTorchMemEffAttention::AttentionBackwardKernel<cutlass::arch::Sm80>)",
    "cudnn_infer_ampere_scudnn_128x64_relu_xregs_large_nn_v1",
    "cudnn_infer_volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1",
    "void implicit_convolve_sgemm<float, float, 1024, 6, 7, 3, 3, 5, 1, false, true, true>(int, int)",
    "void cudnn::detail::dgrad_engine<float, 512, 6, 5, 3, 3, 3, false>(int, int, int, float const*)",
    "void cudnn::cnn::wgrad_alg0_engine<float, 128, 6, 7, 3, 3, 5, false, 512>(int, int, int)",
    "Cijk_Ailk_Bljk_SB_MT128x64x8_SE_APM1_AF0EM1_AF1EM1_AMAS3_ASEM1_BL1_DTL0_EPS1_ISA906_TT8_8",
    "_ZN17cutlass__5x_cudnn6KernelINS_4conv6kernel_GemmShapeILi128ELi128ELi8EEfNS_4arch11OpClassSimtENS_6layout10TensorNHWC",
    "miopenSp3AsmConv_v30_3_1_gfx94x_fp32_f2x3_stride1",
]
MISALIGNED = [
    "volta_fp16_sgemm_fp16_128x32_nn",
    "void cutlass::Kernel2<cutlass_75_tensorop_bf16_s1688gemm_bf16_64x64_nt_align1>(...)",
    "void cutlass::Kernel2<cutlass_80_tensorop_f16_s16816gemm_f16_128x128_32x4_tn_align2>(...)",
    "cutlass3x_sm100_tensorop_s128x64x16gemm_bf16_bf16_f32_bf16_bf16_128x64x64_0x0x1_0_tnn_align2_bias_f32_relu",
    "void implicit_convolve_sgemm<__half, __half, 128, 5, 5, 3, 3, 3, 1, false, false, true>(int, int)",
]
NONE = [
    "void splitKreduce_kernel<32, 16, int, float, float, float, float, true, false, false>(...)",
    "void cask_cudnn::computeOffsetsKernel<false, false>(cask_cudnn::ComputeOffsetsParams)",
    "void cudnn::bn_bw_1C11_kernel_new<float, float, float2, 128, true, 1>(float, float)",
    "void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true, (cudnnKernelDataType_t)0>(...)",
    "void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>(...)",
    "void gemvNSP_kernel<float, float, float, float, 1, 16, 4, 1024>(...)",
    "void at::native::(anonymous namespace)::GammaBetaBackwardCUDAKernelTemplate<float, float, 32u>()",
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int)",
    "SubTensorOpWithScalar1d",
    "ampere_dgemm_64x64_nn",
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((name, Product.TENSOR) for name in TENSOR),
        *((name, Product.FLOAT32) for name in FLOAT32),
        *((name, Product.MISALIGNED) for name in MISALIGNED),
        *((name, Product.NONE) for name in NONE),
    ],
)
def test_a_kernels_name_tells_what_it_is_to_the_tensor_cores(name: str, kind: Product) -> None:
    assert product(name) is kind


def test_a_name_made_to_be_read_over_and_over_is_read_in_part() -> None:
    # The whole of it would take hours.
    assert product("tensorop_f16_gemm_f16_" * 10_000) is Product.TENSOR
    assert precision("s1688gemm" * 100_000) is Precision.TF32


@pytest.mark.parametrize(
    ("device", "capability", "cores", "tf32", "bfloat16"),
    [
        ("Tesla P100-PCIE-16GB", 6.0, False, False, False),
        ("Tesla V100-SXM2-32GB", 7.0, True, False, False),
        ("Tesla T4", 7.5, True, False, False),
        ("NVIDIA GeForce GTX 1660 Ti", 7.5, False, False, False),
        ("NVIDIA A100-SXM4-80GB", 8.0, True, True, True),
        ("NVIDIA GeForce RTX 4090", 8.9, True, True, True),
        ("NVIDIA H200", 9.0, True, True, True),
        ("NVIDIA B200", 10.0, True, True, True),
        ("AMD Instinct MI300X", 9.4, True, False, True),
        ("AMD Radeon Graphics", 9.0, None, False, True),
        ("", None, None, False, False),
    ],
)
def test_a_device_has_tensor_cores(
    device: str, capability: float | None, cores: bool | None, tf32: bool, bfloat16: bool
) -> None:
    assert has_tensor_cores(device, capability) is cores
    assert has_tf32(device, capability) is tf32
    assert has_bfloat16_cores(device, capability) is bfloat16


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        ("nvjet_hsh_128x256_64x4_2x1_v_bz_coopA_TNN", Precision.HALF),
        ("sm80_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize128x128x16", Precision.TF32),
        ("cutlass_80_tensorop_s1688gemm_128x128_16x5_nn_align4", Precision.TF32),
        ("turing_fp16_s1688gemm_fp16_128x128_ldg8_f2f_nn", Precision.HALF),
        ("sm90_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n_tilesize128x128x128_warpgroupsize1x1x1_execute_segment_k_off_kernel"
         "__5x_cublas_gmma", Precision.FP8),
        ("nvjet_sm100_qqtst_128x256_128x6_2x1_2cta_v_bz_bias_TNT", Precision.FP8),
        ("nvjet_sm100_tst_16x64_64x16_4x1_v_bz_TNN", Precision.HALF),
        ("nvjet_sss_tf32_128x256_TNT", Precision.TF32),
        ("nvjet_sm100_sss_128x256_64x4_TNT", Precision.TF32),
        ("Cijk_Alik_Bljk_F8B8BS_BH_Bias_HA_S_SAB_SAV_UserArgs_MT256x256x128_MI16x16x1_SN", Precision.FP8),
        ("Cijk_Ailk_Bjlk_BBS_BH_MT32x32x64_MI16x16x16x1_SN_1LDSB0_APM1", Precision.HALF),
        ("Custom_Cijk_Ailk_Bljk_S_MX_B_BIAS_HA_S_SAV_NTD_SK3_UserArgs_MT256x256x32_MI16x16x1", Precision.TF32),
        ("Cijk_Alik_Bljk_SB_Bias_AS_SAV_UserArgs_MT64x16x32_MI16x16x1_SN_LDSB0_AFC1", Precision.FLOAT32),
        ("igemm_fwd_gtcx3_nhwc_fp32_bx0_ex0_bt128x128x16_wt32x32x2_ws1x1_wr2x2", Precision.FLOAT32),
        ("ampere_sgemm_128x64_tn", Precision.FLOAT32),
        ("void at::native::vectorized_elementwise_kernel<4>", None),
    ],
)  # fmt: skip
def test_the_precision_of_a_product(kernel: str, expected: Precision | None) -> None:
    assert precision(kernel) is expected


@pytest.mark.parametrize("call", ["cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "hipLaunchKernel"])
def test_calls_that_launch_one_kernel(call: str) -> None:
    assert launches_kernel(call) and launches_work(call)


@pytest.mark.parametrize("call", ["cudaGraphLaunch", "hipGraphLaunch", "cudaLaunchHostFunc"])
def test_a_graph_and_a_function_of_the_host_are_work_but_no_kernel_that_could_be_lost(call: str) -> None:
    assert launches_work(call) and not launches_kernel(call)
