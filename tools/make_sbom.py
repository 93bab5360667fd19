"""What a release depends on, read off the environment it was tested in: a list for machines, and exact pins.

    python tools/make_sbom.py                    print a bill of materials (CycloneDX, JSON)
    python tools/make_sbom.py --extra test       with what the tests need
    python tools/make_sbom.py --pins             print `name==version` lines
    python tools/make_sbom.py --write-lock       write requirements/ci.txt, the pins of all that the tests need
    python tools/make_sbom.py --check-lock       say whether the pins are those of this environment

The pins are constraints: `PIP_CONSTRAINT=requirements/ci.txt make test` installs these versions and no others.
"""

import argparse
import json
import re
import sys
import tomllib
import uuid
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "requirements" / "ci.txt"
NOTE = "# Written by tools/make_sbom.py --write-lock: the versions the tests were last run with.\n"


def normal(name):
    """A project's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def own_requirements(extras):
    """What pyproject.toml asks for, with these extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    optional = project["optional-dependencies"]
    return [Requirement(text) for text in (*project["dependencies"], *(t for e in extras for t in optional[e]))]


def closure(requirements):
    """Every installed distribution that is needed, by normal name, with the names of those it needs itself."""
    found, needs = {}, {}
    waiting = [(r, None) for r in requirements]
    seen = set()
    while waiting:
        requirement, asker = waiting.pop()
        name = normal(requirement.name)
        if asker is not None:
            needs[asker].add(name)
        if (name, tuple(sorted(requirement.extras))) in seen:
            continue
        seen.add((name, tuple(sorted(requirement.extras))))
        try:
            distribution = metadata.distribution(requirement.name)
        except metadata.PackageNotFoundError:
            raise SystemExit(f"{requirement} is needed and not installed here: install it first") from None
        found[name] = distribution
        needs.setdefault(name, set())
        for text in distribution.requires or ():
            inner = Requirement(text)
            wanted = ("", *requirement.extras)
            if inner.marker is None or any(inner.marker.evaluate({"extra": extra}) for extra in wanted):
                waiting.append((inner, name))
    return found, needs


def version_of(distribution):
    """Without the local part (`+cpu`), which no index has."""
    return distribution.version.partition("+")[0]


def component(name, distribution):
    """One entry of the bill."""
    version = version_of(distribution)
    made = {"type": "library", "name": name, "version": version, "purl": f"pkg:pypi/{name}@{version}",
            "bom-ref": f"pkg:pypi/{name}@{version}"}  # fmt: skip
    given = distribution.metadata.get("License-Expression")
    if given:
        made["licenses"] = [{"expression": given}]
    elif (text := distribution.metadata.get("License")) and len(text) < 80:
        made["licenses"] = [{"license": {"name": text}}]
    return made


def bill(extras):
    """A CycloneDX document. The same environment gives the same text."""
    found, needs = closure(own_requirements(extras))
    stated = (ROOT / "wayfare" / "core" / "version.py").read_text(encoding="utf-8")
    version = re.search(r'__version__ = "(.+?)"', stated)[1]
    components = [component(name, found[name]) for name in sorted(found)]
    own = f"pkg:pypi/wayfare@{version}"
    ref = {c["name"]: c["bom-ref"] for c in components}
    direct = sorted({normal(r.name) for r in own_requirements(extras)})
    graph = [{"ref": own, "dependsOn": [ref[name] for name in direct]}]
    graph += [{"ref": ref[name], "dependsOn": sorted(ref[n] for n in needs[name])} for name in sorted(found)]
    serial = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps([own, components], sort_keys=True))
    return {
        "bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1, "serialNumber": f"urn:uuid:{serial}",
        "metadata": {"component": {"type": "library", "name": "wayfare", "version": version, "purl": own,
                                   "bom-ref": own, "licenses": [{"expression": "MIT"}]}},
        "components": components, "dependencies": graph,
    }  # fmt: skip


def pins(extras):
    """`name==version`, a line each."""
    found, _ = closure(own_requirements(extras))
    return "".join(f"{name}=={version_of(found[name])}\n" for name in sorted(found))


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--extra", action="append", default=[], help="an extra of pyproject.toml, such as test")
    for option in ("--pins", "--write-lock", "--check-lock"):
        parser.add_argument(option, action="store_true")
    options = parser.parse_args(arguments)
    if options.write_lock:
        LOCK.parent.mkdir(exist_ok=True)
        LOCK.write_text(NOTE + pins(["test"]), encoding="utf-8")
    elif options.check_lock:
        same = LOCK.exists() and LOCK.read_text(encoding="utf-8") == NOTE + pins(["test"])
        print("the pins are those of this environment" if same else "the pins are other versions than are installed")
        return 0 if same else 1
    elif options.pins:
        print(pins(options.extra), end="")
    else:
        print(json.dumps(bill(options.extra), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
