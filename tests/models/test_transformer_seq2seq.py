"""The Transformer equals Marian and torch with the same weights, and passes all of kit's proofs."""

import warnings
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from support.proofs import verify_model
from torch import Tensor, nn
from transformers import AutoModel, AutoModelForSeq2SeqLM

from kit.decoding.search import search
from kit.decoding.settings import GenerationSettings
from kit.models import (
    TransformerSeq2SeqConfig,
    TransformerSeq2SeqEncoderModel,
    TransformerSeq2SeqForConditionalGeneration,
    register_models,
)
from kit.verify.marian import as_marian

SMALL: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "dropout": 0.0,
}


def built(**choices: Any) -> TransformerSeq2SeqForConditionalGeneration:
    """A small model with every parameter perturbed, biases included."""
    torch.manual_seed(0)
    model = TransformerSeq2SeqForConditionalGeneration(TransformerSeq2SeqConfig(**{**SMALL, **choices})).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def padded_batch(examples: int = 5, seed: int = 1) -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(seed)
    lengths = torch.randint(2, 10, (examples, 1), generator=random)
    lengths[0] = 9
    return {
        "input_ids": torch.randint(3, 40, (examples, 9), generator=random),
        "attention_mask": (torch.arange(9) < lengths).long(),
        "decoder_input_ids": torch.randint(3, 40, (examples, 7), generator=random),
    }


@pytest.mark.parametrize("hidden_act", ["relu", "gelu"])
def test_logits_equal_marian(hidden_act: str) -> None:
    model = built(norm="post", hidden_act=hidden_act)
    batch = padded_batch()
    with torch.no_grad():
        assert torch.allclose(model(**batch).logits, as_marian(model)(**batch).logits, atol=1e-5)


@pytest.mark.parametrize("num_beams", [1, 5])
def test_outputs_equal_marian_on_two_hundred_sentences(num_beams: int) -> None:
    model = built(norm="post")
    source = padded_batch(200)
    del source["decoder_input_ids"]
    settings = GenerationSettings(num_beams=num_beams, max_new_tokens=12)
    mine, theirs = search(model, source, settings), search(as_marian(model), source, settings)
    for actual, expected in zip(mine, theirs, strict=True):
        assert actual[0].tokens == expected[0].tokens or abs(actual[0].score - expected[0].score) < 1e-4
        assert actual[0].score == pytest.approx(expected[0].score, abs=1e-4)


def test_logits_equal_torch() -> None:
    model = built(norm="pre")
    with warnings.catch_warnings():  # about a fast path of torch's that pre-norm does not have
        warnings.simplefilter("ignore")
        torch_model = nn.Transformer(32, 4, 2, 2, 48, dropout=0.0, batch_first=True, norm_first=True).eval()
    weights = {}
    for side in ("encoder", "decoder"):
        mine = getattr(model.model, side)
        weights |= {f"{side}.norm.{name}": p for name, p in mine.norm.state_dict().items()}
        for i, layer in enumerate(mine.layers):
            to = f"{side}.layers.{i}"
            for theirs, attention in (
                ("self_attn", layer.self_attn),
                ("multihead_attn", getattr(layer, "cross_attn", None)),
            ):
                if attention is None:
                    continue
                q, k, v = attention.q_proj, attention.k_proj, attention.v_proj
                weights[f"{to}.{theirs}.in_proj_weight"] = torch.cat([q.weight, k.weight, v.weight])
                weights[f"{to}.{theirs}.in_proj_bias"] = torch.cat([q.bias, torch.randn(32), v.bias])
                weights |= {f"{to}.{theirs}.out_proj.{n}": p for n, p in attention.out_proj.state_dict().items()}
            weights |= {f"{to}.linear1.{n}": p for n, p in layer.feed_forward.up_proj.state_dict().items()}
            weights |= {f"{to}.linear2.{n}": p for n, p in layer.feed_forward.down_proj.state_dict().items()}
            for number, norm in enumerate(layer.norms, start=1):
                weights |= {f"{to}.norm{number}.{n}": p for n, p in norm.state_dict().items()}
    torch_model.load_state_dict(weights)
    batch = padded_batch()
    padding = batch["attention_mask"] == 0
    with torch.no_grad():
        states = torch_model(
            model.model.encoder.add_positions(model.model.encoder.embed_tokens(batch["input_ids"])),
            model.model.decoder.add_positions(model.model.target_embeddings(batch["decoder_input_ids"])),
            tgt_mask=nn.Transformer.generate_square_subsequent_mask(7),
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
        )
        assert torch.allclose(model(**batch).logits, model.lm_head(states), atol=1e-5)


CHOICES = [
    {
        "norm": norm,
        "hidden_act": hidden_act,
        "max_position_embeddings": 32 if (norm, hidden_act) == ("pre", "gelu") else None,
    }
    for norm, hidden_act in product(("pre", "post"), ("relu", "gelu", "swiglu"))
] + [
    {"norm": "post", "max_position_embeddings": 32},
    {"share_encoder_decoder_embeddings": False},
    {"share_encoder_decoder_embeddings": False, "tie_word_embeddings": False},
    {"tie_word_embeddings": False},
    {"share_encoder_decoder_embeddings": False, "separate_vocabularies": True, "decoder_vocab_size": 23},
    {"scale_embedding": False, "num_attention_heads": 1},
]


@pytest.mark.parametrize("choices", CHOICES, ids=lambda choices: "-".join(map(str, choices.values())))
def test_every_proof_holds(choices: dict[str, Any]) -> None:
    failed = [check for check in verify_model(built(**choices)) if not check.passed]
    assert not failed


def test_eager_attention_equals_sdpa_and_returns_weights() -> None:
    model, batch = built(), padded_batch()
    fast = model(**batch).logits
    model.set_attn_implementation("eager")
    eager = model(**batch, output_attentions=True, output_hidden_states=True)
    assert torch.allclose(eager.logits, fast, atol=1e-5)
    assert [len(part) for part in (eager.encoder_attentions, eager.decoder_attentions, eager.cross_attentions)] == [
        2,
        2,
        2,
    ]
    assert eager.cross_attentions[0].shape == (5, 4, 7, 9)
    assert torch.allclose(eager.cross_attentions[0].sum(-1), torch.ones(5, 4, 7), atol=1e-5)
    hidden = (batch["attention_mask"] == 0)[:, None, None].expand(5, 4, 7, 9)
    assert eager.cross_attentions[1][hidden].abs().max() == 0
    assert torch.triu(eager.decoder_attentions[0], diagonal=1).abs().max() == 0
    assert [len(part) for part in (eager.encoder_hidden_states, eager.decoder_hidden_states)] == [3, 3]


def test_search_uses_eager_attention_and_restores_sdpa() -> None:
    model, batch = built(), padded_batch()
    settings = GenerationSettings(num_beams=3, max_new_tokens=6)
    results = search(model, batch, settings, attention=True)
    assert [best[0].tokens for best in results] == [best[0].tokens for best in search(model, batch, settings)]
    weights = results[0][0].attention
    assert weights is not None
    assert weights.shape == (4, len(results[0][0].tokens), 9)
    assert model.config._attn_implementation == "sdpa"


def test_gradient_checkpointing_changes_nothing() -> None:
    losses = []
    for checkpointing in (False, True):
        model = built().train()
        if checkpointing:
            model.gradient_checkpointing_enable()
        batch = padded_batch()
        loss = model(
            input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], labels=batch["decoder_input_ids"]
        ).loss
        loss.backward()
        losses.append((loss, model.model.encoder.layers[0].self_attn.q_proj.weight.grad.clone()))
    assert torch.equal(losses[0][0], losses[1][0])
    assert torch.allclose(losses[0][1], losses[1][1], atol=1e-6)


def test_the_encoder_alone(tmp_path: Path) -> None:
    register_models()
    model, batch = built(), padded_batch()
    model.save_pretrained(tmp_path)
    alone = AutoModel.from_pretrained(tmp_path).eval()
    assert isinstance(alone, TransformerSeq2SeqEncoderModel)
    states = alone(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).last_hidden_state
    assert torch.equal(states, model(**batch).encoder_last_hidden_state)
    whole = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert whole(**batch).logits.dtype == torch.bfloat16
    assert whole.generate(input_ids=batch["input_ids"], max_new_tokens=3).shape[0] == 5


def test_learned_positions_end_with_a_message_and_sinusoids_do_not() -> None:
    ids = torch.full((1, 20), 5)
    with pytest.raises(ValueError, match="longer than the 16 learned positions"):
        built(max_position_embeddings=16)(input_ids=ids, decoder_input_ids=ids)
    assert built()(input_ids=ids, decoder_input_ids=ids).logits.shape == (1, 20, 40)


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"num_attention_heads": 3}, "num_attention_heads=3 does not divide hidden_size=32"),
        ({"hidden_size": 9, "num_attention_heads": 3}, "need an even hidden_size"),
        ({"dropout": 1.0}, "dropout is a probability below 1"),
        ({"separate_vocabularies": True}, "share_encoder_decoder_embeddings needs one vocabulary"),
        ({"decoder_vocab_size": 9}, "set separate_vocabularies too"),
        ({"intermediate_size": 0}, "intermediate_size must be at least 1"),
    ],
)
def test_invalid_configurations_are_rejected(choices: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TransformerSeq2SeqConfig(**{**SMALL, **choices})


def test_resized_vocabulary_keeps_logits() -> None:
    model = built()
    before = model(**padded_batch()).logits
    model.resize_token_embeddings(44)
    assert model.config.vocab_size == model.config.decoder_vocab_size == 44
    assert model.lm_head.weight is model.model.encoder.embed_tokens.weight
    assert torch.allclose(model(**padded_batch()).logits[..., :40], before, atol=1e-5)


def test_dropouts_are_separate() -> None:
    batch = padded_batch()
    for name in ("dropout", "embedding_dropout", "attention_dropout", "activation_dropout"):
        model = built(**{name: 0.5}).train()
        torch.manual_seed(1)
        first = model(**batch).logits
        assert not torch.allclose(first, model(**batch).logits), name
        assert torch.equal(model.eval()(**batch).logits, model(**batch).logits)
