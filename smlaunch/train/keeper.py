"""A training's checkpoints, from the side of one rank: given back at the start, taken while it runs."""

import time
from typing import Any, Dict, List, Mapping, Optional

from smlaunch.protocol.checkpoint import Outcome
from smlaunch.protocol.segment import Segment
from smlaunch.train import restoring, snapshot
from smlaunch.train.carriers import carrier_for
from smlaunch.train.components import RUN, Component
from smlaunch.train.group import Group
from smlaunch.train.interval import Interval
from smlaunch.train.progress import Voice
from smlaunch.train.saver import Saver
from smlaunch.train.snapshot import Camera
from smlaunch.train.store import Store


class Keeper:
    """Collective, but for ``busy``, ``failed``, ``wait`` and ``write_outcome``. ``interval`` hears what saves
    cost."""

    def __init__(
        self, segment: Segment, group: Group, components: List[Component], interval: Interval, voice: Voice
    ) -> None:
        """Raises OSError when the directory cannot be used."""
        assert segment.checkpoints is not None
        self._segment = segment
        self._group = group
        self._components = components
        self._interval = interval
        self._voice = voice
        self._store = Store(
            segment.checkpoints,
            group.rank,
            group.world_size,
            keep=segment.keep,
            job=segment.job,
            carrier=carrier_for(segment),
        )
        self._camera = Camera(group.rank, group.world_size)
        # Connections are made by all ranks in one order: here, and not when the first save happens to begin.
        self._saver = Saver(self._store, group.another())
        self._stall = 0.0
        self._compared = False
        self._fatal: Optional[str] = None
        self.kept_step: Optional[int] = None
        """The newest step that a save was begun for, or that was restored."""

    @property
    def busy(self) -> bool:
        return self._saver.busy

    @property
    def failed(self) -> bool:
        """No save can succeed; ``finish`` says why."""
        return self._fatal is not None

    def restore(self) -> Optional[Mapping[str, Any]]:
        """What was handed to ``keep`` as ``run``; None when there is nothing to go on from. Raises ValueError
        when a checkpoint does not fit the script."""
        found = restoring.find(self._store, self._group)
        if found is None:
            return None
        for passed in found.passed:
            self._voice.say("not loaded: {}".format(passed))
        manifest = found.manifest
        run: Mapping[str, Any] = restoring.restore(
            found, self._components, self._group.rank, self._group.world_size
        )
        self.kept_step = self._saver.committed = manifest.step
        sentence = "goes on after step {}".format(manifest.step)
        if manifest.samples is not None:
            sentence += " ({} samples)".format(manifest.samples)
        if manifest.job is not None:
            sentence += ", kept by {}".format(manifest.job)
        if manifest.world_size != self._group.world_size:
            sentence += "; not bit-identical: {} ranks before, {} now".format(
                manifest.world_size, self._group.world_size
            )
        self._voice.say(sentence)
        return run

    def keep(self, step: int, run: Mapping[str, Any], samples: Optional[int]) -> None:
        """Begins a save; waits for the one before. The training may go on when it returns. Raises
        RuntimeError when no save can succeed."""
        self.finish()
        began = time.monotonic()
        shared: Dict[str, Any] = {}
        own: Dict[str, Any] = {RUN: dict(run)}
        for component in self._components:
            for tree, state in ((shared, component.shared()), (own, component.own())):
                if state is not None:
                    tree[component.name] = state
        prints = None
        if self._group.world_size > 1 and not self._compared:
            prints, self._compared = snapshot.fingerprint(shared), True
        shot = self._camera.take(step, shared, own)
        self._saver.begin(shot, samples, prints)
        self._stall = time.monotonic() - began
        self._interval.save_began(began)
        self.kept_step = step

    def hear(self) -> None:
        """Tells how a save ended that is over."""
        saved = self._saver.take()
        if saved is None:
            return
        if saved.fatal is not None:
            self._fatal = "the checkpoint of step {} cannot be made: {}".format(saved.step, saved.fatal)
        elif saved.problem is not None:
            self._voice.say("step {} was not kept: {}".format(saved.step, saved.problem))
            self.kept_step = None
        else:
            changed = self._interval.save_ended(self._stall, saved.seconds)
            if changed is not None:
                self._voice.say(changed)

    def wait(self, seconds: float) -> None:
        """For the save that is under way, but not for longer."""
        self._saver.wait(seconds)

    def finish(self) -> Optional[int]:
        """Waits for the save that is under way; the newest committed step. Raises RuntimeError when no save
        can succeed."""
        self._saver.wait()
        self.hear()
        if self._fatal is not None:
            raise RuntimeError(self._fatal)
        return self._saver.committed

    def write_outcome(self, result: str, step: Optional[int]) -> None:
        if self._group.rank == 0:
            self._store.write_outcome(Outcome(result, step, self._segment.run, self._segment.job))
