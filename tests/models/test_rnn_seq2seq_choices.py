"""What each choice of the recurrent encoder-decoder does, and which configurations are rejected."""

from typing import Any

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from support.rnn_models import subject_of, tiny

from kit.models import RNNSeq2SeqConfig
from kit.verify.subject import logits_of


def test_reverse_source_reads_the_source_from_its_end() -> None:
    plain = tiny(bidirectional=False, attention="none", context_to=[])
    reverse = tiny(bidirectional=False, attention="none", context_to=[], reverse_source=True)
    reverse.load_state_dict(plain.state_dict())
    subject = subject_of(plain)
    inputs = subject.inputs()
    flipped = inputs["input_ids"].clone()
    for row, length in enumerate(inputs["attention_mask"].sum(1).tolist()):
        flipped[row, :length] = inputs["input_ids"][row, :length].flip(0)
    by_hand = logits_of(plain, {**inputs, "input_ids": flipped})
    torch.testing.assert_close(logits_of(reverse, inputs), by_hand)
    assert (by_hand - logits_of(plain, inputs)).abs().max() > 1e-3


@torch.no_grad()
def test_states_of_a_reversed_source_stay_at_their_tokens() -> None:
    """Attention and its plots need each state at the position of its token."""
    plain, reverse = tiny(bidirectional=False), tiny(bidirectional=False, reverse_source=True)
    source = torch.tensor([[3, 4, 3, 3]])
    forwards = reverse.get_encoder()(input_ids=source).last_hidden_state
    backwards = plain.get_encoder()(input_ids=source.flip(1)).last_hidden_state.flip(1)
    torch.testing.assert_close(forwards, backwards)


@torch.no_grad()
@pytest.mark.parametrize("cell", ["rnn", "lstm", "gru"])
def test_the_bridge_copies_the_final_state_or_maps_it(cell: str) -> None:
    source = torch.tensor([[3, 4, 3], [4, 4, 1]])
    mask = torch.tensor([[1, 1, 1], [1, 1, 0]])
    copying = tiny(cell=cell, bridge="copy", encoder_layers=2, decoder_layers=2)
    encoded = copying.get_encoder()(input_ids=source, attention_mask=mask)
    state = copying.get_decoder().bridge(encoded)
    assert torch.equal(state["hidden"], encoded.final_hidden)
    assert ("cell" in state) == (cell == "lstm")
    if cell == "lstm":
        assert torch.equal(state["cell"], encoded.final_cell)

    mapping = tiny(cell=cell, encoder_layers=3, decoder_layers=2)
    encoded = mapping.get_encoder()(input_ids=source, attention_mask=mask)
    bridge = mapping.get_decoder().bridge
    state = bridge(encoded)
    expected = torch.tanh(encoded.final_hidden[:, -1] @ bridge.hidden.weight.T + bridge.hidden.bias)
    torch.testing.assert_close(state["hidden"], expected.view(2, 2, 4))


@torch.no_grad()
def test_the_final_state_is_that_of_the_last_real_token() -> None:
    model = tiny(bidirectional=True, cell="gru")
    padded = model.get_encoder()(input_ids=torch.tensor([[3, 4, 1, 1]]), attention_mask=torch.tensor([[1, 1, 0, 0]]))
    half = model.config.encoder_hidden_size
    last, first = padded.last_hidden_state[0, 1, :half], padded.last_hidden_state[0, 0, half:]
    torch.testing.assert_close(padded.final_hidden[0, 0], torch.cat([last, first]))


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"hidden_size": 0}, "hidden_size must be at least 1, not 0"),
        ({"embedding_size": -1}, "embedding_size must be at least 1"),
        ({"decoder_layers": 0}, "decoder_layers must be at least 1"),
        ({"dropout": 1.5}, "dropout must be at most 1, not 1.5"),
        ({"dropout": 1}, "dropout=1 would erase everything"),
        ({"scheduled_sampling": -0.1}, "scheduled_sampling must be at least 0, not -0.1"),
        ({"embedding_noise": -1.0}, "embedding_noise must be at least 0, not -1.0"),
        ({"context_to": ["output"]}, r"context_to: \['output'\] unknown; expected one or several of input, state"),
        ({"context_to": ["input", "input"]}, "has an item twice"),
        ({"attention": "none"}, "attention=none has no context to send to"),
        ({"context_to": []}, "context_to is empty"),
        ({"context_to": ["next_layer"]}, "set decoder_layers=2 or more"),
        ({"attention": "fixed", "num_attention_heads": 2}, "num_attention_heads=2 has no effect with attention=fixed"),
        ({"attention": "fixed", "attention_query": "current"}, "attention_query=current has no effect"),
        ({"attention": "fixed", "attention_values": True}, "attention_values=True has no effect"),
        ({"attention": "dot", "attention_size": 8}, "attention_size has no effect with attention=dot"),
        ({"attention": "additive", "attention_layers": 2}, "only keyed has layers"),
        ({"attention": "keyed", "attention_layers": 0}, "attention_layers must be at least 1"),
        ({"attention": "dot", "encoder_hidden_size": 8}, r"attention=general\)"),
        ({"num_attention_heads": 3}, "num_attention_heads=3 does not divide the width of the encoder output, 8"),
        ({"attention_size": 9, "num_attention_heads": 2}, "does not divide the width of the keys, 9"),
        ({"bridge": "copy", "encoder_layers": 2}, "encoder_layers=2 and decoder_layers=1 must be equal"),
        ({"bridge": "copy", "encoder_hidden_size": 8}, "16 is not 8; change encoder_hidden_size"),
        ({"feedback": "sample"}, "no effect without scheduled_sampling"),
        (
            {"share_encoder_decoder_embeddings": True, "separate_vocabularies": True},
            "needs one vocabulary for both sides",
        ),
        ({"decoder_vocab_size": 9}, "decoder_vocab_size=9 differs from vocab_size=8"),
    ],
)
def test_contradictory_configurations_are_rejected(choices: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RNNSeq2SeqConfig(**{"vocab_size": 8, "hidden_size": 8, **choices})


@pytest.mark.parametrize("choices", [{"cell": "lstn"}, {"attention": "bahdanau"}, {"hidden_size": "8"}])
def test_unknown_names_and_wrong_types_are_rejected(choices: dict[str, Any]) -> None:
    with pytest.raises((StrictDataclassError, ValueError), match=next(iter(choices))):
        RNNSeq2SeqConfig(**choices)
