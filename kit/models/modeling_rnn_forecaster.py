"""The recurrent forecaster: an encoder of the past, and the decoder of `rnn_seq2seq` for the steps to come.

    past values, context ─► Normalization ─► ForecastEncoder ─► states, keys and values, final state
                                                                   │                        │ StateBridge
    last value, context ─► ForecastDecoder: cells + Attention ◄────┴────────────────────────┘
            ▲                  └─► Readout ─► head ─► mean (and scale) of the next value
            └──── true value, or the model's own ◄────────┘

Shapes in comments: batch, time (steps of the past), horizon (steps of the future), value_size (numbers per step that
are predicted), context_size (numbers per step that are known), heads, and encoder_size (width of the encoder's output).
All inner computation is in normalized units.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import initialization as init
from transformers.modeling_outputs import ModelOutput
from transformers.utils.generic import can_return_tuple

from .configuration_rnn_forecaster import RNNForecasterConfig
from .recurrent import Dropout, RecurrentCache, add_noise, float_dtype, last_real_step, recurrent_stack, run_stack
from .rnn_decoder import RNNDecoder, RNNEncoder, RNNEncoderOutput, RNNPreTrainedModel, attention_memory


@dataclass
class RNNForecastOutput(ModelOutput):
    """Predictions in the units of the data."""

    loss: Tensor | None = None
    predictions: Tensor | None = None  # (batch, horizon, value_size)
    scales: Tensor | None = None  # (batch, horizon, value_size): standard deviations, with the loss `gaussian`
    cross_attentions: tuple[Tensor, ...] | None = None  # one of (batch, heads, horizon, time)


class Normalization(nn.Module):
    """Centers and scales numbers by the mean and standard deviation of the training data, which the model saves."""

    mean: Tensor
    scale: Tensor

    def __init__(self, size: int):
        super().__init__()
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("scale", torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:  # (…, size)
        return (x - self.mean) / self.scale

    def inverse(self, x: Tensor) -> Tensor:
        """Back to the units of the data."""
        return x * self.scale + self.mean

    @torch.no_grad()
    def fit(self, x: Tensor) -> None:
        """Set mean and scale to those of x (number, size). A column of equal numbers is centered, but not scaled."""
        x = x.double()
        std = x.std(0, correction=0)
        self.mean.copy_(x.mean(0))
        self.scale.copy_(torch.where(std > 0, std, 1))


class RNNForecasterPreTrainedModel(RNNPreTrainedModel):
    """Base class of the models with a `RNNForecasterConfig`."""

    config: RNNForecasterConfig
    config_class = RNNForecasterConfig
    main_input_name = "past_values"
    input_modalities = ("time",)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, Normalization):
            init.zeros_(module.mean)
            init.ones_(module.scale)
        else:
            super()._init_weights(module)


class ForecastEncoder(RNNEncoder):
    """Reads the past. Padding, on either side, changes nothing."""

    def __init__(self, config: RNNForecasterConfig):
        super().__init__()
        self.layers = recurrent_stack(
            config.cell,
            config.decoder_input_size,
            config.encoder_hidden_size,
            config.encoder_layers,
            config.bidirectional,
        )
        self.memory = attention_memory(config)
        self.dropout = Dropout(config.dropout)

    def forward(self, x: Tensor, mask: Tensor) -> RNNEncoderOutput:
        """Encode x (batch, time, value_size + context_size) where mask (batch, time) is true."""
        stack = run_stack(self.layers, self.dropout, x, mask)
        return self.encoded(stack.states[-1], stack.hidden, stack.cell, mask, output_hidden_states=False)


class ForecastDecoder(RNNDecoder):
    """The decoder of numbers. Its inputs come with their noise, and dropout on a number would change its meaning."""

    def regularize(self, embeds: Tensor) -> Tensor:
        return embeds


class RNNForecasterForPrediction(RNNForecasterPreTrainedModel):
    """The forecaster with its output layer: call `fit_normalization` on the training data, train with `future_values`,
    forecast with `predict()`."""

    # the Trainer would count labels, but the loss is a mean over the values that a mask keeps
    accepts_loss_kwargs = False

    def __init__(self, config: RNNForecasterConfig):
        super().__init__(config)
        self.normalization = Normalization(config.value_size)
        self.context_normalization = Normalization(config.context_size)
        self.encoder = ForecastEncoder(config)
        self.decoder = ForecastDecoder(config)
        outputs = config.value_size * (2 if config.loss == "gaussian" else 1)
        self.head = nn.Linear(self.decoder.readout.size, outputs)
        self.post_init()

    def fit_normalization(self, values: Tensor, mask: Tensor | None = None, context: Tensor | None = None) -> None:
        """Set the normalization to the means and standard deviations of training data.

        Args:
            values: (batch, time, value_size).
            mask: 1 at real steps, (batch, time).
            context: Covariates, (batch, time, context_size).
        """
        real = torch.ones(values.shape[:2], dtype=torch.bool) if mask is None else mask.bool()
        self.normalization.fit(values[real])
        if context is not None:
            self.context_normalization.fit(context[real])

    @can_return_tuple
    def forward(
        self,
        past_values: Tensor,
        past_mask: Tensor | None = None,
        past_context: Tensor | None = None,
        future_values: Tensor | None = None,
        future_mask: Tensor | None = None,
        future_context: Tensor | None = None,
        horizon: int | None = None,
        num_items_in_batch: Tensor | float | None = None,
        sampling_probability: float | None = None,
        output_attentions: bool | None = None,
    ) -> RNNForecastOutput:
        """Predict each value of the future from the true one before it, and compute the loss; without `future_values`,
        predict each step from the prediction before it.

        Args:
            past_values: Values of the past, (batch, time, value_size).
            past_mask: 1 at real steps, (batch, time); the others, on either side or between, have no effect.
            past_context: Covariates of the past, (batch, time, context_size).
            future_values: True values of the future, (batch, horizon, value_size).
            future_mask: 1 at real steps, (batch, horizon). Elsewhere the loss does not count, and the next step reads
                the model's own prediction.
            future_context: Covariates of the future, (batch, horizon, context_size); that of a step is known when its
                value is predicted, also where the value is missing.
            horizon: Number of steps; by default that of the other arguments, or else `config.horizon`.
            num_items_in_batch: Divisor of the summed loss; by default the count of numbers that enter it.
            sampling_probability: Replaces `config.scheduled_sampling` while training.

        Returns:
            `RNNForecastOutput` in the units of the data, with the loss of normalized values.
        """
        encoded, last = self._encode(past_values, past_mask, past_context)
        steps = self._horizon(future_values, future_context, horizon)
        mask = _real_steps(future_mask, last.shape[0], steps, last.device)
        if future_values is None:
            future = last.new_zeros(last.shape[0], steps, last.shape[-1])
            reads_prediction = torch.ones_like(mask)
        else:
            future = self._normalize(future_values, mask)
            reads_prediction = self._choose_predictions(mask, sampling_probability)
        # in a gap between values the context is known; after the last value comes padding
        context = self._normalize_context(future_context, _up_to_last(mask), "future_context")
        samples = self.training and self.config.feedback == "sample"
        rollout = self._roll_out(encoded, last, future, context, reads_prediction, samples, output_attentions)
        loss = None
        if future_values is not None:
            losses = self._losses(rollout.means, rollout.scales, future)[mask]  # (steps that count, value_size)
            loss = losses.sum() / (losses.numel() if num_items_in_batch is None else num_items_in_batch)
        return self._output(rollout.means, rollout, loss)

    @torch.no_grad()
    def predict(
        self,
        past_values: Tensor,
        past_mask: Tensor | None = None,
        past_context: Tensor | None = None,
        future_context: Tensor | None = None,
        horizon: int | None = None,
        sample: bool = False,
        output_attentions: bool | None = None,
    ) -> RNNForecastOutput:
        """Roll out `horizon` steps, each from the mean that was predicted before it.

        With `sample`, each step reads a number drawn around the mean, and `predictions` are these numbers: one possible
        future. The arguments are those of `forward`.
        """
        if sample and self.config.loss != "gaussian":
            raise ValueError("sample needs a distribution to draw from: train with loss=gaussian")
        encoded, last = self._encode(past_values, past_mask, past_context)
        steps = self._horizon(None, future_context, horizon)
        every_step = _real_steps(None, last.shape[0], steps, last.device)
        context = self._normalize_context(future_context, every_step, "future_context")
        future = last.new_zeros(last.shape[0], steps, last.shape[-1])
        rollout = self._roll_out(encoded, last, future, context, every_step, sample, output_attentions)
        predictions = rollout.means
        if sample:  # the numbers that each next step has read, and one more
            final = torch.normal(rollout.means[:, -1:], rollout.scales[:, -1:])
            predictions = torch.cat([rollout.inputs[:, 1:], final], dim=1)
        return self._output(predictions, rollout, None)

    def distribution(self, readout: Tensor, previous: Tensor) -> tuple[Tensor, Tensor | None]:
        """Mean and standard deviation of the next value, (…, value_size) each, from the readout of a step and the value
        that the step has read; all in normalized units. With the loss `squared`, the second is None."""
        means, *rest = self.head(readout).split(self.config.value_size, dim=-1)
        if self.config.predict_change:
            means = means + previous
        return means, nn.functional.softplus(rest[0]) + self.config.min_scale if rest else None

    def add_noise(self, values: Tensor) -> Tensor:
        """Values with `config.input_noise` while training."""
        return add_noise(values, self.config.input_noise, self.training)

    def _encode(
        self, past_values: Tensor, past_mask: Tensor | None, past_context: Tensor | None
    ) -> tuple[RNNEncoderOutput, Tensor]:
        """The encoded past, and its last real value (batch, value_size); zero for an empty past."""
        mask = _real_steps(past_mask, past_values.shape[0], past_values.shape[1], past_values.device)
        values = self._normalize(past_values, mask)  # (batch, time, value_size)
        context = self._normalize_context(past_context, mask, "past_context")
        encoded = self.encoder(torch.cat([self.add_noise(values), context], dim=-1), mask)
        return encoded, last_real_step(values, mask)

    def _roll_out(
        self,
        encoded: RNNEncoderOutput,
        last: Tensor,
        future: Tensor,
        context: Tensor,
        reads_prediction: Tensor,
        samples: bool,
        output_attentions: bool | None,
    ) -> "_Rollout":
        """Predict all steps, in normalized units.

        Where reads_prediction (batch, horizon) is true, a step reads the prediction before it, with `samples` a number
        drawn around it; elsewhere the true value before it, from future (batch, horizon, value_size).
        """
        reads_prediction = reads_prediction.clone()
        reads_prediction[:, 0] = False  # the first step reads the last value of the past
        inputs = self.add_noise(torch.cat([last.unsqueeze(1), future[:, :-1]], dim=1))  # (batch, horizon, value_size)
        feedback = None
        if bool(reads_prediction.any()):
            feedback = _ForecastFeedback(self, inputs[:, 0], reads_prediction, samples)
        decoded = self.decoder(
            inputs_embeds=torch.cat([inputs, context], dim=-1),
            encoder_outputs=encoded,
            feedback=feedback,
            use_cache=False,
            output_attentions=output_attentions,
        )
        if feedback is not None:
            inputs = torch.stack(feedback.inputs, dim=1)
        means, scales = self.distribution(decoded.last_hidden_state, inputs)
        return _Rollout(means, scales, inputs, decoded.cross_attentions)

    def _losses(self, means: Tensor, scales: Tensor | None, targets: Tensor) -> Tensor:
        """The loss of each number, in normalized units: squared error, or negative log-likelihood."""
        wide = torch.promote_types(means.dtype, torch.float32)  # half precision is summed in float32
        errors = targets.to(wide) - means.to(wide)
        if scales is None:
            return errors.square()
        scales = scales.to(wide)
        return (errors / scales).square() / 2 + scales.log() + math.log(2 * math.pi) / 2

    def _output(self, predictions: Tensor, rollout: "_Rollout", loss: Tensor | None) -> RNNForecastOutput:
        """The output in the units of the data."""
        return RNNForecastOutput(
            loss=loss,
            predictions=self.normalization.inverse(predictions),
            scales=None if rollout.scales is None else rollout.scales * self.normalization.scale,
            cross_attentions=rollout.attentions,
        )

    def _horizon(self, future_values: Tensor | None, future_context: Tensor | None, horizon: int | None) -> int:
        """The number of steps to predict: that of the arguments, which must agree, or else `config.horizon`."""
        lengths = {x.shape[1] for x in (future_values, future_context) if x is not None}
        lengths |= {horizon} - {None}
        if len(lengths) > 1:
            raise ValueError(f"horizon, future_values and future_context differ in their steps: {sorted(lengths)}")
        return lengths.pop() if lengths else self.config.horizon

    def _normalize(self, values: Tensor, mask: Tensor) -> Tensor:
        """Values in normalized units. Masked ones become zero, so that not even NaN spreads from them."""
        values = self.normalization(values.to(float_dtype(self)))
        return values.masked_fill(~mask.unsqueeze(-1), 0.0)

    def _normalize_context(self, context: Tensor | None, mask: Tensor, name: str) -> Tensor:
        """The context (batch, steps, context_size) in normalized units, zero where masked; of width 0 if the model has
        none. Raises ValueError, with `name`, for a context of another width."""
        size = self.config.context_size
        if (context is None) != (size == 0) or (context is not None and context.shape[-1] != size):
            got = "none" if context is None else f"{context.shape[-1]}"
            raise ValueError(f"{name}: this model expects {size or 'no'} numbers at each step, got {got}")
        if context is None:
            return torch.zeros(*mask.shape, 0, dtype=float_dtype(self), device=mask.device)
        return self.context_normalization(context.to(float_dtype(self))).masked_fill(~mask.unsqueeze(-1), 0.0)

    def _choose_predictions(self, mask: Tensor, sampling_probability: float | None) -> Tensor:
        """The steps (batch, horizon) that read the model's own prediction: where the true value before them is missing,
        and in training by chance (scheduled sampling)."""
        missing = torch.zeros_like(mask)
        missing[:, 1:] = ~mask[:, :-1]
        reads_prediction = missing & _up_to_last(mask)
        if sampling_probability is None:
            sampling_probability = self.config.scheduled_sampling
        if self.training and sampling_probability > 0:
            reads_prediction |= torch.rand(mask.shape, device=mask.device) < sampling_probability
        return reads_prediction


@dataclass
class _Rollout:
    """All predicted steps, in normalized units."""

    means: Tensor  # (batch, horizon, value_size)
    scales: Tensor | None  # (batch, horizon, value_size)
    inputs: Tensor  # (batch, horizon, value_size): the value that each step has read
    attentions: tuple[Tensor, ...] | None


class ForecastStep(nn.Module):
    """One step of a forecast as a function of tensors, for `torch.export`; all numbers are in the units of the data."""

    def __init__(self, model: RNNForecasterForPrediction):
        super().__init__()
        self.model = model

    def forward(
        self, value: Tensor, context: Tensor | None, state: dict[str, Tensor], encoder_outputs: RNNEncoderOutput
    ) -> tuple[Tensor, Tensor | None, dict[str, Tensor]]:
        """Mean and scale (batch, value_size) of the value after this one, and the new state; before the first step, the
        state is empty. `context` (batch, context_size) is that of the step to predict."""
        cache, model = RecurrentCache(), self.model
        cache.store(state, 0)
        previous = model.normalization(value)
        inputs = [previous] if context is None else [previous, model.context_normalization(context)]
        decoded = model.decoder(
            inputs_embeds=torch.cat(inputs, dim=-1).unsqueeze(1),
            encoder_outputs=encoder_outputs,
            past_key_values=cache,
            use_cache=True,
        )
        mean, scale = model.distribution(decoded.last_hidden_state[:, 0], previous)
        scale = None if scale is None else scale * model.normalization.scale
        return model.normalization.inverse(mean), scale, decoded.past_key_values.state


class _ForecastFeedback:
    """A `Feedback` of the decoder: the next input is the model's prediction where `reads_prediction`, or else the true
    value."""

    def __init__(self, model: RNNForecasterForPrediction, first: Tensor, reads_prediction: Tensor, samples: bool):
        self.model, self.reads_prediction, self.samples = model, reads_prediction, samples
        self.inputs = [first]  # the values (batch, value_size) that each step has read

    def __call__(self, readout: Tensor, true_input: Tensor) -> Tensor:
        size = self.inputs[0].shape[-1]
        means, scales = self.model.distribution(readout, self.inputs[-1])
        if self.samples and scales is not None:
            means = means + scales * torch.randn_like(scales)
        reads_prediction = self.reads_prediction[:, len(self.inputs), None]
        value = torch.where(reads_prediction, self.model.add_noise(means), true_input[:, :size])
        self.inputs.append(value)
        return torch.cat([value, true_input[:, size:]], dim=-1)  # the context is known


def _real_steps(mask: Tensor | None, batch: int, steps: int, device: torch.device) -> Tensor:
    """The mask (batch, steps) as booleans; without one, every step is real."""
    return torch.ones(batch, steps, dtype=torch.bool, device=device) if mask is None else mask.bool()


def _up_to_last(mask: Tensor) -> Tensor:
    """True up to the last real step of each row of mask (batch, steps)."""
    return mask.flip(1).cumsum(1).flip(1) > 0


RNNForecasterConfig.register_for_auto_class()
RNNForecasterForPrediction.register_for_auto_class("AutoModelForTimeSeriesPrediction")

__all__ = ["RNNForecastOutput", "RNNForecasterForPrediction", "RNNForecasterPreTrainedModel"]
