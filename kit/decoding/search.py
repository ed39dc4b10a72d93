"""Decoding: from a padded source to hypotheses with their scores."""

from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel

from kit.decoding.beam_search import beam_search
from kit.decoding.inputs import source_of
from kit.errors import KitError
from kit.pretrained.positions import position_limit


@dataclass(frozen=True)
class SearchSettings:
    """Settings of a search. The defaults of transformers, such as 20 new tokens, are never used."""

    num_beams: int = 1
    max_new_tokens: int = 128
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False
    no_repeat_ngram_size: int = 0
    num_return_sequences: int = 1
    forced_bos_token_id: int | None = None  # first token of every output, such as a language code; None: from the model

    def generation_config(self, model: PreTrainedModel) -> GenerationConfig:
        """The settings as a GenerationConfig, with the model's special, forced and suppressed tokens."""
        beam_only: dict[str, Any] = {}
        if self.num_beams > 1:  # transformers warns about them in greedy search
            beam_only = {"length_penalty": self.length_penalty, "early_stopping": self.early_stopping}
        defaults = model.generation_config  # the model config does not always have all of these tokens
        return GenerationConfig(
            num_beams=self.num_beams,
            max_new_tokens=min(self.max_new_tokens, position_limit(model.config) or self.max_new_tokens),
            num_return_sequences=self.num_return_sequences,
            no_repeat_ngram_size=self.no_repeat_ngram_size,
            do_sample=False,
            bos_token_id=defaults.bos_token_id,
            eos_token_id=defaults.eos_token_id,
            pad_token_id=defaults.pad_token_id,
            decoder_start_token_id=defaults.decoder_start_token_id,
            forced_bos_token_id=first_not_none(self.forced_bos_token_id, defaults.forced_bos_token_id),
            suppress_tokens=defaults.suppress_tokens,
            bad_words_ids=defaults.bad_words_ids,
            **beam_only,
        )


def saved_settings(model: PreTrainedModel, **changes: object) -> SearchSettings:
    """The generation settings saved with a model, with changes; None leaves a setting unchanged.

    Raises KitError if `max_new_tokens` exceeds the positions of the model.
    """
    saved, positions = model.generation_config, position_limit(model.config)
    max_new_tokens = saved.max_new_tokens or SearchSettings.max_new_tokens
    defaults = {
        "num_beams": saved.num_beams or 1,
        "max_new_tokens": max_new_tokens if positions is None else min(max_new_tokens, positions),
        "length_penalty": 1.0 if saved.length_penalty is None else saved.length_penalty,
        "early_stopping": saved.early_stopping or False,
        "no_repeat_ngram_size": saved.no_repeat_ngram_size or 0,
    }
    overrides = {name: value for name, value in changes.items() if value is not None}
    settings = SearchSettings(**{**defaults, **overrides})  # type: ignore[arg-type]
    if positions is not None and settings.max_new_tokens > positions:
        raise KitError(
            f"max_new_tokens={settings.max_new_tokens} is more than the model has positions for: at most {positions}"
        )
    return settings


def first_not_none(value: int | None, default: int | None) -> int | None:
    """The value, or the default if it is None; unlike `or`, keeps token id 0."""
    return default if value is None else value


@dataclass(frozen=True)
class Hypothesis:
    """One output for one source."""

    tokens: list[int]  # without the start token, up to and including the end token if there is one
    score: float  # sum of log-probabilities / length ** length_penalty; the length includes the end token
    finished: bool  # has an end token; otherwise truncated at max_new_tokens
    attention: Tensor | None = field(default=None, compare=False)  # (heads, tokens, source)


@torch.inference_mode()
def search(
    model: PreTrainedModel, batch: dict[str, Tensor], settings: SearchSettings, attention: bool = False
) -> list[list[Hypothesis]]:
    """The best hypotheses of each source of a batch, best first.

    With `attention`, each has its cross-attention weights if the model has cross-attention.
    """
    implementation = model.config._attn_implementation
    if attention and implementation != "eager":  # fused attention does not return its weights
        model.set_attn_implementation("eager")
        try:
            return search(model, batch, settings, attention)
        finally:
            model.set_attn_implementation(implementation)
    generation_config = settings.generation_config(model)
    generation_config.return_dict_in_generate = True
    # kit's search returns neither: requesting them falls back to transformers
    generation_config.output_scores = generation_config.output_attentions = attention
    output = model.generate(
        **source_of(batch),
        generation_config=generation_config,
        custom_generate=beam_search,
    )
    sequences = output.sequences[:, 1:]  # (batch · n, target) without START
    weights = _cross_attention(output) if attention else None
    end = generation_config.eos_token_id
    ends = end if isinstance(end, list) else [end]
    hypotheses = []
    for row, tokens in enumerate(sequences.tolist()):
        length = next((i + 1 for i, token in enumerate(tokens) if token in ends), None)
        finished, kept = length is not None, tokens[:length]
        if settings.num_beams == 1:
            score = _total(output, row, kept) / max(1, len(kept)) ** settings.length_penalty
        else:
            score = float(output.sequences_scores[row])
        cross_attention = None if weights is None else weights[row, :, : len(kept)]
        hypotheses.append(Hypothesis(kept, score, finished, cross_attention))
    n = settings.num_return_sequences
    return [hypotheses[i : i + n] for i in range(0, len(hypotheses), n)]


def _total(output: Any, row: int, tokens: list[int]) -> float:
    """The sum of the log-probabilities of a row's tokens in greedy search."""
    if "sequences_scores" in output:
        return float(output.sequences_scores[row])
    return sum(float(step[row].log_softmax(-1)[token]) for token, step in zip(tokens, output.scores, strict=False))


def _cross_attention(output: Any) -> Tensor | None:
    """Cross-attention weights of the last layer, (hypotheses, heads, target, source).

    With beams, each step comes from the beam that held the hypothesis at that step.
    """
    if not output.cross_attentions or not output.cross_attentions[0]:
        return None
    steps = [layers[-1][:, :, -1] for layers in output.cross_attentions]  # each (rows, heads, source)
    stacked = torch.stack(steps, dim=2)  # (rows, heads, target, source)
    beams = getattr(output, "beam_indices", None)
    if beams is None:
        return stacked
    rows = beams.clamp(min=0)  # (hypotheses, target): −1 after the end, which is truncated later
    return stacked[rows, :, torch.arange(beams.shape[1], device=beams.device)].transpose(1, 2)
