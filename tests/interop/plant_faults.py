#!/usr/bin/env python3
"""Shows that the checks of this folder can fail: plants one fault at a time into copies of good results.

  plant_faults.py PLACES

PLACES is a JSON object: for each subject one that names the results, as `cargo xtask interop` left them, and what they are held against; see
`scenes` in its `faults_*.py`. Undamaged ones must pass; every damaged one must fail, and for the reason planted. Exit status 0 if that is
so, 1 otherwise.
"""
import contextlib, io, json, os, shutil, sys, tempfile

import torch
import torch.distributed.checkpoint as dcp

import faults_courses, faults_glm5, faults_parts, faults_qwen3
from report import Collected

SUBJECTS = {"glm5": faults_glm5, "qwen3": faults_qwen3, "courses": faults_courses, "parts": faults_parts}


def judged(check, copy):
    """What the check finds; a check that cannot go on has found something too."""
    report = Collected()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            check(copy, report)
        except (Exception, dcp.CheckpointException) as error:  # PyTorch derives its own from BaseException.
            report.bad(f"load failed: {type(error).__name__}: {error}")
        finally:
            if torch.distributed.is_initialized():
                torch.distributed.destroy_process_group()
    return report.lines


def copied(good, folder):
    copy = os.path.join(folder, os.path.basename(good))
    if os.path.isfile(good):
        shutil.copyfile(good, copy)
    else:
        shutil.copytree(good, copy, copy_function=shutil.copyfile)
    return copy


def play(subject, faults, places):
    """All scenes of a subject. Returns how many did not say what they should."""
    faults.prepare(places)
    wrong, stages = 0, faults.scenes(places)
    for scene, (good, check) in stages.items():
        if scene not in faults.FAILING:
            found = judged(check, good)
            wrong += bool(found)
            print(f"{subject}: {scene}: undamaged", "is refused: " + "; ".join(found[:3]) if found else "passes")
    for scene, reason, name, damage in faults.FAULTS:
        good, check = stages[scene]
        with tempfile.TemporaryDirectory() as folder:
            copy = copied(good, folder)
            damage(copy)
            found = judged(check, copy)
        seen = [line for line in found if reason in line]
        wrong += not seen
        outcome = "seen: " + " ".join(seen[0].split())[:110] if seen else f"NOT SEEN ({reason!r} not in {found[:3]})"
        print(f"{subject}: {scene}: {name}: {outcome}", flush=True)
    return wrong


def main(arguments):
    if len(arguments) != 1:
        print(__doc__)
        return 2
    with open(arguments[0]) as file:
        places = json.load(file)
    wrong = sum(play(subject, SUBJECTS[subject], at) for subject, at in places.items())
    planted = sum(len(SUBJECTS[subject].FAULTS) for subject in places)
    print("RESULT", f"FAILED ({wrong} checks did not say what they should)" if wrong or not planted else f"OK ({planted} planted faults seen)")
    return 1 if wrong or not planted else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
