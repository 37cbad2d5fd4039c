"""Training jobs: checkpoints while they run, a model in the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from smlaunch.local import support
from smlaunch.local.executors.base import Place
from smlaunch.local.job_store import JobRecord
from smlaunch.local.jobs import artifacts, contract
from smlaunch.local.jobs.checkpoints import CheckpointSync
from smlaunch.local.jobs.job_kind import Outcome, Tools
from smlaunch.local.jobs.output import GROUP
from smlaunch.local.jobs.spec import TrainingSpec, Wait, read_request

KIND = "training-job"


class TrainingWork:
    log_group = GROUP
    directory = "code"
    failure_file = True

    def __init__(self, record: JobRecord, wait: Wait) -> None:
        self.spec: TrainingSpec = read_request(record.request, record.arn, record.region, wait)
        self._request = record.request

    def selected(self, chosen: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"ResourceConfig": {**self._request["ResourceConfig"], **chosen}}

    def recorded_fields(self, runs_images: bool) -> Mapping[str, str]:
        notes = support.recorded_fields(self._request, support.training_rows(runs_images))
        notes.pop("AlgorithmSpecification.TrainingImage", None)
        return notes

    def lay_out(self, places: Sequence[Place], current: Place) -> None:
        contract.lay_out(self.spec, places, current)

    def synced(
        self, places: Sequence[Place], tools: Tools, check: Callable[[], None]
    ) -> list[CheckpointSync]:
        spec = self.spec
        room = (places, tools.objects, tools.settings, tools.note)
        syncs = []
        if spec.checkpoints is not None:
            sync = CheckpointSync(spec.checkpoints, spec.checkpoint_path, *room)
            sync.download(check)
            syncs.append(sync)
        if spec.tensorboard is not None:
            # One way only: what an earlier attempt wrote stays where it is.
            sync = CheckpointSync(spec.tensorboard, spec.tensorboard_path, *room)
            sync.make_folders()
            syncs.append(sync)
        return syncs

    def finish(self, places: Sequence[Place], tools: Tools, reason: str | None, stopped: bool) -> Outcome:
        if reason is not None:
            return Outcome(reason)
        # A stopped job is Stopped, however its hosts left, and what they saved is kept.
        address = artifacts.upload(
            self.spec, places, tools.objects, tools.settings, places[0].tree.parent, tools.note
        )
        return Outcome(result={"ModelArtifacts": {"S3ModelArtifacts": address}})
