"""The recurrent encoder-decoder in `generate()`: every way in, every output, beginnings, caches, refusals."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from kit.decoding.search import search
from kit.decoding.settings import GenerationSettings
from kit.models import RNNSeq2SeqConfig, RNNSeq2SeqForConditionalGeneration
from kit.models.recurrent import RecurrentCache
from kit.verify.generation import perturb_parameters
from kit.verify.subject import Subject, logits_of, random_batch


def tiny(**choices: Any) -> RNNSeq2SeqForConditionalGeneration:
    torch.manual_seed(0)
    sizes = {"vocab_size": 12, "hidden_size": 8, "embedding_size": 6, "encoder_layers": 2, "decoder_layers": 2}
    model = RNNSeq2SeqForConditionalGeneration(RNNSeq2SeqConfig(**sizes, **choices)).double().eval()
    perturb_parameters(model)
    return model


@pytest.fixture(scope="module")
def model() -> RNNSeq2SeqForConditionalGeneration:
    """One model for all tests that do not change it."""
    return tiny(num_attention_heads=2)


@pytest.fixture(scope="module")
def inputs(model: RNNSeq2SeqForConditionalGeneration) -> dict[str, Tensor]:
    return Subject(model, random_batch(model, 0, examples=4, longest_source=6, longest_target=5)).inputs()


@pytest.fixture(scope="module")
def source(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: inputs[name] for name in ("input_ids", "attention_mask")}


def generate(model: PreTrainedModel, source: dict[str, Any], **options: Any) -> Any:
    return model.generate(**source, **{"max_new_tokens": 6, "do_sample": False, **options})


def test_the_source_can_be_given_in_several_ways(
    model: RNNSeq2SeqForConditionalGeneration, source: dict[str, Tensor]
) -> None:
    with torch.no_grad():
        encoded = model.get_encoder()(**source, return_dict=True)
        embeds = model.get_input_embeddings()(source["input_ids"])
    mask = {"attention_mask": source["attention_mask"]}
    for beams in (1, 3):
        expected = generate(model, source, num_beams=beams)
        assert torch.equal(generate(model, {"inputs_embeds": embeds, **mask}, num_beams=beams), expected)
        again = copy.deepcopy(encoded)
        assert torch.equal(generate(model, {"encoder_outputs": again, **mask}, num_beams=beams), expected)


def test_sampling_repeats_with_its_seed_and_gives_the_number_asked_for(
    model: RNNSeq2SeqForConditionalGeneration, source: dict[str, Tensor]
) -> None:
    def sample(seed: int, **options: Any) -> Tensor:
        torch.manual_seed(seed)
        return generate(model, source, do_sample=True, top_k=0, **options)

    assert torch.equal(sample(1, num_return_sequences=3), sample(1, num_return_sequences=3))
    assert sample(1, num_return_sequences=3).shape[0] == 12
    assert any(not torch.equal(sample(1), sample(seed)) for seed in range(2, 6))
    assert torch.equal(sample(1, num_beams=2), sample(1, num_beams=2))


def test_sampled_tokens_follow_the_distribution(model: RNNSeq2SeqForConditionalGeneration) -> None:
    inputs = {"input_ids": torch.tensor([[3, 4, 5, 2]]), "attention_mask": torch.ones(1, 4, dtype=torch.long)}
    torch.manual_seed(0)
    drawn = generate(model, inputs, do_sample=True, top_k=0, num_return_sequences=4000, max_new_tokens=1)[:, 1]
    expected = logits_of(model, {**inputs, "decoder_input_ids": torch.tensor([[0]])})[0, -1].softmax(-1)
    frequencies = torch.bincount(drawn, minlength=12) / len(drawn)
    torch.testing.assert_close(frequencies.double(), expected, atol=0.04, rtol=0)


def test_hypotheses_are_sorted_by_score(model: RNNSeq2SeqForConditionalGeneration, source: dict[str, Tensor]) -> None:
    settings = GenerationSettings(num_beams=5, num_return_sequences=5, max_new_tokens=6)
    for hypotheses in search(model, source, settings):
        scores = [hypothesis.score for hypothesis in hypotheses]
        assert scores == sorted(scores, reverse=True)
        assert len({tuple(hypothesis.tokens) for hypothesis in hypotheses}) == 5


@pytest.mark.parametrize("ends", [[7], [2, 7]])
def test_each_end_marker_ends_a_hypothesis(source: dict[str, Tensor], ends: list[int]) -> None:
    model = tiny()
    model.generation_config.eos_token_id = ends
    results = [
        hypothesis
        for beams in (1, 4)
        for hypotheses in search(model, source, GenerationSettings(beams, 8, num_return_sequences=beams))
        for hypothesis in hypotheses
    ]
    assert any(hypothesis.finished for hypothesis in results)
    for hypothesis in results:
        assert not set(hypothesis.tokens[:-1]) & set(ends)
        assert hypothesis.finished == (hypothesis.tokens[-1] in ends)
        assert hypothesis.finished or len(hypothesis.tokens) == 8


@pytest.mark.parametrize("beams", [1, 4])
def test_attention_of_a_hypothesis_is_that_of_teacher_forcing(
    model: RNNSeq2SeqForConditionalGeneration, source: dict[str, Tensor], beams: int
) -> None:
    settings = GenerationSettings(beams, 6, num_return_sequences=beams)
    for row, hypotheses in enumerate(search(model, source, settings, attention=True)):
        for hypothesis in hypotheses:
            row_source = {name: tensor[row : row + 1] for name, tensor in source.items()}
            target = torch.tensor([[0, *hypothesis.tokens[:-1]]])
            with torch.no_grad():
                output = model(**row_source, decoder_input_ids=target, output_attentions=True)
            assert hypothesis.attention is not None
            torch.testing.assert_close(hypothesis.attention, output.cross_attentions[0][0])


def test_requested_outputs_are_returned(model: RNNSeq2SeqForConditionalGeneration, source: dict[str, Tensor]) -> None:
    flags = ("output_scores", "output_logits", "output_hidden_states", "output_attentions", "return_dict_in_generate")
    for beams in (1, 3):
        output = generate(model, source, num_beams=beams, min_new_tokens=6, **dict.fromkeys(flags, True))
        rows, read = len(source["input_ids"]) * beams, source["input_ids"].shape[1]
        assert len(output.scores) == len(output.logits) == len(output.cross_attentions) == 6
        assert {tuple(step.shape) for step in output.scores} == {(rows, 12)}
        assert {tuple(layer.shape) for step in output.cross_attentions for layer in step} == {(rows, 2, 1, read)}
        assert {tuple(step[-1].shape) for step in output.decoder_hidden_states} == {(rows, 1, 8)}
        assert len(output.encoder_hidden_states) == 3
        assert isinstance(output.past_key_values, RecurrentCache)


def test_generation_settings_reach_the_search(
    model: RNNSeq2SeqForConditionalGeneration, source: dict[str, Tensor]
) -> None:
    tokens = generate(model, source, num_beams=3, no_repeat_ngram_size=1, max_new_tokens=8, eos_token_id=None)
    assert all(len(set(row)) == len(row) for row in tokens.tolist())
    assert not (generate(model, source, suppress_tokens=[5, 6], max_new_tokens=8)[:, 1:] == 5).any()
    assert (generate(model, source, forced_bos_token_id=9)[:, 1] == 9).all()


def prompts() -> tuple[Tensor, Tensor]:
    """Prefixes of different lengths, including START, padded on the left."""
    return torch.tensor([[0, 5, 6, 7], [1, 0, 8, 9], [1, 1, 0, 5], [1, 1, 1, 0]]), torch.tensor(
        [[1, 1, 1, 1], [0, 1, 1, 1], [0, 0, 1, 1], [0, 0, 0, 1]]
    )


@pytest.mark.parametrize("query", ["previous", "current"])
def test_left_padded_prefixes_are_independent_of_the_batch(query: str, source: dict[str, Tensor]) -> None:
    model = tiny(attention_query=query)
    tokens, mask = prompts()
    begun = {"decoder_input_ids": tokens, "decoder_attention_mask": mask}
    logits = logits_of(model, {**source, **begun})
    for beams in (1, 3):
        together = generate(model, {**source, **begun}, num_beams=beams, eos_token_id=None)
        for row in range(4):
            row_source = {name: tensor[row : row + 1] for name, tensor in source.items()}
            beginning = tokens[row : row + 1, row:]
            torch.testing.assert_close(
                logits[row : row + 1, row:], logits_of(model, {**row_source, "decoder_input_ids": beginning})
            )
            alone = generate(model, {**row_source, "decoder_input_ids": beginning}, num_beams=beams, eos_token_id=None)
            assert torch.equal(together[row : row + 1, 4:], alone[:, 4 - row :])


@torch.no_grad()
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_leaves_the_cached_state_alone_in_pieces_too(side: str, source: dict[str, Tensor]) -> None:
    """The mask of a piece may look like padding on the right, and still be followed by real tokens."""
    model = tiny()
    tokens, mask = prompts()
    if side == "right":
        tokens, mask = tokens.flip(1), mask.flip(1)
    cache = RecurrentCache()
    for t in range(4):
        piece = {"decoder_input_ids": tokens[:, t : t + 1], "decoder_attention_mask": mask[:, : t + 1]}
        cache = model(**source, **piece, past_key_values=cache, use_cache=True).past_key_values
    for row in range(4):
        row_source = {name: tensor[row : row + 1] for name, tensor in source.items()}
        alone = model(
            **row_source, decoder_input_ids=tokens[row : row + 1, mask[row] == 1], use_cache=True
        ).past_key_values
        for name, state in alone.state.items():
            torch.testing.assert_close(cache.state[name][row : row + 1], state)


@pytest.mark.parametrize("with_mask", [False, True])
def test_generation_continues_from_a_cache(source: dict[str, Tensor], with_mask: bool) -> None:
    model = tiny()
    whole = generate(model, source, eos_token_id=None)
    begun = generate(model, source, eos_token_id=None, max_new_tokens=3, return_dict_in_generate=True)
    continuation = {"decoder_input_ids": begun.sequences, "past_key_values": begun.past_key_values}
    if with_mask:
        continuation["decoder_attention_mask"] = torch.ones_like(begun.sequences)
    assert torch.equal(generate(model, {**source, **continuation}, eos_token_id=None, max_new_tokens=3), whole)


def test_generation_continues_from_the_new_token_alone(source: dict[str, Tensor]) -> None:
    model = tiny()
    whole = generate(model, source, eos_token_id=None)
    begun = generate(model, source, eos_token_id=None, max_new_tokens=3, return_dict_in_generate=True)
    continuation = {"decoder_input_ids": begun.sequences[:, -1:], "past_key_values": begun.past_key_values}
    continuation["decoder_attention_mask"] = torch.ones_like(begun.sequences)
    with torch.no_grad():
        logits = model(**source, **continuation).logits
    assert torch.equal(logits[:, -1].argmax(-1), whole[:, 4])


@torch.no_grad()
def test_the_cache_follows_the_rows_of_the_batch(
    model: RNNSeq2SeqForConditionalGeneration, inputs: dict[str, Tensor]
) -> None:
    cache = model(**inputs, use_cache=True).past_key_values
    before = {name: tensor.clone() for name, tensor in cache.state.items()}
    assert cache.get_seq_length() == inputs["decoder_input_ids"].shape[1]
    cache.reorder_cache(torch.tensor([3, 2, 1, 0]))
    assert all(torch.equal(cache.state[name], tensor.flip(0)) for name, tensor in before.items())
    cache.batch_repeat_interleave(2)
    assert all(len(tensor) == 8 for tensor in cache.state.values())
    cache.batch_select_indices(torch.tensor([0, 2]))
    assert all(torch.equal(cache.state[name], tensor.flip(0)[:2]) for name, tensor in before.items())
    with pytest.raises(ValueError, match="cannot go back"):
        cache.crop(-1)
    cache.reset()
    assert cache.get_seq_length() == 0
    assert cache.state == {}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cache_implementation": "static"}, "a recurrent decoder has a state"),
        ({"prompt_lookup_num_tokens": 2}, "not supported with stateful models"),
    ],
)
def test_unsupported_generation_modes_are_rejected(
    model: RNNSeq2SeqForConditionalGeneration, source: dict[str, Tensor], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        generate(model, source, **options)


def test_assisted_decoding_is_refused(model: RNNSeq2SeqForConditionalGeneration, source: dict[str, Tensor]) -> None:
    with pytest.raises(ValueError, match="not supported with stateful models"):
        generate(model, source, assistant_model=model)
