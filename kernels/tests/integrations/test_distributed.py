"""A model of Transformers runs NSA in two processes: FSDP2, checkpointing, autocast, shards."""

import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import multiprocessing

transformers = pytest.importorskip(
    "transformers", minversion="5.8", reason="needs Transformers 5.8 or newer"
)
if not hasattr(pytest.importorskip("torch.distributed.fsdp"), "fully_shard"):
    pytest.skip("needs FSDP2, of torch 2.6 or newer", allow_module_level=True)
if torch.cuda.is_available():
    pytest.skip("runs on CPUs, by the interpreter", allow_module_level=True)
from safetensors.torch import load_file  # noqa: E402

TOKENS = 20
KINDS = ("fsdp2", "checkpointing", "autocast")
SIZES = {"block": 8, "stride": 4, "block_size": 16, "n_selected": 3, "window": 6}


def model():
    """Return a causal language model of two layers with learned gates, the same in each process."""
    from nsa_kernels.integrations import transformers as adapter

    adapter.register()
    sizes = {"vocab_size": 24, "hidden_size": 24, "intermediate_size": 24, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16}
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**sizes, **heads, nsa=SIZES, attn_implementation=adapter.NAME)
    made = transformers.LlamaForCausalLM(config)
    adapter.add_gates(made)
    return made


def rows():
    """Return a batch of a sequence for each process."""
    return torch.randint(0, 24, (2, TOKENS), generator=torch.Generator().manual_seed(1))


def gradients(of, x, kind):
    """Run a step of training and return the gradients of all parameters."""
    if kind == "checkpointing":
        of.train()
        of.gradient_checkpointing_enable({"use_reentrant": False})
    half = torch.autocast("cpu", torch.bfloat16) if kind == "autocast" else nullcontext()
    with half:
        loss = of(x, labels=x, use_cache=False).loss
    loss.backward()
    grads = {name: p.grad for name, p in of.named_parameters()}
    return {n: g.full_tensor() if hasattr(g, "full_tensor") else g for n, g in grads.items()}


def work(rank, folder):
    """Train a model on the process's own row, split over both; the first process saves it."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from quick_interpreter import quicken

    quicken()
    torch.set_num_threads(1)
    from torch.distributed.checkpoint import state_dict
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=2)
    mesh = dist.device_mesh.init_device_mesh("cpu", (2,))
    for kind in KINDS:
        of = model()
        for each in (*of.model.layers, of):
            fully_shard(each, mesh=mesh)
        found = gradients(of, rows()[rank : rank + 1], kind)
        if rank == 0:
            torch.save(found, folder / f"{kind}.pt")
    whole = state_dict.StateDictOptions(full_state_dict=True, cpu_offload=True)
    weights = state_dict.get_model_state_dict(of, options=whole)
    if rank == 0:
        of.save_pretrained(folder / "saved", state_dict=weights, max_shard_size="4KB")
    dist.barrier()
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What two processes leave."""
    made = tmp_path_factory.mktemp("distributed")
    multiprocessing.spawn(work, (made,), nprocs=2)
    return made


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_those_of_one_process(kind, folder):
    got = torch.load(folder / f"{kind}.pt")
    of, total = model(), {}
    for row in rows().split(1):
        of.zero_grad()
        for name, grad in gradients(of, row, kind).items():
            total[name] = total.get(name, 0) + grad / 2
    assert got.keys() == total.keys() and any("nsa_gates" in name for name in got)
    for name, want in total.items():
        near = {"atol": 2e-3, "rtol": 2e-2} if kind == "autocast" else {"atol": 1e-6, "rtol": 1e-4}
        torch.testing.assert_close(got[name], want, **near)


def test_a_checkpoint_in_shards_is_loaded(folder):
    files = sorted((folder / "saved").glob("*.safetensors"))
    assert len(files) > 2
    of, wanted = model(), model()
    with torch.no_grad():
        for p in of.parameters():
            p.zero_()
    loaded = {name: x for file in files for name, x in load_file(file).items()}
    of.load_state_dict(loaded, strict=False)
    with torch.no_grad():
        got, want = (each(rows(), use_cache=False).logits for each in (of, wanted))
    assert torch.equal(got, want) and want.any()
