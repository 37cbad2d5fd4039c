"""Become one of Spark's programs, wherever Spark is installed.

    python -c "from smlaunch.runtime.spark_program import main; main()" spark-submit --master ...

An image that brings Spark says where (SPARK_HOME); otherwise it lies inside the package pyspark.
"""

import os
import sys
import tempfile
from typing import Dict, List, Mapping, Optional

_LOG_CONFIG = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %p %c{1}: %m%n%ex
"""
"""Master and workers log every step, and the end of a job as a failure with a stack."""


def main(arguments: Optional[List[str]] = None) -> None:
    """``arguments``: the program's name and its arguments, by default of this process. Does not return."""
    arguments = sys.argv[1:] if arguments is None else arguments
    os.execve(find_spark_program(arguments[0], os.environ), arguments, spark_environment(os.environ))  # noqa: S606


def find_spark_program(name: str, environ: Mapping[str, str]) -> str:
    """Return the path of one of Spark's programs, such as spark-submit. Raises RuntimeError where there is no
    Spark."""
    home = environ.get("SPARK_HOME") or _pyspark_home()
    if home is None:
        raise RuntimeError(
            "no Spark here: SPARK_HOME is not set, and pyspark is not installed for {}; take an image that "
            "brings Spark, or name pyspark in the requirements".format(sys.executable)
        )
    path = os.path.join(home, "bin", name)
    if not os.path.exists(path):
        raise RuntimeError("{} is not there, though Spark is to be in {}".format(path, home))
    return path


def spark_environment(environ: Mapping[str, str]) -> Dict[str, str]:
    """By default Spark writes into its own installation and /tmp; hosts on one machine share the first and
    may not have the second. Variables of the job take precedence.
    """
    scratch_dir = tempfile.gettempdir()
    defaults = {
        "SPARK_LOCAL_DIRS": scratch_dir,
        "SPARK_WORKER_DIR": os.path.join(scratch_dir, "spark-worker"),
    }
    if "SPARK_DAEMON_JAVA_OPTS" not in environ:
        log_config_file = os.path.join(scratch_dir, "spark-log4j2.properties")
        with open(log_config_file, "w") as file:
            file.write(_LOG_CONFIG)
        defaults["SPARK_DAEMON_JAVA_OPTS"] = "-Dlog4j2.configurationFile=" + log_config_file
    return {**defaults, **environ}


def _pyspark_home() -> Optional[str]:
    from importlib.util import find_spec

    spec = find_spec("pyspark")
    return None if spec is None or spec.origin is None else os.path.dirname(spec.origin)
