"""The proofs about encoder-decoders on a model without a recipe."""

from transformers import PreTrainedModel

from kit.pretrained.positions import position_limit
from kit.training.objective import Batch
from kit.verify.proof import Check
from kit.verify.seq2seq import PROOFS
from kit.verify.subject import Subject, random_batch, small_batch


def verify_model(model: PreTrainedModel, batch: Batch | None = None) -> list[Check]:
    """Run every proof that applies to a model, on a right-padded batch or on random tokens.

    The model is not changed.
    """
    batch = random_batch(model, 0) if batch is None else small_batch(batch, position_limit(model.config))
    subject = Subject(model, batch)
    return [proof(subject) for proof in PROOFS if proof.applies(subject)]
