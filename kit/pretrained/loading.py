"""Load models: trained ones, pretrained ones to train, and adapters with their base model."""

import copy
from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import GENERATION_CONFIG_NAME, logging

from kit.data.text.tokenizer import Tokenizers
from kit.errors import KitError, RecipeError, RunError, first_line
from kit.hub.download import download, is_downloaded
from kit.hub.names import parse_foreign_repo_id
from kit.pretrained.adapters import adapted_class, adapter_config_file, attach_adapter, base_model_of, merge_adapter
from kit.pretrained.architecture import architecture
from kit.pretrained.folder import ModelFolder, load_config, weights_dir
from kit.pretrained.heads import copy_rows, match_labels, move_rows, row_parameters
from kit.pretrained.padding import padding_problem
from kit.pretrained.size import check_memory, check_sizes
from kit.pretrained.vocabulary import adopt_special_tokens, check_embeddings, tokenizer_notes
from kit.recipe.base import Recipe
from kit.system.device import default_device, preserved_random_state
from kit.system.files import read_json
from kit.system.load_errors import one_line_errors
from kit.system.outputs import scratch_folder

LABELED_HEADS = (AutoModelForSequenceClassification, AutoModelForTokenClassification)
"""Classes whose heads have a row for each label, or one for a number."""


def load_model(
    auto_class: Any, name_or_path: str | Path | ModelFolder, settings: dict[str, Any] | None = None
) -> PreTrainedModel:
    """The model of a run folder, a model folder or a Hub id, with its adapter if it has one; `settings` change its
    configuration."""
    folder = ModelFolder.open(name_or_path, settings)
    path = str(folder.path)
    if auto_class is AutoModelForSequenceClassification and (problem := padding_problem(folder.config)):
        raise RunError(f"{folder.name}: {problem}")
    if (generation := folder.path / GENERATION_CONFIG_NAME).exists():
        read_json(generation, "generation settings")  # transformers would ignore a damaged file
    with one_line_errors(folder.name), quiet_transformers():
        if adapter_config_file(path) is not None:
            return load_adapted(auto_class, path, folder.config)
        # mismatched weights would otherwise be logged in a table before the exception
        model, loading = auto_class.from_pretrained(
            path,
            config=folder.config,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            use_safetensors=True,
            trust_remote_code=False,
        )
        check_weights(model, loading, folder.name)
        freeze_constants(model)
    return model


def check_weights(model: PreTrainedModel, loading: dict[str, Any], name: str) -> None:
    """Raise RunError if weights have shapes that differ from the configuration, or if some are missing in a model that
    this class saved: transformers would initialize them at random, with a warning at most."""
    mismatched = sorted(key if isinstance(key, str) else key[0] for key in loading["mismatched_keys"])
    missing = sorted(loading["missing_keys"]) if architecture(model.config) == type(model).__name__ else []
    if mismatched or missing:
        what = f"do not match its configuration: {mismatched[0]}" if mismatched else f"are incomplete: {missing[0]}"
        others = len(mismatched or missing) - 1
        raise RunError(
            f"{name} cannot be loaded: its weights {what}{f' and {others} more' if others else ''}. Copy or download "
            "the folder again"
        )


def check_complete(model_class: type[PreTrainedModel], folder: ModelFolder) -> None:
    """`check_weights` for a model that transformers has loaded from a folder by itself: of the weights, only names and
    shapes are read."""
    with one_line_errors(folder.name), quiet_transformers():
        model, loading = model_class.from_pretrained(
            str(folder.path),
            config=folder.config,
            device_map="meta",
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            use_safetensors=True,
            trust_remote_code=False,
        )
    check_weights(model, loading, folder.name)


def load_for_inference(
    folder: ModelFolder, auto_class: Any, device: str | torch.device | None = None
) -> PreTrainedModel:
    """The model of an open folder in evaluation mode, on a device (by default the one that training uses)."""
    return load_model(auto_class, folder).eval().to(device or default_device())


@dataclass(frozen=True)
class BuiltModel:
    """A model to train."""

    model: PreTrainedModel
    new_modules: Sequence[str] = ()
    """Names of modules whose weights are not those of the pretrained model, such as a new head."""
    notes: Sequence[str] = ()
    """Differences from the pretrained model, such as new weights, for the terminal and the model card."""


def new_or_pretrained(
    auto_class: Any, recipe: Recipe, config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase, new_head: bool
) -> BuiltModel:
    """The model of a recipe with this config, new or pretrained, in the precision of the recipe.

    Only with `new_head`, modules of a pretrained model may be newly initialized; if `config` has labels, the rows of
    its head follow their names. If `model.pretrained` is an adapter, it is merged into its base model. Raises
    RecipeError or RunError if the model cannot be built or loaded.
    """
    pretrained, train = recipe.model.pretrained, recipe.train
    torch.manual_seed(train.seed)
    dtype = getattr(torch, train.dtype)
    if pretrained is None:
        return BuiltModel(build_from_config(auto_class, config, dtype).to(dtype))
    token_notes = adopt_special_tokens(config, tokenizer)
    with one_line_errors(pretrained), quiet_transformers(), merged_weights(pretrained) as folder:
        model, loading = auto_class.from_pretrained(
            folder,
            config=config,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            use_safetensors=True,
            trust_remote_code=False,
        )
        if not new_head:
            check_weights(model, loading, pretrained)
        missing = {*loading["missing_keys"], *(key[0] for key in loading["mismatched_keys"])} if new_head else set()
        moved, notes = fit_head(auto_class, folder, model, missing) if new_head else ([], [])
        freeze_constants(model)
    tokenizers = Tokenizers(tokenizer, tokenizer)
    check_embeddings(model, tokenizers, recipe)
    if model.can_generate():
        adopt_special_tokens(model.generation_config, tokenizer)
    notes = [*notes, *tokenizer_notes(model, tokenizers, recipe), *token_notes]
    new_modules = sorted({name.rpartition(".")[0] for name in missing.union(moved)} - {""})
    return BuiltModel(model.to(getattr(torch, train.dtype)), new_modules, notes)


def fit_head(auto_class: Any, folder: str, model: PreTrainedModel, missing: Set[str]) -> tuple[list[str], list[str]]:
    """Let the rows of the head of a pretrained model, loaded from `folder`, follow their labels.

    Returns the names of the parameters that were changed, and notes on the head and on other `missing` weights.
    """
    stored = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    names = row_parameters(model) if auto_class in LABELED_HEADS else []
    others = sorted({name.rpartition(".")[0] for name in missing} - {name.rpartition(".")[0] for name in names})
    notes = [f"new weights, which model.pretrained does not have: {', '.join(others)}"] if others else []
    if not names:
        return [], notes
    rows = match_labels(stored, auto_class, model.config)
    notes.insert(0, rows.describe())
    if rows.is_unchanged:
        return [], notes
    if missing.isdisjoint(names):
        head = copy_rows(model, names)
    elif not rows.kept:  # transformers has initialized the head already
        return names, notes
    else:
        head = copy_rows(
            auto_class.from_pretrained(folder, config=stored, use_safetensors=True, trust_remote_code=False), names
        )
    move_rows(model, head, rows)
    return names, notes


def build_from_config(auto_class: Any, config: PreTrainedConfig, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """A new model, whose weights will have this type. Raises RecipeError if no model can be built from the numbers in
    its config, or if it cannot fit into memory."""
    try:
        check_sizes(config)
        with preserved_random_state(), torch.device("meta"):
            check_memory(auto_class.from_config(copy.deepcopy(config), trust_remote_code=False), dtype)
        return auto_class.from_config(config, trust_remote_code=False)
    except KitError:
        raise
    # Configs of transformers accept any number and name; for impossible ones, layers raise exceptions of any type.
    except Exception as error:
        raise RecipeError(
            f"model: a {config.model_type} cannot be built from the keys of this section: {first_line(error)}"
        ) from error


def load_adapted(auto_class: Any, folder: str, config: PreTrainedConfig) -> PreTrainedModel:
    """The base model of an adapter with the adapter attached, or merged if the adapter was trained with a class other
    than `auto_class`."""
    if auto_class is not adapted_class(folder):
        with merged_weights(folder) as merged:
            return auto_class.from_pretrained(merged, config=config, use_safetensors=True, trust_remote_code=False)
    return attach_adapter(load_base(folder, config), folder)


def open_base(folder: str | Path) -> ModelFolder:
    """The base model that an adapter names, on the Hub or, for an adapter of this machine, in a folder.

    Raises RunError if an adapter from the Hub names a path on this machine, or if the base is an adapter itself.
    """
    name = base_model_of(folder)
    source: str | Path = name
    if is_downloaded(Path(folder)):
        ref = parse_foreign_repo_id(name)
        if ref is None:
            raise RunError(
                f"the base model of the adapter {folder} is {name!r}, a path on this machine instead of a model on the "
                "Hub. An adapter from the Hub may not name one: nothing was loaded"
            )
        source = download(ref)
    with one_line_errors(f"{name}, the base model of the adapter {folder},"):
        base = ModelFolder.open(source)
    if adapter_config_file(base.path) is not None:  # transformers would load what that one names, unchecked
        raise RunError(f"the base model of the adapter {folder} is {name}, which is an adapter itself")
    return replace(base, name=name)


def load_base(folder: str, config: PreTrainedConfig) -> PreTrainedModel:
    """The base model of an adapter, with the config and the generation config that were saved with the adapter."""
    base = open_base(folder)
    with one_line_errors(f"{base.name}, the base model of the adapter {folder},"), quiet_transformers():
        # the head of the adapter may have other labels
        model = adapted_class(folder).from_pretrained(
            base.path, config=config, ignore_mismatched_sizes=True, use_safetensors=True, trust_remote_code=False
        )
        freeze_constants(model)
    if model.can_generate():
        with one_line_errors(folder):
            model.generation_config = GenerationConfig.from_pretrained(folder)
    return model


def load_merged(name_or_path: str | Path) -> PreTrainedModel:
    """The base model of an adapter with the adapter merged into its weights."""
    folder = weights_dir(name_or_path)
    base = load_base(folder, load_config(folder))
    with one_line_errors(name_or_path):
        return merge_adapter(base, folder)


@contextmanager
def merged_weights(name_or_path: str | Path) -> Iterator[str]:
    """Context manager: the folder of a whole model. For an adapter, which is merged into its base model, it is a
    temporary one."""
    folder = weights_dir(name_or_path)
    if adapter_config_file(folder) is None:
        yield folder
        return
    with scratch_folder("kit-merged-") as temporary:
        load_merged(folder).save_pretrained(temporary)
        yield str(temporary)


def freeze_constants(model: PreTrainedModel) -> None:
    """Freeze the parameters that the class of the model creates frozen, such as Marian's sinusoids.

    Loading unfreezes them, and DDP would wait for their gradients.
    """
    with torch.device("meta"):
        new = type(model)(model.config)
    frozen = {name for name, parameter in new.named_parameters() if not parameter.requires_grad}
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(parameter.requires_grad and name not in frozen)


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Context manager: transformers draws no progress bars, and does not report missing or unused weights, which kit
    checks and reports itself."""
    shown, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if shown:
            logging.enable_progress_bar()
