"""Train a small language model with NSA, and record which blocks its layers select on other text.

    python -m tools.record_selections SECONDS FILE

The selections are the distribution `recorded` of block selection. The text is Python's standard
library, of which one file in sixteen is held out. At the end, this prints how many different blocks
consecutive queries select together.
"""

import hashlib
import json
import math
import platform
import sys
import sysconfig
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from nsa_kernels import NSAttention, compressed_attention_with_scores, select_blocks
from nsa_kernels.attention.rotary import positions_of, rotate
from torch import nn
from torch.nn.functional import cross_entropy, pad, rms_norm

from nsabench.ops._block_choices import Recording
from tools import recordings

HELD_OUT = 16
NEIGHBOURS = (2, 4, 8, 16)
MOST_BYTES = 1_000_000


@dataclass(frozen=True)
class Sizes:
    """Sizes of the model, of a training step and of the recording."""

    layers: int = 4
    dim: int = 1024
    heads: int = 32
    kv_heads: int = 2
    head_dim: int = 64
    block: int = 32
    stride: int = 16
    block_size: int = 64
    n_selected: int = 16
    window: int = 512
    rotary: float = 10000.0
    context: int = 4
    batch: int = 2
    tokens: int = 16384
    recorded: int = 16384
    peak_rate: float = 1.5e-3
    warm_up: int = 200


class Layer(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.attention = NSAttention(
            sizes.dim,
            sizes.heads,
            sizes.kv_heads,
            sizes.head_dim,
            block=sizes.block,
            stride=sizes.stride,
            block_size=sizes.block_size,
            n_selected=sizes.n_selected,
            window=sizes.window,
            rotary=sizes.rotary,
        )
        self.wide = nn.Linear(sizes.dim, 4 * sizes.dim, bias=False)
        self.narrow = nn.Linear(4 * sizes.dim, sizes.dim, bias=False)

    def forward(self, x):
        x = x + self.attention(normal(x))
        return x + self.narrow(torch.relu(self.wide(normal(x))).square())


class Model(nn.Module):
    """Bytes [B, T] -> logits [B, T, 256] of the next bytes.

    A byte is embedded with the few bytes before it, since layers take long to learn words.
    """

    def __init__(self, sizes):
        super().__init__()
        self.sizes = sizes
        self.embeddings = nn.ModuleList(nn.Embedding(256, sizes.dim) for _ in range(sizes.context))
        self.layers = nn.ModuleList(Layer(sizes) for _ in range(sizes.layers))
        self.logits = nn.Linear(sizes.dim, 256, bias=False)

    def embed(self, text):
        """Return [B, T, dim]. NUL bytes stand before the first byte."""
        x = text.new_zeros(*text.shape, self.sizes.dim, dtype=torch.float32)
        for back, embedding in enumerate(self.embeddings):
            x = x + embedding(pad(text, (back, 0))[:, : text.shape[1]])
        return x

    def forward(self, text):
        x = self.embed(text)
        for layer in self.layers:
            x = layer(x)
        return self.logits(normal(x))

    def selections(self, text):
        """Yield block_indices int32 [T, H, S] of each layer, for one text [1, T]."""
        sizes, x = self.sizes, self.embed(text)
        position = positions_of(x)
        for layer in self.layers:
            attention = layer.attention
            q, k, v, _ = attention.project(normal(x))
            q, k = (rotate(part, position, sizes.rotary) for part in (q, k))
            _, _, scores = compressed_attention_with_scores(
                q,
                attention.compress_k(k),
                attention.compress_v(v),
                block=sizes.block,
                stride=sizes.stride,
                block_size=sizes.block_size,
            )
            spans = select_blocks(scores, sizes.n_selected, block_size=sizes.block_size)[0]
            yield torch.where(spans[..., 1] > spans[..., 0], spans[..., 0] // sizes.block_size, -1)
            x = layer(x)


def normal(x):
    return rms_norm(x, x.shape[-1:])


def library():
    """Return the sources of Python's library: those to learn from, and those held out."""
    root = Path(sysconfig.get_paths()["stdlib"])
    parts = ([], [])
    for file in sorted(root.rglob("*.py")):
        name = file.relative_to(root)
        if name.parts[0] not in ("site-packages", "dist-packages"):
            drawn = hashlib.sha256(str(name).encode()).digest()
            parts[drawn[0] % HELD_OUT == 0].append(file.read_bytes())
    learnt, held_out = (np.frombuffer(b"\n".join(part), dtype=np.uint8) for part in parts)
    return learnt, held_out


def train(model, text, seconds, steps):
    """Train until `seconds` or `steps` are spent. Return steps taken, and the last loss (nats)."""
    sizes, device = model.sizes, model.logits.weight.device
    rng = np.random.default_rng(0)
    on_device = torch.from_numpy(text.copy()).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=sizes.peak_rate, betas=(0.9, 0.95))
    begun, taken, loss = time.monotonic(), 0, torch.tensor(math.nan)
    while taken < steps:
        spent = (time.monotonic() - begun) / seconds
        if spent >= 1:
            break
        rate = min(1, (taken + 1) / sizes.warm_up) * (0.55 + 0.45 * math.cos(math.pi * spent))
        for group in optimizer.param_groups:
            group["lr"] = sizes.peak_rate * rate
        starts = torch.from_numpy(rng.integers(len(text) - sizes.tokens - 1, size=sizes.batch))
        at = starts.to(device)[:, None] + torch.arange(sizes.tokens + 1, device=device)
        rows = on_device[at].long()
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            logits = model(rows[:, :-1])
        loss = cross_entropy(logits.flatten(0, 1).float(), rows[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if taken % 50 == 0:
            print(f"{taken}: {loss.item():.3f} nats, {time.monotonic() - begun:.0f} s", flush=True)
        taken += 1
    return taken, loss.item()


@torch.no_grad()
def record(model, text, made):
    """Return the choices of every layer and KV head on the first tokens of a text."""
    device = model.logits.weight.device
    rows = torch.from_numpy(text[: model.sizes.recorded].copy()).to(device).long()[None]
    with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        chosen = [layer.transpose(0, 1) for layer in model.selections(rows)]
        loss = cross_entropy(model(rows)[0, :-1].float(), rows[0, 1:])
    selection = torch.cat(chosen).to(torch.int32).cpu().numpy()
    made = f"{made}; {float(loss):.3f} nats a byte on the text recorded"
    return recordings.of_selection(selection, model.sizes.block_size, made)


def fewer(recording, most):
    """Keep as many heads, evenly over the layers, as fit in `most` bytes when packed."""
    heads = len(recording.chosen)
    for count in range(heads, 0, -1):
        some = recording.chosen[np.arange(count) * heads // count]
        kept = Recording(recording.block, recording.slots, recording.made, some)
        packed = recordings.pack(kept)
        if len(packed) <= most:
            return kept, packed
    raise SystemExit(f"one head alone takes more than {most} bytes; record fewer tokens")


def main(seconds, file, sizes=Sizes(), steps=1 << 30):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    model = Model(sizes).to(device)
    learnt, held_out = library()
    taken, loss = train(model, learnt, float(seconds), steps)
    made = (
        f"{sizes.layers} layers of NSAttention, {sizes.heads} query and {sizes.kv_heads} KV heads "
        f"of {sizes.head_dim}, {taken} steps of {sizes.batch} x {sizes.tokens} bytes of the "
        f"library of Python {platform.python_version()} in {float(seconds):.0f} s, to {loss:.3f} "
        "nats a byte"
    )
    recording, packed = fewer(record(model, held_out, made), MOST_BYTES)
    Path(file).write_bytes(packed)
    together = {n: round(recordings.agreement(recording, n), 1) for n in NEIGHBOURS}
    about = {"bytes": len(packed), "heads": len(recording.chosen), "made": recording.made}
    print(json.dumps({**about, "different blocks of neighbours": together}, indent=1))


if __name__ == "__main__":
    main(*sys.argv[1:])
