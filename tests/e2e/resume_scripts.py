"""Training scripts as ordinary people write them, for verify-resume: right ones, and ones wrong in one way.

Each is a few lines around a common frame. ``pace`` makes the job that is to be cut wait for its cut, and no
other.
"""

from __future__ import annotations

from typing import NamedTuple

PACE = """
import os, time

def pace(step):
    job = os.environ["TRAINING_JOB_NAME"]
    time.sleep(0.3 if job.startswith("cut-") and "-s1-" in job and step >= CUT else 0.004)
"""
STEPS = 24
CUT = 8
"""After this step; it takes a moment to arrive."""


class Script(NamedTuple):
    """A script and what verify-resume reports on it.

    ``code``: the exit code. ``says``: parts of its differences, causes or errors. ``compared``,
    ``not_compared``: parts of those lists. ``signal``: the signal that cuts the run.
    """

    text: str
    code: int
    says: tuple[str, ...] = ()
    compared: tuple[str, ...] = ()
    not_compared: tuple[str, ...] = ()
    signal: str = "term"
    repeats: bool | None = None


TRACED = """
import json, math, os, pickle, random, struct, time
import numpy as np
from pace import pace
from smlaunch.train import Checkpointer, ResumableOrder
MODEL, OUTPUT = os.environ["SM_MODEL_DIR"], os.environ["SM_OUTPUT_DATA_DIR"]


class State(dict):
    def state_dict(self):
        return dict(self)

    def load_state_dict(self, state):
        self.clear()
        self.update(state)


rng = np.random.default_rng(7)
x = rng.normal(size=(48, 3))
y = x @ np.array([1.0, -2.0, 0.5]) + 0.01 * rng.normal(size=48)
net = State(w=np.zeros(3), momentum=np.zeros(3))
ema, best = State(w=np.zeros(3)), State(loss=math.inf, w=None)
order = ResumableOrder(48, batch_size=4, seed=3)


class Loader:
    def __init__(self, order):
        self.order = order

    def __len__(self):
        return self.order.steps_per_epoch

    def __iter__(self):
        for _, keys in self.order.batches():
            yield [index for _, index in keys]


BEFORE
with Checkpointer(order=order, net=net, KEPT) as run:
    for rows in run.batches(Loader(order), epochs=2):
        pace(run.steps_done + 1)
        error = x[rows] @ net["w"] - y[rows]
        net["momentum"] = 0.9 * net["momentum"] + x[rows].T @ error / len(rows)
        net["w"] = net["w"] - 0.05 * net["momentum"]
        loss = float(error @ error)
        STEP
        run.step(loss=LOSS)
if run.finished:
    END
"""


def traced_script(
    saved_state: str = "", code_before: str = "", step: str = "pass", end: str = "pass", loss: str = "loss"
) -> str:
    text = TRACED.replace("KEPT", saved_state).replace("BEFORE", code_before).replace("LOSS", loss)
    return text.replace("STEP", step.replace("\n", "\n        ")).replace("END", end.replace("\n", "\n    "))


OWN = """
import json, os, pickle, random, time, zipfile, io
import numpy as np
from pace import pace
MODEL, KEPT = os.environ["SM_MODEL_DIR"], "/opt/ml/checkpoints/state.pkl"

rng = np.random.default_rng(7)
x = rng.normal(size=(48, 3))
y = x @ np.array([1.0, -2.0, 0.5])
state = {"step": 0, "w": np.zeros(3), "momentum": np.zeros(3)}
BEFORE
if os.path.exists(KEPT):
    with open(KEPT, "rb") as file:
        state.update(pickle.load(file))
while state["step"] < STEPS:
    pace(state["step"] + 1)
    rows = DRAW
    error = x[rows] @ state["w"] - y[rows]
    state["momentum"] = 0.9 * state["momentum"] + x[rows].T @ error / len(rows)
    state["w"] = state["w"] - 0.05 * state["momentum"]
    state["step"] += 1
    SAVE
    print("smlaunch: progress step={} steps=STEPS".format(state["step"]), flush=True)
END
"""

_SAVE_OWN = """
with open(KEPT + ".new", "wb") as file:
    pickle.dump(SAVED, file)
os.rename(KEPT + ".new", KEPT)
"""


def own_loop(draw: str, end: str, code_before: str = "", saved_state: str = "state") -> str:
    save = _SAVE_OWN.replace("SAVED", saved_state).strip() if saved_state else "pass"
    text = OWN.replace("DRAW", draw).replace("BEFORE", code_before).replace("STEPS", str(STEPS))
    return text.replace("SAVE", save.replace("\n", "\n    ")).replace("END", end)


_BY_STEP = 'np.random.default_rng(state["step"]).integers(0, 48, 4)'
_SAVEZ = 'np.savez(MODEL + "/w.npz", w=net["w"])'
_EMA = 'ema["w"] = 0.9 * ema["w"] + 0.1 * net["w"]'
_SAVE_EMA = 'pickle.dump({"ema": dict(ema)}, open(MODEL + "/ema.pkl", "wb"))'
_BEST = 'if loss < best["loss"]:\n    best.update(loss=loss, w=net["w"].copy())'
_SAFETENSORS = """
head = json.dumps({"w": {"dtype": "F64", "shape": [3], "data_offsets": [0, 24]}}).encode()
with open(MODEL + "/best.safetensors", "wb") as file:
    file.write(struct.pack("<Q", len(head)) + head + best["w"].tobytes())
""".strip()
_DATED_ZIP = """
content = io.BytesIO()
np.save(content, state["w"])
with zipfile.ZipFile(MODEL + "/w.npz", "w") as file:
    now = time.localtime()
    file.writestr(zipfile.ZipInfo("w.npy", (1980 + os.getpid() % 100, *now[1:6])), content.getvalue())
with open(MODEL + "/card.json", "w") as file:
    json.dump({"saved_at": time.time(), "job": os.environ["TRAINING_JOB_NAME"], "steps": state["step"]}, file)
"""
_TWO = """
class Momentum(State):
    def step(self, gradient):
        self["m"] = 0.9 * self["m"] + gradient
        return 0.02 * self["m"]

generator, critic = State(w=np.ones(3)), State(w=np.full(3, 0.5))
opt_g, opt_d = Momentum(m=np.zeros(3)), Momentum(m=np.zeros(3))
"""
_GAN = """
real = float(critic["w"] @ x[rows].mean(0))
critic["w"] = critic["w"] + opt_d.step(x[rows].mean(0) - generator["w"] * real)
generator["w"] = generator["w"] + opt_g.step(critic["w"])
loss = float(critic["w"] @ generator["w"])
""".strip()
_SAVE_GAN = 'json.dump({"g": generator["w"].tolist()}, open(MODEL + "/g.json", "w"))'
_LOG = 'open(OUTPUT + "/log.csv", "a").write("{},{}\\n".format(run.steps_done + 1, loss))'

_DEAF = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\npace = int"

RIGHT = {
    "NumPy only; the global generators are neither seeded nor used": Script(
        traced_script(end=_SAVEZ),
        0,
        compared=("net", "model/w.npz"),
        not_compared=("smlaunch.rng.python: no random numbers were drawn", "smlaunch.rng.numpy"),
    ),
    "a generator of its own that is neither seeded nor used": Script(
        traced_script(saved_state="noise=np.random.default_rng()", end=_SAVEZ),
        0,
        not_compared=("noise: no random numbers were drawn from it",),
    ),
    "a moving average, kept and saved": Script(
        traced_script("ema=ema", step=_EMA, end=_SAVE_EMA),
        0,
        compared=("ema", "model/ema.pkl"),
        signal="kill",
    ),
    "the best so far, kept and saved": Script(
        traced_script("best=best", step=_BEST, end=_SAFETENSORS), 0, compared=("model/best.safetensors",)
    ),
    "two optimizers": Script(
        traced_script(
            "generator=generator, critic=critic, optimizer=opt_g, opt_d=opt_d", _TWO, _GAN, _SAVE_GAN
        ),
        *(0, (), ("opt_d, optimizer", "model/g.json")),
    ),
    "a log in output/data, a time and an id beside the weights": Script(
        traced_script(
            step=_LOG, end=_SAVEZ + '\njson.dump({"at": time.time()}, open(MODEL + "/card.json", "w"))'
        ),
        0,
        compared=("model/w.npz",),
        not_compared=("output/data/log.csv as one file", "model/card.json differs in at"),
        repeats=True,
    ),
    "no file at all, and a loss that is no number": Script(
        traced_script(loss="math.nan"),
        *(0, (), ("losses of 24 steps", "net")),
        not_compared=("model: no file in /opt/ml/model", "output/data: no file in"),
    ),
    "checkpoints of its own; the archive of the weights has a time in it": Script(
        own_loop(_BY_STEP, _DATED_ZIP),
        *(0, (), ("model/w.npz",)),
        not_compared=("the script does not use the Checkpointer", "model/card.json differs in saved_at"),
        signal="kill",
        repeats=True,
    ),
}

WRONG = {
    "a moving average, saved and not kept": Script(
        traced_script(step=_EMA, end=_SAVE_EMA),
        1,
        ("model/ema.pkl differs in ema.w", "Registered are net, order"),
        repeats=True,
    ),
    "the best so far, saved and not kept": Script(
        traced_script(
            step='if run.steps_done == 2:\n    best["w"] = net["w"]',
            end='json.dump(str(best["w"]), open(MODEL + "/b", "w"))',
        ),
        1,
        ("model/b differs",),
        repeats=True,
    ),
    "one of two optimizers is not kept": Script(
        traced_script("generator=generator, critic=critic, optimizer=opt_g", _TWO, _GAN, _SAVE_GAN),
        *(1, ("had loss", "model/g.json differs in g"), (), (), "term", True),
    ),
    "NumPy's generator is drawn from without a seed": Script(
        traced_script(step="np.random.random()", end=_SAVEZ),
        1,
        (
            "two unsplit runs differ already",
            "NumPy's global generator is drawn from (here: train.py:",
        ),
        repeats=False,
    ),
    "a history that only this process has": Script(
        traced_script(
            code_before="seen = []",
            step="seen.append(loss)",
            end='json.dump(seen, open(OUTPUT + "/seen.json", "w"))',
        ),
        *(1, ("output/data/seen.json differs",), (), (), "term", True),
    ),
    "a file that only the first job writes": Script(
        traced_script(
            code_before='if not os.listdir("/opt/ml/checkpoints"):\n'
            '    open(MODEL + "/config.json", "w").close()'
        ),
        *(1, ("model/config.json is missing after cuts",), (), (), "term", True),
    ),
    "checkpoints of its own without the momentum": Script(
        own_loop(
            _BY_STEP,
            'np.save(MODEL + "/w.npy", state["w"])',
            saved_state='{"step": state["step"], "w": state["w"]}',
        ),
        *(1, ("model/w.npy differs",), (), (), "kill", True),
    ),
    "checkpoints of its own without the generator": Script(
        own_loop("rng.integers(0, 48, 4)", 'pickle.dump(state, open(MODEL + "/state.pkl", "wb"))'),
        *(1, ("model/state.pkl differs in momentum, w",), (), (), "term", True),
    ),
    "weights that no two runs have in common": Script(
        own_loop(_BY_STEP, 'np.savez(MODEL + "/w.npz", w=state["w"] + np.random.random())'),
        *(1, ("two unsplit runs differ already (model/w.npz differs in w",), (), (), "term", False),
    ),
    "it cannot start on its own checkpoints": Script(
        own_loop(
            _BY_STEP, 'np.save(MODEL + "/w.npy", state["w"])', code_before="assert not os.path.exists(KEPT)"
        ),
        1,
        ("which was to go on after cut 1, Failed", "AssertionError"),
    ),
    "it keeps nothing": Script(
        own_loop(_BY_STEP, 'np.save(MODEL + "/w.npy", state["w"])', saved_state=""),
        2,
        ("the script repeated the whole training",),
    ),
    "it ignores the cut and trains on to its end": Script(
        own_loop(_BY_STEP, 'np.save(MODEL + "/w.npy", state["w"])', code_before=_DEAF),
        2,
        ("no cut could be made before the script had ended",),
    ),
    "it leaves nothing": Script(own_loop(_BY_STEP, ""), 2, ("there is nothing to compare",)),
}

TORCH = """
import os, torch
from torch import nn
from torch.optim.swa_utils import AveragedModel
from pace import pace
from smlaunch.train import Checkpointer, ResumableOrder
MODEL = os.environ["SM_MODEL_DIR"]
torch.manual_seed(1)
torch.set_num_threads(1)
data = torch.randn(48, 4)
net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1))
average = AveragedModel(net)
optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
order = ResumableOrder(48, batch_size=4, seed=3)


class Parameters:
    def state_dict(self):
        return {name: value.detach().clone() for name, value in net.named_parameters()}

    def load_state_dict(self, state):
        net.load_state_dict(state, strict=False)


with Checkpointer(order=order, optimizer=optimizer, average=average, KEPT) as run:
    for rows in run.batches(order.loader(data), epochs=2):
        pace(run.steps_done + 1)
        loss = net(rows).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        average.update_parameters(net)
        run.step(loss=loss)
if run.finished:
    torch.save({"net": net.state_dict(), "average": average.state_dict()}, MODEL + "/model.pt")
"""

WITH_TORCH = {
    "batch normalization, dropout and AveragedModel": Script(
        TORCH.replace("KEPT", "model=net"), *(0, (), ("model, model.buffers", "model/model.pt"))
    ),
    "buffers of batch normalization are not kept": Script(
        TORCH.replace("KEPT", "net=Parameters()"),
        *(1, ("model/model.pt differs in", "net.1.running_mean"), (), (), "term", True),
    ),
}
