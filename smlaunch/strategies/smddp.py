"""smddp: torchrun's ranks with SageMaker's data-parallel library, which is frozen, as process group.

The script imports ``smdistributed.dataparallel.torch.torch_smddp`` and calls
``init_process_group("smddp")``; an ordinary torchrun starts it (the SageMaker SDK 3 has no switch).
"""

from __future__ import annotations

from smlaunch.contract.launch_spec import TORCHRUN
from smlaunch.errors import Problem
from smlaunch.strategies.base import LaunchContext
from smlaunch.strategies.ddp import DDP
from smlaunch.strategies.smdistributed import WHY_DDP, instance_type_problems, repository_and_tag

INSTANCE_TYPES = ("ml.p4d.24xlarge", "ml.p4de.24xlarge")
"""The library's guide: "supports P4 and P4de"; P3 was for versions older than all remaining images."""

LAST_VERSION_WITH_SMDDP = (2, 2)
"""PyTorch version of the last AWS PyTorch image for which the SageMaker SDK 2 supports smddp."""

FIRST_VERSION_SURELY_WITHOUT_SMDDP = (2, 11)
"""Images from this version certainly lack it; those between the two are unconfirmed."""

IMPORT_NAME = "smdistributed.dataparallel.torch.torch_smddp"


class SMDDP(DDP):
    name = "smddp"
    summary = "starts every rank by torchrun, for a script whose process group is SageMaker's smddp"
    libraries = ("smdistributed.dataparallel",)
    unimported_fact = f"does not import {IMPORT_NAME}"
    needs_library = True
    other_libraries = ()
    launcher = TORCHRUN
    image_version = "2.2.0"

    def find_problems(self, context: LaunchContext) -> list[Problem]:
        problems = [
            *super().find_problems(context),
            *instance_type_problems(context, self.name, INSTANCE_TYPES),
        ]
        image_problem = _explain_unsuitable_image(context.image)
        if image_problem is not None:
            field = "image" if context.framework_version is None else "framework_version"
            problems.append(Problem(field, image_problem))
        return problems

    def find_warnings(self, context: LaunchContext) -> list[str]:
        warnings = [
            "smddp is frozen: only P4d and P4de, no PyTorch after 2.4, and its images get no more patches. "
            f"{WHY_DDP}"
        ]
        if context.host_count < 2:
            warnings.append("smddp speeds up communication between hosts; one host gains nothing")
        if not repository_and_tag(context.image)[0] and context.image:
            warnings.append("Whether the image contains smddp cannot be checked, and it cannot be installed")
        return warnings

    def unimported_consequence(self, context: LaunchContext) -> str:
        return "ranks are joined by NCCL as in ddp"


def _explain_unsuitable_image(image: str) -> str | None:
    """Return why an AWS image of PyTorch lacks SageMaker's library smddp, or may lack it; None for images
    that have it and for others.
    """
    repository, tag = repository_and_tag(image)
    if repository not in ("pytorch-training", "pytorch"):
        return None
    version_text = tag.partition("-")[0]  # 2.2.0 of 2.2.0-gpu-py310
    pytorch_version = tuple(int(number) for number in version_text.split(".")[:2])
    if pytorch_version <= LAST_VERSION_WITH_SMDDP:
        return None
    shortcoming = "are not known to contain smddp (unconfirmed)"
    if pytorch_version >= FIRST_VERSION_SURELY_WITHOUT_SMDDP:
        shortcoming = "contain no smddp"
    return (
        f"AWS's images of PyTorch {'.'.join(map(str, pytorch_version))} {shortcoming}; take "
        "framework_version 2.2, or the SMP image of PyTorch 2.4.1, or use ddp"
    )
