"""Greedy and beam search for encoder-decoders, to be passed to `generate(custom_generate=beam_search)`.

The results equal those of transformers with less work: all beams start from one row and share their source, the best
continuations are selected without a top-k over the whole vocabulary, and finished sentences leave the batch.
"""

from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessorList, PreTrainedModel, StoppingCriteriaList, generation
from transformers.cache_utils import DynamicCache, EncoderDecoderCache
from transformers.generation import EosTokenCriteria, GenerateBeamEncoderDecoderOutput, MaxLengthCriteria

from kit.decoding.beam_decoders import BeamDecoder, beam_decoder

SUPPORTED_PROCESSORS = (
    generation.ForcedBOSTokenLogitsProcessor,
    generation.ForcedEOSTokenLogitsProcessor,
    generation.InfNanRemoveLogitsProcessor,
    generation.LogitNormalization,
    generation.MinLengthLogitsProcessor,
    generation.MinNewTokensLengthLogitsProcessor,
    generation.NoBadWordsLogitsProcessor,
    generation.NoRepeatNGramLogitsProcessor,
    generation.RepetitionPenaltyLogitsProcessor,
    generation.SequenceBiasLogitsProcessor,
    generation.SuppressTokensAtBeginLogitsProcessor,
    generation.SuppressTokensLogitsProcessor,
)
"""Logits processors that depend on the tokens of a single row only, so that rows can leave the batch."""

NEG_INF_SCORE = -1.0e9
"""The score of beams that must not be selected. The value is that of transformers, because it is added to scores."""

GROUP_SIZE = 16
"""Tokens per group in the two-stage top-k: first over group maxima, then within the best groups. Measured on a CPU: the
fastest size, or close to it, for 1,000 to 32,000 tokens, and up to 7 times as fast as a direct top-k."""

DIRECT_TOPK = 1024
"""Up to this vocabulary size, a direct top-k is used: measured on a CPU, it is faster for a few hundred tokens, and as
fast for about a thousand."""

COMPACTION_THRESHOLD = 1 / 8
"""Share of the batch that must be finished before the rest is compacted, because moving the caches costs time. Measured
on a CPU with 30 tokens per output, shares from 1/32 to 1/4 take the same time within 3 %."""


def beam_search(
    model: PreTrainedModel,
    input_ids: Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: GenerationConfig,
    **inputs: Any,
) -> Tensor | GenerateBeamEncoderDecoderOutput:
    """Greedy or beam search, as `generate(custom_generate=beam_search)` calls it.

    Returns the sequences, with `return_dict_in_generate` also their scores: Σ log p / length ** length_penalty, for
    greedy search Σ log p. Falls back to transformers for what it does not cover: sampling, scores or attentions of
    every step, and processors that depend on more than one row.
    """
    if not _covers(model, logits_processor, stopping_criteria, generation_config, inputs):
        fallback = model._sample if generation_config.num_beams == 1 else model._beam_search
        if not generation_config.do_sample:
            generation_config.output_scores = True  # transformers returns the scores of sequences only with these
        return fallback(
            input_ids,
            logits_processor=logits_processor,
            stopping_criteria=stopping_criteria,
            generation_config=generation_config,
            **inputs,
        )
    beams = generation_config.num_beams
    search = _Search(beam_decoder(model, beams, inputs), logits_processor, generation_config)
    results = search.run(input_ids[::beams])
    n = generation_config.num_return_sequences
    max_length = input_ids.shape[1] + int(results.lengths[:, :n].max())
    sequences = results.tokens[:, :n, :max_length].flatten(0, 1)
    if not generation_config.return_dict_in_generate:
        return sequences
    return GenerateBeamEncoderDecoderOutput(sequences=sequences, sequences_scores=results.scores[:, :n].flatten())


def _covers(
    model: PreTrainedModel,
    processors: LogitsProcessorList,
    criteria: StoppingCriteriaList,
    config: GenerationConfig,
    inputs: dict[str, Any],
) -> bool:
    """Whether this search does all that a call of `generate()` asks for."""
    cache = inputs.get("past_key_values")
    parts = [cache.self_attention_cache, cache.cross_attention_cache] if isinstance(cache, EncoderDecoderCache) else []
    return bool(
        model.config.is_encoder_decoder
        and cache is not None
        and cache.get_seq_length() == 0
        # a cache of a kit model, or one that rows can leave
        and (getattr(model, "beam_layout", None) or (parts and all(isinstance(part, DynamicCache) for part in parts)))
        and inputs.get("decoder_attention_mask") is None
        and all(type(processor) in SUPPORTED_PROCESSORS for processor in processors)
        and all(type(criterion) in (MaxLengthCriteria, EosTokenCriteria) for criterion in criteria)
        and not any((config.do_sample, config.output_scores, config.output_logits))
        and not any((config.output_attentions, config.output_hidden_states))
    )


@dataclass
class _Hypotheses:
    """The best finished hypotheses of some sentences, best first; empty slots have the score NEG_INF_SCORE."""

    sentences: Tensor  # (sentences,) positions in the batch
    tokens: Tensor  # (sentences, beams, length) with the prompt, padded after the end
    scores: Tensor  # (sentences, beams)
    lengths: Tensor  # (sentences, beams) tokens after the prompt; 0 for an empty slot

    def of(self, which: Tensor) -> "_Hypotheses":
        """Those of the sentences at these indices, or where this mask is true."""
        return _Hypotheses(*(getattr(self, field.name)[which] for field in fields(self)))


class _Search:
    """A search over one batch; results of a sentence do not depend on the others.

    Greedy search is one beam that stops at its first end, except that processors apply to logits, not to
    log-probabilities.
    """

    def __init__(self, decoder: BeamDecoder, processors: LogitsProcessorList, config: GenerationConfig):
        self.decoder, self.processors = decoder, processors
        self.beams, self.max_length = config.num_beams, config.max_length
        self.greedy = self.beams == 1
        self.early_stopping = True if self.greedy else config.early_stopping
        self.length_penalty = 0.0 if self.greedy else config.length_penalty
        self.ends = config._eos_token_tensor  # (number of end markers,) or None
        count = 0 if self.ends is None else len(self.ends)
        self.candidates = max(2, 1 + count) * self.beams  # enough to continue even if every beam ends in every way
        self.padding = self._padding_token(config)

    def _padding_token(self, config: GenerationConfig) -> int:
        """The padding after the end. As in transformers, beam search replaces a PAD id of 0 with the end token."""
        pad = config._pad_token_tensor
        if self.ends is None or pad is None:
            return -1
        return int(self.ends[0] if int(pad) == 0 and not self.greedy else pad)

    def run(self, prompts: Tensor) -> _Hypotheses:
        """The best hypotheses of each prompt (sentences, length)."""
        sentences, prompt = prompts.shape
        written = prompts.unsqueeze(1).expand(-1, self.beams, -1)  # (sentences, beams, length)
        # all beams are equal at first: only one of them may continue
        scores = torch.full((sentences, self.beams), NEG_INF_SCORE, device=prompts.device)
        scores[:, 0] = 0.0
        done = torch.zeros(sentences, dtype=torch.bool, device=prompts.device)
        numbers = torch.arange(sentences, device=prompts.device)
        results = _Hypotheses(
            numbers, written, torch.full_like(scores, NEG_INF_SCORE), torch.zeros_like(scores, dtype=torch.long)
        )
        finished_sentences: list[_Hypotheses] = []
        logits = self.decoder.prefill(prompts).unsqueeze(1)  # (sentences, 1, vocabulary)
        for length in range(prompt + 1, self.max_length + 1):
            # 1. the best continuations of the running beams
            log_probs = self._log_probs(logits, written).expand(-1, self.beams, -1)
            totals, parents, tokens = best_continuations(log_probs, scores, self.candidates)  # (sentences, candidates)
            # 2. those that end become hypotheses; candidates beyond the number of beams only serve as continuations
            ended = self._ended(tokens, length)
            finished = ended[:, : self.beams] & ~done.unsqueeze(1)
            if bool(finished.any()):
                extended = _append_token(written, parents[:, : self.beams], tokens[:, : self.beams])
                ranks = totals[:, : self.beams] / (length - prompt) ** self.length_penalty
                results = self._merge(results, extended, ranks.masked_fill(~finished, -torch.inf), length - prompt)
            if length == self.max_length:
                break
            # 3. the best of the others are the running beams
            scores, best = (totals + ended * NEG_INF_SCORE).topk(self.beams)
            parents, tokens = parents.gather(1, best), tokens.gather(1, best)
            written = _append_token(written, parents, tokens)
            # 4. sentences that cannot improve are done, and leave the batch when they are numerous enough
            done |= self._is_done(scores[:, 0], results, length - prompt, self.max_length - prompt)
            number = int(done.sum())
            if number == len(done):
                break
            if number >= COMPACTION_THRESHOLD * len(done):
                stay = (~done).nonzero().squeeze(1)
                finished_sentences.append(results.of(done))
                results, done = results.of(stay), done[stay]
                written, scores, parents = written[stay], scores[stay], parents[stay]
                self.decoder.keep(stay)
            # 5. the logits after their new tokens
            logits = self.decoder.step(written, parents)
        return self._merge_sentences([*finished_sentences, results])

    def _log_probs(self, logits: Tensor, written: Tensor) -> Tensor:
        """Log-probabilities of logits (sentences, beams, vocabulary) after the tokens `written`, as processors change
        them. Beams that are still equal come as a single one."""
        logits = logits.float()
        if not self.processors:
            return logits.log_softmax(-1)
        rows = written[:, : logits.shape[1]].flatten(0, 1)
        if self.greedy:
            return self.processors(rows, logits.flatten(0, 1)).view_as(logits).log_softmax(-1)
        return self.processors(rows, logits.log_softmax(-1).flatten(0, 1)).view_as(logits)

    def _ended(self, tokens: Tensor, length: int) -> Tensor:
        """Which tokens (sentences, candidates) complete a hypothesis of this length, prompt included.

        These are the end tokens; at the maximum length, all.
        """
        if length == self.max_length:
            return torch.ones_like(tokens, dtype=torch.bool)
        if self.ends is None:
            return torch.zeros_like(tokens, dtype=torch.bool)
        return (tokens.unsqueeze(-1) == self.ends).any(-1)

    def _merge(self, results: _Hypotheses, tokens: Tensor, scores: Tensor, length: int) -> _Hypotheses:
        """The best of the previous hypotheses and of new ones, which have this length without the prompt.

        `scores` are −inf where `tokens` (sentences, beams, length) are not a finished hypothesis.
        """
        lengths = torch.full_like(results.lengths, length).masked_fill(scores == -torch.inf, 0)
        scores, best = torch.cat([results.scores, scores], dim=1).topk(self.beams)
        lengths = torch.cat([results.lengths, lengths], dim=1).gather(1, best)
        tokens = torch.cat([self._pad_to(results.tokens, tokens.shape[-1]), tokens], dim=1)
        return _Hypotheses(results.sentences, _take(tokens, best), scores, lengths)

    def _is_done(self, best: Tensor, results: _Hypotheses, length: int, max_length: int) -> Tensor:
        """Whether each sentence is done: no running beam can improve its hypotheses, by the `early_stopping` criterion.

        `best` (sentences,) is the score of the best running beam.
        """
        length_bound = max_length if self.early_stopping == "never" and self.length_penalty > 0 else length
        is_done = best / length_bound**self.length_penalty <= results.scores[:, -1]
        return is_done | (results.lengths > 0).all(1) if self.early_stopping is True else is_done

    def _pad_to(self, tokens: Tensor, length: int) -> Tensor:
        """Tokens (sentences, beams, …) padded to this length."""
        return torch.nn.functional.pad(tokens, (0, length - tokens.shape[-1]), value=self.padding)

    def _merge_sentences(self, parts: list[_Hypotheses]) -> _Hypotheses:
        """The hypotheses of all sentences, in the order of the batch."""
        max_length = max(part.tokens.shape[-1] for part in parts)
        parts = [replace(part, tokens=self._pad_to(part.tokens, max_length)) for part in parts]
        joined = _Hypotheses(
            *(torch.cat([getattr(part, field.name) for part in parts]) for field in fields(_Hypotheses))
        )
        return joined.of(joined.sentences.argsort())


def best_continuations(log_probs: Tensor, scores: Tensor, number: int) -> tuple[Tensor, Tensor, Tensor]:
    """The best continuations over all beams and tokens of each sentence, best first: total scores, beams and tokens.

    log_probs (sentences, beams, vocabulary), scores (sentences, beams) → (sentences, number) each.
    """
    vocabulary = log_probs.shape[-1]
    if vocabulary <= DIRECT_TOPK:
        totals, best = (log_probs + scores.unsqueeze(-1)).flatten(1).topk(number)
        return totals, best // vocabulary, best % vocabulary
    # A token among the best is in a group whose maximum is among the best: find these groups, then sort their tokens.
    groups = -(-vocabulary // GROUP_SIZE)  # group g has the tokens g, g + groups, g + 2 · groups, …
    whole = (GROUP_SIZE - 1) * groups
    largest = log_probs[..., :whole].unflatten(-1, (GROUP_SIZE - 1, groups)).amax(-2)  # (sentences, beams, groups)
    rest = largest[..., : vocabulary - whole]
    torch.maximum(rest, log_probs[..., whole:], out=rest)
    best = (largest + scores.unsqueeze(-1)).flatten(1).topk(number).indices
    beams, group = best // groups, best % groups  # (sentences, number)
    tokens = group.unsqueeze(-1) + torch.arange(0, GROUP_SIZE * groups, groups, device=group.device)
    indices = beams.unsqueeze(-1) * vocabulary + tokens.clamp(max=vocabulary - 1)
    totals = log_probs.flatten(1).gather(1, indices.flatten(1)).view_as(indices) + scores.gather(1, beams).unsqueeze(-1)
    totals, best = totals.masked_fill(tokens >= vocabulary, -torch.inf).flatten(1).topk(number)
    return totals, beams.gather(1, best // GROUP_SIZE), tokens.flatten(1).gather(1, best)


def _take(sequences: Tensor, which: Tensor) -> Tensor:
    """Sequences (sentences, beams, length) in the order of `which` (sentences, number)."""
    return sequences.gather(1, which.unsqueeze(-1).expand(-1, -1, sequences.shape[-1]))


def _append_token(written: Tensor, parents: Tensor, tokens: Tensor) -> Tensor:
    """The tokens of the parent beams, each followed by its new token."""
    return torch.cat([_take(written, parents), tokens.unsqueeze(-1)], dim=-1)
