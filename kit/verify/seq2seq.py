"""The proofs about encoder-decoders."""

from kit.verify import forward, generation, learning, marian, vocabulary
from kit.verify.proof import Proof

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
