"""The equivalences that users rely on, proved on their own model. Tests run the same proofs on every kind of model."""

from pathlib import Path

import numpy as np
from transformers import PreTrainedModel

from kit.data.sources import Splits
from kit.data.tokenizer import Tokenizers
from kit.errors import KitError, RunError
from kit.hub import load_seq2seq
from kit.models import register_models
from kit.positions import position_limit
from kit.recipe import Recipe, load_recipe
from kit.recipe_translation import TranslationRecipe
from kit.run_folder import RunFolder
from kit.tasks import task_of
from kit.tasks.translation import encode_pairs
from kit.training.objective import Batch
from kit.verify import forward, generation, learning, marian, vocabulary
from kit.verify.check import Check, Proof, table
from kit.verify.subject import EXAMPLES, Subject, random_batch, small_batch

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
    generation.own_search,
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
    """Run every proof that applies to a model, on a right-padded batch, or else on random tokens.

    The model stays as it is.
    """
    batch = random_batch(model, seed) if batch is None else small_batch(batch, position_limit(model.config))
    subject = Subject(model, batch, seed, tokenizers)
    return [proof(subject) for proof in PROOFS if proof.applies(subject)]


def verify(target: str | Path) -> list[Check]:
    """Prove the model of a run folder, or a new model of a recipe, on real data where there is some.

    The first check says what the proofs were run on, and the last one which do not apply to the model, if any.
    """
    register_models()
    path = Path(target)
    if path.is_dir():
        folder = RunFolder.existing(path)
        if not (folder.model / "config.json").is_file():
            raise RunError(f"{path} has no model yet: go on with --resume until the run is finished")
        recipe = provable(folder.recipe())
        tokenizers = Tokenizers.load(folder.model)
        model = load_seq2seq(folder.model)
        try:
            batch, origin = real_batch(task_of(recipe).load(), tokenizers)
        except KitError as error:
            batch, origin = random_batch(model, recipe.train.seed), f"random tokens, because {error}"
    else:
        recipe = provable(load_recipe(target))
        task = task_of(recipe)
        splits = task.load()
        tokenizers = task.build_tokenizers(splits)
        model = task.build_model(tokenizers)
        batch, origin = real_batch(splits, tokenizers)
    used = Check("data", "what the proofs were run on", True, origin)
    checks = verify_model(model, tokenizers, batch, recipe.train.seed)
    idle = sorted({proof.name for proof in PROOFS} - {check.name for check in checks})
    rest = [Check("left out", "proofs that do not apply to this kind of model", True, ", ".join(idle))] if idle else []
    return [used, *checks, *rest]


def provable(recipe: Recipe) -> Recipe:
    """The recipe, if there are proofs for models of its task."""
    if not isinstance(recipe, TranslationRecipe):
        raise RunError(f"the proofs are about models that turn text into text, not about {recipe.task}")
    return recipe


def real_batch(splits: Splits, tokenizers: Tokenizers) -> tuple[Batch, str]:
    """The first examples of the validation split, or of whatever split there is, and which they are."""
    name = "validation" if "validation" in splits.datasets else next(iter(splits.datasets))
    dataset = splits.datasets[name]
    few = dataset.select(range(min(EXAMPLES, len(dataset))))
    pairs = encode_pairs(few, tokenizers)
    return pairs.batch(np.arange(len(pairs)), tokenizers.source.pad_token_id), f"{len(few)} examples of {name}"


__all__ = ["PROOFS", "Check", "Subject", "table", "verify", "verify_model"]
