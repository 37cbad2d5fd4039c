"""spark: a processing job whose hosts form a Spark cluster for the duration of the script.

The cluster is a standalone one: a master on the leader, a worker on every host, and the script as the
driver on the leader. Everything ends with the driver. Docs: docs/spark.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar

from smlaunch.api.job_kinds import PROCESSING, JobKind
from smlaunch.contract.launch_spec import LEADER, Arg, Concat, Ref, ServiceSpec
from smlaunch.contract.tcp_ports import FIRST_HOST_PORT, FIRST_SERVICE_PORT
from smlaunch.errors import Problem
from smlaunch.strategies.base import LaunchContext, Strategy

_SPARK_COMMAND = (Ref("python"), "-c", "from smlaunch.runtime.spark_program import main; main()")
"""Finds Spark in the image or in pyspark, and runs one of its programs (runtime/spark_program.py)."""

_MASTER_ADDRESS = Concat((Ref("leader_address", suffix=":"), Ref("port", offset=FIRST_SERVICE_PORT)))
_WORKER_ADDRESS = Concat((Ref("address", suffix=":"), Ref("own_port", offset=FIRST_HOST_PORT)))
_MASTER_URL = Concat(
    (Ref("leader_address", prefix="spark://", suffix=":"), Ref("port", offset=FIRST_SERVICE_PORT))
)

_ENVIRONMENT: tuple[tuple[str, Arg], ...] = (
    # Without it Spark resolves the machine's address, of which a host may have several.
    ("SPARK_LOCAL_IP", Ref("address")),
    ("PYSPARK_PYTHON", Ref("python")),
    ("PYSPARK_DRIVER_PYTHON", Ref("python")),
)

_SPARK_SETTINGS = (
    "spark.ui.enabled=false",
    "spark.log.level=WARN",
    # Defaults of some images that a standalone cluster without HDFS does not support.
    "spark.eventLog.enabled=false",
    "spark.dynamicAllocation.enabled=false",
    "spark.shuffle.service.enabled=false",
    "spark.hadoop.fs.defaultFS=file:///",
    # Each task moves its own files on its host's disk; with version 1 the driver would move them, which sees
    # only its own disk.
    "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version=2",
)

_MEMORY_SIZE = re.compile(r"[1-9][0-9]*[mg]")
_DAEMONS_MIB = 2048
"""Memory of the master and a worker, 1 GiB each by Spark's default."""


class Spark(Strategy):
    name = "spark"
    summary = (
        "makes a Spark cluster of the job's hosts and runs the script as its driver, as a processing job"
    )
    job_kind: ClassVar[JobKind] = PROCESSING
    rendezvous = False
    image_family = "spark"
    frameworks = ("Spark",)
    one_process_per_host = True
    distributes_records = True
    is_for_tables = True
    sized_by_data = True
    rank_hosts = LEADER
    python_only = True
    count_options = ("cores",)
    libraries = ("pyspark",)
    more_ranks_hint = "Spark starts its own; options.cores states the cores of each host"
    options: ClassVar[Mapping[str, str]] = {
        "cores": "cores of each host that executors use; all of an instance, 1 on the local endpoint",
        "memory": "of each executor, such as 8g; 54% of an instance's less 1.2 GiB, Spark's own 1g otherwise",
        "driver_memory": "of the driver; a third of what an executor gets",
    }

    def find_problems(self, context: LaunchContext) -> list[Problem]:
        """Return what is wrong with the memory options of a job with Spark, and with its inputs: one that is
        split, so that each host gets a part of the data, is not read as a whole.
        """
        problems: list[Problem] = []
        if context.entry is not None and context.entry.script is None:
            problems.append(
                Problem("entry", "spark-submit starts a script, not a module or a command; name it")
            )
        for name in ("memory", "driver_memory"):
            size = context.options.get(name)
            if size is not None and not (isinstance(size, str) and _MEMORY_SIZE.fullmatch(size)):
                problems.append(Problem(f"options.{name}", f"it looks like 8g or 800m, not {size!r}"))
        if context.host_count > 1:
            problems += [
                Problem(
                    f"inputs.{name}.split",
                    "the driver lists files on its own host, so that data on other hosts is never read; "
                    "leave split out, or read S3 in the script",
                )
                for name, channel in context.channels.items()
                if channel.split is not None
            ]
        return problems

    def unimported_consequence(self, context: LaunchContext) -> str:
        return "it runs only on the leader, and the cluster is idle"

    def command(self, context: LaunchContext) -> tuple[Arg, ...]:
        """Return the command line of spark-submit, which runs the job's script as the driver on the leader,
        the first host. A ``Ref`` is a value that only the host knows. Values that are None are left to Spark.
        """
        cores_per_host, executor_memory, driver_memory = _choose_cores_and_memory(context)
        # First the same for every job: what a cluster without HDFS needs
        spark_settings: list[Arg] = [*_SPARK_SETTINGS, Ref("address", prefix="spark.driver.host=")]
        if cores_per_host is not None:
            # The first stage waits for all workers, so that a small job does not run only on the first one.
            spark_settings += [f"spark.cores.max={context.host_count * cores_per_host}"]
            spark_settings += ["spark.scheduler.minRegisteredResourcesRatio=1.0"]
        if executor_memory is not None:
            spark_settings += [f"spark.executor.memory={executor_memory}"]
        # The first part finds Spark in the image or in pyspark; the master is at a port of the leader.
        arguments: list[Arg] = [*_SPARK_COMMAND, "spark-submit", "--master", _MASTER_URL]
        for spark_setting in spark_settings:
            arguments += ["--conf", spark_setting]
        if driver_memory is not None:
            arguments += ["--driver-memory", driver_memory]
        return (*arguments, Ref("source", suffix="/" + context.entry_point), *context.args)

    def services(self, context: LaunchContext) -> tuple[ServiceSpec, ...]:
        cores, memory, _ = _choose_cores_and_memory(context)
        package = "org.apache.spark.deploy"
        master_command: tuple[Arg, ...] = (
            *(*_SPARK_COMMAND, "spark-class", f"{package}.master.Master", "--host", Ref("address")),
            *("--port", Ref("port", offset=FIRST_SERVICE_PORT), "--webui-port", "0"),
        )
        worker_command: list[Arg] = [
            *_SPARK_COMMAND,
            "spark-class",
            f"{package}.worker.Worker",
            "--host",
            Ref("address"),
        ]
        worker_command += ["--port", Ref("own_port", offset=FIRST_HOST_PORT), "--webui-port", "0"]
        worker_command += [] if cores is None else ["--cores", str(cores)]
        worker_command += [] if memory is None else ["--memory", memory]
        return (
            ServiceSpec("spark-master", master_command, _ENVIRONMENT, LEADER, _MASTER_ADDRESS),
            ServiceSpec(
                "spark-worker", (*worker_command, _MASTER_URL), _ENVIRONMENT, ready_address=_WORKER_ADDRESS
            ),
        )

    def variables(self, context: LaunchContext) -> tuple[tuple[str, Arg], ...]:
        return _ENVIRONMENT


def _choose_cores_and_memory(context: LaunchContext) -> tuple[int | None, str | None, str | None]:
    """Return the cores of each host, and the memory of an executor and of the driver, such as ``8g``: as the
    job's options state them, otherwise by its instance type. None leaves it to Spark.

    Hosts of the local endpoint share one machine, whatever type the job names.
    """
    cores = context.options.get("cores")
    executor_memory = context.options.get("memory")
    driver_memory = context.options.get("driver_memory")
    if context.target == "local":
        return cores or 1, executor_memory, driver_memory
    instance_spec = context.instance_spec
    if instance_spec is None:
        return cores, executor_memory, driver_memory
    # A tenth is reserved for the system; of the rest, a fifth each is for the driver and Python workers.
    available_mib = int(instance_spec.memory_gib * 1024 * 0.9) - _DAEMONS_MIB
    return (
        cores or instance_spec.vcpu,
        executor_memory or f"{available_mib * 3 // 5}m",
        driver_memory or f"{available_mib // 5}m",
    )
