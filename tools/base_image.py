"""Makes a small Debian image with a python3 for the container engine of this machine, without a registry.

    python tools/base_image.py [IMAGE]

Debian's own mirrors, as this machine's apt knows them, are all it needs: mmdebstrap (or debootstrap) makes a
root file system, and the engine imports it. Nothing is done when IMAGE is there already. Needs root. With it
the Dockerfiles in containers/ are built as they are:

    podman build --build-arg BASE=localhost/smlaunch-base:bookworm -t localhost/average containers/training
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from smlaunch.errors import EndpointError
from smlaunch.local.executors import container_engine
from smlaunch.local.executors.container_cli import Engine

IMAGE = "localhost/smlaunch-base:bookworm"
SUITE = "bookworm"
PACKAGES = "python3,ca-certificates"
_UNUSED = ("doc", "man", "locale", "info")


def main() -> None:
    image = sys.argv[1] if len(sys.argv) > 1 else IMAGE
    with tempfile.TemporaryDirectory(prefix="smlaunch-base-") as folder:
        try:
            engine = container_engine.choose_engine(Path(folder) / "engine.json")
        except EndpointError as error:
            sys.exit(str(error))
        if container_engine.find_image_id(engine, image):
            print(f"{image} is there")
            return
        began = time.monotonic()
        make(engine, image, Path(folder))
        print(f"{image} made in {time.monotonic() - began:.0f} s")


def make(engine: Engine, image: str, folder: Path) -> None:
    """Imports a fresh root file system under the name ``image``."""
    archive = folder / "root.tar"
    if shutil.which("mmdebstrap"):
        excluded = [f"--dpkgopt=path-exclude=/usr/share/{unused}/*" for unused in _UNUSED]
        # No file is written back to disk before the next: the whole is made anew if it fails.
        options = ["--quiet", "--variant=minbase", f"--include={PACKAGES}", "--dpkgopt=force-unsafe-io"]
        with archive.open("wb") as output:
            subprocess.run(
                ["mmdebstrap", *options, *excluded, "--format=tar", SUITE, "-", *_sources()],
                stdout=output,
                check=True,
            )
    elif shutil.which("debootstrap"):
        root = folder / "root"
        subprocess.run(
            ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", SUITE, str(root)], check=True
        )
        subprocess.run(["tar", "-C", str(root), "-cf", str(archive), "."], check=True)
    else:
        sys.exit("mmdebstrap or debootstrap is needed: apt-get install mmdebstrap")
    # What the engine puts there itself would only be in its way.
    subprocess.run(["tar", "--delete", "-f", str(archive), "./proc", "./sys", "./dev"], check=True)
    subprocess.run(engine.command_line("import", str(archive), image), check=True, stdout=subprocess.DEVNULL)


def _sources() -> list[str]:
    """Where this machine's apt looks for Debian's packages; mmdebstrap's own default without any."""
    apt = Path("/etc/apt")
    files = [apt / "sources.list.d" / "debian.sources", apt / "sources.list"]
    return [str(path) for path in files if path.exists()][:1]


if __name__ == "__main__":
    main()
