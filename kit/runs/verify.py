"""The equivalences that users rely on, proved on their own model. Tests run the same proofs on every kind of model."""

from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedModel

from kit.data.batching.ragged import TokenPairs
from kit.data.splits import Splits
from kit.data.text.tokenizer import Tokenizers
from kit.errors import KitError, RunError
from kit.models import register_models
from kit.pretrained.positions import position_limit
from kit.runs.folder import RunFolder
from kit.tasks.captioning.task import Captioning
from kit.tasks.dialogue.task import Dialogue
from kit.tasks.families.labeling import proofs as fine_tuning
from kit.tasks.families.labeling.task import FineTuning
from kit.tasks.families.language_modeling import proofs as language_model
from kit.tasks.families.language_modeling.task import LanguageModel
from kit.tasks.forecasting import proofs as forecasting
from kit.tasks.forecasting.task import Forecasting
from kit.tasks.instruction_tuning.task import InstructionTuning
from kit.tasks.masked_lm.task import MaskedLM
from kit.tasks.registry import create_task, load_recipe
from kit.tasks.translation.task import Translation, encode_pairs
from kit.training.objective import Batch
from kit.verify import forward, generation, learning, marian, vocabulary
from kit.verify.proof import Check, Proof, table
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
    folder = RunFolder.existing(path) if path.is_dir() else None
    if folder is not None and (folder.model / "adapter_config.json").is_file():
        raise RunError(
            f"{path} holds an adapter, and proofs are about plain models: `kit merge {path} --output FOLDER` makes "
            "one, and proves that it predicts the same"
        )
    if folder is not None and not (folder.model / "config.json").is_file():
        raise RunError(f"{path} has no model yet: go on with --resume until the run is finished")
    recipe = load_recipe(target) if folder is None else folder.recipe()
    task = create_task(recipe)
    model_folder = None if folder is None else folder.model
    if isinstance(task, Forecasting):
        series, origin = forecasting.subject_of(task, model_folder)
        return [_used(origin), *(proof(series) for proof in forecasting.PROOFS)]
    if isinstance(task, FineTuning):
        labelled, origin = fine_tuning.subject_of(task, model_folder)
        return [_used(origin), *(proof(labelled) for proof in fine_tuning.PROOFS)]
    assert isinstance(task, Translation | Dialogue | LanguageModel | InstructionTuning | Captioning)
    if folder is None:
        splits = task.load()
        tokenizers = task.build_tokenizers(splits)
        model = task.build_model(tokenizers)
        batch, origin = real_batch(task, splits, tokenizers, model)
    else:
        tokenizers, model = task.load_tokenizers(folder.model), task.load_model(folder.model)
        try:
            batch, origin = real_batch(task, task.load(), tokenizers, model)
        except KitError as error:
            if isinstance(task, LanguageModel | InstructionTuning):
                raise
            what = "pictures" if isinstance(task, Captioning) else "tokens"
            batch, origin = random_batch(model, recipe.train.seed), f"random {what}, because {error}"
    if isinstance(task, LanguageModel | InstructionTuning):
        proofs, subject = language_model.PROOFS, Subject(model, batch, recipe.train.seed, tokenizers)
        if isinstance(task, InstructionTuning):  # of a large pretrained model, at a rate for small new ones
            proofs = tuple(proof for proof in proofs if proof is not language_model.overfitting)
        checks = [proof(subject) for proof in proofs if proof.applies(subject)]
    else:
        proofs, checks = PROOFS, verify_model(model, tokenizers, batch, recipe.train.seed)
    idle = sorted({proof.name for proof in proofs} - {check.name for check in checks})
    rest = [Check("left out", "proofs that do not apply to this kind of model", True, ", ".join(idle))] if idle else []
    return [_used(origin), *checks, *rest]


def _used(origin: str) -> Check:
    return Check("data", "what the proofs were run on", True, origin)


def real_batch(
    task: Translation | Dialogue | LanguageModel[Any] | InstructionTuning | Captioning,
    splits: Splits,
    tokenizers: Tokenizers,
    model: PreTrainedModel,
) -> tuple[Batch, str]:
    """The first examples of the validation split, or of whatever split there is, and which they are."""
    name = "validation" if "validation" in splits.datasets else next(iter(splits.datasets))
    dataset = splits.datasets[name]
    pad = tokenizers.source.pad_token_id
    if isinstance(task, LanguageModel):
        examples = task.encode_documents(dataset, tokenizers, name)
        few = np.arange(min(EXAMPLES, len(examples)))
        told = f"{len(few)} blocks of {name}"
        if isinstance(task, MaskedLM):
            return examples.batch(few, np.random.default_rng(0)), told
        rows = task.texts(examples)["text"]
        beginnings, limit = [rows[int(i)] for i in few], position_limit(model.config)
        return language_model.causal_batch(beginnings, 0 if pad is None else pad, limit), told
    few_rows = dataset.select(range(min(EXAMPLES, len(dataset))))
    if isinstance(task, InstructionTuning):
        answered, limit = task.encode_split(few_rows, tokenizers, model.config), position_limit(model.config)
        short = np.flatnonzero(answered.lengths <= (limit or np.inf) - language_model.WRITTEN)
        if not len(short):
            raise RunError(f"none of the first {len(few_rows)} examples of {name} leaves the model room to write on")
        few = np.resize(short, max(learning.MICRO_BATCHES, len(short)))
        return answered.batch(few), f"{len(short)} examples of {name}"
    if isinstance(task, Captioning):
        captioned = task.encode_split(few_rows, tokenizers, model.config)
        return captioned.batch(np.arange(len(captioned))[:EXAMPLES]), f"{len(few_rows)} pictures of {name}"
    if isinstance(task, Dialogue):
        pairs: TokenPairs = task.encode_split(few_rows, tokenizers, model.config)
    else:
        pairs = encode_pairs(few_rows, tokenizers)
    return pairs.batch(np.arange(len(pairs)), pad), f"{len(few_rows)} examples of {name}"


__all__ = ["PROOFS", "Check", "Subject", "table", "verify", "verify_model"]
