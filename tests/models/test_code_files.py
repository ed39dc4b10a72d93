"""The files that are uploaded with each model class: few, and complete."""

import importlib
import inspect
import json
from pathlib import Path

import pytest
from transformers import PreTrainedModel

from kit import models
from kit.models import MODELS, config_class, modeling_transformer_seq2seq, recurrent, transformer_layers

FILES = {
    "rnn_seq2seq": {
        "attention.py",
        "configuration_rnn_seq2seq.py",
        "modeling_rnn_seq2seq.py",
        "recurrent.py",
        "rnn_decoder.py",
    },
    "transformer_seq2seq": {
        "configuration_transformer_seq2seq.py",
        "modeling_transformer_seq2seq.py",
        "transformer_layers.py",
    },
    "rnn_lm": {"configuration_rnn_lm.py", "modeling_rnn_lm.py", "recurrent.py"},
    "rnn_captioner": {
        "attention.py",
        "configuration_rnn_captioner.py",
        "configuration_rnn_seq2seq.py",
        "modeling_rnn_captioner.py",
        "modeling_rnn_seq2seq.py",
        "recurrent.py",
        "rnn_decoder.py",
    },
    "hred": {
        "attention.py",
        "configuration_hred.py",
        "configuration_rnn_seq2seq.py",
        "modeling_hred.py",
        "modeling_rnn_seq2seq.py",
        "recurrent.py",
        "rnn_decoder.py",
    },
    "rnn_forecaster": {
        "attention.py",
        "configuration_rnn_forecaster.py",
        "configuration_rnn_seq2seq.py",
        "modeling_rnn_forecaster.py",
        "recurrent.py",
        "rnn_decoder.py",
    },
}
MAX_FILES = {"rnn_seq2seq": 5}
MAX_FILES_OF_OTHERS = 7


def classes_of(model_type: str) -> list[type[PreTrainedModel]]:
    """The classes of a model type that an Auto class loads."""
    module = importlib.import_module(f"kit.models.modeling_{model_type}")
    return [model for model in map(vars(module).get, module.__all__) if vars(model).get("_auto_class")]


@pytest.mark.parametrize("model_type", MODELS)
def test_a_saved_model_has_few_code_files(model_type: str, tmp_path: Path) -> None:
    for model_class in classes_of(model_type):
        folder = tmp_path / model_class.__name__
        model_class(config_class(model_type)(hidden_size=8)).save_pretrained(folder)
        files = {path.name for path in folder.glob("*.py")}
        assert files == FILES[model_type]
        assert len(files) <= MAX_FILES.get(model_type, MAX_FILES_OF_OTHERS)


def test_no_file_of_the_folder_stays_behind() -> None:
    files = {path.name for path in Path(inspect.getfile(models)).parent.glob("*.py")}
    assert files - {"__init__.py"} == set().union(*FILES.values())


@pytest.mark.parametrize("name", ["DROPOUT_STEPS", "fast_dropout", "Dropout", "shift_right", "cross_entropy"])
def test_code_copied_by_the_transformer_is_equal(name: str) -> None:
    copies = [
        vars(module)[name] for module in (transformer_layers, modeling_transformer_seq2seq) if name in vars(module)
    ]
    original = getattr(recurrent, name)
    assert copies
    for copy in copies:
        assert copy is not original or isinstance(copy, int)
        if isinstance(copy, int):
            assert copy == original
        else:
            assert inspect.getsource(copy) == inspect.getsource(original)


def test_saving_is_that_of_recurrent_models() -> None:
    base = modeling_transformer_seq2seq.TransformerSeq2SeqPreTrainedModel
    assert inspect.getsource(base.save_pretrained) == inspect.getsource(
        recurrent.RecurrentPreTrainedModel.save_pretrained
    )


@pytest.mark.parametrize("model_type", MODELS)
def test_a_saved_model_names_the_class_of_every_auto_class(model_type: str, tmp_path: Path) -> None:
    for model_class in classes_of(model_type):
        model_class(config_class(model_type)(hidden_size=8)).save_pretrained(tmp_path)
        auto_map = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))["auto_map"]
        bare = {f"modeling_{model_type}.{c.__name__}" for c in classes_of(model_type) if c._auto_class == "AutoModel"}
        assert {auto_map.get("AutoModel")} - {None} == bare
        assert auto_map[model_class._auto_class] == f"modeling_{model_type}.{model_class.__name__}"


@pytest.mark.parametrize("model_type", MODELS)
def test_forward_names_its_arguments_so_that_a_misspelled_one_is_an_error(model_type: str) -> None:
    for model_class in classes_of(model_type):
        parameters = inspect.signature(model_class.forward).parameters.values()
        assert [p.name for p in parameters if p.kind is inspect.Parameter.VAR_KEYWORD] == []
