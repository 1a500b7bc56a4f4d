"""Calls to a disk, one of which fails."""

import os
from pathlib import Path

STEPS = ["os.link", "os.fsync", "pathlib.Path.rename", "pathlib.Path.unlink", "os.open"]


def fail_at(monkeypatch, step, number, error, done=False):
    """The `number`-th call of `step` raises, `done` or not."""
    owner, _, name = step.rpartition(".")
    target = {"os": os, "pathlib.Path": Path}[owner]
    original, left = getattr(target, name), [number]

    def failing(*args, **more):
        left[0] -= 1
        if left[0] == 0:
            if done:
                original(*args, **more)
            raise error
        return original(*args, **more)

    monkeypatch.setattr(target, name, failing)
