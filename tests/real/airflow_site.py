"""A real Airflow on SQLite and LocalExecutor, controlled by its REST API, beside a local endpoint."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from smlaunch.airflow.run_ids import base_run_id
from tests.e2e.chains import SCRIPT, write_script
from tests.real.conftest import program

FAILS_ONCE = """\
import os
if os.environ["TRAINING_JOB_NAME"].endswith("-s1-a1"):
    raise RuntimeError("planted in the first attempt")
import runpy
import smlaunch.train
runpy.run_path(os.path.join(os.path.dirname(os.path.abspath(__file__)), "train.py"), run_name="__main__")
"""
CLEANS = """\
import os, sys
print("cleans", *sys.argv[1:], flush=True)
given, kept = os.environ["SM_CHANNEL_RAW"], os.environ["SM_OUTPUT_DATA_DIR"]
for name in os.listdir(given):
    with open(os.path.join(given, name)) as file, open(os.path.join(kept, name), "w") as out:
        out.write(file.read().upper())
"""
FAST = {
    "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    "AIRFLOW__CORE__PARALLELISM": "4",
    "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
    "AIRFLOW__API_AUTH__JWT_SECRET": "of-this-test-alone-and-long-enough-for-sha-512-to-be-content-with-it",
    "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "5",
    "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.5",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "15",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "2",
    "AIRFLOW__SCHEDULER__TASK_QUEUED_TIMEOUT": "120",
    "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "1",
    "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "4",
    "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
    "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "2",
}


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def with_connection(variables: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables with an Airflow connection in place of AWS's variables, and without those that
    name the endpoint's owner."""
    connection = {
        "conn_type": "aws",
        "login": variables["AWS_ACCESS_KEY_ID"],
        "password": variables["AWS_SECRET_ACCESS_KEY"],
        "extra": {"endpoint_url": variables["AWS_ENDPOINT_URL"], "region_name": variables["AWS_REGION"]},
    }
    other_variables = {name: value for name, value in variables.items() if not name.startswith("AWS_")}
    return {
        **other_variables,
        "SMLAUNCH_HOME": variables["HOME"] + "/elsewhere",
        "AIRFLOW_CONN_AWS_DEFAULT": json.dumps(connection),
    }


class Site:
    """Airflow in processes of its own. ``ask`` calls the REST API; ``close`` ends every process.

    ``by_connection``: what ``start`` starts knows the endpoint by Airflow's connection ``aws_default`` only,
    not by AWS's variables; what ``run`` runs has those in any case. ``faults``: what goes wrong at the
    endpoint.
    """

    def __init__(
        self, home: Path, *, by_connection: bool = False, faults: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        self.home = home
        (home / "dags").mkdir()
        shutil.copy(Path(__file__).with_name("airflow_dags.py"), home / "dags")
        script = write_script(home / "source")
        script.with_name("fails.py").write_text(FAILS_ONCE)
        script.with_name("halves.py").write_text(SCRIPT.replace("= 50, 10", "= 50, 25"))
        script.with_name("clean.py").write_text(CLEANS)
        (home / "source" / "raw").mkdir()
        (home / "source" / "raw" / "a.txt").write_text("one")
        plain = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL") if name in os.environ}
        self.variables = {**plain, "HOME": str(home), "SMLAUNCH_HOME": str(home / "smlaunch")}
        plan = home / "faults.json"
        plan.write_text(json.dumps({"seed": 1, "faults": list(faults)}))
        info = json.loads(self.run("smlaunch", "local", "start", "--json", SMLAUNCH_FAULTS=str(plan)))
        self.variables.update(json.loads(self.run("smlaunch", "local", "env", "--json")))
        self.port = free_port()
        self.variables.update(
            FAST,
            AIRFLOW_HOME=str(home),
            AIRFLOW__CORE__DAGS_FOLDER=str(home / "dags"),
            # Python's own five seconds of patience for a locked file are too few when a machine is busy.
            AIRFLOW__DATABASE__SQL_ALCHEMY_CONN=f"sqlite:///{home}/airflow.db?timeout=60",
            AIRFLOW__CORE__EXECUTION_API_SERVER_URL=f"http://127.0.0.1:{self.port}/execution/",
            PATH=str(Path(program("airflow", "airflow")).parent) + os.pathsep + plain["PATH"],
            TEST_SOURCE=str(home / "source"),
            TEST_BUCKET=info["bucket"],
        )
        self._started_with = with_connection(self.variables) if by_connection else self.variables
        self._processes: list[tuple[str, subprocess.Popen[bytes]]] = []
        self._triggered: set[str] = set()
        self._token = ""
        self.run("airflow", "db", "migrate")

    def run(self, name: str, *arguments: str, **variables: str) -> str:
        result = subprocess.run(
            [program("airflow", name), *arguments],
            env={**self.variables, **variables},
            capture_output=True,
            text=True,
            cwd=self.home,
        )
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    def start(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.home / f"{name}.txt").open("ab") as output:
            process = subprocess.Popen(
                [program("airflow", "airflow"), name, *arguments],
                env=self._started_with,
                cwd=self.home,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._processes.append((name, process))
        return process

    def kill(self, name: str) -> None:
        """Sends SIGKILL to the newest process of this name, and to what it has started."""
        end([process for process_name, process in self._processes if process_name == name][-1], kill=True)

    def kill_worker(self, dag: str) -> None:
        """Sends SIGKILL to the process of a running task and to its supervisor, LocalExecutor's worker."""
        task = int(self.task(dag)["pid"])
        status = Path(f"/proc/{task}/stat").read_text()
        supervisor = int(status.rpartition(")")[2].split()[1])
        title = Path(f"/proc/{supervisor}/cmdline").read_text()
        assert title.startswith("airflow worker -- LocalExecutor: "), title
        os.kill(supervisor, signal.SIGKILL)
        os.kill(task, signal.SIGKILL)

    def close(self) -> None:
        with ThreadPoolExecutor() as pool:
            list(pool.map(end, [process for _, process in self._processes]))
        self.run("smlaunch", "local", "stop")

    def ask(self, path: str, body: Any = None, method: str | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            data,
            {"Content-Type": "application/json", "Authorization": f"Bearer {self._token}"},
            method=method,
        )
        deadline = time.monotonic() + 60
        is_repeated = False
        while True:
            try:
                with urllib.request.urlopen(request, timeout=120) as answer:
                    return json.loads(answer.read() or b"null")
            except urllib.error.HTTPError as error:
                if error.code == 409 and is_repeated:  # the first request had been carried out
                    return None
                # Airflow on SQLite answers 500 while one of its other processes holds the database's lock.
                if error.code != 500 or time.monotonic() > deadline:
                    raise
            is_repeated = True
            time.sleep(1)

    def wait(self, description: str, read_state: Callable[[], Any], patience: float = 120) -> Any:
        """The first true value that ``read_state`` returns."""
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            try:
                state = read_state()
            except (urllib.error.URLError, ConnectionError):
                state = None
            if state:
                return state
            time.sleep(0.5)
        raise AssertionError(f"{description} did not come; the processes said:\n{self.log_text()}")

    def log_text(self) -> str:
        parts = [f"--- {path.name}\n{path.read_text()[-4000:]}" for path in self.home.glob("*.txt")]
        return "\n".join(parts)

    def begin(self, dags: list[str]) -> None:
        """Starts Airflow's processes, and one DAG run of each DAG, called ``once``."""
        for name, *arguments in (
            ("api-server", "--port", str(self.port), "--workers", "1", "--host", "127.0.0.1"),
            ("scheduler",),
            ("dag-processor",),
        ):
            self.start(name, *arguments)
        self._token = self.wait("a token", lambda: self.ask("/auth/token")["access_token"])
        for name in dags:
            self.trigger(name)

    def trigger(self, dag: str) -> None:
        """Triggers the DAG unless an earlier test has, while that test waited for something else."""
        if dag in self._triggered:
            return
        self._triggered.add(dag)
        self.wait(f"DAG {dag}", lambda: self._is_there(dag))
        self.ask(f"/api/v2/dags/{dag}", {"is_paused": False}, "PATCH")
        self.ask(f"/api/v2/dags/{dag}/dagRuns", {"dag_run_id": "once", "logical_date": None})

    def _is_there(self, dag: str) -> bool:
        try:
            return bool(self.ask(f"/api/v2/dags/{dag}"))
        except urllib.error.HTTPError:
            return False

    def task(self, dag: str, task: str = "train") -> Mapping[str, Any]:
        instance: Mapping[str, Any] = self.ask(f"/api/v2/dags/{dag}/dagRuns/once/taskInstances/{task}")
        return instance

    def is_(self, dag: str, *states: str) -> bool:
        return self.task(dag)["state"] in states

    def clear(self, dag: str) -> None:
        body = {"dry_run": False, "dag_run_id": "once", "task_ids": ["train"], "only_failed": False}
        self.ask(f"/api/v2/dags/{dag}/clearTaskInstances", body)

    def mark_failed(self, dag: str) -> None:
        path = f"/api/v2/dags/{dag}/dagRuns/once/taskInstances/train"
        self.ask(path, {"new_state": "failed"}, "PATCH")

    def log(self, dag: str, number: int = 1, task: str = "train") -> str:
        path = f"/api/v2/dags/{dag}/dagRuns/once/taskInstances/{task}/logs/{number}?full_content=true"
        return json.dumps(self.ask(path))

    def xcom(self, dag: str, key: str = "return_value", task: str = "train") -> Any:
        path = f"/api/v2/dags/{dag}/dagRuns/once/taskInstances/{task}/xcomEntries/{key}?stringify=false"
        return self.ask(path)["value"]


def end(process: subprocess.Popen[bytes], kill: bool = False) -> None:
    """Ends a process and what it has started: a scheduler's workers are in its session."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL if kill else signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def run_of(dag: str, dag_run: str = "once") -> str:
    return base_run_id(dag, "train", dag_run)
