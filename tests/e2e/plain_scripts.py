"""Ordinary scripts: they import nothing of smlaunch, save in their own way, and ignore the stop file.

Each trains ``PER_JOB`` steps at most and then goes on doing something else, so that it is always the planned
end that stops it, after the same steps on a machine of any speed. ``STEPS`` are the whole training.
"""

from __future__ import annotations

STEPS, PER_JOB = 60, 10
SEGMENTS = STEPS // PER_JOB

_BEGINNING = f"""\
import glob, json, os, pickle, signal, subprocess, sys, time
STEPS, PER_JOB = {STEPS}, {PER_JOB}
FOLDER = os.environ.get("SMLAUNCH_CHECKPOINTS", "/opt/ml/checkpoints")
def path(name): return os.path.join(FOLDER, name)
def report(step): print("smlaunch: progress step=%d steps=%d" % (step, STEPS), flush=True)
def hold(): print("holds", flush=True); time.sleep(600)
"""

_LOOP = """
step = begun = load()
print("begins at step", step, flush=True)
while step < STEPS:
    if step - begun == PER_JOB: hold()
    step += 1
    save(step)
    report(step)
print("final step", step, flush=True)
"""

_JSON = """
def load(): return json.load(open(path("state.json")))["step"] if os.path.exists(path("state.json")) else 0
def save(step):
    with open(path("state.json.new"), "w") as file: json.dump({"step": step}, file)
    os.replace(path("state.json.new"), path("state.json"))
"""

_APPENDS = """
def load(): return len(open(path("steps.log")).readlines()) if os.path.exists(path("steps.log")) else 0
def save(step):
    with open(path("steps.log"), "a") as file: file.write("%d\\n" % step)
"""

_SAME_SIZE = """
def load(): return int(open(path("state"), "rb").read() or 0) if os.path.exists(path("state")) else 0
def save(step):
    with open(path("state"), "r+b" if os.path.exists(path("state")) else "wb") as file:
        file.write(b"%08d" % step)
"""

_NUMBERED = """
def numbered(): return sorted(glob.glob(path("epoch-*.pkl")))
def load(): return pickle.load(open(numbered()[-1], "rb")) if numbered() else 0
def save(step):
    with open(path("partial"), "wb") as file: pickle.dump(step, file)
    os.rename(path("partial"), path("epoch-%04d.pkl" % step))
    for old in numbered()[:-2]: os.remove(old)
"""

_SILENT = "\ndef report(step): print('step', step, flush=True)\n"

SCRIPTS = {
    "temp-and-rename": _BEGINNING + _JSON + _LOOP,
    "appends": _BEGINNING + _APPENDS + _LOOP,
    "same-size": _BEGINNING + _SAME_SIZE + _LOOP,
    "numbered": _BEGINNING + _NUMBERED + _LOOP,
    "exits-143": _BEGINNING + _JSON + "\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(143))\n" + _LOOP,
    "ignores-sigterm": _BEGINNING + _JSON + "\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + _LOOP,
    "spawns-children": _BEGINNING
    + _JSON
    + "\nfor _ in range(2): subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
    + _LOOP,
    "silent-numbered": _BEGINNING + _NUMBERED + _SILENT + _LOOP,
    "silent-same-size": _BEGINNING + _SAME_SIZE + _SILENT + _LOOP,
}
"""Those that find all again what they had saved."""

CRASHES = _BEGINNING + _JSON + "\ndef hold(): raise RuntimeError('of bad luck, at step %d' % step)\n" + _LOOP
"""After every ``PER_JOB`` steps."""

BEGINS_ANEW = _BEGINNING + _JSON + "\ndef load(): return 0\n" + _LOOP
"""It saves, and never looks."""

SAVES_NOTHING = _BEGINNING + "\ndef load(): return 0\ndef save(step): pass\n" + _SILENT + _LOOP

FAILS_AT_ONE_STEP = (
    _BEGINNING + _JSON + "\ndef hold(): raise RuntimeError('not one step more')\nPER_JOB = 0\n" + _LOOP
)

AT_ONCE = _BEGINNING + _JSON + f"\nPER_JOB = {STEPS}\n" + _LOOP
