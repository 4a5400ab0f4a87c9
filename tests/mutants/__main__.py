"""Plants known mistakes, one at a time, and demands that each is noticed: see scripts/mutants."""

import argparse
import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from rich.console import Console

from tests.mutants.mutant import CATALOGUE, Case, Mutant, load_mutants
from tests.mutants.planting import EditError
from tests.mutants.report import markdown, summary, table
from tests.mutants.trial import TrialError, Verdict, try_mutant, try_nothing

ALL_CAUGHT, SURVIVORS, NO_VERDICT = 0, 1, 2


def main() -> int:
    arguments = _parse()
    mutants = _chosen(arguments.names)
    if arguments.list:
        for mutant in mutants:
            print(f"{mutant.name}: {mutant.mistake}")
        return ALL_CAUGHT
    progress = Console(stderr=True)
    if not arguments.no_control and (words := _control(mutants)) is not None:
        progress.print(f"error: without any mutant: {words}", markup=False)
        return NO_VERDICT
    if arguments.save:
        mutants = [_from_seed_0(mutant) for mutant in mutants]
    verdicts: list[Verdict] = []
    errors = 0
    with ThreadPoolExecutor(arguments.processes) as pool:
        trials = [(m, pool.submit(try_mutant, m, is_fresh=arguments.search)) for m in mutants]
        for mutant, trial in trials:
            try:
                verdicts.append(trial.result())
            except (EditError, TrialError) as error:
                errors += 1
                progress.print(f"error: {mutant.name}: {error}", markup=False)
            else:
                mark = "caught" if verdicts[-1].caught_by else "SURVIVES"
                progress.print(f"{mark:8} {mutant.name}", markup=False)
    if arguments.save:
        _save(verdicts)
    if arguments.markdown:
        print(markdown(verdicts))
    else:
        Console(width=None if sys.stdout.isatty() else 160).print(table(verdicts))
        print(summary(verdicts))
    if errors:
        return NO_VERDICT
    return ALL_CAUGHT if all(verdict.caught_by for verdict in verdicts) else SURVIVORS


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/mutants", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="mutants to plant; all when none is named")
    parser.add_argument("--list", action="store_true", help="only name them")
    parser.add_argument("--search", action="store_true", help="search random seeds instead of the known one")
    parser.add_argument("--save", action="store_true", help="search from seed 0, and keep what is found")
    parser.add_argument("--markdown", action="store_true", help="print docs/mutants.md")
    parser.add_argument("--no-control", action="store_true", help="do not first run all without a mutant")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    return parser.parse_args()


def _chosen(names: list[str]) -> list[Mutant]:
    known = {mutant.name: mutant for mutant in load_mutants()}
    if unknown := [name for name in names if name not in known]:
        sys.exit(f"error: no mutant is named {', '.join(unknown)}; scripts/mutants --list names them all")
    return [known[name] for name in names] if names else list(known.values())


def _control(mutants: list[Mutant]) -> str | None:
    try:
        return try_nothing(mutant.catcher for mutant in mutants)
    except TrialError as error:
        return str(error)


def _from_seed_0(mutant: Mutant) -> Mutant:
    if isinstance(mutant.catcher, Case):
        return mutant
    return replace(mutant, catcher=replace(mutant.catcher, seed=0))


def _save(verdicts: list[Verdict]) -> None:
    """Writes the seeds that were found into the catalogue."""
    for verdict in verdicts:
        if verdict.caught_by is None or isinstance(verdict.mutant.catcher, Case):
            continue
        path = CATALOGUE / f"{verdict.mutant.area}.toml"
        head = re.escape(f'name = "{verdict.mutant.name}"')
        seed = verdict.caught_by.rpartition(" ")[2]
        text = re.sub(rf"({head}\n(?:\w+ = .*\n)*?seed = )\d+", rf"\g<1>{seed}", path.read_text())
        path.write_text(text)


if __name__ == "__main__":
    sys.exit(main())
