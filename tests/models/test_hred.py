"""The dialogue model: turns and tokens with and without padding, and the proofs that all decoders share."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.decoder_proofs import (
    CHOICES,
    assert_beam_search_finds_the_best,
    assert_cache_changes_nothing,
    assert_every_parameter_has_a_gradient,
    assert_loss_is_that_of_the_labels,
    assert_searches_agree,
    labels_of,
    name_of,
    overfit,
    trained_by_trainer,
)
from torch import Tensor
from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM

from kit.data.builtin import dialogues
from kit.models import HREDConfig, HREDForConditionalGeneration, HREDModel, register_models
from kit.verify.generation import perturb_parameters
from kit.verify.subject import logits_of

TARGET = torch.tensor([[0, 3, 4, 3], [0, 4, 4, 1], [0, 3, 3, 4]])
LENGTHS = ((3, 1, 4), (2,), (1, 5))  # of the turns of three dialogues


def tiny(**choices: Any) -> HREDForConditionalGeneration:
    """A random model in float64, with every parameter perturbed."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 5, "hidden_size": 4, "embedding_size": 3}
    model = HREDForConditionalGeneration(HREDConfig(**{**sizes, **choices})).double().eval()
    perturb_parameters(model)
    return model


def random_dialogues(lengths: tuple[tuple[int, ...], ...] = LENGTHS, vocabulary: int = 5) -> list[list[Tensor]]:
    """Dialogues of random tokens, with turns of these lengths."""
    chance = torch.Generator().manual_seed(2)
    return [[torch.randint(3, vocabulary, (n,), generator=chance) for n in turns] for turns in lengths]


def padded(
    spoken: list[list[Tensor]], turns: int = 0, tokens: int = 0, left: tuple[bool, bool] = (False, False)
) -> dict[str, Tensor]:
    """Dialogues in one batch, padded by further turns and tokens on either side, with arbitrary tokens as padding."""
    max_turns, longest = (
        max(map(len, spoken)) + turns,
        max(len(turn) for dialogue in spoken for turn in dialogue) + tokens,
    )
    ids = torch.randint(5, (len(spoken), max_turns, longest), generator=torch.Generator().manual_seed(3))
    mask = torch.zeros_like(ids)
    for row, dialogue in enumerate(spoken):
        for number, turn in enumerate(dialogue):
            position = max_turns - len(dialogue) + number if left[0] else number
            columns = slice(longest - len(turn), None) if left[1] else slice(len(turn))
            ids[row, position, columns], mask[row, position, columns] = turn, 1
    return {"input_ids": ids, "attention_mask": mask}


# ---- what all writers have in common ---------------------------------------------------------------------------------


@pytest.mark.parametrize("choices", CHOICES, ids=name_of)
def test_search_cache_loss_and_gradients(choices: dict[str, Any]) -> None:
    include_utterances = choices["attention"] in ("none", "additive", "scaled_dot", "rbf")
    model, source = tiny(**choices, include_utterances=include_utterances), padded(random_dialogues())
    few = {name: tensor[:2] for name, tensor in source.items()}
    assert_beam_search_finds_the_best(model, few)
    assert_cache_changes_nothing(model, source, TARGET)
    assert_searches_agree(model, few)
    labels = labels_of(3, 4, 5)
    assert_loss_is_that_of_the_labels(model, source, labels)
    assert_every_parameter_has_a_gradient(model, {**source, "labels": labels})


OTHER_CHOICES: list[dict[str, Any]] = [
    {"bidirectional": False, "cell": "gru"},
    {"utterance_layers": 2, "context_layers": 2, "decoder_layers": 2},
    {"utterance_hidden_size": 5, "context_hidden_size": 6, "cell": "rnn"},
    {"share_encoder_decoder_embeddings": False, "tie_word_embeddings": True, "include_utterances": False},
    {"attention": "none", "context_to": []},
]


# ---- turns -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("choices", OTHER_CHOICES, ids=lambda choices: "-".join(map(str, choices)))
def test_padding_of_turns_and_tokens_changes_nothing(choices: dict[str, Any]) -> None:
    model, spoken = tiny(**choices), random_dialogues()
    alone = [
        logits_of(model, {"input_ids": padded([dialogue])["input_ids"], "decoder_input_ids": TARGET[row : row + 1]})
        for row, dialogue in enumerate(spoken)
        if len({*map(len, dialogue)}) == 1
    ]
    assert alone  # without any mask, where nothing is padded
    torch.testing.assert_close(
        alone[0], logits_of(model, {**padded([spoken[1]], 2, 3), "decoder_input_ids": TARGET[1:2]})
    )
    expected = torch.cat(
        [
            logits_of(model, {**padded([dialogue]), "decoder_input_ids": TARGET[row : row + 1]})
            for row, dialogue in enumerate(spoken)
        ]
    )
    for turns, tokens, left in (
        (0, 0, (False, False)),
        (2, 3, (False, False)),
        (1, 2, (True, True)),
        (1, 1, (True, False)),
    ):
        actual = logits_of(model, {**padded(spoken, turns, tokens, left), "decoder_input_ids": TARGET})
        torch.testing.assert_close(actual, expected)


@given(
    lengths=st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=4).map(tuple), min_size=1, max_size=4),
    extra=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    left=st.tuples(st.booleans(), st.booleans()),
)
@settings(max_examples=25, deadline=None)
def test_any_dialogue_is_read_as_if_it_were_alone(
    lengths: list[tuple[int, ...]], extra: tuple[int, int], left: tuple[bool, bool]
) -> None:
    encoder, spoken = tiny(context_layers=2).get_encoder(), random_dialogues(tuple(lengths))
    with torch.no_grad():
        together = encoder(**padded(spoken, *extra, left))
        for row, dialogue in enumerate(spoken):
            alone = encoder(**padded([dialogue]))
            torch.testing.assert_close(together.final_hidden[row], alone.final_hidden[0])
            torch.testing.assert_close(
                together.last_hidden_state[row][together.memory_mask[row]], alone.last_hidden_state[0]
            )


@torch.no_grad()
def test_an_empty_turn_between_two_others_is_no_turn() -> None:
    model = tiny()
    with_hole = torch.tensor([[[3, 4], [1, 1], [4, 3]]])
    mask = torch.tensor([[[1, 1], [0, 0], [1, 1]]])
    target = {"decoder_input_ids": TARGET[:1]}
    actual = logits_of(model, {"input_ids": with_hole, "attention_mask": mask, **target})
    torch.testing.assert_close(actual, logits_of(model, {"input_ids": with_hole[:, ::2], **target}))
    nothing = model(input_ids=with_hole, attention_mask=torch.zeros_like(mask), **target)
    assert nothing.logits.isfinite().all()


@torch.no_grad()
def test_a_turn_is_the_final_state_of_its_tokens_and_turns_are_read_in_order() -> None:
    model = tiny(cell="gru")
    encoder = model.get_encoder()
    (layer,), (above,) = encoder.utterance_layers, encoder.context_layers
    [turns] = random_dialogues(((3, 2),))
    vectors = []
    for turn in turns:
        _, final = layer(encoder.embed_tokens(turn).unsqueeze(0))  # (directions, 1, utterance_hidden_size)
        vectors.append(final.flatten())
    utterances = torch.stack(vectors).unsqueeze(0)  # (1, turns, utterance_width)
    states, _ = above(utterances)
    encoded = encoder(**padded([turns]))
    torch.testing.assert_close(encoded.last_hidden_state, torch.cat([states, utterances], dim=-1))
    torch.testing.assert_close(encoded.final_hidden[:, 0], encoded.last_hidden_state[:, -1])
    plain = tiny(cell="gru", include_utterances=False).get_encoder()
    plain.load_state_dict({**plain.state_dict(), **{n: t for n, t in encoder.state_dict().items() if "layers" in n}})
    plain.embed_tokens = encoder.embed_tokens
    torch.testing.assert_close(plain(**padded([turns])).last_hidden_state, states)


@torch.no_grad()
def test_attention_is_over_the_turns() -> None:
    model = tiny(num_attention_heads=2)
    (weights,) = model(
        **padded(random_dialogues(), 1, 2), decoder_input_ids=TARGET, output_attentions=True
    ).cross_attentions
    assert weights.shape == (3, 2, 4, 4)
    torch.testing.assert_close(weights.sum(-1), torch.ones(3, 2, 4).double())
    for row, lengths in enumerate(LENGTHS):
        assert (weights[row, ..., : len(lengths)] > 0).all()
        assert (weights[row, ..., len(lengths) :] == 0).all()


@torch.no_grad()
def test_word_vectors_can_be_given_and_everything_is_real_without_a_mask() -> None:
    model = tiny()
    ids = torch.tensor([[[3, 4, 1], [4, 4, 3]]])
    target = {"decoder_input_ids": TARGET[:1]}
    expected = logits_of(model, {"input_ids": ids, "attention_mask": torch.ones_like(ids), **target})
    assert torch.equal(logits_of(model, {"input_ids": ids, **target}), expected)
    embeds = model.get_input_embeddings()(ids)
    assert torch.equal(logits_of(model, {"inputs_embeds": embeds, **target}), expected)
    for beams in (1, 2):
        options = {"num_beams": beams, "max_new_tokens": 4}
        written = model.generate(ids, attention_mask=torch.ones_like(ids), **options)
        assert torch.equal(model.generate(ids, **options), written)
        assert torch.equal(model.generate(inputs_embeds=embeds, **options), written)


# ---- among transformers' models --------------------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize("choices", OTHER_CHOICES[:4], ids=lambda choices: "-".join(map(str, choices)))
def test_save_and_load(choices: dict[str, Any], tmp_path: Path) -> None:
    register_models()
    model = tiny(**choices)
    model.save_pretrained(tmp_path)
    inputs = {**padded(random_dialogues()), "decoder_input_ids": TARGET}
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, dtype="auto")
    assert isinstance(loaded, HREDForConditionalGeneration)
    assert {**AutoConfig.from_pretrained(tmp_path).to_dict(), "_name_or_path": ""} == model.config.to_dict()
    assert torch.equal(logits_of(loaded, inputs), logits_of(model, inputs))
    bare = AutoModel.from_pretrained(tmp_path, dtype="auto")
    assert isinstance(bare, HREDModel)
    assert torch.equal(model.lm_head(bare(**inputs).last_hidden_state), logits_of(model, inputs))


@pytest.mark.parametrize(
    "choices", [{}, {"share_encoder_decoder_embeddings": False}, {"tie_word_embeddings": True}], ids=str
)
def test_resized_vocabulary_keeps_logits(choices: dict[str, bool]) -> None:
    model = tiny(**choices)
    inputs = {**padded(random_dialogues()), "decoder_input_ids": TARGET}
    before = logits_of(model, inputs)
    model.resize_token_embeddings(9)
    assert model.config.vocab_size == model.config.decoder_vocab_size == 9
    assert model.lm_head.out_features == model.model.target_embeddings.num_embeddings == 9
    torch.testing.assert_close(logits_of(model, inputs)[..., :5], before)


def dialogue_batch(number: int) -> tuple[dict[str, Tensor], int]:
    """Dialogues of builtin:dialogues by words, and the size of their vocabulary."""
    rows = dialogues.generate({"train": number, "validation": 1, "test": 1})["train"].to_pylist()
    spoken = [[turn.split() for turn in row["turns"]] for row in rows]
    answers = [row["response"].split() for row in rows]
    words = sorted({word for row in [*(turn for dialogue in spoken for turn in dialogue), *answers] for word in row})
    numbers = {word: i for i, word in enumerate(words, start=3)}
    batch = padded([[torch.tensor([numbers[word] for word in turn]) for turn in dialogue] for dialogue in spoken])
    labels = torch.full((number, 1 + max(map(len, answers))), -100)
    for row, answer in zip(labels, answers, strict=True):
        row[: len(answer) + 1] = torch.tensor([*(numbers[word] for word in answer), 2])
    return {**batch, "labels": labels}, 3 + len(words)


@pytest.mark.parametrize("choices", [CHOICES[0], CHOICES[2]], ids=name_of)
def test_model_overfits_a_few_dialogues(choices: dict[str, Any]) -> None:
    batch, vocabulary = dialogue_batch(8)
    torch.manual_seed(0)
    model = HREDForConditionalGeneration(HREDConfig(vocab_size=vocabulary, hidden_size=32, **choices))
    assert overfit(model, batch, 100, rate=0.02) < 0.05
    source = {name: batch[name] for name in ("input_ids", "attention_mask")}
    written = model.generate(**source, num_beams=3, max_new_tokens=batch["labels"].shape[1])[:, 1:]
    real = batch["labels"][:, : written.shape[1]] != -100
    assert torch.equal(written[real], batch["labels"][:, : written.shape[1]][real])


def test_the_trainer_trains_and_generates(tmp_path: Path) -> None:
    torch.manual_seed(0)
    batch, vocabulary = dialogue_batch(6)
    model = HREDForConditionalGeneration(HREDConfig(vocab_size=vocabulary, hidden_size=16, dropout=0.1))
    outcome = trained_by_trainer(model, batch, tmp_path, num_train_epochs=20, gradient_accumulation_steps=2)
    assert outcome["after"] < outcome["before"] / 2
    assert outcome["tokens"].shape[0] == 6


# ---- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"input_ids": torch.tensor([[3, 4]])}, r"must be \(batch, turns, tokens\), not of shape \(1, 2\)"),
        (
            {"input_ids": torch.tensor([[[3, 4]]]), "attention_mask": torch.ones(1, 1)},
            r"the shape of input_ids, \(1, 1, 2\), not \(1, 1\)",
        ),
        ({}, "exactly one of input_ids and inputs_embeds"),
    ],
)
def test_wrong_shapes_are_refused(inputs: dict[str, Tensor], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tiny()(**inputs, decoder_input_ids=TARGET[:1])


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"utterance_layers": 0}, "utterance_layers must be at least 1"),
        ({"context_hidden_size": 0}, "context_hidden_size must be at least 1"),
        ({"attention": "dot", "include_utterances": False, "context_hidden_size": 5}, "change context_hidden_size"),
        ({"decoder_vocab_size": 9}, "this model has one vocabulary"),
        ({"feedback": "sample"}, "no effect without scheduled_sampling"),
    ],
)
def test_invalid_configurations_are_rejected(choices: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        HREDConfig(**{"vocab_size": 8, "hidden_size": 8, **choices})
