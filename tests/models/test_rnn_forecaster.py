"""The forecaster: its arithmetic, padding and gaps, rolling out, and what is learned."""

import math
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from support.decoder_proofs import assert_every_parameter_has_a_gradient, overfit
from torch import Tensor
from transformers import AutoConfig, AutoModelForTimeSeriesPrediction, Trainer, TrainingArguments

from kit.data.builtin import pendulum
from kit.models import RNNForecasterConfig, RNNForecasterForPrediction, register_models
from kit.verify.generation import perturb_parameters

CHOICES: list[dict[str, Any]] = [
    {},
    {"cell": "gru", "loss": "gaussian", "bidirectional": True, "predict_change": False},
    {"cell": "rnn", "decoder_layers": 2, "encoder_layers": 2, "encoder_hidden_size": 5},
    {"attention": "additive", "context_to": ["input", "readout"], "loss": "gaussian"},
    {"attention": "dot", "attention_query": "current", "context_to": ["state"], "cell": "gru"},
    {"attention": "fixed", "context_to": ["input"]},
]


def name_of(choices: dict[str, Any]) -> str:
    return "-".join(str(value) for value in choices.values() if isinstance(value, str)) or "plain"


def tiny(**choices: Any) -> RNNForecasterForPrediction:
    """A random model in float64, with every parameter and normalization perturbed."""
    torch.manual_seed(0)
    sizes = {"value_size": 2, "context_size": 1, "hidden_size": 4, "horizon": 3}
    model = RNNForecasterForPrediction(RNNForecasterConfig(**{**sizes, **choices})).double().eval()
    perturb_parameters(model)
    model.fit_normalization(3 + 2 * torch.randn(5, 7, 2), context=torch.randn(5, 7, 1) - 1 if sizes else None)
    return model


def series(batch: int = 3, past: int = 6, future: int = 4) -> dict[str, Tensor]:
    torch.manual_seed(1)
    return {
        "past_values": 3 + 2 * torch.randn(batch, past, 2).double(),
        "past_context": torch.randn(batch, past, 1).double(),
        "future_values": 3 + 2 * torch.randn(batch, future, 2).double(),
        "future_context": torch.randn(batch, future, 1).double(),
    }


def without_future(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in inputs.items() if not name.startswith(("future_values", "future_mask"))}


# ---- arithmetic ------------------------------------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize("change", [True, False])
def test_predictions_equal_cells_by_hand(change: bool) -> None:
    model, inputs = tiny(cell="gru", predict_change=change), series(batch=1)
    values, context = model.normalization, model.context_normalization
    past = torch.cat([values(inputs["past_values"]), context(inputs["past_context"])], dim=-1)
    _, hidden = model.encoder.layers[0](past)
    hidden = torch.tanh(model.decoder.bridge.hidden(hidden))  # (1, 1, hidden)
    seen, expected = values(inputs["past_values"][:, -1:]), []
    for t in range(4):
        step = torch.cat([seen, context(inputs["future_context"][:, t : t + 1])], dim=-1)
        output, hidden = model.decoder.layers[0](step, hidden)
        mean = model.head(output) + (seen if change else 0)
        expected.append(values.inverse(mean))
        seen = values(inputs["future_values"][:, t : t + 1])
    torch.testing.assert_close(model(**inputs).predictions, torch.cat(expected, dim=1))


@torch.no_grad()
def test_loss_is_the_masked_mean_and_respects_num_items_in_batch() -> None:
    inputs = series()
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0]])
    for loss in ("squared", "gaussian"):
        model = tiny(loss=loss)
        output = model(**inputs, future_mask=mask)
        total = 0.0
        for row, t, i in product(range(3), range(4), range(2)):
            if mask[row, t]:
                unit = float(model.normalization.scale[i])
                error = float(inputs["future_values"][row, t, i] - output.predictions[row, t, i]) / unit
                if loss == "squared":
                    total += error**2
                else:
                    scale = float(output.scales[row, t, i]) / unit
                    total += error**2 / (2 * scale**2) + math.log(scale) + math.log(2 * math.pi) / 2
        assert float(output.loss) == pytest.approx(total / 14, rel=1e-9)
        assert float(model(**inputs, future_mask=mask, num_items_in_batch=5).loss) == pytest.approx(total / 5, rel=1e-9)
        assert (output.scales is None) == (loss == "squared")


@torch.no_grad()
@pytest.mark.parametrize("choices", CHOICES, ids=name_of)
def test_rolling_out_is_teacher_forcing_with_its_own_predictions(choices: dict[str, Any]) -> None:
    model, inputs = tiny(**choices), without_future(series())
    rolled = model.predict(**inputs)
    again = model(**inputs, future_values=rolled.predictions)
    torch.testing.assert_close(again.predictions, rolled.predictions)
    torch.testing.assert_close(model(**inputs).predictions, rolled.predictions)
    shorter = {**inputs, "future_context": inputs["future_context"][:, :2]}
    torch.testing.assert_close(model.predict(**shorter).predictions, rolled.predictions[:, :2])


@torch.no_grad()
@pytest.mark.parametrize("choices", CHOICES, ids=name_of)
def test_fused_layers_are_a_loop_over_cells(choices: dict[str, Any]) -> None:
    model, inputs = tiny(**choices), series()
    fused = model(**inputs).predictions
    model.decoder.stepwise = True
    torch.testing.assert_close(model(**inputs).predictions, fused)


# ---- padding and gaps ------------------------------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("choices", CHOICES, ids=name_of)
def test_padding_of_time_changes_nothing(choices: dict[str, Any], left: bool) -> None:
    model, inputs = tiny(**choices), series()
    lengths, futures = (6, 3, 1), (4, 2, 3)
    batch = {name: torch.full((3, 8, tensor.shape[-1]), math.nan).double() for name, tensor in inputs.items()}
    past_mask, future_mask = torch.zeros(3, 8), torch.zeros(3, 8)
    for row, (length, future) in enumerate(zip(lengths, futures, strict=True)):
        steps = slice(8 - length, None) if left else slice(length)
        past_mask[row, steps], future_mask[row, :future] = 1, 1
        for name in ("values", "context"):
            batch[f"past_{name}"][row, steps] = inputs[f"past_{name}"][row, :length]
            batch[f"future_{name}"][row, :future] = inputs[f"future_{name}"][row, :future]
    together = model(**batch, past_mask=past_mask, future_mask=future_mask)
    total = 0.0
    for row, (length, future) in enumerate(zip(lengths, futures, strict=True)):
        alone = {
            name: tensor[row : row + 1, : length if name.startswith("past") else future]
            for name, tensor in inputs.items()
        }
        output = model(**alone)
        torch.testing.assert_close(together.predictions[row, :future], output.predictions[0])
        total += float(output.loss) * future
        rolled = model.predict(
            **{name: tensor[row : row + 1] for name, tensor in batch.items() if name.startswith("past")},
            past_mask=past_mask[row : row + 1],
            future_context=alone["future_context"],
        )
        torch.testing.assert_close(rolled.predictions, model.predict(**without_future(alone)).predictions)
    assert float(together.loss) == pytest.approx(total / sum(futures), rel=1e-9)


@torch.no_grad()
def test_future_gaps_are_filled_by_predictions_and_past_gaps_skipped() -> None:
    model, inputs = tiny(), series()
    mask = torch.tensor([[1, 0, 0, 1]]).expand(3, -1)
    broken = {**inputs, "future_values": inputs["future_values"].masked_fill(mask.unsqueeze(-1) == 0, math.nan)}
    actual = model(**broken, future_mask=mask)
    bridged = inputs["future_values"].clone()
    for t in (1, 2):
        bridged[:, t] = model(**{**inputs, "future_values": bridged}).predictions[:, t]
    torch.testing.assert_close(actual.predictions, model(**{**inputs, "future_values": bridged}).predictions)
    assert actual.loss.isfinite()

    observed = torch.tensor([[1, 1, 0, 1, 0, 1]]).expand(3, -1)
    fewer = {**inputs, **{name: inputs[name][:, observed[0] == 1] for name in ("past_values", "past_context")}}
    torch.testing.assert_close(model(**inputs, past_mask=observed).predictions, model(**fewer).predictions)


@torch.no_grad()
def test_attention_is_over_the_real_past() -> None:
    model, inputs = tiny(attention="scaled_dot", num_attention_heads=2, context_to=["input"]), series()
    mask = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0], [0, 0, 1, 1, 1, 1]])
    for output in (
        model(**inputs, past_mask=mask, output_attentions=True),
        model.predict(**without_future(inputs), past_mask=mask, output_attentions=True),
    ):
        (weights,) = output.cross_attentions
        assert weights.shape == (3, 2, 4, 6)
        torch.testing.assert_close(weights.sum(-1), torch.ones(3, 2, 4).double())
        assert ((weights > 0) == (mask[:, None, None] > 0)).all()


# ---- normalization ---------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_normalization_comes_from_real_steps_and_is_saved(tmp_path: Path) -> None:
    register_models()
    model, inputs = tiny(), series()
    values, mask = torch.randn(4, 5, 2).double(), torch.tensor([[1] * 5, [1] * 3 + [0] * 2, [1] * 5, [0] * 5])
    values[..., 1] = 7.0  # never changes
    values[mask == 0] = math.nan
    model.fit_normalization(values, mask)
    real = values[mask == 1][:, 0]
    torch.testing.assert_close(model.normalization.mean, torch.stack([real.mean(), torch.tensor(7.0).double()]))
    torch.testing.assert_close(
        model.normalization.scale, torch.stack([real.std(correction=0), torch.tensor(1.0).double()])
    )

    model.save_pretrained(tmp_path)
    loaded = AutoModelForTimeSeriesPrediction.from_pretrained(tmp_path, dtype="auto")
    assert isinstance(loaded, RNNForecasterForPrediction)
    assert {**AutoConfig.from_pretrained(tmp_path).to_dict(), "_name_or_path": ""} == model.config.to_dict()
    assert all(torch.equal(loaded.state_dict()[name], tensor) for name, tensor in model.state_dict().items())
    assert torch.equal(
        loaded.predict(**without_future(inputs)).predictions, model.predict(**without_future(inputs)).predictions
    )
    new = RNNForecasterForPrediction.from_pretrained(None, config=model.config, state_dict={})
    assert new.normalization.scale.tolist() == [1.0, 1.0]
    assert new.normalization.mean.tolist() == [0.0, 0.0]


@torch.no_grad()
def test_units_do_not_matter() -> None:
    """The same data in other units, with the normalization of those units, gives the same predictions and loss."""
    for loss in ("squared", "gaussian"):
        model, inputs = tiny(loss=loss), series()
        before = model(**inputs)
        factor, shift = torch.tensor([1000.0, 0.1]).double(), torch.tensor([-5.0, 40.0]).double()
        other = {name: tensor * factor + shift if "values" in name else tensor for name, tensor in inputs.items()}
        model.normalization.mean.mul_(factor).add_(shift)
        model.normalization.scale.mul_(factor)
        after = model(**other)
        torch.testing.assert_close(after.loss, before.loss)
        torch.testing.assert_close(after.predictions, before.predictions * factor + shift)
        if loss == "gaussian":
            torch.testing.assert_close(after.scales, before.scales * factor)


# ---- training --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("choices", CHOICES, ids=name_of)
def test_every_parameter_has_a_gradient(choices: dict[str, Any]) -> None:
    assert_every_parameter_has_a_gradient(tiny(**choices), series())


def test_full_sampling_is_rolling_out_and_its_gradient_flows_back() -> None:
    model, inputs = tiny(scheduled_sampling=1.0), series()
    rolled = model.predict(**without_future(inputs)).predictions
    assert not torch.allclose(model(**inputs).predictions, rolled)  # evaluation is teacher forcing
    model.train()
    output = model(**inputs)
    torch.testing.assert_close(output.predictions, rolled)
    last = output.predictions[:, -1].sum()
    (gradient,) = torch.autograd.grad(last, [model.head.bias], retain_graph=True)
    assert (
        gradient.abs() > 3 * model.normalization.scale
    ).all()  # the gradient of its own step alone would be one scale per row


def test_sampling_noise_and_dropout_are_of_training_only() -> None:
    inputs, plain = series(), tiny()
    for choices in ({"scheduled_sampling": 0.5}, {"input_noise": 0.3}, {"dropout": 0.5}):
        model = tiny(**choices)
        with torch.no_grad():
            assert torch.equal(model(**inputs).loss, plain(**inputs).loss)
            model.train()
            losses = []
            for seed in (1, 1, 2):
                torch.manual_seed(seed)
                losses.append(float(model(**inputs).loss))
        assert losses[0] == losses[1] != losses[2]


@torch.no_grad()
def test_drawn_trajectories_follow_the_predicted_gaussian() -> None:
    model = tiny(loss="gaussian")
    repeated = {name: tensor[:1].expand(4000, -1, -1) for name, tensor in without_future(series()).items()}
    torch.manual_seed(0)
    drawn = model.predict(**repeated, sample=True)
    first, scale = model.predict(**repeated).predictions[0, 0], drawn.scales[0, 0]
    torch.testing.assert_close(drawn.predictions[:, 0].mean(0), first, atol=0.1 * float(scale.max()), rtol=0)
    torch.testing.assert_close(drawn.predictions[:, 0].std(0), scale, rtol=0.1, atol=0)
    assert (drawn.predictions[:, -1].std(0) > 0).all()
    again = model(**repeated, future_values=drawn.predictions)  # each step continues from the drawn values
    torch.testing.assert_close(again.scales, drawn.scales)
    torch.manual_seed(0)
    assert torch.equal(model.predict(**repeated, sample=True).predictions, drawn.predictions)
    with pytest.raises(ValueError, match="train with loss=gaussian"):
        tiny().predict(**repeated, sample=True)


def swings(number: int) -> dict[str, Tensor]:
    table = pendulum.generate({"train": number, "validation": 1, "test": 1}, steps=40)["train"]
    values, context = torch.tensor(table["values"].to_pylist()), torch.tensor(table["context"].to_pylist())
    return {
        "past_values": values[:, :30],
        "past_context": context[:, :30],
        "future_values": values[:, 30:],
        "future_context": context[:, 30:],
    }


@pytest.mark.parametrize("choices", [{"scheduled_sampling": 1.0}, {"loss": "gaussian"}], ids=["rollout", "gaussian"])
def test_model_overfits_a_few_series(choices: dict[str, Any]) -> None:
    batch = swings(8)
    torch.manual_seed(0)
    model = RNNForecasterForPrediction(RNNForecasterConfig(value_size=2, context_size=1, hidden_size=32, **choices))
    model.fit_normalization(batch["past_values"], context=batch["past_context"])
    loss = overfit(model, batch, 120)
    assert loss < (-1.0 if choices.get("loss") == "gaussian" else 0.01)
    rolled = model.predict(**without_future(batch)).predictions
    error = (rolled - batch["future_values"]).square().mean()
    persistence = (batch["past_values"][:, -1:] - batch["future_values"]).square().mean()
    assert error < persistence / 10


def test_the_trainer_trains_and_evaluates(tmp_path: Path) -> None:
    batch = swings(8)
    rows = [{name: tensor[i] for name, tensor in batch.items()} for i in range(8)]
    finished = []
    for size, accumulated in ((8, 1), (2, 4)):
        torch.manual_seed(0)
        model = RNNForecasterForPrediction(RNNForecasterConfig(value_size=2, context_size=1, hidden_size=16)).double()
        model.fit_normalization(batch["past_values"], context=batch["past_context"])
        arguments = TrainingArguments(
            output_dir=str(tmp_path),
            use_cpu=True,
            report_to="none",
            disable_tqdm=True,
            save_strategy="no",
            label_names=["future_values"],
            per_device_train_batch_size=size,
            gradient_accumulation_steps=accumulated,
            learning_rate=0.01,
            num_train_epochs=20,
        )
        trainer = Trainer(model=model, args=arguments, train_dataset=rows, eval_dataset=rows)
        before = trainer.evaluate()["eval_loss"]
        trainer.train()
        assert trainer.evaluate()["eval_loss"] < before / 2
        finished.append(model.state_dict())
    for name, tensor in finished[0].items():  # all series are equally long, so a mean of means is the mean
        torch.testing.assert_close(finished[1][name], tensor, rtol=0, atol=1e-6)


# ---- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"past_context": None}, "past_context: this model expects 1 numbers at each step, got none"),
        ({"future_context": None}, "future_context: this model expects 1"),
        ({"past_context": torch.zeros(3, 6, 2)}, "got 2"),
        ({"horizon": 9}, r"differ in their steps: \[4, 9\]"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tiny()(**{**series(), **change})


def test_horizon_defaults_to_that_of_the_model() -> None:
    model = RNNForecasterForPrediction(RNNForecasterConfig(value_size=2, hidden_size=4, horizon=5))
    assert not model.can_generate()
    past = torch.randn(2, 3, 2)
    assert model.predict(past).predictions.shape == (2, 5, 2)
    assert model.predict(past, horizon=7).predictions.shape == (2, 7, 2)
    with pytest.raises(ValueError, match="this model expects no numbers"):
        model.predict(past, past_context=torch.zeros(2, 3, 1))


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"value_size": 0}, "value_size must be at least 1"),
        ({"context_size": -1}, "context_size must be at least 0, not -1"),
        ({"horizon": 0}, "horizon must be at least 1"),
        ({"min_scale": 0}, "min_scale must be at least 1e-30, not 0"),
        ({"feedback": "sample"}, "set loss=gaussian"),
        ({"feedback": "sample", "loss": "gaussian"}, "no effect without scheduled_sampling"),
        ({"attention": "dot", "context_to": ["input"], "encoder_hidden_size": 5}, "change encoder_hidden_size"),
        ({"attention": "additive"}, "context_to is empty"),
    ],
)
def test_invalid_configurations_are_rejected(choices: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RNNForecasterConfig(**{"hidden_size": 8, **choices})
