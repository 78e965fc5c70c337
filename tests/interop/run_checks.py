#!/usr/bin/env python3
"""Runs many checks of this folder in one process: importing PyTorch and Megatron-Core takes longer than most of them.

  run_checks.py LIST

LIST is a JSON list of commands, each a list: the script without its `.py`, then its arguments. All are run, also after one has failed.
Exit status 0 when every one passes, 1 otherwise.
"""
import importlib, json, os, sys, time


def main(arguments):
    if len(arguments) != 1:
        print(__doc__)
        return 2
    with open(arguments[0]) as file:
        commands = json.load(file)
    failed = []
    begin = time.monotonic()
    for script, *rest in commands:
        shown = " ".join([script + ".py"] + [os.path.relpath(word) if os.path.isabs(word) else word for word in rest])
        print(f"\n$ {shown}", flush=True)
        if importlib.import_module(script).main(rest):
            failed.append(shown)
        sys.stdout.flush()
    print(f"\n{len(commands)} checks in {time.monotonic() - begin:.0f} s, {len(failed)} failed")
    for shown in failed:
        print("  FAILED", shown)
    return 1 if failed or not commands else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
