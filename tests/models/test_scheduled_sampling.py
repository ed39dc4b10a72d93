"""Scheduled sampling, noise and dropout of the recurrent encoder-decoder in training."""

import pytest
import torch
from support.rnn_models import subject_of, tiny
from torch import Tensor

from kit.models import RNNSeq2SeqForConditionalGeneration
from kit.training.objective import SamplingSchedule, Seq2SeqObjective
from kit.verify.subject import logits_of


@torch.no_grad()
def training_logits(
    model: RNNSeq2SeqForConditionalGeneration, inputs: dict[str, Tensor], seed: int = 0, **arguments: float
) -> Tensor:
    model.train()
    torch.manual_seed(seed)
    logits = model(**inputs, **arguments, use_cache=False).logits
    model.eval()
    return logits


def test_without_sampling_training_is_teacher_forcing() -> None:
    model = tiny(scheduled_sampling=0.0)
    inputs = subject_of(model).inputs()
    assert torch.equal(training_logits(model, inputs), logits_of(model, inputs))


@pytest.mark.parametrize("attention_query", ["previous", "current"])
def test_full_sampling_feeds_back_the_models_own_tokens(attention_query: str) -> None:
    model = tiny(scheduled_sampling=1.0, attention_query=attention_query, decoder_layers=2)
    inputs = subject_of(model).inputs()
    target = inputs["decoder_input_ids"]
    written = target[:, :1]
    for _ in range(target.shape[1] - 1):
        best = logits_of(model, {**inputs, "decoder_input_ids": written})[:, -1].argmax(-1, keepdim=True)
        written = torch.cat([written, best], dim=1)
    assert not torch.equal(written, target)
    by_hand = logits_of(model, {**inputs, "decoder_input_ids": written})
    torch.testing.assert_close(training_logits(model, inputs), by_hand)


def test_sampled_feedback_follows_the_distribution() -> None:
    choices = {"scheduled_sampling": 1.0, "decoder_layers": 2}
    best, drawn = tiny(**choices), tiny(**choices, feedback="sample")
    inputs = subject_of(best).inputs()
    assert not torch.equal(training_logits(drawn, inputs, seed=1), training_logits(drawn, inputs, seed=2))
    for model in (best, drawn):  # with all of the probability on one token, sampling is the argmax
        model.lm_head.weight.data *= 1e4
    torch.testing.assert_close(training_logits(drawn, inputs), training_logits(best, inputs))


def test_scheduled_sampling_replaces_some_tokens() -> None:
    model = tiny(scheduled_sampling=0.5)
    inputs = subject_of(model).inputs()
    half = training_logits(model, inputs)
    assert torch.equal(half, training_logits(model, inputs))
    assert not torch.allclose(half, training_logits(model, inputs, sampling_probability=1.0))
    assert not torch.allclose(half, logits_of(model, inputs))


def test_an_argument_replaces_the_configured_probability() -> None:
    model, full = tiny(scheduled_sampling=0.5), tiny(scheduled_sampling=1.0)
    inputs = subject_of(model).inputs()
    assert torch.equal(training_logits(model, inputs, sampling_probability=1.0), training_logits(full, inputs))
    teacher_forced = logits_of(model, inputs)
    torch.testing.assert_close(training_logits(full, inputs, sampling_probability=0.0), teacher_forced)
    with torch.no_grad():
        assert torch.equal(model(**inputs, use_cache=False, sampling_probability=1.0).logits, teacher_forced)


def test_an_objective_follows_its_schedule_and_leaves_the_configuration_alone() -> None:
    model = tiny(scheduled_sampling=1.0).train()
    objective = Seq2SeqObjective(model, sampling=SamplingSchedule(1.0, start=1, steps=0))
    batch = subject_of(model).batch
    losses = []
    for step in range(2):
        objective.begin_step(step)
        losses.append(objective(batch, objective.normalizers(batch)))
    assert losses[1] == Seq2SeqObjective(model)(batch, objective.normalizers(batch))  # as configured
    assert losses[0] == Seq2SeqObjective(model.eval())(batch, objective.normalizers(batch))  # teacher forcing
    assert losses[0] != losses[1]
    assert model.config.scheduled_sampling == 1.0


@pytest.mark.parametrize("choices", [{"embedding_noise": 0.5}, {"dropout": 0.5}], ids=["noise", "dropout"])
def test_tokens_fed_back_are_regularized_like_true_ones(choices: dict[str, float]) -> None:
    model = tiny(**choices, scheduled_sampling=1.0, cell="rnn", attention="none", context_to=[])
    model.get_decoder().layers[0].weight_hh_l0.data.zero_()  # each state comes from one token alone
    model.get_decoder().readout.dropout.p = 0.0
    model.lm_head.bias.data[3] = 1e4  # and the token is always the same
    inputs = subject_of(model).inputs()
    fed = [training_logits(model, inputs, seed)[:, 1:] for seed in (1, 2)]
    assert not torch.allclose(*fed)


@pytest.mark.parametrize("choices", [{"embedding_noise": 0.5}, {"dropout": 0.5}], ids=["noise", "dropout"])
def test_noise_and_dropout_change_training_only(choices: dict[str, float]) -> None:
    model, plain = tiny(**choices), tiny()
    inputs = subject_of(model).inputs()
    assert torch.equal(logits_of(model, inputs), logits_of(plain, inputs))
    assert not torch.allclose(training_logits(model, inputs, seed=1), training_logits(model, inputs, seed=2))
    assert torch.equal(training_logits(model, inputs, seed=1), training_logits(model, inputs, seed=1))
