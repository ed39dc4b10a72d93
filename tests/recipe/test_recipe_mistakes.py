"""Each mistake in a recipe is one message with its file, line and key, and with the nearest valid name."""

import pytest
from support.recipe_texts import VALID, changed, error_of

from kit.errors import RecipeError
from kit.runs.request import find_request
from kit.tasks.registry import load_recipe


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("max_steps", "max_step", 'r.yaml, line 10: train.max_step is not a key of "train". Did you mean "max_steps"?'),
        (
            "max_steps: 10",
            "num_beams: 4",
            'line 10: train.num_beams is not a key of "train". There is a "num_beams" under "eval:".',
        ),
        ("data:\n", "dta: {}\ndata:\n", 'r.yaml, line 7: dta is not a section of a recipe. Did you mean "data"?'),
        (
            "max_steps: 10",
            "max_steps: fast",
            'line 10: train.max_steps: expected a whole number (above 0, at most 2147483647) or null, got "fast".',
        ),
        (
            "max_steps: 10",
            "max_steps: 0",
            "line 10: train.max_steps: expected a whole number (above 0, at most 2147483647) or null, got 0.",
        ),
        ("max_steps: 10", "max_steps: 1e3", "got 1000.0; write 1000."),
        ("max_steps: 10", "max_steps: 1_000", 'got "1_000"; write 1000.'),
        ("max_steps: 10", "max_steps: true", "got true."),
        (
            "max_steps: 10",
            "max_steps: 10\n  learning_rate: .nan",
            "line 11: train.learning_rate: expected a number (above 0, at most 1e+38), got NaN.",
        ),
        (
            "max_steps: 10",
            "max_steps: 10\n  label_smoothing_factor: 1",
            "expected a number (0 or more, below 1), got 1.",
        ),
        ("max_steps: 10", "max_steps: 10\n  torch_compile: yes", 'expected true or false, got "yes".'),
        ("max_steps: 10", "max_steps: 10\n  optimizer: adamww", 'got "adamww". Did you mean "adamw"?'),
        ("max_steps: 10", "max_steps: 10\n  report_to: wandb", 'got "wandb"; write [wandb].'),
        (
            "max_steps: 10",
            "max_steps: 10\n  num_train_epochs: 1",
            "line 11: train.num_train_epochs: it cannot be combined with train.max_steps",
        ),
        ("max_steps: 10", "save_steps: 10", "r.yaml, line 9: train: set train.max_steps or train.num_train_epochs."),
        ("tokens_per_batch: 512", "save_steps: 5", "line 9: train: set train.tokens_per_batch or train.batch_size."),
        (
            "tokens_per_batch: 512",
            "batch_size: 2\n  micro_batches: 3",
            "line 12: train.micro_batches: a batch_size of 2",
        ),
        (
            "max_steps: 10",
            "max_steps: 10\n  momentum: 0.9",
            "line 11: train.momentum: it has no effect with train.optimizer: adamw",
        ),
        (
            "max_steps: 10",
            "max_steps: 10\n  optimizer: sgd\n  adam_beta1: 0.8",
            "line 12: train.adam_beta1: it has no effect",
        ),
        (
            "max_steps: 10",
            "max_steps: 10\n  lr_scheduler_type: constant\n  warmup_steps: 5",
            "line 12: train.warmup_steps: it has",
        ),
        (
            "max_steps: 10",
            "max_steps: 10\n  mixed_precision: bf16\n  dtype: float64",
            "line 11: train.mixed_precision: bf16",
        ),
        ("  type: rnn_seq2seq\n", "", "r.yaml, line 3: model: set model.type or model.pretrained."),
        (
            "type: rnn_seq2seq",
            "type: rnn_seq2seq\n  pretrained: x/y",
            "line 5: model.pretrained: it cannot be combined with model.type",
        ),
        (
            "rnn_seq2seq",
            "rnn_seqseq",
            'line 4: model.type: "rnn_seqseq" is not a model type of kit (rnn_seq2seq, transformer_seq2seq). '
            'Did you mean "rnn_seq2seq"?',
        ),
        (
            "hidden_size",
            "hiden_size",
            'line 6: model.hiden_size is not a setting of rnn_seq2seq. Did you mean "hidden_size"?',
        ),
        (
            "cell: gru",
            "cell: gur",
            'line 5: model.cell: expected one of rnn, lstm, gru, got "gur". Did you mean "gru"?',
        ),
        (
            "hidden_size: 64",
            "hidden_size: big",
            'line 6: model.hidden_size: expected a whole number (1 or more, at most 1048576), got "big".',
        ),
        (
            "cell: gru",
            "vocab_size: 5",
            "line 5: model.vocab_size cannot be set in a recipe: it is the size of the tokenizer",
        ),
        (
            "cell: gru",
            "context_to: input",
            'model.context_to: expected a list, each item text, got "input"; write [input].',
        ),
        ("cell: gru", "dtype: float64", "line 5: model.dtype is not a setting of rnn_seq2seq."),
        ("cell: gru", "attention: none", "r.yaml, line 3: model: attention=none has no context"),
        ("  path: builtin:dates\n", "  seed: 1\n", "r.yaml, line 7: data.path is missing: expected text."),
        ("path: builtin:dates", "path: x/y\n  languages: [de]", "line 9: data.languages: it has no effect"),
        (
            "path: builtin:dates",
            "path: builtin:dates\n  sizes: {trian: 5}",
            'one of train, validation, test. Did you mean "train"?',
        ),
        (
            "path: builtin:dates",
            "path: builtin:dates\n  sizes: {train: 0}",
            "line 9: data.sizes.train: expected a whole number (above 0, at most 2147483647), got 0.",
        ),
        (
            "path: builtin:dates",
            "path: builtin:dates\n  delimiter: ','",
            "line 9: data.delimiter: it has no effect on built-in data",
        ),
        (
            "path: builtin:dates",
            "path: builtin:dates\n  quoting: true",
            "line 9: data.quoting: it has no effect on built-in data",
        ),
        (
            "path: builtin:dates",
            "path: a.tsv\n  encoding: utf-88",
            'line 9: data.encoding: Python has no encoding "utf-88"',
        ),
        (
            "path: builtin:dates",
            "path: a.tsv\n  columns: [de, en]\n  source: de\n  target: eng",
            'line 11: data.target: "eng" is not among data.columns',
        ),
        (
            "path: builtin:dates",
            "path: a.tsv\n  source: de\n  target: de",
            'line 10: data.target: source and target are both "de"',
        ),
        (
            "path: builtin:dates",
            "path: a.tsv\n  min_length: 5\n  max_length: 4",
            "line 10: data.max_length: 4 is below",
        ),
        (
            "task: translation",
            "task: translation\neval:\n  metric_for_best_model: bleu",
            'line 4: eval.metric_for_best_model: "bleu" is not computed',
        ),
        ("task: translation", "task: translation\neval: {early_stopping: nevre}", 'got "nevre". Did you mean "never"?'),
        (
            "task: translation",
            "task: translation\neval: 5",
            "r.yaml, line 3: eval: expected a section with keys, got 5.",
        ),
        (
            "task: translation",
            "task: translation\ntokenizer: {pretrained: x, train: word}",
            "line 3: tokenizer.train: it has no effect",
        ),
        (
            "task: translation",
            "task: translation\ntokenizer: {train: unigram, min_frequency: 3}",
            "tokenizer.min_frequency: it has",
        ),
        (
            "task: translation",
            "task: translation\nmeasured: {a: [1]}",
            "line 3: measured.a: expected a number or text, got [1].",
        ),
        (
            "task: translation",
            "task: translation\nmeasured: {none: x, a: 1}",
            "line 3: measured.none: there are figures",
        ),
        ("task: translation", "task: translations", "line 2: task: expected one of translation, masked_lm, "),
        ("task: translation", "task: translations", 'got "translations". Did you mean "translation"?'),
        ("task: translation\n", "", "r.yaml: task is missing: expected one of translation, masked_lm, "),
    ],
)
def test_each_mistake_is_reported_with_file_line_and_key(write_file, old, new, message):
    error = error_of(write_file(changed(old, new)))
    assert message in error
    assert error.startswith("r.yaml")
    assert "\n" not in error


def test_early_stopping_needs_evaluations(write_file):
    text = changed("max_steps: 10", "max_steps: 10\n  early_stopping_patience: 2") + "eval:\n  steps: 0\n"
    assert "line 11: train.early_stopping_patience: it counts evaluations" in error_of(write_file(text))


def test_sharing_embeddings_needs_the_tokenizer_to_be_shared(write_file):
    path = write_file(changed("cell: gru", "share_encoder_decoder_embeddings: true"))
    assert load_recipe(path).model.settings["share_encoder_decoder_embeddings"] is True
    assert "line 3: model: share_encoder_decoder_embeddings needs one vocabulary" in error_of(
        path, "tokenizer.shared=false"
    )


def test_several_mistakes_are_listed_in_the_order_of_the_file(write_file):
    text = changed("cell: gru", "cel: gru").replace("max_steps: 10", "max_step: 10").replace("builtin:dates", "5")
    lines = error_of(write_file(text), "eval.num_beams=0").splitlines()
    starts = ["r.yaml, line 5: model.cel ", "r.yaml, line 8: data.path:", "r.yaml, line 10: train.max_step "]
    assert [line[: len(start)] for line, start in zip(lines, starts, strict=False)] == starts
    assert lines[-1].startswith("on the command line (eval.num_beams=0): eval.num_beams: expected a whole number")


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("train.max_step=5", 'on the command line (train.max_step=5): train.max_step is not a key of "train". Did you'),
        (
            "max_steps=5",
            'on the command line (max_steps=5): max_steps is not a section of a recipe. There is a "max_steps"',
        ),
        ("model.cell=5", "on the command line (model.cell=5): model.cell: expected one of rnn, lstm, gru, got 5."),
        ("train.max_steps", 'on the command line: "train.max_steps" is not of the form key=value'),
        ("train.max_steps.x=1", "train.max_steps is not a section"),
        ("eval.metrics.0=bleu", "on the command line (eval.metrics.0=bleu): eval.metrics: expected a list"),
    ],
)
def test_mistakes_on_the_command_line(write_file, argument, message):
    assert message in error_of(write_file(VALID), argument)


def test_null_on_the_command_line_removes_a_value(write_file):
    recipe = load_recipe(
        write_file(VALID), ["train.max_steps=null", "train.num_train_epochs=0.5", "train.max_grad_norm="]
    )
    assert (recipe.train.max_steps, recipe.train.num_train_epochs, recipe.train.max_grad_norm) == (None, 0.5, None)


def test_files_that_are_not_recipes_are_rejected(write_file, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "latin.yaml").write_bytes("task: é".encode("latin-1"))
    (tmp_path / "nul.yaml").write_bytes(b"task: \0")
    assert "no such file" in error_of("missing.yaml")
    assert "folder is a folder" in error_of("folder")
    assert "`kit data folder` prints the command that trains" in error_of("folder")
    (tmp_path / "folder" / "reviews.csv").write_text("text,label\n", encoding="utf-8")
    with pytest.raises(RecipeError, match=r"If it is data, `kit data folder/reviews.csv` prints the command"):
        find_request("folder/reviews.csv")  # not a name on the Hub
    assert "latin.yaml, line 1: byte 0xe9 is not UTF-8" in error_of("latin.yaml")
    assert "nul.yaml, line 1: the file contains a NUL byte" in error_of("nul.yaml")
    assert "r.yaml is empty" in error_of(write_file("# only a comment\n"))
    assert "consists of sections" in error_of(write_file("- a\n- b\n"))
    assert "consists of sections" in error_of(write_file("text"))
    for name in ("", "x" * 5000, "a\0b", "\udcff"):
        error_of(name).encode("utf-8")
