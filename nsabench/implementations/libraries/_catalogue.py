"""The public libraries that have an adapter here, one a file."""

from nsabench.registry.package import Package

FLA = Package("fla-core", "fla", "MIT", "fla-org/flash-linear-attention")
NSA_TRITON = Package(
    "native-sparse-attention-triton",
    "native_sparse_attention",
    "Apache-2.0",
    "XunhaoLai/native-sparse-attention-triton",
    commit="9bea856c911ebf263be88d797fb28458f82f1d94",
)
FSA = Package(
    "Flash-Sparse-Attention",
    "fsa",
    "Apache-2.0",
    "Relaxed-System-Lab/Flash-Sparse-Attention",
    commit="1da34f35cb1884f4c35d3bfdf9e59ab6ae6e543a",
)
FLASH_NSA = Package(
    "Scalable-Flash-Native-Sparse-Attention",
    "flash_nsa",
    "MIT",
    "mdy666/Scalable-Flash-Native-Sparse-Attention",
    commit="fcf117c3c8a12e274aa75f2a01b0d12d76f44128",
)
NSA_PYTORCH = Package(
    "native-sparse-attention-pytorch",
    "native_sparse_attention_pytorch",
    "MIT",
    "lucidrains/native-sparse-attention-pytorch",
)
FLASHINFER = Package("flashinfer-python", "flashinfer", "Apache-2.0", "flashinfer-ai/flashinfer")
FLASH_ATTN = Package(
    "flash-attn",
    "flash_attn",
    "BSD-3-Clause",
    "Dao-AILab/flash-attention",
    pip="flash-attn --no-build-isolation",
)
FLASH_ATTN_4 = Package(
    "flash-attn-4",
    "flash_attn",
    "BSD-3-Clause",
    "Dao-AILab/flash-attention",
    pip="--pre 'flash-attn-4[cu13]'",
)
CUDNN = Package(
    "nvidia-cudnn-frontend",
    "cudnn",
    "Apache-2.0 AND MIT",
    "NVIDIA/cudnn-frontend",
    pip="'nvidia-cudnn-frontend[cutedsl]'",
)
