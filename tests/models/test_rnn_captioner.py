"""The captioner: images with and without padding, and the proofs that all decoders share."""

import io
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
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
from torch import Tensor, nn
from transformers import AutoConfig, AutoImageProcessor, AutoModel, AutoModelForImageTextToText

from kit.data.builtin import shapes
from kit.models import RNNCaptionerConfig, RNNCaptionerForConditionalGeneration, RNNCaptionerModel, register_models
from kit.models.modeling_rnn_captioner import position_coordinates
from kit.tasks.captioning.images import image_processor_of
from kit.verify.generation import perturb_parameters
from kit.verify.subject import logits_of

RESNET = {"model_type": "resnet", "embedding_size": 4, "hidden_sizes": [4, 6], "depths": [1, 1], "layer_type": "basic"}


def tiny(**choices: Any) -> RNNCaptionerForConditionalGeneration:
    """A random model in float64, with every parameter perturbed."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 5, "hidden_size": 4, "embedding_size": 3, "cnn_channels": [4, 6]}
    model = RNNCaptionerForConditionalGeneration(RNNCaptionerConfig(**{**sizes, **choices})).double().eval()
    perturb_parameters(model)
    return model


def images(*sizes: tuple[int, int]) -> dict[str, Tensor]:
    """Noise of several heights and widths, in one batch, with other noise around it."""
    torch.manual_seed(1)
    height, width = (max(side) for side in zip(*sizes, strict=True))
    mask = torch.zeros(len(sizes), height, width, dtype=torch.long)
    for row, (h, w) in enumerate(sizes):
        mask[row, :h, :w] = 1
    return {"pixel_values": torch.randn(len(sizes), 3, height, width).double(), "pixel_mask": mask}


SOME_SIZES = ((9, 12), (7, 12), (9, 5), (1, 3))
TARGET = torch.tensor([[0, 3, 4, 3], [0, 4, 4, 1], [0, 3, 3, 4], [0, 4, 3, 4]])


# ---- what all writers have in common ---------------------------------------------------------------------------------


@pytest.mark.parametrize("choices", CHOICES, ids=name_of)
def test_search_cache_loss_and_gradients(choices: dict[str, Any]) -> None:
    model, source = tiny(**choices), images(*SOME_SIZES)
    few = {name: tensor[:2] for name, tensor in source.items()}
    assert_beam_search_finds_the_best(model, few)
    assert_cache_changes_nothing(model, source, TARGET)
    assert_searches_agree(model, few)
    labels = labels_of(4, 4, 5)
    assert_loss_is_that_of_the_labels(model, source, labels)
    assert_every_parameter_has_a_gradient(model, {**source, "labels": labels})


# ---- images ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("choices", CHOICES[:3], ids=name_of)
@pytest.mark.parametrize("blocks", [0, 2])
def test_padding_of_pixels_changes_nothing(choices: dict[str, Any], blocks: int) -> None:
    model, source = tiny(**choices, cnn_blocks=blocks, cnn_channels=[4, 5, 6]), images(*SOME_SIZES)
    together = logits_of(model, {**source, "decoder_input_ids": TARGET})
    written = model.generate(**source, max_new_tokens=4, num_beams=2, eos_token_id=None)
    for row, (height, width) in enumerate(SOME_SIZES):
        alone = {"pixel_values": source["pixel_values"][row : row + 1, :, :height, :width]}
        single = {**alone, "decoder_input_ids": TARGET[row : row + 1]}
        torch.testing.assert_close(together[row : row + 1], logits_of(model, single))
        actual = model.generate(**alone, max_new_tokens=4, num_beams=2, eos_token_id=None)
        assert torch.equal(actual, written[row : row + 1])


@torch.no_grad()
def test_heat_maps_are_distributions_over_the_image() -> None:
    model, source = tiny(num_attention_heads=2), images(*SOME_SIZES)
    rows, columns = model.feature_shape(9, 12)
    assert (rows, columns) == (3, 3)
    (weights,) = model(**source, decoder_input_ids=TARGET, output_attentions=True).cross_attentions
    maps = weights.unflatten(-1, (rows, columns))  # (batch, heads, target, rows, columns)
    torch.testing.assert_close(maps.sum((-1, -2)), torch.ones(4, 2, 4).double())
    for row, (height, width) in enumerate(SOME_SIZES):
        inside = maps[row, :, :, : -(-height // 4), : -(-width // 4)]
        assert (inside > 0).all()
        torch.testing.assert_close(inside.sum((-1, -2)), torch.ones(2, 4).double())


@torch.no_grad()
def test_the_decoder_starts_from_the_mean_of_the_features() -> None:
    encoder, source = tiny().get_encoder(), images((9, 12), (9, 12))
    encoded = encoder(pixel_values=source["pixel_values"])
    assert encoded.last_hidden_state.shape == (2, 9, 4)
    torch.testing.assert_close(encoded.final_hidden[:, 0], encoded.last_hidden_state.mean(1))
    assert torch.equal(encoded.final_cell, encoded.final_hidden)
    assert tiny(cell="gru").get_encoder()(pixel_values=source["pixel_values"]).final_cell is None


def test_position_coordinates_span_the_unpadded_image() -> None:
    mask = torch.tensor([[[1, 1, 1], [1, 1, 1]], [[1, 1, 0], [0, 0, 0]]]).bool()
    coordinates = position_coordinates(torch.zeros(2, 5, 2, 3), mask)
    assert coordinates.shape == (2, 2, 3, 2)
    assert coordinates[0, :, :, 0].tolist() == [[-1, -1, -1], [1, 1, 1]]
    assert coordinates[0, 0, :, 1].tolist() == [-1, 0, 1]
    assert coordinates[1, 0, :2].tolist() == [[-1, -1], [-1, 1]]
    assert torch.equal(position_coordinates(torch.zeros(2, 5, 2, 3), None)[0], coordinates[0])


@torch.no_grad()
def test_feature_positions_distinguish_places_of_a_uniform_image() -> None:
    plain = {"pixel_values": torch.full((1, 3, 40, 40), 0.3).double()}
    for knows, same in ((False, True), (True, False)):
        states = tiny(feature_positions=knows).get_encoder()(**plain).last_hidden_state[0].view(10, 10, 4)
        assert torch.allclose(states[4, 4], states[5, 5]) == same


def test_a_backbone_of_transformers_reads_images_of_one_size(tmp_path: Path) -> None:
    register_models()
    model = tiny(backbone_config=RESNET)
    assert type(model.get_encoder().network.network).__name__ == "ResNetBackbone"
    source = {"pixel_values": images((16, 16), (16, 16))["pixel_values"]}
    assert_beam_search_finds_the_best(model, source)
    with pytest.raises(ValueError, match="resize them to one size"):
        model(**images((16, 16), (8, 16)), decoder_input_ids=TARGET[:2])
    everything_real = {**source, "pixel_mask": torch.ones(2, 16, 16)}
    target = {"decoder_input_ids": TARGET[:2]}
    assert torch.equal(logits_of(model, {**everything_real, **target}), logits_of(model, {**source, **target}))
    model.save_pretrained(tmp_path)
    loaded = AutoModelForImageTextToText.from_pretrained(tmp_path, dtype="auto")
    assert torch.equal(logits_of(loaded, {**source, **target}), logits_of(model, {**source, **target}))
    new = RNNCaptionerForConditionalGeneration.from_pretrained(None, config=model.config, state_dict={})
    assert all(parameter.isfinite().all() for parameter in new.parameters())
    assert_every_parameter_has_a_gradient(model.train(), {**source, "labels": labels_of(2, 4, 5)})


# ---- among transformers' models --------------------------------------------------------------------------------------


@torch.no_grad()
def test_save_and_load_with_image_processor(tmp_path: Path) -> None:
    register_models()
    model = tiny(image_size=8)
    processor = image_processor_of(model.config)
    model.save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    loaded = AutoModelForImageTextToText.from_pretrained(tmp_path, dtype="auto")
    assert {**AutoConfig.from_pretrained(tmp_path).to_dict(), "_name_or_path": ""} == model.config.to_dict()
    again = AutoImageProcessor.from_pretrained(tmp_path)
    pictures = [Image.new(mode, (30, 20)) for mode in ("RGB", "RGBA", "L")]
    pictures[0].paste((255, 0, 127), (0, 0, 30, 20))
    pixels = again(pictures, return_tensors="pt").pixel_values
    assert pixels.shape == (3, 3, 8, 8)
    assert pixels[0, :, 0, 0].tolist() == pytest.approx([1.0, -1.0, 127 / 127.5 - 1])
    assert torch.equal(pixels, processor(pictures, return_tensors="pt").pixel_values)
    inputs = {"pixel_values": pixels, "decoder_input_ids": TARGET[:3]}
    assert torch.equal(logits_of(loaded, inputs), logits_of(model, inputs))
    bare = AutoModel.from_pretrained(tmp_path, dtype="auto")
    assert isinstance(bare, RNNCaptionerModel)
    assert torch.equal(model.lm_head(bare(**inputs).last_hidden_state), logits_of(model, inputs))


@pytest.mark.parametrize("tied", [True, False])
def test_resized_vocabulary_keeps_logits(tied: bool) -> None:
    model = tiny(tie_word_embeddings=tied)
    inputs = {**images((8, 8)), "decoder_input_ids": TARGET[:1]}
    before = logits_of(model, inputs)
    model.resize_token_embeddings(9)
    assert model.config.vocab_size == model.config.decoder_vocab_size == 9
    assert model.lm_head.out_features == model.get_input_embeddings().num_embeddings == 9
    assert (model.lm_head.weight is model.get_input_embeddings().weight) == tied
    torch.testing.assert_close(logits_of(model, inputs)[..., :5], before)


def test_initialization() -> None:
    model = RNNCaptionerForConditionalGeneration(RNNCaptionerConfig(vocab_size=20, hidden_size=16))
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            spread = float(module.weight.detach().std()) * module.weight[0].numel() ** 0.5
            assert spread == pytest.approx(2**0.5, rel=0.2)
            assert (module.bias == 0).all()


def scenes(number: int) -> tuple[dict[str, Tensor], RNNCaptionerConfig]:
    """Scenes of builtin:shapes, small, as a batch, and a model to learn them."""
    rows = shapes.generate({"train": number, "validation": 1, "test": 1})["train"].to_pylist()
    captions = [row["caption"] for row in rows]
    words = ["<s>", "<pad>", "</s>", *sorted({word for caption in captions for word in caption.split()})]
    config = RNNCaptionerConfig(vocab_size=len(words), hidden_size=32, cnn_channels=[8, 16, 32], image_size=32)
    pictures = [Image.open(io.BytesIO(row["image"]["bytes"])) for row in rows]
    longest = max(len(caption.split()) for caption in captions) + 1
    labels = torch.full((number, longest), -100)
    for row, caption in zip(labels, captions, strict=True):
        tokens = [*(words.index(word) for word in caption.split()), 2]
        row[: len(tokens)] = torch.tensor(tokens)
    pixels = image_processor_of(config)(pictures, return_tensors="pt").pixel_values
    return {"pixel_values": pixels, "labels": labels}, config


def test_model_overfits_a_few_scenes() -> None:
    batch, config = scenes(8)
    torch.manual_seed(0)
    model = RNNCaptionerForConditionalGeneration(config)
    assert overfit(model, batch, 80) < 0.05
    written = model.generate(pixel_values=batch["pixel_values"], num_beams=3, max_new_tokens=12)[:, 1:]
    width = min(written.shape[1], batch["labels"].shape[1])
    real = batch["labels"][:, :width] != -100
    assert torch.equal(written[:, :width][real], batch["labels"][:, :width][real])


def test_scheduled_sampling_is_part_of_training() -> None:
    model = tiny(scheduled_sampling=1.0, feedback="sample")
    batch = {**images((8, 8), (8, 8)), "labels": labels_of(2, 4, 5)}
    teacher = model(**batch).loss
    model.train()
    torch.manual_seed(0)
    assert not torch.allclose(model(**batch).loss, teacher)


def test_the_trainer_trains_and_generates(tmp_path: Path) -> None:
    model = RNNCaptionerForConditionalGeneration(RNNCaptionerConfig(vocab_size=8, hidden_size=16, cnn_channels=[8]))
    batch = {"pixel_values": images(*[(8, 8)] * 6)["pixel_values"].float(), "labels": labels_of(6, 4, 8)}
    outcome = trained_by_trainer(model, batch, tmp_path, num_train_epochs=8, gradient_accumulation_steps=2)
    assert outcome["after"] < outcome["before"] / 2
    assert outcome["tokens"].shape[0] == 6


# ---- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"image_size": 0}, "image_size must be at least 1"),
        ({"cnn_channels": []}, "cnn_channels needs at least one stage"),
        ({"cnn_channels": [8, 0]}, "cnn_channels must be at least 1, not 0"),
        ({"cnn_blocks": -1}, "cnn_blocks must be at least 0, not -1"),
        ({"backbone_config": {"depths": [1]}}, "backbone_config needs a model_type"),
        ({"attention": "dot", "feature_size": 5}, "change feature_size"),
        ({"feature_size": 0}, "feature_size must be at least 1"),
        ({"decoder_vocab_size": 9}, "this model has one vocabulary"),
        ({"scheduled_sampling": 2}, "scheduled_sampling must be at most 1, not 2"),
    ],
)
def test_invalid_configurations_are_rejected(choices: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RNNCaptionerConfig(**{"vocab_size": 8, "hidden_size": 8, **choices})


def test_an_image_is_needed() -> None:
    with pytest.raises(ValueError, match="needs pixel_values"):
        tiny()(decoder_input_ids=TARGET)
