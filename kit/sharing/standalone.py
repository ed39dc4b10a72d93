"""What models compute when they are loaded from a folder, or from the Hub, by a process that has no kit.

    python -P alone.py REQUESTS.json

It imports nothing of kit, and makes sure that nothing else does: the code that travels with a model has to be enough.
"""

import json
import sys
from pathlib import Path
from typing import Any

HOW = {"trust_remote_code": True}
"""The code is the user's own, on its way to the Hub: here it runs before anybody else runs it."""


class _WithoutKit:
    """Has every attempt to import kit fail."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name.split(".")[0] == "kit":
            raise ModuleNotFoundError("there is no kit here", name=name)


def computed(model: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    """All tensors that a model gives for its inputs, and the tokens of a beam search where it generates."""
    import torch

    model = model.eval()
    with torch.inference_mode():
        output = model(**inputs)
        found = {name: part for name, part in output.items() if isinstance(part, torch.Tensor)}
        if model.can_generate():
            asked = {name: part for name, part in inputs.items() if not name.startswith("decoder_")}
            found["beams"] = model.generate(
                **asked, num_beams=3, num_return_sequences=2, max_new_tokens=12, do_sample=False
            )
    return {name: part.detach().clone().contiguous() for name, part in found.items()}


def answered(pipe: Any, calls: list[Any]) -> list[Any]:
    """What a pipeline answers to each call."""
    return json.loads(json.dumps([pipe(**call) if isinstance(call, dict) else pipe(call) for call in calls]))


def _loaded(place: str, base: str, loader: Any) -> Any:
    """A model, or its `base` with the adapter beside it, as the card of an adapter says."""
    import transformers

    if not base:
        return loader.from_pretrained(place, use_safetensors=True, **HOW)
    from peft import PeftModel

    config = transformers.AutoConfig.from_pretrained(place, _configuration_file="model_config.json", **HOW)
    plain = loader.from_pretrained(base, config=config, ignore_mismatched_sizes=True, use_safetensors=True, **HOW)
    if plain.can_generate():
        plain.generation_config = transformers.GenerationConfig.from_pretrained(place)
    return PeftModel.from_pretrained(plain, place).get_base_model()


def _answer(request: dict[str, Any]) -> None:
    import transformers
    from safetensors.torch import load_file, save_file

    model = _loaded(request["model"], request["base"], getattr(transformers, request["loader"]))
    target = Path(request["output"])
    target.mkdir(parents=True, exist_ok=True)
    save_file(computed(model, load_file(request["inputs"])), target / "computed.safetensors")
    texts: dict[str, Any] = {}
    if request["texts"]:
        texts["tokens"] = transformers.AutoTokenizer.from_pretrained(request["model"])(request["texts"])["input_ids"]
    if request["calls"]:
        pipe = transformers.pipeline(request["pipeline"], model=request["model"], device="cpu", **HOW)
        texts["answers"] = answered(pipe, request["calls"])
    (target / "texts.json").write_text(json.dumps(texts), encoding="utf-8")


def _main() -> None:
    sys.meta_path.insert(0, _WithoutKit())
    import torch

    asked = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    torch.set_num_threads(asked["threads"])
    for request in asked["requests"]:
        _answer(request)
    assert "kit" not in sys.modules


if __name__ == "__main__":
    _main()
