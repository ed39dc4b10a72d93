"""Replace layers of transformers models by faster equivalents for the current device: fused GELU, CPU dropout, and
attention for training on a CPU.

The replacements have no weights and do not appear in saved models.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.activations import NewGELUActivation
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from kit.models.recurrent import Dropout, fast_dropout

ATTENTION = "kit"
"""Name under which kit's attention is registered with transformers."""


def swap_layers(model: PreTrainedModel, device: torch.device, mixed_precision: bool) -> None:
    """Replace slow layers in place. Outputs stay the same up to rounding; only dropout masks differ."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is NewGELUActivation:  # eight tensor operations, of which autograd keeps five results
                setattr(parent, name, nn.GELU(approximate="tanh"))
            elif type(child) is nn.Dropout and not child.inplace and device.type == "cpu":
                setattr(parent, name, Dropout(child.p).train(child.training))
    if device.type != "cpu":
        return
    if type(model).__module__.startswith("transformers.") and model.config._attn_implementation == "sdpa":
        AttentionInterface.register(ATTENTION, attention)
        AttentionMaskInterface.register(ATTENTION, sdpa_mask)
        model.set_attn_implementation(ATTENTION)
    elif mixed_precision:  # measured on a CPU: backward of torch's fused attention takes ten times as long in bf16
        model.set_attn_implementation("eager")


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **more: Any,
) -> tuple[Tensor, Tensor | None]:
    """The `sdpa` attention of transformers, but in separate operations where these are faster: for training on a CPU
    with dropout or in 16 bits. query, key, value: (batch, heads, time, width)."""
    fused = dropout == 0 and query.dtype not in (torch.bfloat16, torch.float16)
    unusual = any(more.get(name) is not None for name in ("softcap", "position_bias", "cache"))
    if not module.training or query.device.type != "cpu" or fused or unusual:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, is_causal=is_causal, **more
        )
    groups = getattr(module, "num_key_value_groups", 1)
    key, value = repeat_kv(key, groups), repeat_kv(value, groups)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    scores = torch.matmul(query * scale, key.transpose(2, 3))  # (batch, heads, time, keys)
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    if attention_mask is None and causal and query.shape[2] > 1:
        attention_mask = torch.ones(scores.shape[2:], dtype=torch.bool).tril()
    if attention_mask is not None and attention_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attention_mask, torch.finfo(scores.dtype).min)
    elif attention_mask is not None:
        scores = scores + attention_mask
    weights = nn.functional.softmax(scores, dim=-1).to(value.dtype)
    weights = fast_dropout(weights, dropout)
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), None
