"""Adapters: a few trained weights beside a pretrained model that stays as it is, by the library peft.

They are put into the model in place, so that it is still the same `PreTrainedModel` for whoever trains, evaluates or
decodes with it. A folder of an adapter names its base model and holds no `config.json`: transformers takes that as the
sign of a whole model. The configuration, with the labels of a head, is in `model_config.json` instead.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from torch import nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForQuestionAnswering,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PreTrainedModel,
)
from transformers.pytorch_utils import Conv1D
from transformers.utils.peft_utils import find_adapter_config_file

from kit.errors import RecipeError, RunError, did_you_mean
from kit.recipe.model import PeftSection
from kit.system.files import read_json

MODEL_CONFIG = "model_config.json"
"""File of an adapter's folder with the configuration of the model that it belongs to."""
ADAPTER_WEIGHTS = "adapter_model.safetensors"
AUTO_CLASSES: dict[str, Any] = {
    "SEQ_CLS": AutoModelForSequenceClassification,
    "TOKEN_CLS": AutoModelForTokenClassification,
    "QUESTION_ANS": AutoModelForQuestionAnswering,
    "CAUSAL_LM": AutoModelForCausalLM,
    "SEQ_2_SEQ_LM": AutoModelForSeq2SeqLM,
}
PEFT_TYPES = ("LORA", "IA3")
"""The types of adapters that kit trains and loads; dora is a kind of LORA."""
HEADS = {"SEQ_CLS": ("classifier", "score"), "TOKEN_CLS": ("classifier", "score"), "QUESTION_ANS": ("qa_outputs",)}
"""Ends of the names of heads that peft always trains, and looks for in the folder of an adapter."""


def adapter_config_file(place: str | Path) -> Path | None:
    """The file that says that a model folder or a Hub id is an adapter; None for whole models."""
    if (Path(place) / "config.json").is_file():
        return None
    found = find_adapter_config_file(str(place))
    return None if found is None else Path(found)


def add_adapter(
    model: PreTrainedModel, section: PeftSection, task_type: str, base: str, heads: Sequence[str]
) -> PreTrainedModel:
    """A model with a new adapter; only its weights and `heads`, parts by their names, are to be trained.

    `base` is where the pretrained weights are from. Raises RecipeError where a name fits nothing that can be adapted.
    """
    saved = modules_to_save(model, section, task_type, heads)
    targets = target_modules(model, section, saved)
    how: dict[str, Any] = {"task_type": task_type, "target_modules": targets, "modules_to_save": saved or None}
    # weights of the other orientation, as in GPT-2
    turned = any(isinstance(model.get_submodule(name), Conv1D) for name in targets)
    model.add_adapter(peft_config(section, model, how | {"fan_in_fan_out": turned}))
    model.peft_config["default"].base_model_name_or_path = base
    return model


def peft_config(section: PeftSection, model: PreTrainedModel, how: dict[str, Any]) -> Any:
    """What the recipe says, in peft's words."""
    from peft import IA3Config, LoraConfig

    if section.method == "ia3":
        scaled = named(model, section.feedforward_modules or (), how["target_modules"], "peft.feedforward_modules")
        return IA3Config(**how, feedforward_modules=scaled)
    return LoraConfig(
        **how,
        r=section.rank,
        lora_alpha=section.alpha,
        lora_dropout=section.dropout,
        use_dora=section.method == "dora",
    )


def target_modules(model: PreTrainedModel, section: PeftSection, saved: Iterable[str]) -> list[str]:
    """The whole names of the layers that get an adapter."""
    whole = tuple(f"{name}." for name in saved)
    linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear | Conv1D)]
    free = [name for name in linear if not f"{name}.".startswith(whole)]
    if section.target_modules == "all-linear":
        output, tied = model.get_output_embeddings(), tied_modules(model)
        found = [name for name in free if model.get_submodule(name) is not output and name not in tied]
        if not found:
            raise RecipeError(f"peft.target_modules: a {model.config.model_type} has no linear layers to adapt.")
        return found
    return named(model, section.target_modules, free, "peft.target_modules")


def modules_to_save(model: PreTrainedModel, section: PeftSection, task_type: str, heads: Sequence[str]) -> list[str]:
    """The whole names of the parts that are trained as a whole."""
    names = [name for name, _ in model.named_modules() if name]
    of_peft = [name for name in names if name.endswith(HEADS.get(task_type, ()))]
    asked = named(model, section.modules_to_save, names, "peft.modules_to_save")
    found = dict.fromkeys([*of_peft, *heads, *asked])
    # what is within another of them is saved with it
    return [name for name in found if not any(name.startswith(f"{other}.") for other in found)]


def named(model: PreTrainedModel, endings: Sequence[str], names: Sequence[str], key: str) -> list[str]:
    """The names that end in one of the given ones, in the order of the model. Raises RecipeError, with the nearest
    names, where an ending fits none."""
    tied, found = tied_modules(model), set()
    for ending in endings:
        own = {name for name in names if name == ending or name.endswith(f".{ending}")}
        if not own:
            raise RecipeError(f"{key}: {what_is_there(model, ending, names)}")
        if shared := sorted(own & tied):
            raise RecipeError(
                f"{key}: {shared[0]} shares its weights with another part of the model, which would change along with "
                "it. Leave it out."
            )
        found |= own
    return [name for name in names if name in found]


def what_is_there(model: PreTrainedModel, ending: str, names: Sequence[str]) -> str:
    """The message about a name that fits no layer: what it is, or which names there are."""
    others = [module for name, module in model.named_modules() if name == ending or name.endswith(f".{ending}")]
    ends = list(dict.fromkeys(name.rpartition(".")[2] for name in names if not name.rpartition(".")[2].isdigit()))
    if others:
        kind = type(others[0]).__name__
        why = f'"{ending}" is of the class {kind}, or trained as a whole; adapters are for linear layers.'
    else:
        why = f'a {model.config.model_type} has no layer "{ending}".{did_you_mean(ending, [*ends, *names])}'
    more = f", … ({len(ends)} in all)" if len(ends) > 20 else ""
    return f"{why} There is: {', '.join(ends[:20])}{more}."


def tied_modules(model: nn.Module) -> set[str]:
    """The names of modules that have a weight in common with another."""
    owners: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        owners.setdefault(id(parameter), []).append(name.rpartition(".")[0])
    return {name for names in owners.values() if len(names) > 1 for name in names}


def base_of(place: str | Path) -> str:
    """The base model that an adapter names."""
    return read_adapter_config(place)["base_model_name_or_path"]


def adapted_class(place: str | Path) -> Any:
    """transformers' class of the models that an adapter belongs to."""
    return AUTO_CLASSES[read_adapter_config(place)["task_type"]]


def with_adapter(model: PreTrainedModel, place: str | Path) -> PreTrainedModel:
    """A base model with a trained adapter beside its weights.

    `model.load_adapter` would do it too, but leaves out parts of dora.
    """
    from peft import PeftConfig, get_peft_model_state_dict, load_peft_weights, set_peft_model_state_dict

    model.add_adapter(PeftConfig.from_pretrained(str(place)))
    weights = load_peft_weights(str(place), device="cpu")
    weights = {name.removeprefix("base_model.model."): tensor for name, tensor in weights.items()}
    odd = sorted(weights.keys() ^ get_peft_model_state_dict(model).keys())
    if odd:
        raise RunError(f"{place} is no adapter of {base_of(place)}: {', '.join(odd[:3])} do not fit")
    set_peft_model_state_dict(model, weights)
    return model.eval()  # peft's new layers are in training mode, whatever the model is: their dropout would be on


def merged_into(model: PreTrainedModel, place: str | Path) -> PreTrainedModel:
    """A base model with a trained adapter merged into its weights."""
    from peft import PeftModel

    return PeftModel.from_pretrained(model, str(place)).merge_and_unload(safe_merge=True)


def read_adapter_config(place: str | Path) -> dict[str, Any]:
    """The configuration that peft saved with an adapter. Raises RunError if kit cannot use the adapter."""
    file = adapter_config_file(place)
    assert file is not None
    if not (file.parent / ADAPTER_WEIGHTS).is_file():  # peft would unpickle another file in its place
        raise RunError(f"{place} is an adapter without {ADAPTER_WEIGHTS}: kit loads weights in no other form")
    saved = read_json(file, "the configuration of an adapter")
    if saved.get("peft_type") not in PEFT_TYPES:
        raise RunError(
            f"{place} is an adapter of the type {saved.get('peft_type')}, which kit does not support. Use one of the "
            f"type {' or '.join(PEFT_TYPES)} (peft.method: lora, dora or ia3)"
        )
    if saved.get("task_type") not in AUTO_CLASSES:
        raise RunError(f"{place} is an adapter for {saved.get('task_type')}, which kit has no task for")
    return saved


def parameter_counts(model: nn.Module) -> tuple[int, int]:
    """Number of parameters that are trained, and of all; the first weights of a head that is trained count once."""
    own = [(name, p) for name, p in model.named_parameters() if ".original_module." not in f".{name}"]
    return sum(p.numel() for _, p in own if p.requires_grad), sum(p.numel() for _, p in own)


def described_parameters(model: nn.Module) -> str:
    """How many parameters a model has, and how many of them are trained where these are not all."""
    trained, total = parameter_counts(model)
    told = f"{total:,} parameters"
    return told if trained == total else f"{told}, of which {trained:,} ({trained / total:.2%}) are trained"
