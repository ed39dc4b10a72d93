"""The recurrent forecaster as a `PreTrainedModel`.

past values, context ─► Normalization ─► encoder layers ─► states, keys and values, final state
                                                              │                        │ StateHandover
last value, context ─► Decoder: cells + Attention ◄───────────┴────────────────────────┘
        ▲                                └─► Readout ─► head ─► mean (and scale) of the next value
        └──────── true value, or the model's own ◄──────────────────┘
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import initialization as init
from transformers.modeling_outputs import ModelOutput
from transformers.utils.generic import can_return_tuple

from .configuration_rnn_forecaster import RNNForecasterConfig
from .forecast_layers import ForecastDecoder, ForecastEncoder, Normalization
from .recurrent import add_noise, last_real_step
from .rnn_decoder import RNNEncoderOutput, RNNPreTrainedModel


@dataclass
class RNNForecastOutput(ModelOutput):
    """What is predicted, in the units of the data."""

    loss: Tensor | None = None
    predictions: Tensor | None = None  # (batch, horizon, value_size)
    scales: Tensor | None = None  # the same: standard deviations, with the loss `gaussian`
    cross_attentions: tuple[Tensor, ...] | None = None  # one of (batch, heads, horizon, time)


class RNNForecasterPreTrainedModel(RNNPreTrainedModel):
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


class RNNForecasterForPrediction(RNNForecasterPreTrainedModel):
    """Fit its normalisation, train it with `future_values`, and let it `predict`."""

    # the Trainer counts labels; what counts here are the values that a mask leaves
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
        """Take means and spreads from data: values (batch, time, value_size), mask (batch, time) 1 at real steps, and
        context (batch, time, context_size)."""
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
        num_items_in_batch: Tensor | int | None = None,
        output_attentions: bool | None = None,
        **kwargs: Any,
    ) -> RNNForecastOutput:
        """Predict each value of the future from the true one before it, and give the loss; without `future_values`,
        predict each from the prediction before it, `horizon` steps far.

        past_values (batch, time, value_size), past_context (batch, time, context_size) and past_mask (batch, time), 1
        at real steps: the others are as if they were not there. future_… are the same over the horizon; where
        future_mask is 0, the loss does not count, and the next step reads the model's own prediction. The context of a
        step is known when its value is predicted, also in a gap.

        The loss is the mean over all numbers that count; `num_items_in_batch`, if given, is what their sum is divided
        by instead.
        """
        encoded, last = self._read(past_values, past_mask, past_context)
        steps = self._steps(future_values, future_context, horizon)
        there = _mask(future_mask, len(last), steps, last.device)
        if future_values is None:
            future = last.new_zeros(len(last), steps, last.shape[-1])
            own = torch.ones_like(there)
        else:
            future = self._normalized(future_values, there)
            own = self._own(there)
        # in a gap between values the context is known; behind the last one is padding
        context = self._context(future_context, _up_to_last(there), "future_context")
        samples = self.training and self.config.feedback == "sample"
        rollout = self._roll(encoded, last, future, context, own, samples, output_attentions)
        loss = None
        if future_values is not None:
            losses = self._losses(rollout.means, rollout.scales, future)[there]  # (steps that count, value_size)
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

        With `sample`, each step goes on from a number drawn around the mean, and `predictions` are these numbers: one
        way that things may go. The arguments are those of `forward`.
        """
        if sample and self.config.loss != "gaussian":
            raise ValueError("sample needs a distribution to draw from: train with loss=gaussian")
        encoded, last = self._read(past_values, past_mask, past_context)
        steps = self._steps(None, future_context, horizon)
        there = _mask(None, len(last), steps, last.device)
        context = self._context(future_context, there, "future_context")
        future = last.new_zeros(len(last), steps, last.shape[-1])
        rollout = self._roll(encoded, last, future, context, torch.ones_like(there), sample, output_attentions)
        predictions = rollout.means
        if sample:  # what each next step has read, and one more
            newest = torch.normal(rollout.means[:, -1:], rollout.scales[:, -1:])
            predictions = torch.cat([rollout.seen[:, 1:], newest], dim=1)
        return self._output(predictions, rollout, None)

    def distribution(self, readout: Tensor, seen: Tensor) -> tuple[Tensor, Tensor | None]:
        """Mean and scale of the next value, (…, value_size) each, from the decoder's readout and the value seen last;
        all in normalised units."""
        means, *rest = self.head(readout).split(self.config.value_size, dim=-1)
        if self.config.predict_change:
            means = means + seen
        return means, nn.functional.softplus(rest[0]) + self.config.least_scale if rest else None

    def _read(
        self, past_values: Tensor, past_mask: Tensor | None, past_context: Tensor | None
    ) -> tuple[RNNEncoderOutput, Tensor]:
        """What the decoder needs of the past, and the last real value (batch, value_size)."""
        mask = _mask(past_mask, past_values.shape[0], past_values.shape[1], past_values.device)
        values = self._normalized(past_values, mask)  # (batch, time, value_size)
        context = self._context(past_context, mask, "past_context")
        encoded = self.encoder(torch.cat([self._noisy(values), context], dim=-1), mask)
        return encoded, last_real_step(values, mask)  # of an empty past zero

    def _roll(
        self,
        encoded: RNNEncoderOutput,
        last: Tensor,
        future: Tensor,
        context: Tensor,
        own: Tensor,
        samples: bool,
        output_attentions: bool | None,
    ) -> "_Rollout":
        """Predict all steps. Where own (batch, steps) is true, a step reads the prediction of the step before it."""
        own = own.clone()
        own[:, 0] = False  # the first reads the last value of the past
        seen = self._noisy(torch.cat([last.unsqueeze(1), future[:, :-1]], dim=1))  # (batch, steps, value_size)
        feedback = _Feedback(self, seen[:, 0], own, samples) if bool(own.any()) else None
        decoded = self.decoder(
            inputs_embeds=torch.cat([seen, context], dim=-1),
            encoder_outputs=encoded,
            feedback=feedback,
            use_cache=False,
            output_attentions=output_attentions,
        )
        if feedback is not None:
            seen = torch.stack(feedback.seen, dim=1)
        means, scales = self.distribution(decoded.last_hidden_state, seen)
        return _Rollout(means, scales, seen, decoded.cross_attentions)

    def _losses(self, means: Tensor, scales: Tensor | None, true: Tensor) -> Tensor:
        """The loss of each number, in normalised units."""
        wide = torch.promote_types(means.dtype, torch.float32)  # half precision is summed in float32
        errors = true.to(wide) - means.to(wide)
        if scales is None:
            return errors.square()
        scales = scales.to(wide)
        return (errors / scales).square() / 2 + scales.log() + math.log(2 * math.pi) / 2

    def _output(self, predictions: Tensor, rollout: "_Rollout", loss: Tensor | None) -> RNNForecastOutput:
        return RNNForecastOutput(
            loss=loss,
            predictions=self.normalization.back(predictions),
            scales=None if rollout.scales is None else rollout.scales * self.normalization.scale,
            cross_attentions=rollout.attentions,
        )

    def _steps(self, future_values: Tensor | None, future_context: Tensor | None, horizon: int | None) -> int:
        lengths = {x.shape[1] for x in (future_values, future_context) if x is not None}
        lengths |= {horizon} - {None}
        if len(lengths) > 1:
            raise ValueError(f"horizon, future_values and future_context disagree about the steps: {sorted(lengths)}")
        return lengths.pop() if lengths else self.config.horizon

    def _normalized(self, values: Tensor, mask: Tensor) -> Tensor:
        """Values in normalised units, and zero where there are none: whatever stood there, it spreads no further."""
        values = self.normalization(values.to(self.head.weight.dtype))
        return values.masked_fill(~mask.unsqueeze(-1), 0.0)

    def _context(self, context: Tensor | None, mask: Tensor, name: str) -> Tensor:
        """(batch, steps, context_size) in normalised units."""
        size = self.config.context_size
        if (context is None) != (size == 0) or (context is not None and context.shape[-1] != size):
            given = "none" if context is None else f"{context.shape[-1]}"
            raise ValueError(f"{name}: this model takes {size or 'no'} numbers at each step, and was given {given}")
        if context is None:
            return self.head.weight.new_zeros(*mask.shape, 0)
        return self.context_normalization(context.to(self.head.weight.dtype)).masked_fill(~mask.unsqueeze(-1), 0.0)

    def _own(self, there: Tensor) -> Tensor:
        """Which steps (batch, steps) read the model's own prediction in training: by chance, and where the true value
        of the step before is missing."""
        missing = torch.zeros_like(there)
        missing[:, 1:] = ~there[:, :-1]
        own = missing & _up_to_last(there)
        if self.training and self.config.scheduled_sampling > 0:
            own |= torch.rand(own.shape, device=own.device) < self.config.scheduled_sampling
        return own

    def _noisy(self, values: Tensor) -> Tensor:
        return add_noise(values, self.config.input_noise, self.training)


@dataclass
class _Rollout:
    """All predicted steps, in normalised units."""

    means: Tensor  # (batch, steps, value_size)
    scales: Tensor | None  # (batch, steps, value_size)
    seen: Tensor  # (batch, steps, value_size): the value that each step has read
    attentions: tuple[Tensor, ...] | None


class _Feedback:
    """Makes each next input of the decoder: from its own prediction where that is asked for, else the true one."""

    def __init__(self, model: RNNForecasterForPrediction, first: Tensor, own: Tensor, samples: bool):
        self.model, self.own, self.samples = model, own, samples
        self.seen = [first]  # the values (batch, value_size) that each step has read

    def __call__(self, readout: Tensor, true_input: Tensor) -> Tensor:
        size = self.seen[0].shape[-1]
        means, scales = self.model.distribution(readout, self.seen[-1])
        if self.samples and scales is not None:
            means = means + scales * torch.randn_like(scales)
        chosen = self.own[:, len(self.seen), None]
        value = torch.where(chosen, self.model._noisy(means), true_input[:, :size])
        self.seen.append(value)
        return torch.cat([value, true_input[:, size:]], dim=-1)


def _mask(mask: Tensor | None, batch: int, steps: int, device: torch.device) -> Tensor:
    """(batch, steps), true at real steps: all of them where nothing else is said."""
    return torch.ones(batch, steps, dtype=torch.bool, device=device) if mask is None else mask.bool()


def _up_to_last(mask: Tensor) -> Tensor:
    """True up to the last step of each row (batch, steps) where the mask is."""
    return mask.flip(1).cumsum(1).flip(1) > 0


RNNForecasterConfig.register_for_auto_class()
RNNForecasterForPrediction.register_for_auto_class("AutoModelForTimeSeriesPrediction")

__all__ = ["RNNForecastOutput", "RNNForecasterForPrediction", "RNNForecasterPreTrainedModel"]
