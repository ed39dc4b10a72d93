"""kit's beam search equals that of transformers, with fewer rows, for every kind of model and setting."""

import copy
import statistics
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    MarianConfig,
    MarianMTModel,
    PreTrainedModel,
    T5Config,
    T5ForConditionalGeneration,
)
from transformers.cache_utils import EncoderDecoderCache
from transformers.generation import StoppingCriteria, StoppingCriteriaList

from kit.decoding.beam_search import beam_search, best_continuations
from kit.decoding.search import search
from kit.decoding.settings import GenerationSettings
from kit.models import (
    RNNSeq2SeqConfig,
    RNNSeq2SeqForConditionalGeneration,
    TransformerSeq2SeqConfig,
    TransformerSeq2SeqForConditionalGeneration,
)
from kit.verify.generation import perturb_parameters

VOCABULARY, SENTENCES, LONGEST = 30, 5, 7


def transformer(**choices: Any) -> PreTrainedModel:
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 8, "encoder_layers": 1, "decoder_layers": 2}
    config = TransformerSeq2SeqConfig(**{**sizes, "num_attention_heads": 2, "intermediate_size": 12, **choices})
    return TransformerSeq2SeqForConditionalGeneration(config)


def rnn(**choices: Any) -> PreTrainedModel:
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 8, "embedding_size": 6, "decoder_layers": 2}
    return RNNSeq2SeqForConditionalGeneration(RNNSeq2SeqConfig(**sizes, **choices))


def bart_like(model_class: Any, config_class: Any) -> PreTrainedModel:
    sides = {f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in
             {"layers": 1, "attention_heads": 2, "ffn_dim": 12}.items()}  # fmt: skip
    tokens = {"pad_token_id": 1, "eos_token_id": 2, "bos_token_id": 0, "decoder_start_token_id": 0}
    return model_class(config_class(vocab_size=VOCABULARY, d_model=8, max_position_embeddings=64, **sides, **tokens))


def t5() -> PreTrainedModel:
    config = T5Config(vocab_size=VOCABULARY, d_model=8, d_kv=4, d_ff=12, num_layers=1, num_heads=2)
    config.decoder_start_token_id = 0
    return T5ForConditionalGeneration(config)


MODELS: dict[str, Callable[[], PreTrainedModel]] = {
    "pre-norm": transformer,
    "post-norm": lambda: transformer(norm="post", hidden_act="swiglu", max_position_embeddings=32),
    "two vocabularies": lambda: transformer(
        share_encoder_decoder_embeddings=False, separate_vocabularies=True, decoder_vocab_size=1029, norm="post"
    ),
    "additive": rnn,
    "gru, current state": lambda: rnn(
        cell="gru", attention="scaled_dot", attention_query="current", num_attention_heads=2
    ),
    "next layer": lambda: rnn(attention="keyed", context_to=["next_layer"], attention_query="current"),
    "fixed": lambda: rnn(attention="fixed"),
    "no attention": lambda: rnn(attention="none", context_to=[]),
    "Marian": lambda: bart_like(MarianMTModel, MarianConfig),
    "BART": lambda: bart_like(BartForConditionalGeneration, BartConfig),
    "T5": t5,
}
KIT_MODELS = ["pre-norm", "post-norm", "additive"]


@cache
def model_of(name: str) -> PreTrainedModel:
    """With every parameter perturbed, and in float64, so that rounding cannot decide between two hypotheses."""
    torch.manual_seed(3)
    model = MODELS[name]().double().eval()
    perturb_parameters(model)
    return model


def source(sentences: int = SENTENCES, seed: int = 0) -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, LONGEST + 1, (sentences, 1), generator=random)
    lengths[0] = LONGEST
    return {
        "input_ids": torch.randint(3, VOCABULARY, (sentences, LONGEST), generator=random),
        "attention_mask": (torch.arange(LONGEST) < lengths).long(),
    }


def ours(model: PreTrainedModel, inputs: dict[str, Any], **options: Any) -> Any:
    options = {"return_dict_in_generate": True, "do_sample": False, "max_new_tokens": 12, **options}
    return model.generate(**inputs, **options, custom_generate=beam_search)


def stock(model: PreTrainedModel, inputs: dict[str, Any], **options: Any) -> Any:
    options = {"return_dict_in_generate": True, "do_sample": False, "max_new_tokens": 12, **options}
    return model.generate(**inputs, **options, output_scores=True)


@cache
def ends_of(name: str) -> list[int]:
    """Tokens that this model writes early in some outputs and late or never in others: ends that sentences come to at
    different times."""
    model = model_of(name)
    outputs = [stock(model, source(8, seed), num_beams=3, eos_token_id=None).sequences[:, 1:] for seed in range(3)]
    rows = torch.cat(outputs).tolist()
    first = {token: [row.index(token) if token in row else 12 for row in rows] for row in rows for token in row}
    return sorted(first, key=lambda token: statistics.pstdev(first[token]), reverse=True)[:3]


def greedy_scores(output: Any, ends: list[int]) -> Tensor:
    """Sum of log-probabilities of each row up to its first end."""
    totals = []
    for row, tokens in enumerate(output.sequences[:, -len(output.scores) :].tolist()):
        length = next((i + 1 for i, token in enumerate(tokens) if token in ends), len(tokens))
        steps = zip(output.scores[:length], tokens[:length], strict=True)
        totals.append(sum(float(step[row].log_softmax(-1)[token]) for step, token in steps))
    return torch.tensor(totals)


def assert_equal(model: PreTrainedModel, inputs: dict[str, Any], **options: Any) -> None:
    expected, actual = stock(model, inputs, **options), ours(model, inputs, **options)
    possible = torch.ones(len(expected.sequences), dtype=torch.bool)
    if options.get("num_beams", 1) > 1:
        scores = expected.sequences_scores
        # a forced first token that is an end marker leaves one hypothesis: others are fillers with a score of −1e9
        possible = scores > -1e8
    else:
        ends = options.get("eos_token_id", model.generation_config.eos_token_id)
        scores = greedy_scores(expected, ends if isinstance(ends, list) else [ends])
    assert torch.equal(actual.sequences[possible], expected.sequences[possible])
    torch.testing.assert_close(actual.sequences_scores, scores, atol=1e-5, rtol=1e-5)


@st.composite
def search_settings(draw: st.DrawFn) -> dict[str, Any]:
    beams = draw(st.integers(1, 6))
    options: dict[str, Any] = {
        "num_beams": beams,
        "num_return_sequences": draw(st.integers(1, beams)),
        # with a forced first and last token, one to choose: as many hypotheses as are asked for
        "max_new_tokens": draw(st.sampled_from([3, 6, 16])),
        "no_repeat_ngram_size": draw(st.sampled_from([0, 0, 2, 3])),
    }
    if draw(st.booleans()):
        options["forced_bos_token_id"] = draw(st.integers(3, VOCABULARY - 1))
    if draw(st.booleans()):
        options["forced_eos_token_id"] = 2
    if draw(st.booleans()):
        options["repetition_penalty"] = 1.3
    if beams > 1:
        options["length_penalty"] = draw(st.sampled_from([-1.0, 0.0, 0.6, 1.0, 2.0]))
        options["early_stopping"] = draw(st.sampled_from([True, False, "never"]))
    return options


@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=10, deadline=None, derandomize=True)
@given(options=search_settings(), ends=st.integers(0, 3), seed=st.integers(0, 5))
def test_tokens_and_scores_equal_transformers(name: str, options: dict[str, Any], ends: int, seed: int) -> None:
    if ends:
        options["eos_token_id"] = ends_of(name)[:ends]
        # a first token that ends the text leaves one hypothesis, and what fills the other rows means nothing
        assume(options.get("forced_bos_token_id") not in options["eos_token_id"])
    assert_equal(model_of(name), source(seed=seed), **options)


@pytest.mark.parametrize("name", [*KIT_MODELS, "Marian"])
def test_hypotheses_are_independent_of_the_batch(name: str) -> None:
    model, inputs = model_of(name), source(8)
    options = {"num_beams": 3, "num_return_sequences": 2, "eos_token_id": ends_of(name), "early_stopping": False}
    together = ours(model, inputs, **options)
    order = torch.tensor([5, 2, 7, 0, 1, 6, 4, 3])
    shuffled = ours(model, {key: value[order] for key, value in inputs.items()}, **options)
    assert torch.equal(shuffled.sequences.view(8, 2, -1), together.sequences.view(8, 2, -1)[order])
    torch.testing.assert_close(shuffled.sequences_scores.view(8, 2), together.sequences_scores.view(8, 2)[order])
    for row in range(8):
        alone = ours(model, {key: value[row : row + 1] for key, value in inputs.items()}, **options)
        length = alone.sequences.shape[1]
        assert torch.equal(alone.sequences, together.sequences[2 * row : 2 * row + 2, :length])
        torch.testing.assert_close(alone.sequences_scores, together.sequences_scores[2 * row : 2 * row + 2])


@pytest.mark.parametrize("name", KIT_MODELS)
@pytest.mark.parametrize("beams", [1, 3])
def test_every_form_of_source_and_prefix(name: str, beams: int) -> None:
    model, inputs = model_of(name), source()
    with torch.no_grad():
        encoded = model.get_encoder()(**inputs, return_dict=True)
    prefix = torch.tensor([[0, 5, 6]]).expand(SENTENCES, -1)
    mask = {"attention_mask": inputs["attention_mask"]}
    for generate in (stock, ours):  # each changes what it is given
        output = generate(model, {"encoder_outputs": copy.deepcopy(encoded), **mask}, num_beams=beams)
        assert torch.equal(output.sequences, generate(model, inputs, num_beams=beams).sequences)
    assert_equal(model, {"inputs_embeds": model.get_input_embeddings()(inputs["input_ids"]), **mask}, num_beams=beams)
    assert_equal(model, {"input_ids": inputs["input_ids"]}, num_beams=beams)
    assert_equal(model, {**inputs, "decoder_input_ids": prefix}, num_beams=beams)
    padded = {**inputs, "decoder_input_ids": prefix, "decoder_attention_mask": torch.tensor([[0, 1, 1]] * SENTENCES)}
    expected = stock(model, padded, num_beams=beams).sequences
    assert torch.equal(ours(model, padded, num_beams=beams).sequences, expected)


def watch(module: nn.Module, seen: list[Any], measure: Callable[..., Any]) -> Any:
    def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        seen.append(measure(*args, **kwargs))

    return module.register_forward_pre_hook(hook, with_kwargs=True)


def ending(name: str) -> dict[str, Any]:
    """Settings with which sentences finish at different steps."""
    return {"num_beams": 4, "eos_token_id": ends_of(name), "early_stopping": True}


def test_beams_of_the_transformer_share_the_keys_of_their_source() -> None:
    model, options, seen = model_of("post-norm"), ending("post-norm"), []
    layer = model.model.decoder.layers[1].cross_attn

    def shapes(x: Tensor, past_key_values: EncoderDecoderCache, **kwargs: Any) -> tuple[int, int, int]:
        cached = past_key_values.cross_attention_cache.layers
        return len(x), x.shape[1], len(cached[1].keys) if past_key_values.is_updated.get(1) else len(x)

    handle = watch(layer, seen, shapes)
    ours(model, source(8), **options)
    handle.remove()
    assert seen[0] == (8, 1, 8)
    assert all((beams, keys) == (4, sentences) for sentences, beams, keys in seen[1:])
    assert_leaves([sentences for sentences, _, _ in seen], 8)


def test_beams_of_the_recurrent_model_share_the_keys_of_their_source() -> None:
    model, options, seen = model_of("additive"), ending("additive"), []
    handle = watch(model.model.decoder.attention, seen, lambda query, keys, *_: (query.shape[1], len(query), len(keys)))
    ours(model, source(8), **options)
    handle.remove()
    assert seen[0] == (1, 8, 8)
    assert all(beams == 4 and rows == keys for beams, rows, keys in seen[1:])
    assert_leaves([rows for _, rows, _ in seen], 8)


@pytest.mark.parametrize("name", ["Marian", "BART", "T5"])
def test_finished_sentences_leave_the_batch_in_foreign_models(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("the keys of the source were reordered")

    model, options, seen = model_of(name), ending(name), []
    expected = stock(model, source(8), **options)
    monkeypatch.setattr(EncoderDecoderCache, "reorder_cache", refuse)
    handle = watch(model.get_decoder(), seen, lambda **kwargs: len(kwargs["input_ids"]))
    actual = ours(model, source(8), **options)
    handle.remove()
    assert torch.equal(actual.sequences, expected.sequences)
    assert seen[0] == 8  # all beams are the same at first
    assert_leaves([rows / 4 for rows in seen[1:]], 8)


def assert_leaves(sentences: list[float], first: int) -> None:
    assert sentences[0] == first
    assert sentences == sorted(sentences, reverse=True)
    assert sentences[-1] < first


def test_abandoned_positions_are_dropped() -> None:
    model, seen = model_of("pre-norm"), []
    handle = watch(
        model.model.decoder.layers[0].self_attn,
        seen,
        lambda x, attention_mask=None, **_: 1 if attention_mask is None else attention_mask.shape[-1],
    )
    assert_equal(model, source(), num_beams=5, max_new_tokens=30, eos_token_id=29)
    handle.remove()
    mine = seen[len(seen) // 2 :]  # transformers' own search came first
    assert mine[1] == 1 + 5
    assert mine[-1] < 1 + 5 * (len(mine) - 1)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_every_attention_implementation_gives_the_same(implementation: str) -> None:
    model, inputs = model_of("pre-norm"), source()
    expected = stock(model, inputs, num_beams=3)
    before = model.config._attn_implementation
    model.set_attn_implementation(implementation)
    actual = ours(model, inputs, num_beams=3)
    model.set_attn_implementation(before)
    assert torch.equal(actual.sequences, expected.sequences)


class After(StoppingCriteria):
    """Ends every output that contains token 8."""

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        return (input_ids == 8).any(1)


@pytest.mark.parametrize("name", ["pre-norm", "additive"])
@pytest.mark.parametrize(
    "options",
    [
        {"prefix_allowed_tokens_fn": lambda sentence, _: list(range(2 + sentence, 20 + sentence)), "num_beams": 3},
        {"encoder_no_repeat_ngram_size": 1, "num_beams": 3},
        {"stopping_criteria": StoppingCriteriaList([After()])},
        {"output_logits": True, "num_beams": 3},
        {"use_cache": False, "num_beams": 3},
        {"do_sample": True, "num_return_sequences": 3},
        {"do_sample": True, "num_beams": 3},
    ],
    ids=lambda options: next(iter(options)),
)
def test_unsupported_options_fall_back_to_transformers(name: str, options: dict[str, Any]) -> None:
    model, inputs = model_of(name), source()
    torch.manual_seed(0)
    expected = model.generate(**inputs, max_new_tokens=6, **options)
    torch.manual_seed(0)
    assert torch.equal(model.generate(**inputs, max_new_tokens=6, **options, custom_generate=beam_search), expected)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    vocabulary=st.integers(1, 1300) | st.sampled_from([1025, 1040, 4000]),
    beams=st.integers(1, 6),
    number=st.integers(1, 12),
    barred=st.booleans(),
    seed=st.integers(0, 9),
)
def test_best_continuations_equal_a_full_sort(
    vocabulary: int, beams: int, number: int, barred: bool, seed: int
) -> None:
    number = min(number, beams * vocabulary)
    random = torch.Generator().manual_seed(seed)
    log_probs = torch.randn(3, beams, vocabulary, generator=random).log_softmax(-1)
    if barred:  # as a rule does that leaves few tokens
        log_probs = log_probs.masked_fill(torch.rand(log_probs.shape, generator=random) < 0.95, -torch.inf)
    scores = torch.randn(3, beams, generator=random)
    totals, parents, tokens = best_continuations(log_probs, scores, number)
    whole = (log_probs + scores.unsqueeze(-1)).flatten(1)
    assert torch.equal(totals, whole.sort(dim=1, descending=True).values[:, :number])
    positions = parents * vocabulary + tokens
    assert torch.equal(whole.gather(1, positions), totals)
    assert all(len(set(row)) == number for row in positions.tolist())


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("beams", [1, 4])
def test_search_begins_with_the_forced_token(name: str, beams: int) -> None:
    settings = GenerationSettings(beams, 6, forced_bos_token_id=8, num_return_sequences=beams)
    results = search(model_of(name), source(), settings)
    assert all(hypothesis.tokens[0] == 8 for hypotheses in results for hypothesis in hypotheses)


@pytest.mark.parametrize("early_stopping", [False, True, "never"])
@pytest.mark.parametrize("attention", [False, True])
def test_search_returns_no_hypothesis_that_is_impossible(early_stopping: Any, attention: bool) -> None:
    """Where the forced first token ends the output, it is the only one: `generate()` fills the other beams up."""
    for name in KIT_MODELS:
        model = model_of(name)
        how = GenerationSettings(
            4, 5, num_return_sequences=4, forced_bos_token_id=2, early_stopping=early_stopping, length_penalty=2.0
        )
        results = search(model, source(), how, attention)
        assert [[(h.tokens, h.score, h.finished) for h in row] for row in results] == [[([2], 0.0, True)]] * SENTENCES


@pytest.mark.parametrize("beams", [1, 4])
def test_search_with_and_without_attention_agree(beams: int) -> None:
    settings = GenerationSettings(beams, 8, length_penalty=0.7, num_return_sequences=beams)
    for name in KIT_MODELS:
        without_attention, with_attention = (
            search(model_of(name), source(), settings, attention=attention) for attention in (False, True)
        )
        assert [[h.tokens for h in row] for row in without_attention] == [
            [h.tokens for h in row] for row in with_attention
        ]
        for mine, theirs in zip(without_attention, with_attention, strict=True):
            assert [h.score for h in mine] == pytest.approx([h.score for h in theirs], abs=1e-5)


@pytest.mark.parametrize("beams", [1, 4])
def test_hypotheses_are_the_same_without_a_cache(beams: int) -> None:
    model, settings = copy.deepcopy(model_of("pre-norm")), GenerationSettings(num_beams=beams, max_new_tokens=7)
    cached = search(model, source(), settings)
    model.generation_config.use_cache = False  # as `model.use_cache=false` in a recipe
    for (with_cache,), (without,) in zip(cached, search(model, source(), settings), strict=True):
        assert without.tokens == with_cache.tokens
        assert without.score == pytest.approx(with_cache.score, rel=1e-4)


def test_half_precision_and_training_after_decoding() -> None:
    model = transformer().to(torch.bfloat16).eval()
    assert len(ours(model, source(), num_beams=3).sequences) == SENTENCES
    model = transformer()
    with torch.inference_mode():
        ours(model.eval(), source(), num_beams=2)
    labels = source()["input_ids"]
    model.train()(input_ids=labels, labels=labels).loss.backward()  # the table of positions is not of inference
    assert model.lm_head.weight.grad is not None
