"""Proofs for every model that writes text with the recurrent decoder, regardless of its encoder."""

import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, Seq2SeqTrainer, Seq2SeqTrainingArguments

from kit.decoding.search import search
from kit.decoding.settings import GenerationSettings
from kit.verify.generation import compare_with_every_hypothesis
from kit.verify.subject import logits_of

Batch = dict[str, Tensor]

CHOICES: list[dict[str, Any]] = [
    {"attention": "none", "context_to": []},
    {"attention": "fixed", "cell": "gru", "context_to": ["input", "readout"]},
    {"attention": "additive", "context_to": ["input", "readout"]},
    {"attention": "scaled_dot", "num_attention_heads": 2, "cell": "gru", "attention_query": "current"},
    {"attention": "dot", "attention_query": "current", "context_to": ["state"], "decoder_layers": 2},
    {"attention": "general", "cell": "rnn", "context_to": ["next_layer", "readout"], "decoder_layers": 2},
    {"attention": "keyed", "attention_layers": 2, "context_to": ["readout"], "tie_word_embeddings": True},
    {"attention": "rbf", "attention_values": True, "readout_embedding": True},
]


def name_of(choices: dict[str, Any]) -> str:
    return "-".join(str(value) for value in choices.values() if isinstance(value, str))


def labels_of(examples: int, longest: int, vocabulary: int, seed: int = 0) -> Tensor:
    """Targets of several lengths, each with its end marker (2), filled up with −100."""
    chance = torch.Generator().manual_seed(seed)
    labels = torch.randint(3, vocabulary, (examples, longest), generator=chance)
    lengths = torch.randint(2, longest + 1, (examples, 1), generator=chance)
    position = torch.arange(longest)
    return labels.masked_fill(position == lengths - 1, 2).masked_fill(position >= lengths, -100)


def assert_beam_search_finds_the_best(model: PreTrainedModel, source: Batch) -> None:
    outcome = compare_with_every_hypothesis(model, source, max_new_tokens=3, length_penalty=1.0)
    assert outcome.passed, outcome.figure


def assert_cache_changes_nothing(model: PreTrainedModel, source: Batch, target: Tensor) -> None:
    """One token after the other, from encoder outputs, against the whole target; and searches with and without."""
    whole = logits_of(model, {**source, "decoder_input_ids": target})
    steps, cache = [], None
    with torch.no_grad():
        encoded = model.get_encoder()(**source, return_dict=True)
        for token in target.split(1, dim=1):
            output = model(encoder_outputs=encoded, decoder_input_ids=token, past_key_values=cache, use_cache=True)
            steps.append(output.logits)
            cache = output.past_key_values
        torch.testing.assert_close(torch.cat(steps, dim=1), whole)
        for beams in (1, 3):
            options = {"num_beams": beams, "max_new_tokens": 5, "do_sample": False}
            with_cache = model.generate(**source, **options)
            assert torch.equal(model.generate(**source, **options, use_cache=False), with_cache)
            again = copy.deepcopy(encoded)
            assert torch.equal(model.generate(encoder_outputs=again, **options), with_cache)


def assert_searches_agree(model: PreTrainedModel, source: Batch) -> None:
    """kit's own search, transformers', and scores of teacher forcing."""
    for beams in (1, 4):
        settings = GenerationSettings(beams, max_new_tokens=5, num_return_sequences=beams, early_stopping="never")
        plain = [hypothesis for hypotheses in search(model, source, settings) for hypothesis in hypotheses]
        with_attention = [
            hypothesis for hypotheses in search(model, source, settings, attention=True) for hypothesis in hypotheses
        ]
        assert [h.tokens for h in plain] == [h.tokens for h in with_attention]
        for number, (hypothesis, other) in enumerate(zip(plain, with_attention, strict=True)):
            row_source = {name: tensor[number // beams : number // beams + 1] for name, tensor in source.items()}
            tokens = torch.tensor([hypothesis.tokens])
            target = torch.cat([torch.zeros(1, 1, dtype=torch.long), tokens[:, :-1]], dim=1)
            with torch.no_grad():
                output = model(**row_source, decoder_input_ids=target, output_attentions=True)
            score = output.logits.log_softmax(-1).gather(-1, tokens.unsqueeze(-1)).mean()
            assert abs(hypothesis.score - float(score)) < 1e-4
            assert abs(other.score - float(score)) < 1e-4
            if output.cross_attentions is not None:
                torch.testing.assert_close(other.attention, output.cross_attentions[0][0])


def assert_loss_is_that_of_the_labels(model: PreTrainedModel, source: Batch, labels: Tensor) -> None:
    """Σ −log p of each label after those before it, by hand; also as a share of a larger step."""
    with torch.no_grad():
        target = torch.cat([torch.zeros(len(labels), 1, dtype=torch.long), labels[:, :-1].clamp(min=1)], dim=1)
        log_p = logits_of(model, {**source, "decoder_input_ids": target}).log_softmax(-1)
        total = -sum(log_p[row, t, labels[row, t]] for row, t in (labels != -100).nonzero().tolist())
        count = int((labels != -100).sum())
        torch.testing.assert_close(model(**source, labels=labels).loss, total / count)
        torch.testing.assert_close(model(**source, labels=labels, num_items_in_batch=7).loss, total / 7)


def assert_every_parameter_has_a_gradient(model: PreTrainedModel, batch: Batch, *excused: str) -> None:
    model.zero_grad()
    model(**batch).loss.backward()
    still = [
        name
        for name, parameter in model.named_parameters()
        if (parameter.grad is None or not parameter.grad.abs().max() > 0) and not name.endswith(excused)
    ]
    assert still == []


def overfit(model: PreTrainedModel, batch: Batch, steps: int, rate: float = 0.01) -> float:
    """The loss after overfitting one batch."""
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    model.train()
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    model.eval()
    return float(loss.detach())


def trained_by_trainer(model: PreTrainedModel, batch: Batch, folder: Path, **settings: Any) -> dict[str, Any]:
    """Losses of a model before and after a few steps of Seq2SeqTrainer on a batch, and the tokens that it generates."""
    rows = [{name: tensor[i] for name, tensor in batch.items()} for i in range(len(batch["labels"]))]

    def collate(examples: list[Batch]) -> Batch:
        return {name: torch.stack([row[name] for row in examples]) for name in examples[0]}

    arguments = Seq2SeqTrainingArguments(
        output_dir=str(folder),
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
        save_strategy="no",
        predict_with_generate=True,
        generation_max_length=5,
        per_device_train_batch_size=2,
        per_device_eval_batch_size=3,
        learning_rate=0.02,
        **settings,
    )
    trainer = Seq2SeqTrainer(model=model, args=arguments, train_dataset=rows, eval_dataset=rows, data_collator=collate)
    before = trainer.evaluate()
    trainer.train()
    predicted = trainer.predict(rows)
    return {"before": before["eval_loss"], "after": predicted.metrics["test_loss"], "tokens": predicted.predictions}
