"""Become one of Spark's programs, wherever Spark is installed.

    python -c "from smlaunch.train.spark_program import main; main()" spark-submit --master ...

An image that brings Spark says where (SPARK_HOME); otherwise it lies inside the package pyspark.
"""

import os
import sys
import tempfile
from typing import Dict, List, Mapping, Optional

_QUIET = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %p %c{1}: %m%n%ex
"""
"""Master and workers tell every step they take, and the end of a job as a failure with its stack."""


def main(words: Optional[List[str]] = None) -> None:
    """``words``: the program's name and its arguments, those of this process by default. Does not return."""
    words = sys.argv[1:] if words is None else words
    os.execve(program(words[0], os.environ), words, environment(os.environ))  # noqa: S606


def program(name: str, environ: Mapping[str, str]) -> str:
    """Raises RuntimeError where there is no Spark."""
    home = environ.get("SPARK_HOME") or _beside_pyspark()
    if home is None:
        raise RuntimeError(
            "no Spark here: SPARK_HOME is not set, and pyspark is not installed for {}; take an image that "
            "brings Spark, or name pyspark in the requirements".format(sys.executable)
        )
    path = os.path.join(home, "bin", name)
    if not os.path.exists(path):
        raise RuntimeError("{} is not there, though Spark is to be in {}".format(path, home))
    return path


def environment(environ: Mapping[str, str]) -> Dict[str, str]:
    """Spark writes into its own installation and /tmp unless it is told otherwise; hosts on one machine share
    the first and may not have the second. What the job says itself wins."""
    scratch = tempfile.gettempdir()
    own = {"SPARK_LOCAL_DIRS": scratch, "SPARK_WORKER_DIR": os.path.join(scratch, "spark-worker")}
    if "SPARK_DAEMON_JAVA_OPTS" not in environ:
        settings = os.path.join(scratch, "spark-log4j2.properties")
        with open(settings, "w") as file:
            file.write(_QUIET)
        own["SPARK_DAEMON_JAVA_OPTS"] = "-Dlog4j2.configurationFile=" + settings
    return {**own, **environ}


def _beside_pyspark() -> Optional[str]:
    from importlib.util import find_spec

    found = find_spec("pyspark")
    return None if found is None or found.origin is None else os.path.dirname(found.origin)
