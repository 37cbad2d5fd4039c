"""Parse job.json, which the client has written, on the host that reads it."""

import json
from typing import Any, Mapping, Optional, Sequence, Tuple, Union

from smlaunch.contract import formats
from smlaunch.contract.formats import FormatError
from smlaunch.contract.launch_spec import (
    ALL,
    AUTO,
    DEFAULT_FAILURE_GRACE_SECONDS,
    HOST_SETS,
    LAUNCHERS,
    LEADER,
    MPI,
    PORT_REFERENCES,
    REFERENCES,
    RUNTIME,
    TORCHRUN,
    Arg,
    CheckpointSpec,
    Concat,
    LaunchSpec,
    LaunchSpecError,
    RankSpec,
    Ref,
    ServiceSpec,
)
from smlaunch.contract.sagemaker_paths import LAUNCH_FILE
from smlaunch.contract.segment import SYNC, UPLOAD_MODES


def parse_launch_spec(text: str) -> LaunchSpec:
    """Parse job.json, which tells the runtime (smlaunch's launcher in the container) what to start: the
    ranks (processes of the user's program), and services beside them. Raises LaunchSpecError with the
    first mistake, also for a format that this release does not read."""
    try:
        document = json.loads(text)
    except ValueError as error:
        raise LaunchSpecError("not JSON: {}".format(error)) from None
    if not isinstance(document, dict):
        raise LaunchSpecError("not a JSON object")
    try:
        document = formats.LAUNCH_SPEC.upgrade_document(document, LAUNCH_FILE)
    except FormatError as error:
        raise LaunchSpecError(str(error)) from None
    ranks_document = document.get("ranks")
    if not isinstance(ranks_document, dict):
        raise LaunchSpecError("ranks: missing")
    services = _parse_services(document)
    if services and ranks_document.get("launcher", RUNTIME) != RUNTIME:
        raise LaunchSpecError("services: only with ranks that the runtime starts, ranks.launcher runtime")
    return LaunchSpec(
        ranks=_parse_ranks(ranks_document),
        source=_parse_text(document, "source"),
        requirements=_parse_text(document, "requirements"),
        port=_parse_integer(document, "port", 29500),
        grace_seconds=_parse_seconds(document, "grace_seconds", 110.0),
        max_runtime_seconds=_parse_optional_integer(document, "max_runtime_seconds"),
        failure_grace_seconds=_parse_seconds(
            document, "failure_grace_seconds", DEFAULT_FAILURE_GRACE_SECONDS
        ),
        hang_seconds=_parse_hang_seconds(document),
        run=_parse_text(document, "run"),
        job_hash=_parse_text(document, "job_hash"),
        checkpoints=_parse_checkpoints(document),
        margin_seconds=_parse_optional_seconds(document, "margin_seconds"),
        deterministic=bool(document.get("deterministic", False)),
        services=services,
        source_sha256=_parse_text(document, "source_sha256"),
        secrets=_parse_secrets(document),
    )


def _parse_ranks(ranks_document: Mapping[str, Any]) -> RankSpec:
    """Return how the ranks (the processes of the user's program) are started, from the member ``ranks`` of
    job.json. Raises LaunchSpecError for an invalid one. ``launcher``: RUNTIME (smlaunch's own), torchrun or
    mpirun; ``on``: ALL hosts or the LEADER (first host) alone; ``independent``: each trains on its own."""
    ranks = RankSpec(
        argv=_parse_argv(ranks_document, "ranks"),
        per_host=_parse_ranks_per_host(ranks_document),
        # Ranks join each other, by the variables that torchrun sets too; otherwise they are plain processes.
        rendezvous=bool(ranks_document.get("rendezvous", True)),
        launcher=_parse_choice(ranks_document, "launcher", LAUNCHERS, RUNTIME, "ranks"),
        runs_on=_parse_choice(ranks_document, "on", (ALL, LEADER), ALL, "ranks"),
        launcher_options=_parse_args(ranks_document.get("options", []), "ranks.options"),
        independent=bool(ranks_document.get("independent", False)),
        flags=_parse_flags(ranks_document),
        env=_parse_env(ranks_document, "ranks"),
    )
    if ranks.launcher == TORCHRUN and not ranks.rendezvous:
        raise LaunchSpecError("ranks.launcher: torchrun joins its ranks, so ranks.rendezvous must be true")
    # mpirun runs on the leader and starts ranks on all hosts.
    if ranks.runs_on == LEADER and ranks.launcher != MPI and ranks.rendezvous:
        raise LaunchSpecError(
            "ranks.on: ranks on the leader alone join no others; ranks.rendezvous must be false"
        )
    if ranks.independent and (ranks.rendezvous or ranks.launcher != RUNTIME or ranks.runs_on != ALL):
        raise LaunchSpecError(
            "ranks.independent: only for plain processes on all hosts, without a rendezvous"
        )
    return ranks


def _parse_flags(ranks_document: Mapping[str, Any]) -> Tuple[Tuple[str, str], ...]:
    """Return the hyperparameters that are flags of the script, each with the option that states the opposite,
    or nothing."""
    flags = ranks_document.get("flags", {})
    if not isinstance(flags, dict) or not all(isinstance(opposite, str) for opposite in flags.values()):
        raise LaunchSpecError("ranks.flags: an object of texts is needed, not {!r}".format(flags))
    return tuple(sorted(flags.items()))


def _parse_secrets(launch_document: Mapping[str, Any]) -> Tuple[Tuple[str, str], ...]:
    """Return the references to secrets, by the variable's name."""
    secrets = launch_document.get("secrets", {})
    if not isinstance(secrets, dict) or not all(isinstance(reference, str) for reference in secrets.values()):
        raise LaunchSpecError("secrets: an object of texts is needed")
    return tuple(sorted(secrets.items()))


def _parse_ranks_per_host(ranks_document: Mapping[str, Any]) -> Union[int, str]:
    """Return the number of ranks on each host, or AUTO: one for each accelerator."""
    per_host: Union[int, str] = ranks_document.get("per_host", 1)
    is_count = isinstance(per_host, int) and not isinstance(per_host, bool) and per_host >= 1
    if per_host != AUTO and not is_count:
        raise LaunchSpecError("ranks.per_host: a number from 1 or {!r}, not {!r}".format(AUTO, per_host))
    return per_host


def _parse_services(launch_document: Mapping[str, Any]) -> Tuple[ServiceSpec, ...]:
    """Return the processes that run beside the ranks, such as a parameter server, from the member
    ``services`` of job.json. Raises LaunchSpecError for an invalid one."""
    service_documents = launch_document.get("services", [])
    if not isinstance(service_documents, list):
        raise LaunchSpecError("services: a list is needed, not {!r}".format(service_documents))
    return tuple(
        _parse_service(service_document, "services[{}]".format(index))
        for index, service_document in enumerate(service_documents)
    )


def _parse_service(service_document: Any, json_path: str) -> ServiceSpec:
    """Return one service. ``json_path``: of its object in job.json, for messages."""
    if (
        not isinstance(service_document, dict)
        or not isinstance(service_document.get("name"), str)
        or not service_document["name"]
    ):
        raise LaunchSpecError(
            "{}: an object with a name is needed, not {!r}".format(json_path, service_document)
        )
    ready_document = service_document.get("ready")
    return ServiceSpec(
        name=service_document["name"],
        runs_on=_parse_choice(service_document, "on", HOST_SETS, ALL, json_path),
        ready_address=None if ready_document is None else _parse_arg(ready_document, json_path + ".ready"),
        ready_seconds=_parse_seconds(service_document, "ready_seconds", 300.0),
        argv=_parse_argv(service_document, json_path),
        env=_parse_env(service_document, json_path),
    )


def _parse_argv(document: Mapping[str, Any], json_path: str) -> Tuple[Arg, ...]:
    argv = document.get("argv")
    if not isinstance(argv, list) or not argv:
        raise LaunchSpecError("{}.argv: a list with at least one argument is needed".format(json_path))
    return _parse_args(argv, json_path + ".argv")


def _parse_env(document: Mapping[str, Any], json_path: str) -> Tuple[Tuple[str, Arg], ...]:
    env = document.get("env", {})
    if not isinstance(env, dict):
        raise LaunchSpecError("{}.env: an object is needed".format(json_path))
    return tuple(
        (str(name), _parse_arg(arg, "{}.env.{}".format(json_path, name))) for name, arg in sorted(env.items())
    )


def _parse_args(values: Any, json_path: str) -> Tuple[Arg, ...]:
    if not isinstance(values, list):
        raise LaunchSpecError("{}: a list of arguments is needed, not {!r}".format(json_path, values))
    return tuple(_parse_arg(arg, "{}[{}]".format(json_path, index)) for index, arg in enumerate(values))


def _parse_choice(
    document: Mapping[str, Any], key: str, choices: Sequence[str], default: str, json_path: str
) -> str:
    value = document.get(key, default)
    if value not in choices:
        raise LaunchSpecError("{}.{}: one of {}, not {!r}".format(json_path, key, ", ".join(choices), value))
    return str(value)


def _parse_checkpoints(launch_document: Mapping[str, Any]) -> Optional[CheckpointSpec]:
    """Return where and how often checkpoints are saved, from the member ``checkpoints`` of job.json; None
    without checkpoints. ``upload``: SYNC (the service copies ``path`` to S3) or DIRECT (the job does).
    ``keep``: number of checkpoints that are kept; ``failure_seconds``: mean time between failures, for the
    interval. Raises LaunchSpecError for an invalid one."""
    checkpoints_document = launch_document.get("checkpoints")
    if checkpoints_document is None:
        return None
    if not isinstance(checkpoints_document, dict) or not isinstance(checkpoints_document.get("path"), str):
        raise LaunchSpecError(
            "checkpoints: an object with a path is needed, not {!r}".format(checkpoints_document)
        )
    upload = checkpoints_document.get("upload", SYNC)
    if upload not in UPLOAD_MODES:
        raise LaunchSpecError(
            "checkpoints.upload: one of {}, not {!r}".format(", ".join(UPLOAD_MODES), upload)
        )
    return CheckpointSpec(
        path=checkpoints_document["path"],
        uri=_parse_text(checkpoints_document, "uri"),
        upload=upload,
        keep=_parse_integer(checkpoints_document, "keep", 3),
        interval_seconds=_parse_optional_seconds(checkpoints_document, "interval_seconds"),
        failure_seconds=_parse_optional_seconds(checkpoints_document, "failure_seconds"),
    )


def _parse_arg(value: Any, json_path: str) -> Arg:
    if isinstance(value, dict) and isinstance(value.get("join"), list):
        return Concat(tuple(_parse_literal_or_reference(part, json_path) for part in value["join"]))
    return _parse_literal_or_reference(value, json_path)


def _parse_literal_or_reference(literal_or_reference: Any, json_path: str) -> Union[str, Ref]:
    """Return a literal text, or a reference to a value that only the host knows, such as ``{"ref": "rank"}``;
    of a port also with an offset, which is added to it. ``json_path``: of the value in job.json, for
    messages. Raises LaunchSpecError for anything else."""
    if isinstance(literal_or_reference, str):
        return literal_or_reference
    if not (isinstance(literal_or_reference, dict) and literal_or_reference.get("ref") in REFERENCES):
        raise LaunchSpecError(
            "{}: neither text nor a known reference: {!r}".format(json_path, literal_or_reference)
        )
    offset = literal_or_reference.get("offset", 0)
    is_integer = isinstance(offset, int) and not isinstance(offset, bool)
    is_port = literal_or_reference["ref"] in PORT_REFERENCES
    if not is_integer or (offset and not is_port):
        raise LaunchSpecError(
            "{}: no offset that a port could have: {!r}".format(json_path, literal_or_reference)
        )
    return Ref(
        name=literal_or_reference["ref"],
        prefix=str(literal_or_reference.get("prefix", "")),
        suffix=str(literal_or_reference.get("suffix", "")),
        offset=offset,
    )


def _parse_text(document: Mapping[str, Any], key: str) -> Optional[str]:
    value = document.get(key)
    if value is not None and not isinstance(value, str):
        raise LaunchSpecError("{}: text is needed, not {!r}".format(key, value))
    return value


def _parse_integer(document: Mapping[str, Any], key: str, default: int) -> int:
    value = document.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool):
        raise LaunchSpecError("{}: a number is needed, not {!r}".format(key, value))
    return value


def _parse_seconds(document: Mapping[str, Any], key: str, default: float) -> float:
    value = document.get(key, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
        raise LaunchSpecError("{}: a number of seconds from 0 is needed, not {!r}".format(key, value))
    return float(value)


def _parse_optional_seconds(document: Mapping[str, Any], key: str) -> Optional[float]:
    return None if document.get(key) is None else _parse_seconds(document, key, 0.0)


def _parse_hang_seconds(document: Mapping[str, Any]) -> Optional[float]:
    seconds = _parse_optional_seconds(document, "hang_seconds")
    if seconds == 0:
        raise LaunchSpecError("hang_seconds: more than 0 is needed; leave it out to wait for ever")
    return seconds


def _parse_optional_integer(document: Mapping[str, Any], key: str) -> Optional[int]:
    return None if document.get(key) is None else _parse_integer(document, key, 0)
