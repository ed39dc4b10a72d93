"""What tasks have in common whose models write a text by search: translation, dialogue, captioning."""

from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from kit.data.batching.plan import Plan
from kit.data.text.tokenizer import Tokenizers
from kit.evaluation.evaluator import search_settings
from kit.pretrained.loading import export_model
from kit.tasks.base import E, Task
from kit.tasks.captioning.recipe import CaptioningRecipe
from kit.tasks.dialogue.recipe import DialogueRecipe
from kit.tasks.translation.recipe import TranslationRecipe
from kit.training.objective import Seq2SeqObjective


class Writing(Task[E]):
    """A task whose model learns from right texts and writes its own."""

    recipe: TranslationRecipe | DialogueRecipe | CaptioningRecipe

    def objective(self, model: PreTrainedModel, plan: Plan | None = None) -> Seq2SeqObjective:
        train = self.recipe.train
        return Seq2SeqObjective(model, train.label_smoothing_factor, train.normalize_by)

    def num_beams(self, final: bool) -> int:
        """How wide the search of an evaluation is: narrower while training, where it is made often."""
        section = self.recipe.eval
        return section.num_beams if final else section.num_beams_while_training

    def image_processor(self, model: PreTrainedModel) -> Any:
        """What makes pixels of pictures, for models that read them."""
        return None

    def export(self, folder: Path, model: PreTrainedModel, tokenizers: Tokenizers) -> None:
        generation = search_settings(self.recipe.eval, self.recipe.eval.num_beams).generation_config(model)
        export_model(folder, model, tokenizers, generation, self.pipelines, self.image_processor(model))


def vocabulary_settings(tokenizers: Tokenizers) -> dict[str, Any]:
    """What the tokenizers decide about a new model."""
    target = tokenizers.target
    return {
        "vocab_size": len(tokenizers.source),
        "decoder_vocab_size": len(target),
        "separate_vocabularies": not tokenizers.shared,
        "bos_token_id": target.bos_token_id,
        "pad_token_id": target.pad_token_id,
        "eos_token_id": target.eos_token_id,
        "decoder_start_token_id": target.bos_token_id,
    }
