"""Finds problems that are certain to keep a command from starting, to report them at submission and not hours later.

It examines plain commands only, those in which a shell would do no more than split words. Whatever may succeed passes:
a command for a shell, one that a ``setup`` step may still install, a module that only its interpreter can find.
"""

import difflib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fairlead.cluster.client import CheckPrograms
from fairlead.cluster.local.home import SHARED_MEMORY
from fairlead.runtime import trial
from fairlead.runtime.launching import interpreter_for, needs_shell, simple_words
from fairlead.runtime.workspace import servers
from fairlead.specs.constraints import quote
from fairlead.specs.data import DATASET
from fairlead.specs.overlay import Overlay
from fairlead.specs.pipeline import Pipeline
from fairlead.specs.serving import Serving
from fairlead.specs.sweep import Sweep
from fairlead.specs.training import Training
from fairlead.specs.workload import WorkloadSpec
from fairlead.specs.workspace import HOME_IS_CLAIM, Ide, Workspace

if TYPE_CHECKING:
    from fairlead.specs.serving import Replica, Serving

ASK_S = 10.0
ABSENT = 3
SCRIPTS = (".py", ".sh")
NO_PLACES = {
    "http": "can only be read", "https": "can only be read", "memory": "is gone with the process",
    "data": "can only be read", "local": "is the pod's own disk",
}  # fmt: skip
IN_POD = "is relative, and lies in the pod, which takes it along when it ends"
OF_A_REGISTRY = (
    "is a checkpoint or a version of a model, which pods cannot look up: `fairlead run` does, for versions that were "
    "pushed with `fairlead model push --context`"
)
MODEL_PLACES = "give a path in the image, in `workdir` or on a volume of `kubernetes`, or a URL that the server reads"
OF_A_DATASET = (
    "is the name of a Dataset, which `fairlead run` and `fairlead apply` look up; in an object give its URL and "
    "`version`, which `fairlead data versions {name}` shows, or file:///PATH for a directory in the image"
)
OF_AN_INPUT = (
    "is the name of a Dataset, which the driver in a pod cannot look up; give its URL, which "
    "`fairlead data versions {name}` shows"
)
OTHER_PLACES = "name an object store, such as s3://bucket/path, or a mount"
# Features of an endpoint that need a gateway; a cluster may have none.
NO_GATEWAY = {
    "replicas": "a gateway counts requests, and there is none on this cluster; {install}, or give one number",
    "canary": "a gateway gives a revision its share of the requests, and there is none on this cluster; {install}",
    "access": "a gateway asks for keys, and there is none on this cluster; {install}",
    "timeout": "a gateway ends requests, and there is none on this cluster; {install}, or have the server end them",
    "max_concurrency": "requests wait at a gateway, and there is none on this cluster; {install}",
    "max_queue": "requests wait at a gateway, and there is none on this cluster; {install}",
    "idempotent": "a gateway sends requests again, and there is none on this cluster; {install}",
    "routing": "a gateway chooses replicas by the prompt, and there is none on this cluster; {install}",
}
# Trials of a population start from checkpoints of others, which pods cannot read yet.
NO_POPULATION = (
    "pbt lets trials go on from each other's checkpoints, which is for this machine, not yet for Kubernetes; give "
    "asha, hyperband or median"
)
# The memory of a pod is lost with it, and a restarted gang has new pods.
NO_POD_MEMORY = (
    "a start on Kubernetes has new pods, and the memory of those before is gone with them; leave it out, and have "
    "`every` save as often"
)
INSTALL_GATEWAYS = "`fairlead install --gateways 2` adds some"
# Variables that decide which program or module is found, and where credentials and the programs that supply them are.
DECIDING = (
    "PATH", "LD_", "DYLD_", "PYTHON", "VIRTUAL_ENV", "CONDA", "HOME", "XDG_", "BASH_ENV", "ENV", "AWS_CONFIG",
    "AWS_SHARED", "AWS_PROFILE", "GOOGLE_APPLICATION", "FSSPEC", "BOTO",
)  # fmt: skip
SHELLS = ("bash", "sh", "dash", "zsh")
# Finding a top-level module, unlike importing it, runs none of its code.
FIND = (
    # Modules of the working directory are found, and none of them is imported.
    "import sys\n"
    "here = sys.path.pop(0)\n"
    "import importlib.util\n"
    "sys.path.insert(0, here)\n"
    "def find(name):\n"
    "    try: return importlib.util.find_spec(name)\n"
    "    except Exception: return True\n"
    "absent = [name for name in sys.argv[1:] if find(name) is None]\n"
    "print(*absent)\n"
    f"sys.exit({ABSENT} if absent else 0)"
)
# The modules that the server of a predictor imports before the predictor's own code.
SERVED_BY = ("aiohttp", "numpy", "prometheus_client")


class Invocation(NamedTuple):
    """A parsed plain command.

    Attributes:
        script: The file that an interpreter reads, as typed; None when unknown.
        module: Module given to ``python -m``.
        flags: Flags of Python, before the script or module.
    """

    program: str
    script: str | None = None
    module: str | None = None
    flags: tuple[str, ...] = ()


def read_command(command: str) -> Invocation | None:
    """Parse the program that a command starts; None when it needs a shell."""
    words = simple_words(command)
    if words is None or needs_shell(words):
        return None
    name = os.path.basename(words[0])
    if re.fullmatch(r"python(3(\.\d+)?t?)?", name):
        return _python(words)
    if name in SHELLS and len(words) > 1 and not words[1].startswith(("-", "+")):
        return Invocation(words[0], script=words[1])
    return Invocation(words[0])


def workdir_problem(workdir: Path) -> str | None:
    """Return the reason why no program can run in a directory of this machine; None when one can."""
    if not workdir.exists():
        parent = next(directory for directory in workdir.parents if directory.exists())
        return (
            f"there is no directory {workdir}{_near(workdir.name, _names(parent)) if parent == workdir.parent else ''}"
        )
    if not workdir.is_dir():
        return f"{workdir} is not a directory"
    if not os.access(workdir, os.X_OK):
        return f"{workdir} may not be entered by you"
    return None


def place_problem(
    spec: Training, workdir: Path, environ: Mapping[str, str], probing: CheckPrograms = CheckPrograms.ANY
) -> str | None:
    """Return the reason why a run's checkpoints cannot be saved to its ``checkpoint.to`` on this machine, or None.

    Args:
        workdir: Directory to which a relative one is relative.
        environ: Environment that the program inherits, with the credentials of a store.
        probing: Programs that may be started for the check.
    """
    to = spec.checkpoint.to
    if to is None or probing in (CheckPrograms.NONE, CheckPrograms.ELSEWHERE):
        return None
    env = {**environ, **spec.env}
    if trial.is_store(to):
        own = interpreter_for(spec.run, env)
        python = own or (sys.executable,)
        if not _may_start(python[0], spec, workdir, env, probing):
            return None
        refusal = trial.store_problem(to, [*python, trial.__file__], env, is_its_own=own is not None)
        return None if refusal is None else f"{refusal}. Fix that, or name another place"
    problem = trial.directory_problem(to if to.startswith("file://") else str(workdir / Path(to).expanduser()))
    if problem is None:
        return None
    what = "created" if Path(problem.filename) != workdir / Path(to).expanduser() else "written to"
    return f"{to!r} cannot be {what}: {problem.filename}: {problem.strerror}. Fix that, or name another directory"


def pod_place_problem(spec: Training) -> str | None:
    """Return the reason why pods cannot save checkpoints to a run's ``checkpoint.to``, judged by its text; or None."""
    to = spec.checkpoint.to
    if to is None:
        return None
    scheme, divider, _ = to.partition("://")
    if divider and scheme in NO_PLACES:
        return f"{quote(to)}: {scheme}:// {NO_PLACES[scheme]}; {OTHER_PLACES}"
    if not divider and not to.startswith("/"):
        return f"{quote(to)} {IN_POD}; {OTHER_PLACES}"
    return None


def pod_problem(spec: Training) -> str | None:
    """Return the reason why Kubernetes cannot recover a run as its spec demands; None when it can."""
    return f"checkpoint.memory_every: {NO_POD_MEMORY}" if spec.checkpoint.is_in_memory else None


def dataset_problem(spec: Training) -> str | None:
    """Return the reason why pods cannot read data of a run: its place was not looked up at a submission; or None."""
    for name, source in spec.data.items():
        reference = DATASET.fullmatch(source.origin)
        if reference is not None:
            return f"data.{name}.from: {quote(source.origin)} {OF_A_DATASET.format(name=reference.group(1))}"
    return None


def input_problem(spec: WorkloadSpec) -> str | None:
    """Return the reason why the driver of a pipeline in a pod cannot read an input of a step; or None."""
    for name, step in spec.steps.items() if isinstance(spec, Pipeline) else ():
        for origin in step.inputs:
            reference = DATASET.fullmatch(origin)
            if reference is not None and reference.group(2) is not None:
                return f"steps.{name}.inputs: {quote(origin)} {OF_AN_INPUT.format(name=reference.group(1))}"
    return None


def shared_memory_problem(spec: Training) -> str | None:
    """Return the reason why this machine cannot hold a run's checkpoints in memory; None when it can, or need not."""
    if not spec.checkpoint.is_in_memory or SHARED_MEMORY.is_dir():
        return None
    return f"checkpoint.memory_every: this machine has no {SHARED_MEMORY} to hold them in; leave it out"


def population_problem(spec: WorkloadSpec) -> str | None:
    """Return the reason why Kubernetes cannot honour the `prune` of a sweep, or of a step that is one; or None."""
    if isinstance(spec, Sweep):
        return f"prune.rule: {NO_POPULATION}" if spec.is_population else None
    if isinstance(spec, Pipeline):
        names = (name for name, step in spec.steps.items() if step.sweep is not None and step.sweep.is_population)
        name = next(names, None)
        return None if name is None else f"steps.{name}.sweep.prune.rule: {NO_POPULATION}"
    return None


def gateway_problem(spec: "Serving") -> str | None:
    """Return the key of an endpoint that needs a gateway, with the reason; None where none does."""
    if spec.engine is not None:
        return None
    default = Serving(name="default", run="serve")
    is_asked = {
        # The operator queries Prometheus; only the requests of the last replica are counted by gateways.
        "replicas": spec.most_replicas is not None
        and spec.scale.by is None
        and (spec.scale.prometheus is None or spec.replicas == 0),
        "canary": spec.canary is not None,
        "access": spec.access is not None,
        "timeout": spec.timeout_s != default.timeout_s,
        "max_concurrency": spec.max_concurrency is not None,
        # A predictor's own server has a queue of that length, too.
        "max_queue": spec.predictor is None and spec.max_queue != default.max_queue,
        "idempotent": spec.idempotent,
        "routing": spec.routing is not default.routing,
    }
    key = next((key for key, is_needed in is_asked.items() if is_needed), None)
    return None if key is None else f"{key}: {NO_GATEWAY[key].format(install=INSTALL_GATEWAYS)}"


def pod_model_problem(spec: "Replica") -> str | None:
    """Return the reason why the pods of a cluster cannot load an endpoint's model; None when they may."""
    model_path = spec.model_path
    if "://" in model_path and not model_path.startswith("run://"):
        return None
    if model_path.startswith("run://") or "@" in model_path:
        return f"{quote(model_path)} {OF_A_REGISTRY}; {MODEL_PLACES}"
    return None


POD_SERVERS = {
    Ide.JUPYTER: "give `environment: {packages: [...]}`, with which jupyterlab goes along, or an `image` that has it, "
    "such as `quay.io/jupyter/minimal-notebook`",
    Ide.VSCODE: "give an `image` with openvscode-server or code-server and Python, such as "
    "`gitpod/openvscode-server`, or take `ide: jupyter` or `ide: ssh`",
    Ide.SSH: "give an `image` with openssh-server, Python and a user of the number 1000; without one, `fairlead exec "
    "NAME -it -- bash` is a shell in a pod",
}


def pod_server_problem(spec: Workspace) -> str | None:
    """Return why a workspace in a pod would have no server, as a clause with the key; None when it may have one."""
    if spec.home.path is not None:
        return f"home.path: {HOME_IS_CLAIM}"
    environment = spec.environment
    if spec.image is None and environment is None and spec.setup is None:
        return f"`ide: {spec.ide}`: the image of runs that name none has no such server; {POD_SERVERS[spec.ide]}"
    return None


def command_problem(
    spec: Training, workdir: Path, environ: Mapping[str, str], probing: CheckPrograms = CheckPrograms.ANY
) -> str | None:
    """Return the reason why a run's command cannot start on this machine; None when it may.

    Args:
        workdir: An existing directory.
        environ: Environment that the program inherits.
        probing: Programs that may be started for the check.
    """
    invocation = read_command(spec.run)
    if invocation is None or spec.setup is not None or probing is CheckPrograms.ELSEWHERE:
        return None
    env = {**environ, **spec.env}
    if spec.environment is not None:
        # Programs and modules are those of the environment, which there may not be yet.
        return _other_python(invocation, spec) or _script_problem(invocation, workdir, env)
    problem = _program_problem(invocation.program, workdir, env) or _script_problem(invocation, workdir, env)
    if problem is not None or not _may_start(invocation.program, spec, workdir, env, probing):
        return problem
    if (ide := getattr(spec, "ide", None)) is not None:
        return _ide_problem(invocation, ide, workdir, env)
    return (_server_problem(invocation, workdir, env) if getattr(spec, "predictor", None) else None) or _module_problem(
        invocation, workdir, env
    )


def packed_problem(spec: Training, workdir: Path, packed: Collection[str]) -> tuple[str, bool] | None:
    """Return why a command cannot start with only the packed files of a directory, and whether that is certain.

    It is uncertain where an image or a volume may provide what is missing; None when there is no objection.
    """
    invocation = read_command(spec.run)
    if invocation is None or spec.setup is not None:
        return None
    problem = None
    if invocation.script is not None and not os.path.isabs(invocation.script):
        name = os.path.normpath(invocation.script)
        if name not in packed and not any(path.startswith(f"{name}/") for path in packed) and name != ".":
            if name.startswith(".."):
                problem = f"{invocation.script} is outside of {workdir}, whose files are all that goes along"
            elif (workdir / name).exists():
                problem = f"{invocation.script} does not go along: a .gitignore leaves it out, or it is a link"
            else:
                problem = (
                    f"there is no file {invocation.script!r} in {workdir}{_near_script(invocation.script, workdir)}"
                )
    elif invocation.module is not None and _looks_in_workdir(invocation, spec.env):
        problem = _submodule_problem(invocation.module, workdir)
    return None if problem is None else (problem, spec.image is None and spec.kubernetes == Overlay())


def _other_python(invocation: Invocation, spec: Training) -> str | None:
    """Return the reason why a command would not use the Python of its ``environment``; None where it does."""
    program = invocation.program
    is_own = invocation.module is not None and invocation.module.startswith("fairlead.")
    if is_own or "/" not in program or not os.path.basename(program).startswith("python"):
        return None
    return f"{program} is not the Python of `environment`. Write `python` before the script, or remove `environment`"


def _python(words: list[str]) -> Invocation:
    flags: list[str] = []
    rest = words[1:]
    while rest:
        word = rest.pop(0)
        if word == "-m":
            return Invocation(words[0], module=rest[0] if rest else None, flags=tuple(flags))
        if word in ("-W", "-X", "--check-hash-based-pycs") and rest:
            flags += [word, rest.pop(0)]
        elif re.fullmatch(r"-[bBdEiIOPqRsSuvx]+|-[WX].+|--check-hash-based-pycs=.+", word):
            flags.append(word)
        elif word.startswith("-"):
            break
        else:
            return Invocation(words[0], script=word, flags=tuple(flags))
    return Invocation(words[0])


def _program_problem(program: str, workdir: Path, env: Mapping[str, str]) -> str | None:
    places = [str(workdir)]  # the program as a path, then the directories in which a bare name is looked up
    if "/" not in program:
        places += _path(workdir, env)
    candidates = [path for path in (os.path.join(place, program) for place in places) if os.path.isfile(path)]
    if any(os.access(path, os.X_OK) for path in candidates):
        return None
    remedy = "Give `python` before it" if program.endswith(".py") else "Give its interpreter before it"
    if candidates:
        return f"{candidates[0]} is not executable. {remedy}, or make it executable with `chmod +x`"
    if os.path.isdir(os.path.join(workdir, program)):
        return f"{program!r} is a directory, no program"
    if "/" in program or program.endswith(SCRIPTS):
        near = _near_script(program, workdir)
        return f"there is no file {program!r} in {workdir}{near}{'' if '/' in program else f'. {remedy}'}"
    known = {name for place in places[1:] for name in _names(Path(place))}
    return (
        f"{program!r} is not on the PATH{_near(program, known)}. Correct it, give its full path, "
        "activate the environment that has it, or install it in a `setup` step"
    )


def _script_problem(invocation: Invocation, workdir: Path, env: Mapping[str, str]) -> str | None:
    if invocation.script is None or (workdir / invocation.script).exists():
        return None
    # A shell also looks for its script on the PATH.
    more = [] if "/" in invocation.script or os.path.basename(invocation.program) not in SHELLS else _path(workdir, env)
    if any(os.path.exists(os.path.join(place, invocation.script)) for place in more):
        return None
    here = Path.cwd()
    if not os.path.isabs(invocation.script) and here != workdir and (here / invocation.script).exists():
        return (
            f"there is no file {invocation.script!r} in {workdir}, but in {here}; give `workdir`, or correct the path"
        )
    return f"there is no file {invocation.script!r} in {workdir}{_near_script(invocation.script, workdir)}"


def _module_problem(invocation: Invocation, workdir: Path, env: Mapping[str, str]) -> str | None:
    module = invocation.module
    if module is None or not all(part.isidentifier() for part in module.split(".")) or module.startswith("fairlead"):
        return None
    top = module.partition(".")[0]
    if _looks_in_workdir(invocation, env) and _entries_of(top, workdir):
        return _submodule_problem(module, workdir)
    if not _absent_modules(invocation, (top,), workdir, env):
        return None
    near = _near(top, [name.partition(".")[0] for name in _names(workdir)])
    return (
        f"the Python of {invocation.program!r} has no module {top!r}, and {workdir} has none{near}. Install it there, "
        "activate the environment that has it, or install it in a `setup` step"
    )


def _server_problem(invocation: Invocation, workdir: Path, env: Mapping[str, str]) -> str | None:
    absent = _absent_modules(invocation, SERVED_BY, workdir, env)
    if not absent:
        return None
    python = shutil.which(invocation.program, path=os.pathsep.join(_path(workdir, env)))
    return (
        f"the Python of {invocation.program!r}, {python}, "
        f"has no {' and no '.join(absent)}, which a predictor is served with. `pip install 'fairlead[serve]' numpy` "
        "there, activate the environment that has them, or install them in a `setup` step"
    )


def _ide_problem(invocation: Invocation, ide: str, workdir: Path, env: Mapping[str, str]) -> str | None:
    """Return why the server of a workspace cannot start; None when it may."""
    if ide != "jupyter":
        lacking = servers.missing(ide, os.pathsep.join(_path(workdir, env)))
        return None if lacking is None else f"`ide: {ide}`: this machine {lacking}"
    if not _absent_modules(invocation, ("jupyter_server",), workdir, env):
        return None
    python = shutil.which(invocation.program, path=os.pathsep.join(_path(workdir, env)))
    remedy = "activate the environment that has it, or install it in a `setup` step"
    return f"`ide: jupyter`: the Python of {invocation.program!r}, {python}, {servers.INSTALL[ide]}, {remedy}"


def _may_start(program: str, spec: Training, workdir: Path, env: Mapping[str, str], probing: CheckPrograms) -> bool:
    """Return whether a program may be started to check a spec."""
    if probing is CheckPrograms.ANY:
        return True
    if probing is CheckPrograms.NONE or any(name.startswith(DECIDING) for name in spec.env):
        return False
    executable = shutil.which(program, path=os.pathsep.join(_path(workdir, env)))
    if executable is None or not os.path.isabs(executable):
        return False
    # Of a virtual environment in the directory also the packages are files of the directory.
    inside = os.path.realpath(workdir)
    return not any(
        Path(path).is_relative_to(inside) for path in (os.path.abspath(executable), os.path.realpath(executable))
    )


def _absent_modules(
    invocation: Invocation, names: Sequence[str], workdir: Path, env: Mapping[str, str]
) -> tuple[str, ...]:
    """Return the top-level modules of these that the command's interpreter does not find; empty if it does not run."""
    flags = [flag for flag in invocation.flags if not re.fullmatch("-[a-zA-Z]*[iv][a-zA-Z]*", flag)]
    try:
        ended = subprocess.run(
            [invocation.program, *flags, "-c", FIND, *names],
            cwd=workdir,
            env={**env, "PATH": os.pathsep.join(_path(workdir, env))},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=ASK_S,
            check=False,
            text=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ()  # the command itself may still work
    return tuple(ended.stdout.split()) if ended.returncode == ABSENT else ()


def _submodule_problem(module: str, workdir: Path) -> str | None:
    """Return what a module's package in the directory lacks; None when found, or when only an import could tell."""
    directory = workdir
    for place, part in enumerate(module.split(".")):
        entries = _entries_of(part, directory)
        if not entries:
            if not place:
                return None
            names = [name.partition(".")[0] for name in _names(directory)]
            return f"there is no module {module!r}: {directory} has no {part!r}{_near(part, names)}"
        package = directory / part / "__init__.py"
        try:
            if "__path__" in package.read_text(errors="replace"):
                return None  # it sets the search path of its modules itself
        except OSError:
            return None  # a file, or a package of several directories
        directory = package.parent
    return None


def _path(workdir: Path, env: Mapping[str, str]) -> list[str]:
    """Return the directories of the PATH, resolved from the working directory."""
    return [os.path.join(workdir, directory) for directory in env.get("PATH", os.defpath).split(os.pathsep)]


def _looks_in_workdir(invocation: Invocation, env: Mapping[str, str]) -> bool:
    return not env.get("PYTHONSAFEPATH") and not any(re.match("-[a-zA-Z]*[IP]", flag) for flag in invocation.flags)


def _entries_of(module: str, directory: Path) -> list[str]:
    return [name for name in _names(directory) if name.partition(".")[0] == module]


def _near_script(script: str, workdir: Path) -> str:
    """Suggest files that may have been meant: a similar name beside the script, or its name one directory below."""
    place = (workdir / script).parent
    ending, folder = os.path.splitext(script)[1], os.path.dirname(script)
    beside = [os.path.join(folder, name) for name in _names(place) if os.path.splitext(name)[1] == ending]
    name = os.path.basename(script)
    below = [f"{directory}/{name}" for directory in _names(workdir) if (workdir / directory / name).is_file()]
    near = _near(script, beside)
    return near or (f" (did you mean {below[0]}?)" if below else "")


def _near(name: str, names: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, sorted(set(names)), n=1, cutoff=0.65)
    return f" (did you mean {near[0]}?)" if near and near[0] != name else ""


def _names(directory: Path) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except OSError:
        return []
