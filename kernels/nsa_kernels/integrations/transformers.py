"""Hugging Face Transformers: models loaded with ``attn_implementation="nsa"`` run NSA.

    from nsa_kernels.integrations.transformers import register
    register()
    model = AutoModelForCausalLM.from_pretrained(NAME, attn_implementation="nsa")

A single new token after cached ones, if no gradient is needed, runs through ``decode_step``. The
compressed keys are computed again in every step, from the model's cache. All other calls run
through ``nsa_attention``. The model's config has sizes and fixed gates (``Settings``).
``add_gates`` makes the gates learned.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import isfinite, log
from numbers import Real
from typing import Any

import torch
from torch import nn

from ..attention import decode_step, nsa_attention
from ..attention.means import means_of_blocks
from ..launch.checks import require
from ..launch.mode import Mode, mode

OLDEST = (5, 8)
"""The first version of Transformers that calls a mask function with q_length and q_offset."""
NEEDS = (
    "nsa_kernels.integrations.transformers needs Transformers 5.8 or newer: "
    "pip install 'nsa-kernels[transformers]'"
)
try:
    import transformers
except ImportError as missing:
    raise ImportError(NEEDS) from missing
if tuple(int(part) for part in transformers.__version__.split(".")[:2]) < OLDEST:
    raise ImportError(f"{NEEDS}; this is {transformers.__version__}")

from transformers import AttentionInterface, AttentionMaskInterface  # noqa: E402
from transformers.masking_utils import causal_mask_function  # noqa: E402

NAME = "nsa"
OP = f'attn_implementation="{NAME}"'
PADDED = (
    f"{OP}: padding cannot be masked; give batches of equally long sequences, or pack them with "
    "DataCollatorWithFlattening(return_flash_attn_kwargs=True)"
)
NOT_CAUSAL = (
    f"{OP}: a mask that is neither causal nor that of packed sequences cannot be applied, such as "
    'one by which the tokens of an image see each other; use attn_implementation="sdpa"'
)
PACKED = (
    f"{OP}: a mask beyond causality cannot be applied; for packed sequences give cu_seq_lens_q, as "
    "DataCollatorWithFlattening(return_flash_attn_kwargs=True) does"
)
PAGED = ("block_table", "read_index")
"""Arguments that only Transformers' continuous batching passes."""
ASCENDS = "_nsa_ascends"
"""An attribute of position_ids: their version when ``_refuse_packed`` last accepted them."""


@dataclass(frozen=True, slots=True)
class Settings:
    """NSA in a model's config: ``config.nsa`` is a mapping with any of these keys.

    Sizes are as for ``nsa_attention``, with the paper's as defaults. ``gates`` are weights of
    compression, selection and window: fixed, or those at which learned gates begin. ``add_gates``
    sets ``learned``; then a layer without a learned gate raises ValueError.
    """

    block: int = 32
    stride: int = 16
    block_size: int = 64
    n_selected: int = 16
    window: int = 512
    gates: tuple[float, float, float] = (1 / 3, 1 / 3, 1 / 3)
    learned: bool = False

    @property
    def sizes(self) -> dict[str, int]:
        """Return the keyword arguments of ``nsa_attention`` and ``decode_step``."""
        names = ("block", "stride", "block_size", "n_selected", "window")
        return {name: getattr(self, name) for name in names}


KEYS = tuple(field.name for field in fields(Settings))
"""Names in ``config.nsa``, listed here since torch.compile cannot trace ``fields``."""


def settings_of(config: Any) -> Settings:
    """Read the settings in ``config.nsa``. Absent keys get their defaults.

    Raises:
        ValueError: a key is unknown, gates are not three finite numbers, or learned is not a bool.
    """
    says = getattr(config, "nsa", None) or {}
    require(
        isinstance(says, Mapping) and all(key in KEYS for key in says),
        f"{OP}: config.nsa is a mapping with keys of {', '.join(KEYS)}; got {says!r}",
    )
    settings = Settings(**says)
    gates = settings.gates
    require(
        isinstance(gates, list | tuple)
        and len(gates) == 3
        and all(isinstance(gate, Real) and isfinite(gate) for gate in gates),
        f"{OP}: the gates of config.nsa are three finite numbers; got {gates!r}",
    )
    require(
        isinstance(settings.learned, bool),
        f"{OP}: learned of config.nsa is true or false; got {settings.learned!r}",
    )
    return settings


def register() -> None:
    """Register attention and masks for ``attn_implementation="nsa"`` with Transformers."""
    AttentionInterface.register(NAME, attention_forward)
    AttentionMaskInterface.register(NAME, causal_mask)


def add_gates(model: nn.Module) -> list[str]:
    """Give each causal attention layer a gate: a linear layer ``nsa_gates`` on its hidden states,
    and a sigmoid (arXiv 2502.11089, section 3.2).

    The gates begin as the fixed gates of the config, so adding them changes outputs by rounding
    only. Their weights are saved with the model, and ``config.nsa["learned"]`` is set.
    ``from_pretrained`` does not know the gates, and drops their weights. To load them, make a model
    from the config, add gates, then load the state dict.

    Args:
        model: a causal language model of Transformers with ``config.hidden_size``.

    Returns:
        The names of the layers that now have a gate.

    Raises:
        ValueError: the model has no such layers, or a fixed gate is not between 0 and 1.
    """
    found = {
        name: layer
        for name, layer in model.named_modules()
        if hasattr(layer, "layer_idx") and getattr(layer, "is_causal", False)
    }
    require(bool(found), f"{OP}: no causal attention layer of Transformers in {type(model)}")
    for layer in found.values():
        layer.config.nsa = {**(getattr(layer.config, "nsa", None) or {}), "learned": True}
        if hasattr(layer, "nsa_gates"):
            continue
        settings = settings_of(layer.config)
        require(
            all(0 < gate < 1 for gate in settings.gates),
            f"{OP}: learned gates begin as those of config.nsa, and a sigmoid gives only numbers "
            f"between 0 and 1; got {settings.gates!r}",
        )
        hidden, heads = layer.config.hidden_size, layer.config.num_attention_heads
        like = next(layer.parameters())
        gate = nn.Linear(hidden, heads * 3, device=like.device, dtype=like.dtype)
        with torch.no_grad():
            gate.weight.zero_()
            bias = torch.tensor([log(g / (1 - g)) for g in settings.gates])
            gate.bias.copy_(bias.repeat(heads))
        layer.nsa_gates, layer.nsa_gate_values = gate, None
        layer.register_forward_pre_hook(_weigh, with_kwargs=True)
    return list(found)


def _weigh(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Keep gates [B, T, HQ, 3] for ``attention_forward``, which does not get hidden states."""
    hidden = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]
    layer.nsa_gate_values = torch.sigmoid(layer.nsa_gates(hidden)).unflatten(-1, (-1, 3))


def _is_of_packed(function: Any) -> bool:
    """Return whether a mask function combines only the causal mask and masks of packed sequences.

    These masks are closures of Transformers, known by the names of the functions that make them.
    """
    if function is causal_mask_function:
        return True
    if getattr(function, "__module__", None) != causal_mask_function.__module__:
        return False
    maker = function.__qualname__.partition(".")[0]
    if maker == "packed_sequence_mask_function":
        return True
    if maker == "remap_positions_for_packed_sequence":
        return _is_of_packed(inspect.getclosurevars(function).nonlocals["mask_function"])
    if maker == "and_masks":
        return all(map(_is_of_packed, inspect.getclosurevars(function).nonlocals["mask_functions"]))
    return False


def _check_when_run(
    mask_function: Any, batch_size: int, length: int, device: torch.device | str
) -> torch.Tensor:
    """Check, in a compiled graph, that no query sees the token after its own.

    While torch.compile traces, tensors have no values, so the check is made when the graph runs.

    Returns:
        bool [], whether each query sees the first token, that is, whether nothing is packed.
    """
    batch = torch.arange(batch_size, device=device)[:, None]
    query = torch.arange(length, device=device)[None]
    head = torch.zeros((), dtype=query.dtype, device=device)
    last = query[:, :-1]
    torch._assert_async(~mask_function(batch, head, last, last + 1).any(), NOT_CAUSAL)
    return mask_function(batch, head, query, torch.zeros_like(query)).all()


def causal_mask(
    q_length: int,
    kv_length: int,
    q_offset: int | torch.Tensor = 0,
    kv_offset: int = 0,
    mask_function: Any = causal_mask_function,
    attention_mask: torch.Tensor | None = None,
    local_size: int | None = None,
    use_vmap: bool = False,
    device: torch.device | str = "cpu",
    batch_size: int = 1,
    **others: Any,
) -> torch.Tensor | None:
    """Return the mask of a forward for Transformers: None if it is causal, since NSA always is.

    If Transformers has detected packed sequences, return an empty mask, which ``attention_forward``
    takes only with ``cu_seq_lens_q``. In a compiled graph, other mask functions give one bool: True
    if no sequences are packed.

    Raises:
        ValueError: the batch is padded, or the model needs windows, chunks, caches of fixed size,
            or masks that are not causal. To find padding, one value is read from the device.
        RuntimeError: when a compiled model runs, for padding or a mask that is not causal. On a GPU
            a device-side assertion fails, so a later CUDA call raises the error.
    """
    compiling = torch.compiler.is_compiling()
    require(
        local_size is None,
        f"{OP}: the model has layers that see a window or chunk of {local_size} tokens; NSA has a "
        "window of its own, so load a model whose layers all see all tokens",
    )
    require(
        isinstance(q_offset, int) and kv_offset == 0 and q_offset + q_length == kv_length,
        f"{OP}: the {kv_length} keys do not end with the last query, as with a StaticCache or a "
        "prefix; use a DynamicCache",
    )
    if attention_mask is not None:
        require(attention_mask.shape[-1] == kv_length, PADDED)
        if compiling:
            torch._assert_async(attention_mask.all(), PADDED)
        else:
            require(bool(attention_mask.all()), PADDED)
    require(not use_vmap, f"{OP}: masks by a function of the model's own cannot be applied")
    if mask_function is causal_mask_function:
        return None
    if compiling:
        return _check_when_run(mask_function, batch_size, q_length, device)
    require(_is_of_packed(mask_function), NOT_CAUSAL)
    return torch.empty(0, dtype=torch.bool, device=device)


def _refuse(module: nn.Module, mask: torch.Tensor | None, dropout: float, says: Any) -> None:
    is_causal = says.get("is_causal")
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    require(causal, f"{OP}: attention that is not causal cannot be computed")
    packed = says.get("cu_seq_lens_q") is not None
    if mask is not None and mask.dim() == 0 and torch.compiler.is_compiling():
        if not packed:
            torch._assert_async(mask, PACKED)
    else:
        require(mask is None or (mask.numel() == 0 and packed), PACKED)
    require(dropout == 0, f"{OP}: no dropout; set attention_dropout of the config to 0")
    require(
        not says.get("output_attentions"),
        f'{OP}: weights are never stored, so output_attentions needs attn_implementation="eager"',
    )
    require(
        says.get("sliding_window") is None,
        f"{OP}: a sliding layer of {says.get('sliding_window')} tokens cannot be computed; NSA has "
        "a window of its own, set in config.nsa",
    )
    for name in ("softcap", "s_aux", "position_bias"):
        require(says.get(name) is None, f"{OP}: {name} cannot be applied to NSA's logits")
    require(
        all(says.get(name) is None for name in PAGED),
        f"{OP}: no continuous batching; use generate() with a DynamicCache",
    )


def _refuse_packed(query: torch.Tensor, positions: Any) -> None:
    """Raise ValueError unless positions ascend by 1. In packed sequences, they begin again.

    With a cache, which is the default, Transformers makes no mask for packed sequences. So packed
    sequences would be computed as one sequence. All layers of a forward share the positions. They
    are read from the device once in each forward (in inference mode, once in each layer), and never
    in a compiled or captured graph. Positions with three axes, as for images, are not checked.
    """
    if not torch.is_tensor(positions) or positions.dim() != 2 or mode(query) is not Mode.EAGER:
        return
    version = None if positions.is_inference() else positions._version
    if version is not None and getattr(positions, ASCENDS, None) == version:
        return
    require(
        bool((positions.diff() == 1).all()),
        f"{OP}: position_ids that do not ascend by 1 are those of packed sequences, which need "
        "cu_seq_lens_q, as DataCollatorWithFlattening(return_flash_attn_kwargs=True) gives",
    )
    setattr(positions, ASCENDS, version)


def _gates(module: nn.Module, query: torch.Tensor, settings: Settings) -> torch.Tensor:
    """Return gates [B, T, HQ, 3]: those that the layer computed in this forward, or fixed ones."""
    b, hq, t, _ = query.shape
    if hasattr(module, "nsa_gates"):
        values: torch.Tensor | None = module.nsa_gate_values
        module.nsa_gate_values = None  # otherwise, the values keep the autograd graph alive
        require(
            values is not None and values.shape == (b, t, hq, 3),
            f"{OP}: the gates of a layer are computed by a hook, for one attention in each call; "
            "call layer(...), not layer.forward(...) or attention_forward",
        )
        assert values is not None
        return values
    require(
        not settings.learned,
        f"{OP}: config.nsa says that the gates are learned, but this layer has none; make the "
        "model by from_config, call add_gates(model), then load its state dict",
    )
    # Fill the gates on the device: a CUDA graph cannot capture a copy from the host.
    fixed = torch.stack([query.new_full((), gate) for gate in settings.gates])
    return fixed.expand(b, t, hq, 3)


def _to_one_dtype(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Cast q, k and v to one dtype. Under autocast, rotary embeddings leave q and k in float32."""
    dtypes, value = {x.dtype for x in tensors}, tensors[-1]
    if len(dtypes) == 1:
        return tensors
    kind = value.device.type
    mixed = torch.is_autocast_enabled(kind)
    dtype = torch.get_autocast_dtype(kind) if mixed else value.dtype
    return tuple(x.to(dtype) for x in tensors)


def attention_forward(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Compute NSA for a layer, as the ``AttentionInterface`` of Transformers calls it.

    Args:
        module: the layer, with ``config``, and with gates if ``add_gates`` made them.
        query: [B, HQ, Tq, D]. key: [B, H, T, D]. value: [B, H, T, Dv]. HQ is a multiple of H, and
            the queries are the last Tq of T tokens. If their dtypes differ, all are cast to the
            dtype of autocast, or without autocast to the dtype of value.
        scaling: factor on q.k; 1/sqrt(D) when None.
        kwargs: ``cu_seq_lens_q``, int32 [sequences + 1], if sequences are packed and B = 1;
            ``position_ids`` [B or 1, T], which must ascend by 1 if Tq = T and nothing is packed.

    Returns:
        [B, Tq, HQ, Dv], and None instead of weights.

    Raises:
        TypeError, ValueError: as from ``nsa_attention`` and ``decode_step``. Also ValueError for a
            request that NSA cannot serve, such as dropout.
    """
    _refuse(module, attention_mask, dropout, kwargs)
    query, key, value = _to_one_dtype(query, key, value)
    settings = settings_of(getattr(module, "config", None))
    gates = _gates(module, query, settings)
    cu_seqlens = kwargs.get("cu_seq_lens_q")
    new, held = query.shape[2], key.shape[2]
    if new == held and cu_seqlens is None:
        _refuse_packed(query, kwargs.get("position_ids"))
    require(
        new == held or (cu_seqlens is None and new < held),
        f"{OP}: {new} packed queries for {held} keys; packed sequences take no cache",
    )
    tensors = (query, key, value, gates)
    if new < held and torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
        return _with_backward(*tensors, settings, scaling), None
    if new == 1 < held:
        return _decode(*tensors, settings, scaling), None
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    out = nsa_attention(q, k, v, gates, **settings.sizes, sm_scale=scaling, cu_seqlens=cu_seqlens)
    return out, None


def _decode(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    gates: torch.Tensor,
    settings: Settings,
    scaling: float | None,
) -> torch.Tensor:
    """Return [B, 1, HQ, Dv] for one query [B, HQ, 1, D], the last token of its cache."""
    k_cmp, v_cmp = means_of_blocks(
        key.transpose(1, 2), value.transpose(1, 2), settings.block, settings.stride
    )
    compressed = (x.transpose(1, 2).contiguous() for x in (k_cmp, v_cmp))
    out = decode_step(
        *(query[:, :, 0], key, value, *compressed, gates[:, 0]),
        **settings.sizes,
        sm_scale=scaling,
    )
    return out.unsqueeze(1)


def _with_backward(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    gates: torch.Tensor,
    settings: Settings,
    scaling: float | None,
) -> torch.Tensor:
    """Return, differentiably, the end [B, Tq, HQ, Dv] of a prefill whose earlier queries are 0."""
    earlier = key.shape[2] - query.shape[2]
    q = nn.functional.pad(query, (0, 0, earlier, 0)).transpose(1, 2)
    k, v = key.transpose(1, 2), value.transpose(1, 2)
    gates = nn.functional.pad(gates, (0, 0, 0, 0, earlier, 0))
    out = nsa_attention(q, k, v, gates, **settings.sizes, sm_scale=scaling)
    return out[:, earlier:]
