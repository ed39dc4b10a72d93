"""The losses of fine-tuning equal those of the stock classes, in one micro-batch or several."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    set_seed,
)

from kit.data.batching.ragged import IGNORE_INDEX
from kit.tasks.families.labeling.objectives import (
    ClassificationObjective,
    LabelObjective,
    QuestionAnsweringObjective,
    TaggingObjective,
)
from kit.training.processes import add_columns

SMALL = {
    "vocab_size": 60, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24,
    "max_position_embeddings": 64, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
}  # fmt: skip


def model_of(auto: Any, **more: Any) -> Any:
    set_seed(0)
    return auto.from_config(AutoConfig.for_model("bert", **SMALL, **more)).double()


def inputs(padded: bool = True) -> dict[str, Tensor]:
    ids = torch.randint(5, 60, (6, 9), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    if padded:
        mask[3:, 6:] = 0
    return {"input_ids": ids, "attention_mask": mask}


def in_parts(objective: LabelObjective, batch: dict[str, Tensor], parts: int) -> float:
    """The loss of a step in several micro-batches, as the loop computes it."""
    pieces = [
        dict(zip(batch, values, strict=True))
        for values in zip(*(t.tensor_split(parts) for t in batch.values()), strict=True)
    ]
    totals = add_columns(objective.normalizers(piece) for piece in pieces)
    return float(sum(objective(piece, totals) for piece in pieces).detach())  # type: ignore[union-attr]


LABELS = {
    "single_label_classification": torch.tensor([0, 2, 1, 1, 0, 2]),
    "multi_label_classification": torch.tensor([[1, 0, 1], [0, 0, 0], [1, 1, 1], [0, 1, 0], [1, 0, 0], [0, 0, 1.0]]),
    "regression": torch.tensor([0.1, 2.0, -3.0, 0.0, 1.5, 7.0]).double(),
}


@pytest.mark.parametrize("kind", LABELS)
def test_classification_equals_the_stock_class(kind: Any) -> None:
    number = 1 if kind == "regression" else 3
    model = model_of(AutoModelForSequenceClassification, num_labels=number, problem_type=kind)
    batch = {**inputs(), "labels": LABELS[kind]}
    labels = LABELS[kind].double() if kind == "multi_label_classification" else LABELS[kind]
    stock = float(model(**{**batch, "labels": labels}).loss.detach())
    objective = ClassificationObjective(model, kind)
    for parts in (1, 2, 3):
        assert in_parts(objective, batch, parts) == pytest.approx(stock, rel=1e-9)


def test_class_weights_equal_the_weighted_mean_of_torch() -> None:
    model = model_of(AutoModelForSequenceClassification, num_labels=3)
    batch = {**inputs(), "labels": LABELS["single_label_classification"]}
    weights = torch.tensor([0.5, 3.0, 1.0]).double()
    logits = model(**inputs()).logits
    expected = torch.nn.functional.cross_entropy(logits, batch["labels"], weight=weights, label_smoothing=0.1)
    objective = ClassificationObjective(model, "single_label_classification", weights.tolist(), label_smoothing=0.1)
    for parts in (1, 3):
        assert in_parts(objective, batch, parts) == pytest.approx(float(expected.detach()), rel=1e-9)
    plain = torch.nn.functional.cross_entropy(logits, batch["labels"], reduction="sum")
    summed = objective.summed_loss(objective.output(batch), batch)
    assert float(summed.detach()) == pytest.approx(float(plain.detach()), rel=1e-9)


def test_tagging_equals_the_stock_class() -> None:
    model = model_of(AutoModelForTokenClassification, num_labels=4)
    labels = torch.randint(0, 4, (6, 9), generator=torch.Generator().manual_seed(2))
    labels[:, ::3] = IGNORE_INDEX
    labels[3:, 6:] = IGNORE_INDEX
    batch = {**inputs(), "labels": labels}
    stock = float(model(**batch).loss.detach())
    for parts in (1, 2, 6):
        assert in_parts(TaggingObjective(model), batch, parts) == pytest.approx(stock, rel=1e-9)


def test_a_micro_batch_without_a_tag_adds_nothing() -> None:
    model = model_of(AutoModelForTokenClassification, num_labels=4)
    batch = {**inputs(), "labels": torch.full((6, 9), IGNORE_INDEX)}
    loss = TaggingObjective(model)(batch, [0.0])
    assert float(loss.detach()) == 0
    loss.backward()


def test_question_answering_equals_the_stock_class_and_does_not_see_padding() -> None:
    model = model_of(AutoModelForQuestionAnswering)
    spans = {"start_positions": torch.tensor([0, 1, 2, 3, 4, 5]), "end_positions": torch.tensor([0, 3, 2, 5, 5, 5])}
    whole = {**inputs(padded=False), **spans}
    objective = QuestionAnsweringObjective(model)
    for parts in (1, 2):
        assert in_parts(objective, whole, parts) == pytest.approx(float(model(**whole).loss.detach()), rel=1e-9)
    batch = {**inputs(), **spans}
    short = {name: tensor[3:, :6] if tensor.dim() == 2 else tensor[3:] for name, tensor in batch.items()}
    padded = {name: tensor[3:] for name, tensor in batch.items()}
    assert in_parts(objective, short, 1) == pytest.approx(in_parts(objective, padded, 1), rel=1e-9)
