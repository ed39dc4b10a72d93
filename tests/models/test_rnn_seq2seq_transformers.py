"""The recurrent encoder-decoder among transformers' models: loading, outputs, sizes, refusals."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from kit.models import RNNSeq2SeqConfig, RNNSeq2SeqForConditionalGeneration, RNNSeq2SeqModel, register_models
from kit.verify.generation import perturb_parameters
from kit.verify.subject import Subject, logits_of, random_batch

SCORES = ("none", "fixed", "additive", "rbf")
TYING = ("tie_word_embeddings", "share_encoder_decoder_embeddings")


@pytest.fixture(autouse=True, scope="module")
def registered() -> None:
    register_models()


def configuration(**choices: Any) -> RNNSeq2SeqConfig:
    sizes = {"vocab_size": 12, "hidden_size": 8, "embedding_size": 6, "encoder_layers": 2, "decoder_layers": 2}
    return RNNSeq2SeqConfig(**{**sizes, **choices})


def tiny(**choices: Any) -> RNNSeq2SeqForConditionalGeneration:
    torch.manual_seed(0)
    model = RNNSeq2SeqForConditionalGeneration(configuration(**choices)).double().eval()
    perturb_parameters(model)
    return model


def subject_of(model: PreTrainedModel) -> Subject:
    return Subject(model, random_batch(model, 0, examples=4, longest_source=6, longest_target=5))


@pytest.fixture(scope="module")
def model() -> RNNSeq2SeqForConditionalGeneration:
    """One model for all tests that do not change it."""
    return tiny(num_attention_heads=2)


@pytest.fixture(scope="module")
def inputs(model: RNNSeq2SeqForConditionalGeneration) -> dict[str, Tensor]:
    return subject_of(model).inputs()


# ---- loading and saving ----------------------------------------------------------------------------------------------


def test_auto_classes_load_what_was_saved(
    model: RNNSeq2SeqForConditionalGeneration, inputs: dict[str, Tensor], tmp_path: Path
) -> None:
    model.save_pretrained(tmp_path)
    assert {**AutoConfig.from_pretrained(tmp_path).to_dict(), "_name_or_path": ""} == model.config.to_dict()
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, dtype="auto")
    assert isinstance(loaded, RNNSeq2SeqForConditionalGeneration)
    assert loaded.dtype == torch.float64
    assert torch.equal(logits_of(loaded, inputs), logits_of(model, inputs))
    bare = AutoModel.from_pretrained(tmp_path, dtype="auto")
    assert isinstance(bare, RNNSeq2SeqModel)
    with torch.no_grad():
        states = bare(**inputs).last_hidden_state
    assert torch.equal(model.lm_head(states), logits_of(model, inputs))


@pytest.mark.parametrize(
    "choices",
    [
        {"tie_word_embeddings": True},
        {"share_encoder_decoder_embeddings": True},
        {"share_encoder_decoder_embeddings": True, "tie_word_embeddings": True},
    ],
    ids=["tied", "shared", "both"],
)
def test_tied_and_shared_weights_are_one_tensor_after_loading_too(choices: dict[str, bool], tmp_path: Path) -> None:
    model = tiny(**choices)
    model.save_pretrained(tmp_path)
    loaded, report = RNNSeq2SeqForConditionalGeneration.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report[what] for what in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    for candidate in (model, loaded):
        source, target, output = candidate.get_input_embeddings(), candidate.model.target_embeddings, candidate.lm_head
        assert (target is source) == choices.get("share_encoder_decoder_embeddings", False)
        assert (output.weight is target.weight) == choices.get("tie_word_embeddings", False)
    names = {name for name, _ in model.named_parameters()}
    assert len(names) == len({id(parameter) for parameter in model.parameters()})


def initial_values_are_right(model: RNNSeq2SeqForConditionalGeneration) -> None:
    config = model.config
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            assert module.weight[config.pad_token_id].abs().max() == 0
            spread = float(module.weight.detach().std())
            assert 0.5 * config.initializer_range < spread < 1.5 * config.initializer_range
        elif isinstance(module, nn.Linear):
            limit = math.sqrt(6 / (module.in_features + module.out_features))
            tied = config.tie_word_embeddings and module is model.lm_head
            assert tied or 0.5 * limit < module.weight.abs().max() <= limit
            assert module.bias is None or (module.bias == 0).all()
        elif isinstance(module, nn.RNNBase):
            for name, parameter in module.named_parameters():
                gates = parameter.detach().split(module.hidden_size)
                for number, gate in enumerate(gates):
                    if name.startswith("weight_hh"):
                        torch.testing.assert_close(gate @ gate.T, torch.eye(len(gate)), atol=1e-5, rtol=0)
                    elif name.startswith("weight_ih"):
                        assert 0.2 < gate.std() * math.sqrt(sum(gate.shape) / 2) < 2
                    else:
                        forget = config.cell == "lstm" and name.startswith("bias_ih") and number == 1
                        assert (gate == forget).all()
    decoder = model.get_decoder()
    if config.attention == "additive":
        assert decoder.attention.energy.abs().min() > 0
    if config.attention == "rbf":
        assert (decoder.attention.log_precision == 0).all()


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_every_parameter_is_initialized(cell: str, score: str) -> None:
    config = configuration(cell=cell, attention=score, context_to=[] if score == "none" else ["readout"])
    torch.manual_seed(0)
    built = RNNSeq2SeqForConditionalGeneration(config)
    torch.manual_seed(0)
    loaded = RNNSeq2SeqForConditionalGeneration.from_pretrained(None, config=config, state_dict={})
    for model in (built, loaded):
        assert {parameter.device.type for parameter in model.parameters()} == {"cpu"}
        initial_values_are_right(model)


@pytest.mark.parametrize(
    "missing", ["model.decoder.attention.energy", "model.encoder.layers.0.weight_hh_l0", "lm_head.bias"]
)
def test_missing_weights_are_initialized_and_others_loaded(missing: str) -> None:
    model = RNNSeq2SeqForConditionalGeneration(configuration())
    perturb_parameters(model)
    saved = model.state_dict()
    weights = {name: tensor for name, tensor in saved.items() if name != missing}
    loaded, report = RNNSeq2SeqForConditionalGeneration.from_pretrained(
        None, config=model.config, state_dict=weights, output_loading_info=True
    )
    assert set(report["missing_keys"]) == {missing}
    for name, tensor in loaded.state_dict().items():
        assert torch.equal(tensor, saved[name]) == (name != missing)
        assert tensor.isfinite().all()


def test_weights_of_another_shape_are_refused_or_made_new_on_request(tmp_path: Path) -> None:
    model = tiny()
    model.save_pretrained(tmp_path)
    larger = {"vocab_size": 20, "decoder_vocab_size": 20}
    with pytest.raises(RuntimeError, match="mismatch"):
        AutoModelForSeq2SeqLM.from_pretrained(tmp_path, **larger)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, **larger, ignore_mismatched_sizes=True, dtype="auto")
    assert loaded.get_input_embeddings().weight.shape[0] == loaded.lm_head.weight.shape[0] == 20
    assert torch.equal(loaded.model.encoder.layers[0].weight_ih_l0, model.model.encoder.layers[0].weight_ih_l0)


@pytest.mark.parametrize("cell", ["rnn", "lstm", "gru"])
def test_half_precision_runs_and_is_close(cell: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    full = RNNSeq2SeqForConditionalGeneration(configuration(cell=cell)).eval()
    full.save_pretrained(tmp_path)
    half = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert {parameter.dtype for parameter in half.parameters()} == {torch.bfloat16}
    batch = subject_of(full).batch
    with torch.no_grad():
        expected, actual = full(**batch), half(**batch)
    assert actual.logits.dtype == torch.bfloat16
    assert actual.loss.dtype == torch.float32
    torch.testing.assert_close(actual.logits.float(), expected.logits, atol=0.05, rtol=0.05)
    source = {name: batch[name] for name in ("input_ids", "attention_mask")}
    for beams in (1, 3):
        assert half.generate(**source, max_new_tokens=4, num_beams=beams).shape[0] == 4
    half.train()(**batch).loss.backward()
    assert all(parameter.grad.isfinite().all() for parameter in half.parameters())


# ---- inputs and outputs ----------------------------------------------------------------------------------------------


@torch.no_grad()
def test_inputs_embeds_equal_input_ids(model: RNNSeq2SeqForConditionalGeneration, inputs: dict[str, Tensor]) -> None:
    embeds = {
        "inputs_embeds": model.get_input_embeddings()(inputs["input_ids"]),
        "attention_mask": inputs["attention_mask"],
        "decoder_inputs_embeds": model.model.target_embeddings(inputs["decoder_input_ids"]),
    }
    assert torch.equal(logits_of(model, embeds), logits_of(model, inputs))
    for missing in ("inputs_embeds", "decoder_inputs_embeds"):
        with pytest.raises(ValueError, match="exactly one of"):
            model(**{name: tensor for name, tensor in embeds.items() if name != missing})
    with pytest.raises(ValueError, match="exactly one of"):
        model(**embeds, input_ids=inputs["input_ids"])


@torch.no_grad()
def test_hidden_states_have_one_entry_per_layer_and_the_embeddings(
    model: RNNSeq2SeqForConditionalGeneration, inputs: dict[str, Tensor]
) -> None:
    output = model(**inputs, output_hidden_states=True)
    (batch, read), written = inputs["input_ids"].shape, inputs["decoder_input_ids"].shape[1]
    assert [tuple(x.shape) for x in output.encoder_hidden_states] == [(batch, read, 6), *[(batch, read, 8)] * 2]
    assert [tuple(x.shape) for x in output.decoder_hidden_states] == [(batch, written, 6), *[(batch, written, 8)] * 2]
    assert torch.equal(output.encoder_hidden_states[-1], output.encoder_last_hidden_state)
    assert output.encoder_last_hidden_state.shape == (batch, read, 8)
    plain = model(**inputs)
    assert plain.encoder_hidden_states is None
    assert plain.decoder_hidden_states is None
    assert plain.cross_attentions is None


@torch.no_grad()
def test_attention_weights_are_distributions_over_the_real_source(
    model: RNNSeq2SeqForConditionalGeneration, inputs: dict[str, Tensor]
) -> None:
    (weights,) = model(**inputs, output_attentions=True).cross_attentions
    (batch, read), written = inputs["input_ids"].shape, inputs["decoder_input_ids"].shape[1]
    assert weights.shape == (batch, 2, written, read)
    torch.testing.assert_close(weights.sum(-1), torch.ones(batch, 2, written).double())
    padding = inputs["attention_mask"][:, None, None].expand_as(weights) == 0
    assert padding.any()
    assert (weights[padding] == 0).all()
    assert (weights[~padding] > 0).all()


@torch.no_grad()
def test_a_model_without_attention_has_no_attention_weights() -> None:
    for choices in ({"attention": "none", "context_to": []}, {"attention": "fixed"}):
        model = tiny(**choices)
        assert model(**subject_of(model).inputs(), output_attentions=True).cross_attentions is None


@torch.no_grad()
def test_output_as_a_tuple_holds_the_same(model: RNNSeq2SeqForConditionalGeneration) -> None:
    batch = subject_of(model).batch
    options = {"output_hidden_states": True, "output_attentions": True}
    named, plain = model(**batch, **options), model(**batch, **options, return_dict=False)
    assert isinstance(plain, tuple)
    assert len(plain) == len(named.to_tuple())
    assert torch.equal(plain[0], named.loss)
    assert torch.equal(plain[1], named.logits)
    bare = model.model(**subject_of(model).inputs(), return_dict=False)
    assert isinstance(bare, tuple)
    assert torch.equal(model.lm_head(bare[0]), logits_of(model, subject_of(model).inputs()))


def test_labels_suffice_and_ignored_labels_do_not_count(model: RNNSeq2SeqForConditionalGeneration) -> None:
    batch = subject_of(model).batch
    with torch.no_grad():
        output = model(**batch)
        labels = batch["labels"]
        expected = nn.functional.cross_entropy(output.logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
        torch.testing.assert_close(output.loss, expected)
        count = int((labels != -100).sum())
        for items in (7, torch.tensor(7)):
            torch.testing.assert_close(model(**batch, num_items_in_batch=items).loss, expected * count / 7)
        assert output.past_key_values is None


def test_encoder_outputs_of_another_kind_are_refused(
    model: RNNSeq2SeqForConditionalGeneration, inputs: dict[str, Tensor]
) -> None:
    target = {"decoder_input_ids": inputs["decoder_input_ids"], "attention_mask": inputs["attention_mask"]}
    encoded = model.get_encoder()(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"])
    assert torch.equal(logits_of(model, {**target, "encoder_outputs": encoded}), logits_of(model, inputs))
    for foreign in ((encoded.last_hidden_state,), BaseModelOutput(encoded.last_hidden_state)):
        with pytest.raises(ValueError, match="what this model's encoder returns"):
            model(**target, encoder_outputs=foreign)


def test_gradient_checkpointing_is_refused(model: RNNSeq2SeqForConditionalGeneration) -> None:
    with pytest.raises(ValueError, match=r"does not support (gradient|activation) checkpointing"):
        model.gradient_checkpointing_enable()


# ---- embeddings of another size --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "choices",
    [{}, {"tie_word_embeddings": True}, {"share_encoder_decoder_embeddings": True, "tie_word_embeddings": True}],
    ids=["plain", "tied", "shared and tied"],
)
@pytest.mark.parametrize("size", [10, 16])
def test_one_vocabulary_is_resized_on_both_sides(choices: dict[str, bool], size: int, tmp_path: Path) -> None:
    model = tiny(**choices)
    inputs = {name: tensor.clamp(max=9) for name, tensor in subject_of(model).inputs().items()}
    before = logits_of(model, inputs)
    embeddings = model.resize_token_embeddings(size)
    assert embeddings is model.get_input_embeddings()
    assert (
        embeddings.num_embeddings == model.lm_head.out_features == model.model.target_embeddings.num_embeddings == size
    )
    assert model.config.vocab_size == model.config.decoder_vocab_size == size
    assert (model.lm_head.weight is model.model.target_embeddings.weight) == choices.get("tie_word_embeddings", False)
    after = logits_of(model, inputs)
    common = min(size, 12)
    torch.testing.assert_close(after[..., :common], before[..., :common])
    model.save_pretrained(tmp_path)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, dtype="auto")
    torch.testing.assert_close(logits_of(loaded, inputs), after)
    model(**inputs, labels=inputs["decoder_input_ids"]).loss.backward()
    model.generate(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"], max_new_tokens=3)


def test_a_size_can_be_rounded_up() -> None:
    model = tiny()
    model.resize_token_embeddings(13, pad_to_multiple_of=8)
    assert model.config.vocab_size == model.lm_head.out_features == model.model.target_embeddings.num_embeddings == 16


def test_two_vocabularies_are_resized_one_by_one(tmp_path: Path) -> None:
    model = tiny(separate_vocabularies=True, decoder_vocab_size=9, tie_word_embeddings=True)
    inputs = subject_of(model).inputs()
    before = logits_of(model, inputs)
    model.resize_token_embeddings(15)
    assert (model.get_input_embeddings().num_embeddings, model.lm_head.out_features) == (15, 9)
    assert torch.equal(logits_of(model, inputs), before)
    model.resize_decoder_token_embeddings(11)
    assert (model.get_input_embeddings().num_embeddings, model.lm_head.out_features) == (15, 11)
    assert model.lm_head.weight is model.model.decoder.embed_tokens.weight
    assert (model.config.vocab_size, model.config.decoder_vocab_size) == (15, 11)
    torch.testing.assert_close(logits_of(model, inputs)[..., :9], before)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, dtype="auto")
    torch.testing.assert_close(logits_of(loaded, inputs), logits_of(model, inputs))


def test_one_vocabulary_has_no_target_side_of_its_own() -> None:
    with pytest.raises(ValueError, match="use resize_token_embeddings"):
        tiny().resize_decoder_token_embeddings(20)
