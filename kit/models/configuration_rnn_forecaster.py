"""Configuration of `rnn_forecaster`: a recurrent encoder-decoder of time series."""

from collections.abc import Iterator
from dataclasses import field
from typing import Any, Literal

from huggingface_hub.dataclasses import strict

from .configuration_rnn_seq2seq import RNNDecoderConfig


@strict
class RNNForecasterConfig(RNNDecoderConfig):
    """An encoder of the past, and the decoder of `rnn_seq2seq` for the steps to come."""

    model_type = "rnn_forecaster"
    attribute_map = {"num_hidden_layers": "encoder_layers"}  # noqa: RUF012

    value_size: int = 1
    """Number of values that are measured, and predicted, at each step."""

    context_size: int = 0
    """Number of covariates: known at each step, of the past and of the future, such as a control or a calendar."""

    horizon: int = 24
    """Number of steps to predict, unless a call or the covariates of the future say otherwise."""

    hidden_size: int = 64
    """Width of the decoder's state."""

    encoder_hidden_size: int | None = None
    """Width of the encoder's state in one direction; by default such that the encoder's output, both directions
    concatenated, is `hidden_size` wide."""

    encoder_layers: int = 1
    """Number of recurrent layers of the encoder."""

    bidirectional: bool = False
    """Read the past in both directions."""

    attention: str = "none"
    """What the decoder sees of the past: `none` (its initial state only), `fixed` (the encoder's final state at each
    step), or attention with the score `dot`, `general` (bilinear), `keyed` (product of two sigmoid layers), `additive`
    (Bahdanau), `scaled_dot` (projected, as in the Transformer) or `rbf` (distance)."""

    context_to: list[str] = field(default_factory=list)
    """Where the context of attention goes, one or several of: `input` (of the cell; with a `current` query, of the next
    step), `state` (tanh(W [state; context]) replaces the state), `readout` (concatenated to the state), `next_layer`
    (the input of the layers above the first)."""

    predict_change: bool = True
    """Predict the change from the last value rather than the value itself."""

    loss: Literal["squared", "gaussian"] = "squared"
    """What training minimizes: the `squared` error, or the negative log-likelihood of a `gaussian` whose standard
    deviation is predicted too. Both are of normalized values."""

    min_scale: float | int = 1e-3
    """Smallest standard deviation that can be predicted, in normalized units; only for the loss `gaussian`."""

    dropout: float | int = 0.0
    """Dropout between layers and before the output layer."""

    input_noise: float | int = 0.0
    """Standard deviation of Gaussian noise added to the values that are read while training, in normalized units."""

    scheduled_sampling: float | int = 0.0
    """Probability of reading the model's own last prediction instead of the true value while training: 0 is teacher
    forcing, 1 pure autoregression. Gradients flow through what is fed back."""

    feedback: Literal["mean", "sample"] = "mean"
    """What training feeds back: the predicted mean, or with the loss `gaussian` a number sampled from it."""

    def __post_init__(self, **kwargs: Any) -> None:
        if self.encoder_hidden_size is None:
            self.encoder_hidden_size = self.hidden_size // 2 if self.bidirectional else self.hidden_size
        super().__post_init__(**kwargs)

    @property
    def encoder_size(self) -> int:
        return self.encoder_hidden_size * (2 if self.bidirectional else 1)

    @property
    def decoder_input_size(self) -> int:
        return self.value_size + self.context_size

    def conflicts(self) -> Iterator[str]:
        yield from super().conflicts()
        if self.feedback == "sample" and self.loss != "gaussian":
            yield "feedback=sample needs a distribution to sample from: set loss=gaussian"
        if self.feedback != "mean" and self.scheduled_sampling == 0:
            yield f"feedback={self.feedback} has no effect without scheduled_sampling"


__all__ = ["RNNForecasterConfig"]
