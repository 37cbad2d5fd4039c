"""Training jobs: checkpoints are synced while hosts run, and the model is uploaded at the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from smlaunch.api.job_kinds import TRAINING
from smlaunch.local.endpoint_settings import Settings
from smlaunch.local.executors.executor_interface import JobHost
from smlaunch.local.jobs import artifact_upload, contract_files, lost_files
from smlaunch.local.jobs.job_handler import AttemptOutcome, HandlerContext, JobHandler
from smlaunch.local.jobs.job_spec import SecondsUntilAvailable, TrainingSpec, read_training_request
from smlaunch.local.jobs.s3_folder_sync import S3FolderSync
from smlaunch.local.stores.job_store import JobRecord


class TrainingJobHandler(JobHandler):
    job_kind = TRAINING
    working_directory = "code"
    reads_failure_file = True

    def __init__(self, record: JobRecord, seconds_until_available: SecondsUntilAvailable) -> None:
        self.spec: TrainingSpec = read_training_request(
            record.request, record.arn, record.region, seconds_until_available
        )
        self.request = record.request

    def write_host_files(self, hosts: Sequence[JobHost], current_host: JobHost) -> None:
        contract_files.write_host_files(self.spec, hosts, current_host)

    def create_syncs(
        self, hosts: Sequence[JobHost], context: HandlerContext, raise_if_stopping: Callable[[], None]
    ) -> list[S3FolderSync]:
        spec = self.spec
        sync_arguments = (hosts, context.object_store, context.settings, context.log_to_host)
        syncs = []
        if spec.checkpoint_location is not None:
            sync = S3FolderSync(spec.checkpoint_location, spec.checkpoint_path, *sync_arguments)
            sync.download(raise_if_stopping)
            syncs.append(sync)
        if spec.tensorboard_location is not None:
            # Never downloaded: what an earlier attempt wrote stays in S3.
            sync = S3FolderSync(spec.tensorboard_location, spec.tensorboard_path, *sync_arguments)
            sync.make_folders()
            syncs.append(sync)
        return syncs

    def upload_results(
        self, hosts: Sequence[JobHost], context: HandlerContext, failure_reason: str | None, is_stopped: bool
    ) -> AttemptOutcome:
        """Upload model, output and checkpoints of hosts that have ended, and return how this attempt at the
        job ended. ``failure_reason``: why the job failed; None if it did not. Raises UploadError."""
        if failure_reason is not None:
            if context.settings.upload_output_of_failed:
                # A failed upload logs its problems, but does not replace the reason of the failure.
                with suppress(artifact_upload.UploadError):
                    self._upload_output(hosts, context, replace(context.settings, upload_empty_model=False))
            return AttemptOutcome(failure_reason)
        saved_folder = lost_files.saved_folder_of(self.spec.name, context.object_store.root)
        replaced_files_warning = lost_files.save_replaced_files(
            hosts, artifact_upload.RESULT_FOLDERS, saved_folder
        )
        # The output of a stopped job is uploaded too, whatever its hosts' exit codes are.
        model_uri = self._upload_output(hosts, context, context.settings)
        for warning in (replaced_files_warning, lost_files.save_lost_files(hosts, saved_folder)):
            if warning:
                context.log_to_host(hosts[0].name, warning)
        return AttemptOutcome(describe_fields={"ModelArtifacts": {"S3ModelArtifacts": model_uri}})

    def _upload_output(self, hosts: Sequence[JobHost], context: HandlerContext, settings: Settings) -> str:
        """Return the S3 address of the model. Raises UploadError."""
        return artifact_upload.upload_training_output(
            self.spec,
            hosts,
            context.object_store,
            settings,
            hosts[0].opt_ml_folder.parent,
            context.log_to_host,
        )
