"""Check that a tokenizer and a model belong together: the same ids for the same tokens, and the same special tokens.

A model gives a meaning to ids. With a tokenizer that numbers tokens differently, it would still train, but from
embeddings that are as good as random; with another end token, it would never learn to stop.
"""

from typing import Any

from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from kit.data.text.tokenizer import Tokenizers, end_id, load_pretrained_tokenizers
from kit.errors import RecipeError, RunError
from kit.pretrained.folder import ModelFolder
from kit.recipe.base import Recipe

SPECIAL = ("bos", "eos", "pad")
REMEDY = (
    "Remove tokenizer.pretrained to use the model's own tokenizer, or train a new model with this one (model.type "
    "instead of model.pretrained)"
)


def named_tokenizers(recipe: Recipe) -> Tokenizers | None:
    """The tokenizers that a recipe names, or else those of its pretrained model; None if it names neither.

    Raises RecipeError if tokenizer.pretrained gives tokens different ids from the tokenizer of model.pretrained.
    """
    model, name = recipe.model.pretrained, recipe.tokenizer.pretrained
    if name is None:
        return None if model is None else load_pretrained_tokenizers(model)
    tokenizers = load_pretrained_tokenizers(name)
    if model is not None and model != name:
        folder = ModelFolder.open(model)
        if (folder.path / "tokenizer_config.json").is_file():
            check_vocabulary(tokenizers.source, folder.tokenizers.source)
            check_vocabulary(tokenizers.target, folder.tokenizers.target)
        else:
            check_end(tokenizers.target, folder.config)
    return tokenizers


def check_vocabulary(tokenizer: PreTrainedTokenizerBase, original: PreTrainedTokenizerBase) -> None:
    """Raise RecipeError if a tokenizer gives a token another id than a model's `original` one, or its id to another.

    It may lack some of the tokens, and have further ones with ids that the original does not use.
    """
    ids, trained = tokenizer.get_vocab(), original.get_vocab()
    tokens = {number: token for token, number in trained.items()}
    other = [
        token
        for token, number in ids.items()
        if (tokens.get(number, token), trained.get(token, number)) != (token, number)
    ]
    if not other:
        return
    example = min(other, key=lambda token: ids[token])
    number = ids[example]
    own_token = f", which is {tokens[number]!r} there" if number in tokens else ""
    raise RecipeError(
        f"tokenizer.pretrained: {len(other):,} of its {len(ids):,} tokens do not have the ids that they had when "
        f"model.pretrained was trained, with {len(trained):,} tokens: {example!r} has the id {number}{own_token}. "
        f"{REMEDY}."
    )


def check_end(tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig) -> None:
    """Raise RecipeError if the end token of a tokenizer differs from that of a model whose folder has no tokenizer."""
    new, old = tokenizer.eos_token_id, getattr(config, "eos_token_id", None)
    if None not in (new, old) and new not in (old if isinstance(old, list) else [old]):
        raise RecipeError(
            f"tokenizer.pretrained: its end token has the id {new}, but that of model.pretrained "
            f"has the id {old}. Use the "
            "tokenizer that the model was trained with."
        )


def check_embeddings(model: PreTrainedModel, tokenizers: Tokenizers, recipe: Recipe) -> None:
    """Raise RecipeError if tokenizers have more tokens than a pretrained model has embeddings or logits."""
    tokenizer, target = len(tokenizers.source), len(tokenizers.target)
    if problem := size_problem(model, tokenizer, None if tokenizers.shared else target):
        if recipe.tokenizer.pretrained is None:
            raise RecipeError(f"model.pretrained: {problem}. Restore its tokenizer, or name it (tokenizer.pretrained).")
        raise RecipeError(f"tokenizer.pretrained: {problem}. {REMEDY}.")


def tokenizer_notes(model: PreTrainedModel, tokenizers: Tokenizers, recipe: Recipe) -> list[str]:
    """A note if the tokenizer that a recipe names has fewer tokens than its pretrained model has embeddings."""
    tokens, embeddings = len(tokenizers.source), model.get_input_embeddings().num_embeddings
    if recipe.tokenizer.pretrained is None or tokens == embeddings:
        return []
    return [f"tokenizer.pretrained has {tokens:,} tokens, and model.pretrained embeddings for {embeddings:,}"]


def size_problem(model: PreTrainedModel, source: int, target: int | None) -> str | None:
    """The problem if a model has fewer embeddings than there are source tokens, or fewer logits than target tokens.

    `target` is None if both sides share a vocabulary. None if there is no problem.
    """
    tokens, embeddings = source, model.get_input_embeddings().num_embeddings
    if tokens <= embeddings and target is not None:
        tokens, embeddings = target, model.get_output_embeddings().weight.shape[0]
    return f"its tokenizer has {tokens:,} tokens, and the model {embeddings:,}" if tokens > embeddings else None


def check_folder(name: str, model: PreTrainedModel, tokenizers: Tokenizers) -> None:
    """Raise RunError if tokenizers have more tokens than the trained model in their folder, or another end token.

    Tokens that were added to a vocabulary do not count: some published models have no embeddings for them, and never
    need one.
    """
    target = None if tokenizers.shared else tokenizers.target.vocab_size
    problem = size_problem(model, tokenizers.source.vocab_size, target)
    if problem is None and model.config.is_encoder_decoder and model.can_generate():
        ends, end = model.generation_config.eos_token_id, end_id(tokenizers.target)
        if ends is not None and end not in (ends if isinstance(ends, list) else [ends]):
            problem = f"texts of its tokenizer end with the token {end}, and those of the model with {ends}"
    if problem:
        raise RunError(f"{name}: {problem}, so they do not belong together. Restore the tokenizer of the model")


def adopt_special_tokens(config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Set the special tokens in a configuration to those of the tokenizer that the model is trained with.

    Returns a note for each that changes.
    """
    notes = []
    for name, new in special_ids(tokenizer).items():
        old = getattr(config, name, None)
        if old is None or old == new:
            continue
        setattr(config, name, new)
        if not isinstance(old, list) or new not in old:
            notes.append(f"{name}: {new}, as in the tokenizer, instead of {old}, as in model.pretrained")
    return notes


def special_ids(tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
    """The ids of a tokenizer's special tokens by their names in a configuration, such as `eos_token_id`."""
    ids: dict[str, Any] = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in SPECIAL}
    return {name: number for name, number in ids.items() if number is not None}
