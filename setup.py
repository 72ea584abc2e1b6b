"""Build: compile the hot path with Cython where that is possible; all else is in pyproject.toml.

Rules: the modules of COMPILED are plain Python with a `.pxd` beside each, and work uncompiled too. They are compiled
together or not at all, since compiled ones call each other past the interpreter. Nothing compiled is ever older than
its source: what each was built from is noted in `hot/compiled.json`, and what differs is compiled anew. A wheel in
which nothing is compiled is for every platform, and says so in its name.

| environment        | with a C compiler and Python.h | without                     |
|--------------------|--------------------------------|-----------------------------|
| nothing set        | compiled                       | plain, and one line says so |
| `REQUIRE_CYTHON=1` | compiled, or the build fails   | the build fails             |
| `SKIP_CYTHON=1`    | plain                          | plain                       |
| both               | the build fails                | the build fails             |

`python setup.py build_ext --inplace` compiles into `src`, for an editable installation.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import sys
import sysconfig
import threading
import time
from collections.abc import Iterable
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

COMPILED = (
    "penstock.hot.acks",
    "penstock.hot.avro_columns",
    "penstock.hot.change_log",
    "penstock.hot.columns",
    "penstock.hot.crc",
    "penstock.hot.deliveries",
    "penstock.hot.direct_answers",
    "penstock.hot.encode",
    "penstock.hot.envelope",
    "penstock.hot.envelope_acks",
    "penstock.hot.frugal_frames",
    "penstock.hot.message_group",
    "penstock.hot.header_codes",
    "penstock.hot.headers",
    "penstock.hot.interest",
    "penstock.hot.join",
    "penstock.hot.json_columns",
    "penstock.hot.kept_rows",
    "penstock.hot.keyhash",
    "penstock.hot.keymap",
    "penstock.hot.lifetimes",
    "penstock.hot.message",
    "penstock.hot.message_ids",
    "penstock.hot.refusals",
    "penstock.hot.numbers",
    "penstock.hot.pending",
    "penstock.hot.pending_acks",
    "penstock.hot.pending_rows",
    "penstock.hot.protobuf_columns",
    "penstock.hot.row_objects",
    "penstock.hot.rows",
    "penstock.hot.scan",
    "penstock.hot.siphash",
    "penstock.hot.split_by_key",
    "penstock.hot.subject_filter",
    "penstock.hot.subject_table",
    "penstock.hot.subjects",
    "penstock.hot.thrift_columns",
    "penstock.hot.thrift_objects",
    "penstock.hot.thrift_values",
    "penstock.hot.traces",
    "penstock.hot.typed_columns",
    "penstock.hot.unwrap",
    "penstock.hot.classification",
)
"""Every module that is compiled."""

WRITTEN_TWICE = (
    "penstock.hot.cells",
    "penstock.hot.cython",
    "penstock.hot.load",
    "penstock.hot.memory",
    "penstock.hot.objects",
    "penstock.hot.places",
    "penstock.hot.splice",
    "penstock.hot.subject_search",
)
"""What stays plain: it stands in for what compiled modules take from Cython, or from the `.pxd` of the same name."""

ROOT = Path(__file__).resolve().parent
HOT = ROOT / "src" / "penstock" / "hot"
NOTE = "compiled.json"
NEEDED = "It takes a C compiler and Python's headers (apt install gcc python3-dev)"
SECONDS_EACH = 1.7  # of CPU for a module, measured with gcc 12 on x86-64
CIMPORT = re.compile(r"^from penstock\.hot(?:\.(\w+))? cimport (.*)$", re.MULTILINE)

DIRECTIVES = {
    "language_level": 3,
    # Annotations are mypy's; the types of C stand in the .pxd. Otherwise `int` would mean another thing when compiled.
    "annotation_typing": False,
    # None where an object of ours is expected is an error, as it is in plain Python, and no address.
    "nonecheck": True,
    # Of a class of a compiled module neither a pickle nor a signature is asked for: each costs every module a tenth of
    # its C, and a call of a function that carries its signature takes longer.
    "auto_pickle": False,
    "binding": False,
}


class NotCompiledError(Exception):
    """Why the hot path stays plain."""


def source_digest(module: str) -> str:
    """What decides how `module` is compiled: its source, the declarations that it includes, this file, this Python."""
    name = module.rpartition(".")[2]
    deciding = [HOT / f"{name}.py", *included(name), ROOT / "setup.py"]
    digest = hashlib.sha256(sys.version.encode())
    for path in deciding:
        digest.update(b"%s %d\n" % (path.name.encode(), path.stat().st_size) + path.read_bytes())
    return digest.hexdigest()


def included(name: str) -> list[Path]:
    """The `.pxd` of a module, and those that it takes declarations from."""
    found: dict[str, Path] = {}
    waiting = [name]
    while waiting:
        path = HOT / f"{waiting.pop()}.pxd"
        if path.stem not in found and path.exists():
            found[path.stem] = path
            for one, many in CIMPORT.findall(path.read_text()):
                waiting += [one] if one else [part.strip() for part in many.split(",")]
    return [found[stem] for stem in sorted(found)]


def file_digest(path: Path) -> str:
    """The SHA-256 of a file, or nothing where it is missing."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else ""


def read_note(folder: Path) -> dict[str, dict[str, str]]:
    """By the name of a compiled file: the digests of its source and of itself, when it was built."""
    try:
        found: dict[str, dict[str, str]] = json.loads((folder / NOTE).read_text())
    except (OSError, ValueError):
        return {}
    return found


def write_note(compiled: Path, digests: dict[str, str]) -> None:
    """Note what `compiled` was built from, beside it."""
    note = {**read_note(compiled.parent), compiled.name: digests}
    (compiled.parent / NOTE).write_text(json.dumps(note, indent=1))


def is_fresh(module: str, compiled: Path) -> bool:
    """Whether `compiled` is what this build makes of the source as it is."""
    noted = read_note(compiled.parent).get(compiled.name)
    return noted == {"source": source_digest(module), "compiled": file_digest(compiled)}


def stale_files() -> list[str]:
    """Compiled files in `src` that hide a source which says something else."""
    found = sorted(HOT.glob("*.so"))
    return [path.name for path in found if not is_fresh(f"penstock.hot.{path.name.partition('.')[0]}", path)]


def remove(paths: Iterable[Path]) -> None:
    """Delete compiled files, where they are."""
    for path in paths:
        path.unlink(missing_ok=True)


class Progress:
    """Say on stderr how far compiling is, and how long the rest takes: dev.py and `pip install -v` show it."""

    def __init__(self, modules: int) -> None:
        cores = os.cpu_count() or 1
        seconds = math.ceil(SECONDS_EACH * modules / min(cores, modules or 1))
        self._say(f"{modules} modules, about {seconds} s on {cores} {'core' if cores == 1 else 'cores'}")
        self._lock = threading.Lock()  # modules are compiled side by side

    def begin(self, sizes: dict[str, int]) -> None:
        """Begin to compile: time is as the bytes of C."""
        self._left = dict(sizes)
        self._sizes = dict(sizes)
        self._began = time.monotonic()

    def done(self, name: str) -> None:
        """A module is compiled."""
        with self._lock:
            self._left.pop(name)
            count, size, left = len(self._sizes), sum(self._sizes.values()), sum(self._left.values())
            seconds = math.ceil((time.monotonic() - self._began) * left / max(size - left, 1))
            self._say(f"{count - len(self._left)} of {count}" + (f", about {seconds} s left" if left else ""))

    def _say(self, text: str) -> None:
        print(f"compiling the hot path: {text}", file=sys.stderr, flush=True)


class BuildHot(build_ext):
    """Compile all modules of COMPILED, or leave none compiled."""

    def finalize_options(self) -> None:
        """Compile on all cores, unless told otherwise."""
        super().finalize_options()
        self.parallel = self.parallel or True

    def run(self) -> None:
        """Compile what changed; where that fails, stay plain and say why, or fail if REQUIRE_CYTHON says so."""
        wanted = self.extensions
        # Read before it is compiled: what is edited meanwhile differs from the note, and is compiled the next time.
        sources = {ext.name: source_digest(ext.name) for ext in wanted}
        targets = {ext.name: Path(self.get_ext_fullpath(ext.name)) for ext in wanted}
        for folder in {path.parent for path in targets.values()}:
            remove(set(folder.glob("*" + sysconfig.get_config_var("EXT_SUFFIX"))) - set(targets.values()))
        self.extensions = [ext for ext in wanted if not is_fresh(ext.name, targets[ext.name])]
        try:
            super().run()
        except Exception as error:
            remove(targets.values())
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            if os.environ.get("REQUIRE_CYTHON") == "1":
                sys.exit(
                    f"penstock: the hot path cannot be compiled, and REQUIRE_CYTHON=1 asks for it. {NEEDED}: {reason}"
                )
            print(
                f"penstock: the hot path stays plain Python, several times slower. {NEEDED}: {reason}", file=sys.stderr
            )
            self.extensions = []
            self.distribution.ext_modules = []
            return
        self.extensions = wanted
        for name, path in targets.items():
            write_note(path, {"source": sources[name], "compiled": file_digest(path)})

    def build_extensions(self) -> None:
        """Translate all to C, then compile; what is asked for here has changed, whatever the times of files say."""
        try:
            from Cython.Build import cythonize
        except ImportError as error:
            raise NotCompiledError("Cython is not installed") from error
        self.force = True
        self.progress = Progress(len(self.extensions))
        translated = cythonize(
            [Extension(ext.name, list(ext.sources)) for ext in self.extensions],
            build_dir=self.build_temp,
            compiler_directives=DIRECTIVES,
            force=True,
            quiet=True,
        )
        for ext, c in zip(self.extensions, translated, strict=True):
            ext.sources = c.sources
        self.progress.begin({ext.name: sum(map(os.path.getsize, ext.sources)) for ext in self.extensions})
        super().build_extensions()

    def build_extension(self, ext: Extension) -> None:
        """Compile one module, and say so."""
        super().build_extension(ext)
        self.progress.done(ext.name)


class PureIfPlain(bdist_wheel):
    """A wheel of the platform, unless compiling failed."""

    def run(self) -> None:
        """Build first: only then it is known which of the two the wheel is."""
        self.run_command("build")
        self.root_is_pure = not self.distribution.has_ext_modules()
        super().run()


def extensions() -> list[Extension]:
    """What is to be compiled: nothing under SKIP_CYTHON, which also takes away what was compiled in `src`."""
    if os.environ.get("SKIP_CYTHON") == "1":
        if os.environ.get("REQUIRE_CYTHON") == "1":
            sys.exit("penstock: SKIP_CYTHON=1 and REQUIRE_CYTHON=1 contradict each other: set one of them")
        remove(HOT.glob("*.so"))
        return []
    # What a debugger would want takes a quarter of the time to compile, and two thirds of the bytes.
    arguments = [] if "CFLAGS" in os.environ else ["-g0"]
    paths = {name: f"src/{name.replace('.', '/')}.py" for name in COMPILED}
    return [Extension(name, [path], extra_compile_args=arguments) for name, path in paths.items()]


if __name__ == "__main__":
    setup(ext_modules=extensions(), cmdclass={"build_ext": BuildHot, "bdist_wheel": PureIfPlain})
