#!/usr/bin/env python3
"""Compares directories file by file, byte by byte.

  check_same.py FIRST OTHER... [--but NAME]...

Each OTHER must have the files of FIRST with their bytes; of the report of a run only that there is one is asked. A file named with --but
must be in both and differ. Exit status 0 if that is so, 1 otherwise.
"""
import argparse, os, sys, traceback

from records import REPORT
from report import Report


def files(folder):
    """Relative name to content."""
    found = {}
    for place, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(place, name)
            with open(path, "rb") as file:
                found[os.path.relpath(path, folder)] = file.read()
    return found


def check(first, others, but, report):
    """All of it; every difference goes to the report."""
    ours = files(first)
    for other in others:
        theirs, name_of = files(other), os.path.basename(other)
        for name in sorted(set(ours) ^ set(theirs)):
            report.bad(f"{name_of}: on one side only: {name}")
        for name in sorted(set(ours) & set(theirs)):
            a, b = ours[name], theirs[name]
            if name in but and a == b:
                report.bad(f"{name_of}: {name} is the same, and should not be")
            elif name not in [*but, REPORT] and a != b:
                report.bad(f"{name_of}: {name} differs")
        for name in sorted(set(but) - (set(ours) & set(theirs))):
            report.bad(f"{name_of}: no file {name} to differ")
    same = [len(content) for name, content in ours.items() if name not in [*but, REPORT]]
    print(f"{len(others) + 1} directories, {len(same)} files of {sum(same)} bytes the same in all, {len(but)} different as expected")


def main(arguments):
    parser = argparse.ArgumentParser(prog="check_same.py")
    parser.add_argument("first")
    parser.add_argument("others", nargs="+")
    parser.add_argument("--but", action="append", default=[])
    arguments = parser.parse_args(arguments)
    report = Report(20)
    try:
        check(arguments.first, arguments.others, arguments.but, report)
    except Exception as error:
        traceback.print_exc()
        report.bad(f"cannot be checked: {type(error).__name__}: {error}")
    print("RESULT", f"FAILED ({report.n_bad} mismatches)" if report.n_bad else "OK")
    return 1 if report.n_bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
