"""What static analysis shows about a script as a program: how it starts or joins its ranks, the variables
that it reads, where it saves, and what it needs. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from smlaunch.facts.script_arguments import ArgumentParserFacts
from smlaunch.facts.source_place import LineEdit, SourcePlace


class RankStart(NamedTuple):
    """A call by which the script starts ranks itself, such as ``mp.spawn``."""

    place: SourcePlace
    function: str
    """The called function as the script writes it."""

    flag: str | None = None
    """The attribute of the parsed arguments that decides whether the call happens; None if nothing known
    does."""


class VariableUse(NamedTuple):
    """A read of an environment variable."""

    place: SourcePlace
    is_required: bool
    """The script fails without the variable."""


class FixedValue(NamedTuple):
    """A value that the script sets and that is the launcher's to set, such as MASTER_ADDR."""

    place: SourcePlace
    old_text: str
    """The statement or argument in the script."""

    new_text: str
    """What to write instead, so that a launcher's value counts."""

    edit: LineEdit | None = None
    """Where it is written; None for one of several lines."""


class GpuCall(NamedTuple):
    """A call that fails on a host without a GPU."""

    place: SourcePlace
    function: str
    """``torch.cuda.set_device``, or ``.cuda`` for a method."""


class TrainerCall(NamedTuple):
    """A call of Lightning's Trainer or Fabric."""

    place: SourcePlace
    class_name: str
    devices: int | str | None
    """As a literal; None where it is not stated."""

    num_nodes: int | None
    """As a literal; None where it is not stated."""

    is_known: bool
    """Devices and num_nodes are literals, or come from options of the script."""

    num_nodes_edit: LineEdit | None = None
    """Where ``num_nodes=N`` is written; None for one of several lines."""

    devices_edit: LineEdit | None = None
    num_nodes_option: str | None = None
    """The attribute of the script's parsed arguments that it is; None for any other value."""

    devices_option: str | None = None


class OptionUse(NamedTuple):
    """A call that takes a value from the script's command line."""

    place: SourcePlace
    destination: str
    """The attribute of the parsed arguments."""


class SavedFile(NamedTuple):
    """A call that saves to a path that the script itself states."""

    place: SourcePlace
    function: str
    path: str
    """As a literal, or the beginning of it."""

    option: str | None = None
    """The option of the script whose default the path is; None for a fixed one."""


class SharedFile(NamedTuple):
    """A file of the checkpoint directory whose name is the same on every host."""

    place: SourcePlace
    path: str


class RelativeImport(NamedTuple):
    """An import such as ``from . import data`` of the entry script, which fails in a script."""

    place: SourcePlace
    statement: str
    absolute_statement: str
    """Without the dots: for a script in no package."""

    module: str
    """What ``python -m`` runs; empty for a script whose folder is no package."""

    folder: str
    """Where it can be run as that module; empty for the working directory."""


class UnknownCommand(NamedTuple):
    """The program of a command, without a folder, that the hosts' PATH probably lacks."""

    name: str
    similar_file: str | None
    """File of the source with the same or a similar name."""

    is_certain: bool
    """The hosts are processes of this machine, whose PATH was searched."""


class MissingPackage(NamedTuple):
    """A package that the script imports unconditionally and the hosts' Python does not have, or a module of a
    package of the source."""

    name: str
    place: SourcePlace
    file_not_sent: str | None = None
    """The module of the source that an ignore file leaves out, or that lies in an input."""

    package: str | None = None
    """The package of the source that lacks the module; None for another one."""


@dataclass(frozen=True)
class ProgramFacts:
    """The program that the entry script and its modules form."""

    was_read: bool = False
    """False for a program that is not Python, or cannot be parsed. Of a shell script the channels that it
    reads are known."""

    parser: ArgumentParserFacts | None = None
    """Of the command line; None without argparse."""

    rank_start: RankStart | None = None
    relative_import: RelativeImport | None = None
    """The first one that the entry script certainly runs."""

    fixed_values: Mapping[str, FixedValue] = field(default_factory=dict)
    """By the environment variable that a launcher sets for the purpose: MASTER_ADDR, RANK ..."""

    nccl_backend: FixedValue | None = None
    """Where the process group is certainly made with NCCL, which needs GPUs."""

    gpu_calls: tuple[GpuCall, ...] = ()
    """Other lines that certainly need a GPU."""

    variable_uses: Mapping[str, VariableUse] = field(default_factory=dict)
    """By the variable's name."""

    reads_any_channel: bool = False
    """It reads channels by other means than their own variables, such as SM_INPUT_DIR."""

    computes_rank_of_host: bool = False
    """The script sets RANK by its host's number among SM_HOSTS: one rank for each host."""

    trainer_calls: tuple[TrainerCall, ...] = ()
    group_options: Mapping[str, OptionUse] = field(default_factory=dict)
    """The options by which the script makes its process group: of ``rank`` and ``world_size``."""

    calls: frozenset[str] = frozenset()
    """Last parts of the names of all called functions and classes."""

    has_lightning_cli: bool = False
    """LightningCLI reads the command line: ``--trainer.num_nodes`` is one of its options."""

    saved_files: tuple[SavedFile, ...] = ()
    fixed_checkpoint_files: tuple[SharedFile, ...] = ()
    imports: frozenset[str] = frozenset()
    """Dotted names of libraries that the script and its modules import."""

    optional_imports: frozenset[str] = frozenset()
    """Those of them that the program may do without."""

    files_of_imports: Mapping[str, str] = field(default_factory=dict)
    """The first file, relative to the source folder, that imports each of them."""


PACKAGE_DISTRIBUTIONS: Mapping[str, str] = {
    "attr": "attrs",
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python-headless",
    "Crypto": "pycryptodome",
    "dateutil": "python-dateutil",
    "dotenv": "python-dotenv",
    "faiss": "faiss-cpu",
    "fitz": "pymupdf",
    "git": "gitpython",
    "google": "google-cloud-storage",
    "hydra": "hydra-core",
    "igraph": "python-igraph",
    "imblearn": "imbalanced-learn",
    "jwt": "pyjwt",
    "Levenshtein": "levenshtein",
    "magic": "python-magic",
    "mlflow": "mlflow",
    "mpl_toolkits": "matplotlib",
    "OpenSSL": "pyopenssl",
    "past": "future",
    "PIL": "pillow",
    "pkg_resources": "setuptools",
    "pytorch_lightning": "pytorch-lightning",
    "ruamel": "ruamel.yaml",
    "serial": "pyserial",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "skopt": "scikit-optimize",
    "slugify": "python-slugify",
    "tensorboardX": "tensorboardx",
    "tf_keras": "tf-keras",
    "umap": "umap-learn",
    "usb": "pyusb",
    "wx": "wxpython",
    "yaml": "pyyaml",
    "zmq": "pyzmq",
}
"""Names for pip by names for import, where they differ by more than hyphens and case."""


NO_PROGRAM = ProgramFacts()


def distribution_of(package: str) -> str:
    """Name for pip of a top-level package."""
    return PACKAGE_DISTRIBUTIONS.get(package, package.replace("_", "-"))
