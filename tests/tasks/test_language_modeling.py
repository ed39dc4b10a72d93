"""Pretraining of language models: documents, runs, evaluation, and use in transformers."""

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from support.processes import in_processes
from support.recipes import BERT, make_recipe, write_recipe
from support.runs import losses
from transformers import AutoModelForCausalLM, AutoTokenizer, pipeline

from kit import DataError, RecipeError, load_recipe, register, train
from kit.data.batching.contiguous import ContiguousPlan, stream_of
from kit.diagnostics.dry_run import inspect_recipe
from kit.runs.evaluate import evaluate
from kit.runs.prepare import prepare
from kit.runs.verify import verify
from kit.tasks.causal_lm.recipe import CausalData
from kit.tasks.families.language_modeling.documents import load_documents, split_off_end
from kit.training.lm_objectives import MaskedLMObjective
from kit.training.processes import add_columns

CAUSAL = ["tokenizer.train=byte_bpe", "data.sizes={train: 8, validation: 2, test: 2}", "eval.max_new_tokens=4"]
MASKED = ["tokenizer.vocab_size=500", "data.sizes={train: 8, validation: 3, test: 3}"]
PAIRS = ["data.pairs=next_sentence", "data.pair_passes=1"]
KINDS = {
    "gpt": ("causal_lm", CAUSAL),
    "rnn": ("causal_lm", [*CAUSAL, "model={type: rnn_lm, hidden_size: 16}"]),
    "mlm": ("masked_lm", MASKED),
    "nsp": ("masked_lm", [*MASKED, *PAIRS]),
}


def recipe_of(folder: Path, kind: str, *overrides: str) -> Any:
    task, changes = KINDS[kind]
    tokenizer = {"train": "wordpiece", "vocab_size": 300}
    train = {"max_steps": 6, "tokens_per_batch": 512, "learning_rate": 1e-2, "logging_steps": 1}
    sections = {"tokenizer": tokenizer, "train": train, "eval": {"steps": 3, "examples": 2}}
    return make_recipe(folder, task, overrides=[*changes, *overrides], **sections)


@pytest.mark.parametrize("kind", KINDS)
def test_run_learns_and_works_in_transformers(kind: str, tmp_path: Path) -> None:
    run = train(recipe_of(tmp_path, kind), tmp_path / "run")
    assert losses(run.folder)[-1] < losses(run.folder)[0]
    again = evaluate(run.folder, overrides=["eval.tokens_per_batch=64"])  # other batches, same figures
    for name, value in again.figures.items():
        assert run.results["test"][name] == pytest.approx(value, rel=1e-5), name
    register()
    model = str(run.folder / "model")
    if kind in ("gpt", "rnn"):
        saved = AutoModelForCausalLM.from_pretrained(model)
        separator = train_separator(run.folder)
        assert saved.generation_config.bos_token_id == saved.config.bos_token_id == separator
        written = pipeline("text-generation", model=model)("The", max_new_tokens=5, do_sample=False)
        assert written[0]["generated_text"].startswith("The")
    else:
        filled = pipeline("fill-mask", model=model)("The [MASK] statement", top_k=2)
        assert len(filled) == 2
        vectors = pipeline("feature-extraction", model=model)("The statement")
        assert np.array(vectors).shape[-1] == 16
    checks = verify(run.folder)
    assert [check for check in checks if not check.passed and check.name != "overfitting"] == []
    assert len(checks) >= 7
    assert "fill-mask" in (run.folder / "README.md").read_text() or kind in ("gpt", "rnn")
    assert (run.folder / "plots" / "loss.png").is_file()


@pytest.mark.parametrize("positions", [9, 8])
def test_samples_end_with_the_positions_of_the_model(positions: int, tmp_path: Path) -> None:
    """By default prompt and continuation have 68 tokens, more than a tiny GPT has positions for."""
    tiny = [f"model.n_positions={positions}", "data.block_size=8", "eval.max_new_tokens=60"]
    run = train(recipe_of(tmp_path, "gpt", *tiny, "eval.steps=0", "train.max_steps=1"), tmp_path / "run")
    rows = [json.loads(line) for line in (run.folder / "predictions" / "test.jsonl").read_text().split("\n")[:-1]]
    assert len(rows) == 2
    assert all(row["prompt"] and row["prediction"] for row in rows)


def train_separator(run: Path) -> int:
    """The token that precedes every text in training is the one that generate() starts from."""
    return int(prepare(load_recipe(run / "recipe.yaml")).encoded["train"].examples.blocks.stream[0])


@pytest.mark.parametrize("kind", KINDS)
def test_gradient_accumulation_is_exact(kind: str, tmp_path: Path) -> None:
    exact = ["train.dtype=float64", "train.max_steps=4", "eval.steps=0", "eval.examples=0"]
    if kind in ("mlm", "nsp"):
        exact += ["model.hidden_dropout_prob=0.0", "model.attention_probs_dropout_prob=0.0"]
    elif kind == "gpt":
        exact += ["model.resid_pdrop=0.0", "model.embd_pdrop=0.0", "model.attn_pdrop=0.0"]
    prepared = prepare(recipe_of(tmp_path, kind, *exact))
    objective = prepared.task.objective(prepared.model.eval(), prepared.state)
    make = prepared.make_batch
    indices = prepared.plan.step(0)[0]
    if kind in ("gpt", "rnn"):
        whole, parts = make(indices, np.random.default_rng(0)), np.array_split(indices, 2)
        pieces = [make(part, np.random.default_rng(0)) for part in parts]
    else:  # what is masked depends on the micro-batch: cut a masked one in two
        whole = make(indices, np.random.default_rng(0))
        half = len(indices) // 2
        pieces = [{name: tensor[rows] for name, tensor in whole.items()} for rows in (slice(half), slice(half, None))]
    totals = objective.normalizers(whole)
    together = objective(whole, totals)
    apart = sum(objective(piece, totals) for piece in pieces)
    assert float(apart.detach()) == pytest.approx(float(together.detach()), rel=1e-9)
    assert add_columns(objective.normalizers(piece) for piece in pieces) == totals


def test_resume_is_bit_identical(tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path, "nsp", "train.save_steps=3")
    unbroken = train(recipe, tmp_path / "unbroken").folder
    broken = train(recipe, tmp_path / "broken").folder
    (broken / "results.json").unlink()
    for folder in (broken / "checkpoints").glob("step-6*"):
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()
    train(recipe, broken, resume=True)
    mine, theirs = (load_file(folder / "model" / "model.safetensors") for folder in (unbroken, broken))
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_pairs_are_balanced_and_length_does_not_reveal_the_label(tmp_path: Path) -> None:
    prepared = prepare(recipe_of(tmp_path, "nsp", "data.pair_passes=3"))
    examples = prepared.encoded["train"].examples
    assert np.mean(examples.pair_labels) == pytest.approx(0.5, abs=0.03)
    batch = examples.batch(np.arange(len(examples)), np.random.default_rng(0))
    segments, mask = batch["token_type_ids"], batch["attention_mask"]
    assert (segments.sum(1) > 0).all()
    assert ((segments == 1) & (mask == 0)).sum() == 0
    lengths = np.array([(segments == 0).logical_and(mask == 1).sum(1).numpy(), segments.sum(1).numpy()]).T
    for label in (0, 1):  # length alone must not reveal the label
        label_lengths = lengths[examples.pair_labels == label].mean(0)
        assert label_lengths == pytest.approx(lengths.mean(0), rel=0.2)


def test_packed_blocks_are_nearly_full(tmp_path: Path) -> None:
    assert prepare(recipe_of(tmp_path, "gpt")).plan.padding().share < 0.01
    assert prepare(recipe_of(tmp_path, "mlm")).plan.padding().share < 0.05


def test_document_mask_isolates_documents(tmp_path: Path) -> None:
    prepared = prepare(recipe_of(tmp_path, "gpt", "data.separate_documents=true", "train.dtype=float64"))
    examples, model = prepared.encoded["train"].examples, prepared.model.eval()
    blocks, separator = examples.blocks, examples.blocks.separator
    index = next(i for i in range(len(blocks)) if separator in blocks.batch([i])[0][0, 5:-5])
    batch = examples.batch(np.array([index]))
    boundary = int((batch["input_ids"][0] == separator).nonzero()[-1])
    with torch.no_grad():
        before = model(input_ids=batch["input_ids"], position_ids=batch["position_ids"], use_cache=False).logits
        changed = batch["input_ids"].clone()
        changed[0, 0] = (changed[0, 0] + 1) % 200
        after = model(input_ids=changed, position_ids=batch["position_ids"], use_cache=False).logits
    assert torch.equal(before[0, boundary:], after[0, boundary:])
    assert not torch.equal(before[0, :boundary], after[0, :boundary])


@pytest.mark.parametrize("kind", ["gpt", *(pytest.param(k, marks=pytest.mark.soak) for k in ("rnn", "mlm", "nsp"))])
def test_stream_is_read_once_per_epoch_and_resumes(kind: str, tmp_path: Path) -> None:
    """Shards of documents, two buffers an epoch; the run that was stopped ends with the weights of the other."""
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for shard in range(3):
        rows = [{"paras": [f"Text {shard} {n}. It goes on, {n} times.", "And ends."]} for n in range(20)]
        name = f"train-0000{shard}-of-00003.jsonl"
        (corpus / name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (corpus / "val.jsonl").write_text('{"paras": ["One text. It ends."]}\n{"paras": ["Another. It ends."]}\n')
    data = f"data={{path: {corpus}, text: paras, streaming: true, buffer_size: 30, block_size: 32}}"
    recipe = recipe_of(tmp_path, kind, data, *PAIRS[:1] * (kind == "nsp"), "train.save_steps=2")
    unbroken = train(recipe, tmp_path / "unbroken").folder
    broken = train(recipe, tmp_path / "broken").folder
    (broken / "results.json").unlink()
    shutil.rmtree(broken / "checkpoints" / "step-6")
    train(recipe, broken, resume=True)
    mine, theirs = (load_file(folder / "model" / "model.safetensors") for folder in (unbroken, broken))
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    assert losses(unbroken) == losses(broken)


# ---- a state that is carried from block to block --------------------------------------------------------------------

CARRIED = ["data.carry_state=true", "train.tokens_per_batch=256", "train.dtype=float64", "train.save_steps=2"]


@settings(max_examples=150, deadline=None)
@given(blocks=st.integers(1, 60), rows=st.integers(1, 12), micro_batches=st.integers(1, 5))
def test_streams_are_contiguous_and_each_block_is_read_once(blocks: int, rows: int, micro_batches: int) -> None:
    lengths = np.full(blocks, 7)
    if blocks < max(rows, micro_batches) or rows < micro_batches:
        return
    plan = ContiguousPlan(lengths, rows, micro_batches)
    steps = [plan.step(number) for number in range(plan.steps_per_epoch)]
    read = [int(block) for step in steps for part in step for block in part]
    assert len(read) == len(set(read)) == blocks - plan.skipped_blocks
    assert plan.skipped_blocks < rows
    assert all(len(part) for step in steps for part in step)
    for before, after in itertools.pairwise(steps):
        for part, following in zip(before, after, strict=True):
            assert set(following) <= {block + 1 for block in part}  # the same streams in the same micro-batch
    assert all(stream_of(part, blocks, rows)[1].all() for part in steps[0])
    assert [part.tolist() for part in plan.step(plan.steps_per_epoch)] == [part.tolist() for part in steps[0]]


def test_blocks_with_a_carried_state_are_one_long_text(tmp_path: Path) -> None:
    prepared = prepare(recipe_of(tmp_path, "rnn", *CARRIED))
    examples, model = prepared.encoded["validation"].examples, prepared.model.eval()
    of_blocks, (nats,) = prepared.task.read_through(model, examples, prepared.evaluator(Accelerator()))
    stream = torch.from_numpy(examples.blocks.stream.astype(np.int64))
    with torch.no_grad():
        logits = model(input_ids=stream[None, :-1], use_cache=False).logits[0]
    expected = torch.nn.functional.cross_entropy(logits, stream[1:], reduction="none")
    assert nats == pytest.approx(float(expected.sum()), rel=1e-9)
    assert np.concatenate(of_blocks) == pytest.approx(expected.numpy(), rel=1e-6)


@pytest.mark.soak
def test_a_carried_state_is_part_of_the_checkpoint(tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path, "rnn", *CARRIED)
    unbroken = train(recipe, tmp_path / "unbroken").folder
    broken = train(recipe, tmp_path / "broken").folder
    (broken / "results.json").unlink()
    shutil.rmtree(broken / "checkpoints" / "step-6")
    assert (broken / "checkpoints" / "step-4" / "carried.safetensors").is_file()
    train(recipe, broken, resume=True)
    assert losses(unbroken) == losses(broken)
    parts = train(recipe_of(tmp_path, "rnn", *CARRIED, "train.micro_batches=3"), tmp_path / "parts").folder
    assert losses(parts) == pytest.approx(losses(unbroken), rel=1e-9)


@pytest.mark.soak
def test_two_processes_carry_their_streams(tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path, "rnn", *CARRIED, "train.micro_batches=2")
    single, parallel = train(recipe, tmp_path / "one").folder, tmp_path / "two"
    in_processes(2, train, recipe, parallel)
    assert json.loads((parallel / "results.json").read_text(encoding="utf-8"))["train"]["processes"] == 2
    assert losses(parallel) == pytest.approx(losses(single), rel=1e-9)
    mine, theirs = (load_file(run / "checkpoints" / "step-6" / "carried.safetensors") for run in (single, parallel))
    for name, tensor in mine.items():
        torch.testing.assert_close(theirs[name], tensor, rtol=1e-9, atol=1e-12)


def test_only_recurrent_models_carry_a_state(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="a gpt2 has no state to carry"):
        prepare(recipe_of(tmp_path, "gpt", "data.carry_state=true"))
    with pytest.raises(RecipeError, match="a rnn_lm has no attention"):
        prepare(recipe_of(tmp_path, "rnn", "data.separate_documents=true"))
    pretrained = train(recipe_of(tmp_path, "gpt", "train.max_steps=1", "eval.steps=0"), tmp_path / "run").folder
    model = {"pretrained": str(pretrained)}
    with pytest.raises(RecipeError, match="a gpt2 has no state to carry"):
        prepare(make_recipe(tmp_path, "causal_lm", overrides=["data.carry_state=true"], model=model))


# ---- documents -----------------------------------------------------------------------------------------------------


def documents(path: Path, **keys: Any) -> list[str]:
    return list(load_documents(CausalData(path=str(path), **keys)).datasets["train"]["text"])


def test_document_separators(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_bytes(b"a\r\nb\n\n \nc\n\n\nd")
    (tmp_path / "val.txt").write_text("e", encoding="utf-8")
    assert documents(tmp_path, documents="file") == ["a\nb\n\n \nc\n\n\nd"]
    assert documents(tmp_path, documents="blank_line") == ["a\nb", "c", "d"]
    assert documents(tmp_path) == ["a", "b", "c", "d"]
    lines = [{"paras": ["a", "b"], "n": 1}, {"paras": [], "n": 2}, {"paras": None, "n": 3}, {"paras": ["c"], "n": 4}]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "x.jsonl").write_text(text, encoding="utf-8")
    splits = load_documents(CausalData(path=str(tmp_path / "x.jsonl"), text="paras", validation_size=1))
    assert sorted(text for split in splits.datasets.values() for text in split["text"]) == ["a\n\nb", "c"]
    assert splits.report.splits["train"].dropped["empty"] == splits.report.splits["train"].dropped["no text"] == 1
    with pytest.raises(DataError, match=r"documents: file is for \.txt files"):
        documents(tmp_path / "x.jsonl", documents="file", validation_size=1)
    with pytest.raises(RecipeError, match="positions"):
        prepare(recipe_of(tmp_path, "gpt", "data.block_size=64"))
    with pytest.raises(DataError, match=r"documents: file is for \.txt files, and there is no file or folder stories"):
        load_documents(CausalData(path="stories", documents="file"))


@settings(max_examples=80, deadline=None)
@given(texts=st.lists(st.text("ab\n", min_size=1, max_size=30), min_size=1, max_size=6), characters=st.integers(1, 60))
def test_end_of_text_is_held_out_at_a_line_break(texts: list[str], characters: int) -> None:
    remaining, end = split_off_end(texts, characters)
    assert "".join(remaining + end).replace("\n", "") == "".join(texts).replace("\n", "")
    assert sum(map(len, end)) <= characters


def test_validation_share_is_held_out(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("".join(f"line {number}\n" for number in range(1000)), encoding="utf-8")
    keys = {"documents": "file", "validation_share": 0.1, "test_share": 0.05}
    splits = load_documents(CausalData(path=str(tmp_path / "a.txt"), **keys))
    sizes = {name: len(split["text"][0]) for name, split in splits.datasets.items()}
    whole = sum(sizes.values())
    assert sizes["validation"] / whole == pytest.approx(0.1, abs=0.01)
    assert splits.datasets["test"]["text"][0].endswith("line 999")
    lines = {"documents": "blank_line", "validation_share": 0.1, "test_size": 3}
    (tmp_path / "b.txt").write_text("".join(f"line {number}\n\n" for number in range(100)), encoding="utf-8")
    both = load_documents(CausalData(path=str(tmp_path / "b.txt"), **lines)).datasets
    assert len(both["test"]) == 3
    assert sum(map(len, both.values())) == 100


def test_every_document_is_accounted_for_where_two_shares_are_held_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.txt").write_text("".join(f"line {number}\n\n" for number in range(100)), encoding="utf-8")
    monkeypatch.setenv("HOME", str(tmp_path))
    keys = {"documents": "blank_line", "validation_share": 0.1, "test_share": 0.1}
    splits = load_documents(CausalData(path="~/a.txt", **keys))
    report = splits.report.splits["train"]
    assert report.read == 100 == report.rows + sum(report.dropped.values())
    assert sum(len(rows) for rows in splits.datasets.values()) in (100, 101, 102)  # a split may divide a document


def test_a_validation_split_without_a_masked_token_is_refused_before_training(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("the cat sat on the mat and the dog sat\n" * 30, encoding="utf-8")
    (tmp_path / "validation.txt").write_text("the\n", encoding="utf-8")
    recipe = {
        "task": "masked_lm", "model": BERT, "tokenizer": {"train": "wordpiece", "vocab_size": 60, "min_frequency": 1},
        "data": {"path": str(tmp_path), "mlm_probability": 0.001, "block_size": 16, "cache": False},
        "train": {"max_steps": 1, "batch_size": 2},
    }  # fmt: skip
    with pytest.raises(DataError, match="so little text in validation that no token of it is masked"):
        prepare(load_recipe(recipe))


def test_a_broken_model_fails_its_proofs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An output layer at the wrong positions."""
    path = write_recipe(tmp_path, "masked_lm")
    original = MaskedLMObjective._outputs

    def shifted(self: MaskedLMObjective, batch: Any, seen: Any = None) -> Any:
        return original(self, {**batch, "labels": batch["labels"].roll(1, 1)}, seen)

    monkeypatch.setattr(MaskedLMObjective, "_outputs", shifted)
    failed = {check.name for check in verify(path) if not check.passed}
    assert {"output layer", "loss"} <= failed


# ---- tokenizers ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def by_bytes(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("bytes")
    prepared = prepare(recipe_of(folder, "gpt"))
    prepared.tokenizers.save(folder / "tokenizer")
    return AutoTokenizer.from_pretrained(folder / "tokenizer")


@settings(max_examples=100, deadline=None)
@given(text=st.text())
def test_byte_level_round_trip(by_bytes: Any, text: str) -> None:
    import unicodedata

    if not any("\ud800" <= letter <= "\udfff" for letter in text):
        ids = by_bytes(text, add_special_tokens=False)["input_ids"]
        assert by_bytes.decode(ids) == unicodedata.normalize("NFC", text)


def test_text_that_looks_like_a_special_token_is_text_in_training(tmp_path: Path) -> None:
    text = "a [SEP] b [MASK] c. " * 30
    (tmp_path / "train.jsonl").write_text(json.dumps({"text": text}) + "\n", encoding="utf-8")
    (tmp_path / "val.jsonl").write_text(json.dumps({"text": "a b c d"}) + "\n", encoding="utf-8")
    prepared = prepare(recipe_of(tmp_path, "mlm", f"data={{path: {tmp_path}, block_size: 32}}"))
    tokenizer, examples = prepared.tokenizers.source, prepared.encoded["train"].examples
    special = [tokenizer.sep_token_id, tokenizer.mask_token_id]
    inside = np.concatenate([(examples.rows[i] >> 1)[1:-1] for i in range(len(examples))])
    assert not np.isin(inside, special).any()


def test_dry_run_shows_examples(tmp_path: Path) -> None:
    inspection = inspect_recipe(recipe_of(tmp_path, "nsp"))
    assert list(inspection.splits["train"].sides) == ["text"]
    assert list(inspection.examples[0].sides) == ["reads", "predicts"]
    assert list(inspection.examples[0].labels) == ["pair"]
    assert inspection.start_token is None
    assert inspection.cost is not None


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("gpt", "model.type=gpt3", 'not a model type of kit .rnn_lm. or of transformers .* Did you mean "gptj"'),
        ("gpt", "model.hidden_sise=3", "model.hidden_sise is not a setting of gpt2"),
        ("mlm", "data.pairs=next_sentense", "next_sentence"),
        ("mlm", "data.pair_passes=2", "no effect without data.pairs"),
        ("gpt", "data.validation_share=0.5", None),
        ("mlm", "train.label_smoothing_factor=0.1", "label_smoothing_factor applies to .* task: masked_lm does not"),
        ("gpt", "train.normalize_by=sequences", "normalize_by applies to .* task: causal_lm does not"),
        ("gpt", "eval.num_beams=4", "num_beams applies to translation, captioning and dialogue"),
    ],
)
def test_mistakes_are_reported(kind: str, change: str, message: str | None, tmp_path: Path) -> None:
    if message is None:
        with pytest.raises(DataError, match=r"validation_share: .* has a split for validation of its own"):
            prepare(recipe_of(tmp_path, kind, change))
        return
    with pytest.raises(RecipeError, match=message):
        recipe_of(tmp_path, kind, change)


def test_column_names_are_rejected_for_plain_text(tmp_path: Path) -> None:
    text = "task: causal_lm\nmodel: {type: gpt2}\ndata: {path: a.txt, documents: file, columns: [text]}\n"
    (tmp_path / "gpt.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(RecipeError, match=r"data.columns: it has no effect on texts without columns"):
        load_recipe(tmp_path / "gpt.yaml")


def test_only_models_with_a_second_head_learn_from_pairs(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"a roberta has no head that predicts whether two segments"):
        prepare(recipe_of(tmp_path, "nsp", "model.type=roberta"))
    assert prepare(recipe_of(tmp_path, "mlm", "model.type=roberta")).model.config.model_type == "roberta"
