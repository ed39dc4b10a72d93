"""Decode with `generate()`, without kit's own search, and print what each step attends to.

python recipes/scripts/decode_and_look.py runs/dates_rnn "16. November 2019"
"""

import sys
from pathlib import Path

import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

import kit
from kit.plots.attention import attention_figure
from kit.plots.saving import save_figure

run, text = sys.argv[1:3]
kit.register()
model = AutoModelForSeq2SeqLM.from_pretrained(f"{run}/model")
source = AutoTokenizer.from_pretrained(f"{run}/model")
target = getattr(source, "target_tokenizer", source)  # with two vocabularies, that of the outputs

inputs = source(text, return_tensors="pt")
output = model.generate(
    **inputs, num_beams=1, max_new_tokens=16, return_dict_in_generate=True, output_attentions=True, output_scores=True
)
tokens = target.convert_ids_to_tokens(output.sequences[0, 1:])
print(target.decode(output.sequences[0], skip_special_tokens=True))

# one entry per step, of one layer: (batch, heads, 1, source)
weights = torch.cat([step[0] for step in output.cross_attentions], dim=2)[0]  # (heads, target, source)
for token, row in zip(tokens, weights.mean(0), strict=True):
    where = source.convert_ids_to_tokens(inputs.input_ids[0, row.argmax()].item())
    print(f"{token!r} attends most to {where!r} ({row.max():.2f})")
figure = attention_figure(weights, source.convert_ids_to_tokens(inputs.input_ids[0]), tokens)
save_figure(figure, Path("attention.png"))
print("attention.png")
