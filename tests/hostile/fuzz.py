"""A coverage-guided fuzzer for everything that reads bytes: a long run, for a developer's evening.

    pip install atheris                                   # CPython 3.11 or 3.12; in no extra of this package
    python tests/hostile/fuzz.py stream --minutes 60
    python tests/hostile/fuzz.py all --minutes 5

Each target runs in a process of its own and begins with what an earlier run found (``--corpus``). What breaks
one lies in ``crash-…`` in the current folder; it belongs into ``REGRESSIONS`` of test_hostile_fuzz.py.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path


def fuzz(name: str, seconds: int, corpus: Path) -> None:
    """Does not return: libFuzzer ends the process."""
    import atheris

    with atheris.instrument_imports(include=["pytest_llmbench"]):
        sys.path.append(str(Path(__file__).parents[1]))
        from fuzz_targets import TARGETS
    target, seeds = TARGETS[name]
    folder = corpus / name
    folder.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(seeds):
        (folder / f"seed-{number}").write_bytes(seed)
    atheris.Setup(
        [sys.argv[0], str(folder), f"-max_total_time={seconds}", "-max_len=8192", "-timeout=20"], target
    )
    atheris.Fuzz()


def main() -> int:
    sys.path.append(str(Path(__file__).parents[1]))
    from fuzz_targets import TARGETS

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("target", choices=[*TARGETS, "all"])
    parser.add_argument("--minutes", type=float, default=5.0, help="of each target")
    parser.add_argument("--corpus", type=Path, default=Path(".fuzz"))
    asked = parser.parse_args()
    failed = []
    for name in TARGETS if asked.target == "all" else [asked.target]:
        command = [sys.executable, __file__, "--one", name, str(round(asked.minutes * 60)), str(asked.corpus)]
        if subprocess.run(command, check=False).returncode:
            failed.append(name)
    print(f"broken: {', '.join(failed)}" if failed else "nothing broke")
    return len(failed)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        fuzz(sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))
    sys.exit(main())
