"""Export of a client's personal adaptor for Hugging Face PEFT."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

from .adaptors import LowRankAdaptor, factors_of
from .errors import require
from .factored import AdaptedParameter
from .files import write_whole
from .floral import Floral
from .saving import check_floral


@torch.no_grad()
def export_peft(model: Floral, folder: str | Path, mixture: Tensor | Sequence[float] | None = None) -> None:
    """Write a client's adaptor as a PEFT LoRA checkpoint.

    The mixture of C adaptors of rank R is one adaptor of rank C R:
    sum_c pi_c U_c V_c^T = [pi_1 U_1 ... pi_C U_C] [V_1 ... V_C]^T. Load it beside a copy of the base,
    which PEFT changes in place: `peft.PeftModel.from_pretrained(copy.deepcopy(model.base), folder)`
    computes what the model computes.

    PEFT has LoRA for linear layers and their biases, for embeddings, and for convolutions with the
    kernel on the input side ("channel_in"; any kind where the kernel is 1 x 1). PEFT's own
    `merge_and_unload` needs a bias in all adapted layers, or a model made with biases=False.

    Args:
        model: the base with its adaptors.
        folder: where adapter_config.json and adapter_model.safetensors go; made if missing.
        mixture: pi, shape (C,), on the simplex; the model's own router if None.

    Raises:
        InputError: the model is no Floral, an adaptor cannot be written in PEFT's form, or the mixture has
            another shape or is not on the simplex. Nothing is written then.

    Source: the format of peft 0.15 and later.
    """
    check_floral(model)
    mixture = model.mixture(mixture)
    clustered = model.clustered()
    tensors: dict[str, Tensor] = {}
    ranks: dict[str, int] = {}
    for name, adaptor in model.plan.items():
        layer_name = name.rpartition(".")[0]
        reason = _why_not(model, name)
        require(
            not reason,
            f"{name} cannot be exported to PEFT: {reason}; "
            "or export the merged model instead: torch.save(model.merge().state_dict(), path)",
        )
        prefix = f"base_model.model.{layer_name}"
        factors = factors_of(name, adaptor, clustered)
        own = AdaptedParameter(model.base.get_parameter(name), adaptor, factors, mixture)
        if not isinstance(adaptor, LowRankAdaptor):
            tensors[f"{prefix}.lora_B.bias"] = own.delta()
            continue
        u, v = own.stacked()
        ranks[layer_name] = len(u)
        if isinstance(model.base.get_submodule(layer_name), nn.Embedding):
            tensors |= {f"{prefix}.lora_embedding_A": v, f"{prefix}.lora_embedding_B": u.mT}
        else:
            sides = [1] * (len(adaptor.shape) - 2)
            tensors[f"{prefix}.lora_A.weight"] = v.reshape(len(v), *adaptor.shape[1:])
            tensors[f"{prefix}.lora_B.weight"] = u.flatten(1).mT.reshape(adaptor.shape[0], len(u), *sides)

    # PEFT has lora_bias for all layers or for none
    has_biases = any(name.endswith(".lora_B.bias") for name in tensors)
    if has_biases:
        for layer in ranks:
            weight = tensors[f"base_model.model.{layer}.lora_B.weight"]
            tensors.setdefault(f"base_model.model.{layer}.lora_B.bias", weight.new_zeros(len(weight)))
    # PEFT scales by alpha / r: equal, so that the scale is 1
    pattern = {f"^{re.escape(layer)}": rank for layer, rank in ranks.items()}
    config: dict[str, Any] = {
        "peft_type": "LORA",
        "r": max(ranks.values()),
        "lora_alpha": max(ranks.values()),
        "rank_pattern": pattern,
        "alpha_pattern": pattern,
        "target_modules": "|".join(re.escape(layer) for layer in ranks),
        "lora_dropout": 0.0,
        "bias": "none",
        "lora_bias": has_biases,
        "inference_mode": True,
    }
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    # an export that is interrupted has no config, and not that of an older one
    (folder / "adapter_config.json").unlink(missing_ok=True)
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    write_whole(folder / "adapter_model.safetensors", save(contiguous, {"format": "pt"}))
    write_whole(folder / "adapter_config.json", json.dumps(config, indent=2).encode())


def _why_not(model: Floral, name: str) -> str:
    """Why PEFT cannot express a parameter's adaptor, and what to do; empty if it can."""
    adaptor = model.plan[name]
    layer_name, _, which = name.rpartition(".")
    if not layer_name:
        return "PEFT adapts layers inside a model, and this one is the model: use nn.Sequential(layer)"
    layer = model.base.get_submodule(layer_name)
    names = [other for other, module in model.base.named_modules(remove_duplicate=False) if module is layer]
    if len(names) > 1:
        return f"{' and '.join(names)} are one layer, of which PEFT adapts only the first"
    parent = model.base.get_submodule(layer_name.rpartition(".")[0])
    if isinstance(layer, nn.MultiheadAttention) or isinstance(parent, nn.MultiheadAttention):
        return "PEFT gives one rank to both projections of attention and none to their biases"
    if adaptor.kind in ("norm", "batch_nora"):
        return "PEFT has no adaptors for norms: use norms='none'"
    # a layer or an adaptor of a user's own in KINDS: PEFT would leave it out without a word
    known = isinstance(layer, (nn.Linear, nn.Embedding, nn.modules.conv._ConvNd))
    if known and not type(layer).forward.__module__.startswith("torch."):
        return f"{type(layer).__name__} has a forward() of its own, which PEFT does not call for the adaptor"
    if not known or which != ("weight" if isinstance(adaptor, LowRankAdaptor) else "bias"):
        return f"PEFT has no {type(adaptor).__name__} for the {which} of a {type(layer).__name__}"
    if not isinstance(adaptor, LowRankAdaptor):
        if f"{layer_name}.weight" not in model.plan:
            return "PEFT adapts a bias only with its weight: use biases=False"
        layers = (model.base.get_submodule(other.rpartition(".")[0]) for other in model.plan)
        if any(isinstance(other, nn.Embedding) for other in layers):
            return "PEFT adapts either biases or embeddings: use biases=False"
    elif isinstance(layer, nn.modules.conv._ConvNd):
        if isinstance(layer, nn.modules.conv._ConvTransposeNd):
            return "PEFT has no LoRA for transposed convolutions"
        if any(adaptor.shape[axis] > 1 for axis in adaptor.rows[1:]):
            return "PEFT keeps the kernel on the input side: use convolution='channel_in'"
        if layer.groups > 1 or max(layer.dilation) > 1 or layer.padding_mode != "zeros":
            return "PEFT's LoRA of a convolution has no groups, dilation or padding mode"
    return ""
