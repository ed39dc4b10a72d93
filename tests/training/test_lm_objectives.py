"""Sparse masked-LM heads and chunked causal losses equal the plain ones, in loss and in every gradient."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    BertConfig,
    BertForPreTraining,
    set_seed,
)

from kit.data.batching.ragged import IGNORE_INDEX
from kit.models import register_models
from kit.training.chunked_loss import LOGITS_PER_CHUNK, chunked_cross_entropy
from kit.training.layer_swaps import attention, swap_layers
from kit.training.lm_objectives import CausalLMObjective, MaskedLMObjective, is_plain_head

SMALL = {
    "vocab_size": 60, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24,
    "max_position_embeddings": 64, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
}  # fmt: skip
ENCODERS = {
    "bert": SMALL,
    "roberta": SMALL,
    "electra": {**SMALL, "embedding_size": 8},
    "modernbert": {
        **SMALL,
        "pad_token_id": 0,
        "cls_token_id": 1,
        "sep_token_id": 2,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
    "distilbert": {"vocab_size": 60, "dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24, "dropout": 0.0},
}
CAUSAL: dict[str, dict[str, Any]] = {
    "gpt2": {"vocab_size": 60, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64},
    "llama": {**SMALL, "num_key_value_heads": 1},
    "gemma2": {**SMALL, "num_key_value_heads": 1, "head_dim": 8, "final_logit_softcapping": 2.0},
    "rnn_lm": {"vocab_size": 60, "hidden_size": 16, "embedding_size": 8},
}


def gradients(model: nn.Module, loss: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def relative(first: dict[str, Tensor], second: dict[str, Tensor]) -> float:
    names = first.keys() | second.keys()
    scale = max(float(grad.norm()) for grad in second.values())
    zero = torch.zeros(())
    return max(float((first.get(name, zero) - second.get(name, zero)).norm()) / scale for name in names)


def masked_batch(with_pairs: bool) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(5, 60, (3, 12), generator=generator)
    labels = torch.where(torch.rand(3, 12, generator=generator) < 0.3, ids, IGNORE_INDEX)
    mask = torch.ones_like(ids)
    mask[1, 9:], labels[1, 9:] = 0, IGNORE_INDEX
    batch = {"input_ids": ids, "attention_mask": mask, "labels": labels}
    if with_pairs:
        batch["token_type_ids"] = (torch.arange(12) > 5).long().expand(3, 12).contiguous()
        batch["next_sentence_label"] = torch.tensor([0, 1, 1])
    return batch


def test_the_sparse_head_equals_stock_bert_for_pretraining() -> None:
    set_seed(0)
    model = BertForPreTraining(BertConfig(**SMALL)).double()
    batch = masked_batch(with_pairs=True)
    objective = MaskedLMObjective(model)
    ours = objective(batch, objective.normalizers(batch))
    stock = model(**batch).loss
    assert float(ours.detach()) == pytest.approx(float(stock.detach()), rel=1e-6)
    assert relative(gradients(model, ours), gradients(model, stock)) < 1e-6


@pytest.mark.parametrize("kind", ENCODERS)
def test_the_sparse_head_equals_the_stock_class_of_other_encoders(kind: str) -> None:
    set_seed(0)
    model = AutoModelForMaskedLM.from_config(AutoConfig.for_model(kind, **ENCODERS[kind])).double().eval()
    batch = masked_batch(with_pairs=False)
    objective = MaskedLMObjective(model)
    ours = objective(batch, objective.normalizers(batch))
    logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    stock = nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())
    assert float(ours.detach()) == pytest.approx(float(stock.detach()), rel=1e-6)
    assert relative(gradients(model, ours), gradients(model, stock)) < 1e-6


def test_the_head_sees_masked_positions_only() -> None:
    model = BertForPreTraining(BertConfig(**SMALL))
    batch = masked_batch(with_pairs=True)
    objective, shapes = MaskedLMObjective(model), []
    for module in (model.cls.predictions.transform, model.get_output_embeddings()):
        module.register_forward_hook(lambda module, inputs, out: shapes.append(tuple(out.shape)))
    masked = int((batch["labels"] != IGNORE_INDEX).sum())
    objective.logits(batch)
    assert shapes == [(masked, 16), (masked, 60)]
    objective(batch, objective.normalizers(batch))
    assert shapes[2:] == [(masked, 16), (0, 60)]  # the output layer is computed with the loss, chunk by chunk


@pytest.mark.parametrize("kind", ["bert", "gpt2", "llama"])
def test_adapted_model_computes_the_same_in_training(kind: str) -> None:
    """Exchanged parts change neither the loss nor a gradient, with and without padding."""
    register_models()
    sizes = {**(ENCODERS | CAUSAL)[kind], "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    auto = AutoModelForMaskedLM if kind == "bert" else AutoModelForCausalLM
    batch = masked_batch(with_pairs=False)
    for inputs in (batch, {**batch, "attention_mask": torch.ones_like(batch["attention_mask"])}):
        outcomes = []
        for suited in (False, True):
            set_seed(0)
            model = auto.from_config(AutoConfig.for_model(kind, **sizes)).double().train()
            if suited:
                swap_layers(model, torch.device("cpu"), mixed_precision=False)
                assert model.config._attn_implementation == "kit"
            loss = model(**inputs).loss
            outcomes.append((float(loss.detach()), gradients(model, loss)))
        assert outcomes[0][0] == pytest.approx(outcomes[1][0], rel=1e-9)
        assert relative(outcomes[0][1], outcomes[1][1]) < 1e-9


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("masked", ["none", "bool", "float"])
def test_plain_attention_with_dropout_has_the_mean_of_attention_without(causal: bool, masked: str) -> None:
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(2, 4, 6, 8, generator=generator)
    key, value = (torch.randn(2, 2, 6, 8, generator=generator) for _ in range(2))
    keep = (torch.rand(2, 1, 6, 6, generator=generator) < 0.6) | torch.eye(6, dtype=torch.bool)
    masks = {"none": None, "bool": keep, "float": torch.zeros(keep.shape).masked_fill(~keep, -1e30)}
    module = nn.Module().train()
    module.num_key_value_groups = 2  # type: ignore[assignment]
    exact, _ = attention(module, query, key, value, masks[masked], is_causal=causal)  # torch's own
    set_seed(0)
    drawn = [attention(module, query, key, value, masks[masked], dropout=0.3, is_causal=causal)[0] for _ in range(3000)]
    assert not torch.equal(drawn[0], drawn[1])
    assert torch.allclose(torch.stack(drawn).mean(0), exact, atol=0.1)
    nearly, _ = attention(module, query, key, value, masks[masked], dropout=1e-9, is_causal=causal)
    assert torch.allclose(nearly, exact, atol=1e-6)


def test_chunked_loss_releases_its_gradients() -> None:
    head, hidden = nn.Linear(4, 9), torch.randn(3, 4, requires_grad=True)
    loss = chunked_cross_entropy(hidden, head, torch.tensor([1, 2, 3]))
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="only once"):
        loss.backward()


def test_hidden_states_that_are_used_twice_and_tied_weights_get_the_sum_of_their_gradients() -> None:
    """Hidden states have a second use, and the output layer is the table of word vectors: nothing is overwritten."""
    table = torch.randn(9, 4, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([1, 2, 3, 4, 5])
    gradients_of_head = []
    for chunk in (2, None, 0):
        head = nn.Linear(4, 9, bias=False)
        head.weight = nn.Parameter(table.detach().clone())
        hidden = head.weight[labels - 1].tanh()
        loss = (
            nn.functional.cross_entropy(head(hidden), labels, reduction="sum")
            if chunk == 0
            else chunked_cross_entropy(hidden, head, labels, chunk=chunk)
        )
        (2 * loss + (hidden**2).sum() + loss).backward()
        gradients_of_head.append(head.weight.grad)
    assert torch.allclose(gradients_of_head[0], gradients_of_head[2], rtol=1e-9)
    assert torch.allclose(gradients_of_head[1], gradients_of_head[2], rtol=1e-9)


def test_a_micro_batch_without_a_masked_token_adds_nothing() -> None:
    model = AutoModelForMaskedLM.from_config(AutoConfig.for_model("bert", **SMALL))
    batch = masked_batch(with_pairs=False)
    batch["labels"] = torch.full_like(batch["labels"], IGNORE_INDEX)
    objective = MaskedLMObjective(model)
    loss = objective(batch, torch.tensor([0.0]))
    assert float(loss.detach()) == 0
    loss.backward()


@given(positions=st.integers(1, 40), chunk=st.integers(1, 50), bias=st.booleans(), ignored=st.floats(0, 1))
@settings(max_examples=60, deadline=None)
def test_chunks_change_neither_loss_nor_gradients(positions: int, chunk: int, bias: bool, ignored: float) -> None:
    generator = torch.Generator().manual_seed(positions)
    head = nn.Linear(7, 33, bias=bias).double()
    hidden = torch.randn(positions, 7, generator=generator, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(0, 33, (positions,), generator=generator)
    labels[torch.rand(positions, generator=generator) < ignored] = IGNORE_INDEX
    results = []
    for loss in (
        chunked_cross_entropy(hidden, head, labels, chunk),
        nn.functional.cross_entropy(head(hidden), labels, ignore_index=IGNORE_INDEX, reduction="sum"),
    ):
        grads = torch.autograd.grad(3.0 * loss, [hidden, *head.parameters()])
        results.append([loss.detach(), *grads])
    for ours, plain in zip(*results, strict=True):
        assert torch.allclose(ours, plain, atol=1e-10)


@pytest.mark.parametrize("kind", CAUSAL)
def test_the_causal_objective_equals_the_stock_loss(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    register_models()
    set_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **CAUSAL[kind])).double().eval()
    assert is_plain_head(model) == (kind != "gemma2")
    ids = torch.randint(5, 60, (3, 10), generator=torch.Generator().manual_seed(2))
    labels = torch.cat([ids[:, 1:], torch.full((3, 1), IGNORE_INDEX)], 1)
    monkeypatch.setitem(LOGITS_PER_CHUNK, "cpu", 4 * model.get_output_embeddings().weight.shape[0])
    objective = CausalLMObjective(model)
    batch = {"input_ids": ids, "labels": labels}
    ours = objective(batch, objective.normalizers(batch))
    stock = model(input_ids=ids, labels=ids).loss
    assert float(ours.detach()) == pytest.approx(float(stock.detach()), rel=1e-6)
    assert relative(gradients(model, ours), gradients(model, stock)) < 1e-6
