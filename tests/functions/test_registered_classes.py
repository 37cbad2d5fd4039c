"""Classes whose bases keep a list of them: such code runs once, where a class is defined."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

MODULE = """
REGISTRY = {}

class Model:
    def __init_subclass__(cls, **options):
        if cls.__name__ in REGISTRY:
            raise ValueError(f"{cls.__name__} is registered already")
        REGISTRY[cls.__name__] = cls
"""

SCRIPT = """
import enum, subprocess, sys, weakref
from pathlib import Path

from registering import REGISTRY, Model
from smlaunch.functions.function_source import call_files
from smlaunch.functions.host_program import (
    OUTPUT_FOLDER, PICKLE, PROGRAM_FILE, SHA256_VARIABLE, result_file,
)
from smlaunch.functions.pickled_call import pickle_call
from smlaunch.functions.result_decoding import decode_result


class Small(Model):
    def __init__(self): self.size = 1

NAMES, SEEN = [], []

class Own:  # of the script, as its registry
    def __init_subclass__(cls, **options):
        if cls.__name__ in NAMES:
            raise ValueError(f"{cls.__name__} is registered already")
        NAMES.append(cls.__name__)

class Listing(type):
    def __new__(meta, name, bases, namespace):
        made = super().__new__(meta, name, bases, namespace)
        SEEN.append(made)
        return made
    def __init__(cls, name, bases, namespace):
        super().__init__(name, bases, namespace)
        cls.order = len(SEEN)

class Large(Own):
    class Part(Own):
        pass

class Listed(metaclass=Listing):
    pass

class BelowListed(Listed):
    pass

class Colour(Own, enum.Enum):
    RED = 1

def build():
    class Inner(Own):
        pass
    hosts = sorted(REGISTRY), REGISTRY["Small"] is Small, list(NAMES), [made.order for made in SEEN]
    return hosts, Small(), Large(), Large.Part(), Listed(), BelowListed(), Colour.RED, Inner()

def state():
    return dict(REGISTRY), list(NAMES), list(SEEN), Model.__subclasses__(), Own.__subclasses__()

HOST = Path(sys.argv[1])
call = pickle_call(build, (), {}, "build", Path(__file__).parent)
for path, content in call_files(call).items():
    (HOST / path).parent.mkdir(parents=True, exist_ok=True)
    (HOST / path).write_bytes(content)
environment = {SHA256_VARIABLE: call.sha256, "SM_OUTPUT_DATA_DIR": str(HOST)}
subprocess.run([sys.executable, str(HOST / PROGRAM_FILE)], env=environment, cwd=HOST, check=True)
content = (HOST / OUTPUT_FOLDER / result_file(PICKLE)).read_bytes()

def check():
    before = state()
    hosts, *objects, inner = decode_result(PICKLE, content)
    # On the host a module's registry has the class, and the script's one has what it had here.
    assert hosts == (["Small"], True, ["Part", "Large", "Colour", "Inner"], [1, 2]), hosts
    types = [type(made) for made in objects]
    assert types == [Small, Large, Large.Part, Listed, BelowListed, Colour], types
    assert type(inner).__name__ == "Inner" and isinstance(inner, Own)
    after = state()
    assert after[:4] == before[:4], (before, after)
    assert [made.__name__ for made in after[4]][: len(before[4])] == [made.__name__ for made in before[4]]

check()
check()
# In a process that has pickled no call, classes are found by their names.
import cloudpickle.cloudpickle as internals
internals._DYNAMIC_CLASS_TRACKER_BY_ID.clear()
internals._DYNAMIC_CLASS_TRACKER_BY_CLASS.clear()
NAMES.clear()
check()
"""


def test_the_code_of_a_registry_runs_only_where_a_class_is_defined(tmp_path: Path) -> None:
    host = tmp_path / "host"
    host.mkdir()
    for folder in (tmp_path, host):
        (folder / "registering.py").write_text(MODULE)
    (tmp_path / "program.py").write_text(SCRIPT)
    command = [sys.executable, str(tmp_path / "program.py"), str(host)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert (result.returncode, result.stderr) == (0, "")
