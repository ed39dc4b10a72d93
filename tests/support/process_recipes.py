"""Recipes of every task that train in a moment."""

from pathlib import Path

from conftest import TINY

CAUSAL = """\
task: causal_lm
model: {type: gpt2, n_embd: 16, n_layer: 2, n_head: 2, n_positions: 32}
tokenizer: {train: char, min_frequency: 1}
data: {path: "builtin:pydocs", block_size: 32, sizes: {train: 6, validation: 2, test: 2}}
train: {max_steps: 12, tokens_per_batch: 512, learning_rate: 1e-2, logging_steps: 1, save_steps: 4, save_total_limit: 9}
eval: {steps: 6, examples: 0}
"""
MASKED = """\
task: masked_lm
model: {type: bert, hidden_size: 16, num_hidden_layers: 2, num_attention_heads: 2, intermediate_size: 32}
tokenizer: {train: wordpiece, vocab_size: 300}
data: {path: "builtin:pydocs", block_size: 32, sizes: {train: 6, validation: 2, test: 2}}
train: {max_steps: 12, tokens_per_batch: 512, learning_rate: 1e-2, logging_steps: 1, save_steps: 4, save_total_limit: 9}
eval: {steps: 6, examples: 0}
"""
CLASSES = """\
task: classification
model: {type: bert, hidden_size: 16, num_hidden_layers: 1, num_attention_heads: 2, intermediate_size: 32,
  max_position_embeddings: 64}
tokenizer: {train: char, min_frequency: 1}
data: {path: "builtin:date_language", sizes: {train: 200, validation: 30, test: 30}}
train: {max_steps: 12, batch_size: 32, learning_rate: 1e-2, logging_steps: 1, save_steps: 4, save_total_limit: 9}
eval: {steps: 6, metrics: [accuracy], examples: 0}
"""
TAGGING = (
    CLASSES.replace("task: classification", "task: tagging")
    .replace("date_language", "date_tags")
    .replace("metrics: [accuracy], ", "")
)
ANSWERS = """\
task: question_answering
model: {type: bert, hidden_size: 16, num_hidden_layers: 1, num_attention_heads: 2, intermediate_size: 32,
  max_position_embeddings: 64}
tokenizer: {train: char, min_frequency: 1}
data: {path: "builtin:date_questions", languages: [en, de], max_length: 64, doc_stride: 16, max_question_length: 24,
  sizes: {train: 120, validation: 10, test: 10}}
train: {max_steps: 12, batch_size: 16, learning_rate: 1e-2, logging_steps: 1}
eval: {steps: 0, examples: 0}
"""
INSTRUCTIONS = """\
task: instruction_tuning
model: {pretrained: BASE}
data: {path: "builtin:date_instructions", prompt: prompt, answer: answer, template: "{prompt}\\n", max_length: 96,
  sizes: {train: 120, validation: 8, test: 8}}
train: {max_steps: 12, batch_size: 16, learning_rate: 1e-2, logging_steps: 1}
eval: {steps: 0, examples: 0, max_new_tokens: 4}
"""
CAPTIONS = """\
task: captioning
model: {type: rnn_captioner, image_size: 16, cnn_channels: [4, 8], cnn_blocks: 1, cell: gru, hidden_size: 16,
  embedding_size: 8, attention: additive, dropout: 0.2}
tokenizer: {train: word, min_frequency: 1}
data: {path: "builtin:shapes", sizes: {train: 100, validation: 8, test: 8}}
train: {max_steps: 12, batch_size: 16, learning_rate: 1e-2, logging_steps: 1}
eval: {steps: 0, examples: 0, max_new_tokens: 8}
"""
DIALOGUE = """\
task: dialogue
model: {type: hred, cell: gru, hidden_size: 16, embedding_size: 8, dropout: 0.2}
tokenizer: {train: word, min_frequency: 1}
data: {path: "builtin:dialogues", target: response, sizes: {train: 60, validation: 6, test: 6}}
train: {max_steps: 12, batch_size: 16, learning_rate: 1e-2, logging_steps: 1}
eval: {steps: 0, examples: 0, max_new_tokens: 6}
"""
FORECASTS = """\
task: forecasting
model: {type: rnn_forecaster, cell: gru, hidden_size: 8, dropout: 0.2}
data: {path: "builtin:pendulum", history: 10, horizon: 10, stride: 10, sizes: {train: 12, validation: 2, test: 2}}
train: {max_steps: 12, batch_size: 4, learning_rate: 1e-2, logging_steps: 1}
eval: {steps: 0, examples: 0}
"""
RECIPES = {"translation": TINY, "causal_lm": CAUSAL, "masked_lm": MASKED, "classification": CLASSES}
OTHER_TASKS = {
    "tagging": TAGGING,
    "question_answering": ANSWERS,
    "instruction_tuning": INSTRUCTIONS,  # BASE is a model folder of causal_lm
    "captioning": CAPTIONS,
    "dialogue": DIALOGUE,
    "forecasting": FORECASTS,
}
METRICS = {"translation": "exact_match", "causal_lm": "loss", "masked_lm": "loss", "classification": "accuracy"}
NO_DROPOUT = {
    "translation": ["model.dropout=0"],
    "causal_lm": ["model.resid_pdrop=0", "model.embd_pdrop=0", "model.attn_pdrop=0"],
    "masked_lm": ["model.hidden_dropout_prob=0", "model.attention_probs_dropout_prob=0"],
    "classification": ["model.hidden_dropout_prob=0", "model.attention_probs_dropout_prob=0"],
}


def write_recipe(folder: Path, kind: str) -> Path:
    path = folder / f"{kind}.yaml"
    path.write_text((RECIPES | OTHER_TASKS)[kind], encoding="utf-8")
    return path
