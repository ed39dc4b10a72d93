"""Train the same model with transformers' own Seq2SeqTrainer: it is a PreTrainedModel like any other.

python recipes/scripts/train_with_trainer.py [key=value ...]

Data, tokenizer and model are those of recipes/translation/dates_rnn.yaml, with the changes below and any others that
the command line names.
"""

import sys

import numpy as np
from transformers import DataCollatorForSeq2Seq, EvalPrediction, Seq2SeqTrainer, Seq2SeqTrainingArguments

from kit import load_recipe
from kit.data.splits import load_splits
from kit.data.text.tokenizer import train_tokenizers
from kit.models import RNNSeq2SeqConfig, RNNSeq2SeqForConditionalGeneration

CHANGES = [
    "data.languages=[en, de, fr]",
    "data.sizes={train: 8000, validation: 200, test: 200}",
    "tokenizer.shared=true",
    "train.max_steps=400",
]
recipe = load_recipe("dates_rnn", [*CHANGES, *sys.argv[1:]])
splits = load_splits(recipe.data).datasets
tokenizers = train_tokenizers(recipe.tokenizer, splits["train"]["source"], splits["train"]["target"])


def encode(rows: dict[str, list[str]]) -> dict[str, list[list[int]]]:
    sources = tokenizers.encode_source(rows["source"])
    return {"input_ids": sources, "labels": tokenizers.encode_target(rows["target"])}


encoded = splits.map(encode, batched=True, remove_columns=splits["train"].column_names)
tokenizer = tokenizers.source
model = RNNSeq2SeqForConditionalGeneration(RNNSeq2SeqConfig(vocab_size=len(tokenizer), **recipe.model.settings))


def exact_match(prediction: EvalPrediction) -> dict[str, float]:
    def texts(ids: np.ndarray) -> list[str]:
        return tokenizer.batch_decode(np.where(ids < 0, tokenizer.pad_token_id, ids), skip_special_tokens=True)

    outputs, references = texts(prediction.predictions), texts(prediction.label_ids)
    return {"exact_match": float(np.mean([a == b for a, b in zip(outputs, references, strict=True)]))}


trainer = Seq2SeqTrainer(
    model=model,
    args=Seq2SeqTrainingArguments(
        output_dir="runs/dates_trainer",
        max_steps=recipe.train.max_steps,
        per_device_train_batch_size=128,
        learning_rate=5e-3,
        eval_strategy="steps",
        eval_steps=200,
        save_strategy="no",
        predict_with_generate=True,
        generation_max_length=recipe.eval.max_new_tokens,
        report_to=[],
    ),
    train_dataset=encoded["train"],
    eval_dataset=encoded["validation"],
    data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
    processing_class=tokenizer,
    compute_metrics=exact_match,
)
trainer.train()
print(trainer.evaluate(encoded["test"], metric_key_prefix="test"))
