"""A tokenizer with two vocabularies works like Marian's: in scripts of transformers, and without kit."""

import copy
import pickle
import shutil
from pathlib import Path

import pytest
import torch
from support.standalone import run_without_kit
from transformers import AutoTokenizer, PreTrainedTokenizerFast

import kit
from kit import KitError, Translator
from kit.data.text.tokenizer import Tokenizers, train_tokenizers
from kit.models import RNNSeq2SeqConfig, RNNSeq2SeqForConditionalGeneration
from kit.pipelines.text_to_text import SourceTargetTokenizer
from kit.pretrained.export import export_model
from kit.pretrained.pipelines import pipeline
from kit.recipe.model import Seq2SeqTokenizerSection
from kit.tasks.families.seq2seq.task import vocabulary_settings

SOURCES = ["1 2", "3", "2 3 1", "1 1", "3 2"]
NAMES = {"1": "one and", "2": "two or", "3": "three but"}
TARGETS = [" ".join(NAMES[digit] for digit in source.split()) for source in SOURCES]

PROGRAM = """
import numpy as np
from datasets import Dataset
from transformers import (
    AutoModelForSeq2SeqLM, AutoTokenizer, DataCollatorForSeq2Seq, Seq2SeqTrainer, Seq2SeqTrainingArguments, pipeline,
)

folder, sources, targets = sys.argv[1], sys.argv[2].split("|"), sys.argv[3].split("|")
tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
model = AutoModelForSeq2SeqLM.from_pretrained(folder, trust_remote_code=True)
if len(tokenizer) > model.get_input_embeddings().weight.shape[0]:
    model.resize_token_embeddings(len(tokenizer))

def preprocess(examples):
    inputs = tokenizer(examples["source"], max_length=16, padding=False, truncation=True)
    inputs["labels"] = tokenizer(
        text_target=examples["target"], max_length=16, padding=False, truncation=True
    )["input_ids"]
    return inputs

data = Dataset.from_dict({"source": sources, "target": targets})
data = data.map(preprocess, batched=True, remove_columns=data.column_names)
assert max(max(row) for row in data["labels"]) >= len(tokenizer)  # the target vocabulary is larger

def compute_metrics(evaluated):
    predictions, labels = evaluated
    predictions = np.where(predictions != -100, predictions, tokenizer.pad_token_id)
    labels = np.where(labels != -100, labels, tokenizer.pad_token_id)
    decoded = tokenizer.batch_decode(predictions, skip_special_tokens=True)
    references = tokenizer.batch_decode(labels, skip_special_tokens=True)
    assert references == targets, references
    return {"exact_match": np.mean([p.strip() == r.strip() for p, r in zip(decoded, references)])}

arguments = Seq2SeqTrainingArguments(
    output_dir="out", use_cpu=True, report_to="none", disable_tqdm=True, save_strategy="no", learning_rate=3e-2,
    num_train_epochs=40, per_device_train_batch_size=5, predict_with_generate=True, generation_max_length=16, seed=0,
)
trainer = Seq2SeqTrainer(
    model=model, args=arguments, train_dataset=data, eval_dataset=data, processing_class=tokenizer,
    data_collator=DataCollatorForSeq2Seq(tokenizer, model=model, label_pad_token_id=-100, pad_to_multiple_of=8),
    compute_metrics=compute_metrics,
)
trainer.train()
assert trainer.evaluate()["eval_exact_match"] == 1.0
trainer.save_model("saved")  # with the tokenizer
again = AutoTokenizer.from_pretrained("saved", trust_remote_code=True)
assert again(sources, text_target=targets).data == tokenizer(sources, text_target=targets).data
generated = model.generate(**again(sources, return_tensors="pt", padding=True), max_new_tokens=16)
assert again.batch_decode(generated, skip_special_tokens=True) == targets
pipe = pipeline("translation", model="saved", tokenizer=again, trust_remote_code=True)
assert [pipe(source)[0]["translation_text"] for source in sources] == targets
"""


@pytest.fixture(scope="module")
def tokenizers() -> Tokenizers:
    section = Seq2SeqTokenizerSection(train="word", min_frequency=1, shared=False)
    return train_tokenizers(section, SOURCES, TARGETS)


@pytest.fixture(scope="module")
def folder(tokenizers: Tokenizers, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved model whose target vocabulary is larger than its source vocabulary."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "cell": "gru", "attention": "additive", "dropout": 0.0}
    config = RNNSeq2SeqConfig(**sizes, **vocabulary_settings(tokenizers))
    folder = tmp_path_factory.mktemp("two") / "model"
    export_model(folder, RNNSeq2SeqForConditionalGeneration(config), tokenizers, pipelines=("translation",))
    return folder


def test_transformers_scripts_train_and_evaluate_without_kit(folder: Path, tmp_path: Path) -> None:
    """The steps of run_translation.py: `text_target`, DataCollatorForSeq2Seq, and `batch_decode` of both sides."""
    run_without_kit(PROGRAM, tmp_path, folder, "|".join(SOURCES), "|".join(TARGETS))


def test_each_side_has_its_vocabulary(tokenizers: Tokenizers) -> None:
    joined = tokenizers.joined
    for tokenizer in (joined, copy.deepcopy(joined), pickle.loads(pickle.dumps(joined))):
        encoded = tokenizer(SOURCES, text_target=TARGETS)
        assert encoded["input_ids"] == tokenizers.encode_source(SOURCES)
        assert encoded["labels"] == tokenizers.encode_target(TARGETS)
        assert tokenizer(text_target=TARGETS)["input_ids"] == encoded["labels"]
        assert tokenizer.batch_decode(encoded["labels"], skip_special_tokens=True) == TARGETS
        plain = {"skip_special_tokens": True, "use_source_tokenizer": True}
        assert tokenizer.batch_decode(encoded["input_ids"], **plain) == SOURCES
        assert [tokenizer.decode(ids, **plain) for ids in encoded["input_ids"]] == SOURCES
        assert len(tokenizer) == len(tokenizers.source) < len(tokenizer.target_tokenizer) == len(tokenizers.target)
        with pytest.raises(ValueError, match="must be of type"):
            tokenizer(text_target=[3.5])
        assert tokenizer.encode(SOURCES[0]) == encoded["input_ids"][0]  # the source vocabulary is active again


def test_settings_are_saved_and_loaded(tmp_path: Path) -> None:
    section = Seq2SeqTokenizerSection(train="bpe", min_frequency=1, shared=False, end_of_source=False)
    before = train_tokenizers(section, SOURCES, TARGETS)
    before.source.init_kwargs["source_prefix"] = "1 "
    before.source.add_special_tokens({"extra_special_tokens": ["<2en>"]})
    before.source.model_max_length = 7
    before.save(tmp_path / "a")
    after = Tokenizers.load(tmp_path / "a")
    after.save(tmp_path / "b")
    for name in ("tokenizer.json", "target_tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert (after.prefix, after.source.model_max_length, after.shared) == ("1 ", 7, False)
    assert after.source.extra_special_tokens == ["<2en>"]
    assert "<2en>" not in after.target.get_vocab()
    assert after.encode_source(SOURCES) == before.encode_source(SOURCES)
    assert after.encode_target(TARGETS) == before.encode_target(TARGETS)


def test_kit_runs_its_own_code_and_not_that_of_the_folder(folder: Path, tmp_path: Path) -> None:
    changed = tmp_path / "changed"
    shutil.copytree(folder, changed)
    (changed / "text_to_text.py").write_text("raise SystemExit('the code of the folder runs')\n", encoding="utf-8")
    assert Tokenizers.load(changed).encode_target(TARGETS) == Tokenizers.load(folder).encode_target(TARGETS)
    assert pipeline("translation", changed)(SOURCES[0]) == pipeline("translation", folder)(SOURCES[0])
    kit.register()
    assert type(AutoTokenizer.from_pretrained(changed)) is SourceTargetTokenizer


def test_a_missing_vocabulary_is_reported(folder: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(folder, damaged)
    (damaged / "target_tokenizer.json").unlink()
    with pytest.raises(KitError, match=r"target_tokenizer\.json"):
        next(Translator(damaged).translate(SOURCES))
    source = PreTrainedTokenizerFast.from_pretrained(folder)
    with pytest.raises(ValueError, match="Pass the tokenizer that was saved with the model"):
        pipeline("translation", folder, tokenizer=source)


def test_two_vocabularies_need_no_further_model_file(trained: Path) -> None:
    """The class is in the file of the pipeline, which is saved with the model anyway."""
    code = {file.name for file in (trained / "model").glob("*.py")} - {"text_to_text.py"}
    assert (trained / "model" / "target_tokenizer.json").is_file()
    assert len(code) == 5
