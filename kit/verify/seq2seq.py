"""The proofs about encoder-decoders, and `verify_model`, which runs them on a model without a recipe."""

from transformers import PreTrainedModel

from kit.data.text.tokenizer import Tokenizers
from kit.pretrained.positions import position_limit
from kit.training.objective import Batch
from kit.verify import forward, generation, learning, marian, vocabulary
from kit.verify.proof import Check, Proof
from kit.verify.subject import Subject, random_batch, small_batch

PROOFS: tuple[Proof, ...] = (
    vocabulary.tokenizers_fit,
    forward.save_and_load,
    forward.right_padding,
    forward.left_padding,
    forward.cached_logits,
    forward.fused_layers,
    marian.logits_are_marians,
    generation.cached_search,
    generation.batched_search,
    generation.greedy_is_one_beam,
    generation.kit_search,
    generation.beam_scores,
    generation.beam_is_exhaustive,
    learning.objective_loss,
    learning.model_loss,
    learning.accumulation,
    learning.every_gradient,
    learning.overfitting,
)


def verify_model(
    model: PreTrainedModel, tokenizers: Tokenizers | None = None, batch: Batch | None = None, seed: int = 0
) -> list[Check]:
    """Run every proof that applies to a model, on a right-padded batch or on random tokens.

    The model is not changed.
    """
    batch = random_batch(model, seed) if batch is None else small_batch(batch, position_limit(model.config))
    subject = Subject(model, batch, seed, tokenizers)
    return [proof(subject) for proof in PROOFS if proof.applies(subject)]
