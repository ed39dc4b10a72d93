"""Proof against an independent implementation: MarianMTModel of transformers with the same weights."""

import torch
from transformers import MarianConfig, MarianMTModel, PreTrainedModel

from kit.models import TransformerSeq2SeqConfig
from kit.verify.forward import TOLERANCE, relative_difference
from kit.verify.proof import Outcome, equal_within, proof
from kit.verify.subject import Subject, logits_of

NAMES = {".feed_forward.up_proj.": ".fc1.", ".feed_forward.down_proj.": ".fc2.", ".cross_attn.": ".encoder_attn."}
NORMS = {"encoder": ("self_attn", "final"), "decoder": ("self_attn", "encoder_attn", "final")}


def fits_marian(model: PreTrainedModel) -> bool:
    """Whether the model's architecture is one that Marian has too, so that it can take over the weights."""
    config = model.config
    return (
        isinstance(config, TransformerSeq2SeqConfig)
        and (config.norm, config.max_position_embeddings) == ("post", None)
        and config.hidden_act in ("relu", "gelu")
        and config.share_encoder_decoder_embeddings
        and config.tie_word_embeddings
    )


def as_marian(model: PreTrainedModel, longest: int = 512) -> MarianMTModel:
    """A MarianMTModel with the weights of a `transformer_seq2seq`, for sequences of at most `longest` tokens.

    Raises ValueError if Marian cannot hold them; see `fits_marian`.
    """
    config = model.config
    sides = {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in (("attention_heads", config.num_attention_heads), ("ffn_dim", config.intermediate_size))
    }
    special = ("bos_token_id", "pad_token_id", "eos_token_id", "decoder_start_token_id")
    tokens = {name: getattr(config, name) for name in special}
    marian = MarianMTModel(
        MarianConfig(
            vocab_size=config.vocab_size,
            d_model=config.hidden_size,
            encoder_layers=config.encoder_layers,
            decoder_layers=config.decoder_layers,
            activation_function=config.hidden_act,
            scale_embedding=config.scale_embedding,
            max_position_embeddings=longest,
            forced_eos_token_id=None,
            **sides,
            **tokens,
        )
    )
    weights = {_marian_name(name): tensor for name, tensor in model.state_dict().items()}
    weights["model.shared.weight"] = weights["model.decoder.embed_tokens.weight"] = weights["lm_head.weight"]
    initial = marian.state_dict()
    # tensors only Marian has: sinusoids, and biases without effect (the softmax cancels a key bias)
    extra = {name for name in initial if name.endswith(("k_proj.bias", "embed_positions.weight", "final_logits_bias"))}
    if initial.keys() - weights.keys() != extra or weights.keys() - initial.keys():
        raise ValueError("Marian cannot hold these weights: it is post-norm, with sinusoids and one tied vocabulary")
    marian.load_state_dict({**{name: initial[name] for name in extra}, **weights})
    return marian.to(model.dtype).eval()


def _marian_name(name: str) -> str:
    """The name that a parameter of `transformer_seq2seq` has in Marian."""
    for mine, theirs in NAMES.items():
        name = name.replace(mine, theirs)
    for side, parts in NORMS.items():
        for number, part in enumerate(parts):
            if f".{side}." in name:
                name = name.replace(f".norms.{number}.", f".{part}_layer_norm.")
    return name


@proof("Marian", "transformers' Marian gives the same logits with the same weights", lambda s: fits_marian(s.model))
def logits_are_marians(subject: Subject) -> Outcome:
    inputs = subject.inputs()
    longest = max(tensor.shape[1] for tensor in inputs.values())
    marian = as_marian(subject.model, longest).to("cpu", torch.float64)
    actual, expected = logits_of(subject.exact, inputs), logits_of(marian, inputs)
    return equal_within(relative_difference(actual, expected), TOLERANCE, "logits")
