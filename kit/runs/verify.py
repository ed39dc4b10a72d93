"""The equivalences that users rely on, proved on their own model. Tests run the same proofs on every kind of model."""

from pathlib import Path

from kit.errors import RunError
from kit.models import register_models
from kit.runs.folder import RunFolder
from kit.tasks.registry import create_task, load_recipe
from kit.verify.proof import Check


def verify(target: str | Path) -> list[Check]:
    """Prove the model of a run folder, or a new model of a recipe, on real data where there is some.

    The first check reports what the proofs ran on, and the last one which do not apply to the model, if any.
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
    task = create_task(load_recipe(target) if folder is None else folder.recipe())
    subject, origin = task.proof_subject(None if folder is None else folder.model)
    checks = [proof(subject) for proof in task.proofs if proof.applies(subject)]
    idle = sorted({proof.name for proof in task.proofs} - {check.name for check in checks})
    rest = [Check("left out", "proofs that do not apply to this kind of model", True, ", ".join(idle))] if idle else []
    return [Check("data", "what the proofs were run on", True, origin), *checks, *rest]
