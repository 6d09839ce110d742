"""The libraries that ship with an adapter, each as its own project describes itself."""

from __future__ import annotations

from nsabench.errors import UsageError
from nsabench.packages.package import Package
from nsabench.packages.repository import Repair, Repository

_PIP = "pip install {}"
_FETCH = "nsabench packages fetch {}"

FLA = Package(
    name="fla-core",
    module="fla",
    licence="MIT",
    install=_PIP.format("fla-core"),
    site="https://github.com/fla-org/flash-linear-attention",
)
NSA_TRITON = Package(
    name="native-sparse-attention-triton",
    module="native_sparse_attention",
    licence="Apache-2.0",
    install=_FETCH.format("native-sparse-attention-triton"),
    site="https://github.com/XunhaoLai/native-sparse-attention-triton",
    repository=Repository(
        owner="XunhaoLai",
        name="native-sparse-attention-triton",
        commit="9bea856c911ebf263be88d797fb28458f82f1d94",
        sha256="22bcac63056d728e0089ed133b2caf752073cad76652c3337049d7f27b3612ec",
    ),
)
FSA = Package(
    name="Flash-Sparse-Attention",
    module="fsa",
    licence="Apache-2.0",
    install=_FETCH.format("Flash-Sparse-Attention"),
    site="https://github.com/Relaxed-System-Lab/Flash-Sparse-Attention",
    repository=Repository(
        owner="Relaxed-System-Lab",
        name="Flash-Sparse-Attention",
        commit="1da34f35cb1884f4c35d3bfdf9e59ab6ae6e543a",
        sha256="8e883ade320ae94378190ce390998b39c1b118984965a655d57a20f802a378e2",
        repairs=(
            Repair(
                file="fsa/ops/FSA_topk_sparse_attention.py",
                old="(lse_ptr + pid_q_j * stride_lse_n,)",
                new="lse_ptr + pid_q_j * stride_lse_n",
                why="a tuple of one pointer, which Triton refuses from 3.6 on",
            ),
        ),
    ),
)
FLASH_NSA = Package(
    name="Scalable-Flash-Native-Sparse-Attention",
    module="flash_nsa",
    licence="MIT",
    install=_FETCH.format("Scalable-Flash-Native-Sparse-Attention"),
    site="https://github.com/mdy666/Scalable-Flash-Native-Sparse-Attention",
    repository=Repository(
        owner="mdy666",
        name="Scalable-Flash-Native-Sparse-Attention",
        commit="fcf117c3c8a12e274aa75f2a01b0d12d76f44128",
        sha256="84bb84fecf953e4bc2982a871ed5981348378e79c908a5b769d743d0949f43c9",
        repairs=(
            Repair(
                file="flash_nsa/utils.py",
                old="import pkg_resources\n",
                new="",
                why="a module that setuptools no longer has",
            ),
            Repair(
                file="flash_nsa/utils.py",
                old="pkg_resources.parse_version(triton.__version__) >= "
                'pkg_resources.parse_version("3.4.0")',
                new='tuple(map(int, triton.__version__.split(".")[:2])) >= (3, 4)',
                why="the same",
            ),
            Repair(
                file="flash_nsa/modules/hf_level_nsa.py",
                old="import pandas as pd\n",
                new="",
                why="pandas is for its own bench alone",
            ),
        ),
    ),
)
NSA_PYTORCH = Package(
    name="native-sparse-attention-pytorch",
    module="native_sparse_attention_pytorch",
    licence="MIT",
    install=_PIP.format("native-sparse-attention-pytorch"),
    site="https://github.com/lucidrains/native-sparse-attention-pytorch",
)
FLASHINFER = Package(
    name="flashinfer-python",
    module="flashinfer",
    licence="Apache-2.0",
    install=_PIP.format("flashinfer-python"),
    site="https://github.com/flashinfer-ai/flashinfer",
)
FLASH_ATTN = Package(
    name="flash-attn",
    module="flash_attn",
    licence="BSD-3-Clause",
    install=_PIP.format("flash-attn --no-build-isolation"),
    site="https://github.com/Dao-AILab/flash-attention",
)
FLASH_ATTN_4 = Package(
    name="flash-attn-4",
    module="flash_attn",
    licence="BSD-3-Clause",
    install=_PIP.format("--pre 'flash-attn-4[cu13]'"),
    site="https://github.com/Dao-AILab/flash-attention",
)
CUDNN = Package(
    name="nvidia-cudnn-frontend",
    module="cudnn",
    licence="Apache-2.0 AND MIT",
    install=_PIP.format("'nvidia-cudnn-frontend[cutedsl]'"),
    site="https://github.com/NVIDIA/cudnn-frontend",
)

CATALOGUE = (
    FLA,
    NSA_TRITON,
    FSA,
    FLASH_NSA,
    NSA_PYTORCH,
    FLASHINFER,
    FLASH_ATTN,
    FLASH_ATTN_4,
    CUDNN,
)


def find(name: str) -> Package:
    """The library of that name. Raises `UsageError` for another name."""
    for package in CATALOGUE:
        if package.name.lower() == name.lower():
            return package
    raise UsageError(
        f"there is no library {name!r}", f"name one of {', '.join(p.name for p in CATALOGUE)}."
    )
