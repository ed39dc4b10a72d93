"""The recurrent encoder-decoder: every combination of its choices passes the proofs."""

import itertools
from collections.abc import Iterator
from typing import Any, Literal

import pytest
import torch
from support.rnn_models import assert_holds, subject_of, tiny
from torch import Tensor

from kit.models import RNNSeq2SeqConfig, RNNSeq2SeqForConditionalGeneration
from kit.models.attention import SCORES, Attention, register_score
from kit.models.configuration_rnn_seq2seq import CONTEXT_DESTINATIONS
from kit.recipe.model_settings import model_fields
from kit.verify import forward, generation, learning
from kit.verify.seq2seq import PROOFS
from kit.verify.subject import logits_of

CELLS = ("rnn", "lstm", "gru")
DESTINATIONS = [list(some) for n in range(1, 5) for some in itertools.combinations(CONTEXT_DESTINATIONS, n)]


def every_combination() -> Iterator[dict[str, Any]]:
    for cell in CELLS:
        yield {"cell": cell, "attention": "none", "context_to": []}
        for destinations in DESTINATIONS:
            yield {"cell": cell, "attention": "fixed", "context_to": destinations}
            for score in SCORES:
                yield from combinations_with(cell, score, destinations)


def combinations_with(cell: str, score: str, destinations: list[str]) -> Iterator[dict[str, Any]]:
    # heads are independent of the destinations, so two of them run with fewer destinations
    several = (1, 2) if len(destinations) in (1, len(CONTEXT_DESTINATIONS)) else (1,)
    for query, heads in itertools.product(("previous", "current"), several):
        yield {
            "cell": cell,
            "attention": score,
            "attention_query": query,
            "num_attention_heads": heads,
            "context_to": destinations,
        }


def name_of(choices: dict[str, Any]) -> str:
    return "-".join("+".join(value) if isinstance(value, list) else str(value) for value in choices.values())


def cell_by_hand(kind: str, layer: Any, x: Tensor, hidden: Tensor, cell: Tensor | None) -> tuple[Tensor, Tensor | None]:
    from_input = x @ layer.weight_ih_l0.T + layer.bias_ih_l0
    from_state = hidden @ layer.weight_hh_l0.T + layer.bias_hh_l0
    if kind == "rnn":
        return torch.tanh(from_input + from_state), None
    if kind == "lstm":
        write, keep, new, show = (from_input + from_state).chunk(4, dim=-1)
        cell = keep.sigmoid() * cell + write.sigmoid() * new.tanh()
        return show.sigmoid() * cell.tanh(), cell
    (reset_x, update_x, new_x), (reset_h, update_h, new_h) = from_input.chunk(3, dim=-1), from_state.chunk(3, dim=-1)
    update = (update_x + update_h).sigmoid()
    return (1 - update) * torch.tanh(new_x + (reset_x + reset_h).sigmoid() * new_h) + update * hidden, None


@torch.no_grad()
def logits_by_hand(model: RNNSeq2SeqForConditionalGeneration, source: Tensor, target: Tensor) -> Tensor:
    """One token after the other; the encoder, the bridge and the attention scores have tests of their own."""
    config, decoder, destinations = model.config, model.get_decoder(), model.config.context_to
    encoded = model.get_encoder()(input_ids=source)
    state = decoder.bridge(encoded)
    hidden = list(state["hidden"].unbind(1))
    cells = list(state["cell"].unbind(1)) if config.cell == "lstm" else [None] * len(hidden)
    queries_first = config.attention_query == "previous" or config.attention == "fixed"
    query_layer = 0 if "next_layer" in destinations else config.decoder_layers - 1
    fed_back = torch.zeros(len(source), config.hidden_size if "state" in destinations else config.encoder_size).double()

    def attend(query: Tensor) -> Tensor:
        if config.attention == "fixed":
            return encoded.final_hidden[:, -1]
        return decoder.attention(query.unsqueeze(1), encoded.memory_keys, encoded.memory_values, None)[0].squeeze(1)

    logits = []
    for embedded in model.model.target_embeddings(target).unbind(1):
        context = torch.empty(len(source), 0).double()
        if queries_first and destinations:
            context = attend(hidden[query_layer])
        x = embedded
        if "input" in destinations:
            x = torch.cat([embedded, context if queries_first else fed_back], dim=-1)
        for i, layer in enumerate(decoder.layers):
            if i > 0:
                x = torch.cat([hidden[i - 1], context], dim=-1) if "next_layer" in destinations else hidden[i - 1]
            hidden[i], cells[i] = cell_by_hand(config.cell, layer, x, hidden[i], cells[i])
            if not queries_first and i == query_layer:
                context = attend(hidden[i])
        top, fed_back = hidden[-1], context
        if "state" in destinations:
            top = fed_back = torch.tanh(decoder.combine(torch.cat([top, context], dim=-1)))
        if "readout" in destinations:
            top = torch.tanh(decoder.readout.projection(torch.cat([top, context], dim=-1)))
        logits.append(model.lm_head(top))
    return torch.stack(logits, dim=1)


@pytest.mark.parametrize("choices", list(every_combination()), ids=name_of)
def test_every_combination_is_proved(choices: dict[str, Any]) -> None:
    prove(choices)


def prove(choices: dict[str, Any]) -> None:
    model = tiny(**choices, decoder_layers=2)
    subject = subject_of(model, examples=3)
    assert_holds(forward.right_padding(subject))
    assert_holds(forward.left_padding(subject))
    assert_holds(forward.cached_logits(subject))
    assert_holds(forward.fused_layers(subject))
    source = {name: tensor[:2] for name, tensor in subject.source().items()}
    inputs = {"input_ids": source["input_ids"], "decoder_input_ids": subject.decoder_input_ids[:2]}
    torch.testing.assert_close(logits_of(model, inputs), logits_by_hand(model, *inputs.values()))
    outcome = generation.compare_with_every_hypothesis(model, source, max_new_tokens=3, length_penalty=1.0)
    assert outcome.passed, outcome.figure


class DistanceAttention(Attention):
    """A toy score: −γ·Σ|q − k|, all that a new one needs to be."""

    def __init__(self, query_size: int, key_size: int, heads: int = 1, layers: int = 1):
        super().__init__(query_size, key_size, heads, layers)
        self.gamma = torch.nn.Parameter(torch.empty(heads))

    def init_weights(self) -> None:
        torch.nn.init.ones_(self.gamma)

    def score(self, query: Tensor, key: Tensor) -> Tensor:
        return -self.gamma[:, None, None] * (query.unsqueeze(-2) - key.unsqueeze(-3)).abs().sum(-1)


@pytest.fixture
def toy_score() -> Iterator[str]:
    register_score("distance")(DistanceAttention)
    yield "distance"
    del SCORES["distance"]


def test_a_registered_score_is_proved_like_the_others(toy_score: str) -> None:
    for destinations in DESTINATIONS:
        for choices in combinations_with("gru", toy_score, destinations):
            prove(choices)
    assert_holds(
        learning.every_gradient(subject_of(tiny(attention=toy_score, attention_size=6, num_attention_heads=2)))
    )


@pytest.mark.usefixtures("toy_score")
def test_a_registered_score_is_known_to_configurations() -> None:
    with pytest.raises(ValueError, match=r"one of none, fixed, dot, .*, rbf, distance, not bahdanau"):
        RNNSeq2SeqConfig(attention="bahdanau")
    assert model_fields("rnn_seq2seq")["attention"].annotation == Literal["none", "fixed", *SCORES]


OTHER_CHOICES = [
    {"decoder_layers": 1, "encoder_layers": 3},
    {"decoder_layers": 3, "context_to": ["next_layer"], "attention_query": "current"},
    {"bidirectional": False, "cell": "gru", "attention": "dot"},
    {"reverse_source": True, "attention": "none", "context_to": []},
    {"reverse_source": True, "bidirectional": False, "encoder_layers": 2},
    {"bridge": "copy", "encoder_layers": 2, "decoder_layers": 2},
    {"bridge": "copy", "cell": "rnn", "bidirectional": False},
    {"encoder_hidden_size": 6, "attention": "general", "num_attention_heads": 4},
    {"attention_values": True, "attention": "scaled_dot", "attention_size": 6, "num_attention_heads": 2},
    {"attention": "keyed", "attention_layers": 3, "attention_size": 2},
    {"readout_embedding": True, "context_to": ["state"]},
    {"separate_vocabularies": True, "vocab_size": 7, "decoder_vocab_size": 5},
    {"tie_word_embeddings": True, "readout_embedding": True},
    {"tie_word_embeddings": True, "embedding_size": None, "context_to": ["input"]},
    {"share_encoder_decoder_embeddings": True},
    {"share_encoder_decoder_embeddings": True, "tie_word_embeddings": True},
    {"dropout": 0.5, "embedding_noise": 1.0, "scheduled_sampling": 0.5, "feedback": "sample"},
]


@pytest.mark.parametrize("choices", OTHER_CHOICES, ids=lambda choices: "-".join(f"{k}={v}" for k, v in choices.items()))
def test_all_proofs_hold_for_every_other_choice(choices: dict[str, Any]) -> None:
    subject = subject_of(tiny(**choices))
    applying = [proof for proof in PROOFS if proof.applies(subject) and proof is not learning.overfitting]
    left_out = {proof.name for proof in PROOFS} - {proof.name for proof in applying}
    assert left_out == {"tokenizers", "overfitting", "Marian"}  # not given; takes longer; for the Transformer
    for proof in applying:
        assert_holds(proof(subject))


@pytest.mark.parametrize("length_penalty", [-1.0, 0.0, 0.6, 2.0])
def test_beam_search_finds_the_best_for_every_length_penalty(length_penalty: float) -> None:
    model = tiny()
    outcome = generation.compare_with_every_hypothesis(
        model, subject_of(model).source(), max_new_tokens=4, length_penalty=length_penalty, best=20
    )
    assert outcome.passed, outcome.figure


@pytest.mark.parametrize("score", ["none", *SCORES])
def test_every_parameter_has_a_gradient(score: str) -> None:
    destinations = [] if score == "none" else ["input", "readout"]
    for query in ("previous", "current") if score != "none" else ("previous",):
        model = tiny(attention=score, attention_query=query, context_to=destinations, decoder_layers=2)
        assert_holds(learning.every_gradient(subject_of(model)))
