"""Greedy and beam search for encoder-decoders, to be passed to `generate(custom_generate=beam_search)`.

The result is that of transformers' own search. The work is less: all beams start from one row, share their source,
the best continuations are found without sorting the vocabulary, and sentences leave the batch when they are finished.
"""

from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessorList, PreTrainedModel, StoppingCriteriaList
from transformers.cache_utils import DynamicCache, EncoderDecoderCache
from transformers.generation import (
    EosTokenCriteria,
    ForcedBOSTokenLogitsProcessor,
    ForcedEOSTokenLogitsProcessor,
    GenerateBeamEncoderDecoderOutput,
    InfNanRemoveLogitsProcessor,
    LogitNormalization,
    MaxLengthCriteria,
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
)

from kit.decoding.beam_decoders import BeamDecoder, beam_decoder

SUPPORTED_PROCESSORS = (
    ForcedBOSTokenLogitsProcessor,
    ForcedEOSTokenLogitsProcessor,
    InfNanRemoveLogitsProcessor,
    LogitNormalization,
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
)
"""Processors that see a row's own tokens and nothing else: they do not mind rows that leave."""

NEVER = -1.0e9
"""The score of what must not be chosen, as transformers has it: scores are sums of it and of log-probabilities."""

GROUP = 16
"""Tokens that are compared at once before the best continuations are sorted."""

SORTED_WHOLE = 1024
"""Vocabularies up to this size are sorted without that."""

LEAVING = 1 / 8
"""The share of the batch that must be finished before it leaves: moving the others has a cost of its own."""


def beam_search(
    model: PreTrainedModel,
    input_ids: Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: GenerationConfig,
    **inputs: Any,
) -> Tensor | GenerateBeamEncoderDecoderOutput:
    """What `generate()` calls with everything prepared: sequences, and with `return_dict_in_generate` their scores.

    The score is Σ log p / length ** length_penalty; of greedy search, which has no length penalty, Σ log p. What this
    search does not cover (sampling, scores or attentions of every step, rules that look beyond a row) is left to
    transformers' own.
    """
    if not _covers(model, logits_processor, stopping_criteria, generation_config, inputs):
        own = model._sample if generation_config.num_beams == 1 else model._beam_search
        return own(
            input_ids,
            logits_processor=logits_processor,
            stopping_criteria=stopping_criteria,
            generation_config=generation_config,
            **inputs,
        )
    beams = generation_config.num_beams
    search = _Search(beam_decoder(model, beams, inputs), logits_processor, generation_config)
    found = search.run(input_ids[::beams])
    n = generation_config.num_return_sequences
    longest = input_ids.shape[1] + int(found.lengths[:, :n].max())
    sequences = found.tokens[:, :n, :longest].flatten(0, 1)
    if not generation_config.return_dict_in_generate:
        return sequences
    return GenerateBeamEncoderDecoderOutput(sequences=sequences, sequences_scores=found.scores[:, :n].flatten())


def _covers(
    model: PreTrainedModel,
    processors: LogitsProcessorList,
    criteria: StoppingCriteriaList,
    config: GenerationConfig,
    inputs: dict[str, Any],
) -> bool:
    cache = inputs.get("past_key_values")
    parts = [cache.self_attention_cache, cache.cross_attention_cache] if isinstance(cache, EncoderDecoderCache) else []
    return bool(
        model.config.is_encoder_decoder
        and cache is not None
        and cache.get_seq_length() == 0
        # a cache of our own, or one that rows can leave
        and (getattr(model, "beam_layout", None) or (parts and all(isinstance(part, DynamicCache) for part in parts)))
        and inputs.get("decoder_attention_mask") is None
        and all(type(processor) in SUPPORTED_PROCESSORS for processor in processors)
        and all(type(criterion) in (MaxLengthCriteria, EosTokenCriteria) for criterion in criteria)
        and not any((config.do_sample, config.output_scores, config.output_logits))
        and not any((config.output_attentions, config.output_hidden_states))
    )


@dataclass
class _Found:
    """The best finished hypotheses of some sentences, best first; the score of a place not yet taken is NEVER."""

    sentences: Tensor  # (sentences,) their numbers in the batch
    tokens: Tensor  # (sentences, beams, length) with the prompt, filled up behind the end
    scores: Tensor  # (sentences, beams)
    lengths: Tensor  # (sentences, beams) number of tokens behind the prompt; 0 for a place not yet taken

    def of(self, which: Tensor) -> "_Found":
        return _Found(*(getattr(self, field.name)[which] for field in fields(self)))


class _Search:
    """A search in one batch, sentence by sentence the same as if each were alone.

    Greedy search is one beam that stops at its first end; only that its rules apply to logits, not log-probabilities.
    """

    def __init__(self, decoder: BeamDecoder, processors: LogitsProcessorList, config: GenerationConfig):
        self.decoder, self.processors = decoder, processors
        self.beams, self.max_length = config.num_beams, config.max_length
        self.greedy = self.beams == 1
        self.early_stopping = True if self.greedy else config.early_stopping
        self.length_penalty = 0.0 if self.greedy else config.length_penalty
        self.ends = config._eos_token_tensor  # (number of end markers,) or None
        count = 0 if self.ends is None else len(self.ends)
        self.candidates = max(2, 1 + count) * self.beams  # enough to go on with, should every beam end in every way
        self.fill = self._fill(config)

    def _fill(self, config: GenerationConfig) -> int:
        """What stands behind the end, as transformers has it: with beams, a PAD of number 0 gives way to the end."""
        pad = config._pad_token_tensor
        if self.ends is None or pad is None:
            return -1
        return int(self.ends[0] if int(pad) == 0 and not self.greedy else pad)

    def run(self, prompts: Tensor) -> _Found:
        """The best hypotheses of each prompt (sentences, length)."""
        sentences, prompt = prompts.shape
        written = prompts.unsqueeze(1).expand(-1, self.beams, -1)  # (sentences, beams, length)
        # all beams are the same at first: only one of them may go on
        scores = torch.full((sentences, self.beams), NEVER, device=prompts.device)
        scores[:, 0] = 0.0
        done = torch.zeros(sentences, dtype=torch.bool, device=prompts.device)
        numbers = torch.arange(sentences, device=prompts.device)
        found = _Found(numbers, written, torch.full_like(scores, NEVER), torch.zeros_like(scores, dtype=torch.long))
        left: list[_Found] = []
        logits = self.decoder.first(prompts).unsqueeze(1)  # (sentences, 1, vocabulary)
        for length in range(prompt + 1, self.max_length + 1):
            log_probs = self._log_probs(logits, written).expand(-1, self.beams, -1)
            totals, parents, tokens = best_continuations(log_probs, scores, self.candidates)  # (sentences, candidates)
            ended = self._ended(tokens, length)
            finished = ended[:, : self.beams] & ~done.unsqueeze(1)  # further candidates are only there to go on with
            if bool(finished.any()):
                grown = _grown(written, parents[:, : self.beams], tokens[:, : self.beams])
                ranks = totals[:, : self.beams] / (length - prompt) ** self.length_penalty
                found = self._merge(found, grown, ranks.masked_fill(~finished, -torch.inf), length - prompt)
            if length == self.max_length:
                break
            scores, kept = (totals + ended * NEVER).topk(self.beams)
            parents, tokens = parents.gather(1, kept), tokens.gather(1, kept)
            written = _grown(written, parents, tokens)
            done |= self._hopeless(scores[:, 0], found, length - prompt, self.max_length - prompt)
            number = int(done.sum())
            if number == len(done):
                break
            if number >= LEAVING * len(done):
                stay = (~done).nonzero().squeeze(1)
                left.append(found.of(done))
                found, written, scores, parents = found.of(stay), written[stay], scores[stay], parents[stay]
                done = done[stay]
                self.decoder.keep(stay)
            logits = self.decoder.step(written, parents)
        return self._joined([*left, found])

    def _log_probs(self, logits: Tensor, written: Tensor) -> Tensor:
        logits = logits.float()
        if not self.processors:
            return logits.log_softmax(-1)
        rows = written[:, : logits.shape[1]].flatten(0, 1)
        if self.greedy:
            return self.processors(rows, logits.flatten(0, 1)).view_as(logits).log_softmax(-1)
        return self.processors(rows, logits.log_softmax(-1).flatten(0, 1)).view_as(logits)

    def _ended(self, tokens: Tensor, length: int) -> Tensor:
        if length == self.max_length:
            return torch.ones_like(tokens, dtype=torch.bool)
        if self.ends is None:
            return torch.zeros_like(tokens, dtype=torch.bool)
        return (tokens.unsqueeze(-1) == self.ends).any(-1)

    def _merge(self, found: _Found, tokens: Tensor, scores: Tensor, length: int) -> _Found:
        """The best of what was found and of new hypotheses."""
        lengths = torch.full_like(found.lengths, length).masked_fill(scores == -torch.inf, 0)
        scores, best = torch.cat([found.scores, scores], dim=1).topk(self.beams)
        lengths = torch.cat([found.lengths, lengths], dim=1).gather(1, best)
        tokens = torch.cat([self._filled(found.tokens, tokens.shape[-1]), tokens], dim=1)
        return _Found(found.sentences, _take(tokens, best), scores, lengths)

    def _hopeless(self, best: Tensor, found: _Found, length: int, max_length: int) -> Tensor:
        """Whether a sentence is finished: no running beam can, or by the chosen heuristic will, improve what was
        found. `best` (sentences,) is the score of the best one."""
        longest = max_length if self.early_stopping == "never" and self.length_penalty > 0 else length
        hopeless = best / longest**self.length_penalty <= found.scores[:, -1]
        return hopeless | (found.lengths > 0).all(1) if self.early_stopping is True else hopeless

    def _filled(self, tokens: Tensor, length: int) -> Tensor:
        return torch.nn.functional.pad(tokens, (0, length - tokens.shape[-1]), value=self.fill)

    def _joined(self, parts: list[_Found]) -> _Found:
        """All sentences, in the order of the batch."""
        longest = max(part.tokens.shape[-1] for part in parts)
        parts = [replace(part, tokens=self._filled(part.tokens, longest)) for part in parts]
        joined = _Found(*(torch.cat([getattr(part, field.name) for part in parts]) for field in fields(_Found)))
        return joined.of(joined.sentences.argsort())


def best_continuations(log_probs: Tensor, scores: Tensor, number: int) -> tuple[Tensor, Tensor, Tensor]:
    """The best of all beams and tokens of each sentence, best first: total scores, beams and tokens.

    log_probs (sentences, beams, vocabulary), scores (sentences, beams) → (sentences, number) each.
    """
    vocabulary = log_probs.shape[-1]
    if vocabulary <= SORTED_WHOLE:
        totals, best = (log_probs + scores.unsqueeze(-1)).flatten(1).topk(number)
        return totals, best // vocabulary, best % vocabulary
    # What is among the best is in a group whose largest is among the best: find the groups, then sort what is in them.
    groups = -(-vocabulary // GROUP)  # group g is the tokens g, g + groups, g + 2 · groups …
    whole = (GROUP - 1) * groups
    largest = log_probs[..., :whole].unflatten(-1, (GROUP - 1, groups)).amax(-2)  # (sentences, beams, groups)
    rest = largest[..., : vocabulary - whole]
    torch.maximum(rest, log_probs[..., whole:], out=rest)
    best = (largest + scores.unsqueeze(-1)).flatten(1).topk(number).indices
    beams, group = best // groups, best % groups  # (sentences, number)
    tokens = group.unsqueeze(-1) + torch.arange(0, GROUP * groups, groups, device=group.device)
    places = beams.unsqueeze(-1) * vocabulary + tokens.clamp(max=vocabulary - 1)
    totals = log_probs.flatten(1).gather(1, places.flatten(1)).view_as(places) + scores.gather(1, beams).unsqueeze(-1)
    totals, best = totals.masked_fill(tokens >= vocabulary, -torch.inf).flatten(1).topk(number)
    return totals, beams.gather(1, best // GROUP), tokens.flatten(1).gather(1, best)


def _take(sequences: Tensor, which: Tensor) -> Tensor:
    """Sequences (sentences, beams, length) in the order of `which` (sentences, number)."""
    return sequences.gather(1, which.unsqueeze(-1).expand(-1, -1, sequences.shape[-1]))


def _grown(written: Tensor, parents: Tensor, tokens: Tensor) -> Tensor:
    """What the parents have written, and one token more."""
    return torch.cat([_take(written, parents), tokens.unsqueeze(-1)], dim=-1)
