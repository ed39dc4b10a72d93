"""torch.compile: few compilations for any mix of lengths, and the results of eager training."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import RunKit
from peft import LoraConfig, get_peft_model
from support.model_classes import RECURRENT, tiny_model
from support.recipes import BERT, GPT, make_recipe, write_recipe
from support.runs import losses, results
from torch import Tensor
from transformers import (
    BertConfig,
    BertForPreTraining,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    T5Config,
    T5ForConditionalGeneration,
)

from kit import train
from kit.models import TransformerSeq2SeqConfig
from kit.models.transformer_layers import Positions
from kit.runs.prepare import Prepared, prepare
from kit.training.compilation import RECURRENT as NOT_COMPILED
from kit.training.compilation import compile_model, separable_parts, without_compilation

TRANSFORMER = {
    "type": "transformer_seq2seq", "hidden_size": 16, "num_attention_heads": 2, "encoder_layers": 1,
    "decoder_layers": 1, "dropout": 0.0,
}  # fmt: skip
SECTIONS: dict[str, dict[str, Any]] = {
    "translation": {"model": TRANSFORMER},
    "causal_lm": {"model": {**GPT, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "n_layer": 1}},
    "instruction_tuning": {
        "model": {**GPT, "n_positions": 96, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "n_layer": 1}
    },
}
WITHOUT_DROPOUT = {**BERT, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
SECTIONS |= {
    task: {"model": WITHOUT_DROPOUT} for task in ("masked_lm", "classification", "tagging", "question_answering")
}


class Compilations:
    """A backend that compiles nothing and counts the graphs of each function."""

    def __init__(self) -> None:
        self.graphs: Counter[str] = Counter()

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        function, _, _ = str(torch._guards.CompileContext.current_compile_id()).partition("/")
        self.graphs[function] += 1
        return graph.forward


def batches(prepared: Prepared) -> Iterator[dict[str, Tensor]]:
    """A training batch in ten lengths: without its last positions."""
    batch = prepared.make_batch(prepared.plan.step(0)[0], np.random.default_rng(0))
    for removed in range(10):
        parts = {name: x[:, : max(2, x.shape[1] - removed)] if x.dim() > 1 else x for name, x in batch.items()}
        last = parts["input_ids"].shape[1] - 1
        yield {name: x.clamp(max=last) if name.endswith("positions") else x for name, x in parts.items()}


QUICK = ("causal_lm",)


@pytest.mark.parametrize(
    "task", [pytest.param(task, marks=[] if task in QUICK else pytest.mark.soak) for task in SECTIONS]
)
def test_ten_lengths_compile_each_function_at_most_twice(task: str, tmp_path: Path) -> None:
    torch._dynamo.reset()
    prepared, compilations = prepare(make_recipe(tmp_path, task, **SECTIONS[task])), Compilations()
    objective = prepared.task.objective(prepared.model.train(), prepared.state)
    with torch.no_grad():
        expected = [float(objective(batch, objective.normalizers(batch))) for batch in batches(prepared)]
    line = compile_model(prepared.model, compilations)
    assert line.endswith(" compiled; evaluations run it uncompiled")
    with without_compilation(True):
        first = next(batches(prepared))
        assert float(objective(first, objective.normalizers(first)).detach()) == expected[0]
    assert not compilations.graphs
    losses = [objective(batch, objective.normalizers(batch)) for batch in batches(prepared)]
    torch.stack(losses).sum().backward()
    assert [float(loss.detach()) for loss in losses] == pytest.approx(expected, rel=1e-5)
    assert max(compilations.graphs.values()) <= 2


@pytest.mark.parametrize("limit", [None, 16], ids=["sinusoids", "learned positions"])
def test_positions_of_ten_lengths_are_one_graph(limit: int | None) -> None:
    torch._dynamo.reset()
    config = TransformerSeq2SeqConfig(vocab_size=8, hidden_size=8, num_attention_heads=2, max_position_embeddings=limit)
    positions, compilations = Positions(config), Compilations()
    compiled = torch.compile(positions, dynamic=True, backend=compilations)
    for length in range(3, 13):
        x = torch.zeros(2, length, 8)
        torch.testing.assert_close(compiled(x), positions(x), rtol=1e-6, atol=1e-6)
    assert set(compilations.graphs.values()) == {1}


def test_a_compiled_model_has_no_output_layer() -> None:
    config = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    bert = BertForPreTraining(BertConfig(**config, vocab_size=8))
    assert list(separable_parts(bert)) == [bert.bert]
    classifier = BertForSequenceClassification(BertConfig(**config, vocab_size=8))
    assert list(separable_parts(classifier)) == [classifier]
    t5 = T5ForConditionalGeneration(T5Config(d_model=16, d_ff=16, num_layers=1, num_heads=2, vocab_size=8))
    assert list(separable_parts(t5)) == [t5.encoder, t5.decoder]
    gpt = GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=8))
    adapted = get_peft_model(gpt, LoraConfig(task_type="CAUSAL_LM", fan_in_fan_out=True))
    assert list(separable_parts(adapted)) == [gpt.transformer]


@pytest.mark.parametrize("model_type", RECURRENT)
def test_recurrent_models_stay_uncompiled(model_type: str) -> None:
    model = tiny_model(model_type)
    assert compile_model(model) == NOT_COMPILED
    assert all(module._compiled_call_impl is None for module in model.modules())


def test_the_run_reports_that_nothing_is_compiled(tmp_path: Path, kit_here: RunKit) -> None:
    overrides = ["train.torch_compile=true", "train.max_steps=1", "eval.steps=0"]
    done = kit_here("train", write_recipe(tmp_path, "forecasting"), *overrides, "--output", "run")
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("torch_compile: ")]
    assert line == NOT_COMPILED


@pytest.mark.soak
@pytest.mark.parametrize("task", SECTIONS)
def test_compiled_training_equals_eager_training(task: str, tmp_path: Path) -> None:
    figures = []
    for compiled in ("false", "true"):
        torch._dynamo.reset()
        overrides = [f"train.torch_compile={compiled}", "train.max_steps=6", "eval.steps=3"]
        run = train(make_recipe(tmp_path, task, None, overrides, **SECTIONS[task]), tmp_path / compiled).folder
        evaluation = {name: value for name, value in results(run)["validation"].items() if isinstance(value, float)}
        figures.append((losses(run), evaluation))
    (expected, evaluated), (actual, actual_evaluated) = figures
    assert len(actual) == 6
    assert actual == pytest.approx(expected, rel=1e-5)
    assert actual_evaluated == pytest.approx(evaluated, rel=1e-5, abs=1e-5)
