"""Load models, from folders or the Hub, in a process without kit, and save what they compute.

    python -P standalone.py REQUESTS.json

This script imports nothing of kit, and blocks all other imports of it: the code that is uploaded with a model has to be
sufficient.
"""

import json
import sys
from pathlib import Path
from typing import Any

NEW_TOKENS = 12
"""Length of the outputs of a beam search."""


class _BlockKit:
    """Makes every import of kit fail."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name.split(".")[0] == "kit":
            raise ModuleNotFoundError("kit is not available in this process", name=name)


def model_outputs(model: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    """All tensors that a model returns for its inputs, and the tokens of a beam search if it generates."""
    import torch

    model = model.eval()
    with torch.inference_mode():
        output = model(**inputs)
        tensors = {name: value for name, value in output.items() if isinstance(value, torch.Tensor)}
        if model.can_generate():
            encoder_inputs = {name: value for name, value in inputs.items() if not name.startswith("decoder_")}
            tensors["beams"] = model.generate(
                **encoder_inputs, num_beams=3, num_return_sequences=2, max_new_tokens=NEW_TOKENS, do_sample=False
            )
    return {name: value.detach().clone().contiguous() for name, value in tensors.items()}


def pipeline_answers(pipe: Any, calls: list[Any]) -> list[Any]:
    """The answer of a pipeline to each call, after a round trip through JSON, so that answers compare equal."""
    return json.loads(json.dumps([pipe(**call) if isinstance(call, dict) else pipe(call) for call in calls]))


def _load_model(folder: str, base: str, loader: Any) -> Any:
    """A model, or an adapter on top of its `base`, loaded as its card documents."""
    import transformers

    if not base:
        return loader.from_pretrained(folder, use_safetensors=True, trust_remote_code=True)
    from peft import PeftModel

    config = transformers.AutoConfig.from_pretrained(
        folder, _configuration_file="model_config.json", trust_remote_code=True
    )
    plain = loader.from_pretrained(
        base, config=config, ignore_mismatched_sizes=True, use_safetensors=True, trust_remote_code=True
    )
    if plain.can_generate():
        plain.generation_config = transformers.GenerationConfig.from_pretrained(folder)
    return PeftModel.from_pretrained(plain, folder).get_base_model()


def _process(request: dict[str, Any]) -> None:
    import transformers
    from safetensors.torch import load_file, save_file

    model = _load_model(request["model"], request["base"], getattr(transformers, request["loader"]))
    target = Path(request["output"])
    target.mkdir()  # not its parent, which is gone if `kit push` was killed and started again
    save_file(model_outputs(model, load_file(request["inputs"])), target / "tensors.safetensors")
    texts: dict[str, Any] = {}
    if request["texts"]:
        texts["tokens"] = transformers.AutoTokenizer.from_pretrained(request["model"], trust_remote_code=True)(
            request["texts"]
        )["input_ids"]
    if request["calls"]:
        pipe = transformers.pipeline(request["pipeline"], model=request["model"], device="cpu", trust_remote_code=True)
        texts["answers"] = pipeline_answers(pipe, request["calls"])
    (target / "texts.json").write_text(json.dumps(texts), encoding="utf-8")


def _main() -> None:
    sys.meta_path.insert(0, _BlockKit())
    import torch

    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    torch.set_num_threads(job["threads"])
    for request in job["requests"]:
        _process(request)
    assert "kit" not in sys.modules


if __name__ == "__main__":
    _main()
