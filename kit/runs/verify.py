"""`kit verify`: prove on a user's own model the equivalences that users rely on."""

from pathlib import Path

from kit.errors import RunError
from kit.models import register_models
from kit.runs.folder import RunFolder
from kit.runs.revisions import open_recipe
from kit.tasks.registry import create_task
from kit.verify.proof import Check


def verify(target: str | Path) -> list[Check]:
    """Run the proofs on the model of a run folder, or on a new model of a recipe, with real data where it is available.

    The first check reports the data, and the last one lists the proofs that do not apply to the model, if any.
    """
    register_models()
    path = Path(target)
    folder = RunFolder.open(path) if path.is_dir() else None
    if folder is not None and (folder.model / "adapter_config.json").is_file():
        raise RunError(
            f"{path} holds an adapter, and proofs need a plain model: `kit merge {path} --output FOLDER` creates "
            "one, and proves that it predicts the same"
        )
    if folder is not None and not (folder.model / "config.json").is_file():
        raise RunError(f"{path} has no model yet: finish the run with --resume")
    task = create_task(open_recipe(target) if folder is None else folder.recipe())
    subject, origin = task.proof_subject(None if folder is None else folder.model)
    checks = [proof(subject) for proof in task.proofs if proof.applies(subject)]
    skipped = sorted({proof.name for proof in task.proofs} - {check.name for check in checks})
    if skipped:
        checks.append(Check("skipped", "proofs that do not apply to this kind of model", True, ", ".join(skipped)))
    return [Check("data", "the data that the proofs ran on", True, origin), *checks]
