"""Models broken on purpose fail the proofs of what is broken, and no others."""

import copy
import io
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from support.proofs import verify_model
from support.recipes import write_recipe
from torch import Tensor, nn

import kit.models.recurrent
from kit.data.text.tokenizer import NoTokenizers, train_tokenizers
from kit.errors import RecipeError, RunError
from kit.models import RNNSeq2SeqConfig, RNNSeq2SeqForConditionalGeneration, register_models
from kit.models.attention import AdditiveAttention
from kit.models.recurrent import RecurrentCache, RecurrentCacheLayer
from kit.models.rnn_decoder import RNNDecoder
from kit.recipe.model import Seq2SeqTokenizerSection
from kit.runs.folder import RunFolder
from kit.runs.verify import verify
from kit.tasks.registry import load_recipe
from kit.training.objective import Batch, Seq2SeqObjective
from kit.verify import learning
from kit.verify.generation import perturb_parameters
from kit.verify.proof import Check, equal_within, max_or_nan, table
from kit.verify.seq2seq import PROOFS
from kit.verify.subject import Subject, random_batch, small_batch, tiny_config

Model = RNNSeq2SeqForConditionalGeneration


def built(model_class: type[Model] = Model, **choices: Any) -> Model:
    torch.manual_seed(0)
    sizes = {"vocab_size": 12, "hidden_size": 8, "encoder_layers": 1, "decoder_layers": 1}
    model = model_class(RNNSeq2SeqConfig(**{**sizes, **choices})).eval()
    perturb_parameters(model)
    return model


def failures(model: Model, **more: Any) -> set[str]:
    """Names of the proofs that a model fails; without overfitting, which takes longer and has tests of its own."""
    subject = Subject(model, random_batch(model, 0), max_new_tokens=5, **more)
    applying = [proof for proof in PROOFS if proof.applies(subject) and proof is not learning.overfitting]
    return {proof.name for proof in applying if not proof(subject).passed}


# ---- broken models ---------------------------------------------------------------------------------------------------


class MasklessAttention(AdditiveAttention):
    def forward(self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        return super().forward(query, keys, values, None)


class IgnoresMask(Model):
    def __init__(self, config: RNNSeq2SeqConfig):
        super().__init__(config)
        self.get_decoder().attention.__class__ = MasklessAttention


class UnorderedLayer(RecurrentCacheLayer):
    def reorder_cache(self, beam_idx: Tensor) -> None:
        """The beams are moved, and their states stay where they are."""


class UnorderedCache(Model):
    def _prepare_cache_for_generation(self, generation_config: Any, model_kwargs: dict[str, Any], *rest: Any) -> None:
        super()._prepare_cache_for_generation(generation_config, model_kwargs, *rest)
        if "past_key_values" in model_kwargs:
            model_kwargs["past_key_values"].layers = [UnorderedLayer()]


class ForgetfulDecoder(RNNDecoder):
    def _initial_state(self, encoder_outputs: Any, cache: RecurrentCache | None, embeds: Tensor) -> dict[str, Tensor]:
        state = super()._initial_state(encoder_outputs, cache, embeds)
        return state if cache is None else {**state, "cell": torch.zeros_like(state["cell"])}


class ForgetsItsCell(Model):
    def __init__(self, config: RNNSeq2SeqConfig):
        super().__init__(config)
        self.get_decoder().__class__ = ForgetfulDecoder


class SkewedDecoder(RNNDecoder):
    def _run_fused(self, *arguments: Any) -> Any:
        readout, trace, state = super()._run_fused(*arguments)
        return readout * 1.001, trace, state


class FusedIsDifferent(Model):
    def __init__(self, config: RNNSeq2SeqConfig):
        super().__init__(config)
        self.get_decoder().__class__ = SkewedDecoder


class CountsPadding(Model):
    def forward(self, labels: Tensor | None = None, num_items_in_batch: Any = None, **inputs: Any) -> Any:
        if labels is not None and num_items_in_batch is None:
            num_items_in_batch = labels.numel()
        return super().forward(labels=labels, num_items_in_batch=num_items_in_batch, **inputs)


class IgnoresItems(Model):
    def forward(self, num_items_in_batch: Any = None, **inputs: Any) -> Any:
        return super().forward(**inputs)


class HasIdleParameter(Model):
    def __init__(self, config: RNNSeq2SeqConfig):
        super().__init__(config)
        self.idle = nn.Parameter(torch.zeros(3))


class LosesABias(Model):
    _keys_to_ignore_on_save = ["lm_head.bias"]  # noqa: RUF012


class PrefersShort(Model):
    def generate(self, *arguments: Any, **options: Any) -> Any:
        options["generation_config"].length_penalty = 0.0
        return super().generate(*arguments, **options)


class HasFewBeams(Model):
    """Prunes all but two beams, regardless of num_beams."""

    def _get_running_beams_for_next_iteration(self, **arguments: Any) -> tuple[Tensor, ...]:
        sequences, scores, indices = super()._get_running_beams_for_next_iteration(**arguments)
        scores[:, 2:] = -1e9
        return sequences, scores, indices


class IgnoresSource(Model):
    """Encodes the same states for every source."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor, **inputs: Any) -> Any:
        return super().forward(input_ids=torch.zeros_like(input_ids), **inputs)


class DoesNotLearn(Model):
    def forward(self, **inputs: Any) -> Any:
        output = super().forward(**inputs)
        output.logits = output.logits * 0
        return output


@pytest.mark.parametrize(
    ("model_class", "choices", "failing"),
    [
        (Model, {}, set()),
        (Model, {"attention": "none", "context_to": []}, set()),
        (IgnoresMask, {}, {"padding", "left padding", "batched search", "accumulation"}),
        (UnorderedCache, {}, {"cached search", "beam scores", "beam search"}),
        (ForgetsItsCell, {}, {"cache", "cached search", "greedy", "beam scores", "beam search"}),
        (FusedIsDifferent, {"context_to": ["readout"]}, {"fused layers"}),
        (CountsPadding, {}, {"model(labels=…)"}),
        (IgnoresItems, {}, {"model(labels=…)"}),
        (HasIdleParameter, {}, {"gradients"}),
        (LosesABias, {}, {"save and load"}),
        (PrefersShort, {}, {"beam scores", "beam search"}),
        (HasFewBeams, {}, {"kit search"}),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_a_broken_model_fails_the_right_proofs(
    model_class: type[Model], choices: dict[str, Any], failing: set[str]
) -> None:
    assert failures(built(model_class, **choices)) == failing


def test_encoder_that_reads_left_padding_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kit.models.recurrent, "left_align_index", lambda mask, reverse: None)
    assert failures(built()) == {"left padding"}


@pytest.mark.parametrize("broken", ["summed_loss", "forward"])
def test_wrong_objective_fails(monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    right = Seq2SeqObjective.summed_loss

    def without_smoothing(self: Seq2SeqObjective, batch: Batch, label_smoothing: float = 0.0) -> Tensor:
        return right(self, batch, 0.0)

    def mean_of_means(self: Seq2SeqObjective, batch: Batch, totals: Tensor) -> Tensor:
        return right(self, batch, self.label_smoothing) / self.normalizers(batch)[0]

    monkeypatch.setattr(Seq2SeqObjective, broken, without_smoothing if broken == "summed_loss" else mean_of_means)
    assert failures(built()) == ({"loss"} if broken == "summed_loss" else {"accumulation"})


def test_model_that_cannot_overfit_fails() -> None:
    for model_class, learns in ((Model, True), (IgnoresSource, False), (DoesNotLearn, False)):
        model = built(model_class, attention="none", context_to=[])
        check = learning.overfitting(Subject(model, random_batch(model, 0)))
        assert check.passed == learns, check.figure


def test_a_model_that_raises_has_failed() -> None:
    model = built()
    model.get_decoder().readout = nn.Identity()
    subject = Subject(model, random_batch(model, 0))
    checks = [
        proof(subject) for proof in PROOFS if proof.applies(subject) and proof.name in ("padding", "greedy", "loss")
    ]
    assert len(checks) == 3
    assert not any(check.passed for check in checks)
    assert all("TypeError" in check.figure for check in checks)


def test_nothing_that_is_not_a_number_passes() -> None:
    model = built()
    model.lm_head.bias.data[4] = float("nan")
    names = {proof.name for proof in PROOFS}
    # not given; two that build models of their own; and one for the Transformer
    excused = {"tokenizers", "overfitting", "beam search", "Marian"}
    tokens_only = {"cached search", "batched search", "greedy", "save and load"}
    assert failures(model) >= names - excused - tokens_only
    assert not equal_within(max_or_nan([0.0, float("nan"), 0.0]), 1.0, "x").passed


def test_the_idle_parameter_is_named() -> None:
    model = built(HasIdleParameter)
    check = learning.every_gradient(Subject(model, random_batch(model, 0)))
    assert "none: idle" in check.figure


def test_frozen_parameters_need_no_gradient() -> None:
    model = built()
    model.get_input_embeddings().requires_grad_(False)
    assert failures(model) == set()


# ---- batches, copies, tokenizers -------------------------------------------------------------------------------------


def test_any_batch_is_made_fit_for_the_proofs() -> None:
    model = built()
    batch = random_batch(model, 1, examples=30, longest_source=50, longest_target=40)
    small = small_batch(batch)
    assert small["input_ids"].shape == (8, 32)
    assert torch.equal(small["labels"], batch["labels"][:8, :32])
    repeated = small_batch({name: tensor[:1] for name, tensor in batch.items()})
    assert len(repeated["labels"]) == 4
    assert all(check.passed for check in verify_model(model, batch={name: t[5:6] for name, t in batch.items()}))


def test_a_tiny_copy_keeps_the_choices_and_which_sizes_are_equal() -> None:
    config = RNNSeq2SeqConfig(
        vocab_size=99,
        decoder_vocab_size=50,
        separate_vocabularies=True,
        hidden_size=96,
        encoder_hidden_size=60,
        embedding_size=20,
        attention="keyed",
        attention_size=30,
        num_attention_heads=6,
        attention_layers=2,
        dropout=0.3,
        pad_token_id=7,
    )
    small = tiny_config(config, vocabulary=5, width=4)
    assert (small.vocab_size, small.decoder_vocab_size, small.pad_token_id, small.dropout) == (5, 5, 1, 0.0)
    assert (small.attention, small.num_attention_heads, small.attention_layers) == ("keyed", 6, 2)
    assert small.hidden_size < 20
    assert small.encoder_size != small.hidden_size != small.word_embedding_size
    same = tiny_config(RNNSeq2SeqConfig(hidden_size=64, attention="dot", bridge="copy"), vocabulary=5, width=4)
    assert same.encoder_size == same.hidden_size == same.word_embedding_size == 4


def test_model_is_unchanged() -> None:
    model = built(dropout=0.5).train()
    before, random = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    settings = model.generation_config.to_dict()
    assert failures(model) == set()
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert model.training
    assert model.generation_config.to_dict() == settings
    assert all(parameter.grad is None for parameter in model.parameters())


def test_mismatched_tokenizers_fail() -> None:
    words = ["a b c d e f g h"]
    tokenizers = train_tokenizers(Seq2SeqTokenizerSection(train="word", min_frequency=1), words, words)
    size = len(tokenizers.source)
    assert failures(built(vocab_size=size), tokenizers=tokenizers) == set()
    assert failures(built(vocab_size=size - 1), tokenizers=tokenizers) == {"tokenizers"}
    assert failures(built(vocab_size=size, pad_token_id=3), tokenizers=tokenizers) == {"tokenizers"}
    assert failures(built(vocab_size=size, eos_token_id=5), tokenizers=tokenizers) == {"tokenizers"}


# ---- runs and recipes ------------------------------------------------------------------------------------------------


@pytest.fixture
def recipe_file(tmp_path: Path) -> Path:
    for split in ("train", "validation", "test"):
        rows = [f"{'ab' * n}c\t{'ba' * n}d" for n in range(1, 7)]
        (tmp_path / f"{split}.tsv").write_text("\n".join(["source\ttarget", *rows]) + "\n", encoding="utf-8")
    sections = {"model": {"type": "rnn_seq2seq", "hidden_size": 16}, "train": {"max_steps": 1, "batch_size": 4}}
    return write_recipe(tmp_path, "translation", data={"path": str(tmp_path)}, eval={}, **sections)


def test_a_recipe_is_proved_on_its_own_data(recipe_file: Path) -> None:
    data, *checks = verify(recipe_file)
    assert data.figure == "6 examples of validation"
    *checks, idle = checks
    assert [check.name for check in checks] == [proof.name for proof in PROOFS if proof.name != "Marian"]
    assert (idle.name, "Marian" in idle.figure) == ("skipped", True)
    assert all(check.passed for check in checks)


def test_a_run_is_proved_with_its_weights_and_its_data_where_it_still_is(recipe_file: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    RunFolder(run).start(load_recipe(recipe_file), NoTokenizers())
    with pytest.raises(RunError, match="has no model yet"):
        verify(run)
    tokenizers = train_tokenizers(Seq2SeqTokenizerSection(train="char", min_frequency=1), ["abcd"], ["abcd"])
    register_models()
    model = built(vocab_size=len(tokenizers.source))
    model.save_pretrained(run / "model")
    tokenizers.save(run / "model")
    data, *checks = verify(run)
    assert data.figure == "6 examples of validation"
    assert all(check.passed for check in checks)
    for split in ("train", "validation", "test"):
        (tmp_path / f"{split}.tsv").unlink()
    data, *checks = verify(run)
    assert data.figure.startswith("random tokens, because ")
    assert all(check.passed for check in checks)
    model.lm_head.bias.data.fill_(float("nan"))
    model.save_pretrained(run / "model")
    assert {"loss", "padding"} <= {check.name for check in verify(run) if not check.passed}


def test_neither_run_nor_recipe_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"no recipe\.yaml"):
        verify(tmp_path)
    with pytest.raises(RecipeError, match="no recipe"):
        verify("no_such_recipe")


def test_the_table_has_a_row_for_each_check() -> None:
    checks = [
        Check("one", "says this", True, "equal [to] it"),
        Check("two", "says that", False, "differ by 1", 1e-6),
    ]
    console = Console(width=100, file=io.StringIO())
    console.print(table(checks))
    text = console.file.getvalue()
    assert [line[1] for line in text.splitlines()[2:]] == ["✓", "✗"]
    assert "equal [to] it" in text
    assert "1e-06" in text
