"""Seq2SeqTrainer of transformers trains and evaluates the model like any other."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from transformers import DataCollatorForSeq2Seq, Seq2SeqTrainer, Seq2SeqTrainingArguments

from kit.data.text.tokenizer import Tokenizers, train_tokenizers
from kit.models import RNNSeq2SeqConfig, RNNSeq2SeqForConditionalGeneration
from kit.recipe.model import Seq2SeqTokenizerSection

NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven")


@pytest.fixture(scope="module")
def texts() -> tuple[list[str], list[str]]:
    """Digits and their names, one to four in a row."""
    random = np.random.default_rng(0)
    numbers = [random.integers(0, 8, random.integers(1, 5)).tolist() for _ in range(96)]
    return [" ".join(map(str, row)) for row in numbers], [" ".join(NAMES[n] for n in row) for row in numbers]


@pytest.fixture(scope="module")
def tokenizers(texts: tuple[list[str], list[str]]) -> Tokenizers:
    return train_tokenizers(Seq2SeqTokenizerSection(train="word", min_frequency=1), *texts)


@pytest.fixture(scope="module")
def examples(texts: tuple[list[str], list[str]], tokenizers: Tokenizers) -> Dataset:
    sources, targets = texts
    return Dataset.from_dict(
        {
            "input_ids": tokenizers.encode_source(sources),
            "attention_mask": [[1] * len(ids) for ids in tokenizers.encode_source(sources)],
            "labels": tokenizers.encode_target(targets),
        }
    )


def new_model(tokenizers: Tokenizers) -> RNNSeq2SeqForConditionalGeneration:
    torch.manual_seed(0)
    size = len(tokenizers.source)
    return RNNSeq2SeqForConditionalGeneration(RNNSeq2SeqConfig(vocab_size=size, hidden_size=32, cell="gru"))


def trainer_of(
    folder: Path, tokenizers: Tokenizers, examples: Dataset, compute_metrics: Any = None, **settings: Any
) -> Seq2SeqTrainer:
    model = new_model(tokenizers)
    arguments = Seq2SeqTrainingArguments(
        output_dir=str(folder),
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
        save_strategy="no",
        learning_rate=0.01,
        max_grad_norm=1.0,
        seed=0,
        **settings,
    )
    return Seq2SeqTrainer(
        model=model,
        args=arguments,
        train_dataset=examples,
        eval_dataset=examples.select(range(32)),
        processing_class=tokenizers.source,
        data_collator=DataCollatorForSeq2Seq(tokenizers.source, model=model),
        compute_metrics=compute_metrics,
    )


def losses(trainer: Seq2SeqTrainer) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def test_trainer_trains_and_evaluates_with_generation(
    tmp_path: Path, tokenizers: Tokenizers, examples: Dataset, texts: tuple[list[str], list[str]]
) -> None:
    seen = {}

    def exact_match(evaluated: Any) -> dict[str, float]:
        pad = tokenizers.target.pad_token_id
        seen["predictions"] = tokenizers.decode(np.where(evaluated.predictions < 0, pad, evaluated.predictions)[:, 1:])
        targets = tokenizers.decode(np.where(evaluated.label_ids < 0, pad, evaluated.label_ids))
        return {"exact_match": float(np.mean(np.array(seen["predictions"]) == np.array(targets)))}

    trainer = trainer_of(
        tmp_path,
        tokenizers,
        examples,
        exact_match,
        predict_with_generate=True,
        generation_max_length=8,
        generation_num_beams=2,
        per_device_train_batch_size=16,
        per_device_eval_batch_size=7,
        num_train_epochs=30,
        logging_steps=6,
    )
    before = trainer.evaluate()
    trainer.train()
    after = trainer.evaluate()
    assert losses(trainer)[-1] < losses(trainer)[0] / 4
    assert after["eval_loss"] < before["eval_loss"] / 4
    assert before["eval_exact_match"] < 0.1
    assert after["eval_exact_match"] > 0.9
    right = sum(p == t for p, t in zip(seen["predictions"], texts[1][:32], strict=True))
    assert after["eval_exact_match"] == pytest.approx(right / 32)

    trainer.save_model(str(tmp_path / "saved"))
    saved = RNNSeq2SeqForConditionalGeneration.from_pretrained(tmp_path / "saved")
    assert all(torch.equal(a, b) for a, b in zip(saved.parameters(), trainer.model.parameters(), strict=True))


def test_accumulation_changes_neither_loss_nor_weights(
    tmp_path: Path, tokenizers: Tokenizers, examples: Dataset
) -> None:
    """Batches of unequal numbers of tokens: a mean of means would give another loss, and other weights."""
    finished = []
    for size, accumulated in ((16, 1), (4, 4)):
        trainer = trainer_of(
            tmp_path,
            tokenizers,
            examples,
            per_device_train_batch_size=size,
            gradient_accumulation_steps=accumulated,
            max_steps=6,
            logging_steps=1,
        )
        trainer.model.double()
        trainer.train()
        finished.append((losses(trainer), trainer.model.state_dict()))
    (whole, whole_weights), (split, split_weights) = finished
    assert split == pytest.approx(whole, rel=1e-3)  # the log is rounded
    for name, tensor in whole_weights.items():
        torch.testing.assert_close(split_weights[name], tensor, rtol=0, atol=1e-6)
