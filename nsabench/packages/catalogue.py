"""The libraries that have an adapter in `nsabench.implementations`."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import metadata, util

from nsabench.errors import UsageError
from nsabench.model.plan import Origin
from nsabench.packages import repository as repositories
from nsabench.packages.repository import Repair, Repository


@dataclass(frozen=True)
class Package:
    """A library that implementations call.

    name: of the distribution or repository. module: its top-level module. github: `OWNER/NAME`.
    pip: the arguments of pip, if not the name. repository: set if it is not on PyPI.
    """

    name: str
    module: str
    licence: str
    github: str
    pip: str = ""
    repository: Repository | None = None

    @property
    def site(self) -> str:
        return f"https://github.com/{self.github}"

    @property
    def install(self) -> str:
        if self.repository is not None:
            return f"nsabench packages fetch {self.name}"
        return f"pip install {self.pip or self.name}"

    @property
    def version(self) -> str:
        """The installed version or commit; empty without one."""
        if self.repository is not None:
            there = repositories.is_here(self.repository)
            return self.repository.commit[:12] if there else ""
        try:
            version = metadata.version(self.name)
        except metadata.PackageNotFoundError:
            return ""
        return version if util.find_spec(self.module) is not None else ""

    @property
    def origin(self) -> Origin:
        return Origin(package=self.name, version=self.version, licence=self.licence)


def _from_commit(
    github: str, module: str, licence: str, commit: str, sha256: str, *repairs: Repair
) -> Package:
    repository = Repository(github, commit, sha256, repairs)
    return Package(repository.name, module, licence, github, repository=repository)


FLA = Package("fla-core", "fla", "MIT", "fla-org/flash-linear-attention")
NSA_TRITON = _from_commit(
    "XunhaoLai/native-sparse-attention-triton",
    "native_sparse_attention",
    "Apache-2.0",
    "9bea856c911ebf263be88d797fb28458f82f1d94",
    "22bcac63056d728e0089ed133b2caf752073cad76652c3337049d7f27b3612ec",
)
FSA = _from_commit(
    "Relaxed-System-Lab/Flash-Sparse-Attention",
    "fsa",
    "Apache-2.0",
    "1da34f35cb1884f4c35d3bfdf9e59ab6ae6e543a",
    "8e883ade320ae94378190ce390998b39c1b118984965a655d57a20f802a378e2",
    Repair(
        file="fsa/ops/FSA_topk_sparse_attention.py",
        old="(lse_ptr + pid_q_j * stride_lse_n,)",
        new="lse_ptr + pid_q_j * stride_lse_n",
        why="a tuple of one pointer, which Triton refuses from 3.6",
    ),
)
FLASH_NSA = _from_commit(
    "mdy666/Scalable-Flash-Native-Sparse-Attention",
    "flash_nsa",
    "MIT",
    "fcf117c3c8a12e274aa75f2a01b0d12d76f44128",
    "84bb84fecf953e4bc2982a871ed5981348378e79c908a5b769d743d0949f43c9",
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
        why="only its own benchmark needs pandas",
    ),
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
    """Return the library of that name. Raises `UsageError` for an unknown name."""
    for package in CATALOGUE:
        if package.name.lower() == name.lower():
            return package
    raise UsageError(
        f"no library is named {name!r}", f"name one of {', '.join(p.name for p in CATALOGUE)}."
    )
