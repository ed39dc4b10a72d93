"""Model classes that a program registers with transformers' Auto classes, as `model.type`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.recipes import RECIPES
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForSequenceClassification, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from kit import RecipeError, evaluate, load_recipe, train


class BagConfig(PreTrainedConfig):
    model_type = "bag"
    vocab_size: int = 10
    width: int = 8
    depth: int = 1


class OldBagConfig(PreTrainedConfig):
    """With `__init__`, as configurations were written before transformers 5."""

    model_type = "old_bag"

    def __init__(self, vocab_size=10, width=8, depth: int = 1, **more):  # type: ignore[no-untyped-def]
        self.vocab_size, self.width, self.depth = vocab_size, width, depth
        super().__init__(**more)


class Bag(PreTrainedModel):
    """A classifier of the mean of embeddings."""

    config_class = BagConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.embedding = nn.Embedding(config.vocab_size, config.width)
        self.layers = nn.Sequential(*(nn.Linear(config.width, config.width) for _ in range(config.depth)))
        self.classifier = nn.Linear(config.width, config.num_labels)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.embedding

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor | None = None, **more: Any
    ) -> SequenceClassifierOutput:
        mask = attention_mask.unsqueeze(-1)  # (batch, time, 1)
        mean = (self.embedding(input_ids) * mask).sum(1) / mask.sum(1)
        return SequenceClassifierOutput(logits=self.classifier(torch.relu(self.layers(mean))))


class OldBag(Bag):
    config_class = OldBagConfig  # type: ignore[assignment]


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    """The classes, registered as in a user's program and unregistered afterwards."""
    models = AutoModelForSequenceClassification._model_mapping._extra_content
    for config, model in ((BagConfig, Bag), (OldBagConfig, OldBag)):
        AutoConfig.register(config.model_type, config)
        AutoModelForSequenceClassification.register(config, model)
    AutoConfig.register("without_model", type("WithoutModel", (PreTrainedConfig,), {"model_type": "without_model"}))
    yield
    for name in ("bag", "old_bag", "without_model"):
        models.pop(CONFIG_MAPPING._extra_content.pop(name), None)


@pytest.mark.parametrize(("kind", "model"), [("bag", Bag), ("old_bag", OldBag)])
def test_a_registered_class_trains(kind: str, model: type, tmp_path: Path) -> None:
    recipe = {"task": "classification", **RECIPES["classification"], "model": {"type": kind, "width": 12, "depth": 2}}
    run = train(recipe, tmp_path / "run", quiet=True)
    assert type(run.model) is model
    assert (run.model.config.width, run.model.config.depth, run.model.config.vocab_size) == (12, 2, len(run.tokenizer))
    assert run.model.embedding.weight.shape == (len(run.tokenizer), 12)
    assert evaluate(run.folder).figures["accuracy"] == run.results["test"]["accuracy"]


def test_its_settings_and_its_task_are_checked() -> None:
    recipe = {"task": "classification", **RECIPES["classification"]}
    with pytest.raises(RecipeError, match=r'model\.widht is not a setting of bag\. Did you mean "width"'):
        load_recipe({**recipe, "model": {"type": "bag", "widht": 3}})
    with pytest.raises(RecipeError, match=r"model\.depth: expected a whole number"):
        load_recipe({**recipe, "model": {"type": "old_bag", "depth": "two"}})
    for kind in ("without_model", "bags"):
        with pytest.raises(RecipeError, match="must be registered with transformers' Auto classes"):
            load_recipe({**recipe, "model": {"type": kind}})
    with pytest.raises(RecipeError, match="is not a model type"):
        load_recipe({**recipe, "task": "tagging", "data": RECIPES["tagging"]["data"], "model": {"type": "bag"}})
