"""Training jobs: checkpoints are synced while hosts run, and the model is uploaded at the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from smlaunch.local import support
from smlaunch.local.executors.base import JobHost
from smlaunch.local.job_store import JobRecord
from smlaunch.local.jobs import artifacts, contract
from smlaunch.local.jobs.checkpoints import CheckpointSync
from smlaunch.local.jobs.job_kind import AttemptOutcome, HandlerContext
from smlaunch.local.jobs.output import TRAINING_LOG_GROUP
from smlaunch.local.jobs.spec import CapacityWait, TrainingSpec, read_training_request

KIND = "training-job"


class TrainingJobHandler:
    """The JobHandler of training jobs."""

    log_group = TRAINING_LOG_GROUP
    working_directory = "code"
    reads_failure_file = True

    def __init__(self, record: JobRecord, instance_wait: CapacityWait) -> None:
        self.spec: TrainingSpec = read_training_request(
            record.request, record.arn, record.region, instance_wait
        )
        self._request = record.request

    def describe_selected_instance(self, selection: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"ResourceConfig": {**self._request["ResourceConfig"], **selection}}

    def recorded_fields(self, runs_images: bool) -> Mapping[str, str]:
        notes = support.recorded_fields(self._request, support.training_rows(runs_images))
        notes.pop("AlgorithmSpecification.TrainingImage", None)
        return notes

    def write_host_files(self, hosts: Sequence[JobHost], current: JobHost) -> None:
        contract.write_host_files(self.spec, hosts, current)

    def create_syncs(
        self, hosts: Sequence[JobHost], context: HandlerContext, raise_if_stopping: Callable[[], None]
    ) -> list[CheckpointSync]:
        spec = self.spec
        sync_arguments = (hosts, context.objects, context.settings, context.write_note)
        syncs = []
        if spec.checkpoints is not None:
            sync = CheckpointSync(spec.checkpoints, spec.checkpoint_path, *sync_arguments)
            sync.download(raise_if_stopping)
            syncs.append(sync)
        if spec.tensorboard is not None:
            # Never downloaded: what an earlier attempt wrote stays in S3.
            sync = CheckpointSync(spec.tensorboard, spec.tensorboard_path, *sync_arguments)
            sync.make_folders()
            syncs.append(sync)
        return syncs

    def collect_results(
        self, hosts: Sequence[JobHost], context: HandlerContext, reason: str | None, is_stopped: bool
    ) -> AttemptOutcome:
        if reason is not None:
            return AttemptOutcome(reason)
        # The output of a stopped job is uploaded too, whatever its hosts' exit codes are.
        model_uri = artifacts.upload_output(
            self.spec, hosts, context.objects, context.settings, hosts[0].tree.parent, context.write_note
        )
        return AttemptOutcome(result={"ModelArtifacts": {"S3ModelArtifacts": model_uri}})
