"""Samples of a language model: how it continues the beginnings of a few blocks."""

from typing import Any

import numpy as np
import torch
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from kit.decoding.settings import GenerationSettings
from kit.pretrained.positions import position_limit
from kit.tasks.causal_lm.examples import TextBlocks
from kit.tasks.causal_lm.recipe import CausalEval


def sample_continuations(
    model: PreTrainedModel, examples: TextBlocks, tokenizer: PreTrainedTokenizerBase, section: CausalEval, seed: int
) -> list[dict[str, Any]]:
    """Sample a continuation of the beginnings of a few blocks; the same weights give the same samples.

    Prompt and continuation fit the positions of the model, with at least one token for the continuation.
    """
    rows = []
    positions = position_limit(model.config) or section.prompt_tokens + section.max_new_tokens
    settings = sampling_config(section, tokenizer)
    indices = np.linspace(0, len(examples) - 1, section.examples).astype(int)
    devices = [model.device] if model.device.type == "cuda" else []
    with torch.random.fork_rng(devices), torch.inference_mode():
        torch.manual_seed(seed)
        for index in indices:
            beginning = examples.batch(np.array([index]))["input_ids"][0, : section.prompt_tokens][: positions - 1]
            separator = torch.tensor([tokenizer.eos_token_id])
            prompt = beginning if len(beginning) else separator
            settings.max_new_tokens = min(section.max_new_tokens, positions - len(prompt))
            continuation = model.generate(
                input_ids=prompt[None].to(model.device),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.long, device=model.device),
                generation_config=settings,
            )[0, len(prompt) :]
            rows.append({"prompt": tokenizer.decode(beginning), "prediction": tokenizer.decode(continuation)})
    return rows


def sampling_config(section: CausalEval, tokenizer: PreTrainedTokenizerBase) -> GenerationConfig:
    """The generation settings of `sample_continuations`."""
    settings = GenerationSettings(
        max_new_tokens=section.max_new_tokens, do_sample=True, temperature=section.temperature, top_p=section.top_p
    )
    return settings.causal_config(tokenizer)
