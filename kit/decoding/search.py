"""Decoding: from a padded source to hypotheses with their scores."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList, PreTrainedModel

from kit.decoding.beam_search import NEG_INF_SCORE, beam_search
from kit.decoding.inputs import source_of
from kit.decoding.settings import GenerationSettings

MIN_TOTAL = NEG_INF_SCORE / 1000
"""Sum of log-probabilities below which a hypothesis is impossible: that of an output is never as low as −1e6. Where
fewer hypotheses are possible than there are beams, as after a forced first token that is an end token, beam search
fills the rest up with scores around NEG_INF_SCORE, and tokens that mean nothing."""


@dataclass(frozen=True)
class Hypothesis:
    """One output for one source."""

    tokens: list[int]  # without the start token, up to and including the end token if there is one
    score: float  # sum of log-probabilities / length ** length_penalty; the length includes the end token
    finished: bool  # has an end token; otherwise truncated at max_new_tokens
    attention: Tensor | None = field(default=None, compare=False)  # (heads, tokens, source)


@torch.inference_mode()
def search(
    model: PreTrainedModel, batch: dict[str, Tensor], settings: GenerationSettings, attention: bool = False
) -> list[list[Hypothesis]]:
    """The best hypotheses of each source of a batch, best first: `settings.num_return_sequences` for each, or fewer if
    fewer are possible.

    With `attention`, each has its cross-attention weights if the model has cross-attention.
    """
    implementation = model.config._attn_implementation
    if attention and implementation != "eager":  # fused attention does not return its weights
        model.set_attn_implementation("eager")
        try:
            return search(model, batch, settings, attention)
        finally:
            model.set_attn_implementation(implementation)
    generation_config = settings.seq2seq_config(model)
    if model.generation_config.max_length is not None:  # with two limits, transformers warns
        generation_config.max_length, generation_config.max_new_tokens = generation_config.max_new_tokens + 1, None
    generation_config.return_dict_in_generate = True
    # kit's search returns neither: requesting them falls back to transformers
    generation_config.output_scores = generation_config.output_attentions = attention
    drawn = DrawnTokens()
    output = model.generate(
        **source_of(batch),
        generation_config=generation_config,
        custom_generate=beam_search,
        logits_processor=LogitsProcessorList([drawn] if settings.do_sample else []),
    )
    sequences = output.sequences[:, 1:]  # (batch · n, target) without START
    weights = _cross_attention(output) if attention else None
    end = generation_config.eos_token_id
    ends = end if isinstance(end, list) else [end]
    hypotheses = []
    for row, tokens in enumerate(sequences.tolist()):
        length = next((i + 1 for i, token in enumerate(tokens) if token in ends), None)
        finished, generated = length is not None, tokens[:length]
        divisor = max(1, len(generated)) ** settings.length_penalty
        if settings.do_sample:
            score = drawn.total(output.sequences, row, len(generated)) / divisor
        elif settings.num_beams == 1:
            score = _total(output, row, generated) / divisor
        else:
            score = float(output.sequences_scores[row])
        cross_attention = None if weights is None else weights[row, :, : len(generated)]
        hypotheses.append(Hypothesis(generated, score, finished, cross_attention))
    n = settings.num_return_sequences
    groups = [hypotheses[i : i + n] for i in range(0, len(hypotheses), n)]
    return [[best, *(other for other in others if _is_possible(other, settings))] for best, *others in groups]


def _is_possible(hypothesis: Hypothesis, settings: GenerationSettings) -> bool:
    """Whether a hypothesis has a probability; see `MIN_TOTAL`."""
    return hypothesis.score * max(1, len(hypothesis.tokens)) ** settings.length_penalty > MIN_TOTAL


class DrawnTokens(LogitsProcessor):
    """Records the log-probabilities of sampled tokens, before temperature and top-p change them.

    All logits of all steps would not fit into memory: those of a step are held until the next call reveals its token.
    """

    def __init__(self) -> None:
        self._last: Tensor | None = None  # (rows, vocabulary)
        self._steps: list[Tensor] = []  # (rows,) each

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self._take(input_ids[:, -1])
        self._last = scores.float().log_softmax(-1)
        return scores

    def _take(self, tokens: Tensor) -> None:
        """Record the log-probability of the token (rows,) that was drawn in the last step."""
        if self._last is not None:
            self._steps.append(self._last.gather(1, tokens[:, None])[:, 0])
            self._last = None

    def total(self, sequences: Tensor, row: int, length: int) -> float:
        """The sum of the log-probabilities of the first `length` tokens that were drawn for a row; `sequences` are what
        `generate()` has returned."""
        self._take(sequences[:, -1])
        return sum(float(step[row]) for step in self._steps[:length])


def _total(output: Any, row: int, tokens: list[int]) -> float:
    """The sum of the log-probabilities of a row's tokens after greedy search, by kit or by transformers."""
    if "sequences_scores" in output:
        return float(output.sequences_scores[row])
    return sum(float(step[row].log_softmax(-1)[token]) for token, step in zip(tokens, output.scores, strict=False))


def _cross_attention(output: Any) -> Tensor | None:
    """Cross-attention weights of the last layer, (hypotheses, heads, target, source).

    With beams, each step comes from the beam that held the hypothesis at that step. None if the model has no
    cross-attention.
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
