"""spark: a processing job whose hosts are a Spark cluster of its own, from the script's start to its end.

The cluster is Spark's standalone one: a master on the leader, a worker on every host, and the script as the
driver on the leader. Everything ends with the driver. Docs: docs/spark.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar

from smlaunch.errors import Problem
from smlaunch.protocol.launch_spec import LEADER, Joined, Ref, Service, Word
from smlaunch.protocol.ports import HOSTS, SERVICES
from smlaunch.strategies.base import Setting, Strategy

_START = (Ref("python"), "-c", "from smlaunch.train.spark_program import main; main()")
"""Finds Spark in the image or beside pyspark, and becomes one of its programs (train/spark_program.py)."""

_MASTER = Joined((Ref("leader_address", suffix=":"), Ref("port", offset=SERVICES)))
_WORKER = Joined((Ref("address", suffix=":"), Ref("own_port", offset=HOSTS)))
_URL = Joined((Ref("leader_address", prefix="spark://", suffix=":"), Ref("port", offset=SERVICES)))

_ENVIRONMENT: tuple[tuple[str, Word], ...] = (
    # Else Spark asks the machine for its addresses, of which a host may have several.
    ("SPARK_LOCAL_IP", Ref("address")),
    ("PYSPARK_PYTHON", Ref("python")),
    ("PYSPARK_DRIVER_PYTHON", Ref("python")),
)

_SETTINGS = (
    "spark.ui.enabled=false",
    "spark.log.level=WARN",
    # What an image's own defaults may ask for, and a standalone cluster without HDFS has not.
    "spark.eventLog.enabled=false",
    "spark.dynamicAllocation.enabled=false",
    "spark.shuffle.service.enabled=false",
    "spark.hadoop.fs.defaultFS=file:///",
    # A task's files are in their place when it ends, on the disk of its own host; version 1 would have the
    # driver move them, which sees only its own disk.
    "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version=2",
)

_MEMORY = re.compile(r"[1-9][0-9]*[mg]")
_DAEMONS_MIB = 2048
"""Of the master and a worker, 1 GiB each by Spark's default."""


class Spark(Strategy):
    name = "spark"
    summary = (
        "makes a Spark cluster of the job's hosts and runs the script as its driver, as a processing job"
    )
    operation: ClassVar[str] = "CreateProcessingJob"
    rendezvous = False
    family = "spark"
    frameworks = ("Spark",)
    one_per_host = True
    deals_out = True
    for_tables = True
    sized_by_data = True
    runs_on = LEADER
    python_only = True
    counts = ("cores",)
    libraries = ("pyspark",)
    instead_of_ranks = "Spark starts its own; options.cores says how many cores of a host it may use"
    options: ClassVar[Mapping[str, str]] = {
        "cores": "cores of each host that executors use; all of an instance, 1 on the local endpoint",
        "memory": "of each executor, such as 8g; 54% of an instance's less 1.2 GiB, Spark's own 1g otherwise",
        "driver_memory": "of the driver; a third of what an executor gets",
    }

    def check(self, setting: Setting) -> list[Problem]:
        problems = []
        for name in ("memory", "driver_memory"):
            value = setting.options.get(name)
            if value is not None and not (isinstance(value, str) and _MEMORY.fullmatch(value)):
                problems.append(Problem(f"options.{name}", f"it looks like 8g or 800m, not {value!r}"))
        if setting.hosts > 1:
            problems += [
                Problem(
                    f"inputs.{name}.split",
                    "the driver lists files on its own host, so that what other hosts have is never read; "
                    "leave split out, or read S3 in the script",
                )
                for name, channel in setting.channels.items()
                if channel.split is not None
            ]
        return problems

    def unimported(self, setting: Setting) -> str:
        return (
            "does not import pyspark: unless a module of its own does, it runs on the leader alone, and the "
            "cluster stays idle"
        )

    def command(self, setting: Setting) -> tuple[Word, ...]:
        cores, memory, driver_memory = _resources(setting)
        settings: list[Word] = [*_SETTINGS, Ref("address", prefix="spark.driver.host=")]
        if cores is not None:
            # The first stage waits for all workers, so that a small job does not run on the first one alone.
            settings += [f"spark.cores.max={setting.hosts * cores}"]
            settings += ["spark.scheduler.minRegisteredResourcesRatio=1.0"]
        if memory is not None:
            settings += [f"spark.executor.memory={memory}"]
        words: list[Word] = [*_START, "spark-submit", "--master", _URL]
        for text in settings:
            words += ["--conf", text]
        if driver_memory is not None:
            words += ["--driver-memory", driver_memory]
        return (*words, Ref("source", suffix="/" + setting.entry), *setting.args)

    def services(self, setting: Setting) -> tuple[Service, ...]:
        cores, memory, _ = _resources(setting)
        cls = "org.apache.spark.deploy"
        master: tuple[Word, ...] = (
            *(*_START, "spark-class", f"{cls}.master.Master", "--host", Ref("address")),
            *("--port", Ref("port", offset=SERVICES), "--webui-port", "0"),
        )
        worker: list[Word] = [*_START, "spark-class", f"{cls}.worker.Worker", "--host", Ref("address")]
        worker += ["--port", Ref("own_port", offset=HOSTS), "--webui-port", "0"]
        worker += [] if cores is None else ["--cores", str(cores)]
        worker += [] if memory is None else ["--memory", memory]
        return (
            Service("spark-master", master, _ENVIRONMENT, LEADER, _MASTER),
            Service("spark-worker", (*worker, _URL), _ENVIRONMENT, ready=_WORKER),
        )

    def variables(self, setting: Setting) -> tuple[tuple[str, Word], ...]:
        return _ENVIRONMENT


def _resources(setting: Setting) -> tuple[int | None, str | None, str | None]:
    """Cores of each host, memory of an executor and of the driver; None leaves it to Spark.

    Hosts of the local endpoint share one machine, whatever type the job names.
    """
    options, instance = setting.options, setting.instance
    cores, memory, driver_memory = (options.get(name) for name in ("cores", "memory", "driver_memory"))
    if setting.target == "local":
        cores = cores or 1
    elif instance is not None:
        # A tenth is the system's; of the rest a fifth each goes to the driver and to Python workers.
        heaps = int(instance.memory_gib * 1024 * 0.9) - _DAEMONS_MIB
        cores = cores or instance.vcpu
        memory = memory or f"{heaps * 3 // 5}m"
        driver_memory = driver_memory or f"{heaps // 5}m"
    return cores, memory, driver_memory
