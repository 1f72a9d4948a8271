"""Fields of an overlay that an installation decides about: root, capabilities and priority classes, none by default."""

from collections.abc import Iterable, Iterator
from typing import Any

from fairlead.frozen import dataclass
from fairlead.specs.constraints import quote
from fairlead.specs.overlay import Overlay

CAPABILITY = "NET_BIND_SERVICE"
"""The capability that Pod Security's ``restricted`` lets a container add."""
ROOT, CAPABILITIES, PRIORITY_CLASSES = "root", "capability=", "priority-class="
FORMS = f"{ROOT}, {CAPABILITIES}NAME or {PRIORITY_CLASSES}NAME"
ASK = "leave it out, or have it allowed by `fairlead install --allow-overlay {}`"


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlayAllowance:
    """Values that overlays may have in an installation beyond those for everybody.

    Attributes:
        root: Run as user 0.
        capabilities: Capabilities that containers may add.
        priority_classes: Priority classes of pods.
    """

    root: bool = False
    capabilities: tuple[str, ...] = ()
    priority_classes: tuple[str, ...] = ()

    def words(self) -> tuple[str, ...]:
        """Return the values of ``--allow-overlay`` that give this allowance."""
        return (
            *((ROOT,) if self.root else ()),
            *(f"{CAPABILITIES}{name}" for name in self.capabilities),
            *(f"{PRIORITY_CLASSES}{name}" for name in self.priority_classes),
        )


NOTHING = OverlayAllowance()


def read_allowance(words: Iterable[str]) -> OverlayAllowance:
    """Read the values of ``--allow-overlay``.

    Raises:
        ValueError: One is none of the forms.
    """
    root, capabilities, classes = False, [], []
    for word in words:
        name = word.partition("=")[2]
        if word == ROOT:
            root = True
        elif word.startswith(CAPABILITIES) and name.replace("_", "").isalnum() and name.isupper():
            capabilities.append(name)
        elif word.startswith(PRIORITY_CLASSES) and name.replace("-", "").replace(".", "").isalnum():
            classes.append(name)
        else:
            raise ValueError(f"{quote(word)} is none of {FORMS}, such as {CAPABILITIES}IPC_LOCK")
    return OverlayAllowance(root=root, capabilities=tuple(capabilities), priority_classes=tuple(classes))


def refusals(overlay: Overlay, allowed: OverlayAllowance) -> Iterator[str]:
    """Yield a sentence for each field of an overlay that the installation does not allow, with its path."""
    pod = overlay.pod.get("spec") or {}
    of_class = pod.get("priorityClassName")
    if of_class and of_class not in allowed.priority_classes:
        ask = ASK.format(f"{PRIORITY_CLASSES}{of_class}")
        yield f"spec.priorityClassName: the priority class {quote(of_class)} would evict other teams' pods; {ask}"
    for path, security in _contexts(pod):
        if not allowed.root and (security.get("runAsUser") == 0 or security.get("runAsNonRoot") is False):
            yield f"{path}: root is not allowed here; {ASK.format(ROOT)}"
        for name in (security.get("capabilities") or {}).get("add") or ():
            if name not in (CAPABILITY, *allowed.capabilities):
                ask = ASK.format(f"{CAPABILITIES}{name}")
                yield f"{path}.capabilities.add: the capability {quote(name)} is not allowed here; {ask}"


def _contexts(pod: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the security contexts of a pod and its containers with their paths."""
    yield "spec.securityContext", pod.get("securityContext") or {}
    for kind in ("containers", "initContainers"):
        for place, container in enumerate(pod.get(kind) or ()):
            yield f"spec.{kind}[{place}].securityContext", container.get("securityContext") or {}
