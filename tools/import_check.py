"""Check an installed set of packages: where each comes from, its version, types and modules.

Run by the Python of a clean environment; needs nothing but the standard library.

    python tools/import_check.py [NAME ...]        names of distributions; default: all of ours

For each it checks that the import package lies in this environment's site-packages (not in a source
tree), that `__version__` is the distribution's, that `py.typed` and the licence are there, and that
every module imports, but for one whose requirement comes with an extra that is not installed. Exit
code 0: all well; 1: something is not; one line each.
"""

import importlib
import pkgutil
import re
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path

DISTRIBUTIONS = ("bytebound-kernels", "bytebound", "bytebound-quant", "bytebound-evals")


def find_problems(name: str) -> Iterator[str]:
    """Yield what is wrong with the installed distribution `name`."""
    try:
        distribution = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        yield f"{name}: not installed"
        return
    try:
        package = importlib.import_module(name.replace("-", "_"))
    except Exception as error:  # any error of any kind is what this reports
        yield f"{name}: import {name.replace('-', '_')}: {type(error).__name__}: {error}"
        return
    folder = Path(str(package.__file__)).resolve().parent
    site = {Path(sysconfig.get_path(key)).resolve() for key in ("purelib", "platlib")}
    if folder.parent not in site:
        yield f"{name}: imported from {folder}, not from this environment's site-packages"
    if getattr(package, "__version__", None) != distribution.version:
        yield f"{name}: __version__ is not the distribution's {distribution.version}"
    if not (folder / "py.typed").is_file():
        yield f"{name}: py.typed is not installed"
    if not any(file.name == "LICENSE" for file in distribution.files or ()):
        yield f"{name}: the licence is not installed"
    optional = set(_of_extras(distribution.requires or ()))
    for module in pkgutil.walk_packages(package.__path__, prefix=f"{package.__name__}."):
        if module.name.rpartition(".")[2] == "__main__":
            continue
        try:
            importlib.import_module(module.name)
        except Exception as error:  # as above
            missing = (getattr(error, "name", None) or "").partition(".")[0]
            if isinstance(error, ModuleNotFoundError) and missing in optional:
                continue
            yield f"{name}: import {module.name}: {type(error).__name__}: {error}"


def _of_extras(requirements: Sequence[str]) -> Iterator[str]:
    """Yield the import names, as far as a distribution's name tells them, of what extras need."""
    for requirement in requirements:
        if "extra ==" in requirement.partition(";")[2]:
            name = re.match(r"[A-Za-z0-9._-]+", requirement)
            yield "" if name is None else re.sub(r"[-.]+", "_", name[0])


def main(arguments: Sequence[str] | None = None) -> int:
    """Check each named distribution; return the exit code."""
    names = list(sys.argv[1:] if arguments is None else arguments) or DISTRIBUTIONS
    problems = []
    for name in names:
        found = list(find_problems(name))
        problems += found
        if not found:
            print(f"{name} {metadata.version(name)}: imports")
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
