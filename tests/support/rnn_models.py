"""Tiny recurrent encoder-decoders in float64, and subjects of proofs."""

from typing import Any

import torch

from kit.models import RNNSeq2SeqConfig, RNNSeq2SeqForConditionalGeneration
from kit.verify import generation
from kit.verify.proof import Check
from kit.verify.subject import Subject, random_batch


def tiny(**choices: Any) -> RNNSeq2SeqForConditionalGeneration:
    """A random model in float64, with every parameter perturbed."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 5, "hidden_size": 4, "embedding_size": 3}
    model = RNNSeq2SeqForConditionalGeneration(RNNSeq2SeqConfig(**{**sizes, **choices})).double().eval()
    generation.perturb_parameters(model)
    return model


def subject_of(model: RNNSeq2SeqForConditionalGeneration, examples: int = 4) -> Subject:
    batch = random_batch(model, 0, examples=examples, longest_source=5, longest_target=4)
    return Subject(model, batch, max_new_tokens=4)


def assert_holds(check: Check) -> None:
    assert check.passed, f"{check.name}: {check.figure}"
