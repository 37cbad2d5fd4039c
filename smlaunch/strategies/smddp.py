"""smddp: torchrun's ranks, whose process group is SageMaker's data-parallel library, which is frozen.

The script imports ``smdistributed.dataparallel.torch.torch_smddp`` and calls
``init_process_group("smddp")``; what starts it is an ordinary torchrun (the SageMaker SDK 3 has no switch).
"""

from __future__ import annotations

from smlaunch.errors import Problem
from smlaunch.protocol.launch_spec import TORCHRUN
from smlaunch.strategies.base import Setting
from smlaunch.strategies.ddp import DDP
from smlaunch.strategies.legacy import WHY_DDP, instance_problem, repository_and_tag

INSTANCE_TYPES = ("ml.p4d.24xlarge", "ml.p4de.24xlarge")
"""The library's guide: "supports P4 and P4de"; P3 was for versions older than any image that is left."""

LAST = (2, 2)
"""PyTorch of the last of AWS's PyTorch images that the SageMaker SDK 2 starts smddp in."""

WITHOUT_FROM = (2, 11)
"""Images from here on surely lack it; of those between the two nobody knows."""

IMPORT = "smdistributed.dataparallel.torch.torch_smddp"


class SMDDP(DDP):
    name = "smddp"
    summary = "starts every rank by torchrun, for a script whose process group is SageMaker's smddp"
    libraries = ("smdistributed.dataparallel",)
    other_libraries = ()
    launcher = TORCHRUN
    image_version = "2.2.0"

    def check(self, setting: Setting) -> list[Problem]:
        found = [*super().check(setting), *instance_problem(setting, self.name, INSTANCE_TYPES)]
        fault = _image_fault(setting.image)
        if fault is not None:
            field = "image" if setting.framework_version is None else "framework_version"
            found.append(Problem(field, fault))
        return found

    def advice(self, setting: Setting) -> list[str]:
        told = [
            "smddp is frozen: P4d and P4de alone, no PyTorch after 2.4, and no image of it is patched any "
            f"more. {WHY_DDP}"
        ]
        if setting.hosts < 2:
            told.append("smddp speeds up what several hosts say to each other; one host gains nothing")
        if not repository_and_tag(setting.image)[0] and setting.image:
            told.append("Nobody can see whether the image has smddp, which cannot be installed beside it")
        return told

    def unimported(self, setting: Setting) -> str:
        return (
            f"does not import {IMPORT}: unless a module of its own does, and calls "
            'init_process_group("smddp"), ranks are joined by NCCL as in ddp'
        )


def _image_fault(image: str) -> str | None:
    """What is known against one of AWS's images; of others nothing is."""
    repository, tag = repository_and_tag(image)
    if repository not in ("pytorch-training", "pytorch"):
        return None
    version = tuple(int(number) for number in tag.split("-")[0].split(".")[:2])
    if version <= LAST:
        return None
    known = "contain no smddp" if version >= WITHOUT_FROM else "are not known to contain smddp (unconfirmed)"
    return (
        f"AWS's images of PyTorch {'.'.join(map(str, version))} {known}; take framework_version 2.2, or the "
        "SMP image of PyTorch 2.4.1, or use ddp"
    )
