"""Train the same model with transformers' own Seq2SeqTrainer: it is a PreTrainedModel like any other.

python recipes/scripts/train_with_trainer.py
"""

import numpy as np
from transformers import DataCollatorForSeq2Seq, Seq2SeqTrainer, Seq2SeqTrainingArguments

from kit.data.splits import load_splits
from kit.data.text.tokenizer import train_tokenizers
from kit.models import RNNSeq2SeqConfig, RNNSeq2SeqForConditionalGeneration
from kit.recipe.inputs import DataSection, TokenizerSection

data = DataSection(
    path="builtin:dates", languages=["en", "de", "fr"], sizes={"train": 8000, "validation": 200, "test": 200}
)
splits = load_splits(data).datasets
tokenizers = train_tokenizers(
    TokenizerSection(train="char", min_frequency=1), splits["train"]["source"], splits["train"]["target"]
)


def encode(rows: dict) -> dict:
    sources = tokenizers.encode_source(rows["source"])
    return {"input_ids": sources, "labels": tokenizers.encode_target(rows["target"])}


encoded = splits.map(encode, batched=True, remove_columns=splits["train"].column_names)
tokenizer = tokenizers.source
config = RNNSeq2SeqConfig(vocab_size=len(tokenizer), hidden_size=128, embedding_size=64, cell="gru")
model = RNNSeq2SeqForConditionalGeneration(config)


def exact_match(prediction: tuple) -> dict[str, float]:
    def texts(ids: np.ndarray) -> list[str]:
        return tokenizer.batch_decode(np.where(ids < 0, tokenizer.pad_token_id, ids), skip_special_tokens=True)

    found, wanted = map(texts, prediction)
    return {"exact_match": float(np.mean([a == b for a, b in zip(found, wanted, strict=True)]))}


trainer = Seq2SeqTrainer(
    model=model,
    args=Seq2SeqTrainingArguments(
        output_dir="runs/dates_trainer",
        max_steps=400,
        per_device_train_batch_size=128,
        learning_rate=5e-3,
        eval_strategy="steps",
        eval_steps=200,
        save_strategy="no",
        predict_with_generate=True,
        generation_max_length=16,
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
