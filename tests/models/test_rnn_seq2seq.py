"""The recurrent encoder-decoder: every combination of its choices is proved, and each choice does what it says."""

import itertools
import math
from collections.abc import Iterator
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from kit.models import RNNSeq2SeqConfig, RNNSeq2SeqForConditionalGeneration, attention
from kit.models.attention import SCORES, Attention, AttentionMemory, register_score
from kit.models.configuration_rnn_seq2seq import CONTEXT_DESTINATIONS
from kit.recipe.model_settings import model_fields
from kit.training.objective import SamplingSchedule, Seq2SeqObjective
from kit.verify import forward, generation, learning
from kit.verify.proof import Check
from kit.verify.seq2seq import PROOFS
from kit.verify.subject import Subject, logits_of, random_batch

CELLS = ("rnn", "lstm", "gru")
SOME_DESTINATIONS = [list(some) for n in range(1, 5) for some in itertools.combinations(CONTEXT_DESTINATIONS, n)]


def every_combination() -> Iterator[dict[str, Any]]:
    for cell in CELLS:
        yield {"cell": cell, "attention": "none", "context_to": []}
        for destinations in SOME_DESTINATIONS:
            yield {"cell": cell, "attention": "fixed", "context_to": destinations}
            for score in SCORES:
                yield from combinations_with(cell, score, destinations)


def combinations_with(cell: str, score: str, destinations: list[str]) -> Iterator[dict[str, Any]]:
    # heads do not depend on where the context goes, so two of them are tried with fewer destinations
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


def tiny(**choices: Any) -> RNNSeq2SeqForConditionalGeneration:
    """A random model in float64, with no parameter at its first value."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 5, "hidden_size": 4, "embedding_size": 3}
    model = RNNSeq2SeqForConditionalGeneration(RNNSeq2SeqConfig(**{**sizes, **choices})).double().eval()
    generation.perturb_parameters(model)
    return model


def subject_of(model: RNNSeq2SeqForConditionalGeneration, examples: int = 4) -> Subject:
    batch = random_batch(model, 0, examples=examples, longest_source=5, longest_target=4)
    return Subject(model, batch, max_new_tokens=4)


def assert_holds(check: Check) -> None:
    assert check.passed, f"{check.name}: {check.figure}"


# ---- the decoder as it is written in the papers ----------------------------------------------------------------------


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
        return decoder.attention(query.unsqueeze(1), encoded.keys, encoded.values, None)[0].squeeze(1)

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


# ---- proofs ----------------------------------------------------------------------------------------------------------


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
    given = {"input_ids": source["input_ids"], "decoder_input_ids": subject.decoder_input_ids[:2]}
    torch.testing.assert_close(logits_of(model, given), logits_by_hand(model, *given.values()))
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
    for destinations in SOME_DESTINATIONS:
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


# ---- attention, by hand ----------------------------------------------------------------------------------------------


def score_by_hand(
    score: str, asking: Attention, memory: AttentionMemory, head: int, query: Tensor, state: Tensor
) -> Tensor:
    """One score of one head, written as in the papers."""
    width = memory.key(state).shape[0] // asking.heads
    own = slice(head * width, (head + 1) * width)
    q, k = asking.query(query)[own], memory.key(state)[own]
    if score == "additive":
        return asking.energy[head] @ torch.tanh(q + k)
    if score == "rbf":
        return -asking.log_precision[head].exp() * torch.linalg.vector_norm(q - k) ** 2
    return q @ k / (math.sqrt(width) if score == "scaled_dot" else 1)


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("score", SCORES)
@torch.no_grad()
def test_scores_and_contexts_are_those_of_the_formulas(score: str, heads: int) -> None:
    torch.manual_seed(1)
    memory = AttentionMemory(score, state_size=4, key_size=4, layers=2, project_values=True).double()
    asking = SCORES[score](query_size=4, key_size=4, heads=heads, layers=2).double()
    for parameter in (*memory.parameters(), *asking.parameters()):
        torch.nn.init.normal_(parameter)
    states, queries = torch.randn(2, 3, 4).double(), torch.randn(2, 2, 4).double()
    mask = torch.tensor([[True, True, True], [True, True, False]])
    context, weights = asking(queries, *memory(states), mask)
    for b, h, t in itertools.product(range(2), range(heads), range(2)):
        there = [m for m in range(3) if mask[b, m]]
        scores = torch.stack([score_by_hand(score, asking, memory, h, queries[b, t], states[b, m]) for m in there])
        expected = scores.softmax(0)
        torch.testing.assert_close(weights[b, h, t, : len(there)], expected)
        assert (weights[b, h, t, len(there) :] == 0).all()
        own = slice(h * (4 // heads), (h + 1) * (4 // heads))
        mixed = sum(weight * memory.value(states[b, m])[own] for weight, m in zip(expected, there, strict=True))
        torch.testing.assert_close(context[b, t, own], mixed)


def test_keyed_attention_applies_sigmoid_layers() -> None:
    memory = AttentionMemory("keyed", state_size=3, key_size=2, layers=2)
    state = torch.randn(1, 1, 3)
    first, second = (layer for layer in memory.key if isinstance(layer, torch.nn.Linear))
    expected = torch.sigmoid(second(torch.sigmoid(first(state))))
    torch.testing.assert_close(memory(state)[0], expected)


def test_additive_scores_in_pieces_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = subject_of(tiny(attention="additive", context_to=["readout"]))
    whole = logits_of(subject.exact, subject.inputs())
    monkeypatch.setattr(attention, "MAX_ELEMENTS", 1)
    torch.testing.assert_close(logits_of(subject.exact, subject.inputs()), whole)


# ---- what each choice does -------------------------------------------------------------------------------------------


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
def test_reversed_states_stay_at_their_tokens() -> None:
    """Attention and heat maps need the state of a token at the token's place."""
    plain, reverse = tiny(bidirectional=False), tiny(bidirectional=False, reverse_source=True)
    source = torch.tensor([[3, 4, 3, 3]])
    forwards = reverse.get_encoder()(input_ids=source).last_hidden_state
    backwards = plain.get_encoder()(input_ids=source.flip(1)).last_hidden_state.flip(1)
    torch.testing.assert_close(forwards, backwards)


@torch.no_grad()
@pytest.mark.parametrize("cell", CELLS)
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


# ---- training --------------------------------------------------------------------------------------------------------


@torch.no_grad()
def training_logits(
    model: RNNSeq2SeqForConditionalGeneration, inputs: dict[str, Tensor], seed: int = 0, **arguments: float
) -> Tensor:
    model.train()
    torch.manual_seed(seed)
    logits = model(**inputs, **arguments, use_cache=False).logits
    model.eval()
    return logits


def test_without_sampling_training_is_teacher_forcing() -> None:
    model = tiny(scheduled_sampling=0.0)
    inputs = subject_of(model).inputs()
    assert torch.equal(training_logits(model, inputs), logits_of(model, inputs))


@pytest.mark.parametrize("attention_query", ["previous", "current"])
def test_full_sampling_feeds_back_the_models_own_tokens(attention_query: str) -> None:
    model = tiny(scheduled_sampling=1.0, attention_query=attention_query, decoder_layers=2)
    inputs = subject_of(model).inputs()
    target = inputs["decoder_input_ids"]
    written = target[:, :1]
    for _ in range(target.shape[1] - 1):
        best = logits_of(model, {**inputs, "decoder_input_ids": written})[:, -1].argmax(-1, keepdim=True)
        written = torch.cat([written, best], dim=1)
    assert not torch.equal(written, target)
    by_hand = logits_of(model, {**inputs, "decoder_input_ids": written})
    torch.testing.assert_close(training_logits(model, inputs), by_hand)


def test_sampled_feedback_follows_the_distribution() -> None:
    choices = {"scheduled_sampling": 1.0, "decoder_layers": 2}
    best, drawn = tiny(**choices), tiny(**choices, feedback="sample")
    inputs = subject_of(best).inputs()
    assert not torch.equal(training_logits(drawn, inputs, seed=1), training_logits(drawn, inputs, seed=2))
    for model in (best, drawn):  # with all of the probability on one token, sampling is the argmax
        model.lm_head.weight.data *= 1e4
    torch.testing.assert_close(training_logits(drawn, inputs), training_logits(best, inputs))


def test_scheduled_sampling_replaces_some_tokens() -> None:
    model = tiny(scheduled_sampling=0.5)
    inputs = subject_of(model).inputs()
    half = training_logits(model, inputs)
    assert torch.equal(half, training_logits(model, inputs))
    assert not torch.allclose(half, training_logits(model, inputs, sampling_probability=1.0))
    assert not torch.allclose(half, logits_of(model, inputs))


def test_an_argument_replaces_the_configured_probability() -> None:
    model, full = tiny(scheduled_sampling=0.5), tiny(scheduled_sampling=1.0)
    inputs = subject_of(model).inputs()
    assert torch.equal(training_logits(model, inputs, sampling_probability=1.0), training_logits(full, inputs))
    teacher_forced = logits_of(model, inputs)
    torch.testing.assert_close(training_logits(full, inputs, sampling_probability=0.0), teacher_forced)
    with torch.no_grad():
        assert torch.equal(model(**inputs, use_cache=False, sampling_probability=1.0).logits, teacher_forced)


def test_an_objective_follows_its_schedule_and_leaves_the_configuration_alone() -> None:
    model = tiny(scheduled_sampling=1.0).train()
    objective = Seq2SeqObjective(model, sampling=SamplingSchedule(1.0, start=1, steps=0))
    batch = subject_of(model).batch
    losses = []
    for step in range(2):
        objective.begin_step(step)
        losses.append(objective(batch, objective.normalizers(batch)))
    assert losses[1] == Seq2SeqObjective(model)(batch, objective.normalizers(batch))  # as configured
    assert losses[0] == Seq2SeqObjective(model.eval())(batch, objective.normalizers(batch))  # teacher forcing
    assert losses[0] != losses[1]
    assert model.config.scheduled_sampling == 1.0


@pytest.mark.parametrize("choices", [{"embedding_noise": 0.5}, {"dropout": 0.5}], ids=["noise", "dropout"])
def test_tokens_fed_back_are_regularized_like_true_ones(choices: dict[str, float]) -> None:
    model = tiny(**choices, scheduled_sampling=1.0, cell="rnn", attention="none", context_to=[])
    model.get_decoder().layers[0].weight_hh_l0.data.zero_()  # each state comes from one token alone
    model.get_decoder().readout.dropout.p = 0.0
    model.lm_head.bias.data[3] = 1e4  # and the token is always the same
    inputs = subject_of(model).inputs()
    fed = [training_logits(model, inputs, seed)[:, 1:] for seed in (1, 2)]
    assert not torch.allclose(*fed)


@pytest.mark.parametrize("choices", [{"embedding_noise": 0.5}, {"dropout": 0.5}], ids=["noise", "dropout"])
def test_noise_and_dropout_change_training_only(choices: dict[str, float]) -> None:
    model, plain = tiny(**choices), tiny()
    inputs = subject_of(model).inputs()
    assert torch.equal(logits_of(model, inputs), logits_of(plain, inputs))
    assert not torch.allclose(training_logits(model, inputs, seed=1), training_logits(model, inputs, seed=2))
    assert torch.equal(training_logits(model, inputs, seed=1), training_logits(model, inputs, seed=1))


# ---- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"hidden_size": 0}, "hidden_size must be at least 1, not 0"),
        ({"embedding_size": -1}, "embedding_size must be at least 1"),
        ({"decoder_layers": 0}, "decoder_layers must be at least 1"),
        ({"dropout": 1.5}, "dropout is a probability"),
        ({"dropout": 1}, "dropout=1 would erase everything"),
        ({"scheduled_sampling": -0.1}, "scheduled_sampling is a probability"),
        ({"embedding_noise": -1.0}, "embedding_noise must not be negative"),
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
def test_senseless_configurations_are_refused(choices: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RNNSeq2SeqConfig(**{"vocab_size": 8, "hidden_size": 8, **choices})


@pytest.mark.parametrize("choices", [{"cell": "lstn"}, {"attention": "bahdanau"}, {"hidden_size": "8"}])
def test_wrong_names_and_types_are_refused(choices: dict[str, Any]) -> None:
    with pytest.raises(Exception, match=next(iter(choices))):
        RNNSeq2SeqConfig(**choices)
