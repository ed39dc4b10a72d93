"""Proofs about `generate`: each search returns the hypotheses and scores that it promises."""

import itertools
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from kit.decoding.search import Hypothesis, search
from kit.decoding.settings import GenerationSettings
from kit.training.objective import Batch, source_of
from kit.verify.proof import Outcome, equal_within, max_or_nan, proof
from kit.verify.subject import Subject, end_markers, is_kit_model, is_seq2seq, logits_of, random_batch, trimmed

TOLERANCE = 1e-4
"""For scores: transformers sums log-probabilities in float32."""

BEAMS = 4  # enough for hypotheses to be reordered and to end at different steps
LENGTH_PENALTY = 0.6  # besides 1, the mean over tokens; the value of Vaswani et al. (2017)


def _settings(subject: Subject, num_beams: int, length_penalty: float = 1.0) -> GenerationSettings:
    """The settings of a search that returns all of its beams."""
    return GenerationSettings(
        num_beams=num_beams,
        num_return_sequences=num_beams,
        max_new_tokens=subject.max_new_tokens,
        length_penalty=length_penalty,
        early_stopping="never",
    )


def _generated(
    model: PreTrainedModel, source: Batch, settings: GenerationSettings, use_cache: bool = True, **how: Any
) -> list[list[int]]:
    """The tokens of each sequence of `generate()`, without the start token, up to and including the end token."""
    generation_config = settings.seq2seq_config(model)
    generation_config.use_cache = use_cache
    with torch.no_grad():
        sequences = model.generate(**source, generation_config=generation_config, **how)
    return [_up_to_end(model, tokens) for tokens in sequences[:, 1:].tolist()]


def _up_to_end(model: PreTrainedModel, tokens: list[int]) -> list[int]:
    """The tokens up to and including the first end token."""
    ends = end_markers(model)
    return tokens[: next((i + 1 for i, token in enumerate(tokens) if token in ends), len(tokens))]


def _same_tokens(actual: list[list[int]], expected: list[list[int]]) -> Outcome:
    """Passes if all outputs are equal."""
    different = sum(a != b for a, b in zip(actual, expected, strict=True))
    return Outcome(different == 0, f"{len(expected) - different} of {len(expected)} outputs equal")


def score_by_forward(
    model: PreTrainedModel, batch: Batch, hypotheses: list[list[Hypothesis]], length_penalty: float
) -> list[list[float]]:
    """The score of each hypothesis by one teacher-forced pass: Σ log p / length ** length_penalty."""
    counts = [len(group) for group in hypotheses]
    flat = [hypothesis.tokens for group in hypotheses for hypothesis in group]
    rows = torch.repeat_interleave(torch.arange(len(hypotheses)), torch.tensor(counts))
    width = max(map(len, flat))
    filled = torch.tensor([[*tokens, *[0] * (width - len(tokens))] for tokens in flat])
    start = filled.new_full((len(flat), 1), model.generation_config.decoder_start_token_id)
    inputs = {
        **{name: tensor[rows] for name, tensor in source_of(batch).items()},
        "decoder_input_ids": torch.cat([start, filled[:, :-1]], dim=1),
    }
    chosen = logits_of(model, inputs).log_softmax(-1).gather(-1, filled.unsqueeze(-1)).squeeze(-1)  # (rows, target)
    scores = iter(
        float(row[: len(tokens)].sum()) / len(tokens) ** length_penalty
        for row, tokens in zip(chosen, flat, strict=True)
    )
    return [list(itertools.islice(scores, count)) for count in counts]


@proof("cached search", "greedy and beam search give the same tokens with the cache as without it", is_seq2seq)
def cached_search(subject: Subject) -> Outcome:
    actual, expected = [], []
    for num_beams in (1, BEAMS):
        settings = _settings(subject, num_beams)
        actual += _generated(subject.exact, subject.source(), settings)
        expected += _generated(subject.exact, subject.source(), settings, use_cache=False)
    return _same_tokens(actual, expected)


@proof("batched search", "beam search in a batch gives each example the tokens it has alone", is_seq2seq)
def batched_search(subject: Subject) -> Outcome:
    settings = _settings(subject, BEAMS)
    expected = []
    for row in range(len(subject.batch["labels"])):
        example = trimmed(subject.batch, slice(row, row + 1))
        del example["labels"]
        expected += _generated(subject.exact, example, settings)
    return _same_tokens(_generated(subject.exact, subject.source(), settings), expected)


def _one_beam(model: Any, input_ids: Tensor, **arguments: Any) -> Tensor:
    """A `custom_generate`: beam search with one beam, where `generate(num_beams=1)` would run greedy search."""
    arguments["generation_config"].early_stopping = True
    arguments["generation_config"].length_penalty = 1.0
    return model._beam_search(input_ids, **arguments)


@proof("greedy", "greedy search, beam search with one beam and the argmax of each step agree", is_seq2seq)
def greedy_is_one_beam(subject: Subject) -> Outcome:
    model, source, settings = subject.exact, subject.source(), _settings(subject, 1)
    greedy = _generated(model, source, settings)
    one_beam = _generated(model, source, settings, custom_generate=_one_beam)
    written = torch.full((len(greedy), 1), model.generation_config.decoder_start_token_id)
    for _ in range(subject.max_new_tokens):
        best = logits_of(model, {**source, "decoder_input_ids": written})[:, -1].argmax(-1, keepdim=True)
        written = torch.cat([written, best], dim=1)
    by_hand = [_up_to_end(model, tokens) for tokens in written[:, 1:].tolist()]
    return _same_tokens(greedy + greedy, one_beam + by_hand)


@proof("kit search", "kit's search returns what `generate` returns, with the same scores", is_seq2seq)
def kit_search(subject: Subject) -> Outcome:
    model, source = subject.exact, subject.source()
    actual, expected, differences = [], [], []
    searches = [
        replace(_settings(subject, 1), early_stopping=False),
        _settings(subject, BEAMS),
        replace(_settings(subject, BEAMS, LENGTH_PENALTY), early_stopping=True),
    ]
    for settings in searches:
        ours = [hypothesis for hypotheses in search(model, source, settings) for hypothesis in hypotheses]
        with_scores = settings.seq2seq_config(model)
        with_scores.return_dict_in_generate = with_scores.output_scores = True
        with torch.no_grad():
            output = model.generate(**source, generation_config=with_scores)
        actual += [hypothesis.tokens for hypothesis in ours]
        expected += [_up_to_end(model, tokens) for tokens in output.sequences[:, 1:].tolist()]
        if settings.num_beams > 1:
            differences += [abs(h.score - float(s)) for h, s in zip(ours, output.sequences_scores, strict=True)]
    same = _same_tokens(actual, expected)
    return equal_within(max_or_nan(differences), TOLERANCE, f"{same.figure}, scores") if same.passed else same


@proof("beam scores", "the score of every hypothesis is the one that teacher forcing gives it", is_seq2seq)
def beam_scores(subject: Subject) -> Outcome:
    differences = []
    for num_beams, length_penalty in ((1, 1.0), (BEAMS, 1.0), (BEAMS, LENGTH_PENALTY)):
        hypotheses_of_rows = search(subject.exact, subject.source(), _settings(subject, num_beams, length_penalty))
        expected = score_by_forward(subject.exact, subject.batch, hypotheses_of_rows, length_penalty)
        for hypotheses, scores in zip(hypotheses_of_rows, expected, strict=True):
            differences += [abs(h.score - score) for h, score in zip(hypotheses, scores, strict=True)]
    return equal_within(max_or_nan(differences), TOLERANCE, f"scores of {len(differences)} hypotheses")


@torch.no_grad()
def every_hypothesis(
    model: PreTrainedModel, source: Batch, max_new_tokens: int, length_penalty: float
) -> list[dict[tuple[int, ...], float]]:
    """For each source, every hypothesis that a search could return, with its score, from one pass over all prefixes."""
    (end,), vocabulary = end_markers(model), model.get_output_embeddings().weight.shape[0]
    words = [token for token in range(vocabulary) if token != end]
    prefixes = torch.tensor(list(itertools.product(words, repeat=max_new_tokens - 1)))  # (prefixes, length − 1)
    sources, many = len(next(iter(source.values()))), len(prefixes)
    start = prefixes.new_full((many, 1), model.generation_config.decoder_start_token_id)
    inputs = {name: tensor.repeat_interleave(many, dim=0) for name, tensor in source.items()}
    inputs["decoder_input_ids"] = torch.cat([start, prefixes], dim=1).repeat(sources, 1)
    log_p = logits_of(model, inputs).log_softmax(-1).unflatten(0, (sources, many))
    # log-probability of the first t tokens of each prefix: (sources, prefixes, length)
    chosen = log_p[:, :, :-1].gather(-1, prefixes.expand(sources, -1, -1).unsqueeze(-1)).squeeze(-1)
    cost = torch.nn.functional.pad(chosen.cumsum(-1), (1, 0))
    by_source: list[dict[tuple[int, ...], float]] = []
    for costs, steps in zip(cost, log_p, strict=True):
        scores: dict[tuple[int, ...], float] = {}
        for t in range(max_new_tokens):
            followers = [end] if t < max_new_tokens - 1 else range(vocabulary)  # at the limit, any token may be last
            total = (costs[:, t, None] + steps[:, t]) / (t + 1) ** length_penalty  # (prefixes, vocabulary)
            rows = zip(prefixes[:, :t].tolist(), total.tolist(), strict=True)
            scores |= {(*tokens, token): row[token] for tokens, row in rows for token in followers}
        by_source.append(scores)
    return by_source


def compare_with_every_hypothesis(
    model: PreTrainedModel, source: Batch, max_new_tokens: int, length_penalty: float, best: int = 10
) -> Outcome:
    """Whether a beam search wide enough to be exhaustive returns the best of all hypotheses, best first.

    Hypotheses of equal score may come in any order.
    """
    vocabulary = model.get_output_embeddings().weight.shape[0]
    settings = GenerationSettings(
        # as many as there are candidates in the next-to-last step, so that none is pruned
        num_beams=vocabulary * (vocabulary - 1) ** (max_new_tokens - 2),
        num_return_sequences=best,
        max_new_tokens=max_new_tokens,
        length_penalty=length_penalty,
        early_stopping="never",
    )
    differences, total = [], 0
    everything = every_hypothesis(model, source, max_new_tokens, length_penalty)
    for hypotheses, scores in zip(search(model, source, settings), everything, strict=True):
        total += len(scores)
        tokens = [tuple(hypothesis.tokens) for hypothesis in hypotheses]
        if len(set(tokens)) < len(tokens) or not scores.keys() >= set(tokens):
            return Outcome(
                False, f"beam search returned {tokens}, with a hypothesis that is repeated or impossible", TOLERANCE
            )
        best_scores = sorted(scores.values(), reverse=True)
        for hypothesis, sequence, ranked in zip(hypotheses, tokens, best_scores, strict=False):
            differences += [abs(hypothesis.score - scores[sequence]), abs(hypothesis.score - ranked)]
    return equal_within(max_or_nan(differences), TOLERANCE, f"the best of {total} hypotheses")


@proof("beam search", "on a tiny copy, beam search finds the best of all possible hypotheses", is_kit_model)
def beam_is_exhaustive(subject: Subject) -> Outcome:
    model = subject.tiny_copy(vocabulary=5, width=4)  # of at most 4 of 5 tokens, there are 341 hypotheses
    perturb_parameters(model)
    source = Subject(model, random_batch(model, subject.seed, examples=3)).source()
    for length_penalty in (1.0, 0.0):
        outcome = compare_with_every_hypothesis(model, source, max_new_tokens=4, length_penalty=length_penalty)
        if not outcome.passed:
            break
    return outcome


@torch.no_grad()
def perturb_parameters(model: PreTrainedModel) -> None:
    """Add noise to every parameter in place, so that errors in the use of biases, which are initially zero, show."""
    for parameter in model.parameters():
        parameter.add_(torch.randn_like(parameter) / 2)
