"""The folder of a run in S3, and the few files that a client keeps in it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from smlaunch.aws.interfaces import ObjectStorage
from smlaunch.aws.service_errors import call_with_retries
from smlaunch.chain.workflow import WORKFLOW_FILE, Workflow
from smlaunch.contract import formats
from smlaunch.contract.sagemaker_paths import RUNTIME_CHANNEL
from smlaunch.errors import JobError, Problem
from smlaunch.planner.plan import RunPlan

CLAIM_FILE = "claim.json"
"""Which job the run's name stands for. Written once, before the files by which a run goes on."""

GROUP_FILE = "group.json"
"""In the folder of a sharded run: the names of its shards' runs."""

EXCLUDED_FILE = "excluded.json"
"""Files of the source and of local inputs that were not uploaded. Read when a run fails because
of a missing file."""

CALL_PARTS_FILE = "call-parts.json"
"""Of a function's run: a hash of each part of the call, by its name in messages. Read when another call asks
for the run's name, to say what is different."""

STOP_FILE = "stop"
"""Exists while a person wants the run to submit no further job."""


class UnsentFiles(NamedTuple):
    """What exists on the machine that launched a run and was not sent with the source."""

    reasons: Mapping[str, str] = MappingProxyType({})
    """Why, a clause, by the path relative to the source or to a local input: secrets, links out of it."""

    inputs: Mapping[str, str] = MappingProxyType({})
    """The channel of each input that lies in the source, by its path there."""

    ignored: tuple[str, ...] = ()
    """Paths in the source that ignore files name."""


class RunFolder(NamedTuple):
    """The run's folder in S3: ``s3://<bucket>/smlaunch/<run>/``."""

    bucket: str
    prefix: str
    """Ends in a slash."""

    @classmethod
    def for_run(cls, bucket: str, run: str, bucket_prefix: str = "") -> RunFolder:
        return cls(bucket, f"{bucket_prefix}/smlaunch/{run}/".lstrip("/"))

    @classmethod
    def for_plan(cls, plan: RunPlan) -> RunFolder:
        return cls.for_run(plan.facts.bucket, plan.run, plan.facts.bucket_prefix)

    @classmethod
    def from_description(cls, run: str, description: Mapping[str, Any]) -> RunFolder | None:
        """Return the S3 folder of the run that a job belongs to; None for a job that smlaunch did not make.

        Every job of smlaunch has an input channel for the runtime, smlaunch's program on the hosts, in
        the run's folder ``smlaunch/<run>/``. ``description``: DescribeTrainingJob's response.
        """
        for channel in description.get("InputDataConfig", []):
            if channel["ChannelName"] != RUNTIME_CHANNEL:
                continue
            uri = str(channel["DataSource"]["S3DataSource"]["S3Uri"])
            bucket, _, key = uri.removeprefix("s3://").partition("/")
            # run_folder is the separator of the partition: empty if the key does not contain it.
            prefix_before, run_folder, _ = key.partition(f"smlaunch/{run}/")
            if not run_folder:  # the folder is not in the key
                return None
            return cls(bucket=bucket, prefix=prefix_before + run_folder)
        return None

    def require_name_of_job(
        self, planned: Workflow, stored_workflow: Workflow | None, storage: ObjectStorage
    ) -> None:
        """Raise JobError if another job has the run's name, also one whose training jobs were deleted: its
        checkpoints and outcomes are in this folder, and a run of the name would go on from them.
        ``stored_workflow``: in this folder; None without one."""
        claim = call_with_retries(lambda: storage.get_bytes(self.bucket, self.prefix + CLAIM_FILE))
        # Releases before RUN 1.1 wrote no claim.
        is_name_used = claim is not None or stored_workflow is not None
        has_own_claim = claim is not None and _claiming_hash(claim) == planned.job_hash
        has_own_workflow = stored_workflow is not None and stored_workflow.is_of_same_job(planned)
        if is_name_used and not has_own_claim and not has_own_workflow:
            text = (
                "a run of another job, source or data has used it, whose files are in "
                f"s3://{self.bucket}/{self.prefix}; take another name"
            )
            raise JobError([Problem("name", text)])

    def claim_name(self, run: str, planned: Workflow, storage: ObjectStorage) -> bool:
        """Write which job has the name, and return True; return False if that is written already. Of several
        clients at once, one writes it. Raises JobError if another job has the name."""
        document = formats.CLAIM.with_version({"run": run, "job_hash": planned.job_hash})
        put_claim = partial(
            storage.put_if_absent,
            self.bucket,
            self.prefix + CLAIM_FILE,
            (json.dumps(document) + "\n").encode(),
        )
        if put_claim():
            return True
        self.require_name_of_job(planned, self.load_workflow(storage), storage)
        return put_claim()  # the other client may have released the name meanwhile

    def release_name(self, storage: ObjectStorage) -> None:
        """Delete the claim and the workflow, for a run of which no job was created."""
        storage.delete_objects(self.bucket, [self.prefix + WORKFLOW_FILE, self.prefix + CLAIM_FILE])

    def save_workflow(self, workflow: Workflow, storage: ObjectStorage) -> None:
        before = call_with_retries(lambda: storage.get_bytes(self.bucket, self.prefix + WORKFLOW_FILE))
        if before is not None:
            Workflow.from_json(before)
        storage.put_bytes(self.bucket, self.prefix + WORKFLOW_FILE, workflow.to_json(before).encode())

    def load_workflow(self, storage: ObjectStorage) -> Workflow | None:
        """Return None for a run of a single job, which has no workflow file. Raises JobError for an
        unreadable file."""
        content = call_with_retries(lambda: storage.get_bytes(self.bucket, self.prefix + WORKFLOW_FILE))
        return None if content is None else Workflow.from_json(content)

    def missing_workflow_message(self, run: str) -> str:
        return (
            f"s3://{self.bucket}/{self.prefix}{WORKFLOW_FILE} is missing, by which the jobs of {run} follow "
            "each other: whether the run has come to its end is not known; put the file back (an earlier "
            "version of the object, if the bucket keeps them), or launch the rest under another name"
        )

    def foreign_workflow_message(self, other_run: str) -> str:
        return (
            f"s3://{self.bucket}/{self.prefix}{WORKFLOW_FILE} is of another run, {other_run!r}; put "
            "the run's own file back"
        )

    def folder_of_other_run(self, own_run: str, other_run: str) -> RunFolder:
        """Return the folder of another run beside this one, which belongs to ``own_run``."""
        return RunFolder(self.bucket, self.prefix.removesuffix(f"{own_run}/") + f"{other_run}/")

    def save_shard_runs(self, runs: Sequence[str], storage: ObjectStorage) -> None:
        content = json.dumps(formats.GROUP.with_version({"runs": list(runs)})) + "\n"
        storage.put_bytes(self.bucket, self.prefix + GROUP_FILE, content.encode())

    def load_shard_runs(self, storage: ObjectStorage) -> list[str] | None:
        """Return the names of the shards' runs; None for a run without shards."""
        content = call_with_retries(lambda: storage.get_bytes(self.bucket, self.prefix + GROUP_FILE))
        if content is None:
            return None
        return [str(run) for run in formats.GROUP.upgrade_document(json.loads(content), GROUP_FILE)["runs"]]

    def save_unsent_files(self, files: UnsentFiles, storage: ObjectStorage) -> None:
        if any(files):
            members = {
                "files": dict(files.reasons),
                "inputs": dict(files.inputs),
                "ignored": [*files.ignored],
            }
            content = json.dumps(formats.EXCLUDED.with_version(members)) + "\n"
            storage.put_bytes(self.bucket, self.prefix + EXCLUDED_FILE, content.encode())

    def load_unsent_files(self, storage: ObjectStorage) -> UnsentFiles:
        content = storage.get_bytes(self.bucket, self.prefix + EXCLUDED_FILE)
        if content is None:
            return UnsentFiles()
        document = formats.EXCLUDED.upgrade_document(json.loads(content), EXCLUDED_FILE)
        return UnsentFiles(
            {str(path): str(reason) for path, reason in document["files"].items()},
            {str(path): str(channel) for path, channel in document.get("inputs", {}).items()},
            tuple(map(str, document.get("ignored", ()))),
        )

    def save_call_parts(self, parts: Mapping[str, str], storage: ObjectStorage) -> None:
        content = json.dumps(formats.CALL_PARTS.with_version({"parts": dict(parts)})) + "\n"
        storage.put_bytes(self.bucket, self.prefix + CALL_PARTS_FILE, content.encode())

    def load_call_parts(self, storage: ObjectStorage) -> dict[str, str]:
        """Return what ``save_call_parts`` has saved; nothing without the file. Raises FormatError."""
        content = storage.get_bytes(self.bucket, self.prefix + CALL_PARTS_FILE)
        if content is None:
            return {}
        document = formats.CALL_PARTS.upgrade_document(json.loads(content), CALL_PARTS_FILE)
        return {str(name): str(digest) for name, digest in document["parts"].items()}

    def is_stop_requested(self, storage: ObjectStorage) -> bool:
        return (
            call_with_retries(lambda: storage.object_size(self.bucket, self.prefix + STOP_FILE)) is not None
        )

    def set_stop_requested(self, storage: ObjectStorage, is_requested: bool) -> None:
        if is_requested:
            storage.put_bytes(self.bucket, self.prefix + STOP_FILE, b"")
        else:
            storage.delete_objects(self.bucket, [self.prefix + STOP_FILE])


def _claiming_hash(claim: bytes) -> str | None:
    """Return the hash of the job that a claim names; None for an unreadable claim. Raises JobError for one of
    a newer major version."""
    try:
        return str(formats.CLAIM.upgrade_document(json.loads(claim), CLAIM_FILE).get("job_hash"))
    except formats.FormatError as error:
        raise JobError([Problem("name", str(error))]) from None
    except ValueError:  # no JSON
        return None
